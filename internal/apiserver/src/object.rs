//! Owns the stored form of an object: its bytes with a gap for the revision, and its selector
//! fields. Also the small readers of `metadata`. Contains no verbs.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use resources::registry::Kind;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use store::{Entry, EntryMeta, Revision, Store, TransactionView};

use crate::status::Failure;

/// Field of an [`EntryMeta`], not selectable, that is set while the object is being deleted.
pub const DELETING: &str = "~deleting";

/// The size that most objects do not exceed, in bytes, field managers included.
const TYPICAL: usize = 4096;

/// An object ready to be written, except for its revision.
#[derive(Debug)]
pub struct Encoded {
    /// The object's bytes before and after the revision.
    pub bytes: Halves,
    /// The selector fields.
    pub meta: EntryMeta,
}

/// The part of an object that a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    /// Everything except the status.
    Main,
    /// Only the status.
    Status,
}

/// An object's bytes before and after its revision.
#[derive(Debug)]
pub struct Halves {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Encoded {
    /// Encodes an object that has been checked.
    pub fn new(kind: &Kind, object: &Value) -> Self {
        let mut head = Vec::with_capacity(96);
        let mut tail = Vec::with_capacity(TYPICAL);
        head.push(b'{');
        // These come first, so that the revision is near the start in every object.
        for key in ["apiVersion", "kind"] {
            if let Some(value) = object.get(key) {
                member(&mut head, key, value);
                head.push(b',');
            }
        }
        head.extend_from_slice(b"\"metadata\":{\"resourceVersion\":\"");
        tail.push(b'"');
        for (key, value) in object
            .get("metadata")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            if key != "resourceVersion" {
                tail.push(b',');
                member(&mut tail, key, value);
            }
        }
        tail.push(b'}');
        for (key, value) in object.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                tail.push(b',');
                member(&mut tail, key, value);
            }
        }
        tail.push(b'}');
        Encoded {
            bytes: Halves { head, tail },
            meta: entry_meta(kind, object),
        }
    }

    /// Puts the object into the store.
    pub fn put(self, view: &mut TransactionView<'_>, key: String) -> Arc<Entry> {
        let Encoded { bytes, meta } = self;
        view.put(key, meta, |revision| bytes.at(revision))
    }
}

impl Halves {
    /// The number of bytes, without the revision.
    pub fn size(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// The object's final bytes.
    pub fn at(&self, revision: Revision) -> Bytes {
        self.with(&revision.to_string())
    }

    /// The bytes of a response for an object that was not written.
    pub fn with(&self, revision: &str) -> Bytes {
        let mut out = Vec::with_capacity(self.head.len() + revision.len() + self.tail.len());
        out.extend_from_slice(&self.head);
        out.extend_from_slice(revision.as_bytes());
        out.extend_from_slice(&self.tail);
        Bytes::from(out)
    }
}

fn member(out: &mut Vec<u8>, key: &str, value: &Value) {
    let key = serde_json::to_writer(&mut *out, key);
    out.push(b':');
    let value = serde_json::to_writer(&mut *out, value);
    debug_assert!(
        key.is_ok() && value.is_ok(),
        "a JSON value with text keys always encodes into memory"
    );
}

fn entry_meta(kind: &Kind, object: &Value) -> EntryMeta {
    let mut fields = kind.selectable(object);
    if deleting(object) {
        fields.insert(DELETING.to_string(), String::new());
    }
    EntryMeta {
        labels: labels(object),
        fields,
    }
}

/// An object's labels.
pub fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object();
    let pairs = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.into())));
    pairs.collect()
}

/// The objects below a prefix of the store, as this type.
pub fn read_all<T: DeserializeOwned>(store: &Store, prefix: &str) -> Result<Vec<T>, Failure> {
    let page = store.list(prefix, None, usize::MAX);
    page.entries.iter().map(|entry| parse_as(entry)).collect()
}

/// Reads a stored object.
pub fn parse(entry: &Entry) -> Result<Value, Failure> {
    parse_as(entry)
}

/// Reads a stored object as this type.
fn parse_as<T: DeserializeOwned>(entry: &Entry) -> Result<T, Failure> {
    serde_json::from_slice(&entry.value).map_err(|error| {
        Failure::internal(format_args!("the stored object {} is damaged: {error}; restore a backup, or create the object again", entry.key))
    })
}

/// A text field of `metadata`, empty if absent.
pub fn meta_text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// The object's name.
pub fn name(object: &Value) -> &str {
    meta_text(object, "name")
}

/// True if deletion has begun.
pub fn deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// The finalizers that hold the object.
pub fn finalizers(object: &Value) -> Vec<String> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

/// Sets the finalizers; an empty list removes the field.
pub fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    let meta = meta_mut(object);
    if finalizers.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".into(), finalizers.into());
    }
}

/// `metadata`, mutable; created if it is absent or not an object.
pub fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    member_mut(object, "metadata")
}

/// A member as a mutable object; created if it is absent or not an object.
pub fn member_mut<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let slot = &mut object[key];
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut()
        .expect("the slot was just made an object")
}

/// Copies a member from `from`, or removes it if `from` has none.
pub fn carry(from: &Value, to: &mut Map<String, Value>, key: &str) {
    match from.get(key) {
        Some(value) => to.insert(key.to_string(), value.clone()),
        None => to.remove(key),
    };
}

/// Sets a condition of the status; its `lastTransitionTime` is kept unless the status changes.
pub fn set_condition(object: &mut Value, kind: &str, mut condition: Value, now: &str) {
    let status = member_mut(object, "status");
    let list = status
        .entry("conditions")
        .or_insert_with(|| Value::Array(Vec::new()));
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(list) = list.as_array_mut() else {
        return;
    };
    let place = list.iter().position(|one| one["type"] == kind);
    let before = place
        .map(|place| &list[place])
        .filter(|before| before["status"] == condition["status"]);
    let since = before
        .and_then(|before| before.get("lastTransitionTime"))
        .cloned();
    condition["type"] = kind.into();
    condition["lastTransitionTime"] = since.unwrap_or_else(|| now.into());
    match place {
        Some(place) => list[place] = condition,
        None => list.push(condition),
    }
}
