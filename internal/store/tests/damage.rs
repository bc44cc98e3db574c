//! A store whose files were damaged is refused, or it is whole: it never comes up with
//! something missing or changed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use store::{EntryMeta, OpenError, Options, Store, View};

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(store: &Store) -> Contents {
    let page = store.list("/", None, usize::MAX);
    let pairs = page.entries.iter();
    pairs
        .map(|entry| (entry.key.to_string(), entry.value.to_vec()))
        .collect()
}

/// A store with rewritten, deleted and large objects, over more than one segment.
async fn filled(dir: &Path) -> Contents {
    let store = Store::open(dir, Options::default()).unwrap();
    for round in 0..60_usize {
        store
            .commit(move |view: &mut View| {
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

/// Opens what is there; whether it was refused. If not, it must be whole.
fn refused_or_whole(dir: &Path, whole: &Contents, what: &str) -> bool {
    match Store::open(dir, Options::default()) {
        Ok(store) => {
            assert!(contents(&store) == *whole, "{what}: it came up changed");
            false
        }
        Err(OpenError::Damaged { .. } | OpenError::Io { .. }) => true,
        Err(other) => panic!("{what}: {other}"),
    }
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
        // sled trusts a snapshot of its page table over the log where there is one.
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
    let store = Store::open(&good, Options::default()).unwrap();
    store
        .commit(|view: &mut View| {
            view.put("/last".to_owned(), EntryMeta::default(), |_| Bytes::new());
            Ok::<_, ()>(())
        })
        .await
        .unwrap();
    drop(store);
    fs::remove_dir_all(good.join("sled")).unwrap();
    copy(&earlier.join("sled"), &good.join("sled"));
    match Store::open(&good, Options::default()) {
        Err(OpenError::Damaged { what, .. }) => assert!(what.contains("acknowledged"), "{what}"),
        other => panic!("{other:?}"),
    }
}
