//! A JobSet with the objects that its controller created, and a clock.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::failure::FailureRecord;
use resources::kinds::{JobSet, JobSetStatus, PodGroup};
use resources::names;
use serde_json::{Value, json};

use super::super::{API_VERSION, ObservedJobSet, reconcile};
use crate::action::{Action, Dependent, EventNote, ReconcileOutcome};
use crate::pod_room::PodRoom;

const START: i64 = 1_800_000_000;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

/// A JobSet with the objects that its controller created, and a clock.
pub(super) struct World {
    pub(super) job_set: JobSet,
    pub(super) jobs: BTreeMap<String, Job>,
    pub(super) pods: BTreeMap<String, Pod>,
    pub(super) group: Option<PodGroup>,
    pub(super) services: Vec<Service>,
    pub(super) events: Vec<EventNote>,
    pub(super) second: i64,
    pub(super) uids: u32,
    pub(super) deleted: bool,
    pub(super) room: PodRoom,
}

pub(super) fn job(name: &str, more: &Value) -> Value {
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
    pub(super) fn new(spec: Value) -> World {
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

    pub(super) fn two(more: Value) -> World {
        let mut spec = json!({"replicatedJobs": [job("leader", &json!({})), job("worker", &json!({"replicas": 2}))]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        World::new(spec)
    }

    pub(super) fn decide(&self) -> ReconcileOutcome<JobSetStatus> {
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
    pub(super) fn step(&mut self) -> bool {
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

    pub(super) fn act(&mut self, action: Action) {
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

    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            if !self.step() {
                return;
            }
        }
        panic!("decisions do not come to rest: {:#?}", self.decide());
    }

    /// The Jobs' pods as their controller would create them.
    pub(super) fn run_pods(&mut self) {
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
    pub(super) fn collect(&mut self) {
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

    pub(super) fn set(&mut self, job: &str, status: Value) {
        let status = serde_json::from_value(status).unwrap();
        self.jobs.get_mut(job).unwrap().status = Some(status);
    }

    pub(super) fn ready(&mut self, job: &str) {
        self.set(job, json!({"active": 2, "ready": 2}));
    }

    pub(super) fn all_ready(&mut self) {
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        names.iter().for_each(|name| self.ready(name));
        self.run_pods();
    }

    pub(super) fn complete(&mut self, job: &str) {
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

    pub(super) fn fail(&mut self, job: &str, reason: &str, message: &str) {
        self.set(job, json!({"failed": 1, "conditions": [{"type": "Failed", "status": "True", "reason": reason,
            "message": message, "lastTransitionTime": at(self.second)}]}));
    }

    /// A pod of a Job ends as this status says.
    pub(super) fn end_pod(&mut self, job: &str, index: u32, mut status: Value) {
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

    pub(super) fn status(&self) -> &JobSetStatus {
        self.job_set.status.as_ref().unwrap()
    }

    pub(super) fn condition(&self, type_: &str) -> Option<(String, String, String)> {
        let mut all = self.status().conditions.iter();
        let found = all.find(|known| known.type_ == type_)?;
        Some((
            found.status.clone(),
            found.reason.clone(),
            found.message.clone(),
        ))
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.jobs.keys().map(String::as_str).collect()
    }

    pub(super) fn record(&self) -> Option<FailureRecord> {
        let annotations = self.job_set.metadata.annotations.as_ref()?;
        FailureRecord::read(|name| annotations.get(name).map(String::as_str))
    }
}

pub(super) fn holds_in(world: &World, type_: &str) -> bool {
    world
        .condition(type_)
        .is_some_and(|(status, _, _)| status == "True")
}
