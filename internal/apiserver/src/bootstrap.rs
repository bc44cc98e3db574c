//! Owns the objects that every server has: namespaces, the default queue, the system's priority
//! classes, the runtimes of TrainJobs, roles and bindings, and the signing key of service accounts' tokens. Creates missing
//! objects; of existing ones it completes only roles and bindings.

use resources::access::UserRole;
use resources::admission::DEFAULT_ACCOUNT;
use resources::names;
use resources::rbac::{GROUP, defaults};
use resources::registry::{self, Kind};
use resources::times;
use resources::trainer;
use serde_json::{Value, json};
use store::Purpose;
use uuid::Uuid;

use crate::core_kinds::{is_namespace, kind_of};
use crate::object::{self, Encoded, meta_mut, meta_text};
use crate::server::{ApiError, ApiServer};
use crate::{aggregation, token_key};

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

/// The description of a namespace's ConfigMap with the authority's certificate.
const ROOT_CA_DESCRIPTION: &str =
    "The certificate of the authority of this server's API. Pods verify the API with it.";

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
        .chain(runtimes())
        .collect()
}

/// The runtimes of TrainJobs, by the names that Kubeflow Trainer gives them.
fn runtimes() -> impl Iterator<Item = Value> {
    trainer::FIRST_RUNTIMES.into_iter().map(|(name, framework)| {
        json!({
            "apiVersion": format!("{}/v1alpha1", trainer::GROUP), "kind": trainer::CLUSTER_RUNTIME,
            "metadata": {"name": name, "labels": {trainer::FRAMEWORK: framework}},
            "spec": {
                "mlPolicy": {"numNodes": 1, framework: {}},
                "template": {"spec": {"replicatedJobs": [{
                    "name": trainer::NODE,
                    "template": {
                        "metadata": {"labels": {trainer::ANCESTOR: trainer::TRAINER_STEP}},
                        "spec": {"template": {"spec": {"containers": [{"name": trainer::NODE}]}}},
                    },
                }]}},
            },
        })
    })
}

/// The names of the existing namespaces, and of those that this module creates.
fn namespaces(server: &ApiServer) -> Vec<String> {
    let kind = kind_of("", "Namespace");
    let page = server.0.store.list(&kind.prefix(None), None, usize::MAX);
    let name = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
    let mut all: Vec<String> = page.entries.iter().map(|entry| name(&entry.key)).collect();
    for first in names::FIRST_NAMESPACES {
        if !all.iter().any(|one| one == first) {
            all.push(first.to_owned());
        }
    }
    all
}

/// The RoleBindings of every namespace, if no server with roles has run before: from then on a
/// namespace gets its RoleBindings at creation, and a deleted one is not created again.
fn first_role_bindings(server: &ApiServer) -> Vec<Value> {
    let role = kind_of(GROUP, "ClusterRole").key(None, UserRole::Member.group());
    if server.0.store.get(&role).is_some() {
        return Vec::new();
    }
    namespaces(server)
        .iter()
        .flat_map(|namespace| defaults::role_bindings(namespace))
        .collect()
}

pub(crate) fn write(server: &ApiServer) -> Result<(), ApiError> {
    let now = times::seconds(server.now());
    let store = &server.0.store;
    let mut wanted = first_objects();
    wanted.extend(defaults::cluster_roles());
    wanted.extend(defaults::cluster_role_bindings());
    wanted.extend(first_role_bindings(server));
    for namespace in namespaces(server) {
        wanted.extend(access_objects(server, &namespace));
    }
    if store.get(&token_key::key()).is_none() {
        let drawn = token_key::draw();
        wanted.push(drawn.map_err(|error| ApiError::FirstObjects(error.to_string()))?);
    }
    let mut writes = Vec::new();
    for mut object in wanted {
        let Some(kind) = registry::of(&object) else {
            continue;
        };
        let namespace = Some(meta_text(&object, "namespace")).filter(|one| !one.is_empty());
        let key = kind.key(namespace, object::name(&object));
        match store.get(&key) {
            None => complete(server, kind, &mut object, &now),
            Some(entry) if kind.group == GROUP => {
                // A damaged record stays for an administrator to examine.
                let live = object::parse(&entry).ok();
                match live.and_then(|live| defaults::completed(&live, &object)) {
                    Some(completed) => object = completed,
                    None => continue,
                }
            }
            Some(_) => continue,
        }
        writes.push((key, Encoded::new(kind, &object)));
    }
    if writes.is_empty() {
        return Ok(());
    }
    // The objects are few and small: a server starts on a full disk too, so that an administrator
    // can free space. No other writer exists before the server is open.
    let written = store.commit_for(Purpose::MakeRoom, move |view| {
        for (key, encoded) in writes {
            encoded.put(view, key);
        }
        aggregation::settle(view, kind_of(GROUP, "ClusterRole"));
        Ok::<(), std::convert::Infallible>(())
    });
    // The store's own thread does the work, so that blocking here delays no task that it depends
    // on.
    futures::executor::block_on(written).map_err(|error| ApiError::FirstObjects(error.to_string()))
}

/// The objects of every namespace with which its pods reach the API: the default service account, and the certificate
/// of the server's authority.
fn access_objects(server: &ApiServer, namespace: &str) -> Vec<Value> {
    let Some(root_ca) = &server.0.config.root_ca else {
        return Vec::new();
    };
    vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": DEFAULT_ACCOUNT, "namespace": namespace},
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": names::ROOT_CA_CONFIG_MAP, "namespace": namespace,
                "annotations": {"kubernetes.io/description": ROOT_CA_DESCRIPTION},
            },
            "data": {"ca.crt": root_ca},
        }),
    ]
}

/// The objects written together with a new object: the RoleBindings of a namespace, and those with which its pods reach
/// the API.
pub(crate) fn companions(server: &ApiServer, kind: &Kind, name: &str) -> Vec<(String, Encoded)> {
    if !is_namespace(kind) {
        return Vec::new();
    }
    let now = times::seconds(server.now());
    let one = |mut object: Value| {
        let kind = registry::of(&object)?;
        complete(server, kind, &mut object, &now);
        let key = kind.key(Some(name), object::name(&object));
        Some((key, Encoded::new(kind, &object)))
    };
    defaults::role_bindings(name)
        .into_iter()
        .chain(access_objects(server, name))
        .filter_map(one)
        .collect()
}

fn complete(server: &ApiServer, kind: &Kind, object: &mut Value, now: &str) {
    let meta = meta_mut(object);
    meta.insert("uid".into(), Uuid::new_v4().to_string().into());
    meta.insert("creationTimestamp".into(), now.into());
    if kind.generation {
        meta.insert("generation".into(), 1.into());
    }
    if kind.is_custom() {
        server.0.schemas.default(kind.schema, object);
    }
    (kind.default)(object);
    (kind.prepare)(object, None);
}
