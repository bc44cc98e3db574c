//! Ranges of IPv4 addresses for pods: their text form, and which range a node gets. Pure.
//!
//! The server has one range for all pods (`--pod-cidr`). Each node whose agent gives pods addresses of their own gets a
//! part of [`NODE_PREFIX`] bits of it, stored on its Node as `spec.podCIDR`, as Kubernetes' node IPAM controller stores
//! it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bits of the prefix of a node's range: 256 addresses, of which pods get [`POD_ADDRESSES`].
pub const NODE_PREFIX: u8 = 24;
/// Addresses that a node's range has for pods: all but the first, which names the range, the second, which is the
/// node's, and the last, which stands for broadcasts.
pub const POD_ADDRESSES: u32 = 253;
/// The range of all pods unless the server is configured otherwise, as in many Kubernetes clusters.
pub const DEFAULT_CLUSTER_RANGE: Ipv4Range = Ipv4Range {
    first: Ipv4Addr::new(10, 244, 0, 0),
    prefix: 16,
};
/// The shortest prefix that a range of all pods may have.
const SHORTEST_PREFIX: u8 = 8;

/// Why a text is no usable range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It is not an address with a prefix.
    #[error("write an IPv4 range, as 10.244.0.0/16")]
    Malformed,
    /// The address has bits after the prefix.
    #[error("the address has bits after the prefix; write {0}")]
    HostBits(Ipv4Range),
    /// The prefix gives too few or too many addresses.
    #[error(
        "write a prefix from {SHORTEST_PREFIX} to {NODE_PREFIX}: each node gets a range of /{NODE_PREFIX}"
    )]
    Prefix,
    /// The addresses have another meaning.
    #[error(
        "its addresses are reserved (loopback, link-local, multicast); write a private range, as 10.244.0.0/16"
    )]
    Reserved,
}

/// A range of IPv4 addresses with a common prefix, in text as `10.244.3.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ipv4Range {
    first: Ipv4Addr,
    prefix: u8,
}

impl Ipv4Range {
    /// The range of `prefix` bits around an address; `None` if a prefix has at most 32 bits and this has more.
    #[must_use]
    pub fn around(address: Ipv4Addr, prefix: u8) -> Option<Ipv4Range> {
        let mask = mask(prefix)?;
        Some(Ipv4Range {
            first: Ipv4Addr::from(u32::from(address) & mask),
            prefix,
        })
    }

    /// The first address.
    #[must_use]
    pub fn first(self) -> Ipv4Addr {
        self.first
    }

    /// Bits of the prefix.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The last address.
    #[must_use]
    pub fn last(self) -> Ipv4Addr {
        let mask = mask(self.prefix).unwrap_or(u32::MAX);
        Ipv4Addr::from(u32::from(self.first) | !mask)
    }

    /// Whether it contains an address.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        (self.first..=self.last()).contains(&address)
    }

    /// Whether an address is in both.
    #[must_use]
    pub fn overlaps(self, other: Ipv4Range) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// Reads the range of all pods (`--pod-cidr`).
    ///
    /// # Errors
    ///
    /// For a text that is no range, a range that nodes can get no part of, and addresses with another meaning.
    pub fn cluster(text: &str) -> Result<Ipv4Range, RangeError> {
        let range: Ipv4Range = text.parse()?;
        if !(SHORTEST_PREFIX..=NODE_PREFIX).contains(&range.prefix) {
            return Err(RangeError::Prefix);
        }
        if range.is_reserved() {
            return Err(RangeError::Reserved);
        }
        Ok(range)
    }

    /// Whether some of its addresses have another meaning than that of a machine: loopback, link-local, multicast.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        let reserved = [
            (Ipv4Addr::new(0, 0, 0, 0), 8),
            (Ipv4Addr::new(127, 0, 0, 0), 8),
            (Ipv4Addr::new(169, 254, 0, 0), 16),
            (Ipv4Addr::new(224, 0, 0, 0), 3),
        ];
        let mut reserved = reserved
            .map(|(first, prefix)| Ipv4Range { first, prefix })
            .into_iter();
        reserved.any(|other| self.overlaps(other))
    }

    /// The range of a node in this range of all pods: the one that the node `had`, if no other node has it, else the
    /// lowest free one; `None` if there is none. Costs the square of the number of taken ranges, a few hundred.
    #[must_use]
    pub fn allot(self, taken: &BTreeSet<Ipv4Range>, had: Option<Ipv4Range>) -> Option<Ipv4Range> {
        let free = |range: &Ipv4Range| !taken.iter().any(|other| other.overlaps(*range));
        let of_cluster =
            |range: &Ipv4Range| range.prefix == NODE_PREFIX && self.contains(range.first);
        if let Some(had) = had.filter(of_cluster).filter(free) {
            return Some(had);
        }
        let step = 1_u32 << (32 - NODE_PREFIX);
        let count = 1_u32.checked_shl(u32::from(NODE_PREFIX.checked_sub(self.prefix)?))?;
        let start = u32::from(self.first);
        (0..count)
            .map(|number| Ipv4Range {
                first: Ipv4Addr::from(start + number * step),
                prefix: NODE_PREFIX,
            })
            .find(free)
    }
}

/// The mask of a prefix.
fn mask(prefix: u8) -> Option<u32> {
    match prefix {
        0 => Some(0),
        1..=32 => Some(u32::MAX << (32 - prefix)),
        _ => None,
    }
}

impl fmt::Display for Ipv4Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl FromStr for Ipv4Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Ipv4Range, RangeError> {
        let (address, prefix) = text.split_once('/').ok_or(RangeError::Malformed)?;
        let address: Ipv4Addr = address.parse().map_err(|_| RangeError::Malformed)?;
        let digits = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix
            .parse()
            .ok()
            .filter(|_| digits)
            .ok_or(RangeError::Malformed)?;
        let range = Ipv4Range::around(address, prefix).ok_or(RangeError::Malformed)?;
        if range.first != address {
            return Err(RangeError::HostBits(range));
        }
        Ok(range)
    }
}

impl TryFrom<String> for Ipv4Range {
    type Error = RangeError;

    fn try_from(text: String) -> Result<Ipv4Range, RangeError> {
        text.parse()
    }
}

impl From<Ipv4Range> for String {
    fn from(range: Ipv4Range) -> String {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str) -> Ipv4Range {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_of_all_pods_is_refused_with_what_to_write() {
        for (text, refused) in [
            ("10.244.0.0/16", None),
            ("10.0.0.0/8", None),
            ("192.168.7.0/24", None),
            ("10.244.0.0", Some(RangeError::Malformed)),
            ("10.244.0.0/", Some(RangeError::Malformed)),
            ("10.244.0.0/+16", Some(RangeError::Malformed)),
            ("10.244.0.0/33", Some(RangeError::Malformed)),
            ("10.244/16", Some(RangeError::Malformed)),
            ("fd00::/64", Some(RangeError::Malformed)),
            (
                "10.244.1.0/16",
                Some(RangeError::HostBits(range("10.244.0.0/16"))),
            ),
            ("10.244.0.0/25", Some(RangeError::Prefix)),
            ("0.0.0.0/0", Some(RangeError::Prefix)),
            ("127.1.0.0/16", Some(RangeError::Reserved)),
            ("169.254.1.0/24", Some(RangeError::Reserved)),
            ("168.0.0.0/7", Some(RangeError::Prefix)),
            ("240.0.0.0/8", Some(RangeError::Reserved)),
        ] {
            assert_eq!(Ipv4Range::cluster(text).err(), refused, "{text}");
        }
        assert_eq!(
            Ipv4Range::cluster("10.244.0.0/16"),
            Ok(DEFAULT_CLUSTER_RANGE)
        );
    }

    #[test]
    fn a_node_keeps_its_range_unless_another_node_has_it() {
        let all = range("10.244.0.0/16");
        let taken: BTreeSet<_> = ["10.244.0.0/24", "10.244.2.0/24"].map(range).into();
        let given = |had: &str| {
            all.allot(&taken, Some(range(had)))
                .map(|range| range.to_string())
        };
        assert_eq!(given("10.244.9.0/24").as_deref(), Some("10.244.9.0/24"));
        // Taken, of another length, and outside of the range of all pods.
        for other in ["10.244.2.0/24", "10.244.8.0/23", "10.245.0.0/24"] {
            assert_eq!(given(other).as_deref(), Some("10.244.1.0/24"), "{other}");
        }
        let full: BTreeSet<_> = [range("10.244.0.0/16")].into();
        assert_eq!(all.allot(&full, None), None);
        assert_eq!(range("10.0.0.0/30").allot(&BTreeSet::new(), None), None);
    }

    proptest! {
        #[test]
        fn ranges_of_nodes_never_overlap_until_none_is_left(
            number in any::<u32>(),
            prefix in 17_u8..=24,
            freed in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
        ) {
            let all = Ipv4Range::around(Ipv4Addr::from(number), prefix).unwrap();
            let count = 1_usize << (NODE_PREFIX - prefix);
            let mut taken = BTreeSet::new();
            while let Some(next) = all.allot(&taken, None) {
                prop_assert!(all.contains(next.first()) && all.contains(next.last()));
                prop_assert!(taken.iter().all(|other: &Ipv4Range| !other.overlaps(next)));
                taken.insert(next);
            }
            prop_assert_eq!(taken.len(), count);
            for index in freed {
                let list: Vec<_> = taken.iter().copied().collect();
                let one = *index.get(&list);
                taken.remove(&one);
                prop_assert_eq!(all.allot(&taken, None), Some(one));
                taken.insert(one);
            }
        }

        #[test]
        fn the_text_of_a_range_reads_as_the_same_range(number in any::<u32>(), prefix in 0_u8..=32) {
            let one = Ipv4Range::around(Ipv4Addr::from(number), prefix).unwrap();
            prop_assert_eq!(one.to_string().parse(), Ok(one));
            prop_assert!(one.contains(Ipv4Addr::from(number)));
            let json = serde_json::to_string(&one).unwrap();
            prop_assert_eq!(serde_json::from_str::<Ipv4Range>(&json).unwrap(), one);
        }

        #[test]
        fn no_text_panics(text in "[0-9./:a-f +-]{0,24}") {
            let _ = Ipv4Range::cluster(&text);
        }
    }
}
