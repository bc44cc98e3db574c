//! What came of what the loop wrote, or waited for: said where people look, and taken back where it
//! was refused.

use std::time::Duration;

use jiff::Timestamp;
use scheduler::GroupRef;
use tokio::time::Instant;

use super::{Loop, QUEUES_EVERY, Written};
use crate::notes::Kind;
use crate::scheduling::binder::Outcome;
use crate::scheduling::claims::Settled;
use crate::scheduling::evictor::Evicted;
use crate::scheduling::statuses::{self, about_pod};

/// How long a gang rests after a binding failed; doubles with each failure in a row.
const REST_FIRST: Duration = Duration::from_secs(1);
/// The longest such rest.
const REST_MAX: Duration = Duration::from_secs(60);
/// How long a failed status write is left before it is said again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Loop {
    pub(super) fn bound(&mut self, outcome: Outcome) {
        let Outcome {
            bind,
            told,
            refused,
        } = outcome;
        self.board.tally().bound(refused.is_some());
        let about = about_pod(&bind.pod);
        let Some(said) = refused else {
            self.failures.remove(&bind.group);
            if !told {
                return;
            }
            let (namespace, name) = (&bind.pod.namespace, &bind.pod.name);
            let message = format!("Successfully assigned {namespace}/{name} to {}", bind.node);
            self.notes.note(&about, Kind::Normal, "Scheduled", &message);
            return;
        };
        tracing::warn!(pod = %bind.pod.name, namespace = %bind.pod.namespace, node = %bind.node, said, "a binding was refused");
        let message = format!("binding to node {} was refused: {said}", bind.node);
        self.notes
            .note(&about, Kind::Warning, "FailedScheduling", &message);
        self.board
            .refused(&bind.group, &bind.pod.name, &bind.node, &message);
        let until = self.rest(&bind.group);
        self.brain.lock().bind_failed(&bind.pod, &bind.group, until);
        self.plan_by(Instant::now() + self.gather);
    }

    /// A gang's volumes are all bound, or can't be.
    pub(super) fn settled(&mut self, gang: Settled, now: Instant) {
        let Settled {
            group,
            binds,
            update,
            refused,
        } = gang;
        let Some(said) = refused else {
            self.binds.extend(binds);
            if let Some(update) = update {
                self.groups.put(group, update, now, statuses::is_news);
            }
            return;
        };
        tracing::warn!(namespace = %group.namespace, name = %group.name, said, "a gang's volumes could not be bound");
        let message = format!("binding volumes: {said}");
        let until = self.rest(&group);
        let mut brain = self.brain.lock();
        for (bind, _) in &binds {
            let about = about_pod(&bind.pod);
            self.notes
                .note(&about, Kind::Warning, "FailedScheduling", &message);
            brain.bind_failed(&bind.pod, &group, until);
        }
        brain.volumes_failed(&group, until, &said);
        drop(brain);
        if let Some((bind, _)) = binds.first() {
            self.board
                .refused(&group, &bind.pod.name, &bind.node, &message);
        }
        self.plan_by(Instant::now() + self.gather);
    }

    /// Until when a gang rests for which something failed.
    fn rest(&mut self, group: &GroupRef) -> Timestamp {
        let failures = self.failures.entry(group.clone()).or_insert(0);
        let rest = REST_FIRST
            .saturating_mul(1 << (*failures).min(16))
            .min(REST_MAX);
        *failures = failures.saturating_add(1);
        Timestamp::now()
            .checked_add(jiff::SignedDuration::try_from(rest).unwrap_or_default())
            .unwrap_or(Timestamp::MAX)
    }

    pub(super) fn evicted(&mut self, evicted: Evicted) {
        let Evicted { eviction, refused } = evicted;
        self.board.tally().evicted(refused.is_some());
        let about = about_pod(&eviction.pod);
        let Some(said) = refused else {
            self.notes.note(
                &about,
                Kind::Normal,
                eviction.why.as_str(),
                &eviction.message,
            );
            return;
        };
        let (pod, namespace) = (&eviction.pod.name, &eviction.pod.namespace);
        tracing::warn!(%pod, %namespace, said, "an eviction was refused");
        let message = format!("the eviction ({}) was refused: {said}", eviction.message);
        self.notes
            .note(&about, Kind::Warning, "FailedEviction", &message);
        self.board
            .refused(&eviction.group, pod, &eviction.node, &message);
        let until = match &eviction.by {
            Some(by) => self.rest(by),
            None => Timestamp::now(),
        };
        self.brain.lock().eviction_failed(&eviction, until);
        self.plan_by(Instant::now() + self.gather);
    }

    pub(super) fn written(&mut self, written: Written) {
        match written {
            Written::Group(group, result) => {
                self.groups.finish(&group);
                if let Err(error) = result {
                    tracing::warn!(%error, name = %group.name, namespace = %group.namespace, "a PodGroup's status could not be written and is tried again");
                    self.brain.lock().status_failed(&group);
                    self.plan_by(Instant::now() + RETRY_AFTER);
                }
            }
            Written::Pod(key, result) => {
                self.pods.finish(&key);
                if let Err(error) = result {
                    // Said again when the reason changes: the report and the gang's condition have it.
                    tracing::debug!(%error, pod = %key.1, "a pod's condition could not be written");
                }
            }
            Written::Queue(name, result) => {
                if let Err(error) = result {
                    tracing::warn!(%error, queue = %name, "a queue's status could not be written and is tried again");
                    self.queues.unsay(&name);
                    self.queues_due = Some(Instant::now() + QUEUES_EVERY);
                }
            }
        }
    }
}
