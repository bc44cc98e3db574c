//! When the free space of the agent's file system is too low, which pod is evicted for it, and how
//! long the node reports it (condition `DiskPressure`). Pure but for the time of the last shortage.
//!
//! The reserve is small, so that nodes with a nearly full disk continue to work: 1 GiB or 2 % of
//! the file system, whichever is less, and 1 % of its inodes. Pods whose count is doubtful
//! ([`super::doubt`]) are evicted first. Then, as in the kubelet, pods above their request are
//! evicted, those of lower priority first, then those with the highest use. A pod whose eviction
//! would free next to nothing is kept, unless its count is doubtful.

use std::cmp::Reverse;
use std::time::Duration;

use devices::inventory::NodeHardware;
use durable::DiskSpace;
use parking_lot::Mutex;
use resources::names::RUNTIME_PROCESS;
use runtime::usage::DirectoryUsage;
use tokio::time::Instant;

use super::limits::{DiskLimits, written};

/// Maximum number of bytes that stay free.
pub const RESERVE_BYTES: u64 = 1 << 30;
/// One in so many of the file system's bytes stays free, if that is less.
const RESERVE_SHARE: u64 = 50;
/// One in so many of its inodes stays free.
const INODE_SHARE: u64 = 100;
/// A pod is evicted only if that frees at least one part in so many of the reserve.
const WORTH_SHARE: u64 = 16;
/// How long the node reports that its disk was too full, as the kubelet's
/// `evictionPressureTransitionPeriod`.
const HOLD: Duration = Duration::from_secs(300);

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Bytes: required free, and free.
    Bytes(u64, u64),
    /// Inodes: required free, and free.
    Inodes(u64, u64),
}

/// Bytes of a file system that must stay free.
fn reserve(room: &DiskSpace) -> u64 {
    RESERVE_BYTES.min(room.bytes / RESERVE_SHARE)
}

/// Bytes of a file system that all pods together may request: as with the kubelet, other use of the
/// file system does not matter.
pub fn allocatable(room: &DiskSpace) -> u64 {
    room.bytes - reserve(room)
}

/// A pod that may be evicted for a shortage.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its uid.
    pub uid: &'a str,
    /// Its request and priority.
    pub limits: &'a DiskLimits,
    /// Its use of this file system.
    pub used: &'a DirectoryUsage,
    /// Whether it may use more than that.
    pub doubtful: bool,
}

impl Shortage {
    /// The shortage of a file system now.
    pub fn of(room: &DiskSpace) -> Option<Shortage> {
        let bytes = reserve(room);
        let inodes = room.inodes / INODE_SHARE;
        if room.available < bytes {
            Some(Shortage::Bytes(bytes, room.available))
        } else if room.inodes_available < inodes {
            Some(Shortage::Inodes(inodes, room.inodes_available))
        } else {
            None
        }
    }

    /// Whether more is free than in the other shortage; true if they are of different resources.
    pub fn is_less_than(self, other: Shortage) -> bool {
        match (self, other) {
            (Shortage::Bytes(_, left), Shortage::Bytes(_, before))
            | (Shortage::Inodes(_, left), Shortage::Inodes(_, before)) => left > before,
            _ => true,
        }
    }

    /// The message, in the kubelet's words.
    pub fn message(self) -> String {
        match self {
            Shortage::Bytes(least, left) => format!(
                "The node was low on resource: ephemeral-storage. Threshold quantity: {}, available: {}. ",
                written(least),
                written(left)
            ),
            Shortage::Inodes(least, left) => format!(
                "The node was low on resource: inodes. Threshold quantity: {least}, available: {left}. "
            ),
        }
    }

    /// How much of the scarce resource a pod's eviction frees beyond the pod's request; `None` if
    /// that is too little to evict a pod whose use is known.
    fn freed_by(self, pod: &Candidate) -> Option<u64> {
        let (freed, least) = match self {
            Shortage::Bytes(least, _) => (pod.limits.above_request(pod.used.bytes), least),
            Shortage::Inodes(least, _) => (pod.used.files, least),
        };
        (pod.doubtful || (freed > 0 && freed >= least / WORTH_SHARE)).then_some(freed)
    }

    /// The pod to evict among these.
    pub fn victim<'a>(self, pods: impl Iterator<Item = Candidate<'a>>) -> Option<&'a str> {
        let worth = pods.filter_map(|pod| {
            let freed = self.freed_by(&pod)?;
            // The uid is the last criterion, so that the order is deterministic.
            Some((!pod.doubtful, pod.limits.priority, Reverse(freed), pod.uid))
        });
        worth.min().map(|(.., uid)| uid)
    }
}

/// Whether the node's disk was too full recently.
#[derive(Debug, Default)]
pub struct Pressure(Mutex<Option<(String, Instant)>>);

impl Pressure {
    /// Records a shortage.
    pub fn saw(&self, why: String, now: Instant) {
        *self.0.lock() = Some((why, now));
    }

    /// The message; empty without a recent shortage.
    pub fn why(&self, now: Instant) -> String {
        let seen = self.0.lock();
        let lately = seen
            .as_ref()
            .filter(|(_, at)| now.duration_since(*at) < HOLD);
        lately.map_or_else(String::new, |(why, _)| why.trim().to_owned())
    }

    /// Sets the machine's label so that the scheduler places no more pods of processes there
    /// meanwhile.
    pub fn assess(&self, machine: &mut NodeHardware, now: Instant) {
        if !self.why(now).is_empty() {
            let labels = &mut machine.inventory.labels;
            labels.insert(RUNTIME_PROCESS.to_owned(), false.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    const GI: u64 = 1 << 30;

    fn room(bytes: u64, available: u64) -> DiskSpace {
        DiskSpace {
            bytes,
            available,
            inodes: 1000,
            inodes_available: 500,
        }
    }

    #[test]
    fn a_disk_is_too_full_below_a_gibibyte_or_a_fiftieth_of_it() {
        for (bytes, available, short) in [
            (1000 * GI, GI, None),
            (1000 * GI, GI - 1, Some(Shortage::Bytes(GI, GI - 1))),
            // A small disk, for instance a developer's machine with little free space.
            (20 * GI, GI / 2, None),
            (20 * GI, GI / 4, Some(Shortage::Bytes(20 * GI / 50, GI / 4))),
            (0, 0, None),
        ] {
            assert_eq!(Shortage::of(&room(bytes, available)), short, "{bytes}");
        }
        let mut few = room(1000 * GI, 500 * GI);
        few.inodes_available = 9;
        assert_eq!(Shortage::of(&few), Some(Shortage::Inodes(10, 9)));
        // File systems that create inodes on demand report none.
        (few.inodes, few.inodes_available) = (0, 0);
        assert_eq!(Shortage::of(&few), None);
    }

    #[test]
    fn the_words_are_the_kubelets() {
        assert_eq!(
            Shortage::Bytes(GI, GI / 2).message(),
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. "
        );
        assert_eq!(
            Shortage::Inodes(10, 9).message(),
            "The node was low on resource: inodes. Threshold quantity: 10, available: 9. "
        );
    }

    #[test]
    fn the_victim_is_doubtful_or_has_the_lowest_priority_and_the_highest_use_above_its_request() {
        let limits = |request: &str, priority: i32| {
            let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
                "priority": priority, "containers": [{"name": "c",
                    "resources": {"requests": {"ephemeral-storage": request}}}]}}))
            .unwrap();
            DiskLimits::of(&pod)
        };
        let short = Shortage::Bytes(GI, 0);
        // A pod: its uid, request, priority, use, and whether its count is doubtful.
        type PodCase = (&'static str, &'static str, i32, u64, bool);
        let cases: [(&[PodCase], Option<&str>); 11] = [
            (&[], None),
            (
                &[("a", "0", 0, GI, false), ("b", "0", 0, 2 * GI, false)],
                Some("b"),
            ),
            // The requested space is the pod's own.
            (
                &[("a", "0", 0, GI, false), ("b", "10Gi", 0, 10 * GI, false)],
                Some("a"),
            ),
            (
                &[
                    ("a", "1Gi", 0, 3 * GI, false),
                    ("b", "10Gi", 0, 11 * GI, false),
                ],
                Some("a"),
            ),
            (
                &[("a", "0", 5, 9 * GI, false), ("b", "0", -1, GI, false)],
                Some("b"),
            ),
            (&[("a", "0", 0, GI / 16 - 1, false)], None),
            (
                &[("b", "0", 0, GI, false), ("a", "0", 0, GI, false)],
                Some("a"),
            ),
            // A doubtful pod is evicted first, however little it seems to use, and whatever its priority.
            (
                &[("a", "0", 0, 9 * GI, false), ("b", "10Gi", 5, 0, true)],
                Some("b"),
            ),
            (&[("a", "0", 0, 0, true)], Some("a")),
            (&[("a", "0", 5, 0, true), ("b", "0", 0, 0, true)], Some("b")),
            (
                &[("a", "0", 0, GI, true), ("b", "0", 0, 2 * GI, true)],
                Some("b"),
            ),
        ];
        for (pods, victim) in cases {
            let all: Vec<(&str, DiskLimits, DirectoryUsage, bool)> = (pods.iter())
                .map(|(uid, request, priority, bytes, doubtful)| {
                    let used = DirectoryUsage {
                        bytes: *bytes,
                        ..DirectoryUsage::default()
                    };
                    (*uid, limits(request, *priority), used, *doubtful)
                })
                .collect();
            let candidates = all.iter().map(|(uid, limits, used, doubtful)| Candidate {
                uid,
                limits,
                used,
                doubtful: *doubtful,
            });
            assert_eq!(short.victim(candidates), victim, "{pods:?}");
        }
    }

    #[test]
    fn pressure_is_reported_for_a_while_and_blocks_new_pods() {
        let start = Instant::now();
        let pressure = Pressure::default();
        let label = |now| {
            let mut machine = NodeHardware::default();
            pressure.assess(&mut machine, now);
            machine.inventory.labels.get(RUNTIME_PROCESS).cloned()
        };
        assert_eq!((pressure.why(start), label(start)), (String::new(), None));
        pressure.saw("full. ".to_owned(), start);
        assert_eq!(pressure.why(start), "full.");
        assert_eq!(label(start).as_deref(), Some("false"));
        assert_eq!(label(start + HOLD), None);
    }
}
