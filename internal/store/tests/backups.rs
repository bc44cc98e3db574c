//! Damaged and forged backups: no file makes the reader panic, and a file that opens has everything that was saved, or
//! checksums that its forger made.
#![allow(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use store::{Backup, BackupFile, BackupOptions, EntryMeta, Options, Store, TransactionView};

#[path = "../../resources/testing/documents.rs"]
mod documents;

use documents::{damage, damaged};

/// A directory in memory, where the machine has such a place.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

/// A backup of a store with three objects and two files.
static SOUND: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dir = directory();
    let path = dir.path().join("backup");
    runtime.block_on(async {
        let store = Store::open(&dir.path().join("store"), Options::default()).unwrap();
        for key in ["/a", "/b", "/c"] {
            let put = move |view: &mut TransactionView| {
                let meta = EntryMeta {
                    labels: [("label".to_owned(), key.to_owned())].into(),
                    ..EntryMeta::default()
                };
                view.put(key.to_owned(), meta, |revision| {
                    format!("{key}@{revision}").into()
                });
                Ok::<_, ()>(())
            };
            store.commit(put).await.unwrap();
        }
        let file = |name: &str| BackupFile {
            name: name.to_owned(),
            content: name.repeat(3).into_bytes(),
        };
        let options = BackupOptions {
            files: vec![file("ca.key"), file("ca.pem")],
            passphrase: None,
        };
        store.backup(&path, &options).unwrap();
    });
    fs::read(path).unwrap()
});

/// The frames of a backup, without their lengths and checksums.
fn frames(backup: &[u8]) -> Vec<Vec<u8>> {
    let begin = backup.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let (mut rest, mut all) = (&backup[begin..], Vec::new());
    while let Some((head, more)) = rest.split_at_checked(8) {
        let length = u32::from_be_bytes(head[..4].try_into().unwrap()) as usize;
        let (content, more) = more.split_at(length);
        all.push(content.to_vec());
        rest = more;
    }
    all
}

/// A backup of these frames with the checksums that its reader expects; the last frame is their sum.
fn forged(format: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("muster-backup {format}\n").into_bytes();
    let sums = frames.iter().map(|frame| u64::from(crc32fast::hash(frame)));
    let sum: u64 = sums.sum();
    for content in frames
        .iter()
        .map(Vec::as_slice)
        .chain([&sum.to_be_bytes()[..]])
    {
        out.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
        out.extend(crc32fast::hash(content).to_be_bytes());
        out.extend(content);
    }
    out
}

/// The numbers of a backup's first frame.
fn summary() -> impl Strategy<Value = Vec<u8>> {
    let number = || select(vec![0, 1, 2, 3, 256, 257, u64::MAX]);
    (number(), number(), number(), "[a-z0-9.= \n]{0,30}").prop_map(
        |(revision, objects, files, version)| {
            let numbers = [revision, objects, files].map(u64::to_be_bytes).concat();
            [numbers, version.into_bytes()].concat()
        },
    )
}

proptest! {
    #[test]
    fn no_damaged_backup_panics(damage in damage(), passphrase in prop::bool::weighted(0.01)) {
        let dir = directory();
        let file = dir.path().join("backup");
        let content = damaged(SOUND.clone(), &damage);
        fs::write(&file, &content).unwrap();
        match Backup::open(&file, passphrase.then_some("p")) {
            // What follows the last frame is not a part of the backup.
            Ok(backup) => {
                prop_assert!(content.starts_with(&SOUND), "a change is not seen");
                prop_assert_eq!((backup.summary().objects, backup.files().len()), (3, 2));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn no_forged_backup_panics(
        format in select(vec![0, 1, 2, 3, u32::MAX]),
        first in prop_oneof![1 => summary().prop_map(Some), 2 => Just(None)],
        changes in vec((any::<prop::sample::Index>(), damage()), 0..3),
        order in vec(any::<prop::sample::Index>(), 0..2),
        restores in prop::bool::weighted(0.002),
    ) {
        let mut all = frames(&SOUND);
        all.pop();
        for (at, damage) in changes {
            let at = at.index(all.len());
            all[at] = damaged(std::mem::take(&mut all[at]), &damage);
        }
        for at in order {
            let moved = all.remove(at.index(all.len()));
            all.push(moved);
        }
        if let Some(first) = first {
            all[0] = first;
        }
        let dir = directory();
        let file = dir.path().join("backup");
        fs::write(&file, forged(format, &all)).unwrap();
        let Ok(backup) = Backup::open(&file, None) else { return Ok(()) };
        for file in backup.files() {
            // No name leads out of the directory that the files are written to.
            let name = Path::new(&file.name);
            prop_assert_eq!(name.file_name(), Some(name.as_os_str()));
        }
        if restores && let Ok(restored) = backup.restore(&dir.path().join("new"), Options::default()) {
            prop_assert_eq!(restored, backup.summary());
        }
    }
}

#[test]
fn a_backup_that_is_forged_without_a_change_is_the_backup() {
    let mut all = frames(&SOUND);
    all.pop();
    assert!(forged(2, &all) == *SOUND);
}
