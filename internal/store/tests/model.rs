//! Random transactions against a plain map: the store, its lists at earlier revisions, its watches
//! and the reopened store all agree with the map.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use store::{
    Backup, BackupOptions, EntryMeta, EventKind, Options, Revision, Store, TransactionView,
};

type Map = BTreeMap<String, (u64, Vec<u8>)>;

#[derive(Clone, Debug)]
enum Op {
    Put(u8, u16),
    Delete(u8),
}

#[derive(Clone, Debug)]
struct Change {
    ops: Vec<Op>,
    refuse: bool,
    reopen: bool,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0_u8..12, prop_oneof![4 => 0_u16..50, 1 => Just(30_000_u16)]).prop_map(|(k, s)| Op::Put(k, s)),
        2 => (0_u8..12).prop_map(Op::Delete),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    (
        prop::collection::vec(op(), 0..5),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(ops, refuse, reopen)| Change {
            ops,
            refuse,
            reopen,
        })
}

fn key(number: u8) -> String {
    format!(
        "/{}/{number}",
        if number.is_multiple_of(2) {
            "even"
        } else {
            "odd"
        }
    )
}

fn value(size: u16, revision: u64) -> Vec<u8> {
    let mut value = revision.to_string().into_bytes();
    value.resize(value.len() + usize::from(size), b'.');
    value
}

fn meta(key: &str) -> EntryMeta {
    EntryMeta {
        fields: [("key".to_owned(), key.to_owned())].into(),
        ..EntryMeta::default()
    }
}

fn apply(map: &mut Map, revision: &mut u64, ops: &[Op]) {
    for op in ops {
        match op {
            Op::Put(number, size) => {
                *revision += 1;
                map.insert(key(*number), (*revision, value(*size, *revision)));
            }
            Op::Delete(number) => {
                if map.remove(&key(*number)).is_some() {
                    *revision += 1;
                }
            }
        }
    }
}

fn run_ops(view: &mut TransactionView, ops: &[Op]) {
    for op in ops {
        match op {
            Op::Put(number, size) => {
                let key = key(*number);
                view.put(key.clone(), meta(&key), |r| value(*size, r.get()).into());
            }
            Op::Delete(number) => {
                view.delete(&key(*number), |_, entry| entry.value.clone());
            }
        }
    }
}

fn contents(entries: &[std::sync::Arc<store::Entry>]) -> Map {
    let pairs = entries.iter();
    pairs
        .map(|e| (e.key.to_string(), (e.revision.get(), e.value.to_vec())))
        .collect()
}

fn under(map: &Map, prefix: &str) -> Map {
    let pairs = map.iter().filter(|(key, _)| key.starts_with(prefix));
    pairs.map(|(k, v)| (k.clone(), v.clone())).collect()
}

async fn check(changes: Vec<Change>) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path(), Options::default()).unwrap();
    let mut map = Map::new();
    let mut revision = 0;
    let mut states: Vec<(u64, Map)> = vec![(0, Map::new())];
    let mut since_reopened = 0;
    for change in changes {
        let ops = change.ops.clone();
        let outcome = store
            .commit(move |view: &mut TransactionView| {
                run_ops(view, &ops);
                if change.refuse { Err(()) } else { Ok(()) }
            })
            .await;
        assert_eq!(outcome.is_err(), change.refuse);
        if !change.refuse {
            apply(&mut map, &mut revision, &change.ops);
            if states.last().map(|last| last.0) != Some(revision) {
                states.push((revision, map.clone()));
            }
        }
        if change.reopen {
            drop(store);
            store = Store::open(dir.path(), Options::default()).unwrap();
            since_reopened = revision;
        }
        assert_eq!(store.revision().get(), revision);
        assert_eq!(contents(&store.list("/", None, usize::MAX).entries), map);
    }
    for (at, then) in &states {
        for prefix in ["/", "/odd/"] {
            match store.list_at(Revision::new(*at), prefix, None, usize::MAX) {
                Ok(page) => assert_eq!(contents(&page.entries), under(then, prefix)),
                Err(error) => assert!(*at < since_reopened, "{at}: {error}"),
            }
            let mut replayed = under(then, prefix);
            let mut watch = store.watch(prefix, Some(Revision::new(*at))).unwrap();
            let mut last = *at;
            while watch.progress().get() < revision {
                for event in watch.next_batch().await.unwrap().unwrap() {
                    assert!(event.revision().get() > last);
                    last = event.revision().get();
                    let key = event.entry.key.to_string();
                    let before = replayed.contains_key(&key);
                    assert_eq!(before, event.kind != EventKind::Added);
                    assert_eq!(event.previous.is_some(), before);
                    if event.kind == EventKind::Deleted {
                        replayed.remove(&key);
                    } else {
                        replayed.insert(key, (last, event.entry.value.to_vec()));
                    }
                }
            }
            assert_eq!(replayed, under(&map, prefix));
        }
    }
    drop(store);
    let store = Store::open(dir.path(), Options::default()).unwrap();
    assert_eq!(contents(&store.list("/", None, usize::MAX).entries), map);
    let file = dir.path().join("backup");
    store.backup(&file, &BackupOptions::default()).unwrap();
    let copy = dir.path().join("copy");
    Backup::open(&file, None)
        .unwrap()
        .restore(&copy, Options::default())
        .unwrap();
    let copy = Store::open(&copy, Options::default()).unwrap();
    assert_eq!(contents(&copy.list("/", None, usize::MAX).entries), map);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_a_plain_map(changes in prop::collection::vec(change(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(changes));
    }
}
