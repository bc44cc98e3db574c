//! Properties of all sets, applies and updates.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::element::Element;
use super::set::PathSet;
use super::tests::{LATER, NOW, SCHEMAS, THEN, WIDGET, apply_as, entry, update_as, widget};

fn elements() -> impl Strategy<Value = Element> {
    prop_oneof![
        "[a-c]".prop_map(|name| Element::Field(name.into())),
        (0..3i64).prop_map(|at| Element::Value(at.into())),
        "[a-b]".prop_map(|name| Element::Key(vec![("name".into(), name.into())])),
        (0..2i64).prop_map(Element::Index),
    ]
}

fn sets() -> impl Strategy<Value = PathSet> {
    proptest::collection::vec(proptest::collection::vec(elements(), 1..4), 0..8).prop_map(|paths| {
        let mut set = PathSet::default();
        for path in paths {
            set.insert(&path);
        }
        set
    })
}

fn specs() -> impl Strategy<Value = Value> {
    let tags = proptest::collection::btree_set("[a-d]", 0..4);
    let parts = proptest::collection::btree_map(
        "[a-c]",
        (proptest::option::of(0..3i32), proptest::option::of("[x-z]")),
        0..3,
    );
    let labels = proptest::collection::btree_map("[a-c]", "[x-z]", 0..3);
    let atoms = proptest::collection::vec("[a-b]", 0..3);
    (
        proptest::option::of(0..3i32),
        proptest::option::of(tags),
        proptest::option::of(parts),
        proptest::option::of(labels),
        proptest::option::of(atoms),
    )
        .prop_map(|(replicas, tags, parts, labels, atoms)| {
            let mut spec = serde_json::Map::new();
            if let Some(replicas) = replicas {
                spec.insert("replicas".into(), replicas.into());
            }
            if let Some(tags) = tags {
                spec.insert("tags".into(), json!(tags));
            }
            if let Some(parts) = parts {
                let parts: Vec<Value> = parts
                    .into_iter()
                    .map(|(name, (size, note))| {
                        let mut part = json!({ "name": name });
                        if let Some(size) = size {
                            part["size"] = size.into();
                        }
                        if let Some(note) = note {
                            part["note"] = note.into();
                        }
                        part
                    })
                    .collect();
                spec.insert("parts".into(), parts.into());
            }
            if let Some(labels) = labels {
                spec.insert("labels".into(), json!(labels));
            }
            if let Some(atoms) = atoms {
                spec.insert("atoms".into(), json!(atoms));
            }
            Value::Object(spec)
        })
}

fn without_empty(mut spec: Value) -> Value {
    if let Value::Object(map) = &mut spec {
        map.retain(|_, value| *value != json!({}) && *value != json!([]));
    }
    spec
}

proptest! {
    #[test]
    fn sets_survive_fields_v1(set in sets()) {
        prop_assert_eq!(PathSet::parse(&set.print()).unwrap(), set.clone());
        let canonical: Value = serde_json::from_str(&set.canonical()).unwrap();
        prop_assert_eq!(canonical, set.print());
    }

    #[test]
    fn sets_obey_the_laws(a in sets(), b in sets(), c in sets()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(!a.difference(&b).intersects(&b));
        prop_assert_eq!(a.intersects(&b), !a.intersection(&b).is_empty());
        for path in a.paths() {
            prop_assert_eq!(a.union(&b).has(&path), true);
            prop_assert_eq!(a.difference(&b).has(&path), !b.has(&path));
        }
    }

    #[test]
    fn applying_twice_is_as_good_as_once(live in specs(), config in specs()) {
        let live = update_as(WIDGET, "owner", None, &widget(live), THEN);
        let once = apply_as(WIDGET, "me", Some(&live), &widget(config.clone()), true, NOW).unwrap();
        let twice = apply_as(WIDGET, "me", Some(&once), &widget(config), true, LATER).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn applying_nothing_takes_out_exactly_what_only_this_manager_owned(config in specs(), other in specs()) {
        // Emptied containers are removed with their contents, even if another manager named them.
        let (config, other) = (without_empty(config), without_empty(other));
        prop_assume!(config != json!({}) && other != json!({}));
        let mine = apply_as(WIDGET, "me", None, &widget(config), true, NOW).unwrap();
        let both = apply_as(WIDGET, "other", Some(&mine), &widget(other.clone()), true, NOW).unwrap();
        let mut empty = widget(json!({}));
        empty.as_object_mut().unwrap().remove("spec");
        let after = apply_as(WIDGET, "me", Some(&both), &empty, true, LATER).unwrap();
        // Everything that the other manager applied remains; besides that, only empty containers do.
        let theirs = super::fields::applied(&SCHEMAS, WIDGET, &widget(other));
        let left = super::fields::applied(&SCHEMAS, WIDGET, &after).difference(&super::fields::unowned());
        let theirs = theirs.difference(&super::fields::unowned());
        prop_assert_eq!(theirs.difference(&left).paths().len(), 0, "lost: {}", after);
        for path in left.difference(&theirs).paths() {
            prop_assert!(path.len() <= 2, "kept {:?} in {}", path, after);
        }
        prop_assert_eq!(entry(&after, "me"), &Value::Null);
    }

    #[test]
    fn every_field_of_a_tracked_object_has_an_owner(first in specs(), second in specs()) {
        let live = update_as(WIDGET, "a", None, &widget(first), THEN);
        let mut new = widget(second);
        new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
        let new = update_as(WIDGET, "b", Some(&live), &new, NOW);
        let all = super::fields::applied(&SCHEMAS, WIDGET, &new).difference(&super::fields::unowned());
        let mut held = PathSet::default();
        for entry in new["metadata"]["managedFields"].as_array().into_iter().flatten() {
            held.absorb(PathSet::parse(&entry["fieldsV1"]).unwrap());
        }
        prop_assert!(all.difference(&held).is_empty(), "{} lacks {:?}", new, all.difference(&held).paths());
    }

    #[test]
    fn an_identical_update_keeps_the_object_as_it_is(spec in specs()) {
        let live = update_as(WIDGET, "a", None, &widget(spec), THEN);
        prop_assert_eq!(update_as(WIDGET, "b", Some(&live), &live, NOW), live);
    }
}
