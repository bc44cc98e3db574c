//! The outcomes of the loop's writes and waits: reports each one by events, and reverts the
//! decision where the API refused it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use scheduler::{GroupRef, PodRef, Repartition};
use tokio::time::Instant;

use super::{FinishedWrite, Loop, POD_WORDS_EVERY, QUEUES_EVERY};
use crate::event_recorder::EventType;
use crate::scheduling::binder::{BindingOutcome, BindingRefused};
use crate::scheduling::claims::Settled;
use crate::scheduling::evictor::Evicted;
use crate::scheduling::mig_repartitioner::{self, RepartitionOutcome};
use crate::scheduling::statuses::{self, about_group, about_pod};

/// How long a node is left alone after its MIG label could not be written.
const REPARTITION_REST: SignedDuration = SignedDuration::from_secs(60);
/// The wait before a failed status write is retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Loop {
    pub(super) fn bound(&mut self, (outcome, notifies): (BindingOutcome, bool)) {
        let BindingOutcome { bind, refused } = outcome;
        self.board.tally().bound(refused.is_some());
        let about = about_pod(&bind.pod);
        let Some(refused) = refused else {
            self.rests.forget(&bind.group);
            if !notifies {
                return;
            }
            let (namespace, name) = (&bind.pod.namespace, &bind.pod.name);
            let message = format!("Successfully assigned {namespace}/{name} to {}", bind.node);
            self.notes
                .note(&about, EventType::Normal, "Scheduled", &message);
            return;
        };
        let BindingRefused { why: reason, found } = refused;
        tracing::warn!(pod = %bind.pod.name, namespace = %bind.pod.namespace, node = %bind.node, reason, "the API refused a binding");
        let message = format!("binding to node {} was refused: {reason}", bind.node);
        self.notes
            .note(&about, EventType::Warning, "FailedScheduling", &message);
        self.board
            .refused(&bind.group, &bind.pod.name, &bind.node, &message);
        let until = self.rest(&bind.group);
        let mut planner = self.planner.lock();
        planner.bind_failed(&bind.pod, &bind.group, until, found);
        drop(planner);
        self.plan_by(Instant::now() + self.gathers());
    }

    /// A gang's volumes are all bound, or cannot be.
    pub(super) fn settled(&mut self, gang: Settled, now: Instant) {
        let Settled {
            group,
            binds,
            update,
            refused,
        } = gang;
        let Some(error) = refused else {
            // Their nodes may have changed while they waited.
            let nodes = binds.iter().map(|(bind, _)| bind.node.clone());
            self.touched.extend(nodes);
            self.binds.extend(binds);
            if let Some(update) = update {
                self.groups.put(group, update, now, statuses::is_news);
            }
            return;
        };
        tracing::warn!(namespace = %group.namespace, name = %group.name, error, "the volumes of a gang could not be bound");
        let message = format!("binding volumes: {error}");
        let until = self.rest(&group);
        let mut planner = self.planner.lock();
        for (bind, _) in &binds {
            let about = about_pod(&bind.pod);
            self.notes
                .note(&about, EventType::Warning, "FailedScheduling", &message);
            planner.bind_failed(&bind.pod, &group, until, None);
        }
        planner.volumes_failed(&group, until, &error);
        drop(planner);
        if let Some((bind, _)) = binds.first() {
            self.board
                .refused(&group, &bind.pod.name, &bind.node, &message);
        }
        self.plan_by(Instant::now() + self.gathers());
    }

    /// Until when a gang backs off after a failure.
    fn rest(&mut self, group: &GroupRef) -> Timestamp {
        self.rests.after_failure(group, Timestamp::now())
    }

    pub(super) fn evicted(&mut self, evicted: Evicted) {
        let Evicted { eviction, refused } = evicted;
        self.board.tally().evicted(refused.is_some());
        let about = about_pod(&eviction.pod);
        let Some(error) = refused else {
            self.notes.note(
                &about,
                EventType::Normal,
                eviction.why.as_str(),
                &eviction.message,
            );
            return;
        };
        let (pod, namespace) = (&eviction.pod.name, &eviction.pod.namespace);
        tracing::warn!(%pod, %namespace, error, "the API refused an eviction");
        let message = format!("the eviction ({}) was refused: {error}", eviction.message);
        self.notes
            .note(&about, EventType::Warning, "FailedEviction", &message);
        self.board
            .refused(&eviction.group, pod, &eviction.node, &message);
        let until = match &eviction.by {
            Some(by) => self.rest(by),
            None => Timestamp::now(),
        };
        self.planner.lock().eviction_failed(&eviction, until);
        self.plan_by(Instant::now() + self.gathers());
    }

    /// A node's MIG label was written, or could not be.
    fn repartition(&mut self, outcome: RepartitionOutcome) {
        let RepartitionOutcome {
            repartition,
            refused,
        } = outcome;
        let Repartition {
            node,
            choice,
            group,
            uid,
            ..
        } = repartition;
        let node_itself = mig_repartitioner::about_node(&node);
        if let Some(error) = refused {
            tracing::warn!(
                node,
                error,
                "the server could not write a node's MIG configuration"
            );
            let message = format!(
                "{}, but the server could not write the node's label: {error}",
                choice.why
            );
            (self.notes).note(&node_itself, EventType::Warning, "MigNotChosen", &message);
            let until = Timestamp::now() + REPARTITION_REST;
            self.planner
                .lock()
                .scheduler()
                .forget_repartition(&node, until);
            self.plan_by(Instant::now() + self.gathers());
            return;
        }
        tracing::info!(
            node,
            configuration = choice.configuration,
            "the node's agent repartitions the GPUs: {}",
            choice.why
        );
        let about = if group.lone {
            about_pod(&PodRef {
                namespace: group.namespace,
                name: group.name,
                uid,
            })
        } else {
            about_group(&group, &uid)
        };
        for about in [node_itself, about] {
            (self.notes).note(&about, EventType::Normal, "MigChosen", &choice.why);
        }
    }

    pub(super) fn written(&mut self, written: FinishedWrite) {
        match written {
            FinishedWrite::Group(group, result) => {
                self.groups.finish(&group);
                if let Err(error) = result {
                    tracing::warn!(%error, name = %group.name, namespace = %group.namespace, "the scheduler could not write a PodGroup's status; it tries again");
                    self.planner.lock().status_failed(&group);
                    self.plan_by(Instant::now() + RETRY_AFTER);
                }
            }
            FinishedWrite::Pod(key, result) => {
                self.pods.finish(&key);
                if let Err(error) = result {
                    tracing::debug!(%error, pod = %key.1, "the scheduler could not write a pod's condition; it tries again");
                    self.pods.again(&key, Instant::now() + POD_WORDS_EVERY);
                }
            }
            FinishedWrite::Repartition(outcome) => self.repartition(*outcome),
            FinishedWrite::Queue(name, result) => {
                if let Err(error) = result {
                    tracing::warn!(%error, queue = %name, "the scheduler could not write a queue's status; it tries again");
                    self.queues.report_failed(&name);
                    self.queues_due = Some(Instant::now() + QUEUES_EVERY);
                }
            }
        }
    }
}
