//! The size of a JSON value: bytes, values and levels, measured without recursion. It must not know limits: the caller
//! compares.

use std::fmt::{self, Write};

use serde_json::Value;

/// The size of a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// At most the length of its JSON text: characters that the text escapes count as they are.
    pub bytes: usize,
    /// Objects, lists, scalars and keys.
    pub values: usize,
    /// Objects and lists around the innermost value: 0 for a scalar, 1 for `{}`.
    pub depth: usize,
}

impl Size {
    /// The size of two values together.
    #[must_use]
    pub fn combined(self, other: Size) -> Size {
        Size {
            bytes: self.bytes + other.bytes,
            values: self.values + other.values,
            depth: self.depth.max(other.depth),
        }
    }
}

/// Measures a value of any depth.
#[must_use]
pub fn measure(value: &Value) -> Size {
    let mut size = Size::default();
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        size.values += 1;
        match value {
            Value::Null | Value::Bool(true) => size.bytes += 4,
            Value::Bool(false) => size.bytes += 5,
            Value::Number(number) => size.bytes += digits(number),
            Value::String(text) => size.bytes += text.len() + 2,
            Value::Array(items) => {
                size.depth = size.depth.max(depth);
                size.bytes += 2 + items.len().saturating_sub(1);
                open.extend(items.iter().map(|item| (item, depth + 1)));
            }
            Value::Object(members) => {
                size.depth = size.depth.max(depth);
                size.bytes += 2 + members.len().saturating_sub(1);
                for (key, member) in members {
                    size.values += 1;
                    size.bytes += key.len() + 3;
                    open.push((member, depth + 1));
                }
            }
        }
    }
    size
}

/// The length of a number's text.
fn digits(number: &serde_json::Number) -> usize {
    struct Length(usize);
    impl Write for Length {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len();
            Ok(())
        }
    }
    let mut length = Length(0);
    write!(length, "{number}").expect("counting bytes does not fail");
    length.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_values_and_bytes_are_counted() {
        let table = [
            (json!(1), 1, 0),
            (json!({}), 1, 1),
            (json!([[], []]), 3, 2),
            (
                json!({"a": {"b": [1, "x", null, true, false, -1.5]}}),
                11,
                3,
            ),
        ];
        for (value, values, depth) in table {
            let size = measure(&value);
            assert_eq!((size.values, size.depth), (values, depth), "{value}");
            assert_eq!(size.bytes, value.to_string().len(), "{value}");
        }
    }

    #[test]
    fn a_value_of_any_depth_is_measured() {
        let mut deep = json!(0);
        for _ in 0..100_000 {
            deep = Value::Array(vec![deep]);
        }
        assert_eq!(measure(&deep).depth, 100_000);
        // Dropping it would recurse to its full depth.
        std::mem::forget(deep);
    }

    proptest! {
        #[test]
        fn a_text_without_escapes_has_the_measured_length(
            texts in proptest::collection::btree_map("[a-z]{0,8}", any::<i64>(), 0..8),
        ) {
            let value = json!({"list": [texts]});
            prop_assert_eq!(measure(&value).bytes, value.to_string().len());
        }
    }
}
