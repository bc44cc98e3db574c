//! Each predicate accepts a sound plan and reports a planted fault.

mod alone;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use resources::kinds::{PodGroup, Queue};
use serde_json::{Value, json};

use crate::{ClusterAccount, Invariant, PodId, ProposedBind, check};

fn node(name: &str, gpus: usize) -> Node {
    let list: Vec<Value> = (0..gpus)
        .map(|i| json!({"id": format!("{name}-{i}"), "index": i, "healthy": i != 3}))
        .collect();
    let inventory = json!({ "gpus": list }).to_string();
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"zone": "a"}, "annotations": {"muster.io/inventory": inventory}},
        "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "4", "nvidia.com/gpu": gpus.to_string()}},
    }))
    .unwrap()
}

fn pod(name: &str, change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {"scheduling.k8s.io/group-name": "g"}},
        "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources": {"requests":
            {"cpu": "2", "nvidia.com/gpu": "1"}}}]},
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

fn group(min: i32, tasks: Value) -> PodGroup {
    serde_json::from_value(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "ns"},
        "spec": {"minMember": min, "minTaskMember": tasks, "queue": "q"},
    }))
    .unwrap()
}

fn queue(gpus: &str) -> Queue {
    serde_json::from_value(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": "q"}, "spec": {"capability": {"nvidia.com/gpu": gpus}},
    }))
    .unwrap()
}

fn bind(name: &str, node: &str, device: &str) -> ProposedBind {
    let one = BTreeMap::from([("nvidia.com/gpu".to_owned(), vec![device.to_owned()])]);
    ProposedBind {
        pod: PodId {
            namespace: "ns".into(),
            name: name.into(),
        },
        uid: name.into(),
        node: node.into(),
        devices: BTreeMap::from([("main".to_owned(), one)]),
    }
}

/// Two nodes, a gang of two with its members, a queue that allows two GPUs.
fn cluster() -> ClusterAccount {
    let mut cluster = ClusterAccount::new(vec!["muster".into()]);
    cluster.put_node(&node("n1", 4));
    cluster.put_node(&node("n2", 4));
    cluster.put_queue(&queue("2"));
    cluster.put_group(&group(2, json!({})));
    for name in ["a", "b", "c"] {
        cluster.put_pod(&pod(name, |_| {}));
    }
    cluster
}

fn broken(cluster: &ClusterAccount, binds: &[ProposedBind]) -> Vec<Invariant> {
    let mut all: Vec<Invariant> = check(cluster, binds).iter().map(|v| v.invariant).collect();
    all.dedup();
    all
}

#[test]
fn a_sound_plan_breaks_nothing() {
    assert_eq!(
        check(
            &cluster(),
            &[bind("a", "n1", "n1-0"), bind("b", "n2", "n2-0")]
        ),
        []
    );
    assert_eq!(check(&cluster(), &[]), []);
}

#[test]
fn i1_fires_when_a_node_gives_more_than_it_has() {
    let mut cluster = cluster();
    for name in ["a", "b"] {
        cluster.put_pod(&pod(name, |pod| {
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("5");
        }));
    }
    let binds = [bind("a", "n1", "n1-0"), bind("b", "n1", "n1-1")];
    assert_eq!(broken(&cluster, &binds), [Invariant::NodeCapacity]);
    let what = check(&cluster, &binds)[0].to_string();
    assert_eq!(
        what,
        "I1: node n1 has cpu: 8, of which 0 are used, and 10 more are bound"
    );
}

#[test]
fn i1_counts_pods_that_others_bound_and_pod_slots() {
    let mut cluster = cluster();
    for i in 0..3 {
        cluster.put_pod(&pod(&format!("other-{i}"), |pod| {
            pod["spec"] =
                json!({"nodeName": "n1", "schedulerName": "else", "containers": [{"name": "c"}]});
            pod["metadata"]["annotations"] = json!({});
        }));
    }
    let binds = [bind("a", "n1", "n1-0"), bind("b", "n1", "n1-1")];
    assert_eq!(broken(&cluster, &binds), [Invariant::NodeCapacity]);
    cluster.drop_pod(&PodId {
        namespace: "ns".into(),
        name: "other-0".into(),
    });
    assert_eq!(broken(&cluster, &binds), []);
}

#[test]
fn i2_fires_on_a_device_given_twice_unknown_unhealthy_or_too_few() {
    let cluster = cluster();
    for (first, second) in [("n1-0", "n1-0"), ("n1-0", "n2-0"), ("n1-0", "n1-3")] {
        let binds = [bind("a", "n1", first), bind("b", "n1", second)];
        assert_eq!(broken(&cluster, &binds), [Invariant::Devices], "{second}");
    }
    let mut none = bind("a", "n1", "n1-0");
    none.devices.clear();
    assert_eq!(
        broken(&cluster, &[none, bind("b", "n1", "n1-1")]),
        [Invariant::Devices]
    );
}

#[test]
fn i2_fires_on_a_device_that_a_resident_holds() {
    let mut cluster = cluster();
    cluster.put_pod(&pod("c", |pod| {
        pod["spec"]["nodeName"] = json!("n1");
        pod["metadata"]["annotations"] =
            json!({"muster.io/devices": "{\"main\":{\"nvidia.com/gpu\":[\"n1-0\"]}}"});
    }));
    let binds = [bind("a", "n1", "n1-0"), bind("b", "n1", "n1-1")];
    assert_eq!(broken(&cluster, &binds), [Invariant::Devices]);
}

#[test]
fn i2_fires_on_a_slice_given_twice_unknown_unhealthy_or_of_another_profile() {
    const SMALL: &str = "nvidia.com/mig-1g.10gb";
    let mut cluster = cluster();
    let slice = |id: &str, profile: &str, healthy: bool| json!({"id": id, "profile": profile, "healthy": healthy});
    let slices = json!([
        slice("MIG-a", "1g.10gb", true),
        slice("MIG-b", "1g.10gb", true),
        slice("MIG-c", "1g.10gb", false),
        slice("MIG-d", "2g.20gb", true),
    ]);
    let gpu = json!({"id": "GPU-0", "index": 0, "healthy": true, "slices": slices});
    let mut cut = node("n1", 0);
    let notes = cut.metadata.annotations.get_or_insert_default();
    notes.insert(
        "muster.io/inventory".into(),
        json!({"gpus": [gpu]}).to_string(),
    );
    let mut status = serde_json::to_value(&cut.status).unwrap();
    status["allocatable"][SMALL] = json!("2");
    cut.status = serde_json::from_value(status).unwrap();
    cluster.put_node(&cut);
    for name in ["a", "b", "c"] {
        cluster.put_pod(&pod(name, |pod| {
            pod["spec"]["containers"][0]["resources"]["requests"] = json!({SMALL: "1"});
        }));
    }
    let with = |name: &str, id: &str| {
        let one = BTreeMap::from([(SMALL.to_owned(), vec![id.to_owned()])]);
        let mut bind = bind(name, "n1", "");
        bind.devices = BTreeMap::from([("main".to_owned(), one)]);
        bind
    };
    assert_eq!(
        broken(&cluster, &[with("a", "MIG-a"), with("b", "MIG-b")]),
        []
    );
    for other in ["MIG-a", "MIG-c", "MIG-d", "MIG-x"] {
        let binds = [with("a", "MIG-a"), with("b", other)];
        assert_eq!(broken(&cluster, &binds), [Invariant::Devices], "{other}");
    }
}

#[test]
fn i2_fires_on_another_vendors_device_given_twice_unknown_unhealthy_or_of_another_resource() {
    const CARD: &str = "example.com/card";
    let mut cluster = cluster();
    let device = |id: &str, healthy: bool| json!({"id": id, "healthy": healthy});
    let cards = [
        device("/dev/a", true),
        device("/dev/b", true),
        device("/dev/c", false),
    ];
    let described = json!({CARD: cards, "example.com/other": [device("/dev/d", true)]});
    let mut has = node("n1", 0);
    let notes = has.metadata.annotations.get_or_insert_default();
    notes.insert(
        "muster.io/inventory".into(),
        json!({"described": described}).to_string(),
    );
    let mut status = serde_json::to_value(&has.status).unwrap();
    status["allocatable"][CARD] = json!("3");
    has.status = serde_json::from_value(status).unwrap();
    cluster.put_node(&has);
    for name in ["a", "b"] {
        cluster.put_pod(&pod(name, |pod| {
            pod["spec"]["containers"][0]["resources"]["requests"] = json!({CARD: "1"});
        }));
    }
    let with = |name: &str, id: &str| {
        let one = BTreeMap::from([(CARD.to_owned(), vec![id.to_owned()])]);
        let mut bind = bind(name, "n1", "");
        bind.devices = BTreeMap::from([("main".to_owned(), one)]);
        bind
    };
    let good = [with("a", "/dev/a"), with("b", "/dev/b")];
    assert_eq!(broken(&cluster, &good), []);
    for other in ["/dev/a", "/dev/c", "/dev/d", "/dev/x"] {
        let binds = [with("a", "/dev/a"), with("b", other)];
        assert_eq!(broken(&cluster, &binds), [Invariant::Devices], "{other}");
    }
}

fn sharer(name: &str, note: &str, value: &str) -> Pod {
    pod(name, |pod| {
        pod["metadata"]["annotations"] = json!({ note: value });
        pod["spec"]["containers"][0]["resources"] = json!({});
    })
}

#[test]
fn i2_fires_on_a_gpu_shared_by_more_than_it_has() {
    let mut cluster = cluster();
    cluster.put_pod(&sharer("a", "muster.io/gpu-fraction", "0.5"));
    cluster.put_pod(&sharer("b", "muster.io/gpu-fraction", "0.5"));
    cluster.put_pod(&sharer("c", "muster.io/gpu-fraction", "0.1"));
    let binds = ["a", "b", "c"].map(|name| bind(name, "n1", "n1-0"));
    assert_eq!(broken(&cluster, &binds[..2]), []);
    assert_eq!(broken(&cluster, &binds), [Invariant::Devices]);
    cluster.assume(&binds[0]);
    cluster.put_pod(&pod("b", |pod| pod["metadata"]["annotations"] = json!({})));
    assert_eq!(broken(&cluster, &binds[1..2]), [Invariant::Devices]);
}

#[test]
fn i2_counts_the_gpus_of_nodes_that_name_none() {
    let mut cluster = cluster();
    cluster.put_node(
        &serde_json::from_value(json!({
            "metadata": {"name": "n3", "labels": {"nvidia.com/gpu.memory": "1000"}},
            "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "9", "nvidia.com/gpu": "1"}},
        }))
        .unwrap(),
    );
    cluster.put_pod(&sharer("a", "muster.io/gpu-memory", "500"));
    cluster.put_pod(&sharer("b", "muster.io/gpu-memory", "501"));
    cluster.put_pod(&pod("c", |pod| pod["metadata"]["annotations"] = json!({})));
    let on = |name: &str| bind(name, "n3", "0");
    assert_eq!(broken(&cluster, &[on("a")]), []);
    assert_eq!(broken(&cluster, &[on("a"), on("b")]), [Invariant::Devices]);
    let mut whole = on("c");
    whole.devices.clear();
    assert_eq!(broken(&cluster, &[on("a"), whole]), [Invariant::Devices]);
    assert_eq!(
        broken(&cluster, &[bind("a", "n3", "1")]),
        [Invariant::Devices]
    );
    // A node whose GPU memory is unknown.
    assert_eq!(
        broken(&cluster, &[bind("a", "n1", "n1-0")]),
        [Invariant::Devices]
    );
}

#[test]
fn i4_counts_parts_of_gpus() {
    let mut cluster = cluster();
    cluster.put_queue(&queue("1500m"));
    for name in ["a", "b", "c"] {
        cluster.put_pod(&pod(name, |pod| {
            pod["metadata"]["annotations"]["muster.io/gpu-fraction"] = json!("0.6");
        }));
    }
    let binds = [
        bind("a", "n1", "n1-0"),
        bind("b", "n1", "n1-1"),
        bind("c", "n1", "n1-2"),
    ];
    assert_eq!(broken(&cluster, &binds[..2]), []);
    assert_eq!(broken(&cluster, &binds), [Invariant::QueueCapability]);
}

#[test]
fn i3_fires_on_half_a_gang_in_all_and_by_task() {
    let mut cluster = cluster();
    assert_eq!(
        broken(&cluster, &[bind("a", "n1", "n1-0")]),
        [Invariant::WholeGangs]
    );
    let both = [bind("a", "n1", "n1-0"), bind("b", "n1", "n1-1")];
    cluster.put_group(&group(2, json!({"master": 1})));
    assert_eq!(broken(&cluster, &both), [Invariant::WholeGangs]);
    cluster.put_pod(&pod("b", |pod| {
        pod["metadata"]["annotations"]["volcano.sh/task-spec"] = json!("master");
    }));
    assert_eq!(broken(&cluster, &both), []);
    cluster.drop_group("ns", "g");
    assert_eq!(broken(&cluster, &both), [Invariant::WholeGangs]);
}

#[test]
fn i3_counts_members_that_already_hold_room() {
    let mut cluster = cluster();
    cluster.assume(&bind("a", "n1", "n1-0"));
    assert_eq!(broken(&cluster, &[bind("b", "n1", "n1-1")]), []);
    cluster.retract(
        &PodId {
            namespace: "ns".into(),
            name: "a".into(),
        },
        "a",
    );
    assert_eq!(
        broken(&cluster, &[bind("b", "n1", "n1-1")]),
        [Invariant::WholeGangs]
    );
}

#[test]
fn i4_fires_when_a_queue_would_hold_more_than_its_capability() {
    let cluster = cluster();
    let binds = [
        bind("a", "n1", "n1-0"),
        bind("b", "n1", "n1-1"),
        bind("c", "n1", "n1-2"),
    ];
    assert_eq!(broken(&cluster, &binds), [Invariant::QueueCapability]);
}

#[test]
fn i4_counts_gpus_by_their_model() {
    let mut cluster = cluster();
    let mut labelled = node("n1", 4);
    let labels = labelled.metadata.labels.get_or_insert_default();
    labels.insert("nvidia.com/gpu.product".into(), "NVIDIA-H100-80GB".into());
    cluster.put_node(&labelled);
    let capability = |model: &str| {
        let mut queue = queue("9");
        let list = queue.spec.capability.get_or_insert_default();
        let name = format!("nvidia.com/gpu.{model}");
        list.insert(name, serde_json::from_value(json!("2")).unwrap());
        queue
    };
    let binds = [
        bind("a", "n1", "n1-0"),
        bind("b", "n1", "n1-1"),
        bind("c", "n1", "n1-2"),
    ];
    cluster.put_queue(&capability("A100"));
    assert_eq!(broken(&cluster, &binds), []);
    cluster.put_queue(&capability("H100"));
    assert_eq!(broken(&cluster, &binds), [Invariant::QueueCapability]);
    assert_eq!(broken(&cluster, &binds[..2]), []);
    binds[..2].iter().for_each(|bind| cluster.assume(bind));
    assert_eq!(broken(&cluster, &binds[2..]), [Invariant::QueueCapability]);
}

#[test]
fn gpus_meet_the_pods_requirements() {
    let table = [
        ("gpu-model", "H100", true),
        ("gpu-model", "A100,H100", true),
        ("gpu-model", "A100", false),
        ("gpu-min-memory", "80000", true),
        ("gpu-min-memory", "80Gi", false),
        ("gpu-min-compute", "9.0", true),
        ("gpu-min-compute", "9.1", false),
        ("gpu-min-driver", "550", true),
        ("gpu-min-driver", "new", false),
    ];
    for (note, value, sound) in table {
        let mut cluster = cluster();
        let mut labelled = node("n1", 4);
        let labels = labelled.metadata.labels.get_or_insert_default();
        for (name, value) in [
            ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
            ("nvidia.com/gpu.memory", "81559"),
            ("nvidia.com/gpu.compute.major", "9"),
            ("nvidia.com/gpu.compute.minor", "0"),
            ("nvidia.com/cuda.driver-version.full", "550.54.15"),
        ] {
            labels.insert(name.into(), value.into());
        }
        cluster.put_node(&labelled);
        cluster.put_pod(&pod("a", |pod| {
            pod["metadata"]["annotations"][format!("muster.io/{note}")] = json!(value);
        }));
        let binds = [bind("a", "n1", "n1-0"), bind("b", "n1", "n1-1")];
        let want: &[Invariant] = if sound { &[] } else { &[Invariant::Devices] };
        assert_eq!(broken(&cluster, &binds), want, "{note} {value}");
    }
}

#[test]
fn i4_follows_a_gang_that_changes_its_queue() {
    let mut cluster = cluster();
    cluster.assume(&bind("a", "n1", "n1-0"));
    cluster.assume(&bind("b", "n1", "n1-1"));
    assert_eq!(
        broken(&cluster, &[bind("c", "n1", "n1-2")]),
        [Invariant::QueueCapability]
    );
    let mut moved = group(2, json!({}));
    moved.spec.queue = Some("elsewhere".into());
    cluster.put_group(&moved);
    assert_eq!(broken(&cluster, &[bind("c", "n1", "n1-2")]), []);
}

#[test]
fn i5_fires_on_a_pod_bound_twice_replaced_or_gone() {
    let mut cluster = cluster();
    let [a, b] = [bind("a", "n1", "n1-0"), bind("b", "n1", "n1-1")];
    let mut again = a.clone();
    again.devices = bind("a", "n1", "n1-2").devices;
    let twice = [a.clone(), b.clone(), again];
    assert!(broken(&cluster, &twice).contains(&Invariant::BoundOnce));
    let mut other = a.clone();
    other.uid = "older".into();
    assert_eq!(
        broken(&cluster, &[other, b.clone()]),
        [Invariant::BoundOnce]
    );
    assert!(broken(&cluster, &[bind("nobody", "n1", "n1-0")]).contains(&Invariant::BoundOnce));
    cluster.assume(&a);
    assert!(broken(&cluster, &[bind("a", "n2", "n2-0"), b]).contains(&Invariant::BoundOnce));
}

#[test]
fn i6_fires_on_selectors_affinity_taints_cordons_and_runtimes() {
    let binds = [bind("a", "n1", "n1-0"), bind("b", "n2", "n2-0")];
    let term =
        json!([{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]);
    let required = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": term}}});
    let specs = [
        ("nodeSelector", json!({"zone": "b"})),
        ("affinity", required),
    ];
    for (field, value) in specs {
        let mut cluster = cluster();
        cluster.put_pod(&pod("a", |pod| pod["spec"][field] = value));
        assert_eq!(
            broken(&cluster, &binds),
            [Invariant::Constraints],
            "{field}"
        );
    }
    let mut tainted = node("n1", 4);
    tainted.spec =
        serde_json::from_value(json!({"taints": [{"key": "k", "effect": "NoSchedule"}]})).unwrap();
    let mut cordoned = node("n1", 4);
    cordoned.spec = serde_json::from_value(json!({"unschedulable": true})).unwrap();
    let mut lost = node("n1", 4);
    lost.status.as_mut().unwrap().conditions =
        serde_json::from_value(json!([{"type": "Ready", "status": "Unknown"}])).unwrap();
    let mut images = node("n1", 4);
    images.metadata.labels = Some(BTreeMap::from([(
        "muster.io/runtime.cri".into(),
        "true".into(),
    )]));
    for node in [tainted, cordoned, lost, images] {
        let mut cluster = cluster();
        cluster.put_node(&node);
        assert_eq!(
            broken(&cluster, &binds),
            [Invariant::Constraints],
            "{node:?}"
        );
    }
    let mut cluster = cluster();
    cluster.drop_node("n2");
    assert_eq!(broken(&cluster, &binds), [Invariant::Constraints]);
}

#[test]
fn every_violation_names_the_binds_to_leave_out() {
    let cluster = cluster();
    let violations = check(&cluster, &[bind("a", "n1", "n1-0")]);
    assert_eq!(
        violations[0].pods,
        [PodId {
            namespace: "ns".into(),
            name: "a".into()
        }]
    );
    assert_eq!(
        violations[0].to_string(),
        "I3: gang ns/g would have 1 of 2 members"
    );
}
