//! Owns the JSON merge patch that leads from one value to another.

use serde_json::{Map, Value};

/// The patch (RFC 7386) that turns `from` into `to`; `None` where they are equal.
pub(crate) fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return Some(to.clone());
    };
    let mut patch = Map::new();
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in to {
        match from.get(key) {
            Some(known) => {
                patch.extend(merge_patch(known, value).map(|patch| (key.clone(), patch)))
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    // Values that differ only in an explicit null, which a patch cannot express, need no patch.
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_holds_only_changes_and_removes_absent_fields() {
        let from = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1], "f": 0});
        let to = json!({"a": 1, "b": {"c": 4}, "e": [1, 2], "g": {"h": 1}});
        let patch = merge_patch(&from, &to).unwrap();
        assert_eq!(
            patch,
            json!({"b": {"c": 4, "d": null}, "e": [1, 2], "f": null, "g": {"h": 1}})
        );
    }

    #[test]
    fn equal_values_need_no_patch() {
        assert_eq!(
            merge_patch(&json!({"a": {"b": 1}}), &json!({"a": {"b": 1}})),
            None
        );
    }
}
