//! Persistence of the records across restarts of the server. Changes are handed out in batches,
//! each record under its own number; stored records are loaded at the start before any other. The
//! caller owns the storage.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use resources::record::DecisionRecord;
use serde::{Deserialize, Serialize};

use super::{DecisionHistory, GangName};

/// Each record under its number; none means that the record is deleted.
pub(in crate::scheduling) type RecordChanges<T> = Vec<(u64, Option<T>)>;

/// The changes not yet handed to storage, by record number. Bounded by the records in memory and in
/// storage.
#[derive(Default)]
pub(super) struct Unwritten {
    new: BTreeMap<u64, GangName>,
    /// Stored records that were repeated since.
    went_on: BTreeMap<u64, GangName>,
    /// Stored records that were dropped from memory.
    gone: BTreeSet<u64>,
}

impl Unwritten {
    pub(super) fn came(&mut self, number: u64, key: &GangName) {
        self.new.insert(number, key.clone());
    }

    pub(super) fn went_on(&mut self, number: u64, key: &GangName) {
        if !self.new.contains_key(&number) {
            self.went_on.entry(number).or_insert_with(|| key.clone());
        }
    }

    pub(super) fn gone(&mut self, number: u64) {
        if self.new.remove(&number).is_none() {
            self.went_on.remove(&number);
            self.gone.insert(number);
        }
    }

    /// At most `most` changes, in this order: deletions, new records, and repeated records if
    /// requested.
    fn take(&mut self, went_on: bool, most: usize) -> Vec<(u64, Option<GangName>)> {
        let mut taken = Vec::new();
        while taken.len() < most {
            if let Some(number) = self.gone.pop_first() {
                taken.push((number, None));
            } else if let Some((number, key)) = self.new.pop_first() {
                taken.push((number, Some(key)));
            } else if let Some((number, key)) = went_on.then(|| self.went_on.pop_first()).flatten()
            {
                taken.push((number, Some(key)));
            } else {
                break;
            }
        }
        taken
    }
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::scheduling) struct StoredRecord {
    namespace: String,
    group: String,
    record: DecisionRecord,
}

impl DecisionHistory {
    /// Loads the records stored by earlier servers, and has all later changes written. Decisions
    /// made meanwhile are ordered after them. Records that could not be read are deleted.
    pub(in crate::scheduling) fn recall(&mut self, lines: RecordChanges<StoredRecord>) {
        let meanwhile = std::mem::take(self);
        let mut unwritten = Unwritten::default();
        for (number, line) in lines {
            self.next = self.next.max(number);
            let Some(line) = line else {
                unwritten.gone(number);
                continue;
            };
            let key = (line.namespace, line.group);
            let own = self.gangs.entry(key.clone()).or_default();
            own.push_back((number, line.record));
            self.kept += 1;
            self.order.push_back((number, key));
        }
        self.unwritten = Some(unwritten);
        // Another version may have stored more than the limit.
        self.forget();
        let mut later = BTreeMap::new();
        for (key, records) in meanwhile.gangs {
            for (number, record) in records {
                later.insert(number, (key.clone(), record));
            }
        }
        for (key, record) in later.into_values() {
            self.put(key, record);
        }
    }

    /// Stops handing out changes.
    pub(in crate::scheduling) fn keep_no_more(&mut self) {
        self.unwritten = None;
    }

    /// The changes to write, at most `most`, each only once: the caller must write what it
    /// receives. Records that were written before and merely repeated since are included on
    /// request.
    pub(in crate::scheduling) fn unwritten(
        &mut self,
        went_on: bool,
        most: usize,
    ) -> RecordChanges<StoredRecord> {
        let Some(unwritten) = &mut self.unwritten else {
            return Vec::new();
        };
        let taken = unwritten.take(went_on, most);
        let line = |(number, key): (u64, Option<GangName>)| {
            let line = key.and_then(|key| {
                let records = self.gangs.get(&key)?;
                let at = records.binary_search_by_key(&number, |(n, _)| *n).ok()?;
                Some(StoredRecord {
                    namespace: key.0,
                    group: key.1,
                    record: records[at].1.clone(),
                })
            });
            (number, line)
        };
        taken.into_iter().map(line).collect()
    }

    /// Gangs without a decision since then.
    pub(in crate::scheduling) fn silent_since(&self, then: Timestamp) -> Vec<GangName> {
        let all = self.gangs.keys();
        let silent = all.filter(|key| self.is_silent_since(key, then));
        silent.cloned().collect()
    }

    fn is_silent_since(&self, key: &GangName, then: Timestamp) -> bool {
        let records = self.gangs.get(key).into_iter().flatten();
        let mut recorded = records.map(|(_, record)| record.until.unwrap_or(record.at));
        recorded.all(|recorded| recorded < then)
    }

    /// Drops all records of a gang, unless a decision on it was recorded since then.
    pub(in crate::scheduling) fn drop_silent(&mut self, key: &GangName, then: Timestamp) {
        if !self.is_silent_since(key, then) {
            return;
        }
        for (number, _) in self.gangs.remove(key).into_iter().flatten() {
            self.dropped(number);
        }
    }
}

/// Decodes records in the order of their numbers; none for a record that can't be read.
pub(in crate::scheduling) fn lines(
    mut records: Vec<(u64, Vec<u8>)>,
) -> RecordChanges<StoredRecord> {
    records.sort_unstable_by_key(|(number, _)| *number);
    let line = |(number, bytes): (u64, Vec<u8>)| (number, serde_json::from_slice(&bytes).ok());
    records.into_iter().map(line).collect()
}

/// Encodes records; one that can't be encoded is deleted.
pub(in crate::scheduling) fn bytes(changes: RecordChanges<StoredRecord>) -> RecordChanges<Vec<u8>> {
    let bytes = |(number, line): (u64, Option<StoredRecord>)| {
        let bytes = line.and_then(|line| serde_json::to_vec(&line).ok());
        (number, bytes)
    };
    changes.into_iter().map(bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{IN_ALL_MAX, OF_ONE_MAX};
    use super::*;
    use proptest::prelude::*;
    use resources::record::DecisionKind;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn key(gang: u8) -> GangName {
        ("ns".to_owned(), format!("g{gang}"))
    }

    fn record(decision: DecisionKind, second: i64) -> DecisionRecord {
        DecisionRecord {
            at: at(second),
            decision,
            sentence: format!("{} at {second}", decision.as_str()),
            ..DecisionRecord::default()
        }
    }

    /// Storage as the server keeps it: the records handed out, under their numbers.
    #[derive(Default)]
    struct Storage(BTreeMap<u64, Vec<u8>>);

    impl Storage {
        fn take(&mut self, history: &mut DecisionHistory, went_on: bool, most: usize) -> usize {
            let changes = bytes(history.unwritten(went_on, most));
            let taken = changes.len();
            for (number, record) in changes {
                match record {
                    Some(record) => self.0.insert(number, record),
                    None => self.0.remove(&number),
                };
            }
            taken
        }

        fn take_all(&mut self, history: &mut DecisionHistory) {
            while self.take(history, true, 3) > 0 {}
        }

        fn restored(&self) -> DecisionHistory {
            let mut history = DecisionHistory::default();
            history.recall(lines(self.0.clone().into_iter().collect()));
            history
        }
    }

    fn kept() -> DecisionHistory {
        let mut history = DecisionHistory::default();
        history.recall(Vec::new());
        history
    }

    fn all(history: &DecisionHistory) -> BTreeMap<GangName, Vec<DecisionRecord>> {
        let records = history.gangs.iter().map(|(key, records)| {
            let records = records.iter().map(|(_, record)| record.clone());
            (key.clone(), records.collect())
        });
        records.collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, DecisionKind),
        Drop(u8),
        Write(bool, usize),
        Restart,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let decision = prop_oneof![
            Just(DecisionKind::Pending),
            Just(DecisionKind::Reserved),
            Just(DecisionKind::Bound),
            Just(DecisionKind::Evicted),
        ];
        let step = prop_oneof![
            12 => (0..3_u8, decision).prop_map(|(gang, decision)| Step::Put(gang, decision)),
            1 => (0..3_u8).prop_map(Step::Drop),
            4 => (any::<bool>(), 0..4_usize).prop_map(|(on, most)| Step::Write(on, most)),
            1 => Just(Step::Restart),
        ];
        proptest::collection::vec(step, 0..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_next_server_loads_all_records_once_all_are_written(steps in steps()) {
            let (mut history, mut storage) = (kept(), Storage::default());
            for (second, step) in (1..).zip(steps) {
                match step {
                    Step::Put(gang, decision) => history.put(key(gang), record(decision, second)),
                    Step::Drop(gang) => history.drop_silent(&key(gang), Timestamp::MAX),
                    Step::Write(went_on, most) => {
                        storage.take(&mut history, went_on, most);
                    }
                    Step::Restart => {
                        storage.take_all(&mut history);
                        let next = storage.restored();
                        prop_assert_eq!(all(&next), all(&history));
                        prop_assert_eq!(next.kept, history.kept);
                        history = next;
                    }
                }
            }
            storage.take_all(&mut history);
            prop_assert_eq!(storage.0.len(), history.kept);
            prop_assert_eq!(all(&storage.restored()), all(&history));
        }
    }

    #[test]
    fn decisions_made_before_the_load_are_ordered_after_it_or_continue_it() {
        let (mut before, mut storage) = (kept(), Storage::default());
        before.put(key(0), record(DecisionKind::Bound, 1));
        before.put(key(1), record(DecisionKind::Pending, 2));
        storage.take_all(&mut before);
        let mut history = DecisionHistory::default();
        history.put(key(1), record(DecisionKind::Pending, 10));
        history.put(key(0), record(DecisionKind::Evicted, 11));
        history.recall(lines(storage.0.clone().into_iter().collect()));
        let decisions = |name: &str| {
            let records = history.of("ns", name).into_iter();
            let decisions = records.map(|record| (record.decision, record.at, record.until));
            decisions.collect::<Vec<_>>()
        };
        assert_eq!(
            decisions("g0"),
            [
                (DecisionKind::Bound, at(1), None),
                (DecisionKind::Evicted, at(11), None)
            ]
        );
        assert_eq!(
            decisions("g1"),
            [(DecisionKind::Pending, at(2), Some(at(10)))]
        );
        storage.take_all(&mut history);
        assert_eq!(all(&storage.restored()), all(&history));
    }

    #[test]
    fn repeated_records_are_written_on_request_and_none_is_written_twice() {
        let (mut history, mut storage) = (kept(), Storage::default());
        history.put(key(0), record(DecisionKind::Pending, 1));
        assert_eq!(storage.take(&mut history, false, 9), 1);
        history.put(key(0), record(DecisionKind::Pending, 2));
        history.put(key(0), record(DecisionKind::Pending, 3));
        assert_eq!(storage.take(&mut history, false, 9), 0);
        assert_eq!(storage.take(&mut history, true, 9), 1);
        assert_eq!(storage.take(&mut history, true, 9), 0);
        assert_eq!(storage.restored().of("ns", "g0")[0].until, Some(at(3)));
    }

    #[test]
    fn no_changes_are_collected_without_storage() {
        let mut history = DecisionHistory::default();
        history.put(key(0), record(DecisionKind::Bound, 1));
        assert!(history.unwritten(true, 9).is_empty());
        history.recall(Vec::new());
        assert_eq!(history.unwritten(true, 9).len(), 1);
        history.keep_no_more();
        history.put(key(0), record(DecisionKind::Bound, 2));
        assert!(history.unwritten(true, 9).is_empty());
    }

    #[test]
    fn unreadable_records_are_deleted_and_the_rest_is_loaded() {
        let (mut before, mut storage) = (kept(), Storage::default());
        before.put(key(0), record(DecisionKind::Bound, 1));
        storage.take_all(&mut before);
        storage
            .0
            .insert(7, b"{\"another\": \"version's\"}".to_vec());
        let mut history = DecisionHistory::default();
        history.recall(lines(storage.0.clone().into_iter().collect()));
        assert_eq!(history.of("ns", "g0").len(), 1);
        history.put(key(1), record(DecisionKind::Bound, 2));
        storage.take_all(&mut history);
        assert_eq!(storage.0.keys().copied().collect::<Vec<_>>(), [1, 8]);
    }

    #[test]
    fn storage_holds_no_more_than_memory() {
        let (mut history, mut storage) = (kept(), Storage::default());
        for second in 0..200 {
            history.put(key(0), record(DecisionKind::Bound, second));
            storage.take(&mut history, true, 9);
        }
        storage.take_all(&mut history);
        assert_eq!(storage.0.len(), OF_ONE_MAX);
        for number in 0..IN_ALL_MAX {
            let gang = ("other".to_owned(), number.to_string());
            history.put(gang, record(DecisionKind::Bound, 1000));
        }
        while storage.take(&mut history, true, 4096) > 0 {}
        assert_eq!(storage.0.len(), IN_ALL_MAX);
    }

    #[test]
    fn gangs_are_silent_by_the_time_of_their_last_record() {
        let mut history = DecisionHistory::default();
        history.put(key(0), record(DecisionKind::Pending, 1));
        history.put(key(0), record(DecisionKind::Pending, 50));
        history.put(key(1), record(DecisionKind::Bound, 20));
        history.put(key(2), record(DecisionKind::Bound, 80));
        assert_eq!(history.silent_since(at(50)), [key(1)]);
        assert_eq!(history.silent_since(at(51)), [key(0), key(1)]);
        history.drop_silent(&key(1), at(20));
        assert_eq!(history.kept, 3);
        history.drop_silent(&key(1), at(51));
        assert_eq!(history.silent_since(at(51)), [key(0)]);
        assert_eq!(history.kept, 2);
    }
}
