//! When the file system of the agent's data has too little left, which pod is evicted for it, and for how long the
//! node says so (condition `DiskPressure`). Pure but for the memory of the last time.
//!
//! The reserve is small, so that nodes with a nearly full disk go on: 1 GiB or 2 % of the file system, whichever is
//! less, and 1 % of its inodes. As in the kubelet, pods go that use more than they request, those of lower priority
//! first, then those that use most. A pod that would free next to nothing is kept.

use std::time::Duration;

use parking_lot::Mutex;
use resources::names::RUNTIME_PROCESS;
use runtime::usage::{Room, Usage};
use tokio::time::Instant;

use super::limits::{DiskLimits, written};
use crate::inventory::Machine;

/// Bytes that stay free, at most.
pub const RESERVE_BYTES: u64 = 1 << 30;
/// Of the file system's bytes one in so many stays free, where that is less.
const RESERVE_SHARE: u64 = 50;
/// Of its inodes one in so many stays free.
const INODE_SHARE: u64 = 100;
/// A pod is evicted only if that frees one in so many parts of the reserve.
const WORTH_SHARE: u64 = 16;
/// For how long the node says that its disk was too full, as the kubelet's
/// `evictionPressureTransitionPeriod`.
const HOLD: Duration = Duration::from_secs(300);

/// What is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Bytes, of which so many have to be free and so many are.
    Bytes(u64, u64),
    /// Inodes, likewise.
    Inodes(u64, u64),
}

/// Bytes of a file system that stay free.
fn reserve(room: &Room) -> u64 {
    RESERVE_BYTES.min(room.bytes / RESERVE_SHARE)
}

/// Bytes of a file system that pods may request, all together: as for the kubelet's, what is on it of others does
/// not matter.
pub fn allocatable(room: &Room) -> u64 {
    room.bytes - reserve(room)
}

impl Shortage {
    /// Of a file system as it is now.
    pub fn of(room: &Room) -> Option<Shortage> {
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

    /// In the kubelet's words.
    pub fn words(self) -> String {
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

    /// How much of what is short a pod's eviction frees that it did not request; nothing where that
    /// is not worth it.
    fn freed_by(self, limits: &DiskLimits, used: &Usage) -> Option<u64> {
        let (freed, least) = match self {
            Shortage::Bytes(least, _) => (limits.above_request(used.bytes), least),
            Shortage::Inodes(least, _) => (used.files, least),
        };
        (freed > 0 && freed >= least / WORTH_SHARE).then_some(freed)
    }

    /// Which of these pods is evicted.
    pub fn victim<'a>(
        self,
        pods: impl Iterator<Item = (&'a str, &'a DiskLimits, &'a Usage)>,
    ) -> Option<&'a str> {
        let worth = pods.filter_map(|(uid, limits, used)| {
            Some((uid, limits.priority, self.freed_by(limits, used)?))
        });
        // By uid at last, so that the same pods have the same order.
        let first =
            worth.min_by_key(|(uid, priority, freed)| (*priority, std::cmp::Reverse(*freed), *uid));
        first.map(|(uid, ..)| uid)
    }
}

/// Whether the node's disk was too full lately.
#[derive(Debug, Default)]
pub struct Pressure(Mutex<Option<(String, Instant)>>);

impl Pressure {
    /// It is.
    pub fn saw(&self, why: String, now: Instant) {
        *self.0.lock() = Some((why, now));
    }

    /// What is said of it; empty where nothing is.
    pub fn why(&self, now: Instant) -> String {
        let seen = self.0.lock();
        let lately = seen
            .as_ref()
            .filter(|(_, at)| now.duration_since(*at) < HOLD);
        lately.map_or_else(String::new, |(why, _)| why.trim().to_owned())
    }

    /// Has the scheduler place no more pods of processes there meanwhile, by the machine's label.
    pub fn judge(&self, machine: &mut Machine, now: Instant) {
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

    fn room(bytes: u64, available: u64) -> Room {
        Room {
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
            // A small disk, of which a developer's machine may have little left.
            (20 * GI, GI / 2, None),
            (20 * GI, GI / 4, Some(Shortage::Bytes(20 * GI / 50, GI / 4))),
            (0, 0, None),
        ] {
            assert_eq!(Shortage::of(&room(bytes, available)), short, "{bytes}");
        }
        let mut few = room(1000 * GI, 500 * GI);
        few.inodes_available = 9;
        assert_eq!(Shortage::of(&few), Some(Shortage::Inodes(10, 9)));
        // Where inodes are made as they are needed there are none to run out of.
        (few.inodes, few.inodes_available) = (0, 0);
        assert_eq!(Shortage::of(&few), None);
    }

    #[test]
    fn the_words_are_the_kubelets() {
        assert_eq!(
            Shortage::Bytes(GI, GI / 2).words(),
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. "
        );
        assert_eq!(
            Shortage::Inodes(10, 9).words(),
            "The node was low on resource: inodes. Threshold quantity: 10, available: 9. "
        );
    }

    #[test]
    fn the_pod_goes_that_has_the_lowest_priority_and_the_most_above_its_request() {
        let limits = |request: &str, priority: i32| {
            let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
                "priority": priority, "containers": [{"name": "c",
                    "resources": {"requests": {"ephemeral-storage": request}}}]}}))
            .unwrap();
            DiskLimits::of(&pod)
        };
        let short = Shortage::Bytes(GI, 0);
        for (pods, victim) in [
            (vec![], None),
            (vec![("a", "0", 0, GI), ("b", "0", 0, 2 * GI)], Some("b")),
            // What is requested is the pod's own.
            (
                vec![("a", "0", 0, GI), ("b", "10Gi", 0, 10 * GI)],
                Some("a"),
            ),
            (
                vec![("a", "1Gi", 0, 3 * GI), ("b", "10Gi", 0, 11 * GI)],
                Some("a"),
            ),
            (vec![("a", "0", 5, 9 * GI), ("b", "0", -1, GI)], Some("b")),
            (vec![("a", "0", 0, GI / 16 - 1)], None),
            (vec![("b", "0", 0, GI), ("a", "0", 0, GI)], Some("a")),
        ] {
            let all: Vec<(&str, DiskLimits, Usage)> = (pods.iter())
                .map(|(uid, request, priority, bytes)| {
                    let used = Usage {
                        bytes: *bytes,
                        ..Usage::default()
                    };
                    (*uid, limits(request, *priority), used)
                })
                .collect();
            let found = short.victim(all.iter().map(|(uid, limits, used)| (*uid, limits, used)));
            assert_eq!(found, victim, "{pods:?}");
        }
    }

    #[test]
    fn pressure_is_said_for_a_while_and_keeps_pods_away() {
        let start = Instant::now();
        let pressure = Pressure::default();
        let label = |now| {
            let mut machine = Machine::default();
            pressure.judge(&mut machine, now);
            machine.inventory.labels.get(RUNTIME_PROCESS).cloned()
        };
        assert_eq!((pressure.why(start), label(start)), (String::new(), None));
        pressure.saw("full. ".to_owned(), start);
        assert_eq!(pressure.why(start), "full.");
        assert_eq!(label(start).as_deref(), Some("false"));
        assert_eq!(label(start + HOLD), None);
    }
}
