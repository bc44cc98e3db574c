//! The PCIe tree: the kind and the bandwidth of a path between two devices. Pure.

use std::collections::BTreeMap;

use crate::inventory::{Inventory, LinkKind};
use crate::wiring::{Bandwidth, PcieLink, PcieSwitch};

/// The most switches on a path; a damaged description may contain a cycle.
const DEEPEST: usize = 16;
/// The assumed bandwidth of a path without any known link: 16 lanes of generation 3.
const ASSUMED: Bandwidth = Bandwidth(12_000);
/// The assumed bandwidth between sockets of an unknown processor: a Skylake's.
const ASSUMED_SOCKETS: Bandwidth = Bandwidth(10_000);

/// A device's place: its parent, its NUMA node and its own link.
#[derive(Clone, Copy, Debug)]
pub struct PcieLocation<'a> {
    /// A switch's address or a host bridge; empty if not known.
    pub under: &'a str,
    /// Its NUMA node.
    pub numa: Option<u32>,
    /// Its link upwards.
    pub link: PcieLink,
}

/// The switches of a machine by address, and the bandwidth between its sockets.
pub struct PcieTree<'a> {
    switches: BTreeMap<&'a str, &'a PcieSwitch>,
    sockets: Bandwidth,
}

impl<'a> PcieTree<'a> {
    /// The tree of a machine.
    pub fn of(inventory: &'a Inventory) -> PcieTree<'a> {
        PcieTree {
            switches: (inventory.switches.iter())
                .map(|switch| (switch.address.as_str(), switch))
                .collect(),
            sockets: inventory.between_sockets.unwrap_or(ASSUMED_SOCKETS),
        }
    }

    /// The switches above a device, the nearest first, and the host bridge above them.
    fn way_up(&self, under: &'a str) -> (Vec<&'a PcieSwitch>, &'a str) {
        let (mut way, mut at) = (Vec::new(), under);
        while let Some(switch) = self.switches.get(at).filter(|_| way.len() < DEEPEST) {
            way.push(*switch);
            at = &switch.under;
        }
        (way, at)
    }

    /// The switches above a device, from the host bridge down; none if they form a cycle.
    pub(crate) fn way_down(&self, under: &'a str) -> Vec<&'a PcieSwitch> {
        let (mut way, root) = self.way_up(under);
        if self.switches.contains_key(root) {
            way.clear();
        }
        way.reverse();
        way
    }

    /// The host bridge above a device, as the kernel names it (`pci0000:15`); `None` if not known.
    pub fn root(&self, under: &'a str) -> Option<&'a str> {
        let (_, root) = self.way_up(under);
        root.starts_with("pci").then_some(root)
    }

    /// The path between two devices, as `nvidia-smi topo` names it, and the bandwidth of its narrowest link.
    pub fn path(&self, one: PcieLocation<'a>, other: PcieLocation<'a>) -> (LinkKind, Bandwidth) {
        let (mut mine, my_root) = self.way_up(one.under);
        let (mut its, its_root) = self.way_up(other.under);
        let same_root = !my_root.is_empty() && my_root == its_root;
        let mut common = None;
        while let (Some(a), Some(b)) = (mine.last(), its.last()) {
            if !same_root || a.address != b.address {
                break;
            }
            common = Some(*a);
            mine.pop();
            its.pop();
        }
        let kind = match (common, mine.len() + its.len()) {
            (Some(_), 0) => LinkKind::Pix,
            (Some(_), _) => LinkKind::Pxb,
            (None, _) if same_root => LinkKind::Phb,
            // Without a tree, a NUMA node counts as one host bridge.
            (None, _) if my_root.is_empty() || its_root.is_empty() => {
                if one.numa == other.numa {
                    LinkKind::Phb
                } else {
                    LinkKind::Sys
                }
            }
            (None, _) if one.numa == other.numa => LinkKind::Node,
            (None, _) => LinkKind::Sys,
        };
        let links = mine.iter().chain(&its).map(|switch| switch.link);
        let narrowest = (links.chain([one.link, other.link]))
            .filter_map(PcieLink::bandwidth)
            .min();
        let bandwidth = narrowest.unwrap_or(ASSUMED);
        match kind {
            LinkKind::Sys => (kind, bandwidth.min(self.sockets)),
            _ => (kind, bandwidth),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(generation: u32, width: u32) -> PcieLink {
        PcieLink {
            generation,
            width,
            max_generation: generation,
            max_width: width,
        }
    }

    fn switch(address: &str, under: &str, link: PcieLink) -> PcieSwitch {
        PcieSwitch {
            address: address.into(),
            under: under.into(),
            numa: None,
            link,
        }
    }

    fn at(under: &str, numa: u32) -> PcieLocation<'_> {
        PcieLocation {
            under,
            numa: Some(numa),
            link: link(4, 16),
        }
    }

    /// Two switches under a third, which has eight lanes upwards, and one beside it.
    fn machine() -> Inventory {
        Inventory {
            switches: vec![
                switch("top", "pci0000:00", link(4, 8)),
                switch("left", "top", link(4, 16)),
                switch("right", "top", link(3, 16)),
                switch("beside", "pci0000:00", link(4, 16)),
                switch("far", "pci0000:80", link(4, 16)),
            ],
            between_sockets: Some(Bandwidth(6_000)),
            ..Inventory::default()
        }
    }

    #[test]
    fn a_path_is_named_by_what_it_crosses_and_carries_what_its_narrowest_link_does() {
        let machine = machine();
        let tree = PcieTree::of(&machine);
        for (one, other, kind, megabytes) in [
            (at("left", 0), at("left", 0), LinkKind::Pix, 24_000),
            (at("left", 0), at("right", 0), LinkKind::Pxb, 12_000),
            (at("left", 0), at("top", 0), LinkKind::Pxb, 24_000),
            (at("left", 0), at("beside", 0), LinkKind::Phb, 12_000),
            (at("beside", 0), at("pci0000:00", 0), LinkKind::Phb, 24_000),
            (at("beside", 0), at("far", 0), LinkKind::Node, 24_000),
            (at("beside", 0), at("far", 1), LinkKind::Sys, 6_000),
            (at("", 0), at("", 0), LinkKind::Phb, 24_000),
            (at("", 0), at("far", 1), LinkKind::Sys, 6_000),
        ] {
            let found = (kind, Bandwidth(megabytes));
            assert_eq!(tree.path(one, other), found, "{one:?} {other:?}");
            assert_eq!(tree.path(other, one), found, "{other:?} {one:?}");
        }
    }

    #[test]
    fn the_root_of_a_device_is_the_hosts_bridge_above_all_its_switches() {
        let machine = machine();
        let tree = PcieTree::of(&machine);
        assert_eq!(tree.root("left"), Some("pci0000:00"));
        assert_eq!(tree.root("pci0000:80"), Some("pci0000:80"));
        assert_eq!(tree.root("elsewhere"), None);
        assert_eq!(tree.root(""), None);
    }

    #[test]
    fn a_circle_of_switches_ends() {
        let machine = Inventory {
            switches: vec![switch("a", "b", link(4, 16)), switch("b", "a", link(4, 16))],
            ..Inventory::default()
        };
        let (kind, _) = PcieTree::of(&machine).path(at("a", 0), at("b", 0));
        assert!(kind >= LinkKind::Pix);
    }
}
