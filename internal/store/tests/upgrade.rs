//! Upgrades: a store that another version wrote is snapshotted and brought up to date, the version
//! before opens it until the upgrade is finalized, and a snapshot goes back with the version before.
//! `RELEASES` lists the releases whose stores are kept (`e2e/tests/releases`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use store::{
    Backup, BackupError, Entry, EntryMeta, Formats, MigrationStep, OpenError, Options, Revision,
    Rewrite, SNAPSHOTS_MAX, SnapshotOptions, Store, snapshots,
};

/// The kept releases, the oldest first, with the format of their stores. A release adds a line, after
/// `e2e/tests/releases/keep VERSION MUSTER` has written the archive.
const RELEASES: [(&str, u32); 1] = [("0.1.0", 1)];

/// The step of a made-up next format: it gives each object a label, and drops obsolete objects.
const NEXT_STEP: MigrationStep = MigrationStep {
    rewrite: |entry: &Entry, _: Revision| {
        if entry.key.contains("/obsolete/") {
            return Rewrite::Delete;
        }
        if entry.meta.labels.contains_key("step") {
            return Rewrite::Keep;
        }
        let mut meta = EntryMeta::clone(&entry.meta);
        meta.labels.insert("step".to_owned(), "done".to_owned());
        Rewrite::Put(meta, entry.value.clone())
    },
};

fn formats(newest: u32, product: &'static str) -> Formats {
    Formats {
        newest,
        steps: match newest {
            1 => &[],
            _ => &[NEXT_STEP],
        },
        product,
    }
}

/// The options of a binary with these formats; its snapshots lie beside the store.
fn options(formats: Formats, snapshots: &Path) -> Options {
    Options {
        formats,
        snapshot: SnapshotOptions {
            directory: Some(snapshots.to_owned()),
            files: None,
        },
        ..Options::default()
    }
}

fn open(dir: &Path, formats: Formats) -> Result<Store, OpenError> {
    let snapshots = dir.with_file_name("snapshots");
    Store::open(dir, options(formats, &snapshots))
}

async fn put(store: &Store, key: &str, value: &str) {
    let (key, value) = (key.to_owned(), Bytes::from(value.to_owned()));
    store
        .commit(move |tx| {
            tx.put(key, EntryMeta::default(), |_| value);
            Ok::<_, std::convert::Infallible>(())
        })
        .await
        .unwrap();
}

fn step_of(store: &Store, key: &str) -> Option<String> {
    store.get(key)?.meta.labels.get("step").cloned()
}

fn taken(dir: &Path) -> Vec<PathBuf> {
    let found = snapshots(&dir.with_file_name("snapshots")).unwrap();
    found.into_iter().map(|snapshot| snapshot.path).collect()
}

fn restored(from: &Path, to: &Path, formats: Formats) -> Result<Store, BackupError> {
    let backup = Backup::open(from, None)?;
    let snapshots = to.with_file_name("snapshots");
    backup.restore(to, options(formats, &snapshots))?;
    Ok(Store::open(to, options(formats, &snapshots))?)
}

#[tokio::test]
async fn an_upgrade_is_snapshotted_migrated_reversible_and_then_final() {
    let ground = tempfile::tempdir().unwrap();
    let dir = ground.path().join("store");
    let (old, new) = (formats(1, "0.1.0"), formats(2, "0.2.0"));
    let store = open(&dir, old).unwrap();
    put(&store, "/a/one", "1").await;
    put(&store, "/obsolete/x", "x").await;
    let before = store.revision();
    drop(store);
    assert_eq!(taken(&dir), Vec::<PathBuf>::new());

    let store = open(&dir, new).unwrap();
    assert_eq!(step_of(&store, "/a/one").as_deref(), Some("done"));
    assert!(store.get("/obsolete/x").is_none());
    assert_eq!(store.revision().get(), before.get() + 2, "one a change");
    let version = store.version();
    assert_eq!((version.format, version.readable_from), (2, 1));
    assert_eq!(version.written_by, "0.2.0");
    assert!(!store.is_finalized() && !store.writes_format(2) && store.writes_format(1));
    let first = taken(&dir);
    assert_eq!(first.len(), 1);
    // A watch from before the upgrade receives the changes.
    let mut watch = store.watch("/", Some(before)).unwrap();
    let events = watch.next_batch().await.unwrap().unwrap();
    assert!(!events.is_empty());
    put(&store, "/a/two", "2").await;
    drop((store, watch));

    // The version before opens it, and its writes are brought up to date later.
    let store = open(&dir, old).unwrap();
    assert_eq!(store.get("/a/two").unwrap().value, "2");
    put(&store, "/a/three", "3").await;
    drop(store);
    let store = open(&dir, new).unwrap();
    for key in ["/a/one", "/a/two", "/a/three"] {
        assert_eq!(step_of(&store, key).as_deref(), Some("done"), "{key}");
    }
    drop(store);
    // There and back: each change of the version has a snapshot.
    assert_eq!(taken(&dir).len(), 3);

    let store = open(&dir, new).unwrap();
    assert_eq!(taken(&dir).len(), 3, "nothing changed since");
    store.finalize().unwrap();
    assert!(store.is_finalized() && store.writes_format(2));
    drop(store);
    let refused = open(&dir, old).unwrap_err();
    assert!(
        matches!(&refused, OpenError::NewerFormat { found: 2, known: 1, written_by, .. } if written_by == "0.2.0"),
        "{refused}"
    );
    assert!(refused.to_string().contains("muster upgrade rollback"));
    assert!(open(&dir, new).unwrap().is_finalized());

    // The version before restores the first snapshot; it does not restore a finalized store.
    let back = restored(&first[0], &ground.path().join("back/store"), old).unwrap();
    assert_eq!(back.get("/a/one").unwrap().value, "1");
    assert!(back.get("/obsolete/x").is_some() && step_of(&back, "/a/one").is_none());
    assert!(back.revision() > before);
    let store = open(&dir, new).unwrap();
    let file = ground.path().join("later");
    store
        .backup(&file, &store::BackupOptions::default())
        .unwrap();
    let refused = restored(&file, &ground.path().join("no/store"), old).unwrap_err();
    assert!(
        matches!(refused, BackupError::NewerStore { found: 2, .. }),
        "{refused}"
    );
    // A backup of the version before is brought up to date by the next start.
    let forward = restored(&first[0], &ground.path().join("forward/store"), new).unwrap();
    assert_eq!(step_of(&forward, "/a/one").as_deref(), Some("done"));
    assert!(!forward.is_finalized());
}

#[tokio::test]
async fn a_store_is_not_changed_if_its_snapshot_fails() {
    let ground = tempfile::tempdir().unwrap();
    let dir = ground.path().join("store");
    let store = open(&dir, formats(1, "0.1.0")).unwrap();
    put(&store, "/a", "1").await;
    let revision = store.revision();
    drop(store);
    let mut failing = options(formats(2, "0.2.0"), &ground.path().join("snapshots"));
    failing.snapshot.files = Some(std::sync::Arc::new(|| {
        Err(std::io::Error::other("the key file is too large"))
    }));
    let refused = Store::open(&dir, failing).unwrap_err().to_string();
    assert!(refused.contains("the key file is too large"), "{refused}");
    assert!(refused.contains("run muster 0.1.0 again"), "{refused}");
    let store = open(&dir, formats(1, "0.1.0")).unwrap();
    assert_eq!(store.revision(), revision);
    assert_eq!(taken(&dir), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn only_the_latest_snapshots_are_kept_and_other_files_stay() {
    let ground = tempfile::tempdir().unwrap();
    let dir = ground.path().join("store");
    put(&open(&dir, formats(1, "0.1.0")).unwrap(), "/a", "1").await;
    let own = ground.path().join("snapshots/mine.backup");
    for round in 0..SNAPSHOTS_MAX + 2 {
        let product = ["0.1.1", "0.1.2"][round % 2];
        put(&open(&dir, formats(1, product)).unwrap(), "/a", "2").await;
        std::fs::write(&own, "").unwrap();
    }
    let kept = taken(&dir);
    assert_eq!(kept.len(), SNAPSHOTS_MAX);
    assert!(own.exists());
    // Each of them restores.
    for (number, snapshot) in kept.iter().enumerate() {
        let to = ground.path().join(format!("{number}/store"));
        let store = restored(snapshot, &to, formats(1, "0.1.0")).unwrap();
        assert!(store.get("/a").is_some());
    }
}

#[test]
fn a_store_that_is_too_old_names_the_way() {
    let ground = tempfile::tempdir().unwrap();
    let dir = ground.path().join("store");
    drop(open(&dir, formats(1, "0.1.0")).unwrap());
    let late = Formats {
        newest: 3,
        steps: &[NEXT_STEP],
        product: "0.9.0",
    };
    let refused = open(&dir, late).unwrap_err();
    assert!(
        matches!(
            refused,
            OpenError::OlderFormat {
                found: 1,
                oldest: 2,
                ..
            }
        ),
        "{refused}"
    );
}

/// Unpacks a kept release's server; returns its store.
fn kept(version: &str, to: &Path) -> PathBuf {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../e2e/tests/releases")
        .join(format!("{version}.tar.gz"));
    let mut unpack = Command::new("tar");
    unpack
        .arg("-xzf")
        .arg(&archive)
        .arg("-C")
        .arg(to)
        .arg("data");
    assert!(unpack.status().unwrap().success(), "{}", archive.display());
    to.join("data/store")
}

#[tokio::test]
async fn the_store_of_every_release_goes_through_an_upgrade_and_back() {
    for (version, format) in RELEASES {
        let ground = tempfile::tempdir().unwrap();
        let dir = kept(version, ground.path());
        let checked = Store::check(&dir, Options::default()).unwrap();
        assert!(checked.findings.is_empty(), "{:?}", checked.findings);
        assert!(checked.objects > 50, "{}", checked.objects);

        // This version: a snapshot, and nothing is lost.
        let store = open(&dir, Formats::CURRENT).unwrap();
        let objects = store.list("/", None, usize::MAX).entries;
        assert_eq!(objects.len() as u64, checked.objects);
        assert_eq!(store.version().readable_from, format);
        drop(store);
        let snapshot = taken(&dir).pop().unwrap();

        // The next format on top of it: every step that this release lacks, and one more.
        let next = Formats {
            newest: Formats::CURRENT.newest + 1,
            steps: &[NEXT_STEP],
            product: "99.0.0",
        };
        let store = open(&dir, next).unwrap();
        assert_eq!(
            store.list("/", None, usize::MAX).entries.len(),
            objects.len()
        );
        for object in &objects {
            assert_eq!(step_of(&store, &object.key).as_deref(), Some("done"));
        }
        drop(store);
        // Back, with everything; then finally forward.
        let store = open(&dir, Formats::CURRENT).unwrap();
        for object in &objects {
            assert_eq!(store.get(&object.key).unwrap().value, object.value);
        }
        drop(store);
        open(&dir, next).unwrap().finalize().unwrap();
        assert!(matches!(
            open(&dir, Formats::CURRENT),
            Err(OpenError::NewerFormat { .. })
        ));
        let back = restored(
            &snapshot,
            &ground.path().join("back/store"),
            Formats::CURRENT,
        );
        let back = back.unwrap();
        for object in &objects {
            assert_eq!(back.get(&object.key).unwrap().value, object.value);
        }
    }
}
