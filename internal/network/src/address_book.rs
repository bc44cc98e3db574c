//! Which pod of a node has which address. Pure; [`crate::PodNetworks`] keeps it on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use resources::pod_ranges::{Ipv4Range, POD_ADDRESSES};
use serde::{Deserialize, Serialize};

/// The node's range has no free address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "all {POD_ADDRESSES} pod addresses of this node ({range}) are in use; lower --max-pods of its agent below that"
)]
pub struct AddressesExhausted {
    /// The range.
    pub range: Ipv4Range,
}

/// The addresses of a node's pods, by the pods' uids.
///
/// A freed address is given out again only after all others were: a client that still has it reaches no pod for a
/// while, instead of another pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressBook {
    /// The node's range.
    range: Ipv4Range,
    /// The range of all pods of the cluster.
    cluster: Ipv4Range,
    /// How far after the range's first address the last given one is.
    last: u32,
    pods: BTreeMap<String, Ipv4Addr>,
}

impl AddressBook {
    /// No pod has an address yet.
    #[must_use]
    pub fn new(range: Ipv4Range, cluster: Ipv4Range) -> AddressBook {
        AddressBook {
            range,
            cluster,
            last: 0,
            pods: BTreeMap::new(),
        }
    }

    /// The node's range.
    #[must_use]
    pub fn range(&self) -> Ipv4Range {
        self.range
    }

    /// The range of all pods of the cluster.
    #[must_use]
    pub fn cluster(&self) -> Ipv4Range {
        self.cluster
    }

    /// The node's own address among its pods, their way out: the second of the range.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        gateway(self.range)
    }

    /// Takes other ranges; pods keep the addresses that they have. True if that changed anything.
    pub fn set_ranges(&mut self, range: Ipv4Range, cluster: Ipv4Range) -> bool {
        let changed = (range, cluster) != (self.range, self.cluster);
        if range != self.range {
            self.last = 0;
        }
        (self.range, self.cluster) = (range, cluster);
        changed
    }

    /// The address of a pod, if it has one.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Ipv4Addr> {
        self.pods.get(uid).copied()
    }

    /// The addresses of all pods, by uid.
    #[must_use]
    pub fn addresses(&self) -> BTreeMap<String, Ipv4Addr> {
        self.pods.clone()
    }

    /// The uids of all pods with an address.
    #[must_use]
    pub fn pods(&self) -> BTreeSet<String> {
        self.pods.keys().cloned().collect()
    }

    /// The address of a pod: the one that it has, else the next free one.
    ///
    /// # Errors
    ///
    /// When no address is free.
    pub fn take(&mut self, uid: &str) -> Result<Ipv4Addr, AddressesExhausted> {
        if let Some(address) = self.get(uid) {
            return Ok(address);
        }
        let used: BTreeSet<Ipv4Addr> = self.pods.values().copied().collect();
        let (first, last) = (u32::from(self.range.first()), u32::from(self.range.last()));
        // The first address, the gateway and the last one are no pod's.
        let count = (last - first).saturating_sub(2);
        let numbers = (0..count).map(|step| 2 + (self.last.saturating_sub(1) + step) % count);
        let mut free = numbers.map(|number| (number, Ipv4Addr::from(first + number)));
        let next = free.find(|(_, address)| !used.contains(address));
        let (number, address) = next.ok_or(AddressesExhausted { range: self.range })?;
        self.last = number;
        self.pods.insert(uid.to_owned(), address);
        Ok(address)
    }

    /// Frees the address of a pod, which is returned.
    pub fn free(&mut self, uid: &str) -> Option<Ipv4Addr> {
        self.pods.remove(uid)
    }
}

/// The node's own address in its range.
pub(crate) fn gateway(range: Ipv4Range) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.first()).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str) -> Ipv4Range {
        text.parse().unwrap()
    }

    fn book() -> AddressBook {
        AddressBook::new(range("10.244.3.0/24"), range("10.244.0.0/16"))
    }

    #[test]
    fn a_freed_address_is_given_out_last() {
        let mut book = book();
        let first = book.take("a").unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 244, 3, 2));
        assert_eq!(book.take("a"), Ok(first));
        assert_eq!(book.free("a"), Some(first));
        assert_eq!(book.free("a"), None);
        for number in 3..=254 {
            let address = book.take(&number.to_string()).unwrap();
            assert_eq!(address, Ipv4Addr::new(10, 244, 3, number));
        }
        assert_eq!(book.take("b"), Ok(first));
        let full = book.take("c").unwrap_err();
        assert!(
            full.to_string()
                .contains("all 253 pod addresses of this node (10.244.3.0/24)")
        );
        assert_eq!(book.gateway(), Ipv4Addr::new(10, 244, 3, 1));
    }

    #[test]
    fn pods_keep_their_addresses_when_the_node_gets_another_range() {
        let mut book = book();
        let before = book.take("a").unwrap();
        assert!(!book.set_ranges(range("10.244.3.0/24"), range("10.244.0.0/16")));
        assert!(book.set_ranges(range("10.9.0.0/24"), range("10.9.0.0/16")));
        assert_eq!(book.take("a"), Ok(before));
        assert_eq!(book.take("b"), Ok(Ipv4Addr::new(10, 9, 0, 2)));
    }

    proptest! {
        #[test]
        fn no_two_pods_have_one_address_also_after_a_restart(
            steps in proptest::collection::vec((any::<bool>(), 0_u16..300), 0..600),
        ) {
            let mut book = book();
            for (frees, pod) in steps {
                let uid = pod.to_string();
                if frees {
                    book.free(&uid);
                } else if book.take(&uid).is_err() {
                    prop_assert_eq!(book.pods().len(), 253);
                }
                let used: BTreeSet<_> = book.pods.values().copied().collect();
                prop_assert_eq!(used.len(), book.pods.len());
                let usable = Ipv4Addr::new(10, 244, 3, 2)..=Ipv4Addr::new(10, 244, 3, 254);
                prop_assert!(used.iter().all(|address| usable.contains(address)));
                // The agent reads what it wrote.
                let kept = serde_json::to_string(&book).unwrap();
                book = serde_json::from_str(&kept).unwrap();
            }
        }
    }
}
