//! The ranges of an `ipBlock`, as kube-apiserver reads them. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::pod_ranges::Ipv4Range;

/// A range of IPv4 or IPv6 addresses as it was written, as `10.0.0.0/8`: the address may have bits after the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Reads a range; zeros in front of an IPv4 address' numbers do not count, as in Kubernetes' older fields.
    #[must_use]
    pub fn parse(text: &str) -> Option<Cidr> {
        let (address, prefix) = text.split_once('/')?;
        let address = match address.contains(':') {
            true => IpAddr::V6(address.parse().ok()?),
            false => IpAddr::V4(ipv4(address)?),
        };
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = number(prefix, 5).filter(|prefix| *prefix <= most)?;
        Some(Cidr {
            address,
            prefix: u8::try_from(prefix).ok()?,
        })
    }

    /// The range without the bits after the prefix.
    #[must_use]
    pub fn network(self) -> Cidr {
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix));
                IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask.unwrap_or(0)))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix));
                IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask.unwrap_or(0)))
            }
        };
        Cidr { address, ..self }
    }

    /// Whether the address has bits after the prefix.
    #[must_use]
    pub fn has_host_bits(self) -> bool {
        self.network() != self
    }

    /// The written address alone, as a range.
    #[must_use]
    pub fn single(self) -> Cidr {
        let prefix = if self.address.is_ipv4() { 32 } else { 128 };
        Cidr { prefix, ..self }
    }

    /// Whether every address of `other` is in this range, and this range has more.
    #[must_use]
    pub fn strictly_contains(self, other: Cidr) -> bool {
        let cut = Cidr {
            address: other.network().address,
            prefix: self.prefix,
        };
        self.address.is_ipv4() == other.address.is_ipv4()
            && self.prefix < other.prefix
            && cut.network() == self.network()
    }

    /// Whether the address is in this range. Addresses of the other family are not.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let at = Cidr { address, ..self };
        self.address.is_ipv4() == address.is_ipv4() && at.network() == self.network()
    }

    /// The range, if its addresses are IPv4.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Range> {
        match self.address {
            IpAddr::V4(address) => Ipv4Range::around(address, self.prefix),
            IpAddr::V6(_) => None,
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A decimal number of at most `digits` digits.
fn number(text: &str, digits: usize) -> Option<u32> {
    let plain = (1..=digits).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut bytes = [0_u8; 4];
    let mut parts = text.split('.');
    for byte in &mut bytes {
        *byte = u8::try_from(number(parts.next()?, 9)?).ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_read_as_kube_apiserver_reads_them() {
        for (text, read) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.1.2.3/8", Some("10.1.2.3/8")),
            ("010.001.2.3/08", Some("10.1.2.3/8")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("2001:db8::/64", Some("2001:db8::/64")),
            ("FE80:0abc:0:0:0:0:0:0/64", Some("fe80:abc::/64")),
            ("10.0.0.0", None),
            ("10.0.0.0/33", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/+8", None),
            ("10.0.0/8", None),
            ("10.0.0.0.0/8", None),
            ("10.0.0.256/8", None),
            ("2001:db8::/129", None),
            ("", None),
        ] {
            let cidr = Cidr::parse(text).map(|cidr| cidr.to_string());
            assert_eq!(cidr.as_deref(), read, "{text}");
        }
        let cidr = |text: &str| Cidr::parse(text).unwrap();
        assert_eq!(cidr("10.1.2.3/8").network().to_string(), "10.0.0.0/8");
        assert_eq!(cidr("10.1.2.3/8").single().to_string(), "10.1.2.3/32");
        assert!(cidr("10.1.2.3/8").has_host_bits() && !cidr("10.0.0.0/8").has_host_bits());
        assert_eq!(cidr("1.2.3.4/0").network().to_string(), "0.0.0.0/0");
        assert_eq!(cidr("1::2/0").network().to_string(), "::/0");
        for (outer, inner, expected) in [
            ("10.0.0.0/8", "10.1.0.0/16", true),
            ("10.0.0.0/8", "10.0.0.0/8", false),
            ("10.1.0.0/16", "10.0.0.0/8", false),
            ("10.0.0.0/8", "11.0.0.0/16", false),
            ("0.0.0.0/0", "::/1", false),
            ("::/0", "fe80::/64", true),
        ] {
            let contains = cidr(outer).strictly_contains(cidr(inner));
            assert_eq!(contains, expected, "{outer} {inner}");
        }
        for (range, address, expected) in [
            ("10.1.2.3/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("0.0.0.0/0", "192.0.2.7", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "192.0.2.7", false),
            ("2001:db8::/64", "2001:db8::7", true),
            ("2001:db8::/64", "2001:db8:0:1::7", false),
        ] {
            let contains = cidr(range).contains(address.parse().unwrap());
            assert_eq!(contains, expected, "{range} {address}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-f.:/+ -]{0,24}") {
            if let Some(cidr) = Cidr::parse(&text) {
                prop_assert_eq!(Cidr::parse(&cidr.to_string()), Some(cidr));
                prop_assert!(!cidr.network().has_host_bits());
            }
        }
    }
}
