//! Every field of every kind at its boundary values, according to its definition, through creation,
//! update, patch and deletion.

use proptest::prelude::TestCaseError;
use resources::registry::{self, Kind};
use serde_json::{Value, json};

use crate::fields::{Holds, Step, Way, chosen, fields, name, numbers, plain, texts, with};
use crate::ground::{Asked, BASE, Ground, NAMESPACE, collection, object, unowned};

/// The fields to test. The pods of all jobs are validated by the same rules as a Pod.
fn tried(kind: &Kind) -> Vec<(Way, Holds)> {
    let template = Step::Member("template".to_owned());
    let all = fields(kind).into_iter();
    all.filter(|(way, _)| kind.kind == "Pod" || !way.contains(&template))
        .collect()
}

/// Creates, reads, changes and deletes an object with this value in this field.
fn live(ground: &Ground, kind: &Kind, way: &Way, end: &Value) -> Result<(), TestCaseError> {
    let mut new = with(&plain(kind), way, end);
    unowned(&mut new);
    let all = collection(kind);
    let dry = format!("{all}?dryRun=All");
    let answer = ground.try_out(&Asked::json("POST", &dry, &new))?;
    if answer.is_some_and(|answer| answer.taken()) {
        let made = ground.try_out(&Asked::json("POST", &all, &new))?;
        let made = made.map_or(Value::Null, |made| made.value());
        // An object that a dry run accepts and a write refuses has counted against a quota
        // meanwhile.
        if let Some(made) = made["metadata"]["name"].as_str() {
            ground.stands(&object(kind, made))?;
            let label = json!({"metadata": {"labels": {"touched": "yes"}}});
            ground.try_out(&Asked::json("PATCH", &object(kind, made), &label))?;
            ground.remove(kind, made)?;
        }
    }

    // The same as a change of an existing object, and of its status.
    let path = object(kind, BASE);
    let part = match way.first() == Some(&Step::Member("status".to_owned())) && kind.status {
        true => "/status",
        false => "",
    };
    let path = format!("{path}{part}?dryRun=All");
    let there = ground.get(&path).value();
    ground.try_out(&Asked::json("PUT", &path, &with(&there, way, end)))?;
    let patch = with(&json!({}), way, end);
    ground.try_out(&Asked::json("PATCH", &path, &patch))?;
    Ok(())
}

fn try_ends(ends: fn(Holds) -> Vec<Value>) {
    let ground = Ground::new();
    let mut failed = Vec::new();
    let mut count = 0;
    for kind in registry::all() {
        for (field, (way, holds)) in tried(kind).into_iter().enumerate() {
            for end in chosen(ends(holds), field) {
                count += 1;
                if let Err(error) = live(&ground, kind, &way, &end) {
                    failed.push(format!("{}: {error}", name(kind, &way, &end)));
                }
            }
        }
    }
    println!("{count} ends tried");
    assert!(count > 0);
    failed.truncate(20);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    emptied(&ground);
}

/// The namespace can be emptied, and is then deleted.
fn emptied(ground: &Ground) {
    for kind in registry::all().iter().filter(|kind| kind.namespaced) {
        let list = ground.get(&collection(kind)).value();
        for item in list["items"].as_array().into_iter().flatten() {
            let name = item["metadata"]["name"].as_str().unwrap();
            ground.remove(kind, name).unwrap();
        }
        let left = ground.get(&collection(kind)).value();
        assert_eq!(left["items"], json!([]), "{kind:?}");
    }
    let namespaces = registry::by_kind("", "v1", "Namespace").unwrap();
    ground.remove(namespaces, NAMESPACE).unwrap();
}

#[test]
fn every_number_passes_through_the_api() {
    try_ends(numbers);
}

#[test]
fn every_text_passes_through_the_api() {
    try_ends(texts);
}
