//! A store with damaged files either refuses to open, or is complete except for the damage that it
//! reports: it never opens with an unreported change or loss.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use store::{
    DamageEffect, EntryMeta, OpenError, Options, Revision, Store, TransactionView, WatchError,
};

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(store: &Store) -> Contents {
    let page = store.list("/", None, usize::MAX);
    let pairs = page.entries.iter();
    pairs
        .map(|entry| (entry.key.to_string(), entry.value.to_vec()))
        .collect()
}

/// Settings without a reserve file, which every test would copy.
fn options() -> Options {
    Options {
        reserve_file_bytes: 0,
        ..Options::default()
    }
}

/// A store with rewritten, deleted and large objects, over more than one segment.
async fn filled(dir: &Path) -> Contents {
    let store = Store::open(dir, options()).unwrap();
    for round in 0..60_usize {
        store
            .commit(move |view: &mut TransactionView| {
                for n in 0..20 {
                    let size = if n == 0 { 60_000 } else { 1_000 };
                    let value = Bytes::from(format!("{round}.").repeat(size / 3));
                    view.put(format!("/a/{n}"), EntryMeta::default(), |_| value);
                }
                view.delete("/a/7", |_, entry| entry.value.clone());
                Ok::<_, ()>(())
            })
            .await
            .unwrap();
    }
    contents(&store)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let target = to.join(item.file_name());
        if item.file_type().unwrap().is_dir() {
            copy(&item.path(), &target);
        } else {
            fs::copy(item.path(), target).unwrap();
        }
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for item in fs::read_dir(dir).unwrap() {
        let path = item.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Opens the store and returns true if it was refused. An opened store must be complete.
fn refused_or_whole(dir: &Path, whole: &Contents, what: &str) -> bool {
    match Store::open(dir, options()) {
        Ok(store) => {
            let found = contents(&store);
            for (key, value) in whole {
                let held = store.damaged(key).is_some();
                let same = found.get(key) == Some(value);
                assert!(same != held, "{what}: {key} is neither whole nor named");
            }
            let known = found.keys().all(|key| whole.contains_key(key));
            assert!(known, "{what}: there is an object that was not");
            false
        }
        Err(error @ OpenError::Damaged { .. }) => {
            says_what_to_do(dir, &error);
            true
        }
        Err(OpenError::Io { .. }) => true,
        Err(other) => panic!("{what}: {other}"),
    }
}

/// A refused store's error names each step and the directory.
fn says_what_to_do(dir: &Path, error: &OpenError) {
    let (at, message) = (dir.display(), error.to_string());
    let steps = format!(
        "; the server does not start with it: move {at} aside (keep it for analysis), run `muster restore` with the \
         latest backup, and verify the result with `muster store check` before you start the server"
    );
    assert!(
        message.starts_with(&format!("the store at {at} is damaged: ")),
        "{message}"
    );
    assert!(message.ends_with(&steps), "{message}");
}

#[tokio::test]
async fn flipped_bytes_are_refused_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good");
    let whole = filled(&good).await;
    let mut names = Vec::new();
    files(&good, &mut names);
    let (mut tried, mut refused) = (0, 0);
    for name in names {
        let bytes = fs::read(&name).unwrap();
        let relative = name.strip_prefix(&good).unwrap();
        let sled_log = relative.ends_with("db");
        for step in 0..if sled_log { 24 } else { 3 } {
            if bytes.is_empty() {
                continue;
            }
            let at = bytes.len() * step / if sled_log { 24 } else { 3 };
            let bad_dir = dir.path().join("bad");
            copy(&good, &bad_dir);
            let mut bad = bytes.clone();
            let end = (at + 8).min(bad.len());
            for byte in &mut bad[at..end] {
                *byte ^= 0xa5;
            }
            fs::write(bad_dir.join(relative), bad).unwrap();
            let what = format!("{} at {at}", relative.display());
            tried += 1;
            refused += usize::from(refused_or_whole(&bad_dir, &whole, &what));
            fs::remove_dir_all(&bad_dir).unwrap();
        }
    }
    println!("{refused} of {tried} damaged stores were refused, the others were whole");
    assert!(refused > 0);
}

#[tokio::test]
async fn a_log_cut_short_is_refused_or_whole() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good");
    let whole = filled(&good).await;
    let log = fs::read(good.join("sled/db")).unwrap();
    for eighths in 0..8 {
        let bad_dir = dir.path().join("bad");
        copy(&good, &bad_dir);
        let length = log.len() * eighths / 8;
        fs::write(bad_dir.join("sled/db"), &log[..length]).unwrap();
        // sled prefers a snapshot of its page table to the log.
        refused_or_whole(&bad_dir, &whole, &format!("cut at {length}"));
        fs::remove_dir_all(&bad_dir).unwrap();
    }
}

#[tokio::test]
async fn a_log_that_lost_its_last_commits_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (good, earlier) = (dir.path().join("good"), dir.path().join("earlier"));
    filled(&good).await;
    copy(&good, &earlier);
    let store = Store::open(&good, options()).unwrap();
    store
        .commit(|view: &mut TransactionView| {
            view.put("/last".to_owned(), EntryMeta::default(), |_| Bytes::new());
            Ok::<_, ()>(())
        })
        .await
        .unwrap();
    drop(store);
    fs::remove_dir_all(good.join("sled")).unwrap();
    copy(&earlier.join("sled"), &good.join("sled"));
    match Store::open(&good, options()) {
        Err(error @ OpenError::Damaged { .. }) => {
            says_what_to_do(&good, &error);
            let message = error.to_string();
            assert!(message.contains("acknowledged"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// Changes a record through sled, which therefore finds no damage.
fn tamper(dir: &Path, change: impl FnOnce(&sled::Db)) {
    let config = sled::Config::new()
        .path(dir.join("sled"))
        .segment_size(2 << 20);
    // The dropped store releases sled's lock a moment later.
    let db = loop {
        match config.open() {
            Ok(db) => break db,
            Err(sled::Error::Io(error)) if error.to_string().contains("lock") => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
    };
    change(&db);
    db.flush().unwrap();
}

fn object_key(key: &str, part: u16) -> Vec<u8> {
    [&b"o"[..], key.as_bytes(), &part.to_be_bytes()].concat()
}

/// Flips the last byte of a record.
fn flip(db: &sled::Db, key: &[u8]) {
    let mut bytes = db.get(key).unwrap().unwrap().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    db.insert(key, bytes).unwrap();
}

async fn put(store: &Store, key: &str, size: usize) -> Revision {
    let key = key.to_owned();
    store
        .commit(move |view: &mut TransactionView| {
            let value = Bytes::from(vec![b'v'; size]);
            let put = view.put(key, EntryMeta::default(), |_| value);
            Ok::<_, ()>(put.revision)
        })
        .await
        .unwrap()
}

/// Settings under which the history has the last two events only.
fn forgetful() -> Options {
    Options {
        history: 2,
        ..options()
    }
}

/// Ten objects, the sixth of several parts, of which the history has the last two.
async fn ten(dir: &Path) -> Contents {
    let store = Store::open(dir, forgetful()).unwrap();
    for n in 0..10 {
        put(
            &store,
            &format!("/a/{n}"),
            if n == 5 { 60_000 } else { 100 },
        )
        .await;
    }
    // The history on disk follows one write later.
    for _ in 0..3 {
        put(&store, "/a/9", 100).await;
    }
    contents(&store)
}

fn effects(dir: &Path) -> Vec<(String, DamageEffect)> {
    let report = Store::check(dir, forgetful()).unwrap();
    let found = report.findings.into_iter();
    found.map(|found| (found.key, found.effect)).collect()
}

#[tokio::test]
async fn a_damaged_object_is_taken_from_the_history_where_it_has_its_last_state() {
    for part_is_gone in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let whole = ten(dir.path()).await;
        tamper(dir.path(), |db| {
            let key = object_key("/a/9", 0);
            if part_is_gone {
                db.remove(key).unwrap();
            } else {
                flip(db, &key);
            }
        });
        let expected = [("/a/9".to_owned(), DamageEffect::Recovered)];
        assert_eq!(effects(dir.path()), expected);
        assert_eq!(effects(dir.path()), expected, "a check changes nothing");
        let store = Store::open(dir.path(), forgetful()).unwrap();
        assert_eq!(contents(&store), whole);
        assert!(store.damaged("/a/9").is_none());
        drop(store);
        assert_eq!(effects(dir.path()), []);
    }
}

#[tokio::test]
async fn a_lost_object_is_named_and_held_and_the_others_are_served_until_it_is_replaced() {
    for (key, part) in [("/a/3", 0), ("/a/5", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let mut whole = ten(dir.path()).await;
        tamper(dir.path(), |db| flip(db, &object_key(key, part)));
        assert_eq!(effects(dir.path()), [(key.to_owned(), DamageEffect::Lost)]);
        whole.remove(key).unwrap();
        for _ in 0..2 {
            let store = Store::open(dir.path(), forgetful()).unwrap();
            assert_eq!(contents(&store), whole);
            let damaged = store.damaged(key).unwrap();
            assert!(damaged.reason.contains("checksum"), "{}", damaged.reason);
            assert!(damaged.revision.is_some());
            assert!(fs::metadata(&damaged.file).unwrap().len() > 100);
            assert!(store.damaged("/a/4").is_none());
            drop(store);
            let report = Store::check(dir.path(), forgetful()).unwrap();
            assert_eq!(report.objects, 9);
            assert!(report.findings.is_empty());
            assert_eq!(report.quarantined, [damaged]);
        }
        let store = Store::open(dir.path(), forgetful()).unwrap();
        put(&store, key, 7).await;
        assert!(store.damaged(key).is_none());
        drop(store);
        let report = Store::check(dir.path(), forgetful()).unwrap();
        assert!(report.quarantined.is_empty());
        assert_eq!(report.objects, 10);
    }
}

#[tokio::test]
async fn damaged_history_costs_old_watches_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), options()).unwrap();
    let mut revisions = Vec::new();
    for n in 0..10 {
        revisions.push(put(&store, &format!("/a/{n}"), 100).await);
    }
    let whole = contents(&store);
    drop(store);
    let stretch =
        |revision: Revision| [&b"e"[..], &revision.get().to_be_bytes()[..], &[0, 0]].concat();
    // The fifth change's record; then the eighth's is removed.
    tamper(dir.path(), |db| flip(db, &stretch(revisions[4])));
    let cut = DamageEffect::HistoryCut(revisions[5]);
    assert_eq!(effects(dir.path()), [("history".to_owned(), cut)]);
    let store = Store::open(dir.path(), options()).unwrap();
    assert_eq!(contents(&store), whole);
    assert!(matches!(
        store.watch("/", Some(revisions[3])),
        Err(WatchError::Expired { .. })
    ));
    let mut watch = store.watch("/", Some(revisions[4])).unwrap();
    let seen = watch.next_batch().await.unwrap().unwrap();
    assert_eq!(seen.len(), 5);
    drop((watch, store));
    assert_eq!(effects(dir.path()), []);
    tamper(dir.path(), |db| {
        db.remove(stretch(revisions[7])).unwrap().unwrap();
    });
    let store = Store::open(dir.path(), options()).unwrap();
    assert!(store.watch("/", Some(revisions[7])).is_ok());
    assert!(store.watch("/", Some(revisions[6])).is_err());
    let next = put(&store, "/a/next", 1).await;
    assert_eq!(next.get(), revisions[9].get() + 1);
}

#[tokio::test]
async fn what_is_lost_without_a_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    ten(dir.path()).await;
    tamper(dir.path(), |db| {
        db.remove(object_key("/a/3", 0)).unwrap().unwrap();
    });
    match Store::open(dir.path(), forgetful()) {
        Err(OpenError::Damaged { what, .. }) => {
            assert!(
                what.contains("the store has 9 objects; it should have 10"),
                "{what}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(Store::check(dir.path(), forgetful()).is_err());
    let nowhere = dir.path().join("nowhere");
    let missing = Store::check(&nowhere, forgetful());
    assert!(matches!(missing, Err(OpenError::Missing { .. })));
    assert!(!nowhere.exists());
}

#[tokio::test]
async fn a_quarantine_that_is_full_takes_no_more() {
    // A record that an earlier start quarantined, but did not remove before it ended, does not
    // count twice.
    for (there, again, taken) in [(999, false, true), (1000, false, false), (999, true, true)] {
        let dir = tempfile::tempdir().unwrap();
        ten(dir.path()).await;
        let quarantine = dir.path().join("quarantine");
        fs::create_dir(&quarantine).unwrap();
        let mut keys: Vec<String> = (0..there).map(|n| format!("/q/{n}")).collect();
        if again {
            keys.push("/a/3".to_owned());
        }
        for (n, key) in keys.iter().enumerate() {
            let text = format!("muster-quarantine 1\nkey {key}\nreason r\nrevision 1\n\n");
            fs::write(quarantine.join(format!("{n}.held")), text).unwrap();
        }
        tamper(dir.path(), |db| flip(db, &object_key("/a/3", 0)));
        let opened = Store::open(dir.path(), forgetful());
        assert_eq!(opened.is_ok(), taken, "{there} were there, {again}");
    }
}
