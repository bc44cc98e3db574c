//! A cluster's namespace in memory: carries out actions as an API server would.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{PodGroup, RayCluster, RayClusterStatus};
use serde_json::{Value, json};

use crate::action::{Action, Dependent, ReconcileOutcome};
use crate::pod_room::PodRoom;
use crate::ray::{ObservedRayCluster, reconcile};
use crate::training::Network;

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub fn cluster(spec: Value) -> RayCluster {
    serde_json::from_value(json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "demo", "namespace": "team", "uid": "cluster-uid", "generation": 1},
        "spec": spec,
    }))
    .unwrap()
}

pub fn template(more: Value) -> Value {
    let mut container = json!({"name": "ray"});
    for (key, value) in more.as_object().unwrap() {
        container[key] = value.clone();
    }
    json!({"spec": {"containers": [container]}})
}

/// A head and one group of this spec.
pub fn with_group(more: Value) -> Value {
    let mut group = json!({"groupName": "small", "template": template(json!({}))});
    for (key, value) in more.as_object().unwrap() {
        group[key] = value.clone();
    }
    json!({"headGroupSpec": {"template": template(json!({}))}, "workerGroupSpecs": [group]})
}

pub struct World {
    pub cluster: RayCluster,
    pub pods: BTreeMap<String, Pod>,
    pub services: BTreeMap<String, Service>,
    pub group: Option<PodGroup>,
    pub taken: BTreeSet<u16>,
    pub network: Network,
    pub room: PodRoom,
    /// Objects of other kinds.
    pub created: Vec<Dependent>,
    serial: u32,
}

impl World {
    pub fn new(spec: Value) -> World {
        World {
            cluster: cluster(spec),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            group: None,
            taken: BTreeSet::new(),
            network: Network::HostShared {
                ports: 14_000..=14_999,
            },
            room: PodRoom::default(),
            created: Vec::new(),
            serial: 0,
        }
    }

    pub fn decide(&self, second: i64) -> ReconcileOutcome<RayClusterStatus> {
        let observed = ObservedRayCluster {
            cluster: &self.cluster,
            pods: &self.pods.values().collect::<Vec<_>>(),
            pod_group: self.group.as_ref(),
            services: &self.services.values().collect::<Vec<_>>(),
            taken_ports: &self.taken,
            network: &self.network,
            scheduler_name: "muster",
            room: self.room,
        };
        reconcile(&observed, at(second))
    }

    /// Decides and acts until nothing is left to do; returns the events' reasons.
    pub fn settle(&mut self, second: i64) -> Vec<String> {
        let mut reasons = Vec::new();
        for _ in 0..20 {
            let outcome = self.decide(second);
            reasons.extend(outcome.events.into_iter().map(|event| event.reason));
            for (key, value) in outcome.annotations {
                let annotations = self.cluster.metadata.annotations.get_or_insert_default();
                annotations.insert(key, value.unwrap());
            }
            let same = self.cluster.status.as_ref() == Some(&outcome.status);
            self.cluster.status = Some(outcome.status);
            if outcome.actions.is_empty() && same {
                return reasons;
            }
            for action in outcome.actions {
                self.act(action);
            }
        }
        panic!("the decisions do not come to rest");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::CreatePod(mut pod) => {
                self.serial += 1;
                pod.metadata.uid = Some(format!("pod-{}", self.serial));
                let name = pod.metadata.name.clone().unwrap();
                assert!(self.pods.insert(name, *pod).is_none(), "the name is taken");
            }
            Action::DeletePod { name, uid, .. } => {
                let gone = self.pods.remove(&name).expect("the pod exists");
                assert_eq!(gone.metadata.uid, Some(uid));
            }
            Action::CreateService(service) => {
                let name = service.metadata.name.clone().unwrap();
                assert!(self.services.insert(name, *service).is_none());
            }
            Action::ApplyPodGroup(group) => self.group = Some(*group),
            Action::DeletePodGroup { .. } => self.group = None,
            Action::Create(dependent) => self.created.push(dependent),
            other => panic!("{other:?}"),
        }
    }

    pub fn names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }

    pub fn status(&self) -> &RayClusterStatus {
        self.cluster.status.as_ref().unwrap()
    }

    pub fn condition(&self, type_: &str) -> Option<(&str, &str)> {
        let mut all = self.status().conditions.iter();
        let found = all.find(|one| one.type_ == type_)?;
        Some((found.status.as_str(), found.reason.as_str()))
    }

    /// All pods run and are ready.
    pub fn run_all(&mut self) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            self.phase(&name, "Running");
        }
    }

    /// The pod has a node.
    pub fn bind(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).expect("the pod exists");
        pod.spec.get_or_insert_default().node_name = Some("n".to_owned());
    }

    pub fn phase(&mut self, name: &str, phase: &str) {
        let pod = self.pods.get_mut(name).expect("the pod exists");
        let ready = PodCondition {
            type_: "Ready".to_owned(),
            status: if phase == "Running" { "True" } else { "False" }.to_owned(),
            last_transition_time: Some(Time(at(0))),
            ..PodCondition::default()
        };
        pod.status = Some(PodStatus {
            phase: Some(phase.to_owned()),
            pod_ip: Some("10.0.0.1".to_owned()),
            conditions: Some(vec![ready]),
            ..PodStatus::default()
        });
    }
}
