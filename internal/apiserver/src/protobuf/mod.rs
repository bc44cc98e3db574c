//! Owns the decoding of the Kubernetes objects that Go programs send as protobuf (their typed
//! clients send no other format) into the JSON that this crate works on. Responses are JSON: those
//! clients accept both. Contains no kinds: the layout of every message is in `messages.txt`, which
//! `extract.py` writes.

mod layout;
mod wire;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use self::layout::{Cardinality, MessageField, Type};
use self::wire::{MessageReader, Raw, WireError};
use crate::limits::MOST_DEPTH;

/// The prefix of every object.
pub(crate) const MAGIC: &[u8] = b"k8s\0";

/// Why bytes are not a valid object.
#[derive(Debug, thiserror::Error)]
pub enum ProtobufError {
    /// The bytes lack the envelope of an object.
    #[error("it does not begin with the protobuf objects' mark \"k8s\\0\"")]
    NoMark,
    /// The kind's layout is unknown.
    #[error("the kind {kind} of {api_version} has no protobuf form here; send it as JSON")]
    UnknownKind {
        /// The kind in the envelope.
        kind: String,
        /// Its group and version.
        api_version: String,
    },
    /// The layout of a nested message is unknown.
    #[error("the message {0} is not known")]
    UnknownMessage(String),
    /// Messages nest too deep.
    #[error("nested deeper than {MOST_DEPTH} levels")]
    Depth,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// A field occurs both as a list and as a single value.
    #[error("a list and something else")]
    NotOnlyList,
    /// A field occurs both as a map and as another type.
    #[error("a map and something else")]
    NotOnlyMap,
    /// Another value is in the place of a message.
    #[error("no message")]
    NoMessage,
    /// Another value is in the place of a map's entry.
    #[error("no map")]
    NoMap,
    /// The field's wire type does not match its type.
    #[error("its wire type is another")]
    WireType,
    /// A time's nanoseconds do not fit into 32 bits.
    #[error("nanoseconds out of range")]
    Nanoseconds,
    /// A time is out of range.
    #[error(transparent)]
    Time(#[from] jiff::Error),
    /// A field of type JSON contains invalid JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The bytes are not valid protobuf fields.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The error of a field.
    #[error("{field}: {reason}")]
    Field {
        /// The field's name in JSON.
        field: &'static str,
        /// The error.
        reason: Box<ProtobufError>,
    },
}

/// Decodes an object in its envelope.
///
/// # Errors
/// If the bytes are not a valid object, or if its kind is unknown.
pub fn decode(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let Some(bytes) = bytes.strip_prefix(MAGIC) else {
        return Err(ProtobufError::NoMark);
    };
    let (mut api_version, mut kind, mut raw): (String, String, &[u8]) = Default::default();
    for item in MessageReader::new(bytes) {
        match item? {
            (1, Raw::Bytes(meta)) => {
                for item in MessageReader::new(meta) {
                    match item? {
                        (1, Raw::Bytes(found)) => api_version = text(found)?,
                        (2, Raw::Bytes(found)) => kind = text(found)?,
                        _ => {}
                    }
                }
            }
            (2, Raw::Bytes(found)) => raw = found,
            _ => {}
        }
    }
    let name = message_name(&api_version, &kind);
    let Some(fields) = layout::find(&name) else {
        return Err(ProtobufError::UnknownKind { kind, api_version });
    };
    let mut object = Map::new();
    message(fields, raw, &mut object, 0)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

/// Maps a group and version such as `authorization.k8s.io/v1` and a kind to the message's name.
fn message_name(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        // Every group serves this kind with the same message.
        return "meta.v1.DeleteOptions".into();
    }
    match api_version.split_once('/') {
        None => format!("core.{api_version}.{kind}"),
        Some((group, version)) => format!(
            "{}.{version}.{kind}",
            group.split('.').next().unwrap_or_default()
        ),
    }
}

fn text(bytes: &[u8]) -> Result<String, ProtobufError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| ProtobufError::NotText)
}

/// Decodes a message's fields into `out`.
fn message(
    fields: &[MessageField],
    bytes: &[u8],
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    if depth > MOST_DEPTH {
        return Err(ProtobufError::Depth);
    }
    for item in MessageReader::new(bytes) {
        let (number, raw) = item?;
        // A newer client's field; unknown fields of JSON clients are dropped too.
        let Some(field) = fields.iter().find(|field| field.number == number) else {
            continue;
        };
        let named = |reason: ProtobufError| ProtobufError::Field {
            field: field.name,
            reason: Box::new(reason),
        };
        match field.form {
            Cardinality::Inline => inline(&field.of, raw, out, depth).map_err(named)?,
            Cardinality::List => {
                let item = value(&field.of, raw, depth).map_err(named)?;
                let list = out
                    .entry(field.name)
                    .or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut()
                    .ok_or_else(|| named(ProtobufError::NotOnlyList))?
                    .push(item);
            }
            Cardinality::Map => {
                let (key, item) = entry(&field.of, raw, depth).map_err(named)?;
                let map = out
                    .entry(field.name)
                    .or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut()
                    .ok_or_else(|| named(ProtobufError::NotOnlyMap))?
                    .insert(key, item);
            }
            Cardinality::Pointer => {
                let found = value(&field.of, raw, depth).map_err(named)?;
                if !found.is_null() {
                    out.insert(field.name.into(), found);
                }
            }
            Cardinality::Plain => {
                // Go writes every field, set or not; zero means unset, or has the same meaning.
                let found = value(&field.of, raw, depth).map_err(named)?;
                if !is_zero(&found) {
                    out.insert(field.name.into(), found);
                }
            }
        }
    }
    Ok(())
}

fn inline(
    of: &Type,
    raw: Raw<'_>,
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    match (of, raw) {
        (Type::Message(name), Raw::Bytes(bytes)) => {
            message(fields_of(name)?, bytes, out, depth + 1)
        }
        _ => Err(ProtobufError::NoMessage),
    }
}

fn entry(of: &Type, raw: Raw<'_>, depth: usize) -> Result<(String, Value), ProtobufError> {
    let Raw::Bytes(bytes) = raw else {
        return Err(ProtobufError::NoMap);
    };
    let (mut key, mut found) = (String::new(), None);
    for item in MessageReader::new(bytes) {
        match item? {
            (1, Raw::Bytes(bytes)) => key = text(bytes)?,
            (2, raw) => found = Some(value(of, raw, depth)?),
            _ => {}
        }
    }
    Ok((key, found.unwrap_or_else(|| Value::String(String::new()))))
}

fn fields_of(name: &str) -> Result<&'static [MessageField], ProtobufError> {
    layout::find(name).ok_or_else(|| ProtobufError::UnknownMessage(name.to_owned()))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
    }
}

fn value(of: &Type, raw: Raw<'_>, depth: usize) -> Result<Value, ProtobufError> {
    match (of, raw) {
        (Type::Text, Raw::Bytes(bytes)) => Ok(Value::String(text(bytes)?)),
        (Type::Bytes, Raw::Bytes(bytes)) => Ok(Value::String(STANDARD.encode(bytes))),
        (Type::Bool, Raw::Varint(number)) => Ok(Value::Bool(number != 0)),
        (Type::Int, Raw::Varint(number)) => Ok(Value::Number(wire::signed(number).into())),
        (Type::Double, Raw::Fixed64(bits)) => {
            Ok(Number::from_f64(f64::from_bits(bits)).map_or(Value::Null, Value::Number))
        }
        (Type::Time, Raw::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ"),
        (Type::MicroTime, Raw::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S.%6fZ"),
        (Type::Quantity, Raw::Bytes(bytes)) => single(bytes),
        (Type::IntOrString, Raw::Bytes(bytes)) => int_or_string(bytes),
        (Type::Json, Raw::Bytes(bytes)) => json(bytes),
        (Type::Message(name), Raw::Bytes(bytes)) => {
            let mut out = Map::new();
            message(fields_of(name)?, bytes, &mut out, depth + 1)?;
            Ok(Value::Object(out))
        }
        _ => Err(ProtobufError::WireType),
    }
}

/// A time; none for an empty message, which is Go's zero time.
fn time(bytes: &[u8], format: &str) -> Result<Value, ProtobufError> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanoseconds) = (0_i64, 0_i64);
    for item in MessageReader::new(bytes) {
        match item? {
            (1, Raw::Varint(number)) => seconds = wire::signed(number),
            (2, Raw::Varint(number)) => nanoseconds = wire::signed(number),
            _ => {}
        }
    }
    let nanoseconds = i32::try_from(nanoseconds).map_err(|_| ProtobufError::Nanoseconds)?;
    let time = Timestamp::new(seconds, nanoseconds)?;
    Ok(Value::String(time.strftime(format).to_string()))
}

/// The text in a message's first field.
fn single(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut found = String::new();
    for item in MessageReader::new(bytes) {
        if let (1, Raw::Bytes(bytes)) = item? {
            found = text(bytes)?;
        }
    }
    Ok(Value::String(found))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut words) = (false, 0_i64, String::new());
    for item in MessageReader::new(bytes) {
        match item? {
            (1, Raw::Varint(kind)) => is_text = kind != 0,
            (2, Raw::Varint(found)) => number = wire::signed(found),
            (3, Raw::Bytes(found)) => words = text(found)?,
            _ => {}
        }
    }
    Ok(if is_text {
        Value::String(words)
    } else {
        Value::Number(number.into())
    })
}

/// JSON in a message's first field.
fn json(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut found = Value::Null;
    for item in MessageReader::new(bytes) {
        if let (1, Raw::Bytes(bytes)) = item? {
            found = serde_json::from_slice(bytes)?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
