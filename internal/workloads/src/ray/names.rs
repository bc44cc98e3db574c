//! The names that KubeRay gives to a cluster's objects, and its labels. Source: KubeRay 1.7.

use resources::names;

use super::plan::{ParsedRayCluster, WorkerGroup};
use crate::pod_names;

/// The API version of owners.
pub(crate) const API_VERSION: &str = "ray.io/v1";
/// The kind of owners.
pub(crate) const KIND: &str = "RayCluster";

/// Label: the cluster's name.
pub(crate) const CLUSTER: &str = names::RAY_CLUSTER;
/// Label: [`HEAD`] or [`WORKER`].
pub(crate) const NODE_TYPE: &str = names::RAY_NODE_TYPE;
/// Label: the group's name.
pub(crate) const GROUP: &str = names::RAY_GROUP;
/// Label: `yes` on every pod of Ray.
pub(crate) const IS_RAY_NODE: &str = "ray.io/is-ray-node";
/// Label: the cluster's name and the node type.
pub(crate) const IDENTIFIER: &str = "ray.io/identifier";
/// Label on a worker: the replica's number in its group.
pub(crate) const REPLICA_INDEX: &str = names::RAY_REPLICA_INDEX;
/// Label on a worker of a replica of several pods: the replica's name.
pub(crate) const REPLICA_NAME: &str = "ray.io/worker-group-replica-name";
/// Label on a worker of a replica of several pods: its number in the replica.
pub(crate) const HOST_INDEX: &str = "ray.io/replica-host-index";
/// Labels that KubeRay sets on all its pods and services.
pub(crate) const COMMON: [(&str, &str); 2] = [
    ("app.kubernetes.io/name", "kuberay"),
    ("app.kubernetes.io/created-by", "kuberay-operator"),
];
/// Annotation on a cluster or template: `true` keeps the container's own command as it is.
pub(crate) const OVERWRITE_COMMAND: &str = "ray.io/overwrite-container-cmd";

/// The head's node type.
pub(crate) const HEAD: &str = "head";
/// A worker's node type.
pub(crate) const WORKER: &str = "worker";
/// The head's group.
pub(crate) const HEAD_GROUP: &str = "headgroup";

/// The domain of services' full names.
const DOMAIN: &str = "svc.cluster.local";

/// The head's pod.
pub(crate) fn head_pod(cluster: &str) -> String {
    format!("{cluster}-head")
}

/// The head's service.
pub(crate) fn head_service(cluster: &str) -> String {
    format!("{cluster}-head-svc")
}

/// The full name of the head's service.
pub(crate) fn head_host(cluster: &ParsedRayCluster<'_>) -> String {
    let namespace = cluster.meta.namespace.as_deref().unwrap_or_default();
    format!("{}.{namespace}.{DOMAIN}", head_service(cluster.name()))
}

/// The pod of one host of a replica. A name that is too long for a host name is cut, and ends with a suffix that
/// follows from the cluster, the group and the numbers.
pub(crate) fn worker_pod(
    cluster: &ParsedRayCluster<'_>,
    group: &WorkerGroup<'_>,
    replica: u32,
    host: u32,
) -> String {
    let prefix = format!("{}-{}", cluster.name(), group.group.name);
    let name = match group.hosts {
        1 => format!("{prefix}-worker-{replica}"),
        _ => format!("{prefix}-worker-{replica}-{host}"),
    };
    if name.len() <= pod_names::NAME_MAX {
        return name;
    }
    let uid = cluster.meta.uid.as_deref().unwrap_or_default();
    let seed = format!("{uid}/{}", group.group.name);
    let number = replica.wrapping_mul(group.hosts).wrapping_add(host);
    pod_names::numbered(&prefix, "-worker", &seed, number)
}

/// The name of a replica of several pods.
pub(crate) fn replica(group: &WorkerGroup<'_>, replica: u32) -> String {
    format!("{}-{replica}", group.group.name)
}
