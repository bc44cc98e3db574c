//! The ranges of addresses from which a token is accepted. Pure.
//!
//! The address of a request is that of its connection. The server trusts no header such as
//! `X-Forwarded-For`, so behind a proxy it is the proxy's address, as in the audit log and in the
//! counts of failed sign-ins.

use std::fmt;
use std::net::IpAddr;

use resources::network_policies::Cidr;
use serde::{Deserialize, Serialize};

use crate::error::IdentityError;
use crate::limits::TOKEN_RANGES_MAX;

/// The field of a request that has the ranges.
const FIELD: &str = "from";

/// A range of IPv4 or IPv6 addresses without bits after the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange(Cidr);

impl AddressRange {
    /// Reads ranges such as `10.0.0.0/8`.
    ///
    /// # Errors
    /// There are more than [`TOKEN_RANGES_MAX`], or one is not a range.
    pub fn read_all(texts: &[String]) -> Result<Vec<AddressRange>, IdentityError> {
        if texts.len() > TOKEN_RANGES_MAX {
            return Err(IdentityError::BadField {
                field: FIELD,
                value: format!("{} ranges", texts.len()),
                valid: format!("use at most {TOKEN_RANGES_MAX} ranges of addresses"),
            });
        }
        let read = |text: &String| AddressRange::try_from(text.clone());
        texts.iter().map(read).collect()
    }

    /// True if the range has this address. An IPv4 address in the form of IPv6 counts as IPv4.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(address.to_canonical())
    }
}

/// True if a token with these ranges is accepted from this address. Without ranges all addresses are
/// good, also an unknown one; with ranges an unknown one is refused.
pub(crate) fn admits(ranges: &[AddressRange], address: Option<IpAddr>) -> bool {
    let within = |address| ranges.iter().any(|range| range.contains(address));
    ranges.is_empty() || address.is_some_and(within)
}

impl TryFrom<String> for AddressRange {
    type Error = IdentityError;

    fn try_from(text: String) -> Result<Self, IdentityError> {
        let valid = match Cidr::parse(&text) {
            Some(range) if range.has_host_bits() => {
                format!(
                    "the address has bits after the prefix; write {}",
                    range.network()
                )
            }
            Some(range) => return Ok(AddressRange(range)),
            None => {
                "use a range such as 10.0.0.0/8, or 192.0.2.7/32 for a single address".to_owned()
            }
        };
        Err(IdentityError::BadField {
            field: FIELD,
            value: text.chars().take(80).collect(),
            valid,
        })
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> String {
        range.to_string()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Result<Vec<AddressRange>, IdentityError> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        AddressRange::read_all(&texts)
    }

    #[test]
    fn a_token_is_accepted_from_its_ranges_only() {
        for (texts, address, accepted) in [
            ("", Some("192.0.2.7"), true),
            ("", None, true),
            ("10.0.0.0/8", Some("10.255.0.1"), true),
            ("10.0.0.0/8", Some("11.0.0.1"), false),
            ("10.0.0.0/8", Some("::ffff:10.0.0.1"), true),
            ("10.0.0.0/8", None, false),
            ("10.0.0.0/8 2001:db8::/64", Some("2001:db8::7"), true),
            ("10.0.0.0/8 2001:db8::/64", Some("2001:db8:1::7"), false),
            ("192.0.2.7/32", Some("192.0.2.7"), true),
            ("0.0.0.0/0", Some("192.0.2.7"), true),
            ("0.0.0.0/0", Some("::1"), false),
        ] {
            let read = ranges(&texts.split_whitespace().collect::<Vec<_>>()).unwrap();
            let from = address.map(|text: &str| text.parse::<IpAddr>().unwrap());
            assert_eq!(admits(&read, from), accepted, "{texts} {address:?}");
        }
    }

    #[test]
    fn what_is_no_range_is_refused_with_the_valid_form() {
        for (text, words) in [
            ("10.1.2.3/8", "write 10.0.0.0/8"),
            ("10.0.0.1", "192.0.2.7/32"),
            ("10.0.0.0/33", "10.0.0.0/8"),
            ("", "10.0.0.0/8"),
            ("example.org", "10.0.0.0/8"),
        ] {
            let error = ranges(&[text]).unwrap_err().to_string();
            assert!(
                error.starts_with("from: ") && error.contains(words),
                "{error}"
            );
        }
        let most = vec!["10.0.0.0/8"; TOKEN_RANGES_MAX];
        assert_eq!(ranges(&most).unwrap().len(), TOKEN_RANGES_MAX);
        let more = vec!["10.0.0.0/8"; TOKEN_RANGES_MAX + 1];
        assert!(ranges(&more).unwrap_err().to_string().contains("17 ranges"));
    }

    proptest::proptest! {
        #[test]
        fn a_range_is_stored_as_it_is_written(text in "[0-9a-f.:/]{0,20}") {
            if let Ok(range) = AddressRange::try_from(text) {
                let stored = serde_json::to_string(&range).unwrap();
                proptest::prop_assert_eq!(serde_json::from_str::<AddressRange>(&stored).unwrap(), range);
            }
        }
    }
}
