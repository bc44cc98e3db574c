//! Finds the network interface of an address of this machine in the kernel's routing table. Pure
//! apart from reading the table.

use std::net::Ipv4Addr;
use std::path::Path;

/// A network that is reachable without a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The interface's name.
    interface: String,
    network: u32,
    mask: u32,
}

/// The networks that are reachable without a gateway; none if the table cannot be read.
pub fn read(root: &Path) -> Vec<Route> {
    let text = std::fs::read_to_string(root.join("proc/net/route")).unwrap_or_default();
    text.lines().skip(1).filter_map(route).collect()
}

/// `eth0 0000000A 00000000 0001 0 0 0 00FFFFFF ...`: interface, network, gateway, flags, three
/// numbers, mask; addresses are in the processor's byte order.
fn route(line: &str) -> Option<Route> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [interface, network, gateway, _, _, _, _, mask, ..] = words[..] else {
        return None;
    };
    let number = |text: &str| Some(u32::from_str_radix(text, 16).ok()?.to_be());
    let direct = number(gateway)? == 0 && number(mask)? != 0;
    Some(Route {
        interface: interface.to_owned(),
        network: number(network)?,
        mask: number(mask)?,
    })
    .filter(|_| direct)
}

/// The interface whose network contains an address, the narrowest first; none if no interface is
/// known, or several have equal networks.
pub fn interface(routes: &[Route], address: Ipv4Addr) -> Option<&str> {
    let bits = u32::from(address);
    let has = |route: &&Route| bits & route.mask == route.network;
    let narrowest = routes.iter().filter(has).map(|route| route.mask).max()?;
    let mut best = routes
        .iter()
        .filter(has)
        .filter(|route| route.mask == narrowest);
    let one = best.next()?;
    let same = best.all(|other| other.interface == one.interface);
    same.then_some(one.interface.as_str())
}

/// The network of an interface's address, `10.0.0.0/24`, the narrowest; none if not known.
pub fn network(routes: &[Route], interface: &str, address: Ipv4Addr) -> Option<String> {
    let bits = u32::from(address);
    let has = |route: &&Route| route.interface == interface && bits & route.mask == route.network;
    let narrowest = routes.iter().filter(has).max_by_key(|route| route.mask)?;
    let length = narrowest.mask.count_ones();
    Some(format!("{}/{length}", Ipv4Addr::from(narrowest.network)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn an_address_is_on_the_interface_of_its_narrowest_network() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/net")).unwrap();
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
            eth0 00000000 0101000A 0003 0 0 0 00000000 0 0 0\n\
            eth0 0000000A 00000000 0001 0 0 0 000000FF 0 0 0\n\
            eth1 0001000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
            eth2 0002000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
            eth3 0002000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n\
            damaged\n";
        std::fs::write(root.path().join("proc/net/route"), table).unwrap();
        let routes = read(root.path());
        for (address, wanted) in [
            ([10, 0, 1, 7], Some("eth1")),
            ([10, 9, 9, 9], Some("eth0")),
            ([10, 0, 2, 1], None),
            ([192, 168, 0, 1], None),
            ([127, 0, 0, 1], None),
        ] {
            assert_eq!(interface(&routes, address.into()), wanted, "{address:?}");
        }
        assert!(read(&root.path().join("nowhere")).is_empty());
        let of = |interface: &str, address: [u8; 4]| network(&routes, interface, address.into());
        assert_eq!(of("eth1", [10, 0, 1, 7]).as_deref(), Some("10.0.1.0/24"));
        assert_eq!(of("eth0", [10, 0, 1, 7]).as_deref(), Some("10.0.0.0/8"));
        assert_eq!(of("eth1", [10, 0, 2, 7]), None);
    }
}
