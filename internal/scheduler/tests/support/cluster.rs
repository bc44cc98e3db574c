//! A cluster that carries out plans: bound pods run, evicted ones are deleted. Judges nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use scheduler::{Config, Event, Plan, ReservationKind, Scheduler};
use serde_json::{Value, json};

use super::*;

/// A scheduler, and the pods as the API would have them.
pub struct Cluster {
    pub scheduler: Scheduler,
    pub pods: BTreeMap<String, Pod>,
    pub at: jiff::Timestamp,
}

impl Cluster {
    pub fn new() -> Cluster {
        Cluster::with(Config::default())
    }

    pub fn with(config: Config) -> Cluster {
        let mut cluster = Cluster {
            scheduler: Scheduler::new(config),
            pods: BTreeMap::new(),
            at: now(),
        };
        for (name, value) in [("low", 1), ("mid", 5), ("high", 10)] {
            cluster.scheduler.apply(priority_class(name, value));
        }
        cluster
    }

    pub fn notify(&mut self, event: Event) {
        if let Event::PodChanged(pod) = &event {
            let name = pod.metadata.name.clone().unwrap();
            self.pods.insert(name, (**pod).clone());
        }
        self.scheduler.apply(event);
    }

    pub fn nodes(&mut self, nodes: &[(&str, i64)]) {
        for (name, gpus) in nodes {
            self.notify(node(name, *gpus));
        }
    }

    pub fn queue(&mut self, name: &str, gpus: i64) {
        self.notify(queue_with(name, |queue| {
            queue["spec"]["deserved"] =
                json!({"nvidia.com/gpu": gpus.to_string(), "cpu": "1000", "memory": "1000Ti"});
            queue["metadata"]["annotations"] = json!({"muster.io/surplus-weight": "0"});
        }));
    }

    /// A gang of `members` members that needs `min` of them.
    pub fn gang(
        &mut self,
        name: &str,
        queue: &str,
        class: &str,
        min: i32,
        members: usize,
        gpus: i64,
    ) {
        self.gang_with(name, queue, class, min, members, gpus, |_| {});
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "a row of a table says all of a gang"
    )]
    pub fn gang_with(
        &mut self,
        name: &str,
        queue: &str,
        class: &str,
        min: i32,
        members: usize,
        gpus: i64,
        change: impl FnOnce(&mut Value),
    ) {
        self.notify(group_with(name, min, |group| {
            group["spec"]["queue"] = json!(queue);
            group["spec"]["priorityClassName"] = json!(class);
            group["metadata"]["annotations"] = json!({});
            change(group);
        }));
        for i in 0..members {
            self.notify(pod(&format!("{name}-{i}"), name, gpus));
        }
    }

    pub fn plan(&mut self) -> Plan {
        self.scheduler.plan(self.at)
    }

    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = serde_json::to_value(&self.pods[name]).unwrap();
        change(&mut object);
        let pod: Pod = serde_json::from_value(object).unwrap();
        self.notify(Event::PodChanged(Box::new(pod)));
    }

    /// Bound pods run; evicted pods are told to go.
    pub fn confirm(&mut self, plan: &Plan) {
        let started = self.at.to_string();
        for bind in &plan.binds {
            self.change(&bind.pod.name, |pod| {
                pod["spec"]["nodeName"] = json!(bind.node);
                pod["status"] = json!({"phase": "Running", "startTime": started});
                if !bind.devices.is_empty() {
                    pod["metadata"]["annotations"]["muster.io/devices"] =
                        json!(serde_json::to_string(&bind.devices).unwrap());
                }
            });
        }
        for eviction in &plan.evictions {
            self.change(&eviction.pod.name, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!(started);
            });
        }
    }

    /// Plans and confirms until every gang that fits runs.
    pub fn run(&mut self) -> Plan {
        let plan = self.plan();
        self.confirm(&plan);
        plan
    }

    pub fn gone(&mut self, name: &str) {
        self.pods.remove(name);
        self.scheduler.apply(pod_gone(name));
    }

    pub fn leave(&mut self, plan: &Plan) {
        for eviction in &plan.evictions {
            self.gone(&eviction.pod.name);
        }
    }

    /// Plans; bound pods run, evicted pods disappear at once and replacements of their names wait.
    /// A minute passes.
    pub fn round(&mut self) -> Plan {
        let plan = self.run();
        for eviction in &plan.evictions {
            let name = &eviction.pod.name;
            let mut object = serde_json::to_value(&self.pods[name]).unwrap();
            self.gone(name);
            let uid = format!("{}'", eviction.pod.uid);
            object["metadata"]["uid"] = json!(uid);
            for (part, field) in [("metadata", "deletionTimestamp"), ("spec", "nodeName")] {
                object[part].as_object_mut().unwrap().remove(field);
            }
            object["status"] = json!({"phase": "Pending"});
            let pod: Pod = serde_json::from_value(object).unwrap();
            self.notify(Event::PodChanged(Box::new(pod)));
        }
        self.at += jiff::SignedDuration::from_secs(60);
        plan
    }
}

pub fn evicted(plan: &Plan) -> Vec<&str> {
    let mut names: Vec<&str> = plan.evictions.iter().map(|e| e.pod.name.as_str()).collect();
    names.sort_unstable();
    names
}

pub fn nominated(plan: &Plan) -> Vec<&str> {
    let held = plan
        .reservations
        .iter()
        .filter(|held| held.kind == ReservationKind::Nominated);
    let mut names: Vec<&str> = held
        .flat_map(|held| &held.pods)
        .map(|(pod, _)| pod.name.as_str())
        .collect();
    names.sort_unstable();
    names
}
