//! A simulated namespace with one Job, which carries out the actions.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::super::{ObservedJob, reconcile};
use crate::action::{Action, ReconcileOutcome};
use crate::pod_room::PodRoom;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub(super) struct World {
    pub(super) job: Job,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) created: usize,
    pub(super) slow_deletion: bool,
    pub(super) job_deleted: bool,
    pub(super) room: PodRoom,
    pub(super) uids: u64,
}

impl World {
    pub(super) fn new(spec: serde_json::Value) -> World {
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

    pub(super) fn ask(&self, now: Timestamp) -> ReconcileOutcome<JobStatus> {
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

    pub(super) fn step(&mut self, now: Timestamp) -> ReconcileOutcome<JobStatus> {
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

    pub(super) fn settle(&mut self, now: Timestamp) {
        for _ in 0..10 {
            let before = self.job.clone();
            let outcome = self.step(now);
            if outcome.actions.is_empty() && self.job == before {
                return;
            }
        }
        panic!("the job did not settle: {:?}", self.ask(now).actions);
    }

    pub(super) fn status(&self) -> &JobStatus {
        self.job.status.as_ref().unwrap()
    }

    pub(super) fn conditions(&self) -> Vec<String> {
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

    pub(super) fn holds(&self, type_: &str) -> bool {
        self.status()
            .conditions
            .iter()
            .flatten()
            .any(|known| known.type_ == type_ && known.status == "True")
    }

    pub(super) fn live(&self) -> Vec<String> {
        let live = self
            .pods
            .iter()
            .filter(|(_, pod)| super::super::status::is_active(pod));
        live.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn with_index(&self, index: u32) -> String {
        let found = self
            .live()
            .into_iter()
            .find(|name| super::super::index_of(&self.pods[name]) == Some(index));
        found.expect("a live pod has the index")
    }

    pub(super) fn run(&mut self, pod: &str) {
        let pod = self.pods.get_mut(pod).unwrap();
        pod.spec.as_mut().unwrap().node_name = Some("node-a".to_owned());
        pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
    }

    pub(super) fn exit(&mut self, pod: &str, code: i32, now: Timestamp) {
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
