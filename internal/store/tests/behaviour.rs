//! The store's guarantees, one a test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::StreamExt as _;
use store::{
    Backup, BackupError, BackupFile, BackupOptions, BackupSummary, CommitError, EntryMeta,
    EventKind, OpenError, Options, Purpose, Revision, Store, StoreError, TransactionView,
    WatchError,
};

fn open(dir: &Path) -> Store {
    Store::open(dir, Options::default()).unwrap()
}

fn meta(label: &str) -> EntryMeta {
    EntryMeta {
        labels: [("label".to_owned(), label.to_owned())].into(),
        ..EntryMeta::default()
    }
}

fn body(text: &str, revision: Revision) -> Bytes {
    format!("{text}@{revision}").into()
}

async fn put(store: &Store, key: &str, text: &str) -> Revision {
    let (key, text) = (key.to_owned(), text.to_owned());
    store
        .commit(move |view: &mut TransactionView| {
            let entry = view.put(key, meta(&text), |revision| body(&text, revision));
            Ok::<_, ()>(entry.revision)
        })
        .await
        .unwrap()
}

async fn delete(store: &Store, key: &str) -> Option<Revision> {
    let key = key.to_owned();
    store
        .commit(move |view: &mut TransactionView| {
            let gone = view.delete(&key, |revision, _| body("gone", revision));
            Ok::<_, ()>(gone.map(|entry| entry.revision))
        })
        .await
        .unwrap()
}

fn restore(file: &Path, dir: &Path) -> Result<BackupSummary, BackupError> {
    Backup::open(file, None)?.restore(dir, Options::default())
}

fn keys(page: &store::ListPage) -> Vec<String> {
    page.entries.iter().map(|e| e.key.to_string()).collect()
}

fn text(entry: &store::Entry) -> String {
    String::from_utf8(entry.value.to_vec()).unwrap()
}

#[tokio::test]
async fn every_operation_takes_the_next_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(store.revision(), Revision::ZERO);
    assert_eq!(put(&store, "/a/1", "x").await, Revision::new(1));
    assert_eq!(put(&store, "/a/1", "y").await, Revision::new(2));
    assert_eq!(delete(&store, "/a/1").await, Some(Revision::new(3)));
    assert_eq!(delete(&store, "/a/1").await, None);
    assert_eq!(put(&store, "/a/2", "z").await, Revision::new(4));
    assert_eq!(store.revision(), Revision::new(4));
    assert!(store.get("/a/1").is_none());
    assert_eq!(text(&store.get("/a/2").unwrap()), "z@4");
}

#[tokio::test]
async fn a_transaction_sees_its_own_changes_and_keeps_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "/a/1", "one").await;
    store
        .commit(|view: &mut TransactionView| {
            assert_eq!(view.next_revision(), Revision::new(2));
            view.put("/a/2".to_owned(), meta("two"), |r| body("two", r));
            view.delete("/a/1", |r, _| body("gone", r));
            view.put("/a/3".to_owned(), meta("three"), |r| body("three", r));
            assert!(view.get("/a/1").is_none());
            let listed: Vec<_> = view.list("/a/").iter().map(|e| e.key.to_string()).collect();
            assert_eq!(listed, ["/a/2", "/a/3"]);
            Ok::<_, ()>(())
        })
        .await
        .unwrap();
    assert_eq!(keys(&store.list("/a/", None, 10)), ["/a/2", "/a/3"]);
    assert_eq!(store.revision(), Revision::new(4));
}

#[tokio::test]
async fn a_refused_transaction_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "/a/1", "one").await;
    let refused = store
        .commit(|view: &mut TransactionView| {
            view.put("/a/1".to_owned(), meta("x"), |r| body("x", r));
            view.put("/a/2".to_owned(), meta("x"), |r| body("x", r));
            view.delete("/a/1", |r, _| body("x", r));
            Err::<(), _>("no")
        })
        .await;
    assert!(matches!(refused, Err(CommitError::Refused("no"))));
    assert_eq!(keys(&store.list("/", None, 10)), ["/a/1"]);
    assert_eq!(put(&store, "/a/3", "y").await, Revision::new(2));
}

#[tokio::test]
async fn a_panicking_transaction_leaves_nothing_behind_and_the_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let panicked = store
        .commit(|view: &mut TransactionView| -> Result<(), ()> {
            view.put("/a/1".to_owned(), meta("x"), |r| body("x", r));
            panic!("on purpose")
        })
        .await;
    match panicked {
        Err(CommitError::Unavailable(StoreError::Panicked { reason })) => {
            assert_eq!(reason, "on purpose");
        }
        other => panic!("{other:?}"),
    }
    assert!(store.get("/a/1").is_none());
    assert_eq!(put(&store, "/a/2", "y").await, Revision::new(1));
}

#[tokio::test]
async fn a_transaction_may_ask_the_store_itself() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let inner = store.clone();
    let revision = store
        .commit(move |_: &mut TransactionView| Ok::<_, ()>(inner.revision()))
        .await
        .unwrap();
    assert_eq!(revision, Revision::ZERO);
}

#[tokio::test]
async fn many_writers_get_consecutive_revisions_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let writers: Vec<_> = (0..16)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut taken = Vec::new();
                for n in 0..10 {
                    taken.push(put(&store, &format!("/w/{writer}/{n}"), "v").await.get());
                }
                taken
            })
        })
        .collect();
    let mut taken = Vec::new();
    for writer in writers {
        taken.extend(writer.await.unwrap());
    }
    taken.sort_unstable();
    assert_eq!(taken, (1..=160).collect::<Vec<_>>());
    assert_eq!(store.list("/w/", None, 1000).entries.len(), 160);
    drop(store);
    assert_eq!(open(dir.path()).list("/w/", None, 1000).entries.len(), 160);
}

#[tokio::test]
async fn a_list_is_paged_by_key_and_says_how_many_remain() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..5 {
        put(&store, &format!("/a/{n}"), "v").await;
        put(&store, &format!("/b/{n}"), "v").await;
    }
    let first = store.list("/a/", None, 2);
    assert_eq!(keys(&first), ["/a/0", "/a/1"]);
    assert_eq!(first.remaining, 3);
    let second = store.list("/a/", Some("/a/1"), 2);
    assert_eq!(keys(&second), ["/a/2", "/a/3"]);
    assert_eq!(second.remaining, 1);
    let last = store.list("/a/", Some("/a/3"), 2);
    assert_eq!(keys(&last), ["/a/4"]);
    assert_eq!(last.remaining, 0);
}

#[tokio::test]
async fn a_list_goes_on_at_the_revision_it_was_begun_at() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for n in 0..4 {
        put(&store, &format!("/a/{n}"), "old").await;
    }
    let begun = store.list("/a/", None, 1);
    put(&store, "/a/1", "new").await;
    put(&store, "/a/1", "newer").await;
    delete(&store, "/a/2").await;
    put(&store, "/a/4", "new").await;
    let rest = store
        .list_at(begun.revision, "/a/", Some("/a/0"), 10)
        .unwrap();
    assert_eq!(keys(&rest), ["/a/1", "/a/2", "/a/3"]);
    assert_eq!(text(&rest.entries[0]), "old@2");
    assert_eq!(rest.revision, begun.revision);
}

#[tokio::test]
async fn a_watch_replays_and_goes_on_without_gap_or_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "/a/1", "x").await;
    put(&store, "/b/1", "x").await;
    put(&store, "/a/1", "y").await;
    let mut watch = store.watch("/a/", Some(Revision::new(1))).unwrap();
    delete(&store, "/a/1").await;
    let replayed = watch.next().await.unwrap().unwrap();
    assert_eq!(replayed.kind, EventKind::Modified);
    assert_eq!(replayed.revision(), Revision::new(3));
    assert_eq!(replayed.previous.as_deref(), Some(&meta("x")));
    let gone = watch.next().await.unwrap().unwrap();
    assert_eq!(gone.kind, EventKind::Deleted);
    assert_eq!(text(&gone.entry), "gone@4");
    assert_eq!(gone.previous.as_deref(), Some(&meta("y")));
    put(&store, "/b/2", "x").await;
    assert_eq!(watch.progress(), Revision::new(5));
    put(&store, "/a/2", "z").await;
    let added = watch.next().await.unwrap().unwrap();
    assert_eq!(added.kind, EventKind::Added);
    assert_eq!(added.revision(), Revision::new(6));
    assert!(added.previous.is_none());
}

#[tokio::test]
async fn a_watch_resumes_by_revision_after_the_store_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = open(dir.path());
        put(&store, "/a/1", "x").await;
        put(&store, "/a/1", "y").await;
        delete(&store, "/a/1").await;
    }
    let store = open(dir.path());
    let mut watch = store.watch("/a/", Some(Revision::new(1))).unwrap();
    let batch = watch.next_batch().await.unwrap().unwrap();
    let seen: Vec<_> = batch.iter().map(|e| (e.kind, e.revision().get())).collect();
    assert_eq!(seen, [(EventKind::Modified, 2), (EventKind::Deleted, 3)]);
    assert_eq!(batch[0].previous.as_deref(), Some(&meta("x")));
}

#[tokio::test]
async fn a_watch_from_before_the_history_is_expired_and_one_from_the_future_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        history: 3,
        ..Options::default()
    };
    let store = Store::open(dir.path(), options.clone()).unwrap();
    for _ in 0..10 {
        put(&store, "/a/1", "x").await;
    }
    let check = |store: &Store| {
        assert_eq!(
            store.watch("/a/", Some(Revision::new(6))).err(),
            Some(WatchError::Expired {
                oldest: Revision::new(7)
            })
        );
        assert!(store.watch("/a/", Some(Revision::new(7))).is_ok());
        assert_eq!(
            store.watch("/a/", Some(Revision::new(11))).err(),
            Some(WatchError::Ahead {
                asked: Revision::new(11),
                current: Revision::new(10)
            })
        );
        assert!(store.list_at(Revision::new(6), "/a/", None, 1).is_err());
    };
    check(&store);
    drop(store);
    check(&Store::open(dir.path(), options).unwrap());
}

#[tokio::test]
async fn a_watcher_that_lags_behind_the_history_ends_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        history: 5,
        ..Options::default()
    };
    let store = Store::open(dir.path(), options).unwrap();
    let mut slow = store.watch("/a/", None).unwrap();
    let mut quiet = store.watch("/quiet/", None).unwrap();
    for _ in 0..20 {
        put(&store, "/a/1", "x").await;
    }
    assert!(matches!(
        slow.next().await,
        Some(Err(WatchError::Expired { .. }))
    ));
    assert!(slow.next().await.is_none());
    // Nothing was missed here, however old the watcher's position is.
    put(&store, "/quiet/1", "x").await;
    let event = quiet.next().await.unwrap().unwrap();
    assert_eq!(event.revision(), Revision::new(21));
}

#[tokio::test]
async fn watches_end_when_the_store_closes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut watch = store.watch("/", None).unwrap();
    let ended = tokio::spawn(async move { watch.next().await.is_none() });
    put(&store, "/x", "x").await;
    drop(store);
    // The event may come first; what matters is that the task ends.
    ended.await.unwrap();
}

#[tokio::test]
async fn large_objects_grow_and_shrink_whole() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [10, 30_000, 1_500_000, 100_000, 5, 24_576, 24_500];
    for size in sizes {
        let store = open(dir.path());
        put(&store, "/a/0", "neighbour").await;
        let big = "b".repeat(size);
        put(&store, "/a/big", &big).await;
        put(&store, "/a/bigger", "neighbour").await;
        drop(store);
        let store = open(dir.path());
        assert!(text(&store.get("/a/big").unwrap()).starts_with(&big));
        assert_eq!(store.list("/a/", None, 10).entries.len(), 3);
    }
    let store = open(dir.path());
    delete(&store, "/a/big").await;
    drop(store);
    assert_eq!(
        keys(&open(dir.path()).list("/a/", None, 10)),
        ["/a/0", "/a/bigger"]
    );
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_reads_go_on_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1 << 40));
    let probe = Arc::clone(&free);
    let options = Options {
        reserve_bytes: 1000,
        free_bytes: Arc::new(move |_| Ok(probe.load(Ordering::SeqCst))),
        ..Options::default()
    };
    let store = Store::open(dir.path(), options).unwrap();
    put(&store, "/a/1", "x").await;
    free.store(999, Ordering::SeqCst);
    let refused = store
        .commit(|view: &mut TransactionView| {
            view.put("/a/2".to_owned(), meta("x"), |r| body("x", r));
            Ok::<_, ()>(())
        })
        .await;
    match refused {
        Err(CommitError::Unavailable(error @ StoreError::NoSpace { free: 999, .. })) => {
            let message = error.to_string();
            assert!(message.contains("999 bytes are free"), "{message}");
            assert!(message.contains("free some space"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert!(store.get("/a/1").is_some());
    assert!(store.get("/a/2").is_none());
    free.store(1000, Ordering::SeqCst);
    assert_eq!(put(&store, "/a/2", "x").await, Revision::new(2));
}

#[tokio::test]
async fn a_store_in_use_is_not_opened_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let again = Store::open(dir.path(), Options::default());
    assert!(matches!(again, Err(OpenError::Held { .. })));
    drop(store);
    open(dir.path());
}

#[tokio::test]
async fn a_newer_format_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), "/a/1", "x").await;
    std::fs::write(dir.path().join("format"), "muster-store 7\n").unwrap();
    let error = Store::open(dir.path(), Options::default()).unwrap_err();
    assert!(matches!(
        error,
        OpenError::NewerFormat {
            found: 7,
            known: 1,
            ..
        }
    ));
    let message = error.to_string();
    assert!(message.contains("format 7"), "{message}");
    assert!(message.contains("or newer again"), "{message}");
    for bad in [
        "",
        "muster-store\n",
        "muster-store x\n",
        "other 1\n",
        "muster-store 0\n",
    ] {
        std::fs::write(dir.path().join("format"), bad).unwrap();
        let error = Store::open(dir.path(), Options::default()).unwrap_err();
        assert!(
            matches!(error, OpenError::Damaged { .. }),
            "{bad:?}: {error}"
        );
    }
}

#[tokio::test]
async fn a_missing_format_file_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path()), "/a/1", "x").await;
    std::fs::remove_file(dir.path().join("format")).unwrap();
    let error = Store::open(dir.path(), Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("muster restore"));
}

#[tokio::test]
async fn a_backup_restores_into_an_empty_directory_and_revisions_go_on_above() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("old"));
    for n in 0..1200 {
        if n % 100 == 0 {
            put(&store, &format!("/a/{n:04}"), &"v".repeat(40_000)).await;
        }
        store
            .commit(move |view: &mut TransactionView| {
                for m in 0..2 {
                    view.put(format!("/b/{n}/{m}"), meta("m"), |r| body("w", r));
                }
                Ok::<_, ()>(())
            })
            .await
            .unwrap();
        if n == 20 {
            break;
        }
    }
    let file = dir.path().join("backup");
    let made = store.backup(&file, &BackupOptions::default()).unwrap();
    assert_eq!(made.revision, store.revision());
    put(&store, "/after", "x").await;
    let new = dir.path().join("new");
    let restored = restore(&file, &new).unwrap();
    assert_eq!(restored, made);
    let copy = open(&new);
    assert!(copy.get("/after").is_none());
    let (old, all) = (store.list("/", None, 10_000), copy.list("/", None, 10_000));
    assert_eq!(all.entries.len() as u64, made.objects);
    for entry in &all.entries {
        let original = old.entries.iter().find(|e| e.key == entry.key).unwrap();
        assert_eq!(original.value, entry.value);
        assert_eq!(original.meta, entry.meta);
        assert_eq!(original.revision, entry.revision);
    }
    // A client from before the loss has to list again, whatever revision it saw.
    assert!(matches!(
        copy.watch("/", Some(store.revision())),
        Err(WatchError::Expired { .. })
    ));
    assert!(put(&copy, "/next", "x").await > store.revision());
    drop(copy);
    assert!(open(&new).get("/next").is_some());
    assert!(matches!(
        restore(&file, &new),
        Err(BackupError::NotEmpty { .. })
    ));
}

#[tokio::test]
async fn a_damaged_backup_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("old"));
    for n in 0..5 {
        put(&store, &format!("/a/{n}"), "v").await;
    }
    let file = dir.path().join("backup");
    store.backup(&file, &BackupOptions::default()).unwrap();
    let good = std::fs::read(&file).unwrap();
    let bad_file = dir.path().join("bad");
    let new = dir.path().join("new");
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&bad_file, &bad).unwrap();
        assert!(restore(&bad_file, &new).is_err(), "byte {at}");
        std::fs::write(&bad_file, &good[..at]).unwrap();
        assert!(restore(&bad_file, &new).is_err(), "cut at {at}");
    }
    assert!(!new.exists());
    let newer = [b"muster-backup 9\n", &good[16..]].concat();
    std::fs::write(&bad_file, newer).unwrap();
    assert!(matches!(
        restore(&bad_file, &new),
        Err(BackupError::NewerFormat { found: 9, .. })
    ));
}

#[tokio::test]
async fn a_store_restored_twice_from_one_backup_takes_no_revision_twice() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup");
    {
        let store = open(&dir.path().join("old"));
        put(&store, "/a/1", "x").await;
        store.backup(&file, &BackupOptions::default()).unwrap();
    }
    let mut last = Revision::ZERO;
    for name in ["first", "second", "third"] {
        let new = dir.path().join(name);
        restore(&file, &new).unwrap();
        let store = open(&new);
        assert!(
            store.revision() > last,
            "{name} begins at {}",
            store.revision()
        );
        for before in [Revision::ZERO, last] {
            assert!(matches!(
                store.watch("/", Some(before)),
                Err(WatchError::Expired { .. })
            ));
        }
        for n in 0..5 {
            last = put(&store, &format!("/b/{n}"), "y").await;
        }
    }
}

#[tokio::test]
async fn a_backup_with_a_passphrase_opens_with_that_one_only_and_brings_its_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("old"));
    put(&store, "/a/1", "a secret value").await;
    let key = BackupFile {
        name: "ca.key".to_owned(),
        content: b"a private key".to_vec(),
    };
    let options = BackupOptions {
        files: vec![key.clone()],
        passphrase: Some("correct horse".to_owned()),
    };
    let file = dir.path().join("backup");
    let made = store.backup(&file, &options).unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let bytes = std::fs::read(&file).unwrap();
    for secret in [&b"a secret value"[..], b"a private key", b"ca.key"] {
        assert!(!bytes.windows(secret.len()).any(|part| part == secret));
    }
    assert!(matches!(
        Backup::open(&file, None),
        Err(BackupError::Sealed { .. })
    ));
    let wrong = Backup::open(&file, Some("battery staple")).err().unwrap();
    assert!(wrong.to_string().contains("passphrase is wrong"), "{wrong}");
    let backup = Backup::open(&file, Some("correct horse")).unwrap();
    assert_eq!(backup.summary(), made);
    assert!(backup.files() == [key]);
    let new = dir.path().join("new");
    backup.restore(&new, Options::default()).unwrap();
    assert_eq!(text(&open(&new).get("/a/1").unwrap()), "a secret value@1");
    // A backup without a passphrase contains the same files in plain text.
    let plain = BackupOptions {
        passphrase: None,
        ..options
    };
    store.backup(&file, &plain).unwrap();
    assert_eq!(Backup::open(&file, None).unwrap().files().len(), 1);
    assert!(matches!(
        Backup::open(&file, Some("correct horse")),
        Err(BackupError::NotSealed { .. })
    ));
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_no_name_of_a_backed_up_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("old"));
    let file = dir.path().join("backup");
    for name in ["", ".", "..", "../x", "a/b", "/etc/x", "a\0b"] {
        let options = BackupOptions {
            files: vec![BackupFile {
                name: name.to_owned(),
                content: Vec::new(),
            }],
            passphrase: None,
        };
        store.backup(&file, &options).unwrap();
        let refused = Backup::open(&file, None).err().unwrap();
        assert!(
            refused.to_string().contains("is not a file's name"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn on_a_full_disk_deletions_go_on_and_other_writes_wait() {
    let dir = tempfile::tempdir().unwrap();
    let left = Arc::new(AtomicU64::new(1 << 40));
    let (probe, file) = (Arc::clone(&left), dir.path().join("reserve"));
    let options = Options {
        free_bytes: Arc::new(move |_| {
            let held = file.metadata().map_or(0, |file| file.len());
            Ok(probe.load(Ordering::SeqCst) + (16 << 20) - held)
        }),
        ..Options::default()
    };
    let store = Store::open(dir.path(), options.clone()).unwrap();
    for n in 0..3 {
        put(&store, &format!("/a/{n}"), "x").await;
    }
    let delete = |n: u32| {
        let store = store.clone();
        async move {
            let gone = move |view: &mut TransactionView<'_>| {
                let gone = view.delete(&format!("/a/{n}"), |r, _| body("gone", r));
                Ok::<_, ()>(gone.is_some())
            };
            store.commit_for(Purpose::MakeRoom, gone).await
        }
    };
    let create = || {
        store.commit(|view: &mut TransactionView<'_>| {
            view.put("/a/new".to_owned(), meta("x"), |r| body("x", r));
            Ok::<_, ()>(())
        })
    };
    // Another program has taken the last byte.
    left.store(0, Ordering::SeqCst);
    assert!(matches!(
        create().await,
        Err(CommitError::Unavailable(StoreError::NoSpace { .. }))
    ));
    assert!(delete(0).await.unwrap(), "the reserve file makes room");
    assert!(!dir.path().join("reserve").exists());
    assert!(delete(1).await.unwrap());
    // An ordinary write in the same group as a deletion is refused too.
    let (deleted, created) = tokio::join!(delete(2), create());
    assert!(deleted.unwrap());
    assert!(created.is_err());
    assert_eq!(keys(&store.list("/a/", None, 10)), Vec::<String>::new());
    // The server starts on the full disk.
    drop(store);
    let store = Store::open(dir.path(), options).unwrap();
    left.store(1 << 40, Ordering::SeqCst);
    put(&store, "/a/new", "x").await;
    assert!(dir.path().join("reserve").exists());
}
