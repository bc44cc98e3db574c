//! Patches of the four kinds, generated from the definitions of their kinds, applied to existing
//! objects.

use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any, prop_oneof};
use proptest::sample::{Index, select};
use resources::registry::{self, Kind};
use serde_json::{Map, Value, json};

use crate::fields::{Step, Way, fields, numbers, plain, texts, with};
use crate::ground::{Asked, BASE, Ground, object, try_all};
use crate::texts::{key, text, tree};

/// A number of cases that every run has time for.
const CASES: u32 = 256;
/// The longest boundary value in a patch: longer ones are tested field by field.
const LONGEST: usize = 1024;

/// A kind's fields, each with its boundary values.
type Ends = Vec<(Way, Vec<Value>)>;

static ENDS: LazyLock<Vec<Ends>> = LazyLock::new(|| registry::all().iter().map(ends).collect());

fn ends(kind: &Kind) -> Ends {
    let short = |value: &Value| value.as_str().is_none_or(|text| text.len() <= LONGEST);
    let all = fields(kind).into_iter().map(|(way, holds)| {
        let mut values = [numbers(holds), texts(holds)].concat();
        values.retain(short);
        (way, values)
    });
    all.filter(|(_, values)| !values.is_empty()).collect()
}

/// A change of some of a kind's fields, as part of an object.
fn part(kind: usize) -> impl Strategy<Value = Value> {
    let value = prop_oneof![
        4 => any::<Index>().prop_map(Some),
        1 => Just(None),
    ];
    let any_field = (any::<Index>(), value, tree());
    vec(any_field, 0..5).prop_map(move |all| {
        let ends = &ENDS[kind];
        all.into_iter()
            .fold(json!({}), |object, (at, value, tree)| {
                let (way, values) = &ends[at.index(ends.len())];
                let value = value.map_or(tree, |value| values[value.index(values.len())].clone());
                with(&object, way, &value)
            })
    })
}

/// A member that a strategic merge patch interprets as a directive.
fn order() -> impl Strategy<Value = (String, Value)> {
    let list = vec(prop_oneof![text().prop_map(Value::from), tree()], 0..4)
        .prop_map(Value::from)
        .boxed();
    let patch = select(vec!["replace", "merge", "delete", "x", ""]);
    prop_oneof![
        patch.prop_map(|word| ("$patch".to_owned(), Value::from(word))),
        list.clone()
            .prop_map(|list| ("$retainKeys".to_owned(), list)),
        (key(), list.clone()).prop_map(|(key, list)| (format!("$setElementOrder/{key}"), list)),
        (key(), list).prop_map(|(key, list)| (format!("$deleteFromPrimitiveList/{key}"), list)),
        (key(), Just(Value::Null)),
    ]
}

/// Inserts members into an object or list item within a value.
fn scatter(value: &mut Value, orders: Vec<(Index, (String, Value))>) {
    for (at, (key, order)) in orders {
        let mut places = Vec::new();
        pointers(value, String::new(), &mut places);
        let place = places[at.index(places.len())].clone();
        if let Some(Value::Object(members)) = value.pointer_mut(&place) {
            members.insert(key, order);
        }
    }
}

/// Every position in a value, as JSON pointers. The objects passed here are a few levels deep.
fn pointers(value: &Value, here: String, out: &mut Vec<String>) {
    out.push(here.clone());
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let key = key.replace('~', "~0").replace('/', "~1");
                pointers(member, format!("{here}/{key}"), out);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                pointers(item, format!("{here}/{at}"), out);
            }
        }
        _ => {}
    }
}

/// Pointers into a kind's object: existing ones, those of its fields, and others.
fn places(kind: usize) -> BoxedStrategy<String> {
    let mut there = Vec::new();
    pointers(&plain(&registry::all()[kind]), String::new(), &mut there);
    let declared = any::<Index>().prop_map(move |at| {
        let ends = &ENDS[kind];
        let (way, _) = &ends[at.index(ends.len())];
        let steps = way.iter().map(|step| match step {
            Step::Member(name) => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            Step::Item => "/0".to_owned(),
        });
        steps.collect::<String>()
    });
    let odd = (
        select(there.clone()),
        select(vec!["/-", "/0", "/99999999999999999999", "/~2", "x", "/"]),
    )
        .prop_map(|(place, more)| format!("{place}{more}"));
    prop_oneof![4 => select(there), 2 => declared, 2 => odd, 1 => text()].boxed()
}

fn json_patch(kind: usize) -> impl Strategy<Value = Value> {
    let operation = (
        select(vec![
            "add", "remove", "replace", "move", "copy", "test", "x",
        ]),
        places(kind),
        places(kind),
        prop_oneof![part(kind), tree()],
    );
    vec(operation, 0..12).prop_map(|all| {
        let operations = all.into_iter().map(
            |(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}),
        );
        operations.collect::<Value>()
    })
}

/// A patch for an object of the kind: its media type, its query, its body.
fn patch(kind: usize) -> BoxedStrategy<(&'static str, &'static str, Value)> {
    let orders = vec((any::<Index>(), order()), 0..4);
    let strategic = (part(kind), orders).prop_map(|(mut patch, orders)| {
        scatter(&mut patch, orders);
        ("application/strategic-merge-patch+json", "", patch)
    });
    let merged = prop_oneof![4 => part(kind), 1 => tree()]
        .prop_map(|patch| ("application/merge-patch+json", "", patch));
    let operations = json_patch(kind).prop_map(|patch| ("application/json-patch+json", "", patch));
    let managers = select(vec![
        "?fieldManager=a",
        "?fieldManager=b",
        "?fieldManager=a&force=true",
        "?fieldManager=b&force=true",
    ]);
    let nulls = any::<bool>();
    let applied = (
        part(kind),
        managers,
        nulls,
        vec((any::<Index>(), order()), 0..2),
    )
        .prop_map(move |(mut part, query, whole, orders)| {
            scatter(&mut part, orders);
            if whole {
                let mut object = plain(&registry::all()[kind]);
                let members = part.as_object().cloned().unwrap_or_default();
                merge(&mut object, members);
                object["metadata"]["name"] = BASE.into();
                crate::ground::unowned(&mut object);
                part = object;
            }
            ("application/apply-patch+yaml", query, part)
        });
    prop_oneof![strategic, merged, operations, applied].boxed()
}

/// Inserts members into an object; merges nested objects member by member.
fn merge(object: &mut Value, members: Map<String, Value>) {
    for (key, member) in members {
        match member {
            Value::Object(inner) if object[key.as_str()].is_object() => {
                merge(&mut object[key.as_str()], inner);
            }
            member => object[key.as_str()] = member,
        }
    }
}

type Case = (usize, bool, (&'static str, &'static str, Value));

fn case() -> impl Strategy<Value = Case> {
    (0..registry::all().len(), any::<bool>())
        .prop_flat_map(|(kind, status)| (Just(kind), Just(status), patch(kind)))
}

#[test]
fn whatever_is_patched_stays_an_object_that_the_server_takes() {
    let ground = Ground::new();
    try_all(
        "patches",
        CASES,
        &case(),
        |(at, status, (media, query, patch))| {
            let kind = &registry::all()[at];
            ground.restore(kind);
            let path = object(kind, BASE);
            let part = if status && kind.status { "/status" } else { "" };
            let asked = Asked::new(
                "PATCH",
                &format!("{path}{part}{query}"),
                media,
                patch.to_string(),
            );
            ground.try_out(&asked)?;
            ground.stands(&path)
        },
    );
}
