//! Kills a process that writes to the store, at random moments, repeatedly, and opens the store
//! afterwards: every acknowledged write is present, no transaction is partially present, revisions
//! only increase, and a watch resumes at the last event of the killed process.
//!
//! `STORE_KILLS` sets how many times (20), `MUSTER_KILL_SEED` repeats a run's moments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use store::{EntryMeta, EventKind, Options, Revision, Store, TransactionView};

const ROUNDS: u64 = 20;
const WRITERS: usize = 8;
const CHILD_DIR: &str = "STORE_KILL_DIR";
/// Each writer keeps this many pairs alive, and deletes the ones before.
const PAIRS_KEPT: u64 = 20;

/// A history short enough to be trimmed during the writes.
fn options() -> Options {
    Options {
        history: 4_000,
        ..Options::default()
    }
}

fn value(writer: usize, number: u64, revision: Revision) -> Bytes {
    // Some objects span several records on disk.
    let size = if number % 50 == 7 { 60_000 } else { 400 };
    let mut value = format!("{writer} {number} {revision} ").into_bytes();
    value.resize(value.len() + size, b'.');
    value.into()
}

fn pair(writer: usize, number: u64, half: char) -> String {
    format!("/pairs/{writer}/{number:010}-{half}")
}

fn counter(writer: usize) -> String {
    format!("/counters/{writer}")
}

fn meta() -> EntryMeta {
    EntryMeta::default()
}

/// One transaction: a pair written, an old one deleted, the writer's counter moved.
fn write_pair(view: &mut TransactionView, writer: usize, number: u64) -> Revision {
    for half in ['a', 'b'] {
        view.put(pair(writer, number, half), meta(), |r| {
            value(writer, number, r)
        });
    }
    if let Some(old) = number.checked_sub(PAIRS_KEPT) {
        for half in ['a', 'b'] {
            view.delete(&pair(writer, old, half), |_, entry| entry.value.clone());
        }
    }
    view.put(counter(writer), meta(), |_| number.to_string().into())
        .revision
}

fn last_number(store: &Store, writer: usize) -> Option<u64> {
    let entry = store.get(&counter(writer))?;
    std::str::from_utf8(&entry.value).unwrap().parse().ok()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).unwrap();
    out.flush().unwrap();
}

async fn writer(store: Store, writer: usize) {
    let mut number = last_number(&store, writer).map_or(0, |last| last + 1);
    loop {
        let revision = store
            .commit(move |view: &mut TransactionView| Ok::<_, ()>(write_pair(view, writer, number)))
            .await
            .unwrap();
        say(&format!("ack {writer} {number} {revision}\n"));
        number += 1;
    }
}

async fn watcher(store: Store, from: Revision) {
    let mut watch = store.watch("/", Some(from)).unwrap();
    loop {
        let mut lines = String::new();
        for event in watch.next_batch().await.unwrap().unwrap() {
            let kind = match event.kind {
                EventKind::Deleted => "gone",
                EventKind::Added | EventKind::Modified => "is",
            };
            let revision = event.revision();
            lines.push_str(&format!("saw {revision} {kind} {}\n", event.entry.key));
        }
        say(&lines);
    }
}

/// Not a test: the child process that the other test starts and kills.
#[test]
#[ignore = "started by the kill test"]
fn the_process_that_is_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(&dir), options()).unwrap();
        say("\nopened\n");
        let watching = tokio::spawn(watcher(store.clone(), store.revision()));
        for number in 0..WRITERS {
            tokio::spawn(writer(store.clone(), number));
        }
        watching.await.unwrap();
    });
}

/// The expected state, according to the output of the killed processes.
#[derive(Default)]
struct Known {
    /// Per writer: the last acknowledged number and its revision.
    acknowledged: BTreeMap<usize, (u64, u64)>,
    /// The sum of the watchers' events: the revision of each live key.
    watched: BTreeMap<String, u64>,
    /// The last event seen.
    seen: u64,
    acks: u64,
}

impl Known {
    fn event(&mut self, revision: u64, deleted: bool, key: &str) {
        assert_eq!(revision, self.seen + 1, "a gap or a repeat at {key}");
        self.seen = revision;
        if deleted {
            assert!(self.watched.remove(key).is_some(), "{key} was not there");
        } else {
            self.watched.insert(key.to_owned(), revision);
        }
    }

    fn line(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["ack", writer, number, revision] => {
                let writer: usize = writer.parse().unwrap();
                let number: u64 = number.parse().unwrap();
                let revision: u64 = revision.parse().unwrap();
                let last = self.acknowledged.insert(writer, (number, revision));
                if let Some((last_number, last_revision)) = last {
                    assert!(number > last_number && revision > last_revision);
                }
                self.acks += 1;
            }
            ["saw", revision, kind, key] => {
                self.event(revision.parse().unwrap(), kind == "gone", key);
            }
            _ => {}
        }
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

/// Starts the writing process, kills it after a while, and reads all its output.
fn one_life(dir: &Path, known: &mut Known, lifetime: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "the_process_that_is_killed",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line != "opened\n" {
        line.clear();
        let read = said.read_line(&mut line).unwrap();
        assert!(read > 0, "the process ended before it opened the store");
    }
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        let mut line = Vec::new();
        while said.read_until(b'\n', &mut line).unwrap() > 0 {
            // The last line may be incomplete and is then ignored.
            if line.last() == Some(&b'\n') {
                lines.push(String::from_utf8(line.clone()).unwrap());
            }
            line.clear();
        }
        lines
    });
    std::thread::sleep(lifetime);
    child.kill().unwrap();
    child.wait().unwrap();
    for line in reader.join().unwrap() {
        known.line(line.trim_end());
    }
}

async fn check(dir: &Path, known: &mut Known) {
    let store = Store::open(dir, options()).unwrap();
    for (writer, (number, revision)) in &known.acknowledged {
        let last = last_number(&store, *writer).expect("an acknowledged counter");
        assert!(last >= *number, "writer {writer}: {last} of {number}");
        assert!(store.revision().get() >= *revision);
    }
    for writer in 0..WRITERS {
        let last = last_number(&store, writer);
        let expected: Vec<String> = match last {
            None => Vec::new(),
            Some(last) => (last.saturating_sub(PAIRS_KEPT - 1)..=last)
                .flat_map(|n| [pair(writer, n, 'a'), pair(writer, n, 'b')])
                .collect(),
        };
        let page = store.list(&format!("/pairs/{writer}/"), None, usize::MAX);
        let keys: Vec<_> = page.entries.iter().map(|e| e.key.to_string()).collect();
        assert_eq!(
            keys, expected,
            "a transaction of writer {writer} is half there"
        );
        for entry in &page.entries {
            let text = String::from_utf8(entry.value.to_vec()).unwrap();
            let revision = entry.revision.to_string();
            assert_eq!(text.split(' ').nth(2), Some(revision.as_str()));
        }
    }
    // A watch resumes at the last event of the killed process.
    let mut watch = store.watch("/", Some(Revision::new(known.seen))).unwrap();
    while watch.progress() < store.revision() {
        for event in watch.next_batch().await.unwrap().unwrap() {
            let deleted = event.kind == EventKind::Deleted;
            known.event(event.revision().get(), deleted, &event.entry.key);
        }
    }
    let page = store.list("/", None, usize::MAX);
    let live: BTreeMap<_, _> = page
        .entries
        .iter()
        .map(|e| (e.key.to_string(), e.revision.get()))
        .collect();
    assert_eq!(known.watched, live, "the events do not add up to the state");
}

#[test]
fn a_killed_store_has_every_acknowledged_write_and_no_half_transaction() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let rounds = number("STORE_KILLS").unwrap_or(ROUNDS);
    let seed = number("MUSTER_KILL_SEED").unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        now.as_secs()
    });
    println!("MUSTER_KILL_SEED={seed}");
    let mut random = Random(seed);
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut known = Known::default();
    for _ in 0..rounds {
        let lifetime = Duration::from_millis(random.below(400));
        one_life(dir.path(), &mut known, lifetime);
        runtime.block_on(check(dir.path(), &mut known));
    }
    println!(
        "{rounds} kills, {} acknowledged transactions, {} events",
        known.acks, known.seen
    );
    assert!(known.acks > 0);
}
