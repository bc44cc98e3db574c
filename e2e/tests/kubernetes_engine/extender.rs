//! A stock kube-scheduler with Muster as its extender, configured by the packaged file.

use std::collections::BTreeSet;

use e2e::{Cluster, eventually, free_address, repository};
use serde_json::{Value, json};

use crate::ground::{Ground, SOON, job, node_of};

/// The packaged configuration's extenders, with this address.
fn extenders(address: &str) -> Value {
    let file = repository().join("packaging/examples/kube-scheduler.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let text = text.replace("127.0.0.1:8444", address);
    let config: Value = serde_norway::from_str(&text).unwrap();
    assert!(
        config["extenders"][0]["urlPrefix"]
            .as_str()
            .unwrap()
            .contains(address)
    );
    json!({ "extenders": config["extenders"] })
}

fn pod(name: &str, gpus: u32, class: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"priorityClassName": class, "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "c", "image": "example.com/c:1", "resources": {"limits": {"nvidia.com/gpu": gpus}},
        }]},
    })
}

/// The pod's node and devices once it is bound.
fn bound(cluster: &Cluster, name: &str) -> (String, Vec<String>) {
    eventually(&format!("{name} is bound"), SOON, || {
        let pod = cluster.get(&["pod", name]);
        let node = node_of(&pod)?.to_owned();
        let text = pod["metadata"]["annotations"]["muster.io/devices"].as_str();
        let chosen: Value = serde_json::from_str(text.unwrap_or("{}")).unwrap();
        let list = chosen["c"]["nvidia.com/gpu"].as_array().cloned();
        let ids = list.unwrap_or_default().into_iter();
        let ids = ids.map(|id| id.as_str().unwrap().to_owned());
        Some((node, ids.collect()))
    })
}

#[test]
fn a_stock_kube_scheduler_places_by_musters_word_and_its_pods_get_devices_of_their_own() {
    let address = free_address();
    let cluster = Cluster::start()
        .with_kwok()
        .with_scheduler(Some(&extenders(&address)));
    let ground = Ground::on(cluster);
    let cluster = &ground.cluster;
    ground.node("n1", 4);
    ground.node("n2", 4);
    let server = ground.server("server", &["--extender", &address]);
    server.until_leading();

    // kube-scheduler alone would spread the pods; Muster keeps a node whole.
    for i in 0..3 {
        cluster.apply(&pod(&format!("p{i}"), 1, None).to_string());
        bound(cluster, &format!("p{i}"));
    }
    let places: Vec<(String, Vec<String>)> =
        (0..3).map(|i| bound(cluster, &format!("p{i}"))).collect();
    let nodes: BTreeSet<&String> = places.iter().map(|(node, _)| node).collect();
    assert_eq!(nodes.len(), 1, "{places:?}");
    let given: BTreeSet<&String> = places.iter().flat_map(|(_, ids)| ids).collect();
    assert_eq!(given.len(), 3, "{places:?}");

    // A gang that Muster places gets none of these GPUs, and no pod of kube-scheduler gets the gang's.
    cluster.apply(&job("gang", 2));
    let gang = ground.until_bound("gang", 3);
    let mut held: BTreeSet<String> = gang.iter().flat_map(crate::ground::devices_of).collect();
    held.extend(given.into_iter().cloned());
    assert_eq!(held.len(), 6);
    for (name, gpus) in [("q1", 1), ("q2", 1)] {
        cluster.apply(&pod(name, gpus, None).to_string());
        let (_, ids) = bound(cluster, name);
        assert_eq!(ids.len(), 1);
        assert!(held.insert(ids[0].clone()), "{ids:?} was given twice");
    }
    assert_eq!(held.len(), 8);

    // No GPU is free: the pod waits, and its condition names the extender; a pod of higher priority preempts.
    cluster.apply(&pod("waits", 1, None).to_string());
    let told = || {
        let waits = cluster.get(&["pod", "waits"]);
        let conditions = waits["status"]["conditions"].as_array().cloned()?;
        let words = conditions.iter().find_map(|c| c["message"].as_str())?;
        words.contains("nvidia.com/gpu").then(|| words.to_owned())
    };
    eventually("the pod is told why it waits", SOON, told);
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "urgent"}, "value": 1000});
    cluster.apply(&class.to_string());
    cluster.apply(&pod("urgent", 1, Some("urgent")).to_string());
    let (_, ids) = bound(cluster, "urgent");
    assert_eq!(ids.len(), 1);
    let there = |name: &&String| cluster.get(&["pod", name])["metadata"]["name"].is_string();
    let names: Vec<String> = ["p0", "p1", "p2", "q1", "q2"].map(str::to_owned).into();
    let gone = names.iter().filter(|name| !there(name)).count();
    assert_eq!(gone, 1, "one pod made room");
    let log = server.logged();
    assert!(!log.contains("forbidden"), "the rights are enough: {log}");
}

#[test]
fn a_gpu_that_is_ill_is_not_given_to_a_pod_of_kube_schedulers() {
    let address = free_address();
    let cluster = Cluster::start().with_scheduler(Some(&extenders(&address)));
    let ground = Ground::on(cluster);
    let cluster = &ground.cluster;
    ground.node("n1", 2);
    // The kubelet still reports two GPUs; the agent reports one of them as unhealthy.
    let gpus = json!([{"id": "n1-0", "index": 0, "healthy": false}, {"id": "n1-1", "index": 1, "healthy": true}]);
    let inventory = format!("muster.io/inventory={}", json!({ "gpus": gpus }));
    cluster
        .kubectl(&["annotate", "--overwrite", "node", "n1", &inventory])
        .ok();
    let server = ground.server("server", &["--extender", &address]);
    server.until_leading();
    cluster.apply(&pod("one", 1, None).to_string());
    assert_eq!(
        bound(cluster, "one"),
        ("n1".to_owned(), vec!["n1-1".to_owned()])
    );
    cluster.apply(&pod("two", 1, None).to_string());
    let told = || {
        let two = cluster.get(&["pod", "two"]);
        let conditions = two["status"]["conditions"].as_array().cloned()?;
        let words = conditions.iter().find_map(|c| c["message"].as_str())?;
        words.contains("Insufficient nvidia.com/gpu").then_some(())
    };
    eventually("the second waits, in Muster's words", SOON, told);
    assert_eq!(node_of(&cluster.get(&["pod", "two"])), None);
}
