//! Random queues, priorities, gangs and budgets, and the cluster in which the plans are carried
//! out.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scheduler::Event;
use serde_json::json;

use super::support::*;

#[derive(Clone, Debug)]
pub struct Gang {
    pub queue: usize,
    pub priority: i32,
    pub min: usize,
    pub members: usize,
    pub gpus: i64,
    pub preemptible: bool,
    /// Whether the gang exists from the first round on, or arrives later.
    pub late: bool,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub nodes: Vec<i64>,
    pub deserved: [i64; 3],
    pub surplus: bool,
    /// Whether pods may be moved for waiting gangs.
    pub consolidate: bool,
    /// How many running pods of queue `qa` a budget protects.
    pub budget: Option<usize>,
    pub gangs: Vec<Gang>,
}

pub fn case() -> impl Strategy<Value = Case> {
    let gang = (
        0..3usize,
        0..3i32,
        1..4usize,
        0..3usize,
        1..4i64,
        proptest::bool::weighted(0.85),
        any::<bool>(),
    );
    let gang = gang.prop_map(
        |(queue, priority, min, more, gpus, preemptible, late)| Gang {
            queue,
            priority,
            min,
            members: min + more,
            gpus,
            preemptible,
            late,
        },
    );
    (
        proptest::collection::vec(1..7i64, 1..5),
        [0..7i64, 0..7i64, 0..7i64],
        any::<bool>(),
        any::<bool>(),
        proptest::option::weighted(0.3, 0..6usize),
        proptest::collection::vec(gang, 2..10),
    )
        .prop_map(
            |(nodes, deserved, surplus, consolidate, budget, gangs)| Case {
                nodes,
                deserved,
                surplus,
                consolidate,
                budget,
                gangs,
            },
        )
}

#[derive(Clone, Debug)]
pub struct PodAt {
    pub gang: usize,
    pub node: Option<String>,
    pub started: usize,
    pub births: usize,
    pub leaving: bool,
}

#[derive(Clone)]
pub struct World {
    pub case: Case,
    pub pods: BTreeMap<String, PodAt>,
    pub arrived: BTreeSet<usize>,
    /// The gangs that waited after the last plan with a nomination.
    pub promised: BTreeSet<String>,
}

pub const QUEUES: [&str; 3] = ["qa", "qb", "qc"];

impl World {
    pub fn new(case: &Case) -> World {
        World {
            case: case.clone(),
            pods: BTreeMap::new(),
            arrived: BTreeSet::new(),
            promised: BTreeSet::new(),
        }
    }

    pub fn basics(&self) -> Vec<Event> {
        let mut events: Vec<Event> = (0..3)
            .map(|p| priority_class(&format!("p{p}"), p))
            .collect();
        for (i, gpus) in self.case.nodes.iter().enumerate() {
            events.push(node(&format!("n{i}"), *gpus));
        }
        if let Some(least) = self.case.budget {
            let budget = json!({
                "metadata": {"name": "qa", "namespace": "ns"},
                "spec": {"minAvailable": least, "selector": {"matchLabels": {"queue": "qa"}}},
            });
            events.push(Event::BudgetChanged(
                serde_json::from_value(budget).unwrap(),
            ));
        }
        for (name, gpus) in QUEUES.iter().zip(self.case.deserved) {
            events.push(queue_with(name, |queue| {
                queue["spec"]["deserved"] = json!({
                    "nvidia.com/gpu": gpus.to_string(), "cpu": "1000", "memory": "1000Ti"});
                if !self.case.surplus {
                    queue["metadata"]["annotations"] = json!({"muster.io/surplus-weight": "0"});
                }
            }));
        }
        events
    }

    pub fn group(&self, at: usize) -> Event {
        let gang = &self.case.gangs[at];
        group_with(&format!("g{at}"), gang.min as i32, |group| {
            group["spec"]["queue"] = json!(QUEUES[gang.queue]);
            group["spec"]["priorityClassName"] = json!(format!("p{}", gang.priority));
            group["metadata"]["annotations"] =
                json!({"muster.io/preemptible": gang.preemptible.to_string()});
        })
    }

    pub fn pod(&self, name: &str) -> Event {
        let pod = &self.pods[name];
        let gang = &self.case.gangs[pod.gang];
        pod_with(name, Some(&format!("g{}", pod.gang)), gang.gpus, |object| {
            object["metadata"]["uid"] = json!(format!("{name}-{}", pod.births));
            object["metadata"]["labels"] = json!({"queue": QUEUES[gang.queue]});
            if let Some(node) = &pod.node {
                object["spec"]["nodeName"] = json!(node);
                let at = now() + jiff::SignedDuration::from_secs(pod.started as i64);
                object["status"] = json!({"phase": "Running", "startTime": at.to_string()});
            }
            if pod.leaving {
                object["metadata"]["deletionTimestamp"] = json!(now().to_string());
            }
        })
    }

    pub fn arrive(&mut self, at: usize) -> Vec<Event> {
        self.arrived.insert(at);
        let mut events = vec![self.group(at)];
        for i in 0..self.case.gangs[at].members {
            let name = format!("g{at}-{i}");
            let pod = PodAt {
                gang: at,
                node: None,
                started: 0,
                births: 0,
                leaving: false,
            };
            self.pods.insert(name.clone(), pod);
            events.push(self.pod(&name));
        }
        events
    }

    pub fn gang_of(&self, pod: &str) -> &Gang {
        &self.case.gangs[self.pods[pod].gang]
    }

    /// GPUs of a queue's pods that are not evicted.
    pub fn held(&self, queue: usize) -> i64 {
        let pods = self
            .pods
            .values()
            .filter(|pod| pod.node.is_some() && !pod.leaving);
        let gangs = pods.map(|pod| &self.case.gangs[pod.gang]);
        gangs
            .filter(|gang| gang.queue == queue)
            .map(|gang| gang.gpus)
            .sum()
    }

    pub fn placed(&self, gang: usize) -> usize {
        let pods = self.pods.values().filter(|pod| pod.gang == gang);
        pods.filter(|pod| pod.node.is_some() && !pod.leaving)
            .count()
    }
}
