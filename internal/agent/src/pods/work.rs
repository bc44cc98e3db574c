//! One pod's worker while the pod is on the node: a worker that panics is started again from the
//! pod's record on disk and from the containers that run, with a growing wait. The pods' other
//! workers are not affected.

use std::sync::Arc;
use std::time::Duration;

use rpc::agent::v1::EventNote;
use runtime::ContainerStatus;
use supervisor::{RESTART_FIRST, RESTART_HEALTHY, RESTART_LONGEST, contained};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Pods, read};
use crate::worker::{Worker, WorkerParameters};
use crate::worker_message::{MAX_WORDS, WorkerMessage};

/// The reason of the event on a pod whose worker panicked.
const WORKER_PANICKED: &str = "WorkerPanicked";

/// Works on a pod until it has left the node; `found` are the containers of an earlier worker.
pub(super) async fn keep_working(
    pods: Arc<Pods>,
    uid: String,
    start: WorkerParameters,
    found: Option<Vec<ContainerStatus>>,
) {
    let mut next = Some((start, found));
    let mut wait = RESTART_FIRST;
    while let Some((start, found)) = next {
        let began = Instant::now();
        let work = async move {
            let mut worker = Worker::new(start);
            if let Some(found) = found {
                worker.recover(&found);
            }
            worker.run().await;
        };
        let Err(panic) = contained(work).await else {
            break;
        };
        if began.elapsed() >= RESTART_HEALTHY {
            wait = RESTART_FIRST;
        }
        next = pods.begin_again(&uid, panic.message(), wait).await;
        wait = (wait * 2).min(RESTART_LONGEST);
    }
    pods.ended(&uid);
}

impl Pods {
    /// Reports the panic, and prepares the next worker after the wait; none if nothing of the pod is
    /// recorded any more.
    async fn begin_again(
        &self,
        uid: &str,
        panic: &str,
        wait: Duration,
    ) -> Option<(WorkerParameters, Option<Vec<ContainerStatus>>)> {
        // At once, so that the server's messages wait for the next worker.
        let (to_self, words) = mpsc::channel(MAX_WORDS);
        let (namespace, name, stop) = {
            let mut workers = self.workers.lock();
            let handle = workers.get_mut(uid)?;
            handle.words = to_self.clone();
            let names = (handle.namespace.clone(), handle.name.clone());
            (names.0, names.1, handle.stop.clone())
        };
        tracing::error!(
            namespace,
            pod = name,
            uid,
            panic,
            "the worker of a pod panicked; the agent starts it again in {} s",
            wait.as_secs()
        );
        self.node.outbox.event(EventNote {
            namespace,
            name,
            uid: uid.to_owned(),
            warning: true,
            reason: WORKER_PANICKED.to_owned(),
            message: format!(
                "The agent panicked while it worked on this pod and starts again in {} s: {panic}. Containers run \
                 on, and other pods are not affected. Report the panic with the pod's manifest.",
                wait.as_secs()
            ),
            field_path: String::new(),
        });
        if let Some((grace, reason)) = stop {
            // The channel is new and has room.
            let _ = to_self.try_send(WorkerMessage::Stop { grace, reason });
        }
        tokio::time::sleep(wait).await;
        let (assigned, machine) = match self.node.layout.pod(uid).load() {
            Ok(kept) => kept?,
            Err(error) => {
                tracing::error!(uid, %error, "the record of a pod whose worker panicked cannot be read; restart the agent when it can be");
                return None;
            }
        };
        let (_, pod) = read(&assigned)?;
        let engines = self.node.engines();
        let found = engines.iter().flat_map(|engine| engine.list()).collect();
        let start = WorkerParameters {
            node: self.node.clone(),
            assigned,
            pod,
            machine,
            fence: self.fence.subscribe(),
            words,
            to_self,
        };
        Some((start, Some(found)))
    }
}
