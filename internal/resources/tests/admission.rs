//! Properties of the admission rules, over all kinds and arbitrary JSON.

use std::collections::BTreeMap;

use proptest::prelude::*;
use resources::admission::{
    admits_namespace, critical, default_queue, keep_reserved, name_queue, node_restriction,
    queues_named, references, reserved,
};
use resources::names::{CHECKPOINT_BY, DEVICES, GROUP_NAME, QUEUE_NAME, REPLACES_LOST};
use resources::registry;
use serde_json::{Value, json};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(Value::from("system-node-critical")),
        "[a-z]{0,3}".prop_map(Value::from),
    ];
    let keys = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "annotations",
        "labels",
        "template",
        "jobTemplate",
        "pytorchReplicaSpecs",
        "tasks",
        "headGroupSpec",
        "workerGroupSpecs",
        "runPolicy",
        "schedulingPolicy",
        "queue",
        "priority",
        "priorityClassName",
        "nodeName",
        "namespaceSelector",
        "matchLabels",
        "volumes",
        "containers",
        "env",
        "projected",
        "sources",
        "taints",
        DEVICES,
        QUEUE_NAME,
        GROUP_NAME,
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        let members = (keys.clone().prop_map(str::to_owned), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            prop::collection::vec(members, 0..6)
                .prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

/// A pod with some of the system's annotations.
fn any_pod() -> impl Strategy<Value = Value> {
    let notes = prop::sample::select(vec![DEVICES, CHECKPOINT_BY, "other"]);
    let labels = prop::sample::select(vec![REPLACES_LOST, "other"]);
    let notes = prop::collection::btree_map(notes, "[ab]?", 0..3);
    let labels = prop::collection::btree_map(labels, "[ab]?", 0..3);
    (prop::option::of(notes), prop::option::of(labels)).prop_map(|(notes, labels)| {
        let mut metadata = json!({"name": "p"});
        if let Some(notes) = notes {
            metadata["annotations"] = json!(notes);
        }
        if let Some(labels) = labels {
            metadata["labels"] = json!(labels);
        }
        json!({"metadata": metadata})
    })
}

proptest! {
    #[test]
    fn what_is_there_may_stay_and_no_json_makes_a_rule_panic(new in any_json(), old in any_json()) {
        let _ = references(&new);
        let _ = default_queue(&new);
        let _ = admits_namespace(&new, &BTreeMap::new());
        for kind in registry::all() {
            prop_assert_eq!(reserved(kind, &new, Some(&new)), vec![]);
            prop_assert_eq!(critical(kind, &new, Some(&new)), None);
            let _ = reserved(kind, &new, Some(&old));
            let _ = critical(kind, &new, None);
            let _ = queues_named(kind, &new);
            let _ = node_restriction("n1", kind, &new, Some(&old));
            let _ = node_restriction("n1", kind, &new, None);
            let mut kept = new.clone();
            keep_reserved(kind, &mut kept, &old, |_| false);
            let mut named = new.clone();
            name_queue(kind, &mut named, "q");
            let once = named.clone();
            name_queue(kind, &mut named, "another");
            prop_assert_eq!(&named, &once, "{}: a queue is named once", kind.kind);
        }
    }

    #[test]
    fn a_write_that_is_taken_leaves_every_note_of_the_systems_as_it_was(
        new in any_pod(),
        old in any_pod(),
    ) {
        let kind = registry::by_kind("", "v1", "Pod").expect("pods are registered");
        let mut next = new;
        keep_reserved(kind, &mut next, &old, |_| false);
        let note = |pod: &Value, map: &str, key: &str| pod["metadata"][map].get(key).cloned();
        let keys = [
            ("annotations", DEVICES),
            ("annotations", CHECKPOINT_BY),
            ("labels", REPLACES_LOST),
        ];
        let same = |(map, key): &(&str, &str)| note(&next, map, key) == note(&old, map, key);
        prop_assert_eq!(
            reserved(kind, &next, Some(&old)).is_empty(),
            keys.iter().all(same),
            "{} over {}", next, old
        );
    }
}
