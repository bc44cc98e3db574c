//! The TCP sockets that listen in a network namespace, from `/proc/PID/net/tcp` and `tcp6`, and which address
//! reaches a process of a pod and no other. Pure but for [`owned`].

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The state of a socket that listens, as the kernel prints it.
const LISTEN: &str = "0A";

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listener {
    /// The address that it is bound to.
    pub(super) address: IpAddr,
    /// Its port.
    pub(super) port: u16,
    /// Its number in the kernel.
    pub(super) inode: u64,
}

/// The listening sockets in the text of `tcp` or `tcp6`; a line that is none is left out.
pub(super) fn listeners(text: &str) -> Vec<Listener> {
    text.lines().filter_map(listener).collect()
}

fn listener(line: &str) -> Option<Listener> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if *fields.get(3)? != LISTEN {
        return None;
    }
    let (address, port) = fields.get(1)?.split_once(':')?;
    Some(Listener {
        address: read_address(address)?,
        port: u16::from_str_radix(port, 16).ok()?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// The kernel prints an address as words of 32 bits, each in this machine's order.
fn read_address(text: &str) -> Option<IpAddr> {
    let word = |index: usize| {
        let digits = text.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// The address by which a port of the pod is reached, with the sockets that may take the connection: every one of
/// them must be the pod's. None if no socket of the pod listens there, or another's may take the connection.
pub(super) fn target(
    all: &[Listener],
    port: u16,
    own: &BTreeSet<u64>,
) -> Option<(IpAddr, BTreeSet<u64>)> {
    let at_port = || all.iter().filter(|one| one.port == port);
    let of_pod = at_port().filter(|one| own.contains(&one.inode));
    of_pod.map(|one| reached(one.address)).find_map(|address| {
        let takers: BTreeSet<u64> = at_port()
            .filter(|one| takes(one.address, address))
            .map(|one| one.inode)
            .collect();
        takers.is_subset(own).then_some((address, takers))
    })
}

/// An address that reaches a socket bound to this one.
fn reached(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

/// Whether a socket bound to one address may take a connection to another.
fn takes(bound: IpAddr, to: IpAddr) -> bool {
    match bound {
        IpAddr::V4(address) if address.is_unspecified() => to.is_ipv4(),
        // It takes IPv4 as well, unless it says otherwise, which cannot be seen here.
        IpAddr::V6(address) if address.is_unspecified() => true,
        address => address == to,
    }
}

/// The sockets that these processes have open.
pub(super) fn owned(pids: &[i32]) -> BTreeSet<u64> {
    let files = pids
        .iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok())
        .flatten();
    files
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|link| {
            let name = link.to_str()?;
            name.strip_prefix("socket:[")?
                .strip_suffix(']')?
                .parse()
                .ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, port: u16, inode: u64) -> Listener {
        Listener {
            address: address.parse().unwrap(),
            port,
            inode,
        }
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_kernels_tables_are_read() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n\
            \x20  1: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n\
            \x20  2: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4713 1\n\
            \x20  3: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4714 1\n\
            nonsense\n";
        let expected = [
            at("127.0.0.1", 8080, 4711),
            at("::1", 22, 4713),
            at("::", 80, 4714),
        ];
        assert_eq!(listeners(text), expected);
    }

    proptest::proptest! {
        #[test]
        fn no_table_of_sockets_panics(
            text in "([ 0-9A-F:xyz.\\-\\PC]{0,80}\n){0,4}",
            words in proptest::collection::vec("[0-9A-Fa-f:\\PC]{0,40}|0A|0100007F:1F90|[0-9]{0,24}", 0..14),
            long in "[0-9A-F]{0,40}:[0-9A-F]{0,8}",
            port: u16,
        ) {
            let line = format!("   0: {long} 00000000:0000 0A 0:0 00:0 0 0 0 4711 1\n");
            let all = listeners(&format!("{line}{text}{}\n", words.join(" ")));
            // All sockets are the pod's, or none.
            let own: BTreeSet<u64> = all.iter().map(|one| one.inode).collect();
            let listens = all.iter().any(|one| one.port == port);
            proptest::prop_assert_eq!(target(&all, port, &own).is_some(), listens);
            proptest::prop_assert!(target(&all, port, &BTreeSet::new()).is_none());
        }
    }

    #[test]
    fn only_an_address_that_no_other_socket_takes_is_the_pods() {
        let own = BTreeSet::from([1, 2]);
        let found =
            |all: &[Listener]| target(all, 80, &own).map(|(address, _)| address.to_string());
        // The node's own service, or another pod's.
        assert_eq!(found(&[at("127.0.0.1", 80, 9)]), None);
        assert_eq!(found(&[at("127.0.0.1", 81, 1)]), None);
        assert_eq!(found(&[at("0.0.0.0", 80, 1)]).as_deref(), Some("127.0.0.1"));
        assert_eq!(found(&[at("::", 80, 1)]).as_deref(), Some("::1"));
        assert_eq!(found(&[at("10.0.0.7", 80, 1)]).as_deref(), Some("10.0.0.7"));
        // A more exact address takes the connection, and a shared port takes every other one.
        assert_eq!(found(&[at("0.0.0.0", 80, 1), at("127.0.0.1", 80, 9)]), None);
        assert_eq!(found(&[at("0.0.0.0", 80, 1), at("0.0.0.0", 80, 9)]), None);
        assert_eq!(found(&[at("0.0.0.0", 80, 1), at("::", 80, 9)]), None);
        // Another of the pod's sockets may still be reached.
        let both = [
            at("0.0.0.0", 80, 1),
            at("127.0.0.1", 80, 9),
            at("10.0.0.7", 80, 2),
        ];
        assert_eq!(found(&both).as_deref(), Some("10.0.0.7"));
        assert_eq!(
            found(&[at("0.0.0.0", 80, 1), at("10.0.0.7", 80, 9)]).as_deref(),
            Some("127.0.0.1")
        );
    }

    #[test]
    fn a_process_owns_the_sockets_that_it_has_open() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let me = i32::try_from(std::process::id()).unwrap();
        let all = listeners(&fs::read_to_string("/proc/self/net/tcp").unwrap());
        let (address, takers) = target(&all, port, &owned(&[me])).unwrap();
        assert_eq!(
            (address.to_string().as_str(), takers.len()),
            ("127.0.0.1", 1)
        );
        assert_eq!(target(&all, port, &owned(&[])), None);
    }
}
