//! The alerts with their silences and receivers: one state for the server, its pages and its commands.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body::{body, test_notice};
use crate::book::{AlertBook, FiringAlert};
use crate::conditions::Condition;
use crate::outbox::{Delivery, DeliveryRecord, NOTICES_MAX, Notice, NoticeStatus, Outbox};
use crate::receivers::{Receiver, ReceiverKind};
use crate::rule::Rule;
use crate::silence::{SILENCES_MAX, Silence, SilenceError, SilenceRequest};

/// How often Alertmanager is told again of alerts that fire: without that it ends them after five minutes.
const REPEAT: SignedDuration = SignedDuration::from_secs(60);

/// What is stored, so that a restart neither forgets nor repeats a notice.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AlertsState {
    firing: Vec<FiringAlert>,
    silences: Vec<Silence>,
    next: u64,
    outboxes: BTreeMap<String, Outbox>,
}

/// The alerts.
#[derive(Debug, Default)]
pub struct Alerts {
    book: AlertBook,
    silences: Vec<Silence>,
    /// The number of the next silence or delivery.
    next: u64,
    receivers: Vec<Receiver>,
    outboxes: BTreeMap<String, Outbox>,
    repeated: Option<Timestamp>,
    url: String,
    changed: bool,
}

/// A delivery that is to be sent now.
#[derive(Clone, Debug)]
pub struct DueDelivery {
    /// The receiver.
    pub receiver: Receiver,
    /// Its id, the same at each attempt.
    pub id: String,
    /// The document.
    pub body: Value,
}

/// A receiver and its deliveries.
#[derive(Clone, Debug, Serialize)]
pub struct ReceiverReport {
    /// Its name.
    pub name: String,
    /// How it is notified.
    pub kind: &'static str,
    /// The least severity that it gets.
    pub severity: &'static str,
    /// The rules that it gets; empty for all.
    pub rules: Vec<&'static str>,
    /// Deliveries that were dropped because too many waited.
    pub dropped: u64,
    /// The latest deliveries, the latest first.
    pub deliveries: Vec<DeliveryRecord>,
}

/// There is no receiver of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no receiver {name:?}; the receivers are {known}")]
pub struct UnknownReceiver {
    name: String,
    known: String,
}

impl Alerts {
    /// The alerts as they were saved. `url` is the console's address. Deliveries to receivers that are not named any
    /// more are given up.
    #[must_use]
    pub fn restore(state: AlertsState, receivers: Vec<Receiver>, url: String) -> Alerts {
        let mut outboxes = state.outboxes;
        outboxes.retain(|name, _| receivers.iter().any(|one| one.name == *name));
        Alerts {
            book: AlertBook::restore(state.firing),
            silences: state.silences,
            next: state.next,
            receivers,
            outboxes,
            repeated: None,
            url,
            changed: false,
        }
    }

    /// What to store, if it changed since the last call.
    pub fn take_changes(&mut self) -> Option<AlertsState> {
        std::mem::take(&mut self.changed).then(|| AlertsState {
            firing: self.book.firing().cloned().collect(),
            silences: self.silences.clone(),
            next: self.next,
            outboxes: self.outboxes.clone(),
        })
    }

    /// Says that the state could not be stored and is to be stored again.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Takes in all conditions that hold now, and queues the notices of what begins and ends.
    pub fn observe(&mut self, conditions: Vec<Condition>, now: Timestamp) {
        let before = self.silences.len();
        self.silences.retain(|silence| now < silence.until);
        self.changed |= self.silences.len() != before;
        let firing_before = self.book.firing().count();
        let ended = self.book.observe(conditions, now);
        self.changed |= !ended.is_empty() || self.book.firing().count() != firing_before;
        let silences = &self.silences;
        let begun = self
            .book
            .announce(|alert| !silences.iter().any(|one| one.covers(alert, now)));
        self.changed |= !begun.is_empty();
        let begun = begun.into_iter().map(|alert| Notice {
            status: NoticeStatus::Firing,
            alert,
            ended: None,
        });
        // An alert whose beginning was not sent has no end to send.
        let ended = ended.into_iter().filter(|alert| alert.announced);
        let ended = ended.map(|alert| Notice {
            status: NoticeStatus::Resolved,
            alert,
            ended: Some(now),
        });
        let notices: Vec<Notice> = begun.chain(ended).collect();
        self.send(&notices, now, |_| true);
        self.repeat(now);
    }

    fn send(&mut self, notices: &[Notice], now: Timestamp, chosen: impl Fn(&Receiver) -> bool) {
        for receiver in self.receivers.iter().filter(|one| chosen(one)) {
            let wanted: Vec<Notice> = notices
                .iter()
                .filter(|notice| receiver.wants(notice.alert.rule))
                .cloned()
                .collect();
            for part in wanted.chunks(NOTICES_MAX) {
                self.next += 1;
                let outbox = self.outboxes.entry(receiver.name.clone()).or_default();
                outbox.push(Delivery {
                    id: format!("muster-{}-{}", now.as_second(), self.next),
                    made: now,
                    notices: part.to_vec(),
                    test: false,
                });
            }
        }
    }

    /// Tells Alertmanager again of what fires.
    fn repeat(&mut self, now: Timestamp) {
        let due = |at: Timestamp| now.duration_since(at).abs() >= REPEAT;
        if !self.repeated.is_none_or(due) {
            return;
        }
        self.repeated = Some(now);
        let firing: Vec<Notice> = self
            .book
            .firing()
            .filter(|alert| alert.announced)
            .map(|alert| Notice {
                status: NoticeStatus::Firing,
                alert: alert.clone(),
                ended: None,
            })
            .collect();
        if firing.is_empty() {
            return;
        }
        let idle: Vec<String> = self
            .receivers
            .iter()
            .filter(|one| one.kind == ReceiverKind::Alertmanager)
            .filter(|one| self.outboxes.get(&one.name).is_none_or(Outbox::is_empty))
            .map(|one| one.name.clone())
            .collect();
        self.send(&firing, now, |one| idle.contains(&one.name));
    }

    /// The alerts that fire, each with whether a silence covers it.
    pub fn firing(&self, now: Timestamp) -> impl Iterator<Item = (&FiringAlert, bool)> {
        self.book.firing().map(move |alert| {
            let silenced = self.silences.iter().any(|one| one.covers(alert, now));
            (alert, silenced)
        })
    }

    /// The silences that have not ended.
    pub fn silences(&self, now: Timestamp) -> impl Iterator<Item = &Silence> {
        self.silences.iter().filter(move |one| now < one.until)
    }

    /// Adds a silence.
    ///
    /// # Errors
    /// A field is invalid, or there are too many.
    pub fn silence(
        &mut self,
        request: &SilenceRequest,
        by: &str,
        now: Timestamp,
    ) -> Result<Silence, SilenceError> {
        if self.silences(now).count() >= SILENCES_MAX {
            return Err(SilenceError::TooMany);
        }
        let silence = Silence::new(self.next + 1, request, by, now)?;
        self.next += 1;
        self.silences.push(silence.clone());
        self.changed = true;
        Ok(silence)
    }

    /// Ends a silence; false if there is none of this number.
    pub fn end_silence(&mut self, id: u64) -> bool {
        let before = self.silences.len();
        self.silences.retain(|one| one.id != id);
        let found = self.silences.len() != before;
        self.changed |= found;
        found
    }

    /// The receivers and their latest deliveries.
    #[must_use]
    pub fn receivers(&self, now: Timestamp) -> Vec<ReceiverReport> {
        let report = |receiver: &Receiver| {
            let outbox = self.outboxes.get(&receiver.name);
            let all = receiver.rules.len() == Rule::ALL.len();
            let rules = receiver.rules.iter().filter(|_| !all);
            ReceiverReport {
                name: receiver.name.clone(),
                kind: receiver.kind.name(),
                severity: receiver.severity.name(),
                rules: rules.map(|rule| rule.name()).collect(),
                dropped: outbox.map_or(0, Outbox::dropped),
                deliveries: outbox.map_or_else(Vec::new, |outbox| outbox.records(now)),
            }
        };
        self.receivers.iter().map(report).collect()
    }

    /// Queues a test for a receiver. Returns the delivery's id.
    ///
    /// # Errors
    /// There is no such receiver.
    pub fn test(&mut self, name: &str, now: Timestamp) -> Result<String, UnknownReceiver> {
        if !self.receivers.iter().any(|one| one.name == name) {
            let names: Vec<&str> = self.receivers.iter().map(|one| one.name.as_str()).collect();
            return Err(UnknownReceiver {
                name: name.to_owned(),
                known: match names.is_empty() {
                    true => "none; name them in the file of --alert-receivers".to_owned(),
                    false => names.join(", "),
                },
            });
        }
        self.next += 1;
        let id = format!("muster-{}-{}", now.as_second(), self.next);
        let outbox = self.outboxes.entry(name.to_owned()).or_default();
        outbox.push(Delivery {
            id: id.clone(),
            made: now,
            notices: vec![test_notice(now)],
            test: true,
        });
        self.changed = true;
        Ok(id)
    }

    /// The deliveries to send now: at most one for each receiver. The result of each must be reported to
    /// [`Alerts::settle`].
    pub fn take_due(&mut self, now: Timestamp) -> Vec<DueDelivery> {
        let mut due = Vec::new();
        for receiver in &self.receivers {
            let Some(outbox) = self.outboxes.get_mut(&receiver.name) else {
                continue;
            };
            if let Some(delivery) = outbox.take_due(now) {
                due.push(DueDelivery {
                    receiver: receiver.clone(),
                    id: delivery.id.clone(),
                    body: body(receiver.kind, &receiver.name, &delivery.notices, &self.url),
                });
            }
        }
        due
    }

    /// Takes in how a delivery went.
    pub fn settle(&mut self, receiver: &str, result: Result<(), String>, now: Timestamp) {
        if let Some(outbox) = self.outboxes.get_mut(receiver) {
            outbox.settle(result, now);
            self.changed = true;
        }
    }
}

#[cfg(test)]
#[path = "alerts_tests.rs"]
mod tests;
