//! The book over time: counts, late ends, restarts, crashes, and what is dropped.

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;
use crate::allocation::tests::allocation;
use crate::sums::GpuTime;

fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-11-26T10:59:00Z".parse().unwrap();
    start + SignedDuration::from_secs(seconds)
}

fn begun(pod: &str, seconds: i64) -> Allocation {
    allocation(pod, "ann", &at(seconds).to_string())
}

fn over(pod: &str, from: i64, until: i64) -> Allocation {
    Allocation {
        ended: Some(AllocationEnd {
            at: at(until),
            reason: "Succeeded".to_owned(),
            exit_code: Some(0),
        }),
        ..begun(pod, from)
    }
}

/// Seconds of GPUs in all sums.
fn gpu_seconds(book: &UsageBook) -> f64 {
    let hours = book.sums().map(|(_, _, sums)| sums.hours());
    let gpus = hours.map(|hours| hours.get("nvidia.com/gpu").copied().unwrap_or(0.0));
    (gpus.sum::<f64>() * 3600.0).round()
}

/// What another server would read.
fn stored(records: &mut BTreeMap<u64, Vec<u8>>, book: &mut UsageBook) -> UsageBook {
    for (number, record) in book.changes() {
        match record {
            Some(record) => records.insert(number, record),
            None => records.remove(&number),
        };
    }
    let (book, unread) = UsageBook::restore(records.clone().into_iter().collect());
    assert_eq!(unread, 0);
    book
}

#[test]
fn an_allocation_counts_from_its_binding_to_its_end_once() {
    let mut book = UsageBook::default();
    book.observe(begun("a", 0));
    book.count_until(at(30));
    book.observe(begun("a", 0));
    book.count_until(at(100));
    assert_eq!(gpu_seconds(&book), 200.0);
    // The end becomes known after the count.
    book.observe(over("a", 0, 90));
    assert_eq!(gpu_seconds(&book), 180.0);
    book.observe(over("a", 0, 90));
    book.observe_deletion(&begun("a", 0).uid, at(95));
    book.count_until(at(500));
    assert_eq!(gpu_seconds(&book), 180.0);
    assert_eq!(book.allocations().count(), 1);
}

#[test]
fn a_pod_that_is_seen_only_after_its_end_counts_unless_an_earlier_server_wrote_it_down() {
    let mut book = UsageBook::default();
    book.count_until(at(100));
    book.observe(over("late", 80, 95));
    assert_eq!(gpu_seconds(&book), 30.0);
    // It ended long before the last count: it was counted, and its record is among those that are dropped.
    book.observe(over("old", -200, -100));
    assert_eq!(gpu_seconds(&book), 30.0);
}

#[test]
fn pods_deleted_while_no_server_ran_end_at_the_last_count() {
    let (mut records, mut book) = (BTreeMap::new(), UsageBook::default());
    book.observe(begun("a", 0));
    book.observe(begun("b", 0));
    book.count_until(at(60));
    let mut book = stored(&mut records, &mut book);
    book.observe(begun("b", 0));
    book.keep_only(&BTreeSet::from([begun("b", 0).uid]));
    book.count_until(at(100));
    assert_eq!(gpu_seconds(&book), 120.0 + 200.0);
    let ended: Vec<&Allocation> = book
        .allocations()
        .filter(|one| one.ended.is_some())
        .collect();
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].ended.as_ref().unwrap().at, at(60));
}

#[test]
fn hours_are_added_up_by_day_after_35_days_and_days_are_dropped_after_three_years() {
    let (mut records, mut book) = (BTreeMap::new(), UsageBook::default());
    book.observe(over("a", 0, 7200));
    book.count_until(at(7300));
    assert_eq!(book.sums().count(), 3);
    let day = 24 * 3600;
    book.count_until(at(34 * day));
    assert_eq!(book.sums().filter(|(span, ..)| span.day).count(), 0);
    book.count_until(at(37 * day));
    let spans: Vec<bool> = book.sums().map(|(span, ..)| span.day).collect();
    assert_eq!(spans, [true]);
    assert_eq!(gpu_seconds(&book), 14_400.0);
    let mut book = stored(&mut records, &mut book);
    assert_eq!(gpu_seconds(&book), 14_400.0);
    book.count_until(at((DAYS_MAX + 2) * day));
    assert_eq!(book.sums().count(), 0);
    // The allocation itself and the time of the count are left.
    stored(&mut records, &mut book);
    assert_eq!(records.len(), 2);
}

#[test]
fn the_oldest_ended_allocations_are_dropped_and_their_sums_stay() {
    let (mut records, mut book) = (BTreeMap::new(), UsageBook::default());
    let many = ALLOCATIONS_MAX + 10;
    for number in 0..many {
        book.observe(over(&format!("p{number}"), 0, 1));
    }
    assert_eq!(book.allocations().count(), ALLOCATIONS_MAX);
    assert_eq!(gpu_seconds(&book), 2.0 * many as f64);
    stored(&mut records, &mut book);
    assert!(records.len() <= ALLOCATIONS_MAX + 2);
}

#[test]
fn records_that_cannot_be_read_are_dropped() {
    let records = vec![
        (COUNTED, b"x".to_vec()),
        (OPEN | 7, b"{}".to_vec()),
        (9, vec![]),
    ];
    let (mut book, unread) = UsageBook::restore(records);
    assert_eq!(unread, 3);
    let deleted: Vec<u64> = (book.changes().into_iter())
        .filter(|(_, record)| record.is_none())
        .map(|(number, _)| number)
        .collect();
    assert_eq!(deleted, [9, OPEN | 7]);
}

#[derive(Clone, Debug)]
enum Step {
    /// The pod is observed, open or with its end.
    Observe(usize),
    Count,
    /// The changes are stored, and another server goes on.
    Restart,
    /// The server ends without storing its last changes; another one observes all pods again.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<(i64, Step)>> {
    let step = prop_oneof![
        4 => (0..5_usize).prop_map(Step::Observe),
        2 => Just(Step::Count),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec((0..2000_i64, step), 1..40)
}

proptest! {
    /// However observations, counts, restarts and crashes follow each other: in the end each pod's time is counted once.
    #[test]
    fn every_second_is_counted_once(
        pods in prop::collection::vec((0..20_000_i64, 0..20_000_i64), 5),
        steps in steps(),
    ) {
        let (mut records, mut book) = (BTreeMap::new(), UsageBook::default());
        let see = |book: &mut UsageBook, index: usize, now: i64| {
            let (from, length) = pods[index];
            let name = format!("p{index}");
            if now >= from + length {
                book.observe(over(&name, from, from + length));
            } else if now >= from {
                book.observe(begun(&name, from));
            }
        };
        let mut now = 0;
        for (wait, step) in steps {
            now += wait;
            match step {
                Step::Observe(index) => see(&mut book, index, now),
                Step::Count => {
                    // The shell observes a change within moments, long before the next count.
                    (0..5).for_each(|index| see(&mut book, index, now));
                    book.count_until(at(now));
                }
                Step::Restart => book = stored(&mut records, &mut book),
                Step::Crash => {
                    book = UsageBook::restore(records.clone().into_iter().collect()).0;
                    (0..5).for_each(|index| see(&mut book, index, now));
                }
            }
        }
        (0..5).for_each(|index| see(&mut book, index, 50_000));
        book.count_until(at(50_000));
        let expected: i64 = pods.iter().map(|(_, length)| 2 * length).sum();
        prop_assert_eq!(gpu_seconds(&book), expected as f64);
    }
}

/// The time of GPUs in all sums; each sum alone keeps its bound.
fn gpu_time(book: &UsageBook) -> GpuTime {
    let times = book.sums().map(|(_, _, sums)| sums.gpu_time());
    times.fold(GpuTime::default(), |sum, one| {
        assert!(
            one.active >= 0 && one.idle >= 0 && one.unmeasured() >= 0,
            "{one:?}"
        );
        assert_eq!(one.active + one.idle + one.unmeasured(), one.allocated);
        sum.plus(one)
    })
}

fn seen(from: i64, until: i64, active: i64, idle: i64) -> GpuActivity {
    GpuActivity {
        from: at(from),
        until: at(until),
        active,
        idle,
    }
}

#[test]
fn measured_time_is_counted_once_within_the_allocation_and_taken_back_with_a_late_end() {
    let mut book = UsageBook::default();
    let pod = begun("a", 0);
    book.observe(pod.clone());
    // Before its start, twice the same, more GPUs than it holds.
    book.measure(&pod.uid, seen(-10, 5, 1, 1));
    book.measure(&pod.uid, seen(0, 5, 1, 1));
    book.measure(&pod.uid, seen(5, 20, 0, 9));
    book.measure(&PodUid("other".to_owned()), seen(0, 50, 2, 0));
    book.count_until(at(30));
    let time = gpu_time(&book);
    assert_eq!(
        (time.allocated, time.active, time.idle),
        (60_000, 5_000, 35_000)
    );
    book.measure(&pod.uid, seen(20, 80, 2, 0));
    book.count_until(at(90));
    // It ended in the middle of the last part, across the hour.
    book.observe(over("a", 0, 50));
    let time = gpu_time(&book);
    assert_eq!(
        (time.allocated, time.active, time.idle),
        (100_000, 65_000, 35_000)
    );
    book.measure(&pod.uid, seen(80, 95, 2, 0));
    assert_eq!(gpu_time(&book), time);
}

proptest! {
    /// Active, idle and unmeasured time add up to what was allocated, whatever order observations, counts, ends and
    /// crashes come in; and no more is measured than observations said.
    #[test]
    fn active_idle_and_unmeasured_add_up_to_what_was_allocated(
        steps in proptest::collection::vec((0u8..6, 0i64..400, 0i64..4, 0i64..4), 1..80),
    ) {
        let (mut records, mut book) = (BTreeMap::new(), UsageBook::default());
        let (mut now, mut number, mut last) = (0, 0, 0);
        let mut said = 0;
        for (step, length, active, idle) in steps {
            now += length / 8;
            let pod = begun(&number.to_string(), last);
            match step {
                0 => {
                    (number, last) = (number + 1, now);
                    book.observe(begun(&number.to_string(), now));
                }
                1 | 2 => {
                    let from = now - length / 4;
                    book.measure(&pod.uid, seen(from, now, active, idle));
                    said += (length / 4) * 1000 * 2;
                }
                3 => book.count_until(at(now)),
                4 => book.observe(over(&number.to_string(), last, (now - length).max(last))),
                _ => {
                    book.count_until(at(now));
                    book = stored(&mut records, &mut book);
                }
            }
            book.count_until(at(now));
            let time = gpu_time(&book);
            prop_assert!(time.active + time.idle <= said);
            let hours = time.hours();
            let sum = hours.active + hours.idle + hours.unmeasured;
            prop_assert!((sum - hours.allocated).abs() < 1e-9);
        }
    }
}
