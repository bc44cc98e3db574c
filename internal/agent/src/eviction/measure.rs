//! Measures the disk use of pods, a bounded part of it each turn: an unfinished count continues at
//! the next turn. Reads files' metadata on a thread that may block; changes nothing.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use runtime::usage::Count;

use super::limits::{DiskLimits, PodUsage};

/// Files and directories that are read in one turn, of all pods together: about 0.3 seconds of one
/// CPU if the kernel has them cached.
pub const ENTRIES_PER_TURN: u64 = 100_000;
/// The minimum number of entries for each pod, for any number of pods.
const LEAST_ENTRIES: u64 = 500;

/// The kind of a pod's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A volume.
    Volume(String),
    /// A container's log.
    Log(String),
    /// Its termination logs.
    Messages,
}

/// A pod that may use disk space.
#[derive(Clone, Debug)]
pub struct DiskUser {
    /// Its uid.
    pub uid: String,
    /// Its limits.
    pub limits: Arc<DiskLimits>,
    /// Its directories.
    pub parts: Vec<(Part, PathBuf)>,
    /// Whether it can still be evicted.
    pub running: bool,
}

/// The measured use of all pods.
#[derive(Debug, Default)]
pub struct Measure {
    pods: BTreeMap<String, Progress>,
}

/// One pod's count.
#[derive(Debug, Default)]
struct Progress {
    left: VecDeque<(Part, PathBuf)>,
    now: Option<(Part, Count)>,
    /// The use found by the present count so far.
    found: PodUsage,
    /// The use found by the last complete count.
    last: Option<PodUsage>,
}

impl Measure {
    /// Counts for one turn; drops pods that are not in `users`.
    pub fn turn(&mut self, users: &[DiskUser]) {
        self.pods
            .retain(|uid, _| users.iter().any(|user| user.uid == *uid));
        let count = u64::try_from(users.len()).unwrap_or(u64::MAX).max(1);
        let each = (ENTRIES_PER_TURN / count).max(LEAST_ENTRIES);
        for user in users {
            let progress = self.pods.entry(user.uid.clone()).or_default();
            progress.go_on(&user.parts, each);
        }
    }

    /// A pod's use as far as known: from the last complete count and from the present one. Neither
    /// is more than the pod used at some time of its count.
    pub fn known(&self, uid: &str) -> Vec<&PodUsage> {
        let Some(progress) = self.pods.get(uid) else {
            return Vec::new();
        };
        let present = progress.now.is_some() || !progress.left.is_empty();
        let present = present.then_some(&progress.found);
        progress.last.iter().chain(present).collect()
    }
}

impl Progress {
    fn go_on(&mut self, parts: &[(Part, PathBuf)], mut budget: u64) {
        if self.now.is_none() && self.left.is_empty() {
            self.left = parts.iter().cloned().collect();
            self.found = PodUsage::default();
        }
        loop {
            let Some((part, count)) = &mut self.now else {
                let Some((part, path)) = self.left.pop_front() else {
                    self.last = Some(std::mem::take(&mut self.found));
                    return;
                };
                self.now = Some((part, Count::begin(&path)));
                continue;
            };
            let done = count.go_on(&mut budget);
            let usage = count.found().clone();
            match part {
                Part::Volume(name) => drop(self.found.volumes.insert(name.clone(), usage)),
                Part::Log(name) => drop(self.found.logs.insert(name.clone(), usage)),
                Part::Messages => self.found.messages = usage,
            }
            if !done {
                return;
            }
            self.now = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_large_pod_is_counted_over_several_turns_and_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let user = |uid: &str, files: u64| {
            let volume = dir.path().join(uid);
            fs::create_dir(&volume).unwrap();
            for file in 0..files {
                fs::write(volume.join(file.to_string()), "x").unwrap();
            }
            let none = dir.path().join("none");
            DiskUser {
                uid: uid.to_owned(),
                limits: Arc::default(),
                parts: vec![
                    (Part::Messages, none.clone()),
                    (Part::Volume("v".to_owned()), volume),
                    (Part::Log("c".to_owned()), none),
                ],
                running: true,
            }
        };
        let users = [user("large", 2 * LEAST_ENTRIES), user("small", 3)];
        let mut progress = Progress::default();
        progress.go_on(&users[0].parts, LEAST_ENTRIES);
        assert_eq!(progress.last, None);
        let found = progress.found.volumes["v"].files;
        assert!(found > 0 && found < 2 * LEAST_ENTRIES, "{found}");
        for _ in 0..2 {
            progress.go_on(&users[0].parts, LEAST_ENTRIES);
        }
        assert_eq!(progress.last.unwrap().total().files, 2 * LEAST_ENTRIES);
        let mut measure = Measure::default();
        measure.turn(&users);
        assert_eq!(measure.known("small")[0].total().files, 3);
        assert_eq!(measure.known("large").len(), 1);
        // The next turn sees the growth and drops a pod that is gone.
        fs::write(dir.path().join("small/more"), "x").unwrap();
        measure.turn(&users[1..]);
        assert_eq!(measure.known("small")[0].total().files, 4);
        assert!(measure.known("large").is_empty());
    }
}
