//! What waits to be delivered to one receiver, and what was delivered.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::book::FiringAlert;

/// The most deliveries that wait for one receiver. When another comes, the oldest one is dropped.
pub const QUEUE_MAX: usize = 1_000;
/// The most deliveries that are remembered for one receiver.
pub const HISTORY_MAX: usize = 100;
/// The most notices in one delivery.
pub(crate) const NOTICES_MAX: usize = 100;
/// The pause after the first failure; it doubles.
pub const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(5);
/// The longest pause.
pub const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// After so long a delivery is given up.
pub const GIVE_UP: SignedDuration = SignedDuration::from_hours(24);
/// The most characters of a failure that are remembered.
const FAILURE_MAX: usize = 300;

/// Whether an alert begins or has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeStatus {
    /// It fires.
    Firing,
    /// It has ended.
    Resolved,
}

/// A notice of one alert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Whether it fires.
    pub status: NoticeStatus,
    /// The alert.
    pub alert: FiringAlert,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// What is sent at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Delivery {
    pub(crate) id: String,
    pub(crate) made: Timestamp,
    pub(crate) notices: Vec<Notice>,
    pub(crate) test: bool,
}

/// The outcome of a delivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    /// The delivery's id, which a webhook gets as `webhook-id`.
    pub id: String,
    /// When it was made.
    pub made: Timestamp,
    /// When the last attempt ended.
    pub at: Timestamp,
    /// How many attempts there were.
    pub attempts: u32,
    /// The alerts in it, such as `NodeLost gpu7 firing`.
    pub alerts: Vec<String>,
    /// Why it failed; empty if the receiver took it.
    pub failure: String,
    /// True if it is tried again.
    pub waits: bool,
}

impl DeliveryRecord {
    /// How it went, in words; empty before the first attempt.
    #[must_use]
    pub fn outcome(&self) -> String {
        match (self.attempts, self.failure.as_str(), self.waits) {
            (0, _, _) => String::new(),
            (_, "", _) => "taken".to_owned(),
            (_, failure, true) => format!("{failure}; the server tries again"),
            (_, failure, false) => format!("given up: {failure}"),
        }
    }
}

/// The deliveries of one receiver. They go out one at a time, in order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outbox {
    queue: VecDeque<Delivery>,
    #[serde(default)]
    history: VecDeque<DeliveryRecord>,
    #[serde(default)]
    dropped: u64,
    #[serde(skip)]
    attempts: u32,
    #[serde(skip)]
    not_before: Option<Timestamp>,
    #[serde(skip)]
    failure: String,
    #[serde(skip)]
    in_flight: bool,
}

impl Outbox {
    pub(crate) fn push(&mut self, delivery: Delivery) {
        // The one in flight stays, because its result is still to come.
        let oldest = usize::from(self.in_flight);
        if self.queue.len() >= QUEUE_MAX && self.queue.remove(oldest).is_some() {
            self.dropped += 1;
        }
        self.queue.push_back(delivery);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The delivery to send now, which counts as in flight from then on.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<&Delivery> {
        if self.in_flight || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        let first = self.queue.front()?;
        self.in_flight = true;
        Some(first)
    }

    /// Takes in how the delivery in flight went.
    pub(crate) fn settle(&mut self, result: Result<(), String>, now: Timestamp) {
        if !std::mem::take(&mut self.in_flight) {
            return;
        }
        self.attempts += 1;
        let Some(first) = self.queue.front() else {
            return;
        };
        let given_up = now.duration_since(first.made) >= GIVE_UP;
        let (failure, done) = match result {
            Ok(()) => (String::new(), true),
            Err(why) => (
                why.chars().take(FAILURE_MAX).collect(),
                given_up || first.test,
            ),
        };
        self.failure.clone_from(&failure);
        if !done {
            let doublings = self.attempts.saturating_sub(1).min(16);
            let pause = FIRST_PAUSE
                .saturating_mul(1 << doublings)
                .min(LONGEST_PAUSE);
            self.not_before = now.checked_add(pause).ok();
            return;
        }
        let record = record(first, self.attempts, now, failure, false);
        self.queue.pop_front();
        self.history.push_back(record);
        while self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
        (self.attempts, self.not_before) = (0, None);
    }

    /// The deliveries, the latest first: those that wait, then those that are done.
    pub(crate) fn records(&self, now: Timestamp) -> Vec<DeliveryRecord> {
        let first = self.queue.front().map(|first| {
            let failure = self.failure.clone();
            record(first, self.attempts, now, failure, true)
        });
        let rest = self.queue.iter().skip(1);
        let rest = rest.map(|one| record(one, 0, now, String::new(), true));
        let mut waiting: Vec<DeliveryRecord> = first.into_iter().chain(rest).collect();
        waiting.reverse();
        waiting.truncate(HISTORY_MAX);
        waiting.extend(self.history.iter().rev().cloned());
        waiting
    }
}

fn record(
    delivery: &Delivery,
    attempts: u32,
    at: Timestamp,
    failure: String,
    waits: bool,
) -> DeliveryRecord {
    let words = |notice: &Notice| {
        let status = match notice.status {
            NoticeStatus::Firing => "firing",
            NoticeStatus::Resolved => "resolved",
        };
        format!(
            "{} {} {status}",
            notice.alert.rule, notice.alert.subject.name
        )
    };
    DeliveryRecord {
        id: delivery.id.clone(),
        made: delivery.made,
        at,
        attempts,
        alerts: match delivery.test {
            true => vec!["test".to_owned()],
            false => delivery.notices.iter().map(words).collect(),
        },
        failure,
        waits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn delivery(id: &str, made: i64, test: bool) -> Delivery {
        Delivery {
            id: id.to_owned(),
            made: at(made),
            notices: vec![],
            test,
        }
    }

    #[test]
    fn a_failed_delivery_is_tried_again_after_growing_pauses_and_keeps_its_place() {
        let mut outbox = Outbox::default();
        outbox.push(delivery("a", 0, false));
        outbox.push(delivery("b", 0, false));
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..10 {
            assert_eq!(outbox.take_due(at(now)).unwrap().id, "a");
            assert!(outbox.take_due(at(now)).is_none(), "it is in flight");
            outbox.settle(Err("refused".to_owned()), at(now));
            let begin = now;
            while outbox.not_before.is_some_and(|until| at(now) < until) {
                assert!(outbox.take_due(at(now)).is_none());
                now += 1;
            }
            waits.push(now - begin);
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]);
        assert_eq!(outbox.take_due(at(now)).unwrap().id, "a");
        outbox.settle(Ok(()), at(now));
        assert_eq!(outbox.take_due(at(now)).unwrap().id, "b");
        outbox.settle(Err("no answer".to_owned()), at(86_400));
        assert!(outbox.is_empty(), "it was given up after a day");
        let records = outbox.records(at(86_400));
        let shown: Vec<_> = records
            .iter()
            .map(|one| (one.id.as_str(), one.attempts, one.failure.as_str()))
            .collect();
        assert_eq!(shown, [("b", 1, "no answer"), ("a", 11, "")]);
    }

    #[test]
    fn a_test_is_tried_once_and_the_queue_and_the_history_are_bounded() {
        let mut outbox = Outbox::default();
        outbox.push(delivery("t", 0, true));
        outbox.take_due(at(0)).unwrap();
        outbox.settle(Err("refused".to_owned()), at(1));
        assert!(outbox.is_empty());
        for n in 0..QUEUE_MAX + 5 {
            outbox.push(delivery(&n.to_string(), 0, false));
        }
        assert_eq!((outbox.queue.len(), outbox.dropped()), (QUEUE_MAX, 5));
        // The one in flight is not dropped.
        assert_eq!(outbox.take_due(at(0)).unwrap().id, "5");
        outbox.push(delivery("last", 0, false));
        outbox.settle(Ok(()), at(0));
        assert_eq!(outbox.take_due(at(0)).unwrap().id, "7");
        for _ in 0..500 {
            outbox.settle(Ok(()), at(0));
            outbox.take_due(at(0));
        }
        assert_eq!(outbox.history.len(), HISTORY_MAX);
    }
}
