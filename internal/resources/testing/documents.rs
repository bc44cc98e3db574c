//! Owns the generation of broken documents, texts and bytes from valid ones, for tests that no parser panics. Knows no
//! parser.
#![allow(
    dead_code,
    reason = "each test breaks documents, texts or bytes, not all of them"
)]

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::{Index, select};
use serde_json::{Map, Value};

/// Replacement values: extremes of every type.
fn end() -> impl Strategy<Value = Value> {
    let number = select(vec![i64::MIN, -1, 0, 1, i64::from(i32::MAX), i64::MAX]);
    let word = select(vec![
        "",
        "*",
        "-",
        "-1",
        "0",
        "/",
        "../..",
        "a=b",
        "100%",
        "1e999",
        "9223372036854775808",
        "1Ei",
        "é\u{202e}",
        "\0",
        "true",
        "null",
        "2026-13-01T00:00:00Z",
        "99999999999h",
        "0-",
        "a,b,,c",
        "%s",
        "[",
        "{\"a\":",
    ]);
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number.prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ]
}

/// A value of any shape.
fn tree() -> impl Strategy<Value = Value> {
    end().prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((any::<String>(), inner), 0..4)
                .prop_map(|all| Value::Object(all.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn places(value: &Value) -> usize {
    let below: usize = match value {
        Value::Object(members) => members.values().map(places).sum(),
        Value::Array(items) => items.iter().map(places).sum(),
        _ => 0,
    };
    below + 1
}

/// Replaces one value inside another one, counted from the outside.
fn replace(value: &mut Value, at: &mut usize, with: &Value) -> bool {
    if *at == 0 {
        *value = with.clone();
        return true;
    }
    *at -= 1;
    match value {
        Value::Object(members) => members.values_mut().any(|member| replace(member, at, with)),
        Value::Array(items) => items.iter_mut().any(|item| replace(item, at, with)),
        _ => false,
    }
}

/// One of these documents with some values replaced.
pub fn changed(sound: Vec<Value>) -> impl Strategy<Value = Value> {
    let changes = vec((any::<Index>(), tree()), 0..6);
    (select(sound), changes).prop_map(|(mut document, changes)| {
        for (at, with) in changes {
            let mut at = at.index(places(&document));
            replace(&mut document, &mut at, &with);
        }
        document
    })
}

/// One of these texts with some words replaced, removed or repeated.
pub fn broken(sound: Vec<&'static str>) -> impl Strategy<Value = String> {
    let word = prop_oneof![
        3 => end().prop_map(|end| match end {
            Value::String(text) => text,
            other => other.to_string(),
        }),
        1 => select(vec!["\n", ",", "|", "\"", "'", ";", "[[", "]]", "=", ": ", "  - ", "---\n"]).prop_map(str::to_owned),
        1 => Just(String::new()),
    ];
    let changes = vec((any::<Index>(), 0..3_usize, word), 0..8);
    (select(sound), changes).prop_map(|(sound, changes)| {
        let mut words: Vec<String> = sound
            .split_inclusive([' ', '\n', ',', '|', '='])
            .map(str::to_owned)
            .collect();
        for (at, taken, word) in changes {
            let from = at.index(words.len() + 1);
            let to = words.len().min(from + taken);
            drop(words.splice(from..to, [word]));
        }
        words.concat()
    })
}

/// A change of bytes: where, how many are taken, what is put there, and how often.
#[derive(Clone, Debug)]
pub struct ByteChange {
    at: Index,
    taken: usize,
    put: Vec<u8>,
    times: usize,
}

/// A few changes of bytes, or none.
pub fn damage() -> impl Strategy<Value = Vec<ByteChange>> {
    let put = prop_oneof![
        2 => vec(any::<u8>(), 0..4),
        1 => select(vec![
            &b"\0"[..], b"\n", b"\xff\xff\xff\xff", b"\xff", b"\x80", b"\x30\x84\x7f\xff\xff\xff", b"[", b"{", b"\"",
        ])
        .prop_map(<[u8]>::to_vec),
    ];
    let taken = prop_oneof![4 => 0..3_usize, 1 => 0..60_usize, 1 => Just(usize::MAX)];
    let times = prop_oneof![8 => Just(1), 1 => 0..300_usize];
    let change =
        (any::<Index>(), taken, put, times).prop_map(|(at, taken, put, times)| ByteChange {
            at,
            taken,
            put,
            times,
        });
    vec(change, 0..4)
}

/// The bytes after all these changes.
pub fn damaged(mut bytes: Vec<u8>, all: &[ByteChange]) -> Vec<u8> {
    for change in all {
        let from = change.at.index(bytes.len() + 1);
        let to = bytes.len().min(from.saturating_add(change.taken));
        drop(bytes.splice(from..to, change.put.repeat(change.times)));
    }
    bytes
}
