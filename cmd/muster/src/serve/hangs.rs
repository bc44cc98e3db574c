//! The detection of hung jobs: judges the jobs that say how long they may be quiet each 15 seconds, records a hang in the
//! job's annotation `muster.io/hung`, and says it in an event. The job's controller does what follows. No request and no
//! pod waits for it.
//!
//! The time for which pods are quiet is in memory: after a restart of the server, and after a gap in what agents observe,
//! each job has its time again. A record stays until a pod was seen to work, or the pods have changed.

use std::time::Duration;

use controllers::event_recorder::{EventRecorder, EventType};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{Patch, PatchParams};
use portal::{Board, WatchedJob, api_of};
use resources::hang::{HangRecord, HangStep, decide};
use resources::names::HUNG;
use serde_json::json;
use supervisor::{StatefulLoop, Stop};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::history::SharedQuietPods;
use super::signals;

/// Between two judgements: agents observe pods as often.
const EVERY: Duration = Duration::from_secs(15);
/// The component that events name.
const COMPONENT: &str = "hang-detection";

/// The detection of a server.
pub struct HangDetection {
    board: Board,
    quiet: SharedQuietPods,
}

impl HangDetection {
    /// Judges what the board shows by what was observed.
    pub fn new(board: Board, quiet: SharedQuietPods) -> HangDetection {
        HangDetection { board, quiet }
    }

    /// Judges until the stop.
    pub async fn run(self, client: Client, stop: Stop) {
        StatefulLoop::run_until_stop(
            "the detection of hung jobs",
            self,
            &stop,
            move |detection, ended| {
                let client = client.clone();
                Box::pin(async move { detection.follow(client, ended).await })
            },
        )
        .await;
    }

    async fn follow(&mut self, client: Client, ended: watch::Receiver<bool>) {
        let events = EventRecorder::new(client.clone(), COMPONENT);
        // The board shows all pods by then: a job whose pods it does not show yet would lose its record.
        let mut ticks = interval_at(Instant::now() + EVERY, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = std::pin::pin!(signals::requested(ended));
        loop {
            tokio::select! {
                () = &mut ended => return,
                _ = ticks.tick() => self.judge(&client, &events, Timestamp::now()).await,
            }
        }
    }

    async fn judge(&self, client: &Client, events: &EventRecorder, now: Timestamp) {
        for job in self.board.watched_jobs().unwrap_or_default() {
            let pods = job.pods.iter().map(|pod| (pod.uid.as_str(), pod.gpus));
            let quiet = self.quiet.lock().of(pods, now);
            let known = job.record.as_ref();
            let step = decide(job.policy, known, &job.pods, job.ranks, quiet, now);
            let (record, event) = match (step, known) {
                (HangStep::Keep, _) => continue,
                (HangStep::Record(record), _) => {
                    let event = (EventType::Warning, "Hung", record.sentence());
                    (Some(record), Some(event))
                }
                (HangStep::Clear { works: true }, Some(known)) => {
                    (None, Some((EventType::Normal, "HangEnded", known.ended())))
                }
                (HangStep::Clear { .. }, _) => (None, None),
            };
            match write(client, &job, record.as_ref()).await {
                Ok(true) => {
                    if let Some((type_, reason, message)) = event {
                        events.note(&reference(&job), type_, reason, &message);
                    }
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(
                    namespace = job.namespace,
                    job = job.name,
                    %error,
                    "the record of a hung job was not written; the server tries again in 15 seconds"
                ),
            }
        }
    }
}

/// Writes the record, or removes it. False if the job is gone, or another one has its name.
async fn write(
    client: &Client,
    job: &WatchedJob,
    record: Option<&HangRecord>,
) -> Result<bool, kube::Error> {
    let text = record.map(HangRecord::write);
    let patch = json!({"metadata": {"uid": job.uid, "annotations": {HUNG: text}}});
    let jobs = api_of(client.clone(), &job.namespace, job.kind);
    let written = jobs
        .patch(&job.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(false),
        Err(error) => Err(error),
    }
}

fn reference(job: &WatchedJob) -> ObjectReference {
    ObjectReference {
        api_version: Some(job.kind.api_version()),
        kind: Some(job.kind.kind.to_owned()),
        namespace: Some(job.namespace.clone()),
        name: Some(job.name.clone()),
        uid: Some(job.uid.clone()),
        ..ObjectReference::default()
    }
}
