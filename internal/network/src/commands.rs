//! The texts that `ip` and `nft` are given. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use resources::pod_ranges::Ipv4Range;

/// The nftables table of the pods' rules.
pub(crate) const TABLE: &str = "muster_pods";
/// The number by which the kernel's routes show that the agent made them; no program that iproute2 knows has it.
pub(crate) const ROUTE_PROTOCOL: u8 = 117;
/// The start of the names of the pods' devices on the node.
pub(crate) const DEVICE_PREFIX: &str = "mp";
/// The start of these devices' aliases; the pod's uid follows.
pub(crate) const ALIAS_PREFIX: &str = "muster:";
/// A pod's device inside.
const INSIDE: &str = "eth0";

/// One pod's veth pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Veth<'a> {
    /// The pod's uid.
    pub uid: &'a str,
    /// The pod's address.
    pub address: Ipv4Addr,
    /// The node's address among its pods.
    pub gateway: Ipv4Addr,
    /// Largest packet, in bytes.
    pub mtu: u32,
}

/// The name of the device on the node, which the address determines.
pub(crate) fn device(address: Ipv4Addr) -> String {
    format!("{DEVICE_PREFIX}{:08x}", u32::from(address))
}

/// Whether a device's name is one of [`device`].
pub(crate) fn is_device(name: &str) -> bool {
    name.strip_prefix(DEVICE_PREFIX).is_some_and(|digits| {
        digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

impl Veth<'_> {
    /// For `ip -batch` inside of the pod's new namespace: both devices, the other one in the network of a thread.
    pub fn inside(&self, thread: i32) -> String {
        let Veth {
            address,
            gateway,
            mtu,
            ..
        } = self;
        let device = device(*address);
        format!(
            "link set lo up\n\
             link add {INSIDE} mtu {mtu} type veth peer name {device} mtu {mtu} netns {thread}\n\
             addr add {address}/32 dev {INSIDE}\n\
             link set {INSIDE} up\n\
             route add {gateway}/32 dev {INSIDE} scope link\n\
             route add default via {gateway} dev {INSIDE}\n"
        )
    }

    /// For `ip -batch` on the node. The alias is a pod's uid, which has no white space.
    pub fn outside(&self) -> String {
        let Veth {
            uid,
            address,
            gateway,
            ..
        } = self;
        let device = device(*address);
        format!(
            "link set {device} alias {ALIAS_PREFIX}{uid}\n\
             addr add {gateway}/32 dev {device}\n\
             link set {device} up\n\
             route replace {address}/32 dev {device} src {gateway} proto {ROUTE_PROTOCOL}\n"
        )
    }
}

/// The longest comment that the kernel keeps, in bytes.
const COMMENT_MAX: usize = 120;

/// A text as a comment of an element of nftables.
pub(crate) fn comment(text: &str) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() || "-./: ".contains(c) {
        true => c,
        false => '?',
    };
    text.chars().map(plain).take(COMMENT_MAX).collect()
}

/// For `nft -f`: replaces the whole table in one step.
pub(crate) fn rules(cluster: Ipv4Range) -> String {
    format!(
        "add table ip {TABLE}\n\
         delete table ip {TABLE}\n\
         table ip {TABLE} {{\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority 100; policy accept;\n\
         \t\tip saddr {cluster} ip daddr != {cluster} masquerade\n\
         \t}}\n\
         }}\n"
    )
}

/// For `nft -f`: removes the table.
pub(crate) fn no_rules() -> String {
    format!("add table ip {TABLE}\ndelete table ip {TABLE}\n")
}

/// The routes to other nodes' pods that are to be added or changed, and those to be removed.
pub(crate) type RouteChanges = (BTreeMap<Ipv4Range, Ipv4Addr>, Vec<Ipv4Range>);

/// What turns the `present` routes to other nodes' pods into the `wanted` ones.
pub(crate) fn route_changes(
    wanted: &BTreeMap<Ipv4Range, Ipv4Addr>,
    present: &BTreeMap<Ipv4Range, Ipv4Addr>,
) -> RouteChanges {
    let set = wanted
        .iter()
        .filter(|(range, via)| present.get(range) != Some(via));
    let gone = present.keys().filter(|range| !wanted.contains_key(range));
    (
        set.map(|(range, via)| (*range, *via)).collect(),
        gone.copied().collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn devices_are_named_by_their_address_and_known_by_their_name() {
        let name = device(Ipv4Addr::new(10, 244, 3, 2));
        assert_eq!(name, "mp0af40302");
        assert!(is_device(&name));
        for other in [
            "mp0af4030",
            "mp0af403020",
            "mpath0001g",
            "eth0",
            "mp",
            "docker0",
        ] {
            assert!(!is_device(other), "{other}");
        }
    }

    #[test]
    fn rules_replace_the_table_in_one_step() {
        let text = rules("10.244.0.0/16".parse().unwrap());
        assert!(
            text.starts_with("add table ip muster_pods\ndelete table ip muster_pods\ntable ip")
        );
        assert!(text.contains("ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade"));
    }

    proptest! {
        #[test]
        fn the_changes_of_routes_lead_to_the_wanted_ones(
            wanted in proptest::collection::btree_map(0_u8..20, 1_u8..4, 0..12),
            present in proptest::collection::btree_map(0_u8..20, 1_u8..4, 0..12),
        ) {
            let routes = |map: BTreeMap<u8, u8>| -> BTreeMap<Ipv4Range, Ipv4Addr> {
                map.into_iter()
                    .map(|(range, via)| (
                        format!("10.244.{range}.0/24").parse().unwrap(),
                        Ipv4Addr::new(192, 0, 2, via),
                    ))
                    .collect()
            };
            let (wanted, mut present) = (routes(wanted), routes(present));
            let (set, gone) = route_changes(&wanted, &present);
            prop_assert!(set.iter().all(|(range, via)| present.get(range) != Some(via)));
            present.extend(set);
            for range in gone {
                prop_assert!(present.remove(&range).is_some());
            }
            prop_assert_eq!(present, wanted);
        }
    }
}
