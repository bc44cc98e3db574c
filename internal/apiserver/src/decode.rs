//! Owns the decoding of a body into a JSON value: JSON, YAML and protobuf. It reports duplicate
//! keys and drops null members, which typed Kubernetes objects never have. Does not check the value
//! against a schema.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::limits::{
    MOST_DEPTH, MOST_DUPLICATES, MOST_EXPANDED_BYTES, MOST_QUOTED_BYTES, MOST_VALUES, quoted,
};
use crate::request::BodyFormat;
use crate::status::Failure;
use crate::yaml::{self, Excess};
use crate::{bounded, protobuf};

/// A decoded object.
#[derive(Debug)]
pub struct Decoded {
    /// The object, without null members.
    pub value: Value,
    /// Warnings about duplicate keys; the last value wins, as in Kubernetes.
    pub duplicates: Vec<String>,
}

/// Why a YAML text cannot be read as manifests, worded for its author.
#[derive(Debug, thiserror::Error)]
pub enum ManifestsError {
    /// It nests too deep.
    #[error("nested deeper than {MOST_DEPTH} levels")]
    Depth,
    /// It exceeds the size of a body.
    #[error("{0}")]
    Amount(String),
    /// One of its documents is not valid YAML.
    #[error("document {number}: this is not YAML: {reason}")]
    Document {
        /// The document's number, from 1.
        number: usize,
        /// The parser's message, cut to a bound.
        reason: String,
    },
    /// The server cannot accept the text now.
    #[error("{0}")]
    NotRead(String),
}

/// Decodes an object.
pub fn object(bytes: &[u8], format: BodyFormat) -> Result<Decoded, Failure> {
    if format == BodyFormat::Protobuf {
        let value = protobuf::decode(bytes).map_err(|why| {
            Failure::bad_request(format!(
                "unable to decode the request's body as protobuf: {}",
                quoted(&why.to_string())
            ))
        })?;
        bounded::decoded(&value)?;
        return Ok(Decoded {
            value,
            duplicates: Vec::new(),
        });
    }
    let decoded = decode(bytes, format, false)?;
    if !decoded.value.is_object() {
        return Err(Failure::bad_request(
            "the object provided is unrecognized (must be of type Object)",
        ));
    }
    Ok(decoded)
}

/// Decodes a patch, in which null removes a member.
pub fn patch(bytes: &[u8], format: BodyFormat) -> Result<Decoded, Failure> {
    decode(bytes, format, true)
}

/// Decodes the documents of a YAML text; together they must fit the bounds of one body.
///
/// # Errors
/// The problem, and the document.
pub(crate) fn manifests(text: &str) -> Result<Vec<Value>, ManifestsError> {
    yaml::survey(text.as_bytes()).map_err(|excess| match excess {
        Excess::Depth => ManifestsError::Depth,
        Excess::Amount(why) => ManifestsError::Amount(why),
    })?;
    let tally = RefCell::new(DecodeCounters::default());
    let seed = DocumentPosition::root(&tally, true);
    let documents = serde_norway::Deserializer::from_str(text).enumerate();
    documents
        .map(|(at, document)| {
            let read = seed.deserialize(document);
            read.map_err(|error| ManifestsError::Document {
                number: at + 1,
                reason: quoted(&error.to_string()),
            })
        })
        .collect()
}

fn decode(bytes: &[u8], format: BodyFormat, keep_nulls: bool) -> Result<Decoded, Failure> {
    let tally = RefCell::new(DecodeCounters::default());
    let seed = DocumentPosition::root(&tally, keep_nulls);
    let value = match format {
        BodyFormat::Yaml | BodyFormat::Apply => {
            // Most bodies declared as YAML are JSON, which the JSON reader reads several times
            // faster.
            if bytes.first() == Some(&b'{') {
                json(bytes, &seed).or_else(|_| {
                    tally.take();
                    yaml(bytes, &seed)
                })
            } else {
                yaml(bytes, &seed)
            }
        }
        _ => json(bytes, &seed),
    };
    let tally = tally.into_inner();
    if let Some(why) = &tally.excess {
        return Err(Failure::too_large_because(why));
    }
    Ok(Decoded {
        value: value?,
        duplicates: tally.complaints(),
    })
}

fn too_deep() -> String {
    format!("nested deeper than {MOST_DEPTH} levels")
}

fn json(bytes: &[u8], seed: &DocumentPosition<'_>) -> Result<Value, Failure> {
    let refuse = |error: serde_json::Error| {
        Failure::bad_request(format!(
            "unable to decode the request's body as JSON: {}",
            quoted(&error.to_string())
        ))
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = seed.deserialize(&mut reader).map_err(refuse)?;
    reader.end().map_err(refuse)?;
    Ok(value)
}

fn yaml(bytes: &[u8], seed: &DocumentPosition<'_>) -> Result<Value, Failure> {
    let refuse = |why: &str| {
        Failure::bad_request(format!(
            "unable to decode the request's body as YAML: {}",
            quoted(why)
        ))
    };
    yaml::survey(bytes).map_err(|excess| match excess {
        Excess::Depth => refuse(&too_deep()),
        Excess::Amount(why) => Failure::too_large_because(&why),
    })?;
    seed.deserialize(serde_norway::Deserializer::from_slice(bytes))
        .map_err(|error| refuse(&error.to_string()))
}

/// The counters of a body that is being read.
#[derive(Debug, Default)]
struct DecodeCounters {
    /// Paths of duplicate keys, the first [`MOST_DUPLICATES`].
    duplicates: Vec<String>,
    /// How many further duplicates there were.
    more_duplicates: usize,
    /// The number of keys and values.
    values: usize,
    /// The approximate length of their JSON text.
    bytes: usize,
    /// Why reading stopped.
    excess: Option<String>,
}

impl DecodeCounters {
    fn count<E: de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.values += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let excess = if self.values > MOST_VALUES {
            format!("the body has more than {MOST_VALUES} keys and values")
        } else if self.bytes > MOST_EXPANDED_BYTES {
            format!(
                "the body takes more than {MOST_EXPANDED_BYTES} bytes after the expansion of its aliases"
            )
        } else {
            return Ok(());
        };
        let error = E::custom(&excess);
        self.excess = Some(excess);
        Err(error)
    }

    /// Records a duplicate key. A path can be as long as the body, so only a few are stored, and
    /// only the end of each.
    fn duplicate(&mut self, node: &DocumentPosition<'_>) {
        if self.duplicates.len() == MOST_DUPLICATES {
            self.more_duplicates += 1;
            return;
        }
        let mut path = String::new();
        node.write_path(&mut path);
        if path.len() > MOST_QUOTED_BYTES {
            let start = path.ceil_char_boundary(path.len() - MOST_QUOTED_BYTES);
            path = format!("...{}", &path[start..]);
        }
        self.duplicates.push(path);
    }

    fn complaints(self) -> Vec<String> {
        let named = self.duplicates.iter();
        let mut complaints: Vec<String> = named
            .map(|path| format!("duplicate field \"{path}\""))
            .collect();
        if self.more_duplicates > 0 {
            complaints.push(format!("{} more duplicate fields", self.more_duplicates));
        }
        complaints
    }
}

#[derive(Clone, Copy)]
enum DecodeStep<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

/// A position in the document; the chain of parents is read only to name a duplicate.
#[derive(Clone, Copy)]
struct DocumentPosition<'a> {
    tally: &'a RefCell<DecodeCounters>,
    parent: Option<&'a DocumentPosition<'a>>,
    step: DecodeStep<'a>,
    keep_nulls: bool,
    depth: usize,
}

impl<'a> DocumentPosition<'a> {
    fn root(tally: &'a RefCell<DecodeCounters>, keep_nulls: bool) -> Self {
        DocumentPosition {
            tally,
            parent: None,
            step: DecodeStep::Root,
            keep_nulls,
            depth: 0,
        }
    }

    /// Counts a scalar whose JSON text has approximately this many bytes.
    fn count<E: de::Error>(&self, bytes: usize) -> Result<(), E> {
        self.tally.borrow_mut().count(bytes)
    }

    /// Counts an object or a list.
    fn open<E: de::Error>(&self) -> Result<(), E> {
        if self.depth >= MOST_DEPTH {
            return Err(E::custom(too_deep()));
        }
        self.count(2)
    }

    fn child<'b>(&'b self, step: DecodeStep<'b>) -> DocumentPosition<'b> {
        DocumentPosition {
            tally: self.tally,
            parent: Some(self),
            step,
            keep_nulls: self.keep_nulls,
            depth: self.depth + 1,
        }
    }

    fn write_path(&self, out: &mut String) {
        if let Some(parent) = self.parent {
            parent.write_path(out);
        }
        match self.step {
            DecodeStep::Root => {}
            DecodeStep::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(key);
            }
            DecodeStep::Index(index) => out.push_str(&format!("[{index}]")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for &DocumentPosition<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &DocumentPosition<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        self.count::<E>(2)?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.count::<E>(2)?;
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.count::<E>(2)?;
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        self.count::<E>(2)?;
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.count::<E>(value.len() + 2)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        self.count::<E>(value.len() + 2)?;
        Ok(Value::String(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.count::<E>(2)?;
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        self.count::<E>(2)?;
        Ok(Value::Null)
    }

    fn visit_some<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.deserialize(reader)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.open::<A::Error>()?;
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(&self.child(DecodeStep::Index(out.len())))? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        self.open::<A::Error>()?;
        let mut out = Map::new();
        while let Some(key) = members.next_key::<MappingKey>()? {
            self.count::<A::Error>(key.0.len() + 2)?;
            let node = self.child(DecodeStep::Key(&key.0));
            let value = members.next_value_seed(&node)?;
            if out.contains_key(&key.0) {
                self.tally.borrow_mut().duplicate(&node);
            }
            if self.keep_nulls || !value.is_null() {
                out.insert(key.0, value);
            }
        }
        Ok(Value::Object(out))
    }
}

/// A mapping's key. YAML parses some as numbers or booleans (`on:`, `1:`); JSON keys are text.
struct MappingKey(String);

impl<'de> de::Deserialize<'de> for MappingKey {
    fn deserialize<D: de::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = MappingKey;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a key")
            }

            fn visit_str<E>(self, value: &str) -> Result<MappingKey, E> {
                Ok(MappingKey(value.to_owned()))
            }

            fn visit_string<E>(self, value: String) -> Result<MappingKey, E> {
                Ok(MappingKey(value))
            }

            fn visit_bool<E>(self, value: bool) -> Result<MappingKey, E> {
                Ok(MappingKey(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<MappingKey, E> {
                Ok(MappingKey(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<MappingKey, E> {
                Ok(MappingKey(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<MappingKey, E> {
                Ok(MappingKey(value.to_string()))
            }
        }
        reader.deserialize_any(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nulls_are_left_out_of_objects_and_kept_in_patches() {
        let text = br#"{"metadata":{"creationTimestamp":null,"name":"a"},"list":[null,1]}"#;
        let value = object(text, BodyFormat::Json).unwrap().value;
        assert_eq!(value, json!({"metadata": {"name": "a"}, "list": [null, 1]}));
        assert!(
            patch(br#"{"a":null}"#, BodyFormat::MergePatch)
                .unwrap()
                .value["a"]
                .is_null()
        );
        assert!(
            patch(br#"{"a":null}"#, BodyFormat::MergePatch)
                .unwrap()
                .value
                .get("a")
                .is_some()
        );
    }

    #[test]
    fn a_key_given_twice_is_named_and_the_last_wins() {
        let decoded = object(br#"{"spec":{"list":[{"a":1,"a":2}]}}"#, BodyFormat::Json).unwrap();
        assert_eq!(decoded.duplicates, ["duplicate field \"spec.list[0].a\""]);
        assert_eq!(decoded.value["spec"]["list"][0]["a"], 2);
    }

    #[test]
    fn yaml_is_read_and_what_is_no_object_is_refused() {
        let decoded = object(
            b"kind: Pod\nmetadata:\n  labels:\n    on: 'yes'\n",
            BodyFormat::Yaml,
        )
        .unwrap();
        assert_eq!(decoded.value["kind"], "Pod");
        assert_eq!(
            object(b"[]", BodyFormat::Json).unwrap_err().code().as_u16(),
            400
        );
        assert_eq!(
            object(b"{", BodyFormat::Json).unwrap_err().code().as_u16(),
            400
        );
        assert_eq!(
            object(b"{} {}", BodyFormat::Json)
                .unwrap_err()
                .code()
                .as_u16(),
            400
        );
    }

    #[test]
    fn depth_is_taken_to_its_bound_in_json_and_yaml() {
        let nested = |levels: usize| {
            let inner = "{\"a\":".repeat(levels - 1);
            format!("{inner}{{}}{}", "}".repeat(levels - 1))
        };
        for format in [BodyFormat::Json, BodyFormat::Yaml] {
            object(nested(MOST_DEPTH).as_bytes(), format).unwrap();
            for levels in [MOST_DEPTH + 1, 100_000] {
                let refused = object(nested(levels).as_bytes(), format).unwrap_err();
                assert_eq!(refused.code().as_u16(), 400, "{format:?} {levels}");
            }
        }
    }

    #[test]
    fn keys_and_values_are_taken_to_their_bound() {
        let list = |items: usize| {
            let zeros = vec!["0"; items].join(",");
            format!("{{\"a\":[{zeros}]}}")
        };
        // The object, its key and the list count as three.
        object(list(MOST_VALUES - 3).as_bytes(), BodyFormat::Json).unwrap();
        for format in [BodyFormat::Json, BodyFormat::Yaml] {
            let refused = object(list(MOST_VALUES - 2).as_bytes(), format).unwrap_err();
            assert_eq!(refused.code().as_u16(), 413);
        }
    }

    #[test]
    fn aliases_are_expanded_to_a_bound() {
        let kilobyte = "x".repeat(1022);
        let expanded = |times: usize| {
            let text = format!("a: &a {kilobyte}\nb: [{}]\n", "*a,".repeat(times));
            object(text.as_bytes(), BodyFormat::Yaml)
        };
        let kept = expanded(1000).unwrap().value;
        assert_eq!(kept["b"][999].as_str().unwrap().len(), 1022);
        let refused = expanded(MOST_EXPANDED_BYTES / 1024).unwrap_err();
        assert_eq!(refused.code().as_u16(), 413);

        // Each line contains the previous one ten times.
        let lines = (1..12).map(|at| {
            let before = format!("*l{},", at - 1).repeat(10);
            format!("l{at}: &l{at} [{before}]\n")
        });
        let laughs: String = std::iter::once("l0: &l0 lol\n".to_owned())
            .chain(lines)
            .collect();
        assert!(object(laughs.as_bytes(), BodyFormat::Yaml).is_err());
        let itself = "a: &a [*a]\n";
        assert!(object(itself.as_bytes(), BodyFormat::Yaml).is_err());
    }

    #[test]
    fn duplicates_are_named_up_to_a_bound_and_their_paths_cut() {
        let outer = "k".repeat(1_000_000);
        let inner = vec!["\"a\":1"; 500].join(",");
        let text = format!("{{\"{outer}\":{{{inner}}}}}");
        let decoded = object(text.as_bytes(), BodyFormat::Json).unwrap();
        assert_eq!(decoded.duplicates.len(), MOST_DUPLICATES + 1);
        let bytes: usize = decoded.duplicates.iter().map(String::len).sum();
        assert!(
            bytes < MOST_DUPLICATES * (MOST_QUOTED_BYTES + 64),
            "{bytes}"
        );
        assert!(decoded.duplicates[0].ends_with("kk.a\""));
        let more = 499 - MOST_DUPLICATES;
        assert_eq!(
            decoded.duplicates[MOST_DUPLICATES],
            format!("{more} more duplicate fields")
        );
    }

    #[test]
    fn a_complaint_repeats_no_more_than_a_bound_of_the_body() {
        let text = format!("? {}\n: .nan\n", "k".repeat(1_000_000));
        let refused = object(text.as_bytes(), BodyFormat::Yaml).unwrap_err();
        assert!(refused.to_value().to_string().len() < 2 * MOST_QUOTED_BYTES);
    }

    #[test]
    fn documents_are_read_one_after_the_other_and_counted_together() {
        let read = manifests("a: 1\n---\n---\nb: [null]\n").unwrap();
        assert_eq!(read, [json!({"a": 1}), Value::Null, json!({"b": [null]})]);
        let wrong = manifests("a: 1\n---\nb: [\n").unwrap_err().to_string();
        assert!(wrong.starts_with("document 2: this is not YAML"), "{wrong}");
        assert!(
            manifests(&"{a: ".repeat(150_000))
                .unwrap_err()
                .to_string()
                .contains("nested deeper")
        );
        let half = format!("a: &a {}\nb: [{}]\n", "x".repeat(1022), "*a,".repeat(2000));
        manifests(&half).unwrap();
        assert!(manifests(&format!("{half}---\n{half}")).is_err());
    }
}
