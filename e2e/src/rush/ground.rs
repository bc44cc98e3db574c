//! The objects of a rush: nodes, PodGroups and pods, as requests.

use serde_json::{Value, json};

use super::Rush;
use crate::Write;

/// The requests in stages: a stage ends before the next begins.
pub(super) fn stages(rush: &Rush, scheduler: &str) -> Vec<Vec<Write>> {
    let nodes = || (0..rush.nodes).map(node_name);
    let groups = rush.shape.groups();
    let pods = rush.shape.members();
    vec![
        nodes()
            .map(|name| Write::create("/api/v1/nodes", &node(&name, rush.gpus)))
            .collect(),
        // Admission marks a new node as not ready, and no controller runs here that would remove the mark.
        nodes()
            .map(|name| {
                let path = format!("/api/v1/nodes/{name}");
                Write::merge(path, &json!({"spec": {"taints": null}}))
            })
            .collect(),
        groups
            .map(|(name, size)| {
                let path = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups";
                Write::create(path, &group(&name, size))
            })
            .collect(),
        pods.map(|(group, name)| {
            let path = "/api/v1/namespaces/default/pods";
            Write::create(path, &pod(&name, group.as_deref(), scheduler))
        })
        .collect(),
    ]
}

pub(super) fn node_name(i: usize) -> String {
    format!("n{i}")
}

fn node(name: &str, gpus: usize) -> Value {
    let room =
        json!({"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Described",
                "message": "no kubelet stands behind this node", "lastHeartbeatTime": null}],
        },
    })
}

fn group(name: &str, size: usize) -> Value {
    json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": size},
    })
}

fn pod(name: &str, group: Option<&str>, scheduler: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "rush"}},
        "spec": {
            "schedulerName": scheduler, "restartPolicy": "Never",
            "containers": [{
                "name": "c", "image": "registry.example/train:1", "command": ["python3", "train.py"],
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"nvidia.com/gpu": 1},
                },
            }],
        },
    });
    if let Some(group) = group {
        pod["metadata"]["annotations"] = json!({"scheduling.k8s.io/group-name": group});
    }
    pod
}
