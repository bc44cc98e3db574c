//! Pods as they are created.

use serde_json::{Value, json};

use super::world::{World, template, with_group};
use crate::training::Network;

fn pod(world: &World, name: &str) -> Value {
    let mut pod = serde_json::to_value(&world.pods[name]).unwrap();
    pod["metadata"].as_object_mut().unwrap().remove("uid");
    pod
}

fn container(world: &World, name: &str) -> Value {
    pod(world, name)["spec"]["containers"][0].clone()
}

fn script(world: &World, name: &str) -> String {
    container(world, name)["args"][0]
        .as_str()
        .unwrap()
        .to_owned()
}

fn settled(spec: Value) -> World {
    let mut world = World::new(spec);
    world.settle(0);
    world
}

const HEAD_START: &str = "ray start --head --block --dashboard-agent-listen-port=14004 --dashboard-host=0.0.0.0 \
     --dashboard-port=14001 --max-worker-port=0 --metrics-export-port=14003 --min-worker-port=0 \
     --node-manager-port=14005 --num-cpus=2 --port=14000 --ray-client-server-port=14002";

#[test]
fn a_head_has_the_labels_the_variables_and_the_command_of_kuberay() {
    let mut spec = with_group(json!({"replicas": 1}));
    let request = json!({"resources": {"requests": {"cpu": "1500m"}}, "ports": [
        {"name": "gcs-server", "containerPort": 6379}, {"name": "extra", "containerPort": 9}]});
    spec["headGroupSpec"]["template"] = template(request);
    let world = settled(spec);
    let wanted = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "demo-head", "namespace": "team",
            "labels": {
                "app.kubernetes.io/created-by": "kuberay-operator",
                "app.kubernetes.io/name": "kuberay",
                "ray.io/cluster": "demo",
                "ray.io/group": "headgroup",
                "ray.io/identifier": "demo-head",
                "ray.io/is-ray-node": "yes",
                "ray.io/node-type": "head",
            },
            "annotations": {"scheduling.k8s.io/group-name": "demo", "volcano.sh/task-spec": "headgroup"},
            "ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "demo",
                "uid": "cluster-uid", "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "hostname": "demo-head",
            "schedulerName": "muster",
            "containers": [{
                "name": "ray",
                "command": ["/bin/bash", "-c", "--"],
                "args": [format!("ulimit -n 65536 2>/dev/null; exec {HEAD_START}")],
                "env": [
                    {"name": "RAY_CLUSTER_NAME", "value": "demo"},
                    {"name": "RAY_CLUSTER_NAMESPACE", "value": "team"},
                    {"name": "RAY_CLOUD_INSTANCE_ID", "value": "demo-head"},
                    {"name": "RAY_NODE_TYPE_NAME", "value": "headgroup"},
                    {"name": "KUBERAY_GEN_RAY_START_CMD", "value": HEAD_START},
                    {"name": "RAY_PORT", "value": "14000"},
                    {"name": "RAY_ADDRESS", "value": "127.0.0.1:14000"},
                    {"name": "RAY_USAGE_STATS_KUBERAY_IN_USE", "value": "1"},
                ],
                "ports": [
                    {"name": "gcs-server", "containerPort": 14000},
                    {"name": "extra", "containerPort": 9},
                    {"name": "dashboard", "containerPort": 14001},
                    {"name": "client", "containerPort": 14002},
                    {"name": "metrics", "containerPort": 14003},
                ],
                "readinessProbe": {
                    "exec": {"command": ["/bin/bash", "-c", "test -S /tmp/ray/session_latest/sockets/raylet"]},
                    "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 5,
                },
                "resources": {"requests": {"cpu": "1500m"}},
            }],
        },
    });
    assert_eq!(pod(&world, "demo-head"), wanted);
    let service = serde_json::to_value(&world.services["demo-head-svc"]).unwrap();
    let ports = service["spec"]["ports"].as_array().unwrap().iter();
    let ports: Vec<String> = ports
        .map(|port| format!("{}={}", port["name"].as_str().unwrap(), port["port"]))
        .collect();
    assert_eq!(
        ports,
        [
            "gcs-server=14000",
            "dashboard=14001",
            "client=14002",
            "metrics=14003",
            "serve=8000",
            "extra=9"
        ]
    );
    assert_eq!(service["spec"]["clusterIP"], "None");
    for (key, value) in service["spec"]["selector"].as_object().unwrap() {
        assert_eq!(&wanted["metadata"]["labels"][key], value);
    }
}

#[test]
fn a_worker_waits_for_the_head_and_joins_it() {
    let limits = json!({"resources": {"limits": {"cpu": 4, "memory": "1Gi", "nvidia.com/gpu": 2}}});
    let group = json!({"numOfHosts": 2, "replicas": 1, "template": template(limits),
        "rayStartParams": {"num-cpus": 1, "resources": "'{\"slots\": 2}'", "no-monitor": "true", "disable-usage-stats": "false"}});
    let world = settled(with_group(group));
    let worker = pod(&world, "demo-small-worker-0-1");
    let labels = &worker["metadata"]["labels"];
    for (key, value) in [
        ("ray.io/cluster", "demo"),
        ("ray.io/group", "small"),
        ("ray.io/identifier", "demo-worker"),
        ("ray.io/node-type", "worker"),
        ("ray.io/worker-group-replica-index", "0"),
        ("ray.io/worker-group-replica-name", "small-0"),
        ("ray.io/replica-host-index", "1"),
    ] {
        assert_eq!(labels[key], value, "{key}");
    }
    let start = "ray start --address=demo-head-svc.team.svc.cluster.local:14000 --block --dashboard-agent-listen-port=0 \
         --max-worker-port=0 --memory=1073741824 --min-worker-port=0 --no-monitor --num-cpus=1 --num-gpus=2 \
         --resources='{\"slots\": 2}'";
    assert_eq!(
        script(&world, "demo-small-worker-0-1"),
        format!("ulimit -n 65536 2>/dev/null; exec {start}")
    );
    let env = worker["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| {
        env.iter()
            .find(|one| one["name"] == name)
            .map(|one| one["value"].clone())
    };
    for (name, text) in [
        ("FQ_RAY_IP", "demo-head-svc.team.svc.cluster.local"),
        ("RAY_IP", "demo-head-svc"),
        ("RAY_ADDRESS", "demo-head-svc.team.svc.cluster.local:14000"),
        ("RAY_PORT", "14000"),
        ("RAY_NODE_TYPE_NAME", "small"),
        ("KUBERAY_GEN_RAY_START_CMD", start),
    ] {
        assert_eq!(value(name), Some(text.into()), "{name}");
    }
    let wait = &worker["spec"]["initContainers"][0];
    assert_eq!(wait["name"], "wait-gcs-ready");
    let waits = wait["args"][0].as_str().unwrap();
    assert!(
        waits.contains("svc.cluster.local/14000") && waits.contains("svc.cluster.local/14005"),
        "{waits}"
    );
    assert_eq!(
        wait["resources"]["limits"],
        json!({"cpu": "4", "memory": "1Gi"})
    );
}

#[test]
fn pods_with_their_own_address_have_kuberays_ports() {
    let mut world = World::new(with_group(json!({"replicas": 1})));
    world.network = Network::PerPod;
    world.settle(0);
    assert_eq!(
        script(&world, "demo-head"),
        "ulimit -n 65536 2>/dev/null; exec ray start --head --block --dashboard-agent-listen-port=52365 \
         --dashboard-host=0.0.0.0 --metrics-export-port=8080"
    );
    assert_eq!(
        script(&world, "demo-small-worker-0"),
        "ulimit -n 65536 2>/dev/null; exec ray start --address=demo-head-svc.team.svc.cluster.local:6379 --block \
         --dashboard-agent-listen-port=52365 --metrics-export-port=8080"
    );
    assert!(world.cluster.metadata.annotations.is_none());
}

#[test]
fn a_users_command_runs_before_ray_unless_it_starts_ray_itself() {
    let own = |container: Value, annotations: Value| {
        let mut spec = with_group(json!({"rayStartParams": {}}));
        spec["headGroupSpec"]["template"] = template(container);
        spec["headGroupSpec"]["template"]["metadata"] = json!({"annotations": annotations});
        container_of(&settled(spec))
    };
    fn container_of(world: &World) -> Value {
        container(world, "demo-head")
    }
    let before = own(json!({"command": ["echo", "a"], "args": ["b"]}), json!({}));
    let script = before["args"][0].as_str().unwrap();
    assert!(
        script.starts_with("echo a b && { ulimit -n 65536 2>/dev/null; exec ray start --head "),
        "{script}"
    );
    assert!(script.ends_with("; }"));
    let itself = json!({"command": ["bash", "-c"], "args": ["ray start --head --block"]});
    let kept = own(itself.clone(), json!({}));
    assert_eq!(
        (&kept["command"], &kept["args"]),
        (&itself["command"], &itself["args"])
    );
    assert!(
        kept["env"]
            .to_string()
            .contains("KUBERAY_GEN_RAY_START_CMD")
    );
    let server = json!({"command": ["my-ray"]});
    let kept = own(
        server.clone(),
        json!({"ray.io/overwrite-container-cmd": "true"}),
    );
    assert_eq!(kept["command"], server["command"]);
    // Without --block, the container would end.
    let mut spec = with_group(json!({"replicas": 1, "rayStartParams": {"block": "false"}}));
    spec["headGroupSpec"]["rayStartParams"] = json!({"block": "false"});
    assert!(
        container_of(&settled(spec))["args"][0]
            .as_str()
            .unwrap()
            .ends_with(" && exec sleep infinity")
    );
}

#[test]
fn a_groups_own_resources_and_labels_replace_its_containers() {
    let limits = json!({"resources": {"limits": {"cpu": 4}}});
    let group = json!({"replicas": 1, "template": template(limits), "resources": {"CPU": "2", "memory": "1Gi", "slots": "3"},
        "labels": {"ray.io/zone": "a", "tier": "b"}});
    let world = settled(with_group(group));
    let script = script(&world, "demo-small-worker-0");
    assert!(script.contains("--labels=ray.io/zone=a,tier=b"), "{script}");
    assert!(
        script.contains("--num-cpus=2") && script.contains("--memory=1073741824"),
        "{script}"
    );
    assert!(script.contains("--resources='{\"slots\": 3}'"), "{script}");
}

#[test]
fn a_head_without_a_template_has_the_first_groups_image_and_no_gpu() {
    let limits = json!({"name": "ray-worker", "image": "ray:1", "resources": {"limits": {"nvidia.com/gpu": 1}}});
    let world = settled(json!({
        "headGroupSpec": {"rayStartParams": {"num-gpus": 1}},
        "workerGroupSpecs": [{"replicas": 1, "template": template(limits)}],
    }));
    assert_eq!(world.names(), ["demo-group0-worker-0", "demo-head"]);
    let head = container(&world, "demo-head");
    assert_eq!(
        (&head["name"], &head["image"]),
        (&json!("ray-head"), &json!("ray:1"))
    );
    assert!(head["resources"].is_null(), "{head}");
    assert!(head["args"][0].as_str().unwrap().contains("--num-gpus=1"));
}

#[test]
fn long_names_are_cut_to_host_names_that_differ() {
    let group = json!({"groupName": "g".repeat(60), "replicas": 3});
    let world = settled(with_group(group));
    assert_eq!(world.names().len(), 4);
    assert!(world.names().iter().all(|name| name.len() <= 63));
}
