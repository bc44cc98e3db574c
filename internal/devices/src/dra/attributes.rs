//! The attributes of a device for claims, in the API's own types. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceCapacity};
use resources::quantity::Quantity;

/// The maximum length of an attribute's text.
const TEXT_MAX: usize = 64;

/// Builds a device's attributes. Unknown values are left out.
#[derive(Default)]
pub struct AttributeBuilder(pub BTreeMap<String, DeviceAttribute>);

impl AttributeBuilder {
    /// A text, cut to the maximum length.
    pub fn text(&mut self, name: &str, value: &str) {
        let end = value.floor_char_boundary(TEXT_MAX);
        if !value.is_empty() {
            let attribute = DeviceAttribute {
                string: Some(value[..end].to_owned()),
                ..DeviceAttribute::default()
            };
            self.0.insert(name.to_owned(), attribute);
        }
    }

    /// A whole number.
    pub fn number(&mut self, name: &str, value: Option<u32>) {
        if let Some(value) = value {
            let attribute = DeviceAttribute {
                int: Some(value.into()),
                ..DeviceAttribute::default()
            };
            self.0.insert(name.to_owned(), attribute);
        }
    }

    /// A version, if it is one.
    pub fn version(&mut self, name: &str, value: &str) {
        if let Some(version) = semantic(value) {
            let attribute = DeviceAttribute {
                version: Some(version),
                ..DeviceAttribute::default()
            };
            self.0.insert(name.to_owned(), attribute);
        }
    }
}

/// A version in the three numbers that Kubernetes compares: `9.0` is `9.0.0`, and a driver's
/// `535.104.05` is `535.104.5`. `None` if it is not a version.
fn semantic(version: &str) -> Option<String> {
    let parts: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    let mut parts = parts.filter(|parts| (1..=3).contains(&parts.len()))?;
    parts.resize(3, 0);
    let parts: Vec<String> = parts.iter().map(u64::to_string).collect();
    Some(parts.join("."))
}

/// A device's only capacity.
pub fn capacity(name: &str, quantity: Quantity) -> BTreeMap<String, DeviceCapacity> {
    let capacity = DeviceCapacity {
        value: quantity.to_k8s(),
        ..DeviceCapacity::default()
    };
    BTreeMap::from([(name.to_owned(), capacity)])
}

/// Memory, in MiB, as a device's capacity.
pub fn memory(mib: u64) -> BTreeMap<String, DeviceCapacity> {
    let bytes = i64::try_from(mib.saturating_mul(1 << 20)).unwrap_or(i64::MAX);
    capacity("memory", Quantity::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_three_numbers_or_none() {
        for (given, wanted) in [
            ("9.0", Some("9.0.0")),
            ("550.54.15", Some("550.54.15")),
            ("535.104.05", Some("535.104.5")),
            ("", None),
            ("12.x", None),
            ("1.2.3.4", None),
        ] {
            assert_eq!(semantic(given).as_deref(), wanted, "{given:?}");
        }
    }
}
