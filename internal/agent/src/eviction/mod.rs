//! Keeps pods from filling the node's disk. Every 10 seconds the agent measures the use of each pod
//! ([`measure`]) and evicts a pod that exceeds a limit ([`limits`]); every second it reads the free
//! space of the file system of the agent's data, and if that is too low evicts the pod with the
//! highest use beyond its request ([`pressure`]).
//!
//! Between two looks a pod can write as fast as the disk accepts, so it can fill the disk for
//! seconds. Claims, `hostPath` volumes and images are not counted: they outlast pods, and the
//! administrator manages them. Files that a process removed and keeps open are not counted either.

mod limits;
mod measure;
mod pressure;

use std::sync::Arc;
use std::time::Duration;

use runtime::usage::{Room, Usage, room};
use tokio::time::Instant;

pub use limits::{DiskLimits, LEAST_POD_DISK, PodDisk};
pub use measure::{DiskUser, Part};
pub use pressure::{Pressure, allocatable};

use crate::node::Node;
use crate::pods::Pods;
use measure::Measure;
use pressure::Shortage;

/// Interval at which the free space is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval of measurement turns,
const TURN_EVERY: Duration = Duration::from_secs(10);
/// and the interval while free space is too low.
const URGENT_TURN_EVERY: Duration = Duration::from_secs(2);
/// How long an evicted pod may take to free space before the next pod is evicted.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The message, in the kubelet's words.
    pub message: String,
    /// Whether the node evicts the pod to protect itself, and not for a limit of the pod's own.
    pub by_node: bool,
}

/// Watches one node's disk.
pub struct Watch {
    node: Arc<Node>,
    pods: Arc<Pods>,
    pod_disk: PodDisk,
    measure: Measure,
    /// The pod that was evicted last to free space, and when.
    making_room: Option<(String, Instant)>,
    counted: Option<Instant>,
    /// The logged reason why the file system could not be read.
    blind: Option<String>,
}

impl Watch {
    /// A watch without measurements.
    pub fn new(node: Arc<Node>, pods: Arc<Pods>, pod_disk: PodDisk) -> Watch {
        Watch {
            node,
            pods,
            pod_disk,
            measure: Measure::default(),
            making_room: None,
            counted: None,
            blind: None,
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
            let short = Shortage::of(&room);
            if let Some(short) = short {
                self.node.pressure.saw(short.words(), Instant::now());
            }
            let every = match short {
                Some(_) => URGENT_TURN_EVERY,
                None => TURN_EVERY,
            };
            if self.counted.is_some_and(|at| at.elapsed() < every) {
                continue;
            }
            let users = self.count().await;
            self.counted = Some(Instant::now());
            self.hold_to_limits(&users, self.pod_disk.bytes(room.bytes));
            if let Some(short) = short {
                self.make_room(&users, short);
            }
        }
    }

    async fn room(&mut self) -> Option<Room> {
        let data = self.node.layout.pods();
        let asked = tokio::task::spawn_blocking(move || room(&data)).await;
        let why = match asked {
            Ok(Ok(room)) => {
                self.blind = None;
                return Some(room);
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if self.blind.as_ref() != Some(&why) {
            tracing::warn!(why, "how full the node's disk is cannot be found out");
        }
        self.blind = Some(why);
        None
    }

    /// Measures for one turn, on a thread that may block; returns the measured pods.
    async fn count(&mut self) -> Vec<DiskUser> {
        let users = self.pods.disk_users();
        let mut measure = std::mem::take(&mut self.measure);
        let counted = tokio::task::spawn_blocking(move || {
            measure.turn(&users);
            (measure, users)
        });
        match counted.await {
            Ok((measure, users)) => {
                self.measure = measure;
                users
            }
            Err(error) => {
                tracing::warn!(%error, "what pods use of the disk was not counted");
                Vec::new()
            }
        }
    }

    fn hold_to_limits(&self, users: &[DiskUser], default: Option<u64>) {
        for user in users.iter().filter(|user| user.running) {
            let mut known = self.measure.known(&user.uid).into_iter();
            let why = known.find_map(|usage| limits::exceeded(&user.limits, usage, default));
            if let Some(message) = why {
                let eviction = Eviction {
                    message,
                    by_node: false,
                };
                self.pods.evict(&user.uid, eviction);
            }
        }
    }

    fn make_room(&mut self, users: &[DiskUser], short: Shortage) {
        if let Some((uid, since)) = &self.making_room {
            let ends = users.iter().any(|user| user.uid == *uid && user.running);
            if ends && since.elapsed() < PATIENCE {
                return;
            }
        }
        let used: Vec<(&str, &DiskLimits, Usage)> = (users.iter())
            .filter(|user| user.running)
            .filter_map(|user| {
                let known = self.measure.known(&user.uid).into_iter();
                let most = known
                    .map(|usage| usage.total())
                    .max_by_key(|all| all.bytes)?;
                Some((user.uid.as_str(), user.limits.as_ref(), most))
            })
            .collect();
        let candidates = used.iter().map(|(uid, limits, used)| (*uid, *limits, used));
        let Some(victim) = short.victim(candidates).map(str::to_owned) else {
            return;
        };
        let eviction = Eviction {
            message: short.words(),
            by_node: true,
        };
        self.pods.evict(&victim, eviction);
        self.making_room = Some((victim, Instant::now()));
    }
}
