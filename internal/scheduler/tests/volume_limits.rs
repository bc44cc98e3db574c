//! Nodes take only so many disks, drivers have only so much room, and some disks are only for one: where
//! that keeps a pod off, it goes elsewhere, or waits and says why.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use scheduler::{Event, Plan, Scheduler};
use serde_json::{Value, json};
use support::*;

const DRIVER: &str = "disk.example.com";

fn takes(node: &str, driver: &str, count: u32) -> Event {
    Event::CsiNodeChanged(read(json!({
        "metadata": {"name": node, "annotations": {
            "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}},
        "spec": {"drivers": [{"name": driver, "nodeID": node, "topologyKeys": [],
            "allocatable": {"count": count}}]},
    })))
}

/// A claim, bound to a disk.
fn bound_to(s: &mut Scheduler, claim: &str, source: Value) {
    let mut volume = json!({
        "metadata": {"name": format!("pv-{claim}")},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"],
            "claimRef": {"namespace": "ns", "name": claim}},
        "status": {"phase": "Bound"},
    });
    let spec = volume["spec"].as_object_mut().unwrap();
    spec.extend(source.as_object().cloned().unwrap());
    s.apply(Event::VolumeChanged(read(volume)));
    s.apply(Event::ClaimChanged(read(json!({
        "metadata": {"name": claim, "namespace": "ns", "uid": claim,
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": format!("pv-{claim}"), "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}}},
    }))));
}

fn csi(handle: &str) -> Value {
    json!({"csi": {"driver": DRIVER, "volumeHandle": handle}})
}

fn with(name: &str, group: Option<&str>, source: &Value) -> Event {
    pod_with(name, group, 1, |pod| {
        let mut volume = json!({"name": "v"});
        let parts = volume.as_object_mut().unwrap();
        parts.extend(source.as_object().cloned().unwrap());
        pod["spec"]["volumes"] = json!([volume]);
    })
}

fn claiming(name: &str, group: Option<&str>, claim: &str) -> Event {
    let source = json!({"persistentVolumeClaim": {"claimName": claim}});
    with(name, group, &source)
}

fn reasons(plan: &Plan, name: &str) -> Vec<(String, usize)> {
    let all = report(plan, name).per_reason.iter();
    all.map(|one| (one.reason.clone(), one.nodes)).collect()
}

fn full() -> Vec<(String, usize)> {
    vec![("node(s) exceed max volume count".to_owned(), 1)]
}

#[test]
fn a_gang_goes_where_its_disks_may_be_attached() {
    let mut s = all_told();
    for name in ["n1", "n2"] {
        s.apply(node(name, 8));
        s.apply(takes(name, DRIVER, 2));
    }
    s.apply(group("g", 4));
    for at in 0..4 {
        let name = format!("g-{at}");
        bound_to(&mut s, &name, csi(&name));
        s.apply(claiming(&name, Some("g"), &name));
    }
    let nodes = nodes_used(&s.plan(now()), "g-");
    assert_eq!(nodes.len(), 2, "two on each: {nodes:?}");
    // A fifth disk has no place, nor has a gang of two one half of which would have.
    bound_to(&mut s, "late", csi("late"));
    s.apply(claiming("late", None, "late"));
    let plan = s.plan(now());
    assert_eq!(
        reasons(&plan, "late"),
        [("node(s) exceed max volume count".to_owned(), 2)]
    );
    let told = report(&plan, "late");
    assert_eq!(
        told.binding,
        "2 nodes have room, and no volumes are available there for a member's claims"
    );
    assert!(told.would_fit.starts_with("fewer attached volumes"));
    s.apply(takes("n2", DRIVER, 3));
    assert_eq!(bound(&s.plan(now()))["late"], "n2");
}

#[test]
fn a_gang_that_can_have_only_some_of_its_disks_attached_has_none_of_its_pods_bound() {
    let mut s = all_told();
    s.apply(node("n1", 8));
    s.apply(takes("n1", DRIVER, 2));
    s.apply(group("g", 3));
    for at in 0..3 {
        let name = format!("g-{at}");
        bound_to(&mut s, &name, csi(&name));
        s.apply(claiming(&name, Some("g"), &name));
    }
    let plan = s.plan(now());
    assert_eq!(bound(&plan).len(), 0);
    assert_eq!(reasons(&plan, "g"), full());
    // What was only tried is attached to nothing.
    s.apply(claiming("other", None, "g-0"));
    assert_eq!(bound(&s.plan(now()))["other"], "n1");
}

#[test]
fn a_disk_that_pods_of_a_node_share_is_attached_once() {
    let mut s = all_told();
    s.apply(node("n1", 8));
    s.apply(takes("n1", DRIVER, 1));
    bound_to(&mut s, "one", csi("same"));
    bound_to(&mut s, "two", csi("same"));
    bound_to(&mut s, "three", csi("another"));
    for (pod, claim) in [("a", "one"), ("b", "two"), ("c", "one")] {
        s.apply(claiming(pod, None, claim));
    }
    assert_eq!(bound(&s.plan(now())).len(), 3);
    s.apply(claiming("d", None, "three"));
    assert_eq!(reasons(&s.plan(now()), "d"), full());
    // Room comes when the last that uses the disk is gone.
    s.apply(pod_gone("a"));
    s.apply(pod_gone("b"));
    assert_eq!(bound(&s.plan(now())).len(), 0);
    s.apply(pod_gone("c"));
    assert_eq!(bound(&s.plan(now()))["d"], "n1");
}

#[test]
fn what_nobody_uses_any_more_counts_while_it_is_attached() {
    let mut s = all_told();
    s.apply(node("n1", 8));
    s.apply(takes("n1", DRIVER, 1));
    bound_to(&mut s, "old", csi("old"));
    bound_to(&mut s, "new", csi("new"));
    s.apply(Event::AttachmentChanged(read(json!({
        "metadata": {"name": "csi-1"},
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv-old"}},
    }))));
    s.apply(claiming("p", None, "new"));
    assert_eq!(reasons(&s.plan(now()), "p"), full());
    s.apply(claiming("q", None, "old"));
    assert_eq!(bound(&s.plan(now()))["q"], "n1", "it is attached already");
    s.apply(pod_gone("q"));
    s.apply(Event::AttachmentGone("csi-1".into()));
    assert_eq!(bound(&s.plan(now()))["p"], "n1");
}

#[test]
fn kinds_that_were_built_in_count_as_their_drivers_disks() {
    let mut s = all_told();
    s.apply(node("n1", 8));
    s.apply(takes("n1", "ebs.csi.aws.com", 1));
    bound_to(
        &mut s,
        "old-style",
        json!({"awsElasticBlockStore": {"volumeID": "aws://a/vol-1"}}),
    );
    bound_to(
        &mut s,
        "new-style",
        json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}),
    );
    s.apply(claiming("a", None, "old-style"));
    s.apply(claiming("b", None, "new-style"));
    assert_eq!(bound(&s.plan(now())).len(), 2, "one disk");
    let inline = json!({"awsElasticBlockStore": {"volumeID": "vol-2"}});
    s.apply(with("c", None, &inline));
    assert_eq!(reasons(&s.plan(now()), "c"), full());
}

#[test]
fn a_volume_is_made_where_its_driver_has_room() {
    let mut s = all_told();
    for name in ["n1", "n2"] {
        s.apply(node(name, 8));
    }
    s.apply(Event::StorageClassChanged(read(json!({
        "metadata": {"name": "made"}, "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
    }))));
    s.apply(Event::CsiDriverChanged(read(json!({
        "metadata": {"name": DRIVER}, "spec": {"storageCapacity": true},
    }))));
    s.apply(Event::ClaimChanged(read(json!({
        "metadata": {"name": "data", "namespace": "ns", "uid": "data"},
        "spec": {"storageClassName": "made", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}}},
    }))));
    let space = |name: &str, host: &str, size: Value| {
        let mut space = json!({
            "metadata": {"name": name, "namespace": "kube-system"}, "storageClassName": "made",
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": host}},
        });
        let parts = space.as_object_mut().unwrap();
        parts.extend(size.as_object().cloned().unwrap());
        Event::StorageCapacityChanged(read(space))
    };
    s.apply(claiming("p", None, "data"));
    let none = [("node(s) did not have enough free storage".to_owned(), 2)];
    assert_eq!(reasons(&s.plan(now()), "p"), none);
    s.apply(space("one", "n1", json!({"capacity": "9Gi"})));
    let largest = json!({"capacity": "100Gi", "maximumVolumeSize": "5Gi"});
    s.apply(space("two", "n2", largest));
    assert_eq!(reasons(&s.plan(now()), "p"), none);
    s.apply(space("two", "n2", json!({"capacity": "10Gi"})));
    assert_eq!(bound(&s.plan(now()))["p"], "n2");
}

#[test]
fn pods_of_one_node_share_a_disk_only_as_its_kind_allows() {
    let google = |reads: bool| json!({"gcePersistentDisk": {"pdName": "d", "readOnly": reads}});
    let amazon = json!({"awsElasticBlockStore": {"volumeID": "d"}});
    let iscsi = |portal: &str, reads: bool| json!({"iscsi": {"targetPortal": portal, "lun": 0, "iqn": "iqn.a:d", "readOnly": reads}});
    let rbd = |monitors: [&str; 2], pool: &str, reads: bool| json!({"rbd": {"monitors": monitors, "image": "d", "pool": pool, "readOnly": reads}});
    let (ab, bc, cd) = (["a", "b"], ["b", "c"], ["c", "d"]);
    let table = [
        (google(true), google(true), true),
        (google(true), google(false), false),
        (amazon.clone(), amazon.clone(), false),
        (amazon, google(false), true),
        (iscsi("a", true), iscsi("b", true), true),
        (iscsi("a", true), iscsi("b", false), false),
        (rbd(ab, "rbd", false), rbd(bc, "rbd", false), false),
        (rbd(ab, "rbd", true), rbd(bc, "rbd", true), true),
        (rbd(ab, "rbd", false), rbd(cd, "rbd", false), true),
        (rbd(ab, "rbd", false), rbd(ab, "other", false), true),
    ];
    for (first, second, both) in table {
        let mut s = all_told();
        s.apply(node("n1", 8));
        s.apply(with("first", None, &first));
        assert_eq!(bound(&s.plan(now())).len(), 1);
        s.apply(with("second", None, &second));
        let plan = s.plan(now());
        assert_eq!(bound(&plan).len(), usize::from(both), "{first} {second}");
        if !both {
            let said = [("node(s) had no available disk".to_owned(), 1)];
            assert_eq!(reasons(&plan, "second"), said);
            s.apply(pod_gone("first"));
            assert_eq!(bound(&s.plan(now())).len(), 1);
        }
    }
}
