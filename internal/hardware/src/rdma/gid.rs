//! An entry of an RDMA port's table of addresses (GIDs). Pure.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A used entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the table, the value of `NCCL_IB_GID_INDEX`.
    pub index: u32,
    /// The address, as the kernel writes it: eight groups of four digits.
    pub address: String,
    /// Its protocol: `RoCE v2`, `IB/RoCE v1`; empty if not known.
    pub kind: String,
    /// Its interface; empty if not known.
    pub netdev: String,
}

impl Gid {
    /// Whether packets with it are routed as UDP.
    pub fn is_v2(&self) -> bool {
        self.kind == "RoCE v2"
    }

    /// The IPv4 address that it maps, if any.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        let address: Ipv6Addr = self.address.parse().ok()?;
        address.to_ipv4_mapped()
    }
}

/// The entry for RoCE: the first that is routed and maps an IPv4 address.
pub fn best(gids: &[Gid]) -> Option<(&Gid, Ipv4Addr)> {
    let mut fit = (gids.iter()).filter_map(|gid| Some((gid, gid.ipv4().filter(|_| gid.is_v2())?)));
    fit.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, address: &str, kind: &str) -> Gid {
        Gid {
            index,
            address: address.to_owned(),
            kind: kind.to_owned(),
            netdev: String::new(),
        }
    }

    #[test]
    fn the_first_routed_entry_of_an_ipv4_address_is_taken() {
        let local = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";
        let mapped = "0000:0000:0000:0000:0000:ffff:0a01:0203";
        let all = [
            gid(0, local, "IB/RoCE v1"),
            gid(1, local, "RoCE v2"),
            gid(2, mapped, "IB/RoCE v1"),
            gid(3, mapped, "RoCE v2"),
            gid(5, mapped, "RoCE v2"),
        ];
        let found = best(&all).map(|(gid, address)| (gid.index, address));
        assert_eq!(found, Some((3, Ipv4Addr::new(10, 1, 2, 3))));
        assert_eq!(best(&all[..3]), None);
    }
}
