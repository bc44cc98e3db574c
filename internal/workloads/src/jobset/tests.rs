//! JobSets over time: tables of policies, and a property that decisions come to rest whatever happens to the Jobs.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use resources::failure::FailureAction;
use resources::jobset as labels;
use serde_json::{Value, json};

use super::*;
use crate::action::NoteKind;

const START: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

/// A JobSet with the objects that its controller created, and a clock.
struct World {
    job_set: JobSet,
    jobs: BTreeMap<String, Job>,
    pods: BTreeMap<String, Pod>,
    group: Option<PodGroup>,
    services: Vec<Service>,
    events: Vec<EventNote>,
    second: i64,
    uids: u32,
    deleted: bool,
    room: PodRoom,
}

fn job(name: &str, more: &Value) -> Value {
    let pod = json!({"metadata": {}, "spec": {"restartPolicy": "Never", "containers": [
        {"name": "c", "command": ["x"], "resources": {"requests": {"cpu": "2"}}}]}});
    let mut job = json!({"name": name, "replicas": 1, "groupName": "default", "template": {"spec": {
        "completionMode": "Indexed", "parallelism": 2, "completions": 2, "template": pod}}});
    for (key, value) in more.as_object().unwrap() {
        job[key] = value.clone();
    }
    job
}

impl World {
    fn new(spec: Value) -> World {
        let job_set = json!({"apiVersion": API_VERSION, "kind": "JobSet",
            "metadata": {"name": "js", "namespace": "team", "uid": "set-uid",
                "annotations": {names::USER: "ann", names::QUEUE_NAME: "gold"}},
            "spec": spec});
        World {
            job_set: serde_json::from_value(job_set).unwrap(),
            jobs: BTreeMap::new(),
            pods: BTreeMap::new(),
            group: None,
            services: Vec::new(),
            events: Vec::new(),
            second: 0,
            uids: 0,
            deleted: false,
            room: PodRoom::default(),
        }
    }

    fn two(more: Value) -> World {
        let mut spec = json!({"replicatedJobs": [job("leader", &json!({})), job("worker", &json!({"replicas": 2}))]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        World::new(spec)
    }

    fn decide(&self) -> ReconcileOutcome<JobSetStatus> {
        let jobs: Vec<&Job> = self.jobs.values().collect();
        let pods: Vec<&Pod> = self.pods.values().collect();
        let services: Vec<&Service> = self.services.iter().collect();
        let observed = ObservedJobSet {
            job_set: &self.job_set,
            jobs: &jobs,
            pods: &pods,
            pod_group: self.group.as_ref(),
            services: &services,
            room: self.room,
        };
        reconcile(&observed, at(self.second))
    }

    /// Reconciles once; true if something was done.
    fn step(&mut self) -> bool {
        let outcome = self.decide();
        let known = self.job_set.status.clone().unwrap_or_default();
        let changed = known != outcome.status
            || !outcome.actions.is_empty()
            || !outcome.annotations.is_empty();
        for (name, value) in outcome.annotations {
            let annotations = self.job_set.metadata.annotations.get_or_insert_default();
            match value {
                Some(value) => drop(annotations.insert(name, value)),
                None => drop(annotations.remove(&name)),
            }
        }
        for action in outcome.actions {
            self.act(action);
        }
        self.job_set.status = Some(outcome.status);
        self.events.extend(outcome.events);
        changed
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Create(Dependent::Job(mut job)) => {
                let name = job.metadata.name.clone().unwrap();
                if self.jobs.contains_key(&name) {
                    return;
                }
                self.uids += 1;
                job.metadata.uid = Some(format!("uid-{}", self.uids));
                job.metadata.creation_timestamp = Some(Time(at(self.second)));
                self.jobs.insert(name, *job);
            }
            Action::Change { name, patch, .. } => {
                let spec = self.jobs.get_mut(&name).unwrap().spec.as_mut().unwrap();
                spec.suspend = patch["spec"]["suspend"].as_bool();
            }
            // The garbage collector takes the pods later.
            Action::Delete { name, uid, .. } => {
                assert_eq!(self.jobs[&name].metadata.uid.as_deref(), Some(uid.as_str()));
                self.jobs.remove(&name);
            }
            Action::ApplyPodGroup(mut group) => {
                group.metadata.uid = Some("group".to_owned());
                self.group = Some(*group);
            }
            Action::DeletePodGroup { .. } => self.group = None,
            Action::CreateService(service) => self.services.push(*service),
            Action::DeleteJob { .. } => self.deleted = true,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            if !self.step() {
                return;
            }
        }
        panic!("decisions do not come to rest: {:#?}", self.decide());
    }

    /// The Jobs' pods as their controller would create them.
    fn run_pods(&mut self) {
        for job in self.jobs.values() {
            let spec = job.spec.as_ref().unwrap();
            let ended = job
                .status
                .as_ref()
                .is_some_and(|status| status.conditions.is_some());
            if ended || spec.suspend == Some(true) {
                continue;
            }
            for index in 0..spec.parallelism.unwrap() {
                let (name, uid) = (
                    job.metadata.name.as_ref().unwrap(),
                    job.metadata.uid.as_ref().unwrap(),
                );
                let template = spec.template.metadata.clone().unwrap();
                let mut own = template.labels.unwrap();
                own.insert(names::BATCH_JOB_NAME.to_owned(), name.clone());
                own.insert(names::COMPLETION_INDEX.to_owned(), index.to_string());
                let pod = json!({"metadata": {"name": format!("{name}-{index}"), "uid": format!("{uid}-{index}"),
                    "labels": own, "creationTimestamp": at(self.second),
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": true}]},
                    "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"}});
                let pod: Pod = serde_json::from_value(pod).unwrap();
                self.pods.entry(format!("{uid}-{index}")).or_insert(pod);
            }
        }
    }

    /// Takes away pods whose Job is gone.
    fn collect(&mut self) {
        let uids: Vec<String> = self
            .jobs
            .values()
            .filter_map(|job| job.metadata.uid.clone())
            .collect();
        self.pods.retain(|_, pod| {
            let owner = &pod.metadata.owner_references.as_ref().unwrap()[0];
            uids.contains(&owner.uid)
        });
    }

    fn set(&mut self, job: &str, status: Value) {
        let status = serde_json::from_value(status).unwrap();
        self.jobs.get_mut(job).unwrap().status = Some(status);
    }

    fn ready(&mut self, job: &str) {
        self.set(job, json!({"active": 2, "ready": 2}));
    }

    fn all_ready(&mut self) {
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        names.iter().for_each(|name| self.ready(name));
        self.run_pods();
    }

    fn complete(&mut self, job: &str) {
        self.set(
            job,
            json!({"succeeded": 2, "conditions": [{"type": "Complete", "status": "True",
            "lastTransitionTime": at(self.second)}]}),
        );
        let uid = self.jobs[job].metadata.uid.clone().unwrap();
        for index in 0..2 {
            if let Some(pod) = self.pods.get_mut(&format!("{uid}-{index}")) {
                pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
            }
        }
    }

    fn fail(&mut self, job: &str, reason: &str, message: &str) {
        self.set(job, json!({"failed": 1, "conditions": [{"type": "Failed", "status": "True", "reason": reason,
            "message": message, "lastTransitionTime": at(self.second)}]}));
    }

    /// A pod of a Job ends as this status says.
    fn end_pod(&mut self, job: &str, index: u32, mut status: Value) {
        let uid = self.jobs[job].metadata.uid.clone().unwrap();
        if status["containerStatuses"].is_null() && status["reason"].is_null() {
            status["containerStatuses"] = json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": status["code"], "finishedAt": at(self.second)}}}]);
        }
        status["phase"] = json!("Failed");
        status["conditions"] =
            json!([{"type": "Ready", "status": "False", "lastTransitionTime": at(self.second)}]);
        let pod = self.pods.get_mut(&format!("{uid}-{index}")).unwrap();
        pod.status = Some(serde_json::from_value(status).unwrap());
    }

    fn status(&self) -> &JobSetStatus {
        self.job_set.status.as_ref().unwrap()
    }

    fn condition(&self, type_: &str) -> Option<(String, String, String)> {
        let mut all = self.status().conditions.iter();
        let found = all.find(|known| known.type_ == type_)?;
        Some((
            found.status.clone(),
            found.reason.clone(),
            found.message.clone(),
        ))
    }

    fn names(&self) -> Vec<&str> {
        self.jobs.keys().map(String::as_str).collect()
    }

    fn record(&self) -> Option<FailureRecord> {
        let annotations = self.job_set.metadata.annotations.as_ref()?;
        FailureRecord::read(|name| annotations.get(name).map(String::as_str))
    }
}

fn holds_in(world: &World, type_: &str) -> bool {
    world
        .condition(type_)
        .is_some_and(|(status, _, _)| status == "True")
}

#[test]
fn the_jobs_have_jobsets_names_labels_and_host_names_and_are_one_gang() {
    let mut world = World::two(json!({"coordinator": {"replicatedJob": "leader", "podIndex": 1}}));
    world.settle();
    assert_eq!(world.names(), ["js-leader-0", "js-worker-0", "js-worker-1"]);
    let job = &world.jobs["js-worker-1"];
    let own = job.metadata.labels.as_ref().unwrap();
    let spec = job.spec.as_ref().unwrap();
    let template = spec.template.metadata.as_ref().unwrap();
    let (pod_labels, pod_notes) = (
        template.labels.as_ref().unwrap(),
        template.annotations.as_ref().unwrap(),
    );
    for (label, value) in [
        (labels::NAME, "js"),
        (labels::UID, "set-uid"),
        (labels::REPLICATED_JOB, "worker"),
        (labels::REPLICAS, "2"),
        (labels::GLOBAL_REPLICAS, "3"),
        (labels::JOB_INDEX, "1"),
        (labels::GLOBAL_INDEX, "2"),
        // The SHA-1 of `team/js-worker-1`.
        (labels::JOB_KEY, "6bf8c7a0a4c5c2bd9e8d4ad5c53e4c0ff5ee4d3c"),
        (labels::RESTART_ATTEMPT, "0"),
        (labels::JOB_RESTART_ATTEMPT, "0"),
        (labels::GROUP_NAME, "default"),
        (labels::GROUP_REPLICAS, "3"),
        (labels::GROUP_INDEX, "2"),
        (labels::COORDINATOR, "js-leader-0-1.js"),
    ] {
        if label == labels::JOB_KEY {
            assert_eq!(own[label].len(), 40);
        } else {
            assert_eq!(own[label], value, "{label}");
        }
        for map in [
            job.metadata.annotations.as_ref().unwrap(),
            pod_labels,
            pod_notes,
        ] {
            assert_eq!(map[label], own[label], "{label}");
        }
    }
    assert_eq!(pod_notes[names::GROUP_NAME], "js");
    assert_eq!(pod_notes[names::TASK_SPEC], "worker");
    assert_eq!(
        job.metadata.annotations.as_ref().unwrap()[names::USER],
        "ann"
    );
    let pod = spec.template.spec.as_ref().unwrap();
    assert_eq!(pod.subdomain.as_deref(), Some("js"));
    assert_eq!((spec.suspend, spec.completions), (Some(false), Some(2)));
    let group = &world.group.as_ref().unwrap().spec;
    assert_eq!(
        (group.min_member, group.queue.as_deref()),
        (Some(6), Some("gold"))
    );
    let tasks = BTreeMap::from([("leader".to_owned(), 2), ("worker".to_owned(), 4)]);
    assert_eq!(group.min_task_member.as_ref(), Some(&tasks));
    let service = world.services[0].spec.as_ref().unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    assert_eq!(service.publish_not_ready_addresses, Some(true));
    assert_eq!(service.selector.as_ref().unwrap()[labels::NAME], "js");
}

#[test]
fn a_job_set_is_complete_as_its_success_policy_says_and_is_deleted_when_its_time_is_over() {
    for (policy, complete) in [
        (
            json!({"operator": "All"}),
            vec!["js-leader-0", "js-worker-0", "js-worker-1"],
        ),
        (json!({"operator": "Any"}), vec!["js-worker-1"]),
        (
            json!({"operator": "All", "targetReplicatedJobs": ["leader"]}),
            vec!["js-leader-0"],
        ),
    ] {
        let mut world = World::two(json!({"successPolicy": policy, "ttlSecondsAfterFinished": 30}));
        world.settle();
        world.all_ready();
        world.settle();
        assert_eq!(world.status().replicated_jobs_status[1].ready, 2);
        assert!(world.status().start_time.is_some());
        for (done, name) in complete.iter().enumerate() {
            assert!(world.status().terminal_state.is_none(), "{policy} {done}");
            world.complete(name);
            world.settle();
        }
        assert_eq!(world.status().terminal_state.as_deref(), Some("Completed"));
        let (status, reason, _) = world.condition("Completed").unwrap();
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("True", "AllJobsCompleted")
        );
        assert!(world.group.is_none());
        // The Jobs that still ran are deleted.
        assert_eq!(world.names().len(), complete.len());
        assert!(!world.deleted);
        world.second += 30;
        world.step();
        assert!(world.deleted);
    }
}

#[test]
fn without_a_failure_policy_a_failed_job_fails_the_job_set_and_the_cause_is_told() {
    let mut world = World::two(json!({}));
    world.settle();
    world.all_ready();
    world.settle();
    world.second = 5;
    world.end_pod("js-worker-1", 1, json!({"code": 3, "message": "no shard"}));
    world.fail(
        "js-worker-1",
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    );
    world.settle();
    let (_, reason, message) = world.condition("Failed").unwrap();
    assert_eq!(reason, "FailedJobs");
    assert_eq!(
        message,
        "jobset failed due to one or more job failures (first failed job: js-worker-1): \
         Rank 5 (js-worker-1-1) exited with code 3"
    );
    let record = world.record().unwrap();
    assert_eq!(
        (record.rank, record.action, record.charged),
        (Some(5), Some(FailureAction::Fail), true)
    );
    assert_eq!(world.names(), ["js-worker-1"]);
    assert!(world.group.is_none());
    assert_eq!(world.status().terminal_state.as_deref(), Some("Failed"));
}

#[test]
fn a_restart_creates_all_jobs_anew_once_the_pods_before_have_ended_and_counts() {
    let mut world = World::two(json!({"failurePolicy": {"maxRestarts": 1}}));
    world.settle();
    world.all_ready();
    world.settle();
    world.second = 5;
    world.fail("js-leader-0", "BackoffLimitExceeded", "limit");
    world.settle();
    assert_eq!(world.status().restarts, 1);
    assert_eq!(world.status().restarts_count_towards_max, Some(1));
    let (status, reason, message) = world.condition("RestartingJobSet").unwrap();
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("True", "DefaultFailurePolicy")
    );
    assert!(
        message.starts_with(
            "applying RestartJobSet failure policy action (first failed job: js-leader-0)"
        ),
        "{message}"
    );
    // The pods of the first run still end.
    assert!(world.names().is_empty());
    assert_eq!(
        world.status().message.as_deref(),
        Some("The pods of the run before are ending.")
    );
    assert!(world.decide().requeue_at.is_some());
    world.collect();
    world.settle();
    assert_eq!(world.names().len(), 3);
    let restarted = world.jobs["js-worker-0"].metadata.labels.as_ref().unwrap();
    assert_eq!(restarted[labels::RESTART_ATTEMPT], "1");
    world.all_ready();
    world.settle();
    let (status, reason, _) = world.condition("RestartingJobSet").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "JobsReady"));
    world.fail("js-worker-1", "BackoffLimitExceeded", "limit");
    world.settle();
    let (_, reason, _) = world.condition("Failed").unwrap();
    assert_eq!(reason, "ReachedMaxRestarts");
    let warned = world
        .events
        .iter()
        .filter(|event| event.kind == NoteKind::Warning)
        .count();
    assert_eq!(warned, 2, "{:?}", world.events);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = json!([
        {"name": "code", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": ["exit code (3|4)\\b"]},
        {"name": "leader", "action": "RestartJobSetAndIgnoreMaxRestarts", "targetReplicatedJobs": ["leader"]},
        {"name": "worker", "action": "RestartJob", "targetReplicatedJobs": ["worker"]},
    ]);
    for (job, reason, message, wanted) in [
        (
            "js-worker-0",
            "PodFailurePolicy",
            "failed with exit code 4",
            (0, None, "FailJobSetFailurePolicyAction"),
        ),
        (
            "js-worker-0",
            "PodFailurePolicy",
            "failed with exit code 41",
            (0, Some(1), ""),
        ),
        (
            "js-leader-0",
            "BackoffLimitExceeded",
            "failed with exit code 3",
            (1, None, ""),
        ),
        (
            "js-worker-1",
            "BackoffLimitExceeded",
            "limit",
            (0, Some(1), ""),
        ),
    ] {
        let mut world = World::two(json!({"failurePolicy": {"maxRestarts": 3, "rules": rules}}));
        world.settle();
        world.all_ready();
        world.settle();
        world.fail(job, reason, message);
        world.settle();
        world.collect();
        world.settle();
        let (restarts, alone, failed) = wanted;
        assert_eq!(world.status().restarts, restarts, "{job} {message}");
        let counts = &world.status().replicated_jobs_status[1];
        let sum = counts
            .job_restarts
            .as_ref()
            .map(|all| all.iter().sum::<i32>());
        assert_eq!(sum, alone, "{job} {message}");
        let found = world.condition("Failed").map(|(_, reason, _)| reason);
        assert_eq!(found.unwrap_or_default(), failed);
        if alone.is_some() {
            // Only this Job is another one.
            assert_eq!(world.names().len(), 3);
            let anew = world.jobs[job].metadata.labels.as_ref().unwrap();
            assert_eq!(
                (
                    anew[labels::JOB_RESTART_ATTEMPT].as_str(),
                    anew[labels::RESTART_ATTEMPT].as_str()
                ),
                ("1", "0")
            );
            assert!(world.jobs[job].status.is_none());
            assert!(world.jobs["js-leader-0"].status.is_some());
        }
        if restarts > 0 {
            assert_eq!(world.status().restarts_count_towards_max, None);
        }
    }
}

#[test]
fn what_the_platform_ended_counts_towards_no_limit() {
    let lost = json!({"reason": "NodeLost", "message": "The node has not reported for 40 s."});
    for policy in [json!({}), json!({"failurePolicy": {"maxRestarts": 0}})] {
        let mut world = World::two(policy);
        world.settle();
        world.all_ready();
        world.settle();
        for run in 1..=3 {
            world.second += 100;
            world.end_pod("js-worker-0", 0, lost.clone());
            world.settle();
            // Another rank fails because of it.
            world.second += 3;
            world.end_pod("js-leader-0", 0, json!({"code": 1}));
            world.fail("js-leader-0", "BackoffLimitExceeded", "limit");
            world.settle();
            world.collect();
            world.settle();
            assert_eq!(
                (
                    world.status().restarts,
                    world.status().restarts_count_towards_max
                ),
                (run, None)
            );
            assert!(world.condition("Failed").is_none());
            world.all_ready();
            world.settle();
        }
        // The program's own failure in the next run does count.
        world.second += 100;
        world.end_pod("js-leader-0", 0, json!({"code": 1}));
        world.fail("js-leader-0", "BackoffLimitExceeded", "limit");
        world.settle();
        assert!(holds_in(&world, "Failed"));
    }
}

#[test]
fn jobs_wait_for_those_that_they_depend_on_and_then_are_the_gang() {
    for (status, in_order) in [("Complete", false), ("Ready", false), ("Ready", true)] {
        let mut spec =
            json!({"replicatedJobs": [job("init", &json!({})), job("train", &json!({}))]});
        if in_order {
            spec["startupPolicy"] = json!({"startupPolicyOrder": "InOrder"});
        } else {
            spec["replicatedJobs"][1]["dependsOn"] = json!([{"name": "init", "status": status}]);
        }
        let mut world = World::new(spec);
        world.settle();
        assert_eq!(world.names(), ["js-init-0"]);
        assert_eq!(world.group.as_ref().unwrap().spec.min_member, Some(2));
        assert_eq!(holds_in(&world, "StartupPolicyInProgress"), in_order);
        world.ready("js-init-0");
        world.settle();
        assert_eq!(world.names().len(), if status == "Ready" { 2 } else { 1 });
        world.complete("js-init-0");
        world.settle();
        assert_eq!(world.names().len(), 2);
        // The complete job is not a part of the gang any more.
        let tasks = world
            .group
            .as_ref()
            .unwrap()
            .spec
            .min_task_member
            .clone()
            .unwrap();
        assert_eq!(tasks, BTreeMap::from([("train".to_owned(), 2)]));
        world.ready("js-train-0");
        world.settle();
        assert_eq!(holds_in(&world, "StartupPolicyCompleted"), in_order);
        assert!(!holds_in(&world, "StartupPolicyInProgress"));
    }
}

#[test]
fn suspension_stops_the_jobs_and_gives_the_gang_up_and_a_changed_template_makes_them_anew() {
    let mut world = World::two(json!({}));
    world.settle();
    world.all_ready();
    world.settle();
    world.job_set.spec.suspend = Some(true);
    world.settle();
    assert!(
        world
            .jobs
            .values()
            .all(|job| job.spec.as_ref().unwrap().suspend == Some(true))
    );
    assert!(world.group.is_none() && holds_in(&world, "Suspended"));
    assert_eq!(world.status().replicated_jobs_status[1].suspended, 2);
    let before = world.jobs["js-leader-0"].metadata.uid.clone();
    let changed = &mut world.job_set.spec.replicated_jobs[0].template;
    let pod = changed
        .spec
        .as_mut()
        .unwrap()
        .template
        .spec
        .as_mut()
        .unwrap();
    pod.node_selector = Some(BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
    world.job_set.spec.suspend = Some(false);
    world.pods.clear();
    world.settle();
    assert!(world.group.is_some() && !holds_in(&world, "Suspended"));
    assert!(
        world
            .jobs
            .values()
            .all(|job| job.spec.as_ref().unwrap().suspend == Some(false))
    );
    assert_ne!(world.jobs["js-leader-0"].metadata.uid, before);
    // One that is suspended from its creation on has suspended Jobs.
    let mut held = World::two(json!({"suspend": true}));
    held.settle();
    assert_eq!(held.names().len(), 3);
    assert!(held.group.is_none());
}

#[test]
fn a_job_set_that_could_never_run_creates_no_job_and_says_why() {
    let mut world = World::two(json!({}));
    world.room = PodRoom {
        nodes: None,
        quota: Some(crate::PodQuota { hard: 5, used: 0 }),
    };
    world.settle();
    assert!(world.names().is_empty() && world.group.is_none());
    let message = world.status().message.clone().unwrap();
    assert!(
        message.starts_with("6 pods must start together"),
        "{message}"
    );
    world.room = PodRoom::default();
    world.settle();
    assert_eq!((world.names().len(), &world.status().message), (3, &None));
}

#[test]
fn another_controllers_job_set_is_left_alone() {
    let mut world = World::two(json!({"managedBy": "kueue.x-k8s.io/multikueue"}));
    assert!(!world.step() && world.names().is_empty());
    let mut leaving = World::two(json!({}));
    leaving.job_set.metadata.deletion_timestamp = Some(Time(at(0)));
    assert!(!leaving.step());
}

#[derive(Clone, Debug)]
enum Happening {
    Ready(usize),
    Complete(usize),
    Fail(usize, bool),
    Lose(usize),
    Collect,
    Suspend(bool),
    Wait(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0_usize..3).prop_map(Happening::Ready),
        (0_usize..3).prop_map(Happening::Complete),
        ((0_usize..3), any::<bool>()).prop_map(|(job, pod)| Happening::Fail(job, pod)),
        (0_usize..3).prop_map(Happening::Lose),
        Just(Happening::Collect),
        any::<bool>().prop_map(Happening::Suspend),
        (1_i64..100).prop_map(Happening::Wait),
    ]
}

proptest! {
    #[test]
    fn decisions_come_to_rest_whatever_happens(
        happenings in proptest::collection::vec(happening(), 1..30),
        most in 0_i32..3,
        depends in any::<bool>(),
        alone in any::<bool>(),
    ) {
        let action = if alone { "RestartJob" } else { "RestartJobSet" };
        let mut world = World::two(json!({"failurePolicy": {"maxRestarts": most,
            "rules": [{"name": "r", "action": action}]}}));
        if depends {
            let dependency = json!([{"name": "leader", "status": "Ready"}]);
            world.job_set.spec.replicated_jobs[1].depends_on = serde_json::from_value(dependency).unwrap();
        }
        world.settle();
        for one in happenings {
            let names: Vec<String> = world.jobs.iter()
                .filter(|(_, job)| job.status.as_ref().is_none_or(|status| status.conditions.is_none()))
                .map(|(name, _)| name.clone())
                .collect();
            world.run_pods();
            let name = |at: usize| names.get(at).cloned();
            match one {
                Happening::Ready(job) => if let Some(job) = name(job) { world.ready(&job) },
                Happening::Complete(job) => if let Some(job) = name(job) { world.complete(&job) },
                Happening::Fail(job, pod) => if let Some(job) = name(job) {
                    if pod && world.jobs[&job].spec.as_ref().unwrap().suspend != Some(true) {
                        world.end_pod(&job, 0, json!({"code": 1}));
                    }
                    world.fail(&job, "BackoffLimitExceeded", "limit");
                },
                Happening::Lose(job) => if let Some(job) = name(job)
                    && world.jobs[&job].spec.as_ref().unwrap().suspend != Some(true)
                {
                    world.end_pod(&job, 1, json!({"reason": "NodeLost", "message": "lost"}));
                },
                Happening::Collect => world.collect(),
                Happening::Suspend(on) => world.job_set.spec.suspend = Some(on),
                Happening::Wait(seconds) => world.second += seconds,
            }
            world.settle();
            // Whatever happened, no Job of an earlier run is beside one of the present.
            let restarts = world.status().restarts.to_string();
            for job in world.jobs.values() {
                let own = &job.metadata.labels.as_ref().unwrap()[labels::RESTART_ATTEMPT];
                prop_assert_eq!(own, &restarts);
            }
            let counted = world.status().restarts_count_towards_max.unwrap_or(0);
            prop_assert!(counted <= most);
            if world.status().terminal_state.is_some() {
                prop_assert!(world.group.is_none());
                break;
            }
        }
    }
}
