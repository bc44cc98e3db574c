//! The ledger of a round, kept from etcd's own record: each pod's current and former node, each node's allocations,
//! and whether the invariants held at every revision. It records when the API was impaired, and so since when Muster
//! could have seen the state that it should act on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use e2e::Change;
use serde_json::Value;

use super::draw::{GPUS, NAMES, PODS, Room};

/// How long Muster may take to act on a write on a busy machine; until then it may bind without knowing it.
const HEARD: Duration = Duration::from_secs(4);
/// How long a gang may take to be evicted after its timeout, on a busy machine.
const SLACK: Duration = Duration::from_secs(6);

/// A pod.
#[derive(Clone, Debug)]
pub struct Pod {
    pub uid: String,
    pub name: String,
    pub scheduler: String,
    pub node: Option<String>,
    /// The binding's revision and time.
    pub bound: (i64, Option<Instant>),
    pub phase: String,
    pub asks: Room,
    pub gang: Option<String>,
    devices: BTreeSet<String>,
}

impl Pod {
    /// Whether it holds room on its node.
    pub fn holds(&self) -> bool {
        self.node.is_some() && !self.ended()
    }

    pub fn ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether Muster bound it: other binders choose no devices.
    fn by_muster(&self) -> bool {
        self.scheduler == "muster" && (self.asks[GPUS] == 0 || !self.devices.is_empty())
    }
}

/// An existing node.
#[derive(Clone, Debug)]
pub struct Node {
    pub room: Room,
    pub cordoned: Option<Instant>,
}

/// A gang with an existing PodGroup.
#[derive(Clone, Debug, Default)]
struct Gang {
    minimum: usize,
    /// Since when it has held room with fewer members than its minimum.
    half: Option<Instant>,
    /// Whether the violation of that limit was already reported.
    told: bool,
}

/// The events of a round.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Bindings by Muster, and by others.
    pub bound: usize,
    pub bound_by_others: usize,
    /// Bindings beyond a node's room: by others, and by Muster before it could know.
    pub over_by_others: usize,
    pub over_by_race: usize,
    /// The longest delay after which Muster still bound beyond a node's room with a working API.
    pub lag: Duration,
    /// Bindings by Muster to nodes that had just been deleted or cordoned.
    pub late: usize,
    /// The longest time for which a gang was half bound.
    pub half: Duration,
}

/// See the module's head.
pub struct Ledger {
    /// How long gangs may be half bound.
    timeout: Duration,
    pub pods: BTreeMap<String, Pod>,
    pub nodes: BTreeMap<String, Node>,
    pub gone: BTreeMap<String, Instant>,
    gangs: BTreeMap<String, Gang>,
    /// PyTorchJobs, and the services that belong to them.
    pub jobs: BTreeSet<String>,
    pub services: BTreeSet<String>,
    /// The node to which each pod was ever bound, by uid.
    ever: BTreeMap<String, String>,
    /// Periods in which Muster or the API was impaired; the last one may still continue.
    troubles: Vec<(Instant, Option<Instant>)>,
    pub counts: Counts,
    pub wrong: Vec<String>,
}

impl Ledger {
    pub fn new(timeout: Duration) -> Ledger {
        Ledger {
            timeout,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            gone: BTreeMap::new(),
            gangs: BTreeMap::new(),
            jobs: BTreeSet::new(),
            services: BTreeSet::new(),
            ever: BTreeMap::new(),
            troubles: Vec::new(),
            counts: Counts::default(),
            wrong: Vec::new(),
        }
    }

    /// A program stops working. Returns the number that ends this trouble.
    pub fn trouble(&mut self) -> usize {
        self.troubles.push((Instant::now(), None));
        self.troubles.len() - 1
    }

    /// The program works again.
    pub fn healed(&mut self, trouble: usize) {
        self.troubles[trouble].1 = Some(Instant::now());
    }

    /// The time since which Muster need not have heard of any write.
    fn heard(&self, now: Instant) -> Option<Instant> {
        let mut since = now.checked_sub(HEARD)?;
        // Adjacent troubles count as one.
        for (begin, end) in self.troubles.iter().rev() {
            if end.is_none_or(|end| end > since) {
                since = since.min(begin.checked_sub(HEARD)?);
            }
        }
        Some(since)
    }

    /// Processes one write.
    pub fn take(&mut self, change: &Change) {
        let mut parts = change.key.split('/').skip(2);
        let note = |known: &mut BTreeSet<String>| {
            let name = change.key.rsplit('/').next().unwrap_or_default();
            match change.object {
                Some(_) => known.insert(name.to_owned()),
                None => known.remove(name),
            };
        };
        match parts.next() {
            Some("kubeflow.org") if parts.next() == Some("pytorchjobs") => note(&mut self.jobs),
            Some("services") if parts.next() == Some("specs") => note(&mut self.services),
            Some("pods") => self.pod(change),
            Some("minions") => self.node(change),
            Some("scheduling.volcano.sh") if parts.next() == Some("podgroups") => {
                self.group(change);
            }
            _ => {}
        }
    }

    fn node(&mut self, change: &Change) {
        let name = change.key.rsplit('/').next().unwrap_or_default().to_owned();
        let Some(object) = &change.object else {
            self.nodes.remove(&name);
            self.gone.insert(name, change.at);
            return;
        };
        let cordoned = object["spec"]["unschedulable"] == true;
        let before = self.nodes.get(&name).and_then(|node| node.cordoned);
        let room = NAMES.map(|of| amount(&object["status"]["allocatable"][of]));
        let cordoned = cordoned.then(|| before.unwrap_or(change.at));
        self.gone.remove(&name);
        self.nodes.insert(name, Node { room, cordoned });
    }

    fn group(&mut self, change: &Change) {
        let name = change.key.rsplit('/').next().unwrap_or_default().to_owned();
        match &change.object {
            Some(object) => {
                let minimum = object["spec"]["minMember"].as_u64().unwrap_or(1) as usize;
                self.gangs.entry(name.clone()).or_default().minimum = minimum;
                self.weigh(&name, change.at);
            }
            None => drop(self.gangs.remove(&name)),
        }
    }

    fn pod(&mut self, change: &Change) {
        let name = change.key.rsplit('/').next().unwrap_or_default().to_owned();
        let old = self.pods.remove(&name);
        let gang = old.as_ref().and_then(|pod| pod.gang.clone());
        if let Some(object) = &change.object {
            let mut pod = read(name.clone(), object);
            if let Some(old) = old.filter(|old| old.uid == pod.uid) {
                pod.bound = old.bound;
                if old.node.is_some() && old.node != pod.node {
                    let words = format!("{name} was on {:?} and is on {:?}", old.node, pod.node);
                    self.wrong.push(words);
                }
            }
            if pod.node.is_some() && pod.bound.1.is_none() {
                pod.bound = (change.revision, Some(change.at));
                self.bound(&pod, change);
            }
            self.pods.insert(name, pod);
        }
        if let Some(gang) = gang.or_else(|| self.gang_of(&change.key)) {
            self.weigh(&gang, change.at);
        }
    }

    fn gang_of(&self, key: &str) -> Option<String> {
        let name = key.rsplit('/').next()?;
        self.pods.get(name)?.gang.clone()
    }

    /// A pod was bound: recomputes the node's allocations.
    fn bound(&mut self, pod: &Pod, change: &Change) {
        let node = pod.node.clone().unwrap_or_default();
        if let Some(before) = self.ever.insert(pod.uid.clone(), node.clone()) {
            let words = format!("{} was bound to {before} and to {node}", pod.name);
            self.wrong.push(words);
        }
        let heard = self.heard(change.at);
        let ours = pod.by_muster();
        match ours {
            true => self.counts.bound += 1,
            false => self.counts.bound_by_others += 1,
        }
        let known =
            |since: Option<Instant>| since.zip(heard).is_some_and(|(since, heard)| since < heard);
        let Some(there) = self.nodes.get(&node) else {
            if ours && known(self.gone.get(&node).copied()) {
                let words = format!("{} was bound to {node}, which was long gone", pod.name);
                self.wrong.push(words);
            }
            self.counts.late += usize::from(ours);
            return;
        };
        let has = there.room;
        if ours && there.cordoned.is_some() {
            if known(there.cordoned) {
                let words = format!("{} was bound to {node}, cordoned long ago", pod.name);
                self.wrong.push(words);
            }
            self.counts.late += 1;
        }
        let beside: Vec<&Pod> = (self.pods.values())
            .filter(|other| other.holds() && other.node.as_ref() == Some(&node))
            .collect();
        let taken = |counts: &dyn Fn(&Pod) -> bool| {
            let mut all = pod.asks;
            for other in beside.iter().filter(|other| counts(other)) {
                (0..all.len()).for_each(|at| all[at] += other.asks[at]);
            }
            all
        };
        let over = |taken: Room| (0..has.len()).find(|at| taken[*at] > has[*at]);
        if over(taken(&|_| true)).is_some() {
            // Muster knows its own placements, and those of others once it could have heard of them.
            let told = taken(&|other| other.by_muster() || known(other.bound.1));
            match over(told) {
                _ if !ours => self.counts.over_by_others += 1,
                None => {
                    self.counts.over_by_race += 1;
                    let others = beside.iter().filter(|other| !other.by_muster());
                    let last = others.filter_map(|other| other.bound.1).max();
                    let in_order = self
                        .heard(change.at)
                        .is_some_and(|heard| heard + HEARD == change.at);
                    if let Some(last) = last.filter(|_| in_order) {
                        let lag = change.at.saturating_duration_since(last);
                        self.counts.lag = self.counts.lag.max(lag);
                    }
                }
                Some(at) => {
                    let (name, used, has) = (NAMES[at], told[at], has[at]);
                    let who: Vec<_> = (beside.iter())
                        .map(|pod| (&pod.name, &pod.scheduler, pod.asks))
                        .collect();
                    let words = format!(
                        "{} was bound to {node}, which then held {used} of {has} {name} that Muster knew of: {who:?}",
                        pod.name
                    );
                    self.wrong.push(words);
                }
            }
        }
        if ours {
            for other in beside.iter().filter(|other| other.by_muster()) {
                let shared: Vec<_> = other.devices.intersection(&pod.devices).collect();
                if !shared.is_empty() {
                    let words = format!("{} and {} both have {shared:?}", other.name, pod.name);
                    self.wrong.push(words);
                }
            }
        }
    }

    /// Whether a gang is half bound, and since when.
    fn weigh(&mut self, name: &str, now: Instant) {
        let members = self
            .pods
            .values()
            .filter(|pod| pod.gang.as_deref() == Some(name));
        let (mut holding, mut ended_well) = (0, 0);
        for pod in members {
            holding += usize::from(pod.holds());
            ended_well += usize::from(pod.phase == "Succeeded");
        }
        let Some(gang) = self.gangs.get_mut(name) else {
            return;
        };
        let half = holding > 0 && ended_well == 0 && holding < gang.minimum;
        match (half, gang.half) {
            (true, None) => gang.half = Some(now),
            (false, Some(_)) => {
                self.observe(now);
                let gang = self.gangs.entry(name.to_owned()).or_default();
                (gang.half, gang.told) = (None, false);
            }
            _ => {}
        }
    }

    /// Records gangs that have been half bound for too long. A trouble restarts the clock: the next leader counts
    /// from when it first saw them.
    pub fn observe(&mut self, now: Instant) {
        let mut calm = None;
        for (_, end) in &self.troubles {
            let Some(end) = end else { return };
            calm = calm.max(Some(*end));
        }
        for (name, gang) in &mut self.gangs {
            let Some(half) = gang.half else { continue };
            let since = calm.map_or(half, |calm| calm.max(half));
            let lasted = now.saturating_duration_since(since);
            self.counts.half = self.counts.half.max(lasted);
            if lasted > self.timeout + SLACK && !gang.told {
                gang.told = true;
                let words = format!("{name} was half bound for {lasted:?}");
                self.wrong.push(words);
            }
        }
    }

    /// The number of half-bound gangs.
    pub fn half_bound(&self) -> usize {
        self.gangs
            .values()
            .filter(|gang| gang.half.is_some())
            .count()
    }

    /// Whether a PodGroup of this name exists.
    pub fn has_gang(&self, name: &str) -> bool {
        self.gangs.contains_key(name)
    }

    /// The PodGroups' names.
    pub fn gangs(&self) -> impl Iterator<Item = &String> {
        self.gangs.keys()
    }

    /// A node where members of a gang with GPUs run.
    pub fn gangs_node(&self) -> Option<String> {
        let mut pods = self.pods.values();
        let found = pods.find(|pod| pod.gang.is_some() && pod.holds() && pod.asks[GPUS] > 0);
        found.and_then(|pod| pod.node.clone())
    }

    /// The allocations of a node by pods that hold room there.
    pub fn used(&self, node: &str) -> Room {
        let mut all = Room::default();
        let here = |pod: &&Pod| pod.holds() && pod.node.as_deref() == Some(node);
        for pod in self.pods.values().filter(here) {
            (0..all.len()).for_each(|at| all[at] += pod.asks[at]);
        }
        all
    }
}

fn read(name: String, object: &Value) -> Pod {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (meta, spec) = (&object["metadata"], &object["spec"]);
    let requests = &spec["containers"][0]["resources"]["requests"];
    let mut asks = NAMES.map(|of| amount(&requests[of]));
    asks[PODS] = 1;
    let chosen = meta["annotations"]["muster.io/devices"].as_str();
    let chosen: Value = serde_json::from_str(chosen.unwrap_or("{}")).unwrap_or_default();
    let container = spec["containers"][0]["name"].as_str().unwrap_or_default();
    let devices = chosen[container]["nvidia.com/gpu"].as_array();
    Pod {
        uid: text(&meta["uid"]).unwrap_or_default(),
        name,
        scheduler: text(&spec["schedulerName"]).unwrap_or_default(),
        node: text(&spec["nodeName"]).filter(|node| !node.is_empty()),
        bound: (0, None),
        phase: text(&object["status"]["phase"]).unwrap_or_default(),
        asks,
        gang: text(&meta["annotations"]["scheduling.k8s.io/group-name"]),
        devices: devices.into_iter().flatten().filter_map(text).collect(),
    }
}

/// A quantity as this test writes them: whole cores, GiB, GPUs, pods.
fn amount(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or("0");
    text.trim_end_matches("Gi")
        .parse()
        .unwrap_or_else(|_| panic!("{text} is no amount written here"))
}
