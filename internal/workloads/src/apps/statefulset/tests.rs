//! Cases of StatefulSets: order, names, claims, partitions and adoption, and that every change settles.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::WAITING_MAX;
use super::*;
use crate::action::{Dependent, DependentKind};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// Carries out a set's actions. Pods become available when the test says so.
struct World {
    set: StatefulSet,
    pods: BTreeMap<String, Pod>,
    revisions: BTreeMap<String, ControllerRevision>,
    claims: BTreeMap<String, PersistentVolumeClaim>,
    now: i64,
    uids: u32,
}

impl World {
    fn new(spec: Value) -> World {
        let mut set = json!({
            "metadata": {"name": "web", "namespace": "team", "uid": "set", "generation": 1,
                "annotations": {"muster.io/user": "ann"}},
            "spec": {"replicas": 3, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "template": {"metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "c", "image": "one"}]}}},
        });
        for (key, value) in spec.as_object().unwrap() {
            set["spec"][key] = value.clone();
        }
        World {
            set: serde_json::from_value(set).unwrap(),
            pods: BTreeMap::new(),
            revisions: BTreeMap::new(),
            claims: BTreeMap::new(),
            now: 0,
            uids: 0,
        }
    }

    fn spec(&mut self) -> &mut StatefulSetSpec {
        self.set.spec.as_mut().unwrap()
    }

    fn image(&mut self, image: &str) {
        let pod = self.spec().template.spec.as_mut().unwrap();
        pod.containers[0].image = Some(image.to_owned());
    }

    fn step(&mut self) -> bool {
        self.now += 1;
        let pods: Vec<&Pod> = self.pods.values().collect();
        let revisions: Vec<&ControllerRevision> = self.revisions.values().collect();
        let claim = |name: &str| self.claims.get(name);
        let observed = ObservedStatefulSet {
            set: &self.set,
            pods: &pods,
            revisions: &revisions,
            claim: &claim,
            room: PodRoom::default(),
        };
        let outcome = reconcile(&observed, at(self.now));
        let changed =
            !outcome.actions.is_empty() || self.set.status.as_ref() != Some(&outcome.status);
        self.set.status = Some(outcome.status);
        for action in outcome.actions {
            self.uids += 1;
            let uid = Some(self.uids.to_string());
            match action {
                Action::CreatePod(mut pod) => {
                    pod.metadata.uid = uid;
                    let name = pod.metadata.name.clone().unwrap();
                    self.check_order(&name);
                    assert!(
                        self.pods.insert(name.clone(), *pod).is_none(),
                        "{name} twice"
                    );
                }
                Action::DeletePod { name, .. } => {
                    self.pods.remove(&name).unwrap();
                }
                Action::Create(Dependent::Revision(mut revision)) => {
                    revision.metadata.uid = uid;
                    let name = revision.metadata.name.clone().unwrap();
                    assert!(self.revisions.insert(name, *revision).is_none());
                }
                Action::Create(Dependent::Claim(mut claim)) => {
                    claim.metadata.uid = uid;
                    let name = claim.metadata.name.clone().unwrap();
                    assert!(self.claims.insert(name, *claim).is_none());
                }
                Action::Adopt {
                    kind, name, patch, ..
                } => {
                    let owners = patch["metadata"]["ownerReferences"].clone();
                    let owners = serde_json::from_value(owners).unwrap();
                    match kind {
                        DependentKind::Pod => {
                            self.pods.get_mut(&name).unwrap().metadata.owner_references = owners;
                        }
                        DependentKind::Revision => {
                            let revision = self.revisions.get_mut(&name).unwrap();
                            revision.metadata.owner_references = owners;
                        }
                        other => panic!("{other:?}"),
                    }
                }
                Action::Change {
                    kind, name, patch, ..
                } => match kind {
                    DependentKind::Claim => {
                        let owners = patch["metadata"]["ownerReferences"].clone();
                        let claim = self.claims.get_mut(&name).unwrap();
                        claim.metadata.owner_references = serde_json::from_value(owners).unwrap();
                    }
                    DependentKind::Revision => {
                        let number = patch["revision"].as_i64().unwrap();
                        self.revisions.get_mut(&name).unwrap().revision = number;
                    }
                    other => panic!("{other:?}"),
                },
                Action::Delete { name, .. } => {
                    self.revisions.remove(&name).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        changed
    }

    /// With `OrderedReady`, a pod is created when all pods of lower numbers are ready.
    fn check_order(&self, name: &str) {
        let spec = self.set.spec.as_ref().unwrap();
        if spec.pod_management_policy.as_deref() == Some("Parallel") {
            return;
        }
        let first = spec
            .ordinals
            .as_ref()
            .and_then(|all| all.start)
            .unwrap_or(0);
        let number: i32 = name.strip_prefix("web-").unwrap().parse().unwrap();
        for lower in first..number {
            let pod = self.pods.get(&format!("web-{lower}"));
            assert!(
                pod.is_some_and(is_running_and_ready),
                "{name} before web-{lower}"
            );
        }
    }

    fn ready(&mut self, name: &str) {
        let status = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": Time(at(self.now))}]});
        let pod = self.pods.get_mut(name).unwrap();
        pod.status = Some(serde_json::from_value(status).unwrap());
        pod.spec.as_mut().unwrap().node_name = Some("n".to_owned());
    }

    /// Runs until nothing changes; pods become available one after another.
    fn settle(&mut self) {
        for _ in 0..500 {
            let changed = self.step();
            let waits = |pod: &&Pod| !is_running_and_ready(pod);
            let next = self.pods.values().find(waits).cloned();
            match next {
                Some(pod) => self.ready(&pod.metadata.name.unwrap()),
                None if !changed => return,
                None => {}
            }
        }
        panic!("it does not settle: {:?}", self.set.status);
    }

    fn images(&self) -> Vec<String> {
        let image = |pod: &Pod| {
            let name = pod.metadata.name.clone().unwrap();
            let image = pod.spec.as_ref().unwrap().containers[0].image.clone();
            format!("{name} {}", image.unwrap())
        };
        self.pods.values().map(image).collect()
    }

    fn status(&self) -> &StatefulSetStatus {
        self.set.status.as_ref().unwrap()
    }
}

#[test]
fn pods_come_in_order_with_their_names_labels_and_claims() {
    let claims =
        json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let mut world = World::new(json!({"volumeClaimTemplates": claims}));
    world.step();
    world.step();
    assert_eq!(
        world.images(),
        ["web-0 one"],
        "the second waits for the first"
    );
    world.ready("web-0");
    world.step();
    assert_eq!(world.images(), ["web-0 one", "web-1 one"]);
    world.settle();
    assert_eq!(world.pods.len(), 3);
    let pod = serde_json::to_value(&world.pods["web-1"]).unwrap();
    let labels = &pod["metadata"]["labels"];
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "web-1");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "1");
    let revision = world.status().current_revision.clone().unwrap();
    assert_eq!(labels["controller-revision-hash"], revision.as_str());
    assert!(world.revisions.contains_key(&revision));
    assert_eq!(
        (&pod["spec"]["hostname"], &pod["spec"]["subdomain"]),
        (&json!("web-1"), &json!("web"))
    );
    let volume = &pod["spec"]["volumes"][0];
    assert_eq!(volume["persistentVolumeClaim"]["claimName"], "data-web-1");
    assert_eq!(pod["metadata"]["annotations"]["muster.io/user"], "ann");
    let names: Vec<&String> = world.claims.keys().collect();
    assert_eq!(names, ["data-web-0", "data-web-1", "data-web-2"]);
    let status = world.status();
    assert_eq!(
        (
            status.replicas,
            status.ready_replicas,
            status.updated_replicas
        ),
        (3, Some(3), Some(3))
    );
}

#[test]
fn surplus_pods_go_from_the_last_and_their_claims_by_the_policy() {
    let claims = json!([{"metadata": {"name": "data"}, "spec": {}}]);
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Delete"});
    let mut world = World::new(
        json!({"volumeClaimTemplates": claims, "persistentVolumeClaimRetentionPolicy": policy}),
    );
    world.settle();
    let owners = |world: &World, claim: &str| {
        let owners = world.claims[claim].metadata.owner_references.clone();
        let kinds = owners
            .unwrap_or_default()
            .into_iter()
            .map(|owner| owner.kind);
        kinds.collect::<Vec<String>>()
    };
    assert_eq!(owners(&world, "data-web-2"), ["StatefulSet"]);
    world.spec().replicas = Some(1);
    world.step();
    assert_eq!(world.images(), ["web-0 one", "web-1 one"]);
    assert_eq!(owners(&world, "data-web-2"), ["StatefulSet", "Pod"]);
    world.settle();
    assert_eq!(world.images(), ["web-0 one"]);
    assert_eq!(owners(&world, "data-web-0"), ["StatefulSet"]);
    let keep = world
        .spec()
        .persistent_volume_claim_retention_policy
        .as_mut()
        .unwrap();
    keep.when_deleted = Some("Retain".to_owned());
    world.settle();
    assert_eq!(owners(&world, "data-web-0"), Vec::<String>::new());
}

#[test]
fn a_new_template_replaces_the_last_pod_first_down_to_the_partition() {
    let mut world = World::new(json!({}));
    world.settle();
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}});
    world.spec().update_strategy = serde_json::from_value(rolling).unwrap();
    world.image("two");
    world.step();
    assert_eq!(
        world.images(),
        ["web-0 one", "web-1 one"],
        "the last one goes"
    );
    world.settle();
    assert_eq!(world.images(), ["web-0 one", "web-1 two", "web-2 two"]);
    let status = world.status();
    assert_ne!(status.current_revision, status.update_revision);
    assert_eq!(
        (status.current_replicas, status.updated_replicas),
        (Some(1), Some(2))
    );
    // A pod below the partition comes back with its old template.
    world.pods.remove("web-0");
    world.settle();
    assert_eq!(world.images()[0], "web-0 one");
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
    world.spec().update_strategy = serde_json::from_value(rolling).unwrap();
    world.settle();
    assert_eq!(world.images(), ["web-0 two", "web-1 two", "web-2 two"]);
    let status = world.status();
    assert_eq!(status.current_revision, status.update_revision);
    // An earlier template is the latest revision again.
    world.image("one");
    world.settle();
    assert_eq!(world.images(), ["web-0 one", "web-1 one", "web-2 one"]);
    let numbers: Vec<i64> = world.revisions.values().map(|one| one.revision).collect();
    assert_eq!(world.revisions.len(), 2);
    assert!(numbers.contains(&3), "{numbers:?}");
}

#[test]
fn pods_of_on_delete_keep_their_template_until_they_are_deleted() {
    let mut world = World::new(json!({"updateStrategy": {"type": "OnDelete"}}));
    world.settle();
    world.image("two");
    world.settle();
    assert_eq!(world.images(), ["web-0 one", "web-1 one", "web-2 one"]);
    world.pods.remove("web-2");
    world.settle();
    assert_eq!(world.images()[2], "web-2 two");
}

#[test]
fn parallel_pods_wait_for_no_other_and_millions_cost_what_may_wait() {
    let mut world = World::new(json!({"podManagementPolicy": "Parallel"}));
    world.step();
    assert_eq!(world.pods.len(), 3);
    world.spec().replicas = Some(i32::MAX);
    for _ in 0..40 {
        world.step();
    }
    assert_eq!(world.pods.len(), WAITING_MAX);
    world.spec().replicas = Some(0);
    world.step();
    assert!(world.pods.is_empty());
}

#[test]
fn an_ended_pod_is_replaced_under_its_name_and_a_deleted_set_makes_none() {
    let mut world = World::new(json!({}));
    world.settle();
    let failed = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
    world.pods.get_mut("web-1").unwrap().status = Some(failed);
    world.settle();
    assert_eq!(world.pods.len(), 3);
    world.set.metadata.deletion_timestamp = Some(Time(at(0)));
    world.pods.clear();
    world.step();
    assert!(world.pods.is_empty());
}

#[test]
fn numbers_start_where_the_spec_says() {
    let mut world = World::new(json!({"ordinals": {"start": 5}, "replicas": 2}));
    world.settle();
    assert_eq!(world.images(), ["web-5 one", "web-6 one"]);
}

#[test]
fn pods_and_revisions_of_a_deleted_set_are_adopted_and_stay() {
    let mut world = World::new(json!({}));
    world.settle();
    let uids = |world: &World| {
        let uids = world.pods.values().map(|pod| pod.metadata.uid.clone());
        uids.collect::<Vec<_>>()
    };
    let before = uids(&world);
    world.set.metadata.uid = Some("next".to_owned());
    world.set.status = None;
    for pod in world.pods.values_mut() {
        pod.metadata.owner_references = None;
    }
    for revision in world.revisions.values_mut() {
        revision.metadata.owner_references = None;
    }
    world.settle();
    assert_eq!((uids(&world), world.revisions.len()), (before, 1));
    let owner = |pod: &Pod| {
        pod.metadata.owner_references.clone().unwrap()[0]
            .uid
            .clone()
    };
    assert!(world.pods.values().all(|pod| owner(pod) == "next"));
    // A pod of another name is not a pod of the set, whatever its labels say.
    let mut other = world.pods["web-0"].clone();
    other.metadata.name = Some("other".to_owned());
    other.metadata.owner_references = None;
    world.pods.insert("other".to_owned(), other);
    assert!(!world.step());
}

proptest! {
    /// From any state, the set ends with the pods of its numbers, all of the last template.
    #[test]
    fn every_change_settles(
        parallel in any::<bool>(),
        changes in proptest::collection::vec((0_u8..3, 0_i32..6, 0_u8..5), 1..6),
    ) {
        let policy = if parallel { "Parallel" } else { "OrderedReady" };
        let mut world = World::new(json!({"podManagementPolicy": policy}));
        let (mut replicas, mut image) = (3, "one".to_owned());
        for (what, number, steps) in changes {
            match what {
                0 => {
                    replicas = number;
                    world.spec().replicas = Some(number);
                }
                1 => {
                    image = format!("image-{number}");
                    world.image(&image.clone());
                }
                _ => {
                    world.pods.remove(&format!("web-{number}"));
                }
            }
            for _ in 0..steps {
                world.step();
                let waits = |pod: &&Pod| !is_running_and_ready(pod);
                if let Some(pod) = world.pods.values().find(waits).cloned() {
                    world.ready(&pod.metadata.name.unwrap());
                }
            }
        }
        world.settle();
        let want: Vec<String> = (0..replicas).map(|number| format!("web-{number} {image}")).collect();
        prop_assert_eq!(world.images(), want);
    }
}
