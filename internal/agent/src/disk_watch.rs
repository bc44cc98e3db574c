//! The loop that keeps pods from filling the node's disk, as [`crate::eviction`] describes: reads the free space,
//! measures the pods, removes logs and evicts pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use durable::{DiskSpace, disk_space};
use runtime::WritableLayer;
use runtime::usage::DirectoryUsage;
use tokio::time::Instant;

use crate::eviction::measure::{self, Measure, Reading};
use crate::eviction::pressure::{Candidate, Shortage};
use crate::eviction::rounds::{Next, Rounds};
use crate::eviction::{DiskUser, PodDisk, PressureReason, limits};
use crate::node::AgentNode;
use crate::pods::Pods;

/// Interval at which the free space is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval of measurement turns,
const TURN_EVERY: Duration = Duration::from_secs(10);
/// and the interval while free space is too low.
const URGENT_TURN_EVERY: Duration = Duration::from_secs(2);
/// How long the container runtime may take to report its containers' writable layers.
const LAYERS_LIMIT: Duration = Duration::from_secs(5);

/// Watches one node's disk.
pub struct DiskWatch {
    node: Arc<AgentNode>,
    pods: Arc<Pods>,
    pod_disk: PodDisk,
    measure: Measure,
    rounds: Rounds,
    counted: Option<Instant>,
    /// The pods that were logged as doubtful.
    doubtful: BTreeSet<String>,
    /// The logged reason why the file system could not be read.
    blind: Option<String>,
    /// The logged reason why the writable layers are not known.
    layers_unknown: Option<String>,
}

impl DiskWatch {
    /// A watch without measurements.
    pub fn new(node: Arc<AgentNode>, pods: Arc<Pods>, pod_disk: PodDisk) -> DiskWatch {
        DiskWatch {
            node,
            pods,
            pod_disk,
            measure: Measure::default(),
            rounds: Rounds::default(),
            counted: None,
            doubtful: BTreeSet::new(),
            blind: None,
            layers_unknown: None,
        }
    }

    /// Watches without end.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let Some(room) = self.room().await else {
                continue;
            };
            let mut short = Shortage::of(&room);
            self.rounds.saw(short);
            if let Some(short) = short {
                let now = Instant::now();
                let words = short.message() + &self.rounds.message(now);
                self.node.pressure.saw(words, now);
            }
            let every = match short {
                Some(_) => URGENT_TURN_EVERY,
                None => TURN_EVERY,
            };
            if self.counted.is_some_and(|at| at.elapsed() < every) {
                continue;
            }
            if short.is_some() && remove_logs(self.node.clone(), self.pods.clone()).await {
                short = self.room().await.and_then(|room| Shortage::of(&room));
            }
            let users = self.count().await;
            self.counted = Some(Instant::now());
            let readings = self.measure.readings(&users);
            log_doubts(&mut self.doubtful, &readings);
            self.hold_to_limits(&readings, self.pod_disk.bytes(room.bytes));
            if let Some(short) = short {
                make_room(&self.node, &self.pods, &mut self.rounds, &readings, short);
            }
        }
    }

    async fn room(&mut self) -> Option<DiskSpace> {
        let data = self.node.layout.pods();
        let asked = tokio::task::spawn_blocking(move || disk_space(&data)).await;
        let why = match asked {
            Ok(Ok(room)) => {
                self.blind = None;
                return Some(room);
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if self.blind.as_ref() != Some(&why) {
            tracing::warn!(why, "the agent cannot measure how full the node's disk is");
        }
        self.blind = Some(why);
        None
    }

    /// Measures for one turn, on a thread that may block; returns the measured pods.
    async fn count(&mut self) -> Vec<DiskUser> {
        let mut users = self.pods.disk_users();
        let layers = self.layers().await;
        let mut measure = std::mem::take(&mut self.measure);
        let data = self.node.layout.pods();
        let counted = tokio::task::spawn_blocking(move || {
            let mut layers = measure::by_pod(layers, &data);
            for user in &mut users {
                user.layers = layers.remove(&user.uid).unwrap_or_default();
            }
            measure.turn(&users);
            (measure, users)
        });
        match counted.await {
            Ok((measure, users)) => {
                self.measure = measure;
                users
            }
            Err(error) => {
                tracing::warn!(%error, "the agent could not measure how much of the disk pods use");
                Vec::new()
            }
        }
    }

    /// The writable layers of containers with images; those of the last answer are not used again,
    /// so a container runtime that does not answer evicts no pod.
    async fn layers(&mut self) -> Vec<WritableLayer> {
        let Some(images) = self.node.images.clone() else {
            return Vec::new();
        };
        let why = match tokio::time::timeout(LAYERS_LIMIT, images.layers()).await {
            Ok(Ok(layers)) => {
                self.layers_unknown = None;
                return layers;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {LAYERS_LIMIT:?}"),
        };
        if self.layers_unknown.as_ref() != Some(&why) {
            tracing::warn!(why, "the writable layers of containers are not counted");
        }
        self.layers_unknown = Some(why);
        Vec::new()
    }

    fn hold_to_limits(&self, readings: &[Reading], default: Option<u64>) {
        for reading in readings.iter().filter(|reading| reading.user.running) {
            let user = reading.user;
            let mut known = reading.known.iter();
            let why = known
                .find_map(|(usage, total)| limits::exceeded(&user.limits, usage, total, default));
            if let Some(message) = why {
                let eviction = PressureReason {
                    message,
                    by_node: false,
                };
                self.pods.evict(&user.uid, eviction);
            }
        }
    }
}

/// Logs the pods that have become doubtful.
fn log_doubts(logged: &mut BTreeSet<String>, readings: &[Reading]) {
    let mut doubtful = BTreeSet::new();
    for reading in readings {
        let Some(why) = &reading.doubt else { continue };
        let uid = &reading.user.uid;
        if !logged.contains(uid) {
            tracing::warn!(uid, why, "a pod is evicted first if the disk gets too full");
        }
        doubtful.insert(uid.clone());
    }
    *logged = doubtful;
}

/// Removes logs of ended pods until there is enough space; true if it removed any.
async fn remove_logs(node: Arc<AgentNode>, pods: Arc<Pods>) -> bool {
    let removed = tokio::task::spawn_blocking(move || {
        let data = node.layout.pods();
        let short = || disk_space(&data).is_ok_and(|room| Shortage::of(&room).is_some());
        let running = || {
            let users = pods.disk_users().into_iter();
            let running = users.filter(|user| user.running);
            running.map(|user| user.uid).collect::<BTreeSet<String>>()
        };
        node.logs.make_room(running, short, SystemTime::now())
    });
    let removed = removed.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "the logs of ended pods were not removed");
        0
    });
    if removed > 0 {
        tracing::warn!(
            pods = removed,
            "logs of ended pods were removed because the disk is too full"
        );
    }
    removed > 0
}

/// Evicts a pod for a shortage, unless an earlier eviction is under way.
fn make_room(
    node: &AgentNode,
    pods: &Pods,
    rounds: &mut Rounds,
    readings: &[Reading],
    short: Shortage,
) {
    let now = Instant::now();
    let left = |uid: &str| {
        let mut running = readings.iter().filter(|reading| reading.user.running);
        running.any(|reading| reading.user.uid == uid) || node.layout.pod(uid).holds_files()
    };
    match rounds.next(left, now) {
        Next::Wait => return,
        Next::Pause => {
            tracing::warn!("{}{}", short.message(), rounds.message(now));
            return;
        }
        Next::Evict => {}
    }
    let running = readings.iter().filter(|reading| reading.user.running);
    let used: BTreeMap<&str, (&Reading, DirectoryUsage)> = running
        .filter_map(|reading| {
            Some((
                reading.user.uid.as_str(),
                (reading, reading.on_data_disk()?),
            ))
        })
        .collect();
    let candidates = used.iter().map(|(uid, (reading, used))| Candidate {
        uid,
        limits: &reading.user.limits,
        used,
        doubtful: reading.doubt.is_some(),
    });
    let Some(victim) = short.victim(candidates) else {
        return;
    };
    let doubt = used
        .get(victim)
        .and_then(|(reading, _)| reading.doubt.as_deref());
    let eviction = PressureReason {
        message: short.message() + doubt.unwrap_or_default(),
        by_node: true,
    };
    pods.evict(victim, eviction);
    rounds.begin(victim, short, now);
}
