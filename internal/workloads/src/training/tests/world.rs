//! A job's namespace in memory: carries out actions as an API server would.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodStatus, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use resources::kinds::{JobConditionType, PodGroup, PyTorchJob, TrainingJobStatus};

use crate::action::{Action, ReconcileOutcome};
use crate::pod_room::PodRoom;
use crate::training::{Network, ObservedTrainingJob, TrainingJob as _, reconcile};

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub fn job(spec: serde_json::Value) -> PyTorchJob {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "demo", "namespace": "team", "uid": "job-uid"},
        "spec": spec,
    }))
    .unwrap()
}

/// One replica type with a container that requests a CPU and a GPU.
pub fn replica(count: u32, policy: &str) -> serde_json::Value {
    serde_json::json!({
        "replicas": count,
        "restartPolicy": policy,
        "template": {"spec": {"containers": [{
            "name": "pytorch",
            "command": ["torchrun", "train.py"],
            "resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": 1}},
        }]}},
    })
}

pub fn master_and_workers(workers: u32, policy: &str) -> serde_json::Value {
    serde_json::json!({"pytorchReplicaSpecs": {
        "Master": replica(1, policy),
        "Worker": replica(workers, policy),
    }})
}

pub struct World {
    pub job: PyTorchJob,
    pub pods: BTreeMap<String, Pod>,
    pub services: BTreeMap<String, Service>,
    pub group: Option<PodGroup>,
    pub taken: BTreeSet<u16>,
    pub network: Network,
    pub scheduler_name: String,
    pub job_deleted: bool,
    pub created: Vec<String>,
    /// Deleted pods stay, marked, until `finish_deletions`.
    pub slow_deletion: bool,
    pub room: PodRoom,
    uids: u64,
}

impl World {
    pub fn new(spec: serde_json::Value) -> World {
        World {
            job: job(spec),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            group: None,
            taken: BTreeSet::new(),
            network: Network::PerPod,
            scheduler_name: "muster".to_owned(),
            job_deleted: false,
            created: Vec::new(),
            slow_deletion: false,
            room: PodRoom::default(),
            uids: 0,
        }
    }

    pub fn ask(&self, now: Timestamp) -> ReconcileOutcome<TrainingJobStatus> {
        let pods: Vec<&Pod> = self.pods.values().collect();
        let services: Vec<&Service> = self.services.values().collect();
        reconcile(
            &ObservedTrainingJob {
                job: self.job.view(),
                pods: &pods,
                pod_group: self.group.as_ref(),
                services: &services,
                config_maps: &[],
                taken_ports: &self.taken,
                network: &self.network,
                scheduler_name: &self.scheduler_name,
                room: self.room,
            },
            now,
        )
    }

    /// One reconciliation, carried out.
    pub fn step(&mut self, now: Timestamp) -> ReconcileOutcome<TrainingJobStatus> {
        let outcome = self.ask(now);
        let annotations = self.job.metadata.annotations.get_or_insert_default();
        for (key, value) in &outcome.annotations {
            match value {
                Some(value) => annotations.insert(key.clone(), value.clone()),
                None => annotations.remove(key),
            };
        }
        for action in &outcome.actions {
            self.apply(action.clone(), now);
        }
        self.job.status = Some(outcome.status.clone());
        outcome
    }

    /// Reconciles until nothing changes.
    pub fn settle(&mut self, now: Timestamp) {
        for _ in 0..10 {
            let before = self.job.clone();
            let outcome = self.step(now);
            if outcome.actions.is_empty() && self.job == before {
                return;
            }
        }
        panic!("the job did not settle: {:?}", self.ask(now).actions);
    }

    fn fresh_uid(&mut self) -> String {
        self.uids += 1;
        format!("uid-{}", self.uids)
    }

    fn born(&mut self, metadata: &mut ObjectMeta, now: Timestamp) {
        metadata.uid = Some(self.fresh_uid());
        metadata.resource_version = Some("1".to_owned());
        metadata.creation_timestamp = Some(Time(now));
    }

    fn apply(&mut self, action: Action, now: Timestamp) {
        match action {
            Action::CreatePod(mut pod) => {
                let name = pod.metadata.name.clone().unwrap();
                if self.pods.contains_key(&name) {
                    return;
                }
                self.born(&mut pod.metadata, now);
                pod.status = Some(PodStatus {
                    phase: Some("Pending".to_owned()),
                    ..PodStatus::default()
                });
                self.created.push(name.clone());
                self.pods.insert(name, *pod);
            }
            Action::DeletePod { name, uid, .. } => {
                let pod = self
                    .pods
                    .get_mut(&name)
                    .expect("only pods that exist are deleted");
                assert_eq!(pod.metadata.uid.as_deref(), Some(uid.as_str()));
                if self.slow_deletion {
                    pod.metadata.deletion_timestamp = Some(Time(now));
                } else {
                    self.pods.remove(&name);
                }
            }
            Action::CreateService(mut service) => {
                let name = service.metadata.name.clone().unwrap();
                if !self.services.contains_key(&name) {
                    self.born(&mut service.metadata, now);
                    self.services.insert(name, *service);
                }
            }
            Action::DeleteService { name, .. } => {
                self.services.remove(&name);
            }
            Action::ApplyPodGroup(mut group) => {
                if group.metadata.uid.is_none() {
                    self.born(&mut group.metadata, now);
                }
                self.group = Some(*group);
            }
            Action::DeletePodGroup { .. } => self.group = None,
            Action::DeleteJob { .. } => self.job_deleted = true,
            other => panic!("a training job asks for no {other:?}"),
        }
    }

    pub fn finish_deletions(&mut self) {
        self.pods
            .retain(|_, pod| pod.metadata.deletion_timestamp.is_none());
    }

    pub fn phase(&mut self, pod: &str, phase: &str) {
        let pod = self.pods.get_mut(pod).expect("the pod exists");
        pod.spec.as_mut().unwrap().node_name = Some("node-a".to_owned());
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    }

    pub fn run_all(&mut self) {
        let waiting: Vec<String> = self.pods.keys().cloned().collect();
        for name in waiting {
            self.phase(&name, "Running");
        }
    }

    /// The pod's container ended with this code, and the pod with it.
    pub fn exit(&mut self, pod: &str, code: i32, now: Timestamp) {
        self.phase(pod, if code == 0 { "Succeeded" } else { "Failed" });
        let status = self.pods.get_mut(pod).unwrap().status.as_mut().unwrap();
        let restart_count = status
            .container_statuses
            .as_ref()
            .map_or(0, |list| list[0].restart_count);
        status.container_statuses = Some(vec![ContainerStatus {
            name: "pytorch".to_owned(),
            restart_count,
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

    /// The pod runs, its container restarted this often.
    pub fn restarted(&mut self, pod: &str, times: i32) {
        self.phase(pod, "Running");
        let status = self.pods.get_mut(pod).unwrap().status.as_mut().unwrap();
        status.container_statuses = Some(vec![ContainerStatus {
            name: "pytorch".to_owned(),
            restart_count: times,
            ..ContainerStatus::default()
        }]);
    }

    /// The pod's node was lost.
    pub fn lose(&mut self, pod: &str) {
        self.phase(pod, "Failed");
        let status = self.pods.get_mut(pod).unwrap().status.as_mut().unwrap();
        status.reason = Some("NodeLost".to_owned());
    }

    /// The pod's node could not start it.
    pub fn cannot_start(&mut self, pod: &str) {
        self.phase(pod, "Failed");
        let status = self.pods.get_mut(pod).unwrap().status.as_mut().unwrap();
        status.reason = Some("NodeUnfit".to_owned());
    }

    pub fn status(&self) -> &TrainingJobStatus {
        self.job.status.as_ref().expect("reconciled")
    }

    /// `Type=Status(Reason)` of each condition, oldest first.
    pub fn conditions(&self) -> Vec<String> {
        let tell = |condition: &resources::kinds::JobCondition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!("{:?}={}({reason})", condition.type_, condition.status)
        };
        self.status().conditions.iter().map(tell).collect()
    }

    pub fn holds(&self, type_: JobConditionType) -> bool {
        self.status()
            .conditions
            .iter()
            .any(|known| known.type_ == type_ && known.status == "True")
    }

    pub fn message(&self, type_: JobConditionType) -> &str {
        let found = self
            .status()
            .conditions
            .iter()
            .find(|known| known.type_ == type_);
        found
            .and_then(|known| known.message.as_deref())
            .expect("the condition has a message")
    }

    pub fn pod_names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }

    /// The environment of a pod's first container.
    pub fn environment(&self, pod: &str) -> Vec<(String, String)> {
        let containers = &self.pods[pod].spec.as_ref().unwrap().containers;
        let variables = containers[0].env.iter().flatten();
        variables
            .map(|v| (v.name.clone(), v.value.clone().unwrap_or_default()))
            .collect()
    }

    pub fn variable(&self, pod: &str, name: &str) -> Option<String> {
        self.environment(pod)
            .into_iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }
}
