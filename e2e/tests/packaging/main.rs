//! The content of packaging/kubernetes: the chart as helm checks and renders it, the plain
//! manifests as rendered from it, and both against a real kube-apiserver. Server and agent run
//! with the arguments and the accounts' rights of the manifests, but on this machine and not in
//! containers. `MUSTER_BLESS=1 cargo test -p e2e --test packaging` renders the plain manifests
//! anew. This file renders; the modules test what is rendered, and that a kube-apiserver takes it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chart;
mod cluster;

use std::path::PathBuf;

use std::process::Command;

use e2e::{Ran, part, repository, run};
use serde::Deserialize;
use serde_json::{Value, json};

const NAMESPACE: &str = "muster-system";

fn packaging() -> PathBuf {
    repository().join("packaging/kubernetes")
}

fn helm(arguments: &[&str]) -> Ran {
    // Without the user's helm settings: no repositories, no plugins, no cluster.
    let nowhere = tempfile::tempdir().unwrap();
    run(Command::new(part("helm"))
        .args(arguments)
        .env("HOME", nowhere.path())
        .env("KUBECONFIG", "/dev/null"))
}

/// The chart's text with these values.
fn rendered(more: &[&str]) -> String {
    let chart = packaging().join("chart").display().to_string();
    let all = ["template", "muster", &chart, "--namespace", NAMESPACE];
    helm(&[&all, more].concat()).ok()
}

fn documents(text: &str) -> Vec<Value> {
    let all = serde_norway::Deserializer::from_str(text);
    let all = all.map(|document| Value::deserialize(document).unwrap());
    all.filter(|document| !document.is_null()).collect()
}

#[track_caller]
fn one<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    let mut found = all.iter().filter(is);
    let first = found.next();
    assert!(found.next().is_none(), "{kind} {name} is there twice");
    first.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The arguments of the only container of a Deployment or DaemonSet.
fn words(workload: &Value) -> Vec<String> {
    let containers = &workload["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers.as_array().unwrap().len(), 1);
    assert_eq!(containers[0]["command"], json!(["muster"]));
    let words = containers[0]["args"].as_array().unwrap().iter();
    words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

/// Values other than the defaults, each with its purpose.
fn variants() -> Vec<(&'static str, Vec<String>)> {
    let of = |all: &[&str]| all.iter().map(|word| format!("--set={word}")).collect();
    let file = |value: &str, path: &str| {
        format!("--set-file={value}={}", repository().join(path).display())
    };
    vec![
        ("defaults", of(&[])),
        ("no agent", of(&["agent.enabled=false"])),
        ("no server", of(&["server.enabled=false"])),
        (
            "beside other operators",
            of(&[
                "server.kinds=null",
                "server.schedulerNames={muster,volcano}",
                "server.replicas=1",
            ]),
        ),
        (
            "a registry of one's own",
            of(&[
                "image.repository=registry.example.com/muster",
                "image.tag=2",
                "imagePullSecrets[0].name=registry",
                "agent.runtimeClassName=nvidia",
                "agent.kubeletDirectory=/data/kubelet",
                "agent.tolerations[0].operator=Exists",
                "server.nodeSelector.role=control",
                "createNamespace=true",
            ]),
        ),
        (
            "devices by CDI",
            vec![
                "--set=agent.cdi=true".to_owned(),
                file(
                    "agent.devicePlugin",
                    "packaging/examples/device-plugin.yaml",
                ),
            ],
        ),
        (
            "shared RDMA cards",
            vec![file("agent.rdma", "packaging/examples/rdma.yaml")],
        ),
        ("tests of RDMA between nodes", of(&["agent.pair=true"])),
        (
            "other vendors",
            vec![
                file("agent.vendors.amd", "packaging/examples/vendors/amd.yaml"),
                file(
                    "agent.vendors.gaudi",
                    "packaging/examples/vendors/gaudi.yaml",
                ),
            ],
        ),
        (
            "shared GPUs",
            vec![
                "--set=agent.mps=true,agent.gpuParts=true,agent.overShare=end".to_owned(),
                file(
                    "agent.devicePlugin",
                    "packaging/examples/device-plugin-mps.yaml",
                ),
            ],
        ),
        (
            "GPUs cut by the node's label",
            vec![
                "--set=agent.mig.manager=evict,server.mig=true".to_owned(),
                file(
                    "agent.mig.configurations",
                    "packaging/examples/mig-configurations.yaml",
                ),
            ],
        ),
        (
            "queues of namespaces",
            of(&["server.namespaceQueues=v1beta1"]),
        ),
        ("devices by claims", of(&["agent.devices=dra"])),
        (
            "GPUs cut for claims",
            of(&["agent.devices=dra", "agent.mig.partitions=true"]),
        ),
        (
            "a scheduler's configuration and a described machine",
            vec![
                file(
                    "server.schedulerConfig",
                    "packaging/examples/scheduler.yaml",
                ),
                file("agent.machine", "packaging/examples/machines/8x-h100.toml"),
            ],
        ),
    ]
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}
