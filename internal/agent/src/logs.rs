//! The pods' logs on disk: their paths, the search for a requested log, and how long logs are kept
//! after their pod is gone. The runtime reads and rotates them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Maximum number of deleted pods whose logs are kept.
pub const KEEP_PODS: usize = 1000;

/// Maximum number of bytes of such logs.
pub const KEEP_BYTES: u64 = 10 * 1024 * 1024 * 1024;

/// How long such logs are kept.
pub const KEEP_AGE: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Interval of the removal of old logs.
pub const SWEEP: Duration = Duration::from_secs(10 * 60);

/// The logs of a node.
#[derive(Clone, Debug)]
pub struct LogStore {
    root: PathBuf,
}

/// A log that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLog {
    /// Its file.
    pub path: PathBuf,
    /// The pod's uid.
    pub uid: String,
    /// The container.
    pub container: String,
    /// The run.
    pub attempt: u32,
}

/// The request for a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedLog<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub pod: &'a str,
    /// Its uid; empty for the newest pod of that name.
    pub uid: &'a str,
    /// The container; empty if there is only one.
    pub container: &'a str,
    /// Whether the log of the run before the last is requested.
    pub previous: bool,
}

/// Earlier runs of a container whose logs are kept, as the kubelet keeps one ended container.
const EARLIER_RUNS: u32 = 1;

/// One pod's logs, with the data for their retention.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RetainedLogs {
    dir: PathBuf,
    bytes: u64,
    age: Duration,
}

impl LogStore {
    /// The logs below `root`.
    pub fn new(root: PathBuf) -> LogStore {
        LogStore { root }
    }

    /// The path of a run's log. Namespaces and pod names have no underscore, so the parts are
    /// unambiguous.
    pub fn path(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
        container: &str,
        attempt: u32,
    ) -> PathBuf {
        self.of_container(namespace, pod, uid, container)
            .join(format!("{attempt}.log"))
    }

    /// The directory of the logs of a container's runs.
    pub fn of_container(&self, namespace: &str, pod: &str, uid: &str, container: &str) -> PathBuf {
        self.root
            .join(format!("{namespace}_{pod}_{uid}"))
            .join(container)
    }

    /// The requested log, if it exists.
    pub fn find(&self, wanted: &WantedLog) -> Option<FoundLog> {
        let words = [wanted.namespace, wanted.pod, wanted.uid, wanted.container];
        if words
            .iter()
            .any(|word| word.contains(['/', '_']) || word.starts_with('.'))
        {
            return None;
        }
        let (dir, uid) = self.pod_dir(wanted)?;
        let container = if wanted.container.is_empty() {
            let mut names = names(&dir);
            names.sort();
            names.into_iter().next()?
        } else {
            wanted.container.to_owned()
        };
        let dir = dir.join(&container);
        let mut attempts: Vec<u32> = names(&dir)
            .iter()
            .filter_map(|name| name.strip_suffix(".log")?.parse().ok())
            .collect();
        attempts.sort_unstable();
        if wanted.previous {
            attempts.pop();
        }
        let attempt = attempts.pop()?;
        Some(FoundLog {
            path: dir.join(format!("{attempt}.log")),
            uid,
            container,
            attempt,
        })
    }

    fn pod_dir(&self, wanted: &WantedLog) -> Option<(PathBuf, String)> {
        let prefix = format!("{}_{}_", wanted.namespace, wanted.pod);
        if !wanted.uid.is_empty() {
            let dir = self.root.join(format!("{prefix}{}", wanted.uid));
            return dir.is_dir().then(|| (dir, wanted.uid.to_owned()));
        }
        names(&self.root)
            .into_iter()
            .filter_map(|name| {
                let uid = name.strip_prefix(&prefix)?.to_owned();
                let dir = self.root.join(&name);
                Some((modified(&dir), dir, uid))
            })
            .max_by_key(|(modified, _, _)| *modified)
            .map(|(_, dir, uid)| (dir, uid))
    }

    /// Removes the logs of a container's runs before the one that precedes `attempt`: no reader can
    /// ask for them.
    pub fn drop_earlier_runs(dir: &Path, attempt: u32) {
        for name in names(dir) {
            let run = name.split('.').next().and_then(|run| run.parse().ok());
            if run.is_some_and(|run: u32| run.saturating_add(EARLIER_RUNS) < attempt)
                && let Err(error) = fs::remove_file(dir.join(&name))
            {
                tracing::warn!(dir = %dir.display(), name, %error, "the log of an earlier run was not removed");
            }
        }
    }

    /// Removes the logs of pods that are not running, the oldest first, for as long as the disk is
    /// `short`; returns of how many pods. `running` is called after the logs are listed, so that a
    /// pod that starts meanwhile keeps its logs.
    pub fn make_room(
        &self,
        running: impl FnOnce() -> BTreeSet<String>,
        short: impl Fn() -> bool,
        now: SystemTime,
    ) -> usize {
        let listed = names(&self.root);
        if listed.is_empty() {
            return 0;
        }
        let mut ended = self.not_of(listed, &running(), now);
        ended.sort_by(|a, b| b.age.cmp(&a.age).then(a.dir.cmp(&b.dir)));
        let mut removed = 0;
        for kept in ended {
            if !short() {
                break;
            }
            match fs::remove_dir_all(&kept.dir) {
                Ok(()) => removed += 1,
                Err(error) => {
                    tracing::warn!(dir = %kept.dir.display(), %error, "logs of an ended pod were not removed");
                }
            }
        }
        removed
    }

    /// The logs of other pods than these.
    fn not_of(
        &self,
        listed: Vec<String>,
        uids: &BTreeSet<String>,
        now: SystemTime,
    ) -> Vec<RetainedLogs> {
        let others = listed.into_iter().filter(|name| {
            let uid = name.rsplit('_').next().unwrap_or_default();
            !uids.contains(uid)
        });
        others
            .map(|name| {
                let dir = self.root.join(name);
                let (bytes, latest) = measure(&dir);
                RetainedLogs {
                    age: now.duration_since(latest).unwrap_or_default(),
                    dir,
                    bytes,
                }
            })
            .collect()
    }

    /// Removes the oldest logs of deleted pods, as far as the limits require. `live` has the uids
    /// of the node's pods.
    pub fn sweep(&self, live: &BTreeSet<String>, now: SystemTime) -> usize {
        let going = too_many(self.not_of(names(&self.root), live, now));
        for kept in &going {
            if let Err(error) = fs::remove_dir_all(&kept.dir) {
                tracing::warn!(dir = %kept.dir.display(), %error, "old logs were not removed");
            }
        }
        going.len()
    }
}

/// The logs beyond the limits, oldest first.
fn too_many(mut all: Vec<RetainedLogs>) -> Vec<RetainedLogs> {
    all.sort_by(|a, b| a.age.cmp(&b.age).then(a.dir.cmp(&b.dir)));
    let mut bytes = 0_u64;
    let mut count = 0;
    all.retain(|kept| {
        bytes = bytes.saturating_add(kept.bytes);
        count += 1;
        kept.age > KEEP_AGE || count > KEEP_PODS || bytes > KEEP_BYTES
    });
    all
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Bytes below a pod's directory, and the time of the last change there.
fn measure(dir: &Path) -> (u64, SystemTime) {
    let mut bytes = 0;
    let mut latest = modified(dir);
    for container in names(dir) {
        let container = dir.join(container);
        for log in names(&container) {
            let path = container.join(log);
            bytes += fs::metadata(&path).map_or(0, |metadata| metadata.len());
            latest = latest.max(modified(&path));
        }
    }
    (bytes, latest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<'a>(pod: &'a str, container: &'a str) -> WantedLog<'a> {
        WantedLog {
            namespace: "ns",
            pod,
            container,
            ..WantedLog::default()
        }
    }

    fn write(store: &LogStore, pod: &str, uid: &str, container: &str, attempt: u32) {
        let path = store.path("ns", pod, uid, container, attempt);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    #[test]
    fn the_last_run_is_found_and_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let store = LogStore::new(dir.path().to_owned());
        for attempt in [0, 9, 10] {
            write(&store, "p", "u", "main", attempt);
        }
        fs::write(
            store
                .path("ns", "p", "u", "main", 10)
                .with_extension("log.1"),
            "",
        )
        .unwrap();
        assert_eq!(store.find(&wanted("p", "main")).unwrap().attempt, 10);
        assert_eq!(store.find(&wanted("p", "")).unwrap().container, "main");
        let before = WantedLog {
            previous: true,
            ..wanted("p", "main")
        };
        assert_eq!(store.find(&before).unwrap().attempt, 9);
        assert_eq!(store.find(&wanted("p", "other")), None);
        assert_eq!(store.find(&wanted("q", "main")), None);
    }

    #[test]
    fn a_pod_is_identified_by_its_uid_and_no_name_leads_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let store = LogStore::new(dir.path().to_owned());
        write(&store, "p", "u1", "main", 0);
        write(&store, "p", "u2", "main", 0);
        let of = |uid| WantedLog {
            uid,
            ..wanted("p", "main")
        };
        assert_eq!(store.find(&of("u1")).unwrap().uid, "u1");
        assert_eq!(store.find(&of("u3")), None);
        for bad in ["../p", "..", "p/x", "p_u1"] {
            assert_eq!(store.find(&wanted(bad, "main")), None);
            assert_eq!(store.find(&wanted("p", bad)), None);
        }
    }

    #[test]
    fn only_logs_of_pods_that_are_gone_and_beyond_the_bounds_go() {
        let dir = tempfile::tempdir().unwrap();
        let store = LogStore::new(dir.path().to_owned());
        write(&store, "p", "old", "main", 0);
        write(&store, "p", "live", "main", 0);
        let live = BTreeSet::from(["live".to_owned()]);
        assert_eq!(store.sweep(&live, SystemTime::now()), 0);
        assert_eq!(store.sweep(&live, SystemTime::now() + KEEP_AGE * 2), 1);
        assert!(store.path("ns", "p", "live", "main", 0).exists());
        assert!(!store.path("ns", "p", "old", "main", 0).exists());
    }

    #[test]
    fn logs_of_ended_pods_are_removed_oldest_first_until_there_is_space() {
        let dir = tempfile::tempdir().unwrap();
        let store = LogStore::new(dir.path().to_owned());
        let of = |uid: &str| store.path("ns", "p", uid, "main", 0);
        let now = SystemTime::now();
        // In the order of their ages; the last one runs.
        for (hours, uid) in [(3, "a"), (2, "c"), (1, "b"), (4, "live")] {
            write(&store, "p", uid, "main", 0);
            let then = now - Duration::from_secs(hours * 3600);
            for path in [
                of(uid),
                of(uid).parent().unwrap().parent().unwrap().to_owned(),
            ] {
                fs::File::open(path).unwrap().set_modified(then).unwrap();
            }
        }
        let running = || BTreeSet::from(["live".to_owned()]);
        assert_eq!(store.make_room(running, || false, now), 0);
        assert!(of("a").exists());
        let short = || of("c").exists();
        assert_eq!(store.make_room(running, short, now), 2);
        let left = ["a", "c", "b", "live"].map(|uid| of(uid).exists());
        assert_eq!(left, [false, false, true, true]);
        assert_eq!(store.make_room(running, || true, now), 1);
        assert!(of("live").exists());
    }

    #[test]
    fn of_a_containers_runs_the_last_two_logs_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = LogStore::new(dir.path().to_owned());
        let runs = store.of_container("ns", "p", "u", "main");
        LogStore::drop_earlier_runs(&runs, 7);
        fs::create_dir_all(&runs).unwrap();
        let all = [
            "0.log", "8.log", "8.log.1", "9.log", "9.log.2", "10.log", "other",
        ];
        for name in all {
            fs::write(runs.join(name), "x").unwrap();
        }
        LogStore::drop_earlier_runs(&runs, 10);
        let left: BTreeSet<String> = names(&runs).into_iter().collect();
        let expected = ["10.log", "9.log", "9.log.2", "other"];
        assert!(left.iter().eq(expected), "{left:?}");
    }

    #[test]
    fn the_oldest_go_first_by_count_and_by_bytes() {
        let kept = |n: usize, bytes| RetainedLogs {
            dir: PathBuf::from(format!("{n}")),
            bytes,
            age: Duration::from_secs(n as u64),
        };
        let many: Vec<RetainedLogs> = (0..KEEP_PODS + 2).map(|n| kept(n, 1)).collect();
        let going: Vec<u64> = too_many(many).iter().map(|k| k.age.as_secs()).collect();
        assert_eq!(going, [KEEP_PODS as u64, KEEP_PODS as u64 + 1]);
        let large = vec![kept(1, KEEP_BYTES), kept(2, 1), kept(0, 1)];
        let going: Vec<u64> = too_many(large).iter().map(|k| k.age.as_secs()).collect();
        assert_eq!(going, [1, 2]);
    }
}
