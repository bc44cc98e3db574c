//! The record of owners: `metadata.managedFields` decoded, changed and encoded. Unchanged entries
//! keep their JSON and are never parsed. It must not compare objects.

use serde_json::{Map, Value};

use super::element::{Element, FieldsError};
use super::set::PathSet;
use super::{FieldManager, ManagerOperation};

/// If there are more Update entries than this, the oldest ones are merged into one.
const MOST_UPDATERS: usize = 10;
/// The manager of merged entries.
const ANCIENT: &str = "ancient-changes";

#[derive(Clone, Debug)]
struct ManagerEntry {
    who: FieldManager,
    time: Option<String>,
    /// The stored JSON; valid unless `set` is present.
    json: Value,
    /// The set after a change.
    set: Option<PathSet>,
    new: bool,
}

impl ManagerEntry {
    fn set(&self) -> PathSet {
        // Decoding has checked that the JSON parses.
        self.set
            .clone()
            .unwrap_or_else(|| PathSet::parse(&self.json).unwrap_or_default())
    }

    fn replace(&mut self, set: PathSet) {
        self.set = Some(set);
    }

    /// True if the entry is new or its set differs from the stored one.
    fn changed(&self) -> bool {
        match &self.set {
            Some(set) => self.new || PathSet::parse(&self.json).is_ok_and(|stored| stored != *set),
            None => self.new,
        }
    }

    fn is(&self, who: &FieldManager) -> bool {
        // An applier keeps its entry when it applies in another version.
        self.who.name == who.name
            && self.who.operation == who.operation
            && self.who.subresource == who.subresource
            && (who.operation == ManagerOperation::Apply || self.who.api_version == who.api_version)
    }
}

/// The fields of one manager that an apply would change.
#[derive(Debug)]
pub(crate) struct Contested {
    /// The manager as conflicts name it.
    pub(crate) manager: String,
    pub(crate) fields: PathSet,
}

/// Why an entry of an object's managed fields is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagersError {
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    NoVersion,
    #[error("missing fieldsType in managed fields entry {entry}")]
    NoFieldsType { entry: usize },
    #[error("invalid fieldsType {found:?} in managed fields entry {entry}")]
    FieldsType { found: String, entry: usize },
    #[error(transparent)]
    Fields(#[from] FieldsError),
}

/// The owners of all fields of an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Managers {
    entries: Vec<ManagerEntry>,
}

impl Managers {
    /// # Errors
    /// Why an entry is invalid, in kube-apiserver's words.
    pub(crate) fn decode(fields: &[Value]) -> Result<Managers, ManagersError> {
        let mut entries = Vec::with_capacity(fields.len());
        for (at, entry) in fields.iter().enumerate() {
            let text = |name: &str| entry[name].as_str().unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => ManagerOperation::Apply,
                "Update" => ManagerOperation::Update,
                _ => return Err(ManagersError::Operation),
            };
            if text("apiVersion").is_empty() {
                return Err(ManagersError::NoVersion);
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagersError::NoFieldsType { entry: at }),
                other => {
                    let found = other.to_owned();
                    return Err(ManagersError::FieldsType { found, entry: at });
                }
            }
            let json = match &entry["fieldsV1"] {
                Value::Null => Value::Object(Map::new()),
                fields => {
                    check(fields)?;
                    fields.clone()
                }
            };
            entries.push(ManagerEntry {
                who: FieldManager {
                    name: text("manager").to_owned(),
                    operation,
                    api_version: text("apiVersion").to_owned(),
                    subresource: entry["subresource"]
                        .as_str()
                        .filter(|s| !s.is_empty())
                        .map(str::to_owned),
                },
                time: entry["time"].as_str().map(str::to_owned),
                json,
                set: None,
                new: false,
            });
        }
        Ok(Managers { entries })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn push_json(&mut self, who: FieldManager, now: &str, fields: Value) {
        if fields.as_object().is_some_and(|fields| !fields.is_empty()) {
            self.entries.push(ManagerEntry {
                who,
                time: Some(now.to_owned()),
                json: fields,
                set: None,
                new: true,
            });
        }
    }

    /// Sets a manager's set and returns the previous one.
    pub(crate) fn replace(&mut self, who: &FieldManager, set: PathSet) -> Option<PathSet> {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.is(who)) {
            let before = entry.set();
            entry.who.api_version.clone_from(&who.api_version);
            entry.replace(set);
            return Some(before);
        }
        self.entries.push(ManagerEntry {
            who: who.clone(),
            time: None,
            json: Value::Object(Map::new()),
            set: Some(set),
            new: true,
        });
        None
    }

    /// Removes fields without an owner from a manager's set, after they were used in the merge.
    pub(crate) fn strip(&mut self, who: &FieldManager, unowned: &PathSet) {
        for entry in self.entries.iter_mut().filter(|entry| entry.is(who)) {
            let stripped = entry.set().difference(unowned);
            entry.replace(stripped);
        }
    }

    pub(crate) fn all_owned(&self) -> PathSet {
        let mut all = PathSet::default();
        for entry in &self.entries {
            all.absorb(entry.set());
        }
        all
    }

    /// The fields among `changed` that managers other than `me` own, by manager.
    pub(crate) fn contested(&self, me: &FieldManager, changed: &PathSet) -> Vec<Contested> {
        let mut others: Vec<&ManagerEntry> = self.entries.iter().filter(|e| !e.is(me)).collect();
        others.sort_by(|a, b| {
            let key = |e: &ManagerEntry| {
                (
                    e.who.name.clone(),
                    e.who.operation,
                    e.who.api_version.clone(),
                    e.who.subresource.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        others
            .into_iter()
            .map(|entry| Contested {
                manager: shown(&entry.who),
                fields: entry.set().intersection(changed),
            })
            .filter(|contested| !contested.fields.is_empty())
            .collect()
    }

    /// Removes changed and removed fields from the sets of all managers except `keeper`.
    pub(crate) fn release(
        &mut self,
        keeper: Option<&FieldManager>,
        changed: &PathSet,
        removed: &PathSet,
    ) {
        for entry in &mut self.entries {
            if keeper.is_some_and(|keeper| entry.is(keeper)) {
                continue;
            }
            let set = entry.set();
            if set.intersects(changed) || set.intersects(removed) {
                entry.replace(set.difference(changed).difference(removed));
            }
        }
    }

    /// Adds fields to a manager's set and updates its time.
    pub(crate) fn extend(&mut self, who: &FieldManager, mut fields: PathSet, now: &str) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.is(who)) {
            fields.absorb(entry.set());
            entry.replace(fields);
            entry.time = Some(now.to_owned());
            return;
        }
        self.entries.push(ManagerEntry {
            who: who.clone(),
            time: Some(now.to_owned()),
            json: Value::Object(Map::new()),
            set: Some(fields),
            new: true,
        });
    }

    /// Removes the entries of versions that are no longer served.
    pub(crate) fn drop_other_versions(&mut self, api_version: &str) {
        self.entries
            .retain(|entry| entry.who.api_version == api_version);
    }

    pub(crate) fn drop_empty(&mut self) {
        self.entries.retain(|entry| match &entry.set {
            Some(set) => !set.is_empty(),
            None => entry.json.as_object().is_some_and(|map| !map.is_empty()),
        });
    }

    pub(crate) fn changed(&self, who: &FieldManager) -> bool {
        self.entries.iter().any(|e| e.is(who) && e.changed())
    }

    pub(crate) fn touch(&mut self, who: &FieldManager, now: &str) {
        for entry in self.entries.iter_mut().filter(|entry| entry.is(who)) {
            entry.time = Some(now.to_owned());
        }
    }

    /// Merges the oldest Update entries of a version while there are too many.
    pub(crate) fn cap(&mut self) {
        let updates = |entries: &[ManagerEntry]| {
            entries
                .iter()
                .filter(|e| e.who.operation == ManagerOperation::Update)
                .count()
        };
        let mut count = updates(&self.entries);
        if count <= MOST_UPDATERS {
            return;
        }
        let (mut updaters, mut kept): (Vec<ManagerEntry>, Vec<ManagerEntry>) =
            std::mem::take(&mut self.entries)
                .into_iter()
                .partition(|e| e.who.operation == ManagerOperation::Update);
        updaters.sort_by(|a, b| (&a.time, &a.who.name).cmp(&(&b.time, &b.who.name)));
        // The first entry of a version waits here until there is a second one to merge it with.
        let mut folded: Vec<ManagerEntry> = Vec::new();
        for entry in updaters {
            let bucket = folded
                .iter_mut()
                .find(|e| e.who.api_version == entry.who.api_version);
            match bucket {
                _ if count <= MOST_UPDATERS => kept.push(entry),
                Some(bucket) => {
                    let union = bucket.set().union(&entry.set());
                    bucket.replace(union);
                    bucket.who.name = ANCIENT.to_owned();
                    bucket.who.subresource = None;
                    bucket.time = entry.time;
                    count -= 1;
                }
                None => folded.push(entry),
            }
        }
        kept.extend(folded);
        self.entries = kept;
    }

    /// The managedFields list, in kube-apiserver's order.
    pub(crate) fn encode(mut self) -> Value {
        self.entries.sort_by(|a, b| {
            let key = |e: &ManagerEntry| {
                (
                    e.who.operation,
                    e.time.clone(),
                    e.who.name.clone(),
                    e.who.api_version.clone(),
                    e.who.subresource.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        self.entries.into_iter().map(encode_entry).collect()
    }
}

fn encode_entry(entry: ManagerEntry) -> Value {
    let mut map = Map::new();
    let mut put = |name: &str, value: Value| {
        map.insert(name.to_owned(), value);
    };
    put("apiVersion", entry.who.api_version.into());
    put("fieldsType", "FieldsV1".into());
    put("fieldsV1", entry.set.map_or(entry.json, |set| set.print()));
    put("manager", entry.who.name.into());
    let operation = match entry.who.operation {
        ManagerOperation::Apply => "Apply",
        ManagerOperation::Update => "Update",
    };
    put("operation", operation.into());
    if let Some(subresource) = entry.who.subresource {
        put("subresource", subresource.into());
    }
    if let Some(time) = entry.time {
        put("time", time.into());
    }
    Value::Object(map)
}

/// Whether a fieldsV1 object parses, without building the set.
fn check(fields: &Value) -> Result<(), FieldsError> {
    let Value::Object(map) = fields else {
        return Err(FieldsError::NotAnObject);
    };
    for (key, below) in map {
        if key == "." {
            continue;
        }
        // Field names need no parsing.
        if !key.starts_with("f:") {
            Element::parse(key)?;
        }
        if below.is_object() {
            check(below)?;
        }
    }
    Ok(())
}

/// A manager as conflicts name it.
fn shown(who: &FieldManager) -> String {
    let mut text = Value::from(who.name.as_str()).to_string();
    if let Some(subresource) = &who.subresource {
        text.push_str(&format!(
            " with subresource {}",
            Value::from(subresource.as_str())
        ));
    }
    if who.operation == ManagerOperation::Update {
        text.push_str(&format!(" using {}", who.api_version));
    }
    text
}
