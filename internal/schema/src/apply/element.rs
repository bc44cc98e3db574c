//! One step of a field path and its text forms: in fieldsV1 (`f:spec`, `k:{"name":"a"}`,
//! `v:"x"`, `i:0`) and in messages (`.spec`, `[name="a"]`, `[="x"]`, `[0]`). It must not know
//! sets of paths.

use std::cmp::Ordering;

use serde_json::Value;

use crate::shape::{ListShape, Relation, Schemas, ValueShape};

/// One step of a path. The order is that of the canonical fieldsV1 form: fields, keys, values,
/// indices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element {
    Field(Box<str>),
    /// Name and value of each key field, sorted by name.
    Key(Vec<(Box<str>, Value)>),
    Value(Value),
    Index(i64),
}

/// Why an item of a list cannot be addressed by a path.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoElement(pub(crate) String);

/// Why a fieldsV1 object is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FieldsError {
    #[error("fieldsV1 must be an object")]
    NotAnObject,
    #[error("missing colon: {0}")]
    NoColon(String),
    #[error("bad index: {0}")]
    Index(String),
    /// The value of a `v:` or a `k:` is no JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl Element {
    /// Parses one key of a fieldsV1 object. `None` for a prefix that a later version may define.
    pub(crate) fn parse(text: &str) -> Result<Option<Element>, FieldsError> {
        let (prefix, rest) = text
            .split_once(':')
            .ok_or_else(|| FieldsError::NoColon(text.to_owned()))?;
        Ok(Some(match prefix {
            "f" => Element::Field(rest.into()),
            "v" => Element::Value(serde_json::from_str(rest)?),
            "i" => Element::Index(
                rest.parse()
                    .map_err(|_| FieldsError::Index(text.to_owned()))?,
            ),
            "k" => {
                let keys: serde_json::Map<String, Value> = serde_json::from_str(rest)?;
                let mut keys: Vec<(Box<str>, Value)> = keys
                    .into_iter()
                    .map(|(name, value)| (name.into(), value))
                    .collect();
                keys.sort_by(|a, b| a.0.cmp(&b.0));
                Element::Key(keys)
            }
            _ => return Ok(None),
        }))
    }

    /// The key in a fieldsV1 object.
    pub(crate) fn print(&self) -> String {
        match self {
            Element::Field(name) => {
                let mut text = String::with_capacity(name.len() + 2);
                text.push_str("f:");
                text.push_str(name);
                text
            }
            Element::Key(keys) => print_key(keys.iter().map(|(name, value)| (&**name, value))),
            Element::Value(value) => format!("v:{value}"),
            Element::Index(at) => format!("i:{at}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Element::Field(_) => 0,
            Element::Key(_) => 1,
            Element::Value(_) => 2,
            Element::Index(_) => 3,
        }
    }
}

/// `k:{"a":1,"b":"x"}` for key fields sorted by name.
pub(crate) fn print_key<'a>(keys: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let mut text = String::with_capacity(32);
    text.push_str("k:{");
    for (at, (name, value)) in keys.enumerate() {
        if at > 0 {
            text.push(',');
        }
        push_json_text(&mut text, name);
        text.push(':');
        match value {
            Value::String(string) => push_json_text(&mut text, string),
            other => text.push_str(&other.to_string()),
        }
    }
    text.push('}');
    text
}

fn push_json_text(text: &mut String, string: &str) {
    let plain = string.bytes().all(|b| b >= 0x20 && b != b'"' && b != b'\\');
    if plain {
        text.push('"');
        text.push_str(string);
        text.push('"');
    } else {
        text.push_str(&Value::from(string).to_string());
    }
}

impl std::fmt::Display for Element {
    /// The form in conflicts and errors.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(keys) => {
                f.write_str("[")?;
                for (at, (name, value)) in keys.iter().enumerate() {
                    if at > 0 {
                        f.write_str(",")?;
                    }
                    write!(f, "{name}={value}")?;
                }
                f.write_str("]")
            }
            Element::Value(value) => write!(f, "[={value}]"),
            Element::Index(at) => write!(f, "[{at}]"),
        }
    }
}

impl Eq for Element {}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Element) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Element {
    fn cmp(&self, other: &Element) -> Ordering {
        match (self, other) {
            (Element::Field(a), Element::Field(b)) => a.cmp(b),
            (Element::Key(a), Element::Key(b)) => {
                for ((name_a, value_a), (name_b, value_b)) in a.iter().zip(b) {
                    let order = name_a
                        .cmp(name_b)
                        .then_with(|| compare_values(value_a, value_b));
                    if order != Ordering::Equal {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Element::Value(a), Element::Value(b)) => compare_values(a, b),
            (Element::Index(a), Element::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

/// Numbers, strings, booleans, lists, objects, null.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x
                .as_f64()
                .unwrap_or_default()
                .total_cmp(&y.as_f64().unwrap_or_default()),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        _ if rank(a) == rank(b) => a.to_string().cmp(&b.to_string()),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// The path element of an item of a set or map list.
pub(crate) fn of_item(
    schemas: &Schemas,
    list: &ListShape,
    item: &Value,
) -> Result<Element, NoElement> {
    match &list.relation {
        Relation::Atomic => Err(NoElement(
            "invalid indexing of non-associative list".to_owned(),
        )),
        Relation::Set => match item {
            Value::Object(_) => Err(NoElement(
                "associative list without keys has an element that's a map type".to_owned(),
            )),
            Value::Array(_) => Err(NoElement(
                "not supported: associative list with lists as elements".to_owned(),
            )),
            Value::Null => Err(NoElement(
                "associative list without keys has an element that's an explicit null".to_owned(),
            )),
            scalar => Ok(Element::Value(scalar.clone())),
        },
        Relation::Map(names) => {
            let Value::Object(map) = item else {
                return Err(NoElement(
                    "associative list with keys may not have non-map elements".to_owned(),
                ));
            };
            let mut keys = Vec::with_capacity(names.len());
            for name in names {
                if let Some(value) = map.get(&**name) {
                    keys.push((name.clone(), value.clone()));
                } else if let Some(value) = key_default(schemas, list, name) {
                    keys.push((name.clone(), value));
                }
            }
            if keys.is_empty() {
                let listed: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
                return Err(NoElement(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    listed.join(" ")
                )));
            }
            Ok(Element::Key(keys))
        }
    }
}

/// The default of an absent key field, e.g. `TCP` for a port's protocol.
pub(crate) fn key_default(schemas: &Schemas, list: &ListShape, name: &str) -> Option<Value> {
    match &schemas.node(list.items).shape {
        ValueShape::Object(object) => object
            .field(name)
            .and_then(crate::shape::Field::default_value),
        _ => None,
    }
}
