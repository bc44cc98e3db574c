//! A mock cluster around the scheduler: objects reported in a shuffled but fixed order, bindings
//! confirmed, evicted pods leaving and coming back. Its own book of nodes refuses a placement
//! that does not fit.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use resources::amounts::Amounts;
use serde_json::{Value, json};

use crate::engine::{Decisions, Engine, Placed, Settings};

/// In how many orders the objects of a case are told.
pub const ORDERS: u64 = 3;

/// The moment at which every case begins.
pub fn start() -> Timestamp {
    Timestamp::from_second(1_767_225_600 + 86_400).expect("a time of this century")
}

/// So many seconds after the oldest thing in a case was made, a day before it begins.
pub fn made(seconds: i64) -> String {
    (start() - SignedDuration::from_hours(24) + SignedDuration::from_secs(seconds)).to_string()
}

/// Where a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stand {
    Pending,
    Running(Placed),
    Leaving(Placed),
}

/// A pod of the case.
#[derive(Clone, Debug)]
pub struct Member {
    /// As created: without a node.
    pub manifest: Value,
    pub stand: Stand,
    /// Once leaving, it never finishes.
    pub stays: bool,
    /// How often it was made anew.
    pub times: usize,
}

/// What a case starts from.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    pub settings: Settings,
    /// Everything but pods that belong to workloads.
    pub objects: Vec<Value>,
    pub members: BTreeMap<String, Member>,
}

impl Scene {
    pub fn add(&mut self, object: Value) {
        self.objects.push(object);
    }

    pub fn pod(&mut self, manifest: Value, stand: Stand) {
        let name = text(&manifest["metadata"]["name"]);
        let member = Member {
            manifest,
            stand,
            stays: false,
            times: 0,
        };
        let twice = self.members.insert(name.clone(), member).is_some();
        assert!(!twice, "two pods named {name}");
    }
}

/// The cluster as it goes on.
pub struct Cluster {
    engine: Engine,
    pub members: BTreeMap<String, Member>,
    now: Timestamp,
    allocatable: BTreeMap<String, Amounts>,
    others: Vec<Value>,
    /// What held room when a plan gave it to somebody else.
    pub faults: Vec<String>,
}

impl Cluster {
    /// Tells all objects in the order that `order` gives; order 0 is the file's.
    pub fn new(scene: &Scene, order: u64) -> Cluster {
        let mut told: Vec<Value> = scene.objects.clone();
        told.extend(scene.members.values().map(manifest));
        shuffle(&mut told, order);
        let mut engine = Engine::new(&scene.settings);
        for object in &told {
            engine.notify(object);
        }
        let nodes = scene
            .objects
            .iter()
            .filter(|object| object["kind"] == "Node");
        let others = scene
            .objects
            .iter()
            .filter(|object| object["kind"] == "Pod");
        Cluster {
            engine,
            members: scene.members.clone(),
            now: start(),
            allocatable: nodes
                .map(|node| {
                    (
                        text(&node["metadata"]["name"]),
                        amounts(&node["status"]["allocatable"]),
                    )
                })
                .collect(),
            others: others.cloned().collect(),
            faults: Vec::new(),
        }
    }

    /// Plans, and takes note of what was decided: bound pods hold their room, victims leave.
    pub fn plan(&mut self) -> Decisions {
        let decisions = self.engine.plan(self.now);
        for evicted in &decisions.evictions {
            let member = self.members.get_mut(&evicted.pod);
            match member.map(|member| (member.stand.clone(), member)) {
                Some((Stand::Running(placed), member)) => member.stand = Stand::Leaving(placed),
                _ => self
                    .faults
                    .push(format!("{} evicted, but not running", evicted.pod)),
            }
        }
        for placed in &decisions.binds {
            match self.members.get_mut(&placed.pod) {
                Some(member) if member.stand == Stand::Pending => {
                    member.stand = Stand::Running(placed.clone());
                }
                _ => self
                    .faults
                    .push(format!("{} bound, but not pending", placed.pod)),
            }
        }
        self.weigh(&decisions.binds);
        decisions
    }

    /// What happens between two plans: bound pods run; victims go and come back as pending,
    /// unless they never finish.
    pub fn pass(&mut self, decisions: &Decisions) {
        self.now += SignedDuration::from_secs(60);
        for placed in &decisions.binds {
            if let Some(member) = self.members.get(&placed.pod) {
                self.engine.notify(&manifest(member));
            }
        }
        for member in self.members.values() {
            if matches!(member.stand, Stand::Leaving(_)) {
                self.engine.notify(&manifest(member));
            }
        }
        let names: Vec<String> = self
            .members
            .iter()
            .filter(|(_, member)| matches!(member.stand, Stand::Leaving(_)) && !member.stays)
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let Some(member) = self.members.get_mut(&name) else {
                continue;
            };
            member.stand = Stand::Pending;
            member.times += 1;
            let namespace = text(&member.manifest["metadata"]["namespace"]);
            self.engine.pod_gone(&namespace, &name);
            self.engine.notify(&manifest(member));
        }
    }

    /// Does every node that was given more hold what is on it? A node that holds too much from
    /// the start is the case's own. GPUs shared by several pods are not counted here.
    fn weigh(&mut self, binds: &[Placed]) {
        let given: BTreeSet<&String> = binds.iter().map(|placed| &placed.node).collect();
        let mut used: BTreeMap<String, Amounts> = BTreeMap::new();
        let here = self
            .members
            .values()
            .filter_map(|member| match &member.stand {
                Stand::Pending => None,
                Stand::Running(placed) | Stand::Leaving(placed) => {
                    Some((placed.node.clone(), &member.manifest))
                }
            });
        let others = self.others.iter().filter(|pod| {
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            pod["spec"]["nodeName"].is_string() && phase != "Failed" && phase != "Succeeded"
        });
        let others = others.map(|pod| (text(&pod["spec"]["nodeName"]), pod));
        for (node, pod) in here.chain(others) {
            let requests = amounts(&pod["spec"]["containers"][0]["resources"]["requests"]);
            let sum = used.entry(node).or_default();
            sum.add(&requests);
            sum.add(&[("pods".to_owned(), 1)].into_iter().collect());
        }
        for (node, sum) in used {
            let Some(room) = self
                .allocatable
                .get(&node)
                .filter(|_| given.contains(&node))
            else {
                continue;
            };
            let over: Vec<String> = sum
                .iter()
                .filter(|(name, n)| *n > room.get(name))
                .map(|(name, n)| format!("{n} {name} of {}", room.get(name)))
                .collect();
            if !over.is_empty() {
                self.faults
                    .push(format!("{node} is overloaded: {}", over.join(", ")));
            }
        }
    }
}

/// A pod's object as it stands.
pub fn manifest(member: &Member) -> Value {
    let mut pod = member.manifest.clone();
    let name = text(&pod["metadata"]["name"]);
    pod["metadata"]["uid"] = json!(format!("{name}-{}", member.times));
    if member.stays {
        // Nobody is there to take it off.
        pod["metadata"]["finalizers"] = json!(["example.com/stays"]);
    }
    let placed = match &member.stand {
        Stand::Pending => {
            pod["status"] = json!({"phase": "Pending"});
            return pod;
        }
        Stand::Running(placed) => placed,
        Stand::Leaving(placed) => {
            pod["metadata"]["deletionTimestamp"] = json!(start().to_string());
            placed
        }
    };
    pod["spec"]["nodeName"] = json!(placed.node);
    if pod["status"].is_null() {
        pod["status"] = json!({"startTime": made(3600)});
    }
    pod["status"]["phase"] = json!("Running");
    if !placed.devices.is_empty() {
        pod["metadata"]["annotations"][resources::names::DEVICES] = json!(placed.devices);
    }
    pod
}

/// Pods' names as a set.
pub fn names(placed: &[Placed]) -> BTreeSet<String> {
    placed.iter().map(|placed| placed.pod.clone()).collect()
}

/// The same order each time, another one for each number.
fn shuffle(objects: &mut [Value], order: u64) {
    if order == 0 {
        return;
    }
    let mut state = order.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for last in (1..objects.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (last as u64 + 1)).unwrap_or(0);
        objects.swap(last, other);
    }
}

pub fn amounts(list: &Value) -> Amounts {
    let list = serde_json::from_value(list.clone()).unwrap_or_default();
    Amounts::from_k8s(&list)
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
