//! Pods with claims in a real cluster: kube-controller-manager binds the volumes that Muster
//! reserves, and no pod of a gang is bound before all claims of the gang are.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{Cluster, eventually};
use serde_json::{Value, json};

use crate::ground::{Ground, SOON, Server, node_of};

fn ground() -> Ground {
    Ground::on(Cluster::start().with_controller_manager())
}

/// A node with a name that volumes may be on.
fn node(ground: &Ground, name: &str, more: &str) {
    ground.node(name, 0);
    let host = format!("kubernetes.io/hostname={name}");
    let all = ["label", "node", name, &host, more];
    let given = if more.is_empty() { &all[..4] } else { &all };
    ground.cluster.kubectl(given).ok();
}

fn class(ground: &Ground, name: &str, provisioner: &str, mode: &str) {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
    ground.cluster.apply(&class.to_string());
}

/// A volume on one node, or with labels.
fn volume(ground: &Ground, name: &str, class: &str, node: Option<&str>, more: &Value) {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"storageClassName": class, "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": format!("/data/{name}")}},
    });
    if let Some(node) = node {
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]},
        ]}});
    }
    for (at, part) in more.as_object().into_iter().flatten() {
        volume[at]
            .as_object_mut()
            .unwrap()
            .extend(part.as_object().cloned().unwrap());
    }
    ground.cluster.apply(&volume.to_string());
}

fn claim(ground: &Ground, name: &str, class: &str) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    ground.cluster.apply(&claim.to_string());
}

fn pod(name: &str, group: Option<&str>, claim: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "muster", "containers": [{
            "name": "c", "image": "example.com/c:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }], "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]},
    });
    if let Some(group) = group {
        pod["metadata"]["annotations"] = json!({"scheduling.k8s.io/group-name": group});
    }
    pod
}

/// The pods of a gang, each with its own claim: `NAME-0` with `NAME-0`.
fn gang(ground: &Ground, name: &str, members: usize) {
    let group = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"minMember": members},
    });
    ground.cluster.apply(&group.to_string());
    for at in 0..members {
        let own = format!("{name}-{at}");
        ground
            .cluster
            .apply(&pod(&own, Some(name), &own).to_string());
    }
}

/// The nodes of the pods, once all are bound.
fn placed(ground: &Ground, names: &[&str]) -> BTreeMap<String, String> {
    eventually(&format!("{names:?} are bound"), SOON, || {
        let found = names.iter().map(|name| {
            let pod = ground.cluster.get(&["pod", name]);
            Some(((*name).to_owned(), node_of(&pod)?.to_owned()))
        });
        found.collect()
    })
}

/// The message of a waiting pod's condition.
fn told(ground: &Ground, name: &str, words: &str) -> String {
    eventually(&format!("{name} is told of {words}"), SOON, || {
        let pod = ground.cluster.get(&["pod", name]);
        let conditions = pod["status"]["conditions"].as_array().cloned()?;
        let said = conditions.iter().find(|c| c["type"] == "PodScheduled")?;
        let message = said["message"].as_str()?.to_owned();
        message.contains(words).then_some(message)
    })
}

fn rights_are_enough(server: &Server) {
    let log = server.logged();
    assert!(!log.contains("forbidden"), "{log}");
    assert!(!log.contains("invariant"), "{log}");
}

#[test]
fn a_gang_gets_a_local_volume_for_each_claim_and_goes_where_they_are() {
    let ground = ground();
    for name in ["n1", "n2", "n3", "n4"] {
        node(&ground, name, "");
    }
    class(
        &ground,
        "local",
        "kubernetes.io/no-provisioner",
        "WaitForFirstConsumer",
    );
    for (name, node) in [
        ("on-n1", "n1"),
        ("first-on-n3", "n3"),
        ("second-on-n3", "n3"),
    ] {
        volume(&ground, name, "local", Some(node), &json!({}));
    }
    let server = ground.server("server", &["--kinds", "none"]);
    server.until_leading();
    gang(&ground, "g", 3);
    let waits = told(&ground, "g-0", "persistentvolumeclaim");
    assert!(
        waits.contains("persistentvolumeclaim \"g-0\" not found"),
        "{waits}"
    );
    for name in ["g-0", "g-1", "g-2"] {
        claim(&ground, name, "local");
    }
    let nodes = placed(&ground, &["g-0", "g-1", "g-2"]);
    let mut all: Vec<&str> = nodes.values().map(String::as_str).collect();
    all.sort_unstable();
    assert_eq!(all, ["n1", "n3", "n3"]);
    let mut taken = BTreeSet::new();
    for (name, node) in &nodes {
        let claim = ground.cluster.get(&["pvc", name]);
        assert_eq!(claim["status"]["phase"], "Bound", "{claim}");
        let volume = claim["spec"]["volumeName"].as_str().unwrap().to_owned();
        assert!(volume.ends_with(node), "{name} on {node} has {volume}");
        let volume = ground.cluster.get(&["pv", &volume]);
        let by = &volume["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"];
        assert_eq!(by, "yes");
        taken.insert(volume["metadata"]["name"].to_string());
    }
    assert_eq!(taken.len(), 3, "one each");
    // No volume is left: the next claim waits, with kube-scheduler's message.
    claim(&ground, "late", "local");
    ground.cluster.apply(&pod("late", None, "late").to_string());
    let waits = told(&ground, "late", "node(s)");
    assert_eq!(
        waits,
        "0/4 nodes are available: 4 node(s) didn't find available persistent volumes to bind."
    );
    volume(&ground, "on-n2", "local", Some("n2"), &json!({}));
    assert_eq!(placed(&ground, &["late"])["late"], "n2");
    rights_are_enough(&server);
}

#[test]
fn a_pod_goes_to_the_zone_of_its_bound_volume() {
    let ground = ground();
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        node(
            &ground,
            name,
            &format!("topology.kubernetes.io/zone={zone}"),
        );
    }
    for (name, zones) in [("there", "c__b"), ("nowhere", "c")] {
        let more = json!({
            "metadata": {"labels": {"topology.kubernetes.io/zone": zones}},
            "spec": {"claimRef": {"namespace": "default", "name": name}},
        });
        volume(&ground, name, "", None, &more);
        claim(&ground, name, "");
    }
    let server = ground.server("server", &["--kinds", "none"]);
    server.until_leading();
    for name in ["there", "nowhere"] {
        ground.cluster.apply(&pod(name, None, name).to_string());
    }
    assert_eq!(placed(&ground, &["there"])["there"], "n2");
    let waits = told(&ground, "nowhere", "zone");
    assert_eq!(
        waits,
        "0/2 nodes are available: 2 node(s) had no available volume zone."
    );
    rights_are_enough(&server);
}

/// Creates the volume for a claim, as an external provisioner does.
fn provision(ground: &Ground, name: &str, node: &str) {
    let claim = ground.cluster.get(&["pvc", name]);
    let of = json!({"spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": "default", "name": name, "uid": claim["metadata"]["uid"]}}});
    volume(ground, &format!("made-{name}"), "made", Some(node), &of);
}

/// The selected node for a claim's volume.
fn selected(ground: &Ground, name: &str) -> Option<String> {
    let claim = ground.cluster.get(&["pvc", name]);
    let node = &claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"];
    node.as_str().map(str::to_owned)
}

#[test]
fn nobody_of_a_gang_is_bound_before_the_volumes_of_all_are_made() {
    let ground = ground();
    for name in ["n1", "n2"] {
        node(&ground, name, "");
    }
    class(&ground, "made", "example.com/disk", "WaitForFirstConsumer");
    let server = ground.server("server", &["--kinds", "none"]);
    server.until_leading();
    for name in ["g-0", "g-1"] {
        claim(&ground, name, "made");
    }
    gang(&ground, "g", 2);
    let node_for = |name: &str| {
        eventually(&format!("{name}'s node is chosen"), SOON, || {
            selected(&ground, name)
        })
    };
    let (first, second) = (node_for("g-0"), node_for("g-1"));
    provision(&ground, "g-0", &first);
    eventually("the first claim is bound", SOON, || {
        let claim = ground.cluster.get(&["pvc", "g-0"]);
        (claim["status"]["phase"] == "Bound").then_some(())
    });
    // Other pods are placed meanwhile, after which all earlier ones have been decided.
    let alone = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone", "namespace": "default"},
        "spec": {"schedulerName": "muster", "containers": [{"name": "c", "image": "example.com/c:1"}]},
    });
    ground.cluster.apply(&alone.to_string());
    placed(&ground, &["alone"]);
    let is_bound = |name: &str| node_of(&ground.cluster.get(&["pod", name])).is_some();
    assert!(!is_bound("g-0") && !is_bound("g-1"));
    // The provisioner gives up by removing the node annotation: the scheduler asks it again.
    ground
        .cluster
        .kubectl(&[
            "annotate",
            "pvc",
            "g-1",
            "volume.kubernetes.io/selected-node-",
        ])
        .ok();
    eventually("an event says why the gang waits", SOON, || {
        let events = ground.items(&["events", "--field-selector", "involvedObject.name=g-1"]);
        events.into_iter().find(|event| {
            let said = event["message"].as_str().unwrap_or_default();
            said.contains("no volume could be provisioned for PersistentVolumeClaim g-1")
        })
    });
    assert!(!is_bound("g-0") && !is_bound("g-1"));
    let again = node_for("g-1");
    provision(&ground, "g-1", &again);
    let nodes = placed(&ground, &["g-0", "g-1"]);
    assert_eq!(nodes["g-0"], first);
    assert_eq!(nodes["g-1"], again);
    assert!(["n1", "n2"].contains(&second.as_str()));
    rights_are_enough(&server);
}
