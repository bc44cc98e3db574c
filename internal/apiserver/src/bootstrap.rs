//! Owns the objects that exist from the start: namespaces, the default queue, the system's priority classes.
//! Writes those that are missing and touches none that is there.

use resources::names;
use resources::registry::{self, Kind};
use resources::times;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::object::{self, Encoded, meta_mut};
use crate::server::{ApiError, ApiServer};

const CLASSES: [(&str, i32, &str); 2] = [
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

fn first_objects() -> Vec<Value> {
    let namespaces = names::FIRST_NAMESPACES.map(|name| {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
        })
    });
    let classes = CLASSES.map(|(name, value, description)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description,
        })
    });
    let queue = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": names::DEFAULT_QUEUE}, "spec": {"weight": 1},
    });
    namespaces
        .into_iter()
        .chain(classes)
        .chain([queue])
        .collect()
}

pub(crate) fn write(server: &ApiServer) -> Result<(), ApiError> {
    let now = times::seconds(server.now());
    let mut missing = Vec::new();
    for mut object in first_objects() {
        let Some(kind) = registry::of(&object) else {
            continue;
        };
        let key = kind.key(None, object::name(&object));
        if server.0.store.get(&key).is_none() {
            complete(server, kind, &mut object, &now);
            missing.push((key, Encoded::new(kind, &object)));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let written = server.0.store.commit(move |view| {
        for (key, encoded) in missing {
            if view.get(&key).is_none() {
                encoded.put(view, key);
            }
        }
        Ok::<(), std::convert::Infallible>(())
    });
    // The store's own thread does the work, so that waiting here holds nobody up who could help.
    futures::executor::block_on(written).map_err(|error| ApiError::FirstObjects(error.to_string()))
}

fn complete(server: &ApiServer, kind: &Kind, object: &mut Value, now: &str) {
    let meta = meta_mut(object);
    meta.insert("uid".into(), Uuid::new_v4().to_string().into());
    meta.insert("creationTimestamp".into(), now.into());
    if kind.generation {
        meta.insert("generation".into(), 1.into());
    }
    if !kind.strategic {
        server.0.schemas.default(kind.schema, object);
    }
    (kind.default)(object);
    (kind.prepare)(object, None);
}
