//! Owns the components of bodies: JSON trees, adversarial YAML, protobuf messages, and damage to
//! any of them.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::{Index, select};
use serde_json::{Map, Number, Value, json};

/// Manifests as users write them.
const MANIFESTS: [&str; 8] = [
    include_str!("../../../resources/tests/manifests/000-raycluster.yaml"),
    include_str!("../../../resources/tests/manifests/001-affinity-pod.yaml"),
    include_str!("../../../resources/tests/manifests/001-keda-scaledobject.yaml"),
    include_str!("../../../resources/tests/manifests/001-pytorchjob-elastic.yaml"),
    include_str!("../../../resources/tests/manifests/001-volcano-job-v1beta1.yaml"),
    include_str!("../../../resources/tests/manifests/002-cronjob.yaml"),
    include_str!("../../../resources/tests/manifests/002-hpa-gpu.yaml"),
    include_str!("../../../resources/tests/manifests/002-quota-limits.yaml"),
];

/// Pieces of JSON and YAML that change how the rest is read.
const PIECES: &[&[u8]] = &[
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\0",
    b"\x1b[2J",
    b"\x7f",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\r",
    b"\t",
    b"\n",
    b"\n  ",
    b"---\n",
    b"...\n",
    b"%YAML 1.1\n---\n",
    b"%TAG ! tag:x,2000:\n---\n",
    b"&a ",
    b"*a",
    b"&a [*a, *a]",
    b"<<: *a\n",
    b"<<: {a: 1}\n",
    b"!!binary ",
    b"!!float ",
    b"!x ",
    b"? ",
    b": ",
    b"- ",
    b"# ",
    b"|+\n",
    b">-\n",
    b"'",
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"~",
    b".nan",
    b".inf",
    b"1e400",
    b"-9223372036854775809",
    b"18446744073709551616",
    b"0x7fffffffffffffff",
];

/// A modification of a body.
#[derive(Clone, Debug)]
pub enum Damage {
    /// The end is removed.
    Cut(Index),
    /// A piece is inserted.
    Insert(Index, &'static [u8]),
    /// Some bytes are removed.
    Drop(Index, u8),
    /// Some bytes are repeated many times.
    Repeat(Index, u8, u16),
    /// One byte is replaced.
    Flip(Index, u8),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let places = bytes.len() + 1;
        match self {
            Damage::Cut(at) => bytes.truncate(at.index(places)),
            Damage::Insert(at, piece) => {
                let at = at.index(places);
                drop(bytes.splice(at..at, piece.iter().copied()));
            }
            Damage::Drop(at, count) => {
                let from = at.index(places);
                let to = bytes.len().min(from + usize::from(*count));
                drop(bytes.drain(from..to));
            }
            Damage::Repeat(at, count, times) => {
                let from = at.index(places);
                let to = bytes.len().min(from + usize::from(*count));
                let again = bytes[from..to].repeat(usize::from(*times));
                drop(bytes.splice(to..to, again));
            }
            Damage::Flip(at, byte) => {
                let at = at.index(places);
                if let Some(there) = bytes.get_mut(at) {
                    *there ^= byte;
                }
            }
        }
    }
}

/// The bytes after all these modifications.
pub fn damaged(mut bytes: Vec<u8>, all: &[Damage]) -> Vec<u8> {
    for one in all {
        one.apply(&mut bytes);
    }
    bytes
}

/// A little damage, or none.
pub fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let one = prop_oneof![
        1 => any::<Index>().prop_map(Damage::Cut),
        6 => (any::<Index>(), select(PIECES.to_vec())).prop_map(|(at, piece)| Damage::Insert(at, piece)),
        2 => (any::<Index>(), 1..40_u8).prop_map(|(at, count)| Damage::Drop(at, count)),
        2 => (any::<Index>(), 1..40_u8, 1..600_u16)
            .prop_map(|(at, count, times)| Damage::Repeat(at, count, times)),
        2 => (any::<Index>(), 1..=255_u8).prop_map(|(at, byte)| Damage::Flip(at, byte)),
    ];
    vec(one, 0..5)
}

/// A text with arbitrary content.
pub fn text() -> impl Strategy<Value = String> {
    let any_text = vec(any::<char>(), 0..12).prop_map(|all| all.into_iter().collect::<String>());
    prop_oneof![
        3 => select(vec![
            "", "a", "base", "ns", "default", "/", "~0~1", "a/b", "*", "=", ",", "!", "null", "true", "-1", "0",
            "9223372036854775807", "2026-01-01T00:00:00Z", "é\u{202e}", "%", "..", "a=b,c!=d", "x in (a,b)",
        ])
        .prop_map(str::to_owned),
        2 => any_text,
    ]
}

/// A JSON value of any shape.
pub fn tree() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        select(vec![i64::MIN, -1, 0, 1, i64::from(i32::MAX), i64::MAX]).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| Number::from_f64(number).map_or(Value::Null, Value::Number)),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number,
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((key(), inner), 0..6)
                .prop_map(|all| Value::Object(all.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A member's name, often one with a meaning.
pub fn key() -> impl Strategy<Value = String> {
    let known = vec![
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "labels",
        "annotations",
        "uid",
        "resourceVersion",
        "finalizers",
        "ownerReferences",
        "managedFields",
        "generateName",
        "data",
        "target",
        "containers",
        "template",
        "replicas",
        "deleteOptions",
        "preconditions",
        "propagationPolicy",
        "dryRun",
        "gracePeriodSeconds",
        "resourceAttributes",
        "nonResourceAttributes",
        "token",
        "audiences",
        "user",
        "groups",
        "extra",
        "boundObjectRef",
        "expirationSeconds",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "op",
        "path",
        "from",
        "value",
    ];
    prop_oneof![5 => select(known).prop_map(str::to_owned), 1 => text()]
}

/// YAML whose cost grows faster than its length.
pub fn bomb() -> impl Strategy<Value = Vec<u8>> {
    let nested = (
        select(vec!["[", "{a: ", "{\"a\":", "- ", "? ", "- - "]),
        1..3000_usize,
    )
        .prop_map(|(open, times)| open.repeat(times));
    let aliases = (1..12_usize, 1..12_usize).prop_map(|(levels, width)| {
        let mut out = String::from("a0: &a0 x\n");
        for level in 1..levels {
            let all = vec![format!("*a{}", level - 1); width].join(",");
            out.push_str(&format!("a{level}: &a{level} [{all}]\n"));
        }
        out
    });
    let merges = (1..40_usize).prop_map(|count| {
        let mut out = String::from("a0: &a0 {k: v}\n");
        for at in 1..count {
            out.push_str(&format!("a{at}: &a{at}\n  <<: *a{}\n  k{at}: v\n", at - 1));
        }
        out
    });
    let twice = (1..400_usize, 1..400_usize)
        .prop_map(|(length, times)| format!("? {}\n: 1\n", "k".repeat(length)).repeat(times));
    let scalar = (
        select(vec!["a: '", "a: \"", "a: |\n  ", "a: "]),
        1..200_000_usize,
    )
        .prop_map(|(open, length)| format!("{open}{}", "x ".repeat(length / 2)));
    prop_oneof![nested, aliases, merges, twice, scalar].prop_map(String::into_bytes)
}

/// A manifest as users write them.
pub fn manifest() -> impl Strategy<Value = Vec<u8>> {
    select(MANIFESTS.to_vec()).prop_map(|text| text.as_bytes().to_vec())
}

/// A protobuf message with fields of every form, some of them messages.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let leaf = vec(any::<u8>(), 0..12);
    leaf.prop_recursive(5, 60, 6, |inner| {
        let field = prop_oneof![
            (1..32_u64, any::<u64>())
                .prop_map(|(number, value)| { [varint(number << 3), varint(value)].concat() }),
            (1..32_u64, any::<u64>()).prop_map(|(number, bits)| {
                [varint(number << 3 | 1), bits.to_le_bytes().to_vec()].concat()
            }),
            (1..32_u64, inner).prop_map(|(number, bytes)| bytes_field(number, &bytes)),
            (1..32_u64, text()).prop_map(|(number, text)| bytes_field(number, text.as_bytes())),
        ];
        vec(field, 0..6).prop_map(|fields| fields.concat())
    })
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
    out
}

fn bytes_field(number: u64, bytes: &[u8]) -> Vec<u8> {
    let length = u64::try_from(bytes.len()).unwrap();
    [varint(number << 3 | 2), varint(length), bytes.to_vec()].concat()
}

/// An object in Kubernetes' protobuf envelope, with arbitrary fields.
pub fn protobuf(api_version: String, kind: String) -> impl Strategy<Value = Vec<u8>> {
    message().prop_map(move |raw| envelope(&api_version, &kind, &raw))
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [
        bytes_field(1, api_version.as_bytes()),
        bytes_field(2, kind.as_bytes()),
    ];
    [
        b"k8s\0".to_vec(),
        bytes_field(1, &meta.concat()),
        bytes_field(2, raw),
    ]
    .concat()
}

#[test]
fn the_envelope_is_the_one_that_the_server_reads() {
    let ground = crate::ground::Ground::new();
    let meta = bytes_field(1, b"from-protobuf");
    let bytes = envelope("v1", "ConfigMap", &bytes_field(1, &meta));
    let media = "application/vnd.kubernetes.protobuf";
    let path = "/api/v1/namespaces/ns/configmaps";
    let asked = crate::ground::Asked::new("POST", path, media, bytes);
    let answer = ground.send(&asked).unwrap();
    assert_eq!(answer.code, 201, "{}", answer.value());
    assert_eq!(answer.value()["metadata"]["name"], json!("from-protobuf"));
}
