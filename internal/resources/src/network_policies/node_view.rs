//! What a node needs to know of the policies for its pods. Sent to agents as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pod_ranges::Ipv4Range;
use crate::services::Protocol;

/// The rules of one pod, as numbers of lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRules {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// What may reach it: one of the rules of these lists; everything if no policy selects it for ingress.
    pub ingress: Option<Vec<u64>>,
    /// What it may send; everything if no policy selects it for egress.
    pub egress: Option<Vec<u64>>,
}

/// The rules of a policy in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleList {
    /// The policy, as NAMESPACE/NAME; for people only.
    pub policy: String,
    /// The rules, one of which has to match.
    pub rules: Vec<TrafficRule>,
}

/// Traffic that is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficRule {
    /// The other side.
    pub peers: Peers,
    /// The ports of the receiving side, in order and without overlaps; all ports of all protocols if empty. Of
    /// [`Peers::Endpoints`] the group has the ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRange>,
}

/// The other side of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Peers {
    /// Everything.
    Any,
    /// The addresses of a group.
    Group(u64),
    /// The addresses and ports of a group.
    Endpoints(u64),
    /// A range of addresses.
    Block(IpBlock),
}

/// A range of addresses without some of its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpBlock {
    /// The range.
    pub range: Ipv4Range,
    /// The parts, in order and without overlaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<Ipv4Range>,
}

/// Ports of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRange {
    /// The protocol.
    pub protocol: Protocol,
    /// The first port.
    pub first: u16,
    /// The last port; the same for one port.
    pub last: u16,
}

impl PortRange {
    /// All ports of a protocol.
    #[must_use]
    pub fn all(protocol: Protocol) -> PortRange {
        PortRange {
            protocol,
            first: 0,
            last: u16::MAX,
        }
    }

    /// Whether these are all ports of the protocol.
    #[must_use]
    pub fn is_all(self) -> bool {
        self == PortRange::all(self.protocol)
    }

    /// Puts ranges in order and joins those that overlap or touch.
    #[must_use]
    pub(super) fn joined(mut ranges: Vec<PortRange>) -> Vec<PortRange> {
        ranges.sort_unstable();
        let mut joined: Vec<PortRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match joined.last_mut() {
                Some(last)
                    if last.protocol == range.protocol
                        && u32::from(range.first) <= u32::from(last.last) + 1 =>
                {
                    last.last = last.last.max(range.last);
                }
                _ => joined.push(range),
            }
        }
        joined
    }
}

/// A member of a group: an address, or an address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Element {
    /// The address.
    pub address: Ipv4Addr,
    /// The port there, in a group of endpoints.
    pub port: Option<(Protocol, u16)>,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        match self.port {
            Some((protocol, port)) => write!(f, "/{protocol}/{port}"),
            None => Ok(()),
        }
    }
}

/// A text is no member of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address, as 10.244.1.2, and no address with a port, as 10.244.1.2/tcp/80")]
pub struct ElementError(String);

impl FromStr for Element {
    type Err = ElementError;

    fn from_str(text: &str) -> Result<Element, ElementError> {
        let wrong = || ElementError(text.to_owned());
        let mut parts = text.split('/');
        let address = parts.next().and_then(|part| part.parse().ok());
        let port = match (parts.next(), parts.next(), parts.next()) {
            (None, _, _) => None,
            (Some(protocol), Some(port), None) => {
                let protocol = Protocol::of(Some(&protocol.to_ascii_uppercase()));
                let port: Option<u16> = port.parse().ok();
                Some(protocol.zip(port).ok_or_else(wrong)?)
            }
            _ => return Err(wrong()),
        };
        Ok(Element {
            address: address.ok_or_else(wrong)?,
            port,
        })
    }
}

impl TryFrom<String> for Element {
    type Error = ElementError;

    fn try_from(text: String) -> Result<Element, ElementError> {
        text.parse()
    }
}

impl From<Element> for String {
    fn from(element: Element) -> String {
        element.to_string()
    }
}

/// How a group changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupChange {
    /// The group's number.
    pub id: u64,
    /// Whether the group is new: it has only what is added.
    #[serde(default)]
    pub new: bool,
    /// New members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Element>,
    /// Members that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Element>,
}

/// All that a node needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// The node's pods, by uid, also those that no policy selects.
    pub pods: BTreeMap<String, Arc<PodRules>>,
    /// The lists that these pods name.
    pub lists: BTreeMap<u64, Arc<RuleList>>,
    /// The groups that these lists name.
    pub groups: BTreeMap<u64, Arc<BTreeSet<Element>>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_groups_have_a_text_form() {
        for text in ["10.244.1.2", "10.244.1.2/tcp/80", "10.244.1.2/sctp/65535"] {
            let element: Element = text.parse().unwrap();
            assert_eq!(element.to_string(), text);
            let json = serde_json::to_string(&element).unwrap();
            assert_eq!(serde_json::from_str::<Element>(&json).unwrap(), element);
        }
        for text in [
            "",
            "10.244.1",
            "10.244.1.2/tcp",
            "10.244.1.2/tcp/",
            "10.244.1.2/tcp/80/1",
            "10.244.1.2/icmp/1",
            "10.244.1.2/tcp/65536",
            "10.244.1.2 }",
        ] {
            assert!(text.parse::<Element>().is_err(), "{text}");
        }
    }

    #[test]
    fn port_ranges_that_overlap_or_touch_are_joined() {
        let range = |protocol, first, last| PortRange {
            protocol,
            first,
            last,
        };
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        let joined = PortRange::joined(vec![
            range(udp, 5, 9),
            range(tcp, 80, 90),
            range(tcp, 91, 95),
            range(tcp, 85, 100),
            range(tcp, 102, 102),
            range(udp, 0, 65_535),
        ]);
        let expected = [
            range(tcp, 80, 100),
            range(tcp, 102, 102),
            PortRange::all(udp),
        ];
        assert_eq!(joined, expected);
        assert!(joined[2].is_all() && !joined[0].is_all());
    }
}
