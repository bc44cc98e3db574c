//! Owns turning a body's bytes into a JSON value: JSON, YAML and protobuf, telling of keys given twice, and leaving
//! null members out, which typed Kubernetes objects never keep. Does not check the value against a schema.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::protobuf;
use crate::request::Format;
use crate::status::Failure;

/// How deep a body may nest. serde_json has the same bound for JSON; YAML gets it here.
const MAX_DEPTH: usize = 128;

/// An object as it was sent.
#[derive(Debug)]
pub struct Decoded {
    /// The object, without null members.
    pub value: Value,
    /// Paths of keys that stood twice; the last one won, as in Kubernetes.
    pub duplicates: Vec<String>,
}

/// Decodes an object.
pub fn object(bytes: &[u8], format: Format) -> Result<Decoded, Failure> {
    if format == Format::Protobuf {
        let value = protobuf::decode(bytes).map_err(|why| {
            Failure::bad_request(format!(
                "unable to decode the request's body as protobuf: {why}"
            ))
        })?;
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

/// Decodes a patch, in which null means "remove".
pub fn patch(bytes: &[u8], format: Format) -> Result<Decoded, Failure> {
    decode(bytes, format, true)
}

fn decode(bytes: &[u8], format: Format, keep_nulls: bool) -> Result<Decoded, Failure> {
    let duplicates = RefCell::new(Vec::new());
    let seed = Node {
        duplicates: &duplicates,
        parent: None,
        step: Step::Root,
        keep_nulls,
        depth: 0,
    };
    let value = match format {
        Format::Yaml | Format::Apply => {
            // Most of what says YAML is JSON, which the JSON reader takes several times faster.
            if bytes.first() == Some(&b'{') {
                json(bytes, &seed).or_else(|_| {
                    duplicates.borrow_mut().clear();
                    yaml(bytes, &seed)
                })?
            } else {
                yaml(bytes, &seed)?
            }
        }
        _ => json(bytes, &seed)?,
    };
    Ok(Decoded {
        value,
        duplicates: duplicates.into_inner(),
    })
}

fn json(bytes: &[u8], seed: &Node<'_>) -> Result<Value, Failure> {
    let refuse = |error: serde_json::Error| {
        Failure::bad_request(format!(
            "unable to decode the request's body as JSON: {error}"
        ))
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = seed.deserialize(&mut reader).map_err(refuse)?;
    reader.end().map_err(refuse)?;
    Ok(value)
}

fn yaml(bytes: &[u8], seed: &Node<'_>) -> Result<Value, Failure> {
    seed.deserialize(serde_norway::Deserializer::from_slice(bytes))
        .map_err(|error| {
            Failure::bad_request(format!(
                "unable to decode the request's body as YAML: {error}"
            ))
        })
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

/// One place in the document; the chain of parents is walked only to name a duplicate.
#[derive(Clone, Copy)]
struct Node<'a> {
    duplicates: &'a RefCell<Vec<String>>,
    parent: Option<&'a Node<'a>>,
    step: Step<'a>,
    keep_nulls: bool,
    depth: usize,
}

impl<'a> Node<'a> {
    fn child<'b>(&'b self, step: Step<'b>) -> Node<'b> {
        Node {
            duplicates: self.duplicates,
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
            Step::Root => {}
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(key);
            }
            Step::Index(index) => out.push_str(&format!("[{index}]")),
        }
    }
}

impl<'de> DeserializeSeed<'de> for &Node<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(de::Error::custom(format!(
                "nested deeper than {MAX_DEPTH} levels"
            )));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Node<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.deserialize(reader)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(&self.child(Step::Index(out.len())))? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = members.next_key::<Key>()? {
            let node = self.child(Step::Key(&key.0));
            let value = members.next_value_seed(&node)?;
            if out.contains_key(&key.0) {
                let mut path = String::new();
                node.write_path(&mut path);
                self.duplicates.borrow_mut().push(path);
            }
            if self.keep_nulls || !value.is_null() {
                out.insert(key.0, value);
            }
        }
        Ok(Value::Object(out))
    }
}

/// A key of a mapping. YAML writes some as numbers or booleans (`on:`, `1:`); JSON keys are text.
struct Key(String);

impl<'de> de::Deserialize<'de> for Key {
    fn deserialize<D: de::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a key")
            }

            fn visit_str<E>(self, value: &str) -> Result<Key, E> {
                Ok(Key(value.to_owned()))
            }

            fn visit_string<E>(self, value: String) -> Result<Key, E> {
                Ok(Key(value))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Key, E> {
                Ok(Key(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Key, E> {
                Ok(Key(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Key, E> {
                Ok(Key(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Key, E> {
                Ok(Key(value.to_string()))
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
        let value = object(text, Format::Json).unwrap().value;
        assert_eq!(value, json!({"metadata": {"name": "a"}, "list": [null, 1]}));
        assert!(patch(br#"{"a":null}"#, Format::MergePatch).unwrap().value["a"].is_null());
        assert!(
            patch(br#"{"a":null}"#, Format::MergePatch)
                .unwrap()
                .value
                .get("a")
                .is_some()
        );
    }

    #[test]
    fn a_key_given_twice_is_named_and_the_last_wins() {
        let decoded = object(br#"{"spec":{"list":[{"a":1,"a":2}]}}"#, Format::Json).unwrap();
        assert_eq!(decoded.duplicates, ["spec.list[0].a"]);
        assert_eq!(decoded.value["spec"]["list"][0]["a"], 2);
    }

    #[test]
    fn yaml_is_read_and_what_is_no_object_is_refused() {
        let decoded = object(
            b"kind: Pod\nmetadata:\n  labels:\n    on: 'yes'\n",
            Format::Yaml,
        )
        .unwrap();
        assert_eq!(decoded.value["kind"], "Pod");
        assert_eq!(
            object(b"[]", Format::Json).unwrap_err().code().as_u16(),
            400
        );
        assert_eq!(object(b"{", Format::Json).unwrap_err().code().as_u16(), 400);
        assert_eq!(
            object(b"{} {}", Format::Json).unwrap_err().code().as_u16(),
            400
        );
    }
}
