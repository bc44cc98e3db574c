//! What holds after any events: no node over capacity, no half gang, no queue over its capability,
//! nothing pending that would fit, the same plan from the same state however it came about. The
//! world is kept here as plain data, and judged without the scheduler's help.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scheduler::{Actions, Config, Event, Plan, Scheduler};
use serde_json::{Value, json};
use support::*;

#[derive(Clone, Debug)]
struct NodeModel {
    gpus: i64,
    cpus: i64,
    /// Devices known one by one; the one with this index is broken.
    described: Option<usize>,
    cordoned: bool,
}

#[derive(Clone, Debug)]
struct PodModel {
    group: Option<String>,
    gpus: i64,
    cpus: i64,
    node: Option<String>,
    devices: Vec<String>,
    phase: &'static str,
    generation: u32,
}

#[derive(Clone, Debug)]
struct GroupModel {
    min: usize,
    queue: &'static str,
    phase: Option<&'static str>,
    conditions: Vec<Value>,
}

#[derive(Clone, Debug, Default)]
struct World {
    nodes: BTreeMap<String, NodeModel>,
    pods: BTreeMap<String, PodModel>,
    groups: BTreeMap<String, GroupModel>,
    capability: BTreeMap<&'static str, i64>,
    births: u32,
}

#[derive(Clone, Debug)]
enum Op {
    Node {
        name: u8,
        gpus: i64,
        cpus: i64,
        described: Option<usize>,
        cordoned: bool,
    },
    DropNode(u8),
    Gang {
        name: u8,
        members: usize,
        min: usize,
        gpus: i64,
        cpus: i64,
        queue: bool,
    },
    Lone {
        name: u8,
        gpus: i64,
        cpus: i64,
    },
    End {
        nth: usize,
        phase: bool,
    },
    DropPod(usize),
    Capability(i64),
    Plan {
        fail: Option<usize>,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..4u8, 0..5i64, 1..12i64, proptest::option::of(0..6usize), proptest::bool::weighted(0.15))
            .prop_map(|(name, gpus, cpus, described, cordoned)| Op::Node { name, gpus, cpus, described, cordoned }),
        1 => (0..4u8).prop_map(Op::DropNode),
        4 => (0..6u8, 1..6usize, 1..6usize, 0..3i64, 1..4i64, any::<bool>()).prop_map(
            |(name, members, min, gpus, cpus, queue)| Op::Gang { name, members, min: min.min(members), gpus, cpus, queue }
        ),
        3 => (0..6u8, 0..4i64, 1..5i64).prop_map(|(name, gpus, cpus)| Op::Lone { name, gpus, cpus }),
        2 => (0..30usize, any::<bool>()).prop_map(|(nth, phase)| Op::End { nth, phase }),
        2 => (0..30usize).prop_map(Op::DropPod),
        1 => (0..8i64).prop_map(Op::Capability),
        4 => proptest::option::weighted(0.2, 0..8usize).prop_map(|fail| Op::Plan { fail }),
    ]
}

impl World {
    fn node_event(&self, name: &str) -> Event {
        let node = &self.nodes[name];
        let event = match node.described {
            Some(broken) => described(name, node.gpus as usize, |i| i != broken),
            None => support::node(name, node.gpus),
        };
        let Event::NodeChanged(mut object) = event else {
            unreachable!()
        };
        let status = object.status.as_mut().unwrap();
        let cpus = k8s_openapi::apimachinery::pkg::api::resource::Quantity(node.cpus.to_string());
        status
            .allocatable
            .as_mut()
            .unwrap()
            .insert("cpu".into(), cpus);
        object.spec.as_mut().unwrap().unschedulable = Some(node.cordoned);
        Event::NodeChanged(object)
    }

    fn pod_event(&self, name: &str) -> Event {
        let pod = &self.pods[name];
        pod_with(name, pod.group.as_deref(), pod.gpus, |object| {
            object["metadata"]["uid"] = json!(format!("{name}-{}", pod.generation));
            object["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
                json!(pod.cpus.to_string());
            object["spec"]["nodeName"] = json!(pod.node);
            object["status"] = json!({"phase": pod.phase});
            if !pod.devices.is_empty() {
                let chosen = json!({"main": {"nvidia.com/gpu": pod.devices}});
                object["metadata"]["annotations"]["muster.io/devices"] = json!(chosen.to_string());
            }
        })
    }

    fn group_event(&self, name: &str) -> Event {
        let group = &self.groups[name];
        group_with(name, group.min as i32, |object| {
            object["spec"]["queue"] = json!(group.queue);
            object["status"] = json!({"phase": group.phase, "conditions": group.conditions});
        })
    }

    fn queue_event(&self, name: &'static str) -> Event {
        let capability = self
            .capability
            .get(name)
            .map(|n| json!({"nvidia.com/gpu": n.to_string()}));
        queue_with(name, |queue| {
            queue["spec"]["capability"] = json!(capability)
        })
    }

    fn every_event(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self
            .nodes
            .keys()
            .map(|name| self.node_event(name))
            .collect();
        events.extend(self.pods.keys().map(|name| self.pod_event(name)));
        events.extend(self.groups.keys().map(|name| self.group_event(name)));
        events.extend([self.queue_event("default"), self.queue_event("other")]);
        events
    }

    fn holds_room(pod: &PodModel) -> bool {
        pod.node.is_some() && !matches!(pod.phase, "Succeeded" | "Failed")
    }

    fn residents<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a PodModel> {
        self.pods
            .values()
            .filter(move |pod| Self::holds_room(pod) && pod.node.as_deref() == Some(node))
    }

    /// GPUs and CPUs free on a node, counted from the pods.
    fn free(&self, name: &str) -> (i64, i64) {
        let node = &self.nodes[name];
        let (mut gpus, mut cpus) = (node.gpus, node.cpus);
        let mut held = BTreeSet::new();
        let mut nameless = 0;
        for pod in self.residents(name) {
            gpus -= pod.gpus;
            cpus -= pod.cpus;
            held.extend(pod.devices.iter().cloned());
            nameless += (pod.gpus - pod.devices.len() as i64).max(0);
        }
        if let (Some(broken), true) = (node.described, node.gpus > 0) {
            let healthy = (0..node.gpus as usize).filter(|i| *i != broken);
            let free = healthy
                .filter(|i| !held.contains(&format!("{name}-{i}")))
                .count() as i64;
            gpus = gpus.min(free - nameless);
        }
        (gpus, cpus)
    }

    fn queue_of(&self, pod: &PodModel) -> &'static str {
        pod.group
            .as_ref()
            .and_then(|group| self.groups.get(group))
            .map_or("default", |group| group.queue)
    }

    fn queue_gpus(&self, queue: &str) -> i64 {
        let pods = self
            .pods
            .values()
            .filter(|pod| Self::holds_room(pod) && self.queue_of(pod) == queue);
        pods.map(|pod| pod.gpus).sum()
    }

    fn have(&self, group: &str) -> usize {
        let members = self
            .pods
            .values()
            .filter(|pod| pod.group.as_deref() == Some(group));
        members
            .filter(|pod| Self::holds_room(pod) || pod.phase == "Succeeded")
            .count()
    }

    fn pending(&self) -> impl Iterator<Item = (&String, &PodModel)> {
        self.pods
            .iter()
            .filter(|(_, pod)| pod.node.is_none() && pod.phase == "Pending")
    }

    /// Does the op to the world; the events that tell of it.
    fn act(&mut self, op: &Op) -> Vec<Event> {
        match op {
            Op::Node {
                name,
                gpus,
                cpus,
                described,
                cordoned,
            } => {
                let name = format!("n{name}");
                let node = NodeModel {
                    gpus: *gpus,
                    cpus: *cpus,
                    described: *described,
                    cordoned: *cordoned,
                };
                self.nodes.insert(name.clone(), node);
                vec![self.node_event(&name)]
            }
            Op::DropNode(name) => {
                let name = format!("n{name}");
                self.nodes.remove(&name);
                vec![Event::NodeGone(name)]
            }
            Op::Gang {
                name,
                members,
                min,
                gpus,
                cpus,
                queue,
            } => {
                let group = format!("g{name}");
                if self.groups.contains_key(&group) {
                    return Vec::new();
                }
                let queue = if *queue { "other" } else { "default" };
                self.groups.insert(
                    group.clone(),
                    GroupModel {
                        min: *min,
                        queue,
                        phase: None,
                        conditions: Vec::new(),
                    },
                );
                let mut events = vec![self.group_event(&group)];
                for i in 0..*members {
                    events.extend(self.next_generation(
                        format!("{group}-{i}"),
                        Some(group.clone()),
                        *gpus,
                        *cpus,
                    ));
                }
                events
            }
            Op::Lone { name, gpus, cpus } => {
                self.next_generation(format!("p{name}"), None, *gpus, *cpus)
            }
            Op::End { nth, phase } => {
                let phase = if *phase { "Succeeded" } else { "Failed" };
                let running: Vec<String> = self
                    .pods
                    .iter()
                    .filter(|(_, pod)| Self::holds_room(pod))
                    .map(|(name, _)| name.clone())
                    .collect();
                let Some(name) = running.get(nth % running.len().max(1)) else {
                    return Vec::new();
                };
                self.pods.get_mut(name).unwrap().phase = phase;
                vec![self.pod_event(name)]
            }
            Op::DropPod(nth) => {
                let Some(name) = self.pods.keys().nth(nth % self.pods.len().max(1)).cloned() else {
                    return Vec::new();
                };
                self.pods.remove(&name);
                vec![pod_gone(&name)]
            }
            Op::Capability(gpus) => {
                self.capability.insert("other", *gpus);
                vec![self.queue_event("other")]
            }
            Op::Plan { .. } => Vec::new(),
        }
    }

    fn next_generation(
        &mut self,
        name: String,
        group: Option<String>,
        gpus: i64,
        cpus: i64,
    ) -> Vec<Event> {
        if self.pods.contains_key(&name) {
            return Vec::new();
        }
        self.births += 1;
        let generation = self.births;
        let pod = PodModel {
            group,
            gpus,
            cpus,
            node: None,
            devices: Vec::new(),
            phase: "Pending",
            generation,
        };
        self.pods.insert(name.clone(), pod);
        vec![self.pod_event(&name)]
    }

    /// Binds as the plan says, and judges it.
    fn bind(&mut self, plan: &Plan) -> Result<(), TestCaseError> {
        for update in &plan.groups {
            let group = self.groups.get_mut(&update.group.name).unwrap();
            group.phase = Some(update.phase.as_str());
            let conditions = update.conditions.iter().map(|condition| {
                let status = if condition.status { "True" } else { "False" };
                json!({"type": condition.kind, "status": status})
            });
            group.conditions = conditions.collect();
        }
        let touched: BTreeSet<String> = plan.binds.iter().map(|bind| bind.node.clone()).collect();
        let mut groups = BTreeSet::new();
        let mut queues = BTreeSet::new();
        for bind in &plan.binds {
            let node = &self.nodes[&bind.node];
            prop_assert!(!node.cordoned, "a cordoned node takes nobody");
            let listed: Vec<String> = bind
                .devices
                .values()
                .flat_map(|by_resource| by_resource.values())
                .flatten()
                .cloned()
                .collect();
            if let (Some(broken), true) = (node.described, node.gpus > 0) {
                let pod = &self.pods[&bind.pod.name];
                prop_assert_eq!(
                    listed.len() as i64,
                    pod.gpus,
                    "as many devices as asked for"
                );
                prop_assert!(
                    !listed.contains(&format!("{}-{broken}", bind.node)),
                    "no broken device"
                );
                for other in self.residents(&bind.node) {
                    prop_assert!(
                        other.devices.iter().all(|id| !listed.contains(id)),
                        "no device twice"
                    );
                }
            }
            let pod = self.pods.get_mut(&bind.pod.name).unwrap();
            prop_assert!(pod.node.is_none(), "bound once");
            pod.node = Some(bind.node.clone());
            pod.devices = listed;
            groups.extend(pod.group.clone());
            queues.insert(self.queue_of(&self.pods[&bind.pod.name]));
        }
        for node in touched {
            let (gpus, cpus) = self.free(&node);
            // A node may have lost GPUs that pods hold: then nobody who asks for one may come.
            let asked = plan
                .binds
                .iter()
                .any(|bind| bind.node == node && self.pods[&bind.pod.name].gpus > 0);
            prop_assert!(gpus >= 0 || !asked, "GPUs of {node}: {gpus}");
            prop_assert!(cpus >= 0, "CPUs of {node}: {cpus}");
        }
        for group in groups {
            prop_assert!(
                self.have(&group) >= self.groups[&group].min,
                "half of {group} is bound"
            );
        }
        for queue in queues {
            if let Some(allowed) = self.capability.get(queue) {
                let bound: i64 = plan
                    .binds
                    .iter()
                    .map(|bind| &self.pods[&bind.pod.name])
                    .filter(|pod| self.queue_of(pod) == queue)
                    .map(|pod| pod.gpus)
                    .sum();
                prop_assert!(
                    bound == 0 || self.queue_gpus(queue) <= *allowed,
                    "queue {queue} over its capability"
                );
            }
        }
        Ok(())
    }

    /// No single pod, nor member beyond a gang's minimum, waits where it would fit.
    fn nobody_waits_in_vain(&self) -> Result<(), TestCaseError> {
        for (name, pod) in self.pending() {
            let alone = match &pod.group {
                Some(group) => self
                    .groups
                    .get(group)
                    .is_some_and(|facts| self.have(group) >= facts.min),
                None => true,
            };
            let queue = self.queue_of(pod);
            let room = self
                .capability
                .get(queue)
                .map(|allowed| allowed - self.queue_gpus(queue));
            if !alone || room.is_some_and(|room| pod.gpus > 0 && pod.gpus > room) {
                continue;
            }
            for (at, node) in self.nodes.iter().filter(|(_, node)| !node.cordoned) {
                let (gpus, cpus) = self.free(at);
                let fits = (pod.gpus == 0 || pod.gpus <= gpus) && pod.cpus <= cpus;
                prop_assert!(
                    !fits,
                    "{name} waits although {at} ({node:?}) has {gpus} GPUs and {cpus} CPUs"
                );
            }
        }
        Ok(())
    }
}

/// Evicts nobody: what holds of evictions is in `evictions_properties`.
fn scheduler() -> Scheduler {
    Scheduler::new(Config {
        actions: Actions {
            preempt: false,
            reclaim: false,
            ..Actions::default()
        },
        ..Config::default()
    })
}

/// Makes the next plan look at everything again, without changing anything.
fn nudge(scheduler: &mut Scheduler) {
    scheduler.apply(queue_with("nudge", |_| {}));
    scheduler.apply(Event::QueueGone("nudge".into()));
}

fn run(ops: &[Op], seed: u64) -> Result<(), TestCaseError> {
    let mut world = World::default();
    let mut s = scheduler();
    let mut twin = scheduler();
    for event in [world.queue_event("default"), world.queue_event("other")] {
        s.apply(event.clone());
        twin.apply(event);
    }
    for op in ops.iter().chain([&Op::Plan { fail: None }]) {
        for event in world.act(op) {
            s.apply(event.clone());
            twin.apply(event);
        }
        let Op::Plan { fail } = op else { continue };
        // A scheduler that was told the same things in another order, all at once.
        let mut rebuilt = scheduler();
        for event in shuffled(world.every_event(), seed) {
            rebuilt.apply(event);
        }
        prop_assert_eq!(rebuilt.view().nodes, s.view().nodes);
        prop_assert_eq!(rebuilt.view().pods, s.view().pods);
        let lines = |s: &Scheduler| -> BTreeMap<_, _> {
            let queues = s.view().queues.into_iter();
            queues
                .map(|(name, queue)| (name, (queue.allocated, queue.line)))
                .collect()
        };
        prop_assert_eq!(lines(&rebuilt), lines(&s));

        nudge(&mut s);
        nudge(&mut twin);
        let plan = s.plan(now());
        prop_assert_eq!(&twin.plan(now()), &plan, "same input, same plan");
        prop_assert_eq!(
            &rebuilt.plan(now()).binds,
            &plan.binds,
            "same state, same binds"
        );
        world.bind(&plan)?;
        world.nobody_waits_in_vain()?;

        nudge(&mut s);
        nudge(&mut twin);
        let again = s.plan(now());
        prop_assert!(
            again.binds.is_empty(),
            "planning twice binds nothing new: {:?}",
            again.binds
        );
        prop_assert!(
            again.groups.is_empty() && again.unscheduled.is_empty(),
            "nor says anything new: {again:?}"
        );
        twin.plan(now());

        for (i, bind) in plan.binds.iter().enumerate() {
            if Some(i) == *fail {
                let pod = world.pods.get_mut(&bind.pod.name).unwrap();
                pod.node = None;
                pod.devices.clear();
                s.forget(&bind.pod);
                twin.forget(&bind.pod);
            } else {
                let event = world.pod_event(&bind.pod.name);
                s.apply(event.clone());
                twin.apply(event);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn whatever_happens_every_plan_is_sound_and_depends_on_the_state_alone(
        ops in proptest::collection::vec(op(), 1..60),
        seed in any::<u64>(),
    ) {
        run(&ops, seed)?;
    }

    #[test]
    fn a_question_changes_nothing_of_the_state(
        ops in proptest::collection::vec(op(), 1..30),
        members in 1..6usize,
        gpus in 0..3i64,
    ) {
        let mut world = World::default();
        let (mut tried, mut plain) = (scheduler(), scheduler());
        for op in &ops {
            for event in world.act(op) {
                tried.apply(event.clone());
                plain.apply(event);
            }
            let group = group_object("trial", members as i32, |_| {});
            let pods: Vec<_> =
                (0..members).map(|i| pod_object(&format!("t-{i}"), Some("trial"), gpus, |_| {})).collect();
            let before = format!("{tried:?}");
            let trial = tried.what_if().would_place(Some(&group), &pods, now());
            let _ = tried.what_if().defragmentation(now());
            prop_assert_eq!(format!("{tried:?}"), before, "every counter, cache and ledger is as it was");
            prop_assert!(trial.binds.is_empty() || trial.binds.len() == members, "whole or not at all");
            prop_assert!(trial.binds.is_empty() != trial.reports.is_empty(), "a place or a reason");
            prop_assert_eq!(tried.view(), plain.view());
            let plan = tried.plan(now());
            for report in plan.reports.iter().take(3) {
                let before = format!("{tried:?}");
                let _ = tried.what_if().could_evict(&report.namespace, &report.group, now());
                prop_assert_eq!(format!("{tried:?}"), before, "every counter, cache and ledger is as it was");
            }
            prop_assert_eq!(plan, plain.plan(now()));
        }
    }
}

/// A gang that grew until its queue's bound and the cluster's room ended together.
#[test]
fn a_gang_that_grew_says_the_same_of_its_rest_when_asked_again() -> Result<(), TestCaseError> {
    let node = |name, gpus, cpus| Op::Node {
        name,
        gpus,
        cpus,
        described: None,
        cordoned: false,
    };
    let gang = |name, members, min, gpus, queue| Op::Gang {
        name,
        members,
        min,
        gpus,
        cpus: 1,
        queue,
    };
    let lone = Op::Lone {
        name: 0,
        gpus: 1,
        cpus: 1,
    };
    let ops = [
        node(1, 1, 1),
        gang(1, 4, 4, 2, false),
        lone,
        gang(0, 3, 1, 2, true),
        node(0, 4, 1),
        node(2, 1, 4),
        Op::Capability(2),
    ];
    run(&ops, 0)
}
