//! Job's reconciliation, by scenario and by property, against a simulated namespace that carries
//! out the actions.

#[path = "room_tests.rs"]
mod room;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

use super::indexes::Indexes;
use super::{ObservedJob, reconcile};
use crate::action::{Action, ReconcileOutcome};
use crate::pod_room::PodRoom;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

struct World {
    job: Job,
    pods: BTreeMap<String, Pod>,
    created: usize,
    slow_deletion: bool,
    job_deleted: bool,
    room: PodRoom,
    uids: u64,
}

impl World {
    fn new(spec: serde_json::Value) -> World {
        let mut whole = json!({"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "main", "command": ["work"]}],
        }}});
        whole
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let job = serde_json::from_value(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "crunch", "namespace": "team", "uid": "job-uid"}, "spec": whole,
        }));
        World {
            job: job.unwrap(),
            pods: BTreeMap::new(),
            created: 0,
            slow_deletion: false,
            job_deleted: false,
            room: PodRoom::default(),
            uids: 0,
        }
    }

    fn ask(&self, now: Timestamp) -> ReconcileOutcome<JobStatus> {
        let pods: Vec<&Pod> = self.pods.values().collect();
        reconcile(
            &ObservedJob {
                job: &self.job,
                pods: &pods,
                room: self.room,
            },
            now,
        )
    }

    fn step(&mut self, now: Timestamp) -> ReconcileOutcome<JobStatus> {
        let outcome = self.ask(now);
        let annotations = self.job.metadata.annotations.get_or_insert_default();
        for (key, value) in outcome.annotations.clone() {
            annotations.insert(key, value.expect("no annotation is removed"));
        }
        for action in outcome.actions.clone() {
            match action {
                Action::CreatePod(mut pod) => {
                    let name = pod.metadata.name.clone().unwrap();
                    assert!(!self.pods.contains_key(&name), "{name} exists");
                    self.uids += 1;
                    self.created += 1;
                    pod.metadata.uid = Some(format!("uid-{}", self.uids));
                    pod.metadata.creation_timestamp = Some(Time(now));
                    pod.status = Some(PodStatus {
                        phase: Some("Pending".to_owned()),
                        ..PodStatus::default()
                    });
                    self.pods.insert(name, *pod);
                }
                Action::DeletePod { name, .. } => {
                    let pod = self
                        .pods
                        .get_mut(&name)
                        .expect("only pods that exist are deleted");
                    if self.slow_deletion {
                        pod.metadata.deletion_timestamp = Some(Time(now));
                    } else {
                        self.pods.remove(&name);
                    }
                }
                Action::DeleteJob { .. } => self.job_deleted = true,
                other => panic!("a Job never asks for {other:?}"),
            }
        }
        self.job.status = Some(outcome.status.clone());
        outcome
    }

    fn settle(&mut self, now: Timestamp) {
        for _ in 0..10 {
            let before = self.job.clone();
            let outcome = self.step(now);
            if outcome.actions.is_empty() && self.job == before {
                return;
            }
        }
        panic!("the job did not settle: {:?}", self.ask(now).actions);
    }

    fn status(&self) -> &JobStatus {
        self.job.status.as_ref().unwrap()
    }

    fn conditions(&self) -> Vec<String> {
        let tell = |known: &k8s_openapi::api::batch::v1::JobCondition| {
            format!(
                "{}={}({})",
                known.type_,
                known.status,
                known.reason.clone().unwrap_or_default()
            )
        };
        self.status()
            .conditions
            .iter()
            .flatten()
            .map(tell)
            .collect()
    }

    fn holds(&self, type_: &str) -> bool {
        self.status()
            .conditions
            .iter()
            .flatten()
            .any(|known| known.type_ == type_ && known.status == "True")
    }

    fn live(&self) -> Vec<String> {
        let live = self
            .pods
            .iter()
            .filter(|(_, pod)| super::status::is_active(pod));
        live.map(|(name, _)| name.clone()).collect()
    }

    fn with_index(&self, index: u32) -> String {
        let found = self
            .live()
            .into_iter()
            .find(|name| super::index_of(&self.pods[name]) == Some(index));
        found.expect("a live pod has the index")
    }

    fn run(&mut self, pod: &str) {
        let pod = self.pods.get_mut(pod).unwrap();
        pod.spec.as_mut().unwrap().node_name = Some("node-a".to_owned());
        pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
    }

    fn exit(&mut self, pod: &str, code: i32, now: Timestamp) {
        self.run(pod);
        let status = self.pods.get_mut(pod).unwrap().status.as_mut().unwrap();
        status.phase = Some(if code == 0 { "Succeeded" } else { "Failed" }.to_owned());
        status.container_statuses = Some(vec![ContainerStatus {
            name: "main".to_owned(),
            state: Some(ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: code,
                    finished_at: Some(Time(now)),
                    ..ContainerStateTerminated::default()
                }),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        }]);
    }
}

#[test]
fn a_job_runs_its_pods_in_parallel_until_enough_have_succeeded() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 3}));
    world.settle(at(0));
    assert_eq!(world.live().len(), 2);
    assert_eq!(world.status().active, Some(2));
    assert_eq!(world.status().start_time.as_ref().unwrap().0, at(0));
    let first = world.live()[0].clone();
    world.exit(&first, 0, at(5));
    world.settle(at(5));
    assert_eq!((world.live().len(), world.status().succeeded), (2, Some(1)));
    for name in world.live() {
        world.exit(&name, 0, at(9));
    }
    world.settle(at(9));
    assert_eq!(
        world.conditions(),
        [
            "SuccessCriteriaMet=True(CompletionsReached)",
            "Complete=True(CompletionsReached)"
        ]
    );
    assert_eq!(world.status().completion_time.as_ref().unwrap().0, at(9));
    assert_eq!(
        (
            world.status().active,
            world.status().succeeded,
            world.created
        ),
        (None, Some(3), 3)
    );
    assert_eq!(world.pods.len(), 3, "finished pods keep their logs");
}

#[test]
fn pods_look_like_kubernetes_ones() {
    let mut world = World::new(json!({}));
    world.job.metadata.labels = Some(
        [(
            "scheduling.volcano.sh/queue-name".to_owned(),
            "night".to_owned(),
        )]
        .into(),
    );
    world.job.metadata.annotations =
        Some([("muster.io/walltime".to_owned(), "2h".to_owned())].into());
    world.settle(at(0));
    let name = &world.live()[0];
    assert!(
        name.starts_with("crunch-") && name.len() == "crunch-".len() + 5,
        "{name}"
    );
    let pod = serde_json::to_value(&world.pods[name]).unwrap();
    assert_eq!(
        pod["metadata"]["labels"],
        json!({
            "batch.kubernetes.io/job-name": "crunch", "job-name": "crunch",
            "batch.kubernetes.io/controller-uid": "job-uid", "controller-uid": "job-uid",
        })
    );
    assert_eq!(
        pod["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"],
        "night"
    );
    assert_eq!(pod["metadata"]["annotations"]["muster.io/walltime"], "2h");
    assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "Job");
    assert!(
        pod["metadata"]["annotations"]
            .get("scheduling.k8s.io/group-name")
            .is_none()
    );
}

#[test]
fn an_indexed_job_gives_each_pod_its_index() {
    let mut world =
        World::new(json!({"completionMode": "Indexed", "parallelism": 3, "completions": 5}));
    world.settle(at(0));
    let name = world.with_index(2);
    assert!(name.starts_with("crunch-2-"), "{name}");
    let pod = serde_json::to_value(&world.pods[&name]).unwrap();
    assert_eq!(pod["spec"]["hostname"], "crunch-2");
    assert_eq!(
        pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"],
        "2"
    );
    assert_eq!(
        pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"],
        "2"
    );
    assert_eq!(
        pod["spec"]["containers"][0]["env"],
        json!([{"name": "JOB_COMPLETION_INDEX", "value": "2"}])
    );
    for index in [0, 2] {
        let name = world.with_index(index);
        world.exit(&name, 0, at(3));
    }
    world.settle(at(3));
    assert_eq!(world.status().completed_indexes.as_deref(), Some("0,2"));
    assert!(
        world
            .live()
            .iter()
            .all(|name| [1, 3, 4].contains(&super::index_of(&world.pods[name]).unwrap()))
    );
    // A failed index is retried after a wait, by another pod.
    let failed = world.with_index(1);
    world.exit(&failed, 1, at(4));
    world.settle(at(4));
    assert_eq!(world.live().len(), 2);
    assert_eq!(world.ask(at(5)).requeue_at, Some(at(14)));
    world.settle(at(14));
    assert_ne!(world.with_index(1), failed);
    for index in [1, 3, 4] {
        let name = world.with_index(index);
        world.exit(&name, 0, at(20));
    }
    world.settle(at(20));
    assert_eq!(world.status().completed_indexes.as_deref(), Some("0-4"));
    assert!(world.holds("Complete"));
    assert_eq!(world.status().failed, Some(1));
}

#[test]
fn a_work_queue_is_done_when_one_pod_has_succeeded_and_the_rest_have_ended() {
    let mut world = World::new(json!({"parallelism": 3}));
    world.settle(at(0));
    let names = world.live();
    world.exit(&names[0], 0, at(1));
    world.settle(at(1));
    assert_eq!(
        world.live().len(),
        2,
        "nothing new starts, nothing is stopped"
    );
    assert!(!world.holds("Complete"));
    world.exit(&names[1], 0, at(2));
    world.exit(&names[2], 0, at(2));
    world.settle(at(2));
    assert!(world.holds("Complete"));
}

#[test]
fn failures_beyond_the_limit_fail_the_job() {
    let mut world = World::new(json!({"backoffLimit": 1}));
    let mut now = 0;
    let mut last = String::new();
    for _ in 0..2 {
        world.settle(at(now));
        let name = world.live()[0].clone();
        world.exit(&name, 1, at(now));
        world.settle(at(now));
        last = name;
        now += 1000;
    }
    world.settle(at(now));
    assert_eq!(
        world.conditions(),
        [
            "FailureTarget=True(BackoffLimitExceeded)",
            "Failed=True(BackoffLimitExceeded)"
        ]
    );
    assert_eq!((world.created, world.status().failed), (2, Some(2)));
    assert!(world.status().completion_time.is_none());
    let message = format!(
        "Job has reached the specified backoff limit: Pod {last} exited with code 1 after 2 attempts"
    );
    for condition in world.status().conditions.iter().flatten() {
        assert_eq!(condition.message.as_deref(), Some(message.as_str()));
    }
}

#[test]
fn failures_stay_counted_when_their_pods_are_gone() {
    let mut world = World::new(json!({"backoffLimit": 2}));
    for round in 0..3_i64 {
        world.settle(at(round * 1000));
        let name = world.live()[0].clone();
        world.exit(&name, 1, at(round * 1000));
        world.settle(at(round * 1000));
        world.pods.clear();
    }
    world.settle(at(9000));
    assert!(world.holds("Failed"));
    assert_eq!(world.status().failed, Some(3));
}

#[test]
fn a_failed_job_waits_for_its_other_pods_to_stop() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "backoffLimit": 0}));
    world.slow_deletion = true;
    world.settle(at(0));
    let names = world.live();
    world.run(&names[1]);
    world.exit(&names[0], 1, at(1));
    world.settle(at(1));
    assert_eq!(
        world.conditions(),
        ["FailureTarget=True(BackoffLimitExceeded)"]
    );
    assert_eq!(world.status().terminating, Some(1));
    world.exit(&names[1], 143, at(2));
    world.settle(at(2));
    assert!(world.holds("Failed"));
    assert_eq!(
        world.status().failed,
        Some(1),
        "what was stopped did not fail"
    );
}

#[test]
fn replacements_wait_longer_after_each_failure_in_a_row() {
    let mut world = World::new(json!({"backoffLimit": 10}));
    let mut now = 0;
    for wait in [10, 20, 40, 80, 160, 320, 600, 600] {
        world.settle(at(now));
        let name = world.live()[0].clone();
        world.exit(&name, 1, at(now));
        world.settle(at(now + wait - 1));
        assert!(world.live().is_empty(), "not before {wait} s");
        now += wait;
    }
}

#[test]
fn restarts_in_place_count_under_on_failure() {
    let mut world = World::new(json!({"backoffLimit": 2, "template": {"spec": {
        "restartPolicy": "OnFailure", "containers": [{"name": "main"}],
    }}}));
    world.settle(at(0));
    let name = world.live()[0].clone();
    for (restarts, failed) in [(1, false), (2, true)] {
        world.run(&name);
        world
            .pods
            .get_mut(&name)
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .container_statuses = Some(vec![ContainerStatus {
            restart_count: restarts,
            ..ContainerStatus::default()
        }]);
        world.step(at(1));
        assert_eq!(world.holds("FailureTarget"), failed);
    }
    world.settle(at(2));
    assert!(world.pods.is_empty() && world.holds("Failed"));
}

#[test]
fn a_job_out_of_time_fails() {
    let mut world = World::new(json!({"activeDeadlineSeconds": 30}));
    world.settle(at(0));
    assert_eq!(world.ask(at(1)).requeue_at, Some(at(30)));
    world.settle(at(30));
    assert_eq!(
        world.conditions(),
        [
            "FailureTarget=True(DeadlineExceeded)",
            "Failed=True(DeadlineExceeded)"
        ]
    );
    assert!(world.pods.is_empty());
}

#[test]
fn pods_say_how_long_they_may_run_as_their_job_does_or_by_its_deadline() {
    let walltime = |said: Option<&str>, spec: serde_json::Value| {
        let mut world = World::new(spec);
        world.job.metadata.annotations =
            said.map(|said| [("muster.io/walltime".to_owned(), said.to_owned())].into());
        world.settle(at(0));
        let (_, pod) = world.pods.first_key_value().unwrap();
        let annotations = pod.metadata.annotations.clone().unwrap();
        annotations.get("muster.io/walltime").cloned()
    };
    let seconds = |text: &str| Some(text.to_owned());
    assert_eq!(walltime(None, json!({})), None);
    let deadline = json!({"activeDeadlineSeconds": 30});
    assert_eq!(walltime(None, deadline.clone()), seconds("30"));
    assert_eq!(walltime(Some("5m"), deadline), seconds("5m"));
}

#[test]
fn a_held_job_stops_and_resumes_with_a_new_clock() {
    let mut world =
        World::new(json!({"parallelism": 2, "completions": 2, "activeDeadlineSeconds": 30}));
    world.settle(at(0));
    world.job.spec.as_mut().unwrap().suspend = Some(true);
    world.settle(at(10));
    assert!(world.pods.is_empty());
    assert_eq!(world.conditions(), ["Suspended=True(JobSuspended)"]);
    world.settle(at(100));
    world.job.spec.as_mut().unwrap().suspend = Some(false);
    world.settle(at(200));
    assert_eq!(world.conditions(), ["Suspended=False(JobResumed)"]);
    assert_eq!(world.status().start_time.as_ref().unwrap().0, at(200));
    assert_eq!(world.live().len(), 2);
}

#[test]
fn a_job_created_held_has_no_start() {
    let mut world = World::new(json!({"suspend": true}));
    world.settle(at(0));
    assert!(world.status().start_time.is_none() && world.pods.is_empty());
}

#[test]
fn a_finished_job_goes_after_its_time_to_live() {
    let mut world = World::new(json!({"ttlSecondsAfterFinished": 60}));
    world.settle(at(0));
    let name = world.live()[0].clone();
    world.exit(&name, 0, at(5));
    let outcome = world.step(at(5));
    assert_eq!(outcome.requeue_at, Some(at(65)));
    world.step(at(64));
    assert!(!world.job_deleted);
    world.step(at(65));
    assert!(world.job_deleted);
}

#[test]
fn less_parallelism_stops_the_least_advanced_pods() {
    let mut world = World::new(json!({"parallelism": 3, "completions": 9}));
    world.settle(at(0));
    let runs = world.live()[1].clone();
    world.run(&runs);
    world.job.spec.as_mut().unwrap().parallelism = Some(1);
    world.settle(at(1));
    assert_eq!(world.live(), [runs]);
    assert_eq!(world.status().failed, None);
}

#[test]
fn the_failure_policy_decides_the_effect_of_a_failed_pod() {
    let policy = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]});
    let mut world = World::new(json!({"backoffLimit": 0, "podFailurePolicy": policy}));
    world.settle(at(0));
    let name = world.live()[0].clone();
    world.exit(&name, 137, at(1));
    world
        .pods
        .get_mut(&name)
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .conditions = Some(vec![PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        ..PodCondition::default()
    }]);
    world.settle(at(100));
    assert!(!world.holds("Failed"), "a disruption is no failure");
    let name = world.live()[0].clone();
    world.exit(&name, 42, at(101));
    world.settle(at(101));
    assert_eq!(world.conditions()[1], "Failed=True(PodFailurePolicy)");
    let message = world.status().conditions.as_ref().unwrap()[1]
        .message
        .clone()
        .unwrap();
    assert_eq!(
        message,
        format!(
            "Container main for pod team/{name} failed with exit code 42 matching FailJob rule at index 0"
        )
    );
}

#[test]
fn what_the_platform_ended_is_charged_to_no_budget_unless_a_rule_says_so() {
    let lose = |world: &mut World, reason: &str, now: i64| {
        let name = world.live()[0].clone();
        world.exit(&name, 128, at(now));
        let status = world.pods.get_mut(&name).unwrap().status.as_mut().unwrap();
        status.reason = Some(reason.to_owned());
        let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
        status.conditions = serde_json::from_value(disrupted).unwrap();
        world.settle(at(now + 700));
        name
    };
    let mut world = World::new(json!({"backoffLimit": 0}));
    world.settle(at(0));
    for (round, reason) in [(1, "NodeUnfit"), (2, "NodeLost"), (3, "Evicted")] {
        let name = lose(&mut world, reason, 1000 * round);
        assert!(!world.holds("Failed"), "{reason}");
        assert_ne!(world.live(), [name], "another pod is in its place");
    }
    let record = &world.job.metadata.annotations.as_ref().unwrap()["muster.io/failure"];
    assert!(record.contains(r#""class":"evicted""#) && record.contains(r#""charged":false"#));
    let rule = json!({"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]});
    let mut world = World::new(json!({"podFailurePolicy": {"rules": [rule]}}));
    world.settle(at(0));
    lose(&mut world, "NodeLost", 1000);
    assert!(world.holds("Failed"));
}

#[test]
fn indexes_may_be_judged_one_by_one() {
    let mut world = World::new(json!({
        "completionMode": "Indexed", "parallelism": 2, "completions": 2, "backoffLimitPerIndex": 0,
    }));
    world.settle(at(0));
    let (zero, one) = (world.with_index(0), world.with_index(1));
    world.exit(&zero, 1, at(1));
    world.settle(at(2000));
    assert!(!world.holds("Failed"));
    assert_eq!(world.status().failed_indexes.as_deref(), Some("0"));
    world.exit(&one, 0, at(2001));
    world.settle(at(2001));
    assert_eq!(world.conditions()[1], "Failed=True(FailedIndexes)");
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let mut world = World::new(json!({
        "completionMode": "Indexed", "parallelism": 3, "completions": 3,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    }));
    world.settle(at(0));
    let leader = world.with_index(0);
    world.exit(&leader, 0, at(1));
    world.settle(at(1));
    assert_eq!(
        world.conditions(),
        [
            "SuccessCriteriaMet=True(SuccessPolicy)",
            "Complete=True(SuccessPolicy)"
        ]
    );
    assert_eq!(world.pods.len(), 1, "the others were stopped");
}

#[test]
fn a_job_has_no_more_waiting_pods_than_the_bound_whatever_its_parallelism() {
    let most = usize::try_from(super::WAITING_MAX).unwrap();
    for (mode, parallelism) in [("NonIndexed", i32::MAX), ("Indexed", 100_000)] {
        let mut world = World::new(json!({
            "completionMode": mode, "parallelism": parallelism, "completions": i32::MAX,
        }));
        let mut steps = 0;
        while !world.step(at(0)).actions.is_empty() {
            steps += 1;
            assert!(steps < 100, "{mode}: pods are made without end");
        }
        assert_eq!(world.pods.len(), most, "{mode}");
        // A pod that has a node no longer waits: another is created for each.
        for name in world.live().into_iter().take(3) {
            world
                .pods
                .get_mut(&name)
                .unwrap()
                .spec
                .as_mut()
                .unwrap()
                .node_name = Some("n".into());
        }
        world.settle(at(1));
        assert_eq!(world.pods.len(), most + 3, "{mode}");
    }
}

#[test]
fn a_job_whose_pods_are_a_gang_has_as_many_waiting_pods_as_the_gang_may_have() {
    let most = usize::try_from(resources::numbers::GANG_MEMBERS_MAX).unwrap();
    for (parallelism, made) in [(5_000, 5_000), (i32::MAX, most)] {
        let mut world = World::new(json!({"parallelism": parallelism}));
        let notes = [(resources::names::GROUP_NAME.to_owned(), "gang".to_owned())];
        let template = &mut world.job.spec.as_mut().unwrap().template;
        let meta = template.metadata.get_or_insert_default();
        meta.annotations = Some(BTreeMap::from(notes));
        let mut steps = 0;
        while !world.step(at(0)).actions.is_empty() {
            steps += 1;
            assert!(steps < 100, "pods are made without end");
        }
        assert_eq!(world.pods.len(), made);
    }
}

#[test]
fn a_job_with_extreme_numbers_costs_as_much_as_its_text() {
    let all = "0-4294967295";
    for completions in [0, 1, i32::MAX] {
        for policy in [
            json!(null),
            json!({"rules": [{"succeededCount": i32::MAX}]}),
        ] {
            let mut world = World::new(json!({
                "completionMode": "Indexed", "parallelism": 100_000, "completions": completions,
                "backoffLimitPerIndex": i32::MAX, "maxFailedIndexes": i32::MAX,
                "ttlSecondsAfterFinished": i32::MAX, "activeDeadlineSeconds": i64::MAX,
                "successPolicy": policy,
            }));
            let stored = json!({"succeeded": all, "failed": "", "failedIndexes": all});
            let notes = world.job.metadata.annotations.get_or_insert_default();
            notes.insert(super::ATTEMPTS.to_owned(), stored.to_string());
            let status = JobStatus {
                completed_indexes: Some(all.to_owned()),
                ..JobStatus::default()
            };
            world.job.status = Some(status);
            let outcome = world.ask(at(0));
            assert!(outcome.actions.is_empty(), "{completions}");
        }
    }
}

#[test]
fn no_two_attempts_share_a_name() {
    let mut world = World::new(json!({"parallelism": 500, "completions": 100_000}));
    for _ in 0..4 {
        world.step(at(0));
        for name in world.live() {
            world.exit(&name, 0, at(0));
        }
    }
    assert_eq!(world.pods.len(), 2000);
}

#[test]
fn a_job_managed_by_another_controller_is_left_alone() {
    let mut world = World::new(json!({"managedBy": "example.com/custom"}));
    assert!(world.step(at(0)).actions.is_empty());
}

proptest! {
    #[test]
    fn index_texts_come_back_as_they_went(numbers in proptest::collection::btree_set(0..60u32, 0..40)) {
        let set: Indexes = numbers.iter().copied().collect();
        let text = set.to_string();
        prop_assert_eq!(Indexes::parse(&text), set);
        let model: BTreeSet<u32> = numbers;
        prop_assert_eq!(text.is_empty(), model.is_empty());
    }

    #[test]
    fn a_job_settles_and_never_overshoots(
        indexed in any::<bool>(),
        parallelism in 0..5i32,
        completions in 1..6i32,
        limit in 0..4i32,
        slow in any::<bool>(),
        happenings in proptest::collection::vec((0..6usize, 0..8u8, 0..700i64), 1..40),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let mut world = World::new(json!({
            "completionMode": mode, "parallelism": parallelism, "completions": completions,
            "backoffLimit": limit,
        }));
        world.slow_deletion = slow;
        let mut now = 0;
        let mut ended: Option<JobStatus> = None;
        for (nth, what, wait) in happenings {
            let live = world.live();
            if let Some(name) = live.get(nth) {
                match what {
                    0 | 1 => world.run(name),
                    2 | 3 => world.exit(name, 0, at(now)),
                    4 => world.exit(name, 1, at(now)),
                    5 => { world.pods.remove(name); }
                    _ => {}
                }
            }
            match what {
                6 => world.job.spec.as_mut().unwrap().suspend = Some(wait % 2 == 0),
                7 => world.pods.retain(|_, pod| pod.metadata.deletion_timestamp.is_none()),
                _ => now += wait,
            }
            let before = world.created;
            world.settle(at(now));
            let again = world.ask(at(now));
            prop_assert!(again.actions.is_empty() && again.annotations.is_empty() && again.events.is_empty());
            prop_assert_eq!(Some(&again.status), world.job.status.as_ref());
            prop_assert!(world.live().len() <= usize::try_from(parallelism).unwrap());
            let failed = world.status().failed.unwrap_or_default();
            if failed > limit {
                prop_assert!(world.holds("FailureTarget"));
            }
            let mut indexes = BTreeSet::new();
            for name in world.live() {
                if let Some(index) = super::index_of(&world.pods[&name]) {
                    prop_assert!(indexes.insert(index), "two live pods with index {}", index);
                }
            }
            if let Some(ended) = &ended {
                prop_assert_eq!(Some(ended), world.job.status.as_ref());
                prop_assert_eq!(before, world.created);
            } else if world.holds("Complete") || world.holds("Failed") {
                ended = world.job.status.clone();
            }
        }
    }
}
