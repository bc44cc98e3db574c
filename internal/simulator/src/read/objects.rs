//! Manifests: documents and Lists of ordinary objects, as `kubectl get -o yaml` prints them. Each
//! is read as its kind, or refused with its place. `work` assembles them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::{PodGroup, PyTorchJob, Queue};
use resources::mapping;
use resources::quantity::Quantity;
use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned};
use serde_json::Value;

use super::{InputFile, check, hypernodes, words, work};
use crate::error::{InputLocation, SimulatorError};
use crate::scenario::Scenario;
use crate::settings;

/// The API version of Muster's Queues.
const QUEUE_VERSION: &str = "scheduling.volcano.sh/v1beta1";
/// The kinds that matter to a scheduler, and their API versions.
const KINDS: [(&str, &str); 16] = [
    ("Node", "v1"),
    ("Queue", QUEUE_VERSION),
    ("PriorityClass", "scheduling.k8s.io/v1"),
    ("ResourceQuota", "v1"),
    ("PodDisruptionBudget", "policy/v1"),
    ("PersistentVolumeClaim", "v1"),
    ("PersistentVolume", "v1"),
    ("StorageClass", "storage.k8s.io/v1"),
    ("CSINode", "storage.k8s.io/v1"),
    ("CSIDriver", "storage.k8s.io/v1"),
    ("CSIStorageCapacity", "storage.k8s.io/v1"),
    ("VolumeAttachment", "storage.k8s.io/v1"),
    ("PodGroup", "scheduling.volcano.sh/v1beta1"),
    ("Pod", "v1"),
    ("PyTorchJob", "kubeflow.org/v1"),
    ("Job", "batch/v1"),
];

/// Namespace and name.
pub(super) type ManifestKey = (String, String);

/// Everything that the documents hold, by kind.
#[derive(Default)]
pub(super) struct ManifestObjects {
    pub(super) groups: BTreeMap<ManifestKey, (PodGroup, InputLocation)>,
    pub(super) pods: Vec<(Pod, InputLocation)>,
    pub(super) training: Vec<(PyTorchJob, InputLocation)>,
    pub(super) batch: Vec<(BatchJob, InputLocation)>,
    ignored: BTreeMap<String, usize>,
    /// Why gangs would wait for ever.
    hopeless: Vec<String>,
    /// Volcano's network domains.
    hypernodes: Vec<(Value, InputLocation)>,
    /// Queues of other schedulers.
    foreign: Vec<(Value, InputLocation)>,
    /// Every object by kind, namespace and name, with its place in the input.
    seen: BTreeMap<(String, ManifestKey), InputLocation>,
    /// Unknown annotations with Muster's prefix, and the first object that has each.
    unknown: BTreeMap<String, String>,
    /// Fields that a kind does not define, and the first object that has each.
    lost: BTreeMap<(String, String), String>,
}

/// Reads all documents into the scenario. Returns second 0, if the objects define it.
pub(super) fn read(
    sources: &[&InputFile<'_>],
    start: Option<Timestamp>,
    scenario: &mut Scenario,
) -> Result<Option<Timestamp>, SimulatorError> {
    let mut found = ManifestObjects::default();
    for source in sources {
        for (at, document) in serde_norway::Deserializer::from_str(source.text).enumerate() {
            let place = InputLocation::document(source.file, at + 1);
            let value = Value::deserialize(document).map_err(|error| SimulatorError::Form {
                place: place.clone(),
                what: format!("it is not YAML: {error}"),
                wanted: "write YAML manifests, or name the format of a trace with --format"
                    .to_owned(),
            })?;
            take(value, &place, scenario, &mut found)?;
        }
    }
    for (kind, count) in &found.ignored {
        scenario.notes.push(format!(
            "the simulator leaves out {count} objects of kind {kind}: a scheduler does not read them"
        ));
    }
    add_foreign(&mut found, scenario)?;
    scenario.notes.append(&mut found.hopeless);
    let groups = found.groups.values_mut().map(|(group, _)| group);
    hypernodes::apply(&found.hypernodes, groups, scenario)?;
    for (name, whose) in &found.unknown {
        scenario.notes.push(format!(
            "annotation {name} of {whose} has no effect; check its spelling"
        ));
    }
    for ((kind, field), whose) in &found.lost {
        scenario.notes.push(format!(
            "field {field} of {kind} {whose} has no effect; check its spelling"
        ));
    }
    work::assemble(found, start, scenario)
}

/// Maps queues of other schedulers to Muster's, and notes the fields that have no equivalent.
fn add_foreign(found: &mut ManifestObjects, scenario: &mut Scenario) -> Result<(), SimulatorError> {
    let (objects, places): (Vec<Value>, Vec<InputLocation>) =
        std::mem::take(&mut found.foreign).into_iter().unzip();
    let mapped = mapping::queues(&objects).map_err(|error| {
        let mut all = objects.iter().zip(&places);
        let own = all.find(|(object, _)| mapping::name_of(object) == error.object);
        let first = InputLocation::document("queues", 1);
        let place = own.map_or(first, |(_, place)| place.clone());
        let field = format!("{}, {}", error.object, error.error.field());
        SimulatorError::value(place, field, error.error.value(), error.error.valid())
    })?;
    if !mapped.levels.is_empty() && scenario.settings.topology.is_none() {
        scenario.settings.topology = Some(mapped.levels);
    }
    scenario.queues.extend(mapped.queues);
    let words = mapped.warnings.iter().map(ToString::to_string);
    scenario.notes.extend(words);
    Ok(())
}

fn take(
    mut value: Value,
    place: &InputLocation,
    scenario: &mut Scenario,
    found: &mut ManifestObjects,
) -> Result<(), SimulatorError> {
    if value.is_null() {
        return Ok(());
    }
    if settings::takes(&value) {
        return set(&value, place, scenario, found);
    }
    let own = value["kind"] == "Queue" && value["apiVersion"] == QUEUE_VERSION;
    if mapping::takes(&value) && !own {
        let namespace = value["metadata"]["namespace"].as_str().unwrap_or_default();
        let named = value["metadata"]["name"].as_str().unwrap_or_default();
        let id = (
            mapping::name_of(&value),
            (namespace.to_owned(), String::new()),
        );
        once(id, named, place, found)?;
        found.foreign.push((value, place.clone()));
        return Ok(());
    }
    let Some(kind) = value["kind"].as_str().map(str::to_owned) else {
        return Err(SimulatorError::Form {
            place: place.clone(),
            what: "kind: Required value".to_owned(),
            wanted: "write the kind of each manifest, or name the format of a trace with --format"
                .to_owned(),
        });
    };
    if kind.ends_with("List")
        && let Some(Value::Array(items)) = value.get_mut("items").map(Value::take)
    {
        let one = kind.trim_end_matches("List");
        for (at, mut item) in items.into_iter().enumerate() {
            // `kubectl get --raw` omits the kind of items.
            if item["kind"].is_null() && !one.is_empty() {
                item["kind"] = Value::from(one);
                item["apiVersion"] = value["apiVersion"].clone();
            }
            let place = InputLocation {
                item: u32::try_from(at + 1).ok().and_then(NonZeroU32::new),
                ..place.clone()
            };
            take(item, &place, scenario, found)?;
        }
        return Ok(());
    }
    if kind == hypernodes::KIND {
        found.hypernodes.push((value, place.clone()));
        return Ok(());
    }
    quantities(&value, "", place)?;
    if value["apiVersion"].is_null() {
        let known = KINDS.iter().find(|(name, _)| *name == kind);
        value["apiVersion"] = Value::from(known.map_or("v1", |(_, version)| *version));
    }
    if KINDS.iter().any(|(name, _)| *name == kind) {
        note(&kind, &value, place, found)?;
    }
    match kind.as_str() {
        "Node" => scenario.nodes.push(typed::<Node>(value, place, found)?),
        "Queue" => {
            let group = value["apiVersion"].as_str().unwrap_or_default();
            if group != QUEUE_VERSION {
                let field = "apiVersion of a Queue";
                return Err(SimulatorError::value(
                    place.clone(),
                    field,
                    group,
                    QUEUE_VERSION,
                ));
            }
            let mut queue = typed::<Queue>(with_spec(value.clone()), place, found)?;
            // Namespaces are no input of a simulation: its work counts as admitted.
            queue.spec.namespace_selector = None;
            scenario.queues.push(queue);
            // The kind is Muster's own, so only fields without effect are noted.
            let mapped = mapping::queues(&[value]).unwrap_or_default();
            let words = mapped.warnings.iter().map(ToString::to_string);
            scenario.notes.extend(words);
        }
        "PriorityClass" => scenario
            .priority_classes
            .push(typed::<PriorityClass>(value, place, found)?),
        "PodDisruptionBudget" => scenario.budgets.push(typed::<PodDisruptionBudget>(
            namespaced(value),
            place,
            found,
        )?),
        "PersistentVolumeClaim" => {
            let claim = typed::<PersistentVolumeClaim>(namespaced(value), place, found)?;
            scenario.claims.push(claim);
        }
        "PersistentVolume" => scenario
            .volumes
            .push(typed::<PersistentVolume>(value, place, found)?),
        "StorageClass" => scenario
            .storage_classes
            .push(typed::<StorageClass>(value, place, found)?),
        "CSINode" => scenario
            .storage
            .nodes
            .push(typed::<CSINode>(value, place, found)?),
        "CSIDriver" => scenario
            .storage
            .drivers
            .push(typed::<CSIDriver>(value, place, found)?),
        "CSIStorageCapacity" => {
            let space = typed::<CSIStorageCapacity>(namespaced(value), place, found)?;
            scenario.storage.capacities.push(space);
        }
        "VolumeAttachment" => scenario
            .storage
            .attachments
            .push(typed::<VolumeAttachment>(value, place, found)?),
        "ResourceQuota" => scenario
            .quotas
            .push(typed::<ResourceQuota>(value, place, found)?),
        "PodGroup" => {
            let group = typed::<PodGroup>(with_spec(value), place, found)?;
            found
                .groups
                .insert(key(&group.metadata), (group, place.clone()));
        }
        "Pod" => {
            let read = typed::<Pod>(value, place, found)?;
            found.pods.push((read, place.clone()));
        }
        "PyTorchJob" => {
            let read = typed::<PyTorchJob>(value, place, found)?;
            found.training.push((read, place.clone()));
        }
        "Job" => {
            let read = typed::<BatchJob>(value, place, found)?;
            found.batch.push((read, place.clone()));
        }
        _ => *found.ignored.entry(kind).or_insert(0) += 1,
    }
    Ok(())
}

/// Applies the scheduler's settings, which may be given once.
fn set(
    value: &Value,
    place: &InputLocation,
    scenario: &mut Scenario,
    found: &mut ManifestObjects,
) -> Result<(), SimulatorError> {
    let id = (settings::KIND.to_owned(), ManifestKey::default());
    once(id, "", place, found)?;
    let parse = |text: &str| serde_norway::from_str(text).map_err(settings::ParseError::from);
    let kind = value["kind"].as_str().unwrap_or("volcano-scheduler.conf");
    let read = settings::read(value, &parse).map_err(|error| {
        let field = format!("{kind}, {}", error.field());
        SimulatorError::value(place.clone(), field, error.value(), error.valid())
    })?;
    let mut settings = read.settings;
    // A described node's GPUs keep their partitioning: no agent runs that would change it.
    if settings.mig.take().flatten().is_some() {
        let note =
            "spec.mig has no effect in a simulation: nodes keep the MIG slices that they have";
        scenario.notes.push(note.to_owned());
    }
    let before = std::mem::take(&mut scenario.settings);
    scenario.settings = before.or(settings);
    let warnings = read.warnings.iter().map(ToString::to_string);
    scenario.notes.extend(warnings);
    Ok(())
}

/// Registers an object: each may come once, and its Muster annotations must be readable.
fn note(
    kind: &str,
    value: &Value,
    place: &InputLocation,
    found: &mut ManifestObjects,
) -> Result<(), SimulatorError> {
    let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default();
    let name = text("name").to_owned();
    const CLUSTER: [&str; 8] = [
        "Node",
        "Queue",
        "PriorityClass",
        "PersistentVolume",
        "StorageClass",
        "CSINode",
        "CSIDriver",
        "VolumeAttachment",
    ];
    let namespaced = !CLUSTER.contains(&kind);
    let namespace = match text("namespace") {
        "" if namespaced => "default".to_owned(),
        given if namespaced => given.to_owned(),
        _ => String::new(),
    };
    let doubts = check::annotations(kind, value, place)?;
    for unknown in doubts.unknown {
        let whose = format!("{kind} {name}");
        found.unknown.entry(unknown).or_insert(whose);
    }
    found.hopeless.extend(doubts.hopeless);
    let id = (kind.to_owned(), (namespace, name.clone()));
    once(id, &name, place, found)
}

fn once(
    id: (String, ManifestKey),
    name: &str,
    place: &InputLocation,
    found: &mut ManifestObjects,
) -> Result<(), SimulatorError> {
    let kind = id.0.clone();
    match found.seen.insert(id, place.clone()) {
        None => Ok(()),
        Some(first) => {
            let valid = format!("a name that no other {kind} has; {first} has this one");
            Err(SimulatorError::value(
                place.clone(),
                "metadata.name",
                name,
                valid,
            ))
        }
    }
}

/// The object with the namespace that the API would have set.
fn namespaced(mut value: Value) -> Value {
    if value["metadata"]["namespace"].is_null() {
        value["metadata"]["namespace"] = Value::from("default");
    }
    value
}

fn with_spec(mut value: Value) -> Value {
    if value["spec"].is_null() {
        value["spec"] = Value::Object(serde_json::Map::new());
    }
    value
}

fn typed<T: DeserializeOwned + Serialize>(
    value: Value,
    place: &InputLocation,
    found: &mut ManifestObjects,
) -> Result<T, SimulatorError> {
    let name = value["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if name.is_empty() {
        let valid = "a name for each object";
        return Err(SimulatorError::value(
            place.clone(),
            "metadata.name",
            name,
            valid,
        ));
    }
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(odd) = words::odd(&kind, &value) {
        let field = format!("{} of {kind} {name}", odd.field());
        return Err(SimulatorError::value(
            place.clone(),
            field,
            odd.value(),
            odd.valid(),
        ));
    }
    let read = T::deserialize(&value).map_err(|error| SimulatorError::Form {
        place: place.clone(),
        what: format!("{kind} {name}: {error}"),
        wanted: "write the field as the kind's schema has it".to_owned(),
    })?;
    let kept = serde_json::to_value(&read).unwrap_or_default();
    for field in words::lost(&value, &kept) {
        let entry = found.lost.entry((kind.clone(), field));
        entry.or_insert_with(|| name.clone());
    }
    Ok(read)
}

/// Refuses quantities that can't be read; later code would count them as zero.
fn quantities(value: &Value, path: &str, place: &InputLocation) -> Result<(), SimulatorError> {
    const LISTS: [&str; 10] = [
        "requests",
        "limits",
        "allocatable",
        "capability",
        "deserved",
        "guaranteed",
        "resource",
        "minResources",
        "hard",
        "overhead",
    ];
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                match inner {
                    Value::Object(list) if LISTS.contains(&name.as_str()) => {
                        for (resource, amount) in list {
                            let text = match amount {
                                Value::String(text) => text.clone(),
                                Value::Number(number) => number.to_string(),
                                other => other.to_string(),
                            };
                            let read = text.parse::<Quantity>();
                            if read.is_err() || read.is_ok_and(|read| read < Quantity::ZERO) {
                                let field = format!("{path}.{resource}");
                                let valid = "a quantity as Kubernetes does: 0, 8, 500m, 64Gi";
                                return Err(SimulatorError::value(
                                    place.clone(),
                                    field,
                                    text,
                                    valid,
                                ));
                            }
                        }
                    }
                    inner => quantities(inner, &path, place)?,
                }
            }
        }
        Value::Array(items) => {
            for (at, inner) in items.iter().enumerate() {
                quantities(inner, &format!("{path}[{at}]"), place)?;
            }
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn key(meta: &ObjectMeta) -> ManifestKey {
    let namespace = meta
        .namespace
        .clone()
        .unwrap_or_else(|| "default".to_owned());
    (namespace, meta.name.clone().unwrap_or_default())
}
