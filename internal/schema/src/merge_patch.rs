//! JSON merge patch, RFC 7386. It must not know any schema.

use serde_json::{Map, Value};

/// Applies `patch` to `target`: objects merge by key, null deletes, anything else replaces.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else {
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            apply(fields.entry(key.as_str()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_rfc_7386_come_out_as_printed() {
        let table = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (
                json!({"a":"b","b":"c"}),
                json!({"a":null}),
                json!({"b":"c"}),
            ),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ];
        for (target, patch, wanted) in table {
            let mut got = target.clone();
            apply(&mut got, &patch);
            assert_eq!(got, wanted, "{target} with {patch}");
        }
    }

    fn objects() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        let inner = leaf.prop_recursive(3, 16, 3, |value| {
            prop_oneof![
                proptest::collection::btree_map("[a-d]", value.clone(), 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
                proptest::collection::vec(value, 0..3).prop_map(Value::from),
            ]
        });
        proptest::collection::btree_map("[a-d]", inner, 0..4)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn an_empty_patch_changes_nothing(object in objects()) {
            let mut got = object.clone();
            apply(&mut got, &json!({}));
            prop_assert_eq!(got, object);
        }

        #[test]
        fn a_patch_applied_twice_is_as_good_as_once(object in objects(), patch in objects()) {
            let mut once = object;
            apply(&mut once, &patch);
            let mut twice = once.clone();
            apply(&mut twice, &patch);
            prop_assert_eq!(once, twice);
        }
    }
}
