//! Clusters whose claims, volumes and storage classes are all reported: pods wait, with that reason, for
//! objects that do not exist; a free volume is given to one claim only.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scheduler::{Bind, Event, Plan, Scheduler, VolumeSource, VolumesReady};
use serde_json::{Value, json};
use support::*;

fn on(name: &str, zone: &str) -> Event {
    node_with(name, 8, |node| {
        node["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(zone);
    })
}

fn claim_with(name: &str, class: &str, size: &str, change: impl FnOnce(&mut Value)) -> Event {
    let mut claim = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}}},
    });
    change(&mut claim);
    Event::ClaimChanged(read(claim))
}

fn claim(name: &str, class: &str, size: &str) -> Event {
    claim_with(name, class, size, |_| {})
}

fn bind_to(claim: &mut Value, volume: &str) {
    claim["spec"]["volumeName"] = json!(volume);
    claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
}

fn volume_with(name: &str, class: &str, size: &str, change: impl FnOnce(&mut Value)) -> Event {
    let mut volume = json!({
        "metadata": {"name": name},
        "spec": {"storageClassName": class, "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Available"},
    });
    change(&mut volume);
    Event::VolumeChanged(read(volume))
}

fn on_host(volume: &mut Value, host: &str) {
    volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]},
    ]}});
}

fn volume(name: &str, class: &str, size: &str, host: &str) -> Event {
    volume_with(name, class, size, |volume| on_host(volume, host))
}

fn class(name: &str, mode: &str, provisioner: &str) -> Event {
    Event::StorageClassChanged(read(json!({
        "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode,
    })))
}

fn local() -> Event {
    class("local", WAITS, "kubernetes.io/no-provisioner")
}

fn mounts(pod: &mut Value, claims: &[&str]) {
    let volumes = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}));
    pod["spec"]["volumes"] = volumes.collect();
}

fn with_claims(name: &str, group: Option<&str>, claims: &[&str]) -> Event {
    pod_with(name, group, 1, |pod| mounts(pod, claims))
}

fn sentence(plan: &Plan, name: &str) -> String {
    report(plan, name).sentence()
}

fn given(bind: &Bind) -> Vec<(&str, &VolumeSource)> {
    let steps = bind.volumes.iter();
    steps
        .map(|step| (step.claim.as_str(), &step.from))
        .collect()
}

const WAITS: &str = "WaitForFirstConsumer";

#[test]
fn each_claim_that_keeps_a_pod_waiting_is_named_with_what_to_do() {
    type Case = (&'static str, Vec<Event>, &'static str, &'static str);
    let lost = |claim: &mut Value| {
        bind_to(claim, "pv");
        claim["status"] = json!({"phase": "Lost"});
    };
    let table: Vec<Case> = vec![
        (
            "missing",
            vec![],
            "PersistentVolumeClaim data does not exist",
            "create PersistentVolumeClaim data in namespace ns",
        ),
        (
            "going",
            vec![claim_with("data", "local", "1Gi", |claim| {
                claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            })],
            "PersistentVolumeClaim data is being deleted",
            "that claim created again after its deletion",
        ),
        (
            "lost",
            vec![claim_with("data", "local", "1Gi", lost)],
            "is bound to PersistentVolume pv, which does not exist",
            "PersistentVolume pv created again",
        ),
        (
            "its volume is not there",
            vec![claim_with("data", "local", "1Gi", |claim| {
                bind_to(claim, "pv")
            })],
            "is bound to PersistentVolume pv, which does not exist",
            "PersistentVolume pv created again",
        ),
        (
            "no class",
            vec![claim("data", "", "1Gi")],
            "names no StorageClass",
            "a claim with a storageClassName",
        ),
        (
            "unknown class",
            vec![claim("data", "unknown", "1Gi")],
            "its StorageClass unknown does not exist",
            "create StorageClass unknown",
        ),
        (
            "immediate",
            vec![
                class("now", "Immediate", "example.com/disk"),
                claim("data", "now", "1Gi"),
            ],
            "its StorageClass now does not wait for pods",
            "kubectl describe pvc data -n ns",
        ),
        (
            "not bound yet",
            vec![claim_with("data", "local", "1Gi", |claim| {
                claim["spec"]["volumeName"] = json!("pv");
            })],
            "is not bound yet to PersistentVolume pv",
            "PersistentVolume pv, present, free",
        ),
    ];
    for (what, events, binding, remedy) in table {
        let mut s = all_told();
        s.apply(on("n1", "a"));
        s.apply(local());
        events.into_iter().for_each(|event| s.apply(event));
        s.apply(with_claims("p", None, &["data"]));
        let plan = s.plan(now());
        assert!(plan.binds.is_empty(), "{what}");
        let report = report(&plan, "p");
        assert!(
            report.binding.contains(binding),
            "{what}: {}",
            report.binding
        );
        assert!(
            report.would_fit.contains(remedy),
            "{what}: {}",
            report.would_fit
        );
        let said = sentence(&plan, "p");
        assert!(said.starts_with("0/1 nodes are available: 1 "), "{said}");
        assert!(said.contains("data"), "{said}");
    }
}

#[test]
fn a_claim_that_comes_lets_its_gang_start() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(local());
    s.apply(group("g", 2));
    s.apply(with_claims("g-0", Some("g"), &["data-0"]));
    s.apply(with_claims("g-1", Some("g"), &["data-1"]));
    let plan = s.plan(now());
    let waits = report(&plan, "g").binding.clone();
    assert_eq!(
        waits,
        "PersistentVolumeClaim data-0 does not exist; 1 more member waits for claims"
    );
    for at in 0..2 {
        s.apply(volume(&format!("pv-{at}"), "local", "1Gi", "n1"));
        s.apply(claim(&format!("data-{at}"), "local", "1Gi"));
    }
    let plan = s.plan(now());
    let all: BTreeSet<_> = plan.binds.iter().flat_map(given).collect();
    let pv = |at: u32| VolumeSource::Volume(format!("pv-{at}"));
    assert_eq!(all, [("data-0", &pv(0)), ("data-1", &pv(1))].into());
}

#[test]
fn members_whose_claims_are_there_do_not_wait_for_one_beyond_the_minimum() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(group("g", 1));
    s.apply(with_claims("g-0", Some("g"), &["missing"]));
    s.apply(with_claims("g-1", Some("g"), &[]));
    assert_eq!(bound(&s.plan(now())).keys().collect::<Vec<_>>(), ["g-1"]);
}

#[test]
fn an_ephemeral_volumes_claim_must_be_the_pods_own() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(class("fast", WAITS, "example.com/disk"));
    s.apply(pod_with("p", None, 1, |pod| {
        pod["spec"]["volumes"] = json!([{"name": "scratch", "ephemeral": {}}]);
    }));
    let said = sentence(&s.plan(now()), "p");
    assert!(
        said.contains("waiting for ephemeral volume controller"),
        "{said}"
    );
    s.apply(claim("p-scratch", "fast", "1Gi"));
    let said = sentence(&s.plan(now()), "p");
    assert!(said.contains("pod is not owner"), "{said}");
    s.apply(claim_with("p-scratch", "fast", "1Gi", |claim| {
        claim["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod",
            "name": "p", "uid": "uid-p", "controller": true}]);
    }));
    let plan = s.plan(now());
    assert_eq!(given(&plan.binds[0]), [("p-scratch", &VolumeSource::Made)]);
}

#[test]
fn a_bound_volumes_zones_say_where_its_pod_goes() {
    for (label, zones, want) in [
        ("topology.kubernetes.io/zone", "b", Some("n2")),
        ("failure-domain.beta.kubernetes.io/zone", "b", Some("n2")),
        ("topology.kubernetes.io/zone", "c__b", Some("n2")),
        ("topology.kubernetes.io/zone", "c", None),
        ("topology.kubernetes.io/region", "b", None),
        ("somewhere", "c", Some("n1")),
    ] {
        let mut s = all_told();
        s.apply(on("n1", "a"));
        s.apply(on("n2", "b"));
        s.apply(volume_with("pv", "", "1Gi", |volume| {
            volume["metadata"]["labels"] = json!({ label: zones });
        }));
        s.apply(claim_with("data", "", "1Gi", |claim| bind_to(claim, "pv")));
        s.apply(with_claims("p", None, &["data"]));
        let plan = s.plan(now());
        assert_eq!(
            bound(&plan).get("p").map(String::as_str),
            want,
            "{label} {zones}"
        );
        if want.is_none() {
            let said = sentence(&plan, "p");
            assert!(
                said.contains("2 node(s) had no available volume zone"),
                "{said}"
            );
        }
    }
}

#[test]
fn the_smallest_volume_that_fits_in_every_way_is_taken() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(local());
    let plain = |volume: &mut Value| on_host(volume, "n1");
    s.apply(volume_with("small", "local", "1Gi", plain));
    s.apply(volume_with("other-class", "fast", "5Gi", plain));
    s.apply(volume_with("block", "local", "5Gi", |volume| {
        volume["spec"]["volumeMode"] = json!("Block");
    }));
    s.apply(volume_with("read-only", "local", "5Gi", |volume| {
        volume["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
    }));
    s.apply(volume_with("unlabelled", "local", "5Gi", plain));
    s.apply(volume_with("going", "local", "5Gi", |volume| {
        volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        volume["metadata"]["labels"] = json!({"disk": "ssd"});
    }));
    s.apply(volume_with("released", "local", "5Gi", |volume| {
        volume["metadata"]["labels"] = json!({"disk": "ssd"});
        volume["status"]["phase"] = json!("Released");
    }));
    s.apply(volume_with("kept", "local", "5Gi", |volume| {
        volume["metadata"]["labels"] = json!({"disk": "ssd"});
        volume["spec"]["claimRef"] = json!({"namespace": "ns", "name": "other"});
    }));
    for (name, size) in [("large", "20Gi"), ("fits", "10Gi")] {
        s.apply(volume_with(name, "local", size, |volume| {
            volume["metadata"]["labels"] = json!({"disk": "ssd"});
        }));
    }
    s.apply(claim_with("data", "local", "5Gi", |claim| {
        claim["spec"]["selector"] = json!({"matchLabels": {"disk": "ssd"}});
    }));
    s.apply(with_claims("p", None, &["data"]));
    let plan = s.plan(now());
    assert_eq!(
        given(&plan.binds[0]),
        [("data", &VolumeSource::Volume("fits".into()))]
    );
}

#[test]
fn a_volume_that_is_kept_for_a_claim_goes_before_others_wherever_it_is() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(on("n2", "b"));
    s.apply(local());
    s.apply(volume("free", "local", "1Gi", "n1"));
    s.apply(volume_with("kept", "local", "9Gi", |volume| {
        on_host(volume, "n2");
        volume["spec"]["claimRef"] = json!({"namespace": "ns", "name": "data"});
    }));
    s.apply(claim("data", "local", "1Gi"));
    s.apply(with_claims("p", None, &["data"]));
    let plan = s.plan(now());
    assert_eq!(bound(&plan)["p"], "n2");
    assert_eq!(
        given(&plan.binds[0]),
        [("data", &VolumeSource::Volume("kept".into()))]
    );
}

#[test]
fn what_no_free_volume_fits_is_made_where_its_class_makes_it() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(class("fast", WAITS, "example.com/disk"));
    s.apply(volume("free", "fast", "1Gi", "n1"));
    for (name, size) in [("one", "1Gi"), ("two", "1Gi"), ("large", "9Gi")] {
        s.apply(claim(name, "fast", size));
    }
    s.apply(with_claims("p", None, &["large", "one", "two"]));
    let plan = s.plan(now());
    let all: BTreeMap<_, _> = given(&plan.binds[0]).into_iter().collect();
    assert_eq!(all["large"], &VolumeSource::Made);
    let kept = [all["one"], all["two"]];
    assert!(
        kept.contains(&&VolumeSource::Made) && kept.iter().any(|one| **one != VolumeSource::Made)
    );
}

#[test]
fn a_claim_whose_volume_is_being_made_goes_where_it_is_made() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(on("n2", "b"));
    s.apply(class("fast", WAITS, "example.com/disk"));
    s.apply(claim_with("data", "fast", "1Gi", |claim| {
        claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "n2"});
    }));
    s.apply(with_claims("p", None, &["data"]));
    assert_eq!(bound(&s.plan(now()))["p"], "n2");
}

#[test]
fn a_claim_for_one_pod_alone_keeps_the_next_waiting_until_the_first_is_gone() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(volume("pv", "", "1Gi", "n1"));
    s.apply(claim_with("data", "", "1Gi", |claim| {
        bind_to(claim, "pv");
        claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    }));
    s.apply(with_claims("p", None, &["data"]));
    s.apply(with_claims("q", None, &["data"]));
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 1);
    let (first, second) = match plan.binds[0].pod.name.as_str() {
        "p" => ("p", "q"),
        _ => ("q", "p"),
    };
    let said = sentence(&plan, second);
    assert!(said.contains("ReadWriteOncePod access mode"), "{said}");
    s.apply(pod_gone(first));
    assert_eq!(bound(&s.plan(now())).keys().collect::<Vec<_>>(), [second]);
}

#[test]
fn a_volume_given_in_one_plan_is_nobody_elses_in_the_next_until_it_is_taken_back() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(local());
    s.apply(volume("pv", "local", "1Gi", "n1"));
    s.apply(claim("one", "local", "1Gi"));
    s.apply(claim("two", "local", "1Gi"));
    s.apply(with_claims("p", None, &["one"]));
    let first = s.plan(now());
    assert_eq!(first.binds.len(), 1);
    s.apply(with_claims("q", None, &["two"]));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    let said = sentence(&plan, "q");
    assert!(
        said.contains("1 node(s) didn't find available persistent volumes to bind"),
        "{said}"
    );
    assert!(
        report(&plan, "q")
            .binding
            .contains("no volumes are available there for a member's claims"),
        "{}",
        report(&plan, "q").binding
    );
    s.apply(pod_gone("p"));
    assert_eq!(bound(&s.plan(now()))["q"], "n1");
}

#[test]
fn members_that_share_a_claim_share_its_volume() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(on("n2", "a"));
    s.apply(class("shared", WAITS, "example.com/files"));
    s.apply(claim("data", "shared", "1Gi"));
    s.apply(group("g", 2));
    for at in 0..2 {
        s.apply(pod_with(&format!("g-{at}"), Some("g"), 8, |pod| {
            mounts(pod, &["data"])
        }));
    }
    let plan = s.plan(now());
    assert_eq!(bound(&plan).len(), 2);
    let two: BTreeSet<_> = bound(&plan).into_values().collect();
    assert_eq!(two.len(), 2, "on two nodes");
}

#[test]
fn a_binding_is_ready_when_all_its_claims_are_bound_to_volumes_in_reach() {
    let mut s = all_told();
    s.apply(on("n1", "a"));
    s.apply(class("fast", WAITS, "example.com/disk"));
    s.apply(claim("data", "fast", "1Gi"));
    s.apply(with_claims("p", None, &["data"]));
    let mut bind = s.plan(now()).binds.remove(0);
    let ready = |s: &Scheduler, bind: &Bind| s.volumes_ready(&bind.pod, &bind.node, &bind.volumes);
    assert_eq!(ready(&s, &bind), VolumesReady::NotYet);
    bind.volumes[0].written = Some(8);
    let selected = |version: &str, node: Value| {
        claim_with("data", "fast", "1Gi", |claim| {
            claim["metadata"]["resourceVersion"] = json!(version);
            claim["metadata"]["annotations"] = node;
        })
    };
    s.apply(selected("7", json!({})));
    assert_eq!(
        ready(&s, &bind),
        VolumesReady::NotYet,
        "told of an older one"
    );
    s.apply(selected(
        "8",
        json!({"volume.kubernetes.io/selected-node": "n1"}),
    ));
    assert_eq!(ready(&s, &bind), VolumesReady::NotYet);
    s.apply(selected("9", json!({})));
    let VolumesReady::No(why) = ready(&s, &bind) else {
        panic!("given up");
    };
    assert!(
        why.contains("no volume could be provisioned for PersistentVolumeClaim data"),
        "{why}"
    );
    let bound = || claim_with("data", "fast", "1Gi", |claim| bind_to(claim, "pv"));
    s.apply(bound());
    assert_eq!(
        ready(&s, &bind),
        VolumesReady::NotYet,
        "its volume is not told of"
    );
    s.apply(volume("pv", "fast", "1Gi", "n2"));
    let VolumesReady::No(why) = ready(&s, &bind) else {
        panic!("out of reach");
    };
    assert!(why.contains("node n1 cannot reach"), "{why}");
    s.apply(volume("pv", "fast", "1Gi", "n1"));
    assert_eq!(ready(&s, &bind), VolumesReady::Yes);
    s.apply(Event::NodeGone("n1".into()));
    assert_eq!(
        ready(&s, &bind),
        VolumesReady::No("node n1 no longer exists".into())
    );
}

proptest! {
    #![proptest_config(cases(96))]

    /// Whatever comes and goes: every claim gets a volume that its node reaches, of its class, large
    /// enough, and no two claims get the same one.
    #[test]
    fn no_volume_is_given_twice_and_each_is_where_its_pod_is(
        nodes in 1..5usize,
        volumes in proptest::collection::vec((0..6usize, 1..4i64), 0..10),
        claims in proptest::collection::vec(1..4i64, 1..9),
        gangs in proptest::collection::vec(1..4usize, 1..5),
        events in proptest::collection::vec((0..3u8, 0..9usize), 0..12),
    ) {
        let mut s = all_told();
        for at in 0..nodes {
            s.apply(on(&format!("n{at}"), "a"));
        }
        s.apply(local());
        let put = |s: &mut Scheduler, at: usize| {
            let (host, size) = volumes[at];
            s.apply(volume(&format!("pv{at}"), "local", &format!("{size}Gi"), &format!("n{host}")));
        };
        (0..volumes.len()).for_each(|at| put(&mut s, at));
        for (at, size) in claims.iter().enumerate() {
            s.apply(claim(&format!("c{at}"), "local", &format!("{size}Gi")));
        }
        let mut next = 0;
        let mut pods = Vec::new();
        for (at, members) in gangs.iter().enumerate() {
            s.apply(group(&format!("g{at}"), *members as i32));
            for member in 0..*members {
                let name = format!("g{at}-{member}");
                let own = format!("c{}", next % claims.len());
                s.apply(with_claims(&name, Some(&format!("g{at}")), &[&own]));
                pods.push(name);
                next += 1;
            }
        }
        let mut there: BTreeMap<String, Bind> = BTreeMap::new();
        let mut events = events.into_iter();
        loop {
            for bind in s.plan(now()).binds {
                there.insert(bind.pod.name.clone(), bind);
            }
            let mut owner: BTreeMap<String, &str> = BTreeMap::new();
            for bind in there.values() {
                prop_assert_eq!(bind.volumes.len(), 1);
                let step = &bind.volumes[0];
                let VolumeSource::Volume(name) = &step.from else {
                    panic!("nobody makes volumes");
                };
                let at: usize = name[2..].parse().unwrap();
                let (host, size) = volumes[at];
                prop_assert_eq!(&bind.node, &format!("n{host}"));
                let wanted: usize = step.claim[1..].parse().unwrap();
                prop_assert!(size >= claims[wanted]);
                let before = owner.insert(name.clone(), &step.claim);
                prop_assert!(before.is_none_or(|before| before == step.claim), "{name} twice");
            }
            let Some((kind, which)) = events.next() else { break };
            match kind {
                0 => {
                    let name = &pods[which % pods.len()];
                    s.apply(pod_gone(name));
                    there.remove(name);
                }
                1 if !volumes.is_empty() => put(&mut s, which % volumes.len()),
                _ => {
                    let name = &pods[which % pods.len()];
                    if let Some(bind) = there.remove(name) {
                        s.forget(&bind.pod);
                    }
                }
            }
        }
    }
}
