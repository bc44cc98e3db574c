//! `TF_CONFIG`: the addresses of all replicas, and which of them this one is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use resources::training::ReplicaType;
use serde::Serialize;

use super::variable;
use crate::training::plan::ParsedTrainingJob;
use crate::training::rendezvous::Ports;

/// `TF_CONFIG` with every replica.
#[derive(Serialize)]
struct Config {
    cluster: BTreeMap<&'static str, Vec<String>>,
    task: Task,
    environment: &'static str,
}

/// `TF_CONFIG` of a job whose workers come and go: a worker sees itself and the parameter servers, and a parameter server
/// only itself.
#[derive(Serialize)]
struct SparseConfig {
    cluster: SparseCluster,
    task: Task,
}

#[derive(Default, Serialize)]
struct SparseCluster {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    worker: BTreeMap<u32, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ps: Vec<String>,
}

#[derive(Serialize)]
struct Task {
    #[serde(rename = "type")]
    role: &'static str,
    index: u32,
}

/// The variables of one replica. A job of one replica needs no addresses.
pub(super) fn variables(
    plan: &ParsedTrainingJob<'_>,
    dynamic: bool,
    role: ReplicaType,
    index: u32,
    ports: &Ports,
) -> Vec<EnvVar> {
    let unbuffered = variable("PYTHONUNBUFFERED", "1");
    if plan.total() <= 1 {
        return vec![unbuffered];
    }
    let address = |role: ReplicaType, index: u32| {
        let namespace = plan.meta.namespace.as_deref().unwrap_or_default();
        let host = plan.pod_name(role, index);
        format!("{host}.{namespace}.svc:{}", ports.of(plan, role, index))
    };
    let all = |role: ReplicaType| -> Vec<String> {
        let count = plan.replicas_of(role).map_or(0, |replicas| replicas.count);
        (0..count).map(|index| address(role, index)).collect()
    };
    let task = Task {
        role: role.lower(),
        index,
    };
    let text = if dynamic {
        let mut cluster = SparseCluster::default();
        match role {
            ReplicaType::Ps => cluster.ps.push(address(role, index)),
            ReplicaType::Worker => {
                cluster.worker.insert(index, address(role, index));
                cluster.ps = all(ReplicaType::Ps);
            }
            _ => cluster.ps = all(ReplicaType::Ps),
        }
        serde_json::to_string(&SparseConfig { cluster, task })
    } else {
        let roles = plan.replicas.iter().map(|replicas| replicas.role);
        let config = Config {
            cluster: roles.map(|role| (role.lower(), all(role))).collect(),
            task,
            environment: "cloud",
        };
        serde_json::to_string(&config)
    };
    let text = text.expect("texts and numbers serialize");
    vec![unbuffered, variable("TF_CONFIG", text)]
}
