//! The identity of a connection's peer, from its client certificate. The listener adds it to a
//! request's extensions; this module checks no certificate.

/// The prefix of a node's common name.
pub const NODE_PREFIX: &str = "system:node:";

/// The organisation in a node's certificate.
pub const NODE_GROUP: &str = "system:nodes";

/// The verified client certificate's subject, added to the request's extensions by the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The certificate's common name, for a node `system:node:NAME`.
    pub common_name: String,
    /// The admission of the node to which the certificate belongs: its organisational unit. Each
    /// join creates a new admission, which invalidates earlier certificates.
    pub admission: Option<String>,
    /// When the certificate expires, in seconds since 1970. TLS checks it in the handshake only; a
    /// connection may last longer.
    pub not_after: i64,
}

impl PeerIdentity {
    /// The common name of a node's certificate.
    pub fn node_common_name(name: &str) -> String {
        format!("{NODE_PREFIX}{name}")
    }

    /// The node's name, if the peer is a node.
    pub fn node_name(&self) -> Option<&str> {
        self.common_name
            .strip_prefix(NODE_PREFIX)
            .filter(|name| !name.is_empty())
    }
}

/// When a certificate is due for renewal: at two thirds of its lifetime, so that a third is left
/// for retries. `issued` and `not_after` (its expiry) are in seconds since 1970, as is the result.
pub fn renewal_second(issued: i64, not_after: i64) -> i64 {
    let life = not_after.saturating_sub(issued).max(0);
    issued.saturating_add(life / 3 * 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        let cases = [
            // issued, ends, renewed
            (0, 300, 200),
            (1000, 1000 + 7 * 86_400, 1000 + 7 * 86_400 / 3 * 2),
            (1000, 1000, 1000),
            // It expired before it was issued: at once.
            (1000, 500, 1000),
            (i64::MIN, i64::MAX, i64::MIN + i64::MAX / 3 * 2),
        ];
        for (issued, ends, renewed) in cases {
            assert_eq!(renewal_second(issued, ends), renewed, "{issued} {ends}");
        }
    }

    #[test]
    fn only_a_common_name_with_the_node_prefix_names_a_node() {
        let named = |common_name: String| PeerIdentity {
            common_name,
            admission: None,
            not_after: 0,
        };
        let node = named(PeerIdentity::node_common_name("a"));
        assert_eq!(node.node_name(), Some("a"));
        for name in ["", "a", "system:node:", "system:nodes:a", "admin"] {
            assert_eq!(named(name.to_owned()).node_name(), None, "{name}");
        }
    }
}
