//! A reopened ledger contains what was written before, and an unreadable ledger does not prevent a
//! start.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use store::{Ledger, LedgerError, OpenedLedger, Options, RecordChange};

fn open(dir: &Path) -> (Ledger, OpenedLedger) {
    Ledger::open(dir, Options::default()).unwrap()
}

fn batches() -> impl Strategy<Value = Vec<Vec<RecordChange>>> {
    let record = proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..2000));
    let change = (0..40_u64, record);
    proptest::collection::vec(proptest::collection::vec(change, 0..30), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_was_written_last_under_each_number_is_there_after_each_end(batches in batches()) {
        let dir = tempfile::tempdir().unwrap();
        let mut expected: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for batch in batches {
            let (ledger, read) = open(dir.path());
            prop_assert!(read.put_aside.is_none());
            let kept = expected.clone().into_iter().collect::<Vec<_>>();
            prop_assert_eq!(read.records, kept);
            ledger.write(&batch).unwrap();
            for (number, record) in batch {
                match record {
                    Some(record) => expected.insert(number, record),
                    None => expected.remove(&number),
                };
            }
        }
    }
}

#[test]
fn a_record_that_is_too_long_is_forgotten_and_the_others_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open(dir.path());
    ledger
        .write(&[(1, Some(vec![1])), (2, Some(vec![2]))])
        .unwrap();
    ledger
        .write(&[
            (1, Some(vec![0; 24 * 1024 + 1])),
            (3, Some(vec![3; 24 * 1024])),
        ])
        .unwrap();
    drop(ledger);
    let numbers: Vec<u64> = open(dir.path()).1.records.iter().map(|r| r.0).collect();
    assert_eq!(numbers, [2, 3]);
}

#[test]
fn one_that_cannot_be_read_is_put_aside_and_begun_anew() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("decisions");
    for round in 0..2 {
        let (ledger, _) = open(&dir);
        ledger.write(&[(round, Some(b"kept".to_vec()))]).unwrap();
        drop(ledger);
        fs::write(dir.join("conf"), "not what sled wrote").unwrap();
        let (ledger, read) = open(&dir);
        let (aside, why) = read.put_aside.unwrap();
        assert_eq!(aside, above.path().join("decisions.damaged"));
        assert!(!why.is_empty());
        assert!(aside.join("db").exists());
        assert!(read.records.is_empty(), "nothing is there in round {round}");
        ledger.write(&[(7, Some(b"new".to_vec()))]).unwrap();
        drop(ledger);
        assert_eq!(open(&dir).1.records, [(7, b"new".to_vec())]);
    }
}

#[test]
fn a_full_disk_refuses_records_and_accepts_them_later() {
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(std::sync::atomic::AtomicU64::new(u64::MAX));
    let asked = free.clone();
    let options = Options {
        free_bytes: Arc::new(move |_| Ok(asked.load(std::sync::atomic::Ordering::Relaxed))),
        ..Options::default()
    };
    let (ledger, _) = Ledger::open(dir.path(), options.clone()).unwrap();
    free.store(1000, std::sync::atomic::Ordering::Relaxed);
    let refused = ledger.write(&[(1, Some(vec![1]))]).unwrap_err();
    assert!(
        matches!(refused, LedgerError::NoSpace { free: 1000, .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("free some space"), "{refused}");
    free.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    ledger.write(&[(2, Some(vec![2]))]).unwrap();
    drop(ledger);
    assert_eq!(open(dir.path()).1.records, [(2, vec![2])]);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let above = tempfile::tempdir().unwrap();
    let file = above.path().join("a-file");
    fs::write(&file, "").unwrap();
    let refused = Ledger::open(&file.join("decisions"), Options::default()).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("a-file/decisions cannot be used"),
        "{refused}"
    );
}
