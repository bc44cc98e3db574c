//! Cases of LeaderWorkerSets: names, variables, gangs, restarts, rollouts and partitions, and that every change settles.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use resources::kinds::LeaderWorkerSetStatus;
use resources::leader_worker_set::{
    GROUP_INDEX, LEADER_NAME, REVISION, SUBGROUP_INDEX, WORKER_INDEX,
};
use resources::names;
use serde_json::{Value, json};

use super::*;
use crate::action::{Dependent, DependentKind};

mod claims;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// Carries out a set's actions. Deleted pods are gone at the next step.
struct World {
    set: LeaderWorkerSet,
    pods: BTreeMap<String, Pod>,
    revisions: BTreeMap<String, ControllerRevision>,
    services: BTreeMap<String, Service>,
    pod_groups: BTreeMap<String, PodGroup>,
    claims: BTreeMap<String, PersistentVolumeClaim>,
    events: Vec<String>,
    now: i64,
    uids: u32,
}

impl World {
    fn new(spec: Value) -> World {
        let mut set = json!({
            "metadata": {"name": "vllm", "namespace": "team", "uid": "set", "generation": 1,
                "annotations": {"muster.io/user": "ann", "scheduling.volcano.sh/queue-name": "serving"}},
            "spec": {"replicas": 2, "startupPolicy": "LeaderCreated",
                "leaderWorkerTemplate": {"size": 3, "restartPolicy": "RecreateGroupOnPodRestart", "workerTemplate":
                    {"spec": {"containers": [{"name": "c", "image": "one",
                        "resources": {"requests": {"cpu": "1"}}, "env": [{"name": "OWN", "value": "$(LWS_GROUP_SIZE)"}]}]}}}},
        });
        merge(&mut set["spec"], &spec);
        World {
            set: serde_json::from_value(set).unwrap(),
            pods: BTreeMap::new(),
            revisions: BTreeMap::new(),
            services: BTreeMap::new(),
            pod_groups: BTreeMap::new(),
            claims: BTreeMap::new(),
            events: Vec::new(),
            now: 0,
            uids: 0,
        }
    }

    fn image(&mut self, image: &str) {
        let template = &mut self.set.spec.leader_worker_template.worker_template;
        let pod = template.spec.as_mut().unwrap();
        pod.containers[0].image = Some(image.to_owned());
    }

    fn decide(&self) -> ReconcileOutcome<LeaderWorkerSetStatus> {
        let pods: Vec<&Pod> = self.pods.values().collect();
        let revisions: Vec<&ControllerRevision> = self.revisions.values().collect();
        let services: Vec<&Service> = self.services.values().collect();
        let pod_groups: Vec<&PodGroup> = self.pod_groups.values().collect();
        let claim = |name: &str| self.claims.get(name);
        let observed = ObservedLeaderWorkerSet {
            set: &self.set,
            pods: &pods,
            revisions: &revisions,
            services: &services,
            pod_groups: &pod_groups,
            claim: &claim,
            room: PodRoom::default(),
        };
        reconcile(&observed, at(self.now))
    }

    /// One look and what follows it; false if nothing did.
    fn step(&mut self) -> bool {
        self.now += 1;
        self.pods.retain(|_, pod| !pod_facts::is_leaving(pod));
        let outcome = self.decide();
        let changed = !outcome.actions.is_empty()
            || self.set.status.as_ref() != Some(&outcome.status)
            || outcome.requeue_at.is_some();
        self.set.status = Some(outcome.status);
        let texts = outcome.events.into_iter().map(|event| event.message);
        self.events.extend(texts);
        for action in outcome.actions {
            self.carry_out(action);
        }
        changed
    }

    fn carry_out(&mut self, action: Action) {
        self.uids += 1;
        let uid = Some(self.uids.to_string());
        match action {
            Action::CreatePod(mut pod) => {
                pod.metadata.uid = uid;
                pod.metadata.creation_timestamp = Some(Time(at(self.now)));
                let name = pod.metadata.name.clone().unwrap();
                let gang = &pod.metadata.annotations.as_ref().unwrap()[names::GROUP_NAME];
                assert!(self.pod_groups.contains_key(gang), "{name} without {gang}");
                assert!(
                    self.pods.insert(name.clone(), *pod).is_none(),
                    "{name} twice"
                );
            }
            Action::DeletePod { name, .. } => {
                let pod = self.pods.get_mut(&name).unwrap();
                pod.metadata.deletion_timestamp = Some(Time(at(self.now)));
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
            Action::Change {
                kind: DependentKind::Claim,
                name,
                patch,
                ..
            } => {
                let owners = patch["metadata"]["ownerReferences"].clone();
                let claim = self.claims.get_mut(&name).unwrap();
                claim.metadata.owner_references = serde_json::from_value(owners).unwrap();
            }
            Action::Delete {
                kind: DependentKind::Revision,
                name,
                ..
            } => {
                self.revisions.remove(&name).unwrap();
            }
            Action::CreateService(mut service) => {
                service.metadata.uid = uid;
                let name = service.metadata.name.clone().unwrap();
                assert!(self.services.insert(name, *service).is_none());
            }
            Action::DeleteService { name, .. } => {
                self.services.remove(&name).unwrap();
            }
            Action::ApplyPodGroup(mut group) => {
                group.metadata.uid = group.metadata.uid.or(uid);
                let name = group.metadata.name.clone().unwrap();
                self.pod_groups.insert(name, *group);
            }
            Action::DeletePodGroup { name, .. } => {
                self.pod_groups.remove(&name).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }

    /// Makes a pod ready.
    fn start(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).unwrap();
        pod.spec.as_mut().unwrap().node_name = Some("n".to_owned());
        let status =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        pod.status = serde_json::from_value(status).unwrap();
    }

    fn start_all(&mut self) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            if !pod_facts::is_over(&self.pods[&name]) && !pod_facts::is_ready(&self.pods[&name]) {
                self.start(&name);
            }
        }
    }

    fn fail(&mut self, name: &str) {
        let status = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 7}}}]});
        self.pods.get_mut(name).unwrap().status = serde_json::from_value(status).unwrap();
    }

    /// Goes on until nothing changes, with all pods that can start starting.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.start_all();
            if !self.step() {
                return;
            }
        }
        panic!("it does not settle: {:?}", self.decide());
    }

    fn names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }

    fn images(&self) -> Vec<String> {
        let image = |pod: &Pod| {
            pod.spec.as_ref().unwrap().containers[0]
                .image
                .clone()
                .unwrap()
        };
        self.pods.values().map(image).collect()
    }

    fn holds(&self, type_: &str) -> bool {
        let status = self.set.status.as_ref().unwrap();
        let mut all = status.conditions.iter();
        all.any(|one| one.type_ == type_ && one.status == "True")
    }
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

fn label<'p>(pod: &'p Pod, key: &str) -> &'p str {
    let labels = pod.metadata.labels.as_ref().unwrap();
    labels.get(key).map_or("", String::as_str)
}

#[test]
fn groups_have_names_labels_and_variables_as_upstream() {
    let mut world = World::new(json!({}));
    world.step();
    assert_eq!(
        world.names(),
        [
            "vllm-0", "vllm-0-1", "vllm-0-2", "vllm-1", "vllm-1-1", "vllm-1-2"
        ]
    );
    let pod = &world.pods["vllm-1-2"];
    assert_eq!(
        (label(pod, GROUP_INDEX), label(pod, WORKER_INDEX)),
        ("1", "2")
    );
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations[LEADER_NAME], "vllm-1");
    assert_eq!(annotations[names::USER], "ann");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.subdomain.as_deref(), Some("vllm"));
    let env = spec.containers[0].env.as_ref().unwrap();
    let env: Vec<String> = env
        .iter()
        .map(|one| format!("{}={}", one.name, one.value.as_deref().unwrap_or_default()))
        .collect();
    assert_eq!(
        env,
        [
            "LWS_LEADER_ADDRESS=vllm-1.vllm.team",
            "LWS_GROUP_SIZE=3",
            "LWS_WORKER_INDEX=2",
            "OWN=$(LWS_GROUP_SIZE)"
        ]
    );
    assert_eq!(world.services.keys().collect::<Vec<_>>(), ["vllm"]);
    assert_eq!(world.pod_groups.len(), 2);
    let group = world.pod_groups.values().next().unwrap();
    assert_eq!(group.spec.min_member, Some(3));
    assert_eq!(group.spec.queue.as_deref(), Some("serving"));
    assert_eq!(group.spec.min_resources.as_ref().unwrap()["cpu"].0, "3");
    assert!(world.holds("Progressing"));
    world.settle();
    let status = world.set.status.as_ref().unwrap();
    assert_eq!(
        (status.ready_replicas, status.updated_replicas),
        (Some(2), Some(2))
    );
    assert_eq!(
        status.hpa_pod_selector.as_deref(),
        Some("leaderworkerset.sigs.k8s.io/name=vllm,leaderworkerset.sigs.k8s.io/worker-index=0")
    );
    assert!(world.holds("Available") && !world.holds("Progressing"));
}

#[test]
fn a_unique_subdomain_is_each_groups_own() {
    let mut world = World::new(json!({"networkConfig": {"subdomainPolicy": "UniquePerReplica"}}));
    world.settle();
    assert_eq!(
        world.services.keys().collect::<Vec<_>>(),
        ["vllm-0", "vllm-1"]
    );
    let pod = world.pods["vllm-1-1"].spec.as_ref().unwrap();
    assert_eq!(pod.subdomain.as_deref(), Some("vllm-1"));
    world.set.spec.replicas = Some(1);
    world.settle();
    assert_eq!(world.services.keys().collect::<Vec<_>>(), ["vllm-0"]);
    assert_eq!(world.pod_groups.len(), 1);
}

#[test]
fn subgroups_count_the_leader_as_asked() {
    let parts = |policy: Value| {
        let mut world = World::new(json!({"replicas": 1,
            "leaderWorkerTemplate": {"size": 5, "subGroupPolicy": policy}}));
        world.step();
        let parts = world
            .pods
            .values()
            .map(|pod| label(pod, SUBGROUP_INDEX).to_owned());
        parts.collect::<Vec<_>>().join(",")
    };
    assert_eq!(parts(json!({"subGroupSize": 2})), "0,0,0,1,1");
    assert_eq!(
        parts(json!({"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"})),
        ",0,0,1,1"
    );
    assert_eq!(parts(json!({"subGroupSize": 5})), "0,0,0,0,0");
}

#[test]
fn workers_wait_for_a_leader_that_must_be_ready() {
    let mut world = World::new(json!({"replicas": 1, "startupPolicy": "LeaderReady"}));
    world.step();
    world.step();
    assert_eq!(world.names(), ["vllm-0"]);
    let group = world.pod_groups.values().next().unwrap();
    assert_eq!(group.spec.min_member, Some(1));
    world.start("vllm-0");
    world.step();
    assert_eq!(world.names(), ["vllm-0", "vllm-0-1", "vllm-0-2"]);
}

#[test]
fn a_group_is_created_again_as_a_whole_and_not_in_a_tight_loop() {
    let mut world = World::new(json!({}));
    world.settle();
    let before = world.pods["vllm-0"].metadata.uid.clone();
    let other = world.pods["vllm-1"].metadata.uid.clone();
    world.now += 100;
    world.fail("vllm-0-2");
    world.step();
    world.step();
    assert_ne!(world.pods["vllm-0"].metadata.uid, before);
    assert_eq!(world.pods["vllm-1"].metadata.uid, other);
    let told = world
        .events
        .iter()
        .find(|text| text.contains("group 0 is created again"));
    assert!(told.unwrap().contains("exited with code 7"), "{told:?}");
    // Right after its start it waits.
    let before = world.pods["vllm-0"].metadata.uid.clone();
    world.start_all();
    world.fail("vllm-0-1");
    world.step();
    world.step();
    assert_eq!(world.pods["vllm-0"].metadata.uid, before);
    assert!(world.decide().requeue_at.is_some());
    world.now += LIFE_MIN;
    world.step();
    world.step();
    assert_ne!(world.pods["vllm-0"].metadata.uid, before);
}

#[test]
fn a_restarted_container_counts_by_the_policy() {
    for (policy, again) in [
        ("RecreateGroupOnPodRestart", true),
        ("RecreateGroupAfterStart", false),
        ("None", false),
    ] {
        let mut world =
            World::new(json!({"replicas": 1, "leaderWorkerTemplate": {"restartPolicy": policy}}));
        world.step();
        world.start("vllm-0");
        world.start("vllm-0-1");
        world.now += 100;
        let pod = world.pods.get_mut("vllm-0-1").unwrap();
        let statuses =
            json!([{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 1}]);
        pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(statuses).unwrap();
        let before = world.pods["vllm-0"].metadata.uid.clone();
        world.step();
        world.step();
        let recreated = world.pods["vllm-0"].metadata.uid != before;
        assert_eq!(recreated, again, "{policy}, one pod waits");
        world.start_all();
        world.step();
        world.step();
        let recreated = world.pods["vllm-0"].metadata.uid != before;
        assert_eq!(recreated, policy != "None", "{policy}, all have started");
    }
}

#[test]
fn a_rollout_keeps_groups_serving_and_a_partition_keeps_the_old_template() {
    for (unavailable, surge) in [(1, 0), (0, 1), (2, 2)] {
        let mut world = World::new(json!({"replicas": 4, "leaderWorkerTemplate": {"size": 2},
            "rolloutStrategy": {"rollingUpdateConfiguration":
                {"maxUnavailable": unavailable, "maxSurge": surge, "partition": 0}}}));
        world.settle();
        world.now += 100;
        world.image("two");
        let mut most = 0;
        for _ in 0..200 {
            let groups = world
                .pods
                .keys()
                .filter(|name| name.matches('-').count() == 1);
            most = most.max(groups.count());
            world.start_all();
            let changed = world.step();
            let ready = world
                .set
                .status
                .as_ref()
                .unwrap()
                .ready_replicas
                .unwrap_or(0);
            assert!(
                ready >= 4 - unavailable,
                "{ready} ready, {unavailable} may be missing"
            );
            if !changed {
                break;
            }
        }
        assert_eq!(most, usize::try_from(4 + surge).unwrap());
        assert_eq!(world.images(), vec!["two"; 8]);
        assert!(world.holds("Available") && !world.holds("UpdateInProgress"));
        assert_eq!(world.revisions.len(), 1);
    }
    let mut world = World::new(json!({"replicas": 3, "leaderWorkerTemplate": {"size": 1},
        "rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": 1, "partition": 2}}}));
    world.settle();
    world.now += 100;
    world.image("two");
    world.settle();
    assert_eq!(world.images(), ["one", "one", "two"]);
    assert!(world.holds("Available"));
    // A group below the partition comes back as it was.
    world.fail("vllm-0");
    world.now += 100;
    world.settle();
    assert_eq!(world.images(), ["one", "one", "two"]);
    let rolling = world.set.spec.rollout_strategy.as_mut().unwrap();
    rolling
        .rolling_update_configuration
        .as_mut()
        .unwrap()
        .partition = Some(0);
    world.settle();
    assert_eq!(world.images(), ["two", "two", "two"]);
}

#[test]
fn a_set_of_a_million_groups_creates_what_may_wait() {
    let mut world = World::new(json!({"replicas": 1_000_000, "leaderWorkerTemplate": {"size": 2}}));
    world.step();
    assert_eq!(world.pods.len(), 500);
    for _ in 0..5 {
        world.step();
    }
    assert_eq!(world.pods.len(), crate::job::WAITING_MAX as usize);
    world.start("vllm-0");
    world.start("vllm-0-1");
    world.step();
    assert_eq!(world.pods.len(), crate::job::WAITING_MAX as usize + 2);
}

#[test]
fn pods_and_objects_of_others_are_left_alone() {
    let mut world = World::new(json!({"replicas": 1, "leaderWorkerTemplate": {"size": 1}}));
    let foreign: Pod = serde_json::from_value(
        json!({"metadata": {"name": "vllm-7", "namespace": "team", "uid": "x"}, "spec": {"containers": []}}),
    )
    .unwrap();
    world.pods.insert("vllm-7".to_owned(), foreign);
    world.settle();
    assert!(world.pods.contains_key("vllm-7"));
    // One of its own that no group has room for goes.
    let mut stray = world.pods["vllm-0"].clone();
    stray.metadata.name = Some("vllm-0-5".to_owned());
    stray.metadata.uid = Some("stray".to_owned());
    world.pods.insert("vllm-0-5".to_owned(), stray);
    world.settle();
    assert_eq!(world.names(), ["vllm-0", "vllm-7"]);
}

/// Shrunk from the property below: the rest of the group was deleted and its leader created again in turn, for ever.
#[test]
fn a_group_that_lost_a_pod_gets_the_new_template_whole() {
    let mut world = World::new(json!({}));
    world.step();
    let now = at(world.now);
    let leader = world.pods.get_mut("vllm-0").unwrap();
    leader.metadata.deletion_timestamp = Some(Time(now));
    world.image("0");
    world.settle();
    assert!(world.images().iter().all(|image| image == "0"));
    assert!(world.holds("Available"));
}

#[derive(Clone, Debug)]
enum Op {
    Replicas(i32),
    Image(u8),
    Size(i32),
    Partition(i32),
    Fail(usize),
    Delete(usize),
    Step,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..5).prop_map(Op::Replicas),
        (0..3_u8).prop_map(Op::Image),
        (1..4).prop_map(Op::Size),
        (0..4).prop_map(Op::Partition),
        any::<usize>().prop_map(Op::Fail),
        any::<usize>().prop_map(Op::Delete),
        Just(Op::Step),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_all_wanted_groups_are_whole_in_the_end(ops in prop::collection::vec(op(), 0..20)) {
        let mut world = World::new(json!({
            "leaderWorkerTemplate": {"volumeClaimTemplates": [{"metadata": {"name": "data"}}],
                "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Delete"}},
            "rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 1}}}));
        for op in ops {
            let nth = |world: &World, at: usize| {
                let names = world.names();
                (!names.is_empty()).then(|| names[at % names.len()].to_owned())
            };
            match op {
                Op::Replicas(count) => world.set.spec.replicas = Some(count),
                Op::Image(image) => world.image(&image.to_string()),
                Op::Size(size) => world.set.spec.leader_worker_template.size = Some(size),
                Op::Partition(partition) => {
                    let rolling = world.set.spec.rollout_strategy.as_mut().unwrap();
                    rolling.rolling_update_configuration.as_mut().unwrap().partition = Some(partition);
                }
                Op::Fail(at) => {
                    if let Some(name) = nth(&world, at) {
                        world.fail(&name);
                    }
                }
                Op::Delete(at) => {
                    if let Some(name) = nth(&world, at) {
                        let now = at_now(&world);
                        world.pods.get_mut(&name).unwrap().metadata.deletion_timestamp = Some(Time(now));
                    }
                }
                Op::Step => {
                    world.start_all();
                    world.step();
                }
            }
        }
        world.settle();
        let replicas = usize::try_from(world.set.spec.replicas.unwrap()).unwrap();
        let leaders = world.pods.values().filter(|pod| label(pod, WORKER_INDEX) == "0").count();
        prop_assert_eq!(leaders, replicas);
        prop_assert_eq!(world.pod_groups.len(), replicas);
        prop_assert!(world.holds("Available"));
        for pod in world.pods.values() {
            let gang = &pod.metadata.annotations.as_ref().unwrap()[names::GROUP_NAME];
            prop_assert!(world.pod_groups.contains_key(gang));
            prop_assert!(gang.ends_with(label(pod, REVISION)));
            let claim = format!("data-{}", pod_facts::name(pod));
            prop_assert!(world.claims.contains_key(&claim));
        }
    }
}

fn at_now(world: &World) -> Timestamp {
    at(world.now)
}
