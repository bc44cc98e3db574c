//! Sharing GPUs after any events: no GPU is given beyond what it has, whole ones are given whole,
//! no pod waits beside a GPU with room, and the state equals that of a scheduler that starts now. The
//! world is kept here as plain data, and judged without the scheduler's help.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use resources::devices::NodeInventory;
use scheduler::{Event, Plan, Scheduler};
use serde_json::json;
use support::*;

#[derive(Clone, Debug)]
struct NodeModel {
    gpus: i64,
    memory: Option<i64>,
    /// GPUs known one by one; the one with this index is broken.
    known: Option<usize>,
    /// Of those that are known a container gets one at most of these: a bit for each.
    alone: u8,
}

impl NodeModel {
    /// Does a container that gets the GPU get no other?
    fn is_alone(&self, id: &str) -> bool {
        let index = id
            .rsplit_once('-')
            .and_then(|(_, index)| index.parse().ok());
        index.is_some_and(|index: u32| self.alone & 1 << index != 0)
    }
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Whole(i64),
    Part(i64, i64),
    Memory(i64),
}

#[derive(Clone, Debug)]
struct PodModel {
    ask: Ask,
    group: Option<String>,
    priority: i32,
    node: Option<String>,
    devices: Vec<String>,
    leaving: bool,
    birth: u32,
}

#[derive(Clone, Debug, Default)]
struct World {
    nodes: BTreeMap<String, NodeModel>,
    pods: BTreeMap<String, PodModel>,
    groups: BTreeMap<String, usize>,
    births: u32,
    /// Is room kept for somebody, by the last plan that said anything new?
    kept: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Node(u8, i64, Option<i64>, Option<usize>, u8),
    DropNode(u8),
    Pod(u8, Ask, i32),
    Gang(u8, usize, Ask),
    Leave(usize),
    Gone(usize),
    Plan,
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        2 => (0..4i64).prop_map(Ask::Whole),
        4 => (1..=9i64, prop_oneof![4 => Just(1i64), 1 => 2..4i64])
            .prop_map(|(tenths, gpus)| Ask::Part(tenths * 100, gpus)),
        2 => prop_oneof![Just(100i64), Just(333), Just(700), Just(1500)].prop_map(Ask::Memory),
    ]
}

fn node() -> impl Strategy<Value = Op> {
    let memory = proptest::option::of(prop_oneof![Just(1000i64), Just(2000)]);
    let known = proptest::option::weighted(0.75, 0..6usize);
    let alone = prop_oneof![1 => Just(0), 2 => 1..16u8];
    (0..3u8, 0..5i64, memory, known, alone)
        .prop_map(|(name, gpus, memory, known, alone)| Op::Node(name, gpus, memory, known, alone))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => node(),
        1 => (0..3u8).prop_map(Op::DropNode),
        6 => (0..12u8, ask(), 0..3i32).prop_map(|(name, ask, prio)| Op::Pod(name, ask, prio)),
        2 => (0..4u8, 1..4usize, ask()).prop_map(|(name, n, ask)| Op::Gang(name, n, ask)),
        2 => (0..20usize).prop_map(Op::Leave),
        3 => (0..20usize).prop_map(Op::Gone),
        5 => Just(Op::Plan),
    ]
}

/// What is held on a node: by GPU, and whole ones that nobody names.
#[derive(Debug, Default)]
struct Held {
    by_id: BTreeMap<String, i64>,
    unnamed: i64,
}

impl World {
    fn node_event(&self, name: &str) -> Event {
        let node = &self.nodes[name];
        let event = match node.known {
            Some(broken) if node.gpus > 0 => described(name, node.gpus as usize, |i| i != broken),
            _ => support::node(name, node.gpus),
        };
        let Event::NodeChanged(mut object) = event else {
            unreachable!()
        };
        let notes = object.metadata.annotations.get_or_insert_default();
        if let Some(text) = notes.get_mut("muster.io/inventory") {
            let mut inventory: NodeInventory = serde_json::from_str(text).unwrap();
            for gpu in &mut inventory.gpus {
                gpu.alone = node.is_alone(&gpu.id);
            }
            *text = serde_json::to_string(&inventory).unwrap();
        }
        if let Some(memory) = node.memory {
            let labels = object.metadata.labels.get_or_insert_default();
            labels.insert("nvidia.com/gpu.memory".into(), memory.to_string());
        }
        Event::NodeChanged(object)
    }

    fn pod_event(&self, name: &str) -> Event {
        let pod = &self.pods[name];
        let whole = match pod.ask {
            Ask::Whole(gpus) => gpus,
            _ => 0,
        };
        pod_with(name, pod.group.as_deref(), whole, |object| {
            object["metadata"]["uid"] = json!(format!("{name}-{}", pod.birth));
            object["spec"]["priority"] = json!(pod.priority);
            let notes = &mut object["metadata"]["annotations"];
            match pod.ask {
                Ask::Whole(_) => {}
                Ask::Part(milli, gpus) => {
                    notes["muster.io/gpu-fraction"] = json!(format!("{milli}m"));
                    notes["muster.io/gpu-count"] = json!(gpus.to_string());
                }
                Ask::Memory(mib) => notes["muster.io/gpu-memory"] = json!(mib.to_string()),
            }
            if !pod.devices.is_empty() {
                let chosen = json!({"main": {"nvidia.com/gpu": pod.devices}});
                notes["muster.io/devices"] = json!(chosen.to_string());
            }
            if pod.leaving {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            object["spec"]["nodeName"] = json!(pod.node);
            object["status"] =
                json!({"phase": if pod.node.is_some() { "Running" } else { "Pending" }});
        })
    }

    fn every_event(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.pods.keys().map(|name| self.pod_event(name)).collect();
        events.extend(self.nodes.keys().map(|name| self.node_event(name)));
        let groups = self.groups.iter();
        events.extend(groups.map(|(name, min)| group(name, *min as i32)));
        events
    }

    fn act(&mut self, op: &Op) -> Vec<Event> {
        match op {
            Op::Node(name, gpus, memory, known, alone) => {
                let name = format!("n{name}");
                let (gpus, memory, known, alone) = (*gpus, *memory, *known, *alone);
                let node = NodeModel {
                    gpus,
                    memory,
                    known,
                    alone,
                };
                self.nodes.insert(name.clone(), node);
                vec![self.node_event(&name)]
            }
            Op::DropNode(name) => {
                let name = format!("n{name}");
                self.nodes.remove(&name);
                vec![Event::NodeGone(name)]
            }
            Op::Pod(name, ask, priority) => {
                self.next_generation(format!("p{name}"), None, *ask, *priority)
            }
            Op::Gang(name, members, ask) => {
                let name = format!("g{name}");
                if self.groups.contains_key(&name) {
                    return Vec::new();
                }
                self.groups.insert(name.clone(), *members);
                let mut events = vec![group(&name, *members as i32)];
                for i in 0..*members {
                    events.extend(self.next_generation(
                        format!("{name}-{i}"),
                        Some(name.clone()),
                        *ask,
                        0,
                    ));
                }
                events
            }
            Op::Leave(nth) => {
                let there = |(_, pod): &(&String, &PodModel)| pod.node.is_some();
                let names: Vec<String> = self
                    .pods
                    .iter()
                    .filter(there)
                    .map(|(n, _)| n.clone())
                    .collect();
                let Some(name) = names.get(nth % names.len().max(1)) else {
                    return Vec::new();
                };
                self.pods.get_mut(name).unwrap().leaving = true;
                vec![self.pod_event(name)]
            }
            Op::Gone(nth) => {
                let Some(name) = self.pods.keys().nth(nth % self.pods.len().max(1)).cloned() else {
                    return Vec::new();
                };
                self.pods.remove(&name);
                vec![pod_gone(&name)]
            }
            Op::Plan => Vec::new(),
        }
    }

    fn next_generation(
        &mut self,
        name: String,
        group: Option<String>,
        ask: Ask,
        priority: i32,
    ) -> Vec<Event> {
        if self.pods.contains_key(&name) {
            return Vec::new();
        }
        self.births += 1;
        let pod = PodModel {
            ask,
            group,
            priority,
            node: None,
            devices: Vec::new(),
            leaving: false,
            birth: self.births,
        };
        self.pods.insert(name.clone(), pod);
        vec![self.pod_event(&name)]
    }

    /// How much of each of how many GPUs a pod takes on a node; none where it never fits.
    fn takes(&self, ask: Ask, node: &str) -> Option<(i64, i64)> {
        match ask {
            Ask::Whole(gpus) => Some((1000, gpus)),
            Ask::Part(milli, gpus) => Some((milli, gpus)),
            Ask::Memory(mib) => {
                let memory = self.nodes.get(node)?.memory?;
                let part = (mib * 100 + memory - 1) / memory * 10;
                (part <= 1000).then_some((part, 1))
            }
        }
    }

    fn held(&self, node: &str) -> Held {
        let mut held = Held::default();
        let here = |pod: &&PodModel| pod.node.as_deref() == Some(node);
        for pod in self.pods.values().filter(here) {
            let (each, gpus) = self.takes(pod.ask, node).unwrap_or((1000, 1));
            for id in &pod.devices {
                *held.by_id.entry(id.clone()).or_default() += each;
            }
            held.unnamed += (gpus - pod.devices.len() as i64).max(0);
        }
        held
    }

    /// Does a pod fit on a node beside all that is there?
    fn fits(&self, ask: Ask, name: &str) -> bool {
        let node = &self.nodes[name];
        let held = self.held(name);
        let known = node.known.filter(|_| node.gpus > 0);
        let ids: Vec<String> = (0..node.gpus)
            .filter(|i| known != Some(*i as usize))
            .map(|i| match known {
                Some(_) => format!("{name}-{i}"),
                None => i.to_string(),
            })
            .collect();
        let several = matches!(ask, Ask::Whole(gpus) | Ask::Part(_, gpus) if gpus > 1);
        let may = |id: &String| !(several && known.is_some() && node.is_alone(id));
        let ids: Vec<String> = ids.into_iter().filter(may).collect();
        let free = |id: &String| 1000 - held.by_id.get(id).copied().unwrap_or(0);
        let idle = ids.iter().filter(|id| free(id) == 1000).count() as i64;
        let idle = idle.min(node.gpus - held.by_id.len() as i64) - held.unnamed;
        let begun = ids.iter().map(free).filter(|free| *free < 1000);
        match (ask, self.takes(ask, name)) {
            (_, None) => false,
            (Ask::Whole(0), _) => true,
            _ if idle < 0 => false,
            (Ask::Whole(_), Some((_, gpus))) => gpus <= idle,
            (_, Some((each, gpus))) => {
                begun.filter(|free| *free >= each).count() as i64 + idle >= gpus
            }
        }
    }

    /// Carries a plan out; checks every GPU that it gives.
    fn carry_out(&mut self, plan: &Plan) -> Result<Vec<Event>, TestCaseError> {
        let mut touched: BTreeSet<(String, String)> = BTreeSet::new();
        let mut events = Vec::new();
        for bind in &plan.binds {
            let lists = bind.devices.values().flat_map(|by| by.values());
            let ids: Vec<String> = lists.flatten().cloned().collect();
            let (_, gpus) = self
                .takes(self.pods[&bind.pod.name].ask, &bind.node)
                .unwrap();
            let pod = self.pods.get_mut(&bind.pod.name).unwrap();
            prop_assert!(pod.node.is_none(), "{} is bound twice", bind.pod.name);
            let names = !matches!(pod.ask, Ask::Whole(_)) || self.nodes[&bind.node].known.is_some();
            let distinct: BTreeSet<&String> = ids.iter().collect();
            if names {
                prop_assert_eq!(distinct.len() as i64, gpus, "{}", bind.pod.name);
            }
            let alone = |id: &&String| self.nodes[&bind.node].is_alone(id);
            if names && self.nodes[&bind.node].known.is_some() && ids.len() > 1 {
                prop_assert!(
                    !ids.iter().any(|id| alone(&id)),
                    "{}: {ids:?}",
                    bind.pod.name
                );
            }
            touched.extend(ids.iter().map(|id| (bind.node.clone(), id.clone())));
            pod.node = Some(bind.node.clone());
            pod.devices = ids;
            events.push(bind.pod.name.clone());
        }
        for (node, id) in touched {
            let held = self.held(&node);
            prop_assert!(held.by_id[&id] <= 1000, "{node} {id}: {held:?}");
            let busy = held.by_id.len() as i64 + held.unnamed;
            prop_assert!(busy <= self.nodes[&node].gpus, "{node}: {held:?}");
        }
        for eviction in &plan.evictions {
            let pod = self.pods.get_mut(&eviction.pod.name).unwrap();
            prop_assert!(pod.node.is_some() && !pod.leaving);
            pod.leaving = true;
            events.push(eviction.pod.name.clone());
        }
        Ok(events.iter().map(|name| self.pod_event(name)).collect())
    }

    fn nobody_waits_in_vain(&self) -> Result<(), TestCaseError> {
        let waits = |pod: &&PodModel| pod.node.is_none() && pod.group.is_none();
        for pod in self.pods.values().filter(waits) {
            for name in self.nodes.keys() {
                prop_assert!(
                    !self.fits(pod.ask, name),
                    "{pod:?} waits beside {name} {:?} {:?}",
                    self.nodes[name],
                    self.held(name)
                );
            }
        }
        Ok(())
    }
}

fn run(ops: &[Op]) -> Result<(), TestCaseError> {
    let mut world = World::default();
    let mut s = scheduler();
    for op in ops.iter().chain([&Op::Plan]) {
        for event in world.act(op) {
            s.apply(event);
        }
        if matches!(op, Op::Plan) {
            plan(&mut s, &mut world)?;
        }
    }
    // Everybody who leaves is gone at last; plans come to rest.
    for round in 0.. {
        prop_assert!(round < 50, "plans do not come to rest");
        let gone: Vec<String> = world
            .pods
            .iter()
            .filter(|(_, pod)| pod.leaving)
            .map(|(name, _)| name.clone())
            .collect();
        for name in &gone {
            world.pods.remove(name);
            s.apply(pod_gone(name));
        }
        let moved = plan(&mut s, &mut world)?;
        if gone.is_empty() && !moved {
            return Ok(());
        }
    }
    Ok(())
}

/// One plan, carried out and checked. True if it did anything.
fn plan(s: &mut Scheduler, world: &mut World) -> Result<bool, TestCaseError> {
    let plan = s.plan(now());
    for event in world.carry_out(&plan)? {
        s.apply(event);
    }
    let leaving = world.pods.values().any(|pod| pod.leaving);
    let meant = s.view().pods.iter().any(|((_, name), pod)| {
        pod.node.is_some() && world.pods.get(name).is_some_and(|pod| pod.node.is_none())
    });
    // Places kept for those who were evicted are not to be seen in the objects; a plan that is
    // unchanged leaves them as they are.
    if !plan.unchanged {
        world.kept = !plan.reservations.is_empty();
    }
    if !meant && !world.kept {
        let mut rebuilt = scheduler();
        for event in world.every_event() {
            rebuilt.apply(event);
        }
        prop_assert_eq!(rebuilt.view().nodes, s.view().nodes);
        prop_assert_eq!(rebuilt.view().pods, s.view().pods);
        let accounts = |s: &Scheduler| -> Vec<_> {
            let queues = s.view().queues.into_values();
            queues
                .map(|queue| (queue.gpu_milli, queue.requested))
                .collect()
        };
        prop_assert_eq!(accounts(&rebuilt), accounts(s));
    }
    if !meant && !leaving {
        world.nobody_waits_in_vain()?;
    }
    Ok(!plan.binds.is_empty() || !plan.evictions.is_empty())
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn no_gpu_is_given_beyond_what_it_has_and_nobody_waits_beside_room(
        ops in proptest::collection::vec(op(), 1..60)
    ) {
        run(&ops)?;
    }
}

#[test]
fn places_kept_for_the_evicted_stay_so_when_nothing_has_changed_since_that_was_said() {
    use Ask::{Part, Whole};
    use Op::{Gang, Gone, Leave, Node, Plan, Pod};
    run(&[
        Pod(0, Whole(2), 0),
        Node(0, 3, None, Some(0), 0),
        Plan,
        Leave(0),
        Gang(2, 2, Part(100, 1)),
        Pod(1, Whole(0), 0),
        Gone(11),
        Pod(1, Whole(0), 0),
        Gone(3),
        Plan,
        Node(1, 3, None, None, 0),
        Pod(1, Whole(1), 1),
        Node(2, 1, None, Some(1), 0),
        Plan,
        Gang(0, 3, Whole(1)),
        Node(2, 1, None, None, 0),
        Pod(2, Part(300, 1), 1),
        Plan,
        Pod(3, Part(800, 1), 1),
        Plan,
        Gone(11),
    ])
    .unwrap();
}

#[test]
fn a_held_place_is_given_back_where_the_nodes_gpus_come_and_go() {
    use Ask::{Memory, Whole};
    use Op::{Gang, Node, Plan, Pod};
    run(&[
        Node(0, 1, None, Some(1), 0),
        Pod(3, Whole(1), 0),
        Pod(4, Whole(0), 0),
        Plan,
        Gang(0, 1, Whole(0)),
        Node(0, 2, Some(1000), None, 0),
        Pod(1, Whole(1), 2),
        Pod(0, Memory(100), 1),
        Plan,
        Node(0, 0, None, None, 0),
        Node(0, 2, None, None, 0),
        Plan,
    ])
    .unwrap();
}

#[test]
fn a_node_that_goes_is_forgotten_with_the_place_kept_there_for_somebody_evicted() {
    use Ask::{Memory, Part};
    use Op::{DropNode, Gang, Node, Plan, Pod};
    run(&[
        Node(0, 1, Some(2000), None, 0),
        Gang(0, 1, Part(300, 1)),
        Plan,
        Node(1, 1, None, None, 0),
        Pod(0, Memory(1500), 1),
        Plan,
        DropNode(1),
    ])
    .unwrap();
}
