//! Measures the disk use of pods, a bounded part of it each turn: an unfinished count continues at
//! the next turn. Reads files' metadata on a thread that may block; changes nothing.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runtime::WritableLayer;
use runtime::usage::{DirectoryUsage, DiskCount};

use super::doubt::Doubt;
use super::limits::{DiskLimits, Layer, PodUsage};

/// Files and directories that are read in one turn, of all pods together: about 0.3 seconds of one
/// CPU if the kernel has them cached.
pub const ENTRIES_PER_TURN: u64 = 100_000;
/// The minimum number of entries for each pod, for any number of pods.
const LEAST_ENTRIES: u64 = 500;

/// The kind of a pod's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDirectoryKind {
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
    pub parts: Vec<(PodDirectoryKind, PathBuf)>,
    /// Its containers' writable layers.
    pub layers: BTreeMap<String, Layer>,
    /// Whether it can still be evicted.
    pub running: bool,
}

/// What is known about one pod's use after a turn.
#[derive(Debug)]
pub struct Reading<'a> {
    /// The pod.
    pub user: &'a DiskUser,
    /// Its use with the sum, from the last complete count and from the present one. Neither is more
    /// than the pod used at some time of its count.
    pub known: Vec<(&'a PodUsage, DirectoryUsage)>,
    /// Why it may use more than that.
    pub doubt: Option<String>,
}

impl Reading<'_> {
    /// The most that it is known to use on the file system of the agent's data.
    pub fn on_data_disk(&self) -> Option<DirectoryUsage> {
        let known = self.known.iter().map(|(usage, _)| usage.on_data_disk());
        known.max_by_key(|used| used.bytes)
    }
}

/// The measured use of all pods.
#[derive(Debug, Default)]
pub struct Measure {
    pods: BTreeMap<String, CountProgress>,
}

/// One pod's count.
#[derive(Debug, Default)]
struct CountProgress {
    left: VecDeque<(PodDirectoryKind, PathBuf)>,
    now: Option<(PodDirectoryKind, DiskCount)>,
    /// The use found by the present count so far.
    found: PodUsage,
    /// The use found by the last complete count.
    last: Option<PodUsage>,
    doubt: Doubt,
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
            progress.turn(user, each);
        }
    }

    /// What is known about the use of these pods; nothing about a pod that no turn has counted.
    pub fn readings<'a>(&'a self, users: &'a [DiskUser]) -> Vec<Reading<'a>> {
        let known = |user: &'a DiskUser| Some((user, self.pods.get(&user.uid)?));
        let known = users.iter().filter_map(known);
        known
            .map(|(user, progress)| Reading {
                user,
                known: progress.known(),
                doubt: progress.doubt.why(),
            })
            .collect()
    }
}

/// The layers by pod and container: those of several runs of a container add up. `data` is a
/// directory on the file system of the agent's data.
pub fn by_pod(
    layers: Vec<WritableLayer>,
    data: &Path,
) -> BTreeMap<String, BTreeMap<String, Layer>> {
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
    let data = device(data);
    let mut pods: BTreeMap<String, BTreeMap<String, Layer>> = BTreeMap::new();
    for found in layers {
        let pod = pods.entry(found.pod_uid).or_default();
        let layer = pod.entry(found.container).or_default();
        layer.on_data_disk = data.is_some() && device(&found.mountpoint) == data;
        layer.usage.add(&DirectoryUsage {
            bytes: found.bytes,
            files: found.files,
            ..DirectoryUsage::default()
        });
    }
    pods
}

impl CountProgress {
    /// Counts for one turn.
    fn turn(&mut self, user: &DiskUser, budget: u64) {
        self.go_on(&user.parts, budget);
        let counted = self.last.iter_mut().chain([&mut self.found]);
        counted.for_each(|usage| usage.layers.clone_from(&user.layers));
        let under_way = self.is_under_way();
        let present = under_way.then_some(&self.found);
        let used = present.or(self.last.as_ref()).map(PodUsage::total);
        let used = used.unwrap_or_default();
        self.doubt.turn(used.uncountable.as_deref());
        // A turn ends one count at most.
        if !under_way {
            self.doubt.count(&used.lost);
        }
    }

    fn is_under_way(&self) -> bool {
        self.now.is_some() || !self.left.is_empty()
    }

    fn known(&self) -> Vec<(&PodUsage, DirectoryUsage)> {
        let present = self.is_under_way().then_some(&self.found);
        let known = self.last.iter().chain(present);
        known.map(|usage| (usage, usage.total())).collect()
    }

    fn go_on(&mut self, parts: &[(PodDirectoryKind, PathBuf)], mut budget: u64) {
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
                self.now = Some((part, DiskCount::begin(&path)));
                continue;
            };
            let done = count.go_on(&mut budget);
            let usage = count.found().clone();
            match part {
                PodDirectoryKind::Volume(name) => {
                    drop(self.found.volumes.insert(name.clone(), usage))
                }
                PodDirectoryKind::Log(name) => drop(self.found.logs.insert(name.clone(), usage)),
                PodDirectoryKind::Messages => self.found.messages = usage,
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
                    (PodDirectoryKind::Messages, none.clone()),
                    (PodDirectoryKind::Volume("v".to_owned()), volume),
                    (PodDirectoryKind::Log("c".to_owned()), none),
                ],
                layers: BTreeMap::new(),
                running: true,
            }
        };
        let users = [user("large", 2 * LEAST_ENTRIES), user("small", 3)];
        let mut progress = CountProgress::default();
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
        let readings = measure.readings(&users);
        assert_eq!(readings[1].known[0].1.files, 3);
        assert_eq!(readings[1].on_data_disk().unwrap().files, 3);
        assert_eq!((readings[0].known.len(), &readings[0].doubt), (1, &None));
        drop(readings);
        // The next turn sees the growth and drops a pod that is gone.
        fs::write(dir.path().join("small/more"), "x").unwrap();
        measure.turn(&users[1..]);
        let readings = measure.readings(&users);
        assert_eq!(readings.len(), 1);
        assert_eq!(readings[0].known[0].1.files, 4);
    }

    #[test]
    fn a_pod_that_renames_what_is_counted_becomes_doubtful() {
        let dir = tempfile::tempdir().unwrap();
        let named = |number: u32| dir.path().join(format!("large-{number}"));
        fs::create_dir(named(0)).unwrap();
        fs::create_dir(dir.path().join("small")).unwrap();
        let user = DiskUser {
            uid: "u".to_owned(),
            limits: Arc::default(),
            parts: vec![(
                PodDirectoryKind::Volume("v".to_owned()),
                dir.path().to_owned(),
            )],
            layers: BTreeMap::new(),
            running: true,
        };
        let mut progress = CountProgress::default();
        for number in 0..4 {
            assert_eq!(progress.doubt.why(), None, "{number}");
            // Enough to list both directories, and not to read one.
            progress.turn(&user, 3);
            fs::rename(named(number), named(number + 1)).unwrap();
            progress.turn(&user, LEAST_ENTRIES);
            assert_eq!(progress.last.as_ref().unwrap().total().lost.len(), 1);
        }
        assert!(progress.doubt.why().is_some());
        for _ in 0..8 {
            progress.turn(&user, LEAST_ENTRIES);
        }
        assert_eq!(progress.doubt.why(), None);
    }

    #[test]
    fn a_pod_whose_temporary_directories_come_and_go_during_each_count_is_trusted() {
        let dir = tempfile::tempdir().unwrap();
        // A removed directory is moved here, so that the next one has another inode.
        let removed = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
        fs::create_dir(dir.path().join("small")).unwrap();
        let user = DiskUser {
            uid: "u".to_owned(),
            limits: Arc::default(),
            parts: vec![(
                PodDirectoryKind::Volume("v".to_owned()),
                dir.path().to_owned(),
            )],
            layers: BTreeMap::new(),
            running: true,
        };
        let mut progress = CountProgress::default();
        let temporary = dir.path().join("temporary");
        for number in 0..10 {
            fs::create_dir(&temporary).unwrap();
            progress.turn(&user, 3);
            fs::rename(&temporary, removed.path().join(number.to_string())).unwrap();
            progress.turn(&user, LEAST_ENTRIES);
            assert_eq!(progress.last.as_ref().unwrap().total().lost.len(), 1);
            assert_eq!(progress.doubt.why(), None, "{number}");
        }
    }

    #[test]
    fn layers_of_a_containers_runs_add_up_and_only_those_on_the_data_disk_can_be_freed() {
        let dir = tempfile::tempdir().unwrap();
        let layer = |container: &str, bytes: u64, mountpoint: &Path| WritableLayer {
            pod_uid: "u".to_owned(),
            container: container.to_owned(),
            bytes,
            files: 1,
            mountpoint: mountpoint.to_owned(),
        };
        let found = vec![
            layer("a", 3, dir.path()),
            layer("a", 4, dir.path()),
            layer("b", 5, Path::new("/proc")),
            layer("c", 6, Path::new("")),
        ];
        let layers = &by_pod(found, dir.path())["u"];
        let bytes = |name: &str| (layers[name].usage.bytes, layers[name].on_data_disk);
        assert_eq!(bytes("a"), (7, true));
        assert_eq!(bytes("b"), (5, false));
        assert_eq!(bytes("c"), (6, false));
    }

    #[test]
    fn writable_layers_count_with_every_reading() {
        let usage = DirectoryUsage {
            bytes: 7,
            ..DirectoryUsage::default()
        };
        let layer = Layer {
            usage,
            on_data_disk: true,
        };
        let user = DiskUser {
            uid: "u".to_owned(),
            limits: Arc::default(),
            parts: Vec::new(),
            layers: [("c".to_owned(), layer)].into(),
            running: true,
        };
        let users = [user];
        let mut measure = Measure::default();
        for _ in 0..2 {
            measure.turn(&users);
            assert_eq!(measure.readings(&users)[0].known[0].1.bytes, 7);
        }
    }
}
