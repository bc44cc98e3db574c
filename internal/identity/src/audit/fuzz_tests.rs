//! Damaged logs: the check and the next start of the server never panic, and a check that finds
//! nothing has seen every event of the log.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::tests::{event, options, write};
use super::*;
use crate::audit::AuditLog;
use crate::documents::{changed, damage, damaged};

/// The files of a sound log of twelve events: two closed ones, the current one and the head.
static SOUND: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), 2_000, 12);
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    assert!(verify(directory.path()).unwrap().sound());
    assert!(files.len() > 2, "{files:?}");
    files
});

/// The directory of all cases: it is in memory where the machine has such a place.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

proptest! {
    #[test]
    fn no_damaged_log_panics(
        which in any::<prop::sample::Index>(),
        damage in damage(),
        restarts in prop::bool::weighted(0.02),
    ) {
        let directory = directory();
        let (name, sound) = &SOUND[which.index(SOUND.len())];
        for (file, content) in SOUND.iter() {
            fs::write(directory.path().join(file), content).unwrap();
        }
        let content = damaged(sound.clone(), &damage);
        fs::write(directory.path().join(name), &content).unwrap();
        // A head that cannot be read is an error of its own.
        if let Ok(verdict) = verify(directory.path())
            && verdict.sound()
            && name != log::HEAD
        {
            // An incomplete line at the end is still being written.
            prop_assert!(content.starts_with(sound), "{name}: the check does not see the change");
            prop_assert_eq!(verdict.events, 12);
        }
        if restarts
            && let Ok(log) = AuditLog::open(options(directory.path(), 2_000))
        {
            log.events().blocking_send(event("after")).unwrap();
            log.finish();
        }
    }

    #[test]
    fn no_line_of_the_log_panics(
        document in changed(vec![{
            let line = SOUND[0].1.split(|byte| *byte == b'\n').next().unwrap();
            serde_json::from_slice(line).unwrap()
        }]),
        sequence in any::<u64>(),
        lost in prop_oneof![Just(u64::MAX), any::<u64>()],
    ) {
        let directory = directory();
        let mut lines = Vec::new();
        for sequence in [sequence, u64::MAX, sequence.wrapping_add(1)] {
            let mut document = document.clone();
            if let Some(notes) = document.get_mut("annotations").and_then(serde_json::Value::as_object_mut) {
                notes.insert(chain::SEQUENCE.to_owned(), sequence.to_string().into());
                notes.insert(chain::LOST.to_owned(), lost.to_string().into());
            }
            lines.push(document.to_string());
        }
        fs::write(directory.path().join(log::CURRENT), lines.join("\n") + "\n").unwrap();
        let verdict = verify(directory.path()).unwrap();
        prop_assert_eq!(verdict.events, 3);
    }
}
