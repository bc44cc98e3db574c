//! Who is at the other end of a connection, by its client certificate. The listener puts it into
//! a request's extensions; nothing here checks a certificate.

/// What a node's common name starts with.
pub const NODE_PREFIX: &str = "system:node:";

/// The organisation in a node's certificate.
pub const NODE_GROUP: &str = "system:nodes";

/// The verified client certificate's subject, put into the request's extensions by the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The certificate's common name, for a node `system:node:NAME`.
    pub common_name: String,
}

impl PeerIdentity {
    /// The identity that a node's certificate carries.
    pub fn node(name: &str) -> Self {
        PeerIdentity {
            common_name: format!("{NODE_PREFIX}{name}"),
        }
    }

    /// The node's name, if a node is at the other end.
    pub fn node_name(&self) -> Option<&str> {
        self.common_name
            .strip_prefix(NODE_PREFIX)
            .filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_common_name_with_the_node_prefix_names_a_node() {
        assert_eq!(PeerIdentity::node("a").node_name(), Some("a"));
        for name in ["", "a", "system:node:", "system:nodes:a", "admin"] {
            let peer = PeerIdentity {
                common_name: name.to_owned(),
            };
            assert_eq!(peer.node_name(), None, "{name}");
        }
    }
}
