//! Named cases of strategic merge patch (each checked against kube-apiserver's own code) and properties.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::apply;
use crate::{PatchError, Schemas};

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::load(&[]).unwrap());
const POD: &str = "io.k8s.api.core.v1.Pod";

fn patched(original: Value, patch: Value) -> Result<Value, PatchError> {
    apply(&SCHEMAS, POD, &original, &patch)
}

#[test]
fn patches_come_out_as_kubernetes_makes_them() {
    let table = [
        (
            "a container merges by its name and keeps its place",
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}),
        ),
        (
            "a new item comes before those the patch does not name",
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
        ),
        (
            "an item is deleted by its key",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        ),
        (
            "a list is replaced whole",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "c"}, {"$patch": "replace"}]}}),
            json!({"spec": {"containers": [{"name": "c"}]}}),
        ),
        (
            "a map is replaced whole",
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
            json!({"metadata": {"labels": {"c": "3"}}}),
        ),
        (
            "a map is deleted",
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {"labels": {}}}),
        ),
        (
            "null deletes a field",
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"a": null}}}),
            json!({"metadata": {"labels": {"b": "2"}}}),
        ),
        (
            "a list without a strategy is replaced",
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
        ),
        (
            "a list of primitives with the merge strategy grows",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["c", "a"]}}),
            json!({"metadata": {"finalizers": ["c", "a", "b"]}}),
        ),
        (
            "values are deleted from a list of primitives",
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}}),
            json!({"metadata": {"finalizers": ["a", "c"]}}),
        ),
        (
            "the order of items is set",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}]}}),
        ),
        (
            "items merge and are ordered in one patch",
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{
                "name": "a", "$setElementOrder/env": [{"name": "Y"}, {"name": "X"}], "env": [{"name": "Y", "value": "2"}]
            }]}}),
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}]}}),
        ),
        (
            "a volume's source is exchanged by retaining keys",
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
        ),
        (
            "directives in what is new leave no trace",
            json!({}),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"]}], "nodeSelector": {"a": null}}}),
            json!({"spec": {"volumes": [{"name": "v"}], "nodeSelector": {}}}),
        ),
    ];
    for (name, original, patch, wanted) in table {
        assert_eq!(patched(original, patch).as_ref(), Ok(&wanted), "{name}");
    }
}

#[test]
fn contradictory_patches_are_refused_in_kubernetes_words() {
    let pod = || json!({"spec": {"containers": [{"name": "a"}]}});
    let table = [
        (
            json!({"spec": {"containers": [{"image": "x"}]}}),
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"$patch": "merge", "priority": 1}}),
            "unknown patch type: merge in map: map[$patch:merge priority:1]",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"spec": {"$retainKeys": ["x"], "priority": 1}}),
            "invalid patch format of retainKeys",
        ),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
            "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
    ];
    for (patch, message) in table {
        let error = patched(pod(), patch).unwrap_err();
        assert_eq!((error.status(), error.to_string().as_str()), (400, message));
    }
}

fn pods() -> impl Strategy<Value = Value> {
    let env = proptest::collection::btree_map("[A-C]", "[1-3]", 0..3);
    let containers = proptest::collection::btree_map("[a-c]", ("[x-z]", env), 0..3);
    let labels = proptest::collection::btree_map("[a-c]", "[x-z]", 0..3);
    let finalizers = proptest::collection::btree_set("[a-d]", 0..3);
    (containers, labels, finalizers).prop_map(|(containers, labels, finalizers)| {
        let containers: Vec<Value> = containers
            .into_iter()
            .map(|(name, (image, env))| {
                let env: Vec<Value> = env
                    .into_iter()
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect();
                json!({"name": name, "image": image, "env": env})
            })
            .collect();
        json!({"metadata": {"labels": labels, "finalizers": finalizers}, "spec": {"containers": containers}})
    })
}

/// The patch that turns one map of a pod into another, as clients compute it.
fn difference(from: &Value, to: &Value) -> Value {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            let mut patch = serde_json::Map::new();
            for (key, value) in to {
                match from.get(key) {
                    Some(old) if old == value => {}
                    Some(old) => {
                        if let Value::Array(items) = value {
                            order(&mut patch, key, items);
                            if key == "finalizers" {
                                let gone: Vec<&Value> = old
                                    .as_array()
                                    .into_iter()
                                    .flatten()
                                    .filter(|item| !items.contains(item))
                                    .collect();
                                patch
                                    .insert(format!("$deleteFromPrimitiveList/{key}"), json!(gone));
                                let new: Vec<&Value> = items
                                    .iter()
                                    .filter(|item| {
                                        !old.as_array().is_some_and(|o| o.contains(item))
                                    })
                                    .collect();
                                if !new.is_empty() {
                                    patch.insert(key.clone(), json!(new));
                                }
                                continue;
                            }
                        }
                        patch.insert(key.clone(), difference(old, value));
                    }
                    None => {
                        patch.insert(key.clone(), value.clone());
                    }
                }
            }
            for key in from.keys().filter(|key| !to.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            Value::Object(patch)
        }
        (Value::Array(from), Value::Array(to)) => {
            let named = |items: &[Value], name: &Value| {
                items.iter().find(|item| &item["name"] == name).cloned()
            };
            let mut patch = Vec::new();
            for item in to {
                match named(from, &item["name"]) {
                    Some(old) if old == *item => {}
                    Some(old) => {
                        let mut change = difference(&old, item);
                        change["name"] = item["name"].clone();
                        patch.push(change);
                    }
                    None => patch.push(item.clone()),
                }
            }
            for item in from {
                if named(to, &item["name"]).is_none() {
                    patch.push(json!({"name": item["name"], "$patch": "delete"}));
                }
            }
            Value::Array(patch)
        }
        _ => to.clone(),
    }
}

fn order(patch: &mut serde_json::Map<String, Value>, key: &str, items: &[Value]) {
    let items: Vec<Value> = items
        .iter()
        .map(|item| match item.get("name") {
            Some(name) => json!({ "name": name }),
            None => item.clone(),
        })
        .collect();
    patch.insert(format!("$setElementOrder/{key}"), items.into());
}

proptest! {
    #[test]
    fn an_empty_patch_changes_nothing(pod in pods()) {
        prop_assert_eq!(patched(pod.clone(), json!({})).unwrap(), pod);
    }

    #[test]
    fn the_patch_between_two_pods_turns_one_into_the_other(from in pods(), to in pods()) {
        let patch = difference(&from, &to);
        prop_assert_eq!(patched(from, patch.clone()).unwrap(), to, "{}", patch);
    }
}

/// Before lists had an index, merging compared each entry with each other one: this took half a minute.
#[test]
fn a_list_of_sixteen_thousand_entries_merges_by_its_keys() {
    const ENTRIES: usize = 16_000;
    let env = |value: &str| -> Value {
        (0..ENTRIES)
            .map(|at| json!({"name": format!("N{at}"), "value": value}))
            .collect()
    };
    let pod = |env: Value| json!({"spec": {"containers": [{"name": "a", "env": env}]}});
    let names: Value = (0..ENTRIES)
        .rev()
        .map(|at| json!({"name": format!("N{at}")}))
        .collect();
    let merged = patched(pod(env("old")), pod(env("new"))).unwrap();
    assert_eq!(merged, pod(env("new")));

    let order = json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}],
        "containers": [{"name": "a", "$setElementOrder/env": names}],
    }});
    let turned = patched(merged.clone(), order).unwrap();
    let env_of = |pod: &Value| {
        pod["spec"]["containers"][0]["env"]
            .as_array()
            .unwrap()
            .clone()
    };
    let mut backwards = env_of(&merged);
    backwards.reverse();
    assert_eq!(env_of(&turned), backwards);

    let deletions: Value = (0..ENTRIES)
        .map(|at| json!({"name": format!("N{at}"), "$patch": "delete"}))
        .collect();
    let emptied = patched(merged, pod(deletions)).unwrap();
    assert_eq!(env_of(&emptied), Vec::<Value>::new());

    let values: Vec<String> = (0..ENTRIES)
        .map(|at| format!("example.org/f{at}"))
        .collect();
    let finalizers = json!({"metadata": {"finalizers": values}});
    let removal = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": values}});
    let set = patched(json!({"metadata": {"finalizers": ["x"]}}), finalizers).unwrap();
    assert_eq!(
        patched(set, removal).unwrap(),
        json!({"metadata": {"finalizers": ["x"]}})
    );
}
