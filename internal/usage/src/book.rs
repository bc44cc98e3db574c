//! The book of allocations and sums, and its records on disk.

mod measured;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use resources::devices::is_whole_gpu;
use resources::exposition::Histogram;
use serde::{Deserialize, Serialize};

use self::measured::MeasuredParts;
use crate::activity::GpuActivity;
use crate::allocation::{Allocation, AllocationEnd, Owner, PodUid};
use crate::sums::{DAY, DAYS_MAX, HOUR, HOURLY_FOR, Span, Sums, hours_of, milliseconds, time};

/// How many ended allocations are kept; the sums include the older ones too. At about 400 bytes each they take 20 MB.
pub const ALLOCATIONS_MAX: usize = 50_000;

/// Records as they are stored: each under its number; `None` deletes the record.
pub type StoredRecords = Vec<(u64, Option<Vec<u8>>)>;

/// The upper bounds of the histogram of waits, in seconds: from a second to a week.
const WAITS: &[f64] = &[
    1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0,
];
/// How many queues have a histogram of their own; the waits in others are counted without a queue.
const WAIT_QUEUES_MAX: usize = 1000;

/// An allocation that has no place in the ended ones yet may be known to be over already. It is taken if it ended after
/// the last count, less this: an earlier server can have counted it only if it wrote it down.
const LATE: i64 = 60_000;

/// The number of the record that has the time of the last count.
const COUNTED: u64 = 0;
/// The highest bits of a record's number say what the record is.
const OPEN: u64 = 1 << 60;
const ENDED: u64 = 2 << 60;
const SUMS: u64 = 3 << 60;
const KINDS: u64 = 0xf << 60;

/// An allocation that a pod holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    allocation: Allocation,
    /// The time of the last count when it was opened, in milliseconds: a later count has counted it too.
    opened_at_count: i64,
    #[serde(skip)]
    measured: MeasuredParts,
}

/// The sums of one owner over an hour or a day.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct SumsKey {
    span: Span,
    owner: Owner,
}

#[derive(Serialize, Deserialize)]
struct SumsRecord {
    #[serde(flatten)]
    key: SumsKey,
    sums: Sums,
}

/// Allocations and sums. See the crate's documentation.
#[derive(Debug, Default)]
pub struct UsageBook {
    /// All open allocations are counted until this time, in milliseconds.
    counted: i64,
    open: BTreeMap<PodUid, (u64, Open)>,
    ended: BTreeMap<u64, Allocation>,
    ended_uids: BTreeSet<PodUid>,
    sums: BTreeMap<SumsKey, (u64, Sums)>,
    next: u64,
    /// The numbers of records that changed since they were last stored.
    changed: BTreeSet<u64>,
    /// Where a sum is, by its number.
    places: BTreeMap<u64, SumsKey>,
    uids: BTreeMap<u64, PodUid>,
    /// How long pods waited from their creation to their binding, by queue. Not stored: a counter may begin anew.
    waits: BTreeMap<String, Histogram>,
}

impl UsageBook {
    /// The book of these stored records. Returns also how many of them it could not read: they are dropped.
    pub fn restore(records: Vec<(u64, Vec<u8>)>) -> (UsageBook, usize) {
        let mut book = UsageBook::default();
        let mut unread = 0;
        for (number, bytes) in records {
            book.next = book.next.max((number & !KINDS) + 1);
            if book.restore_one(number, &bytes).is_none() {
                unread += 1;
                book.changed.insert(number);
            }
        }
        // What was measured until the last count is in the sums.
        for (_, open) in book.open.values_mut() {
            open.measured = MeasuredParts::from(book.counted);
        }
        (book, unread)
    }

    fn restore_one(&mut self, number: u64, bytes: &[u8]) -> Option<()> {
        match number & KINDS {
            0 if number == COUNTED => self.counted = serde_json::from_slice(bytes).ok()?,
            OPEN => {
                let open: Open = serde_json::from_slice(bytes).ok()?;
                let uid = open.allocation.uid.clone();
                self.uids.insert(number, uid.clone());
                self.open.insert(uid, (number, open));
            }
            ENDED => {
                let allocation: Allocation = serde_json::from_slice(bytes).ok()?;
                self.ended_uids.insert(allocation.uid.clone());
                self.ended.insert(number, allocation);
            }
            SUMS => {
                let record: SumsRecord = serde_json::from_slice(bytes).ok()?;
                self.places.insert(number, record.key.clone());
                self.sums.insert(record.key, (number, record.sums));
            }
            _ => return None,
        }
        Some(())
    }

    /// Takes in a pod as it is observed: bound, or bound and ended. What is known already changes nothing, so that a
    /// pod may be observed any number of times.
    pub fn observe(&mut self, allocation: Allocation) {
        match &allocation.ended {
            None if self.is_known(&allocation.uid) => {}
            None => self.begin(allocation),
            Some(end) => {
                if !self.open.contains_key(&allocation.uid) {
                    let late = self.counted.saturating_sub(LATE);
                    if self.ended_uids.contains(&allocation.uid) || milliseconds(end.at) < late {
                        return;
                    }
                    self.begin(Allocation {
                        ended: None,
                        ..allocation.clone()
                    });
                }
                self.end(&allocation.uid, end.clone());
            }
        }
    }

    /// Ends the allocation of a pod that is gone, if it is open.
    pub fn observe_deletion(&mut self, uid: &PodUid, at: Timestamp) {
        self.end(
            uid,
            AllocationEnd {
                at,
                reason: "Deleted".to_owned(),
                exit_code: None,
            },
        );
    }

    /// Ends the open allocations of pods that are not among these: they were deleted while nothing watched. They end at
    /// the last count, because no later time is known at which they were held.
    pub fn keep_only(&mut self, existing: &BTreeSet<PodUid>) {
        let gone: Vec<PodUid> = (self.open.keys())
            .filter(|uid| !existing.contains(uid))
            .cloned()
            .collect();
        for uid in gone {
            self.observe_deletion(&uid, time(self.counted));
        }
    }

    fn is_known(&self, uid: &PodUid) -> bool {
        self.open.contains_key(uid) || self.ended_uids.contains(uid)
    }

    fn begin(&mut self, allocation: Allocation) {
        self.count_wait(&allocation);
        let number = self.number(OPEN);
        let open = Open {
            measured: MeasuredParts::from(milliseconds(allocation.started)),
            allocation,
            opened_at_count: self.counted,
        };
        let uid = open.allocation.uid.clone();
        self.uids.insert(number, uid.clone());
        self.open.insert(uid, (number, open));
    }

    fn count_wait(&mut self, allocation: &Allocation) {
        let queue = &allocation.owner.queue;
        let known = self.waits.contains_key(queue) || self.waits.len() < WAIT_QUEUES_MAX;
        let queue = if known { queue.clone() } else { String::new() };
        let waited = allocation.started.duration_since(allocation.submitted);
        let waits = self.waits.entry(queue);
        let waits = waits.or_insert_with(|| Histogram::new(WAITS));
        waits.observe(waited.as_secs_f64().max(0.0));
    }

    /// How long pods waited from their creation to their binding since this process started, by queue, in seconds.
    pub fn waits(&self) -> impl Iterator<Item = (&str, &Histogram)> {
        let waits = self.waits.iter();
        waits.map(|(queue, histogram)| (queue.as_str(), histogram))
    }

    fn end(&mut self, uid: &PodUid, mut end: AllocationEnd) {
        let Some((number, open)) = self.open.remove(uid) else {
            return;
        };
        self.uids.remove(&number);
        self.changed.insert(number);
        end.at = end.at.max(open.allocation.started);
        let (from, until) = (self.counted_from(&open), milliseconds(end.at));
        self.count(&open.allocation, from, until);
        for (span, active, idle) in open.measured.after(until) {
            let owner = open.allocation.owner.clone();
            self.change(SumsKey { span, owner }, |sums| {
                sums.add_activity(-active, -idle)
            });
        }
        let ended = self.number(ENDED);
        self.ended_uids.insert(uid.clone());
        let allocation = Allocation {
            ended: Some(end),
            ..open.allocation
        };
        self.ended.insert(ended, allocation);
        while self.ended.len() > ALLOCATIONS_MAX {
            if let Some((oldest, allocation)) = self.ended.pop_first() {
                self.ended_uids.remove(&allocation.uid);
                self.changed.insert(oldest);
            }
        }
    }

    /// Takes in what was measured of a pod's GPUs. A pod whose allocation is not open changes nothing, nor does time
    /// that was measured before.
    pub fn measure(&mut self, uid: &PodUid, activity: GpuActivity) {
        let Some((_, open)) = self.open.get_mut(uid) else {
            return;
        };
        let amounts = open.allocation.amounts.iter();
        let held: i64 = (amounts.filter(|(name, _)| is_whole_gpu(name)))
            .map(|(_, amount)| amount)
            .sum();
        let active = activity.active.clamp(0, held.max(0));
        let idle = activity.idle.clamp(0, (held - active).max(0));
        let (from, until) = (milliseconds(activity.from), milliseconds(activity.until));
        let owner = open.allocation.owner.clone();
        for part in open.measured.add(from, until, active, idle) {
            let (span, owner) = (part.span, owner.clone());
            self.change(SumsKey { span, owner }, |sums| {
                sums.add_activity(part.active, part.idle)
            });
        }
    }

    /// From when on the allocation is not counted yet, in milliseconds.
    fn counted_from(&self, open: &Open) -> i64 {
        if open.opened_at_count == self.counted {
            milliseconds(open.allocation.started)
        } else {
            self.counted
        }
    }

    /// Counts all open allocations until this time. An earlier time than the last count's changes nothing.
    pub fn count_until(&mut self, now: Timestamp) {
        let now = milliseconds(now);
        if now <= self.counted {
            return;
        }
        let open = std::mem::take(&mut self.open);
        for (_, one) in open.values() {
            self.count(&one.allocation, self.counted_from(one), now);
        }
        self.open = open;
        let forgets = self.counted / HOUR != now / HOUR;
        self.counted = now;
        self.changed.insert(COUNTED);
        if forgets {
            self.forget();
        }
    }

    /// Adds the interval to the sums; one that ends before it begins is taken back.
    fn count(&mut self, allocation: &Allocation, from: i64, until: i64) {
        let sign = if until < from { -1 } else { 1 };
        for (span, part) in hours_of(from.min(until), from.max(until)) {
            let key = SumsKey {
                span,
                owner: allocation.owner.clone(),
            };
            self.change(key, |sums| sums.add_held(&allocation.amounts, sign * part));
        }
    }

    fn change(&mut self, key: SumsKey, change: impl FnOnce(&mut Sums)) {
        // What belongs to an hour that is added up by day goes to the day.
        let key = if !key.span.day && self.is_old(key.span) {
            SumsKey {
                span: key.span.day(),
                ..key
            }
        } else {
            key
        };
        let (number, mut sums) = match self.sums.remove(&key) {
            Some(known) => known,
            None => (self.number(SUMS), Sums::default()),
        };
        self.changed.insert(number);
        change(&mut sums);
        if sums.is_zero() {
            self.places.remove(&number);
        } else {
            self.places.insert(number, key.clone());
            self.sums.insert(key, (number, sums));
        }
    }

    fn is_old(&self, hour: Span) -> bool {
        let hourly = i64::try_from(HOURLY_FOR.as_millis()).unwrap_or(i64::MAX);
        // The whole day at once, so that a day never has both.
        hour.day().end() <= self.counted.saturating_sub(hourly)
    }

    /// Adds up old hours by day, and drops days that are too old.
    fn forget(&mut self) {
        let first_day = self.counted / DAY - DAYS_MAX;
        let too_old = |span: Span| span.start / DAY < first_day;
        let due: Vec<SumsKey> = (self.sums.keys())
            .filter(|key| too_old(key.span) || (!key.span.day && self.is_old(key.span)))
            .cloned()
            .collect();
        for key in due {
            let Some((number, sums)) = self.sums.remove(&key) else {
                continue;
            };
            self.places.remove(&number);
            self.changed.insert(number);
            if !too_old(key.span) {
                self.change(key, |of_day| of_day.add(&sums));
            }
        }
    }

    fn number(&mut self, kind: u64) -> u64 {
        let number = kind | self.next.max(1);
        self.next = self.next.max(1) + 1;
        self.changed.insert(number);
        number
    }

    /// The records that changed since the last call. They belong in one atomic write; the caller keeps what it could
    /// not write.
    pub fn changes(&mut self) -> StoredRecords {
        let changed = std::mem::take(&mut self.changed);
        changed
            .into_iter()
            .map(|number| (number, self.record(number)))
            .collect()
    }

    fn record(&self, number: u64) -> Option<Vec<u8>> {
        let written = match number & KINDS {
            OPEN => {
                let (_, open) = self.open.get(self.uids.get(&number)?)?;
                serde_json::to_vec(open)
            }
            ENDED => serde_json::to_vec(self.ended.get(&number)?),
            SUMS => {
                let key = self.places.get(&number)?;
                let (_, sums) = self.sums.get(key)?;
                serde_json::to_vec(&SumsRecord {
                    key: key.clone(),
                    sums: sums.clone(),
                })
            }
            _ if number == COUNTED => serde_json::to_vec(&self.counted),
            _ => return None,
        };
        written.ok()
    }

    /// The time until which everything is counted.
    pub fn counted(&self) -> Timestamp {
        time(self.counted)
    }

    /// The allocations, those that are held first, and of the ended ones the latest first.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        let open = self.open.values().map(|(_, open)| &open.allocation);
        open.chain(self.ended.values().rev())
    }

    /// The sums of each owner by span: its beginning and end in milliseconds.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (Span, &Owner, &Sums)> {
        self.sums
            .iter()
            .map(|(key, (_, sums))| (key.span, &key.owner, sums))
    }
}

#[cfg(test)]
mod tests;
