//! The policy about idle GPUs: judges the jobs whose GPUs do nothing each 15 seconds, warns their owners by events, and
//! cancels what is over a limit that cancels. No request and no pod waits for it.
//!
//! Idle time and warnings are in memory: after a restart of the server, and after a gap in what agents observe, each job
//! has its time again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use administration::cancellation::{Cancellation, by_policy, send_command};
use administration::idle_jobs::{IdleJob, IdleStage, ShownLimit};
use anyhow::Result;
use controllers::event_recorder::{EventRecorder, EventType};
use futures::stream::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference};
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::reflector::{ObjectRef, Store};
use portal::{Board, GpuHolder, JudgedIdleJobs, SharedIdleJobs, api_of};
use resources::idle_gpus::{IdleGpuLimit, IdleGpuPolicy};
use supervisor::{StatefulLoop, Stop};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use usage::PodUid;

use super::history::SharedIdleGpus;
use super::mirror::{is_ready, mirror};
use super::signals;

/// Between two judgements: agents observe GPUs as often.
const EVERY: Duration = Duration::from_secs(15);
/// The component that events name.
const COMPONENT: &str = "idle-gpu-policy";

/// The policy of a server.
pub struct IdleGpuPolicing {
    board: Board,
    idle: SharedIdleGpus,
    jobs: SharedIdleJobs,
    /// By the job's uid, the last stage of which its owner was told, and whether its limit cancelled then.
    notified: BTreeMap<String, (IdleStage, bool)>,
}

impl IdleGpuPolicing {
    /// Judges what the board shows by what was observed.
    pub fn new(board: Board, idle: SharedIdleGpus) -> IdleGpuPolicing {
        IdleGpuPolicing {
            board,
            idle,
            jobs: SharedIdleJobs::default(),
            notified: BTreeMap::new(),
        }
    }

    /// The idle jobs as last judged.
    pub fn jobs(&self) -> SharedIdleJobs {
        self.jobs.clone()
    }

    /// Judges until the stop.
    pub async fn run(self, client: Client, stop: Stop) {
        StatefulLoop::run_until_stop(
            "the policy about idle GPUs",
            self,
            &stop,
            move |policing, ended| {
                let client = client.clone();
                Box::pin(async move { policing.follow(client, ended).await })
            },
        )
        .await;
    }

    async fn follow(&mut self, client: Client, ended: watch::Receiver<bool>) {
        let (namespaces, follow_namespaces) = mirror::<Namespace>(&client, |namespace| {
            namespace.metadata.managed_fields = None;
            namespace.spec = None;
        });
        let events = EventRecorder::new(client.clone(), COMPONENT);
        let mut followed = follow_namespaces.fuse();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = std::pin::pin!(signals::requested(ended));
        loop {
            tokio::select! {
                () = &mut ended => return,
                _ = followed.next() => {}
                _ = ticks.tick(), if is_ready(&namespaces) => {
                    self.judge(&client, &events, &namespaces, Timestamp::now()).await;
                }
            }
        }
    }

    async fn judge(
        &mut self,
        client: &Client,
        events: &EventRecorder,
        namespaces: &Store<Namespace>,
        now: Timestamp,
    ) {
        let idle = self.idle_jobs(namespaces, now);
        self.notified
            .retain(|uid, _| idle.iter().any(|(holder, _)| holder.uid == *uid));
        for (holder, job) in &idle {
            let stage = job.stage(now);
            let cancels = job.limit.as_ref().is_some_and(ShownLimit::cancels);
            let notified = self.notified.get(&holder.uid).copied();
            // A policy that begins to cancel does so for jobs that were warned at their limit, too.
            if stage == IdleStage::Early
                || notified.is_some_and(|notified| notified >= (stage, cancels))
            {
                continue;
            }
            let done = match (stage, cancels) {
                (IdleStage::Over, true) => cancel(client, events, holder, job, now).await,
                _ => {
                    let warning = job.warning(now).unwrap_or_default();
                    events.note(&reference(holder), EventType::Warning, "IdleGpus", &warning);
                    Ok(())
                }
            };
            match done {
                Ok(()) => {
                    self.notified.insert(holder.uid.clone(), (stage, cancels));
                }
                Err(error) => tracing::warn!(
                    namespace = holder.namespace,
                    job = holder.name,
                    error = format!("{error:#}"),
                    "a job whose GPUs do nothing could not be cancelled; the server tries again in 15 seconds"
                ),
            }
        }
        let mut jobs: Vec<IdleJob> = idle.into_iter().map(|(_, job)| job).collect();
        jobs.sort_by(|a, b| {
            (a.since, &a.namespace, &a.name).cmp(&(b.since, &b.namespace, &b.name))
        });
        *self.jobs.lock() = Some(JudgedIdleJobs {
            at: now,
            jobs: Arc::new(jobs),
        });
    }

    /// The jobs all of whose GPUs do nothing.
    fn idle_jobs(
        &self,
        namespaces: &Store<Namespace>,
        now: Timestamp,
    ) -> Vec<(GpuHolder, IdleJob)> {
        let mut policies: BTreeMap<String, Option<IdleGpuPolicy>> = BTreeMap::new();
        let holders = self.board.gpu_holders().into_iter();
        let judged = holders.filter_map(|holder| {
            let pods = holder.pods.iter();
            let pods: Vec<(PodUid, usize)> = pods
                .map(|(uid, gpus)| (PodUid(uid.clone()), *gpus))
                .collect();
            let since = self.idle.lock().since(&pods, now)?;
            let policy = policies
                .entry(holder.namespace.clone())
                .or_insert_with(|| policy(namespaces, &holder.namespace));
            let own = holder.own_limit.as_deref();
            let limit = IdleGpuLimit::of(own, policy.as_ref(), &holder.user, &holder.name);
            let kept = holder.replaced_by.as_ref();
            let kept = kept.map(|kind| format!("a {kind} would replace it"));
            let job = IdleJob {
                namespace: holder.namespace.clone(),
                kind: holder.shown.to_owned(),
                name: holder.name.clone(),
                user: holder.user.clone(),
                queue: holder.queue.clone(),
                gpus: holder.gpus,
                since,
                limit: limit.map(|limit| ShownLimit::of(limit, since, kept.as_deref())),
            };
            Some((holder, job))
        });
        judged.collect()
    }
}

/// A namespace's policy. What cannot be read, from before there was a check, counts as none.
fn policy(namespaces: &Store<Namespace>, name: &str) -> Option<IdleGpuPolicy> {
    let namespace = namespaces.get(&ObjectRef::new(name))?;
    let annotations = namespace.metadata.annotations.as_ref()?;
    match IdleGpuPolicy::of(annotations) {
        Ok(policy) => policy,
        Err(error) => {
            tracing::debug!(namespace = name, %error, "the namespace's policy about idle GPUs is not followed");
            None
        }
    }
}

fn reference(holder: &GpuHolder) -> ObjectReference {
    ObjectReference {
        api_version: Some(holder.kind.api_version()),
        kind: Some(holder.kind.kind.to_owned()),
        namespace: Some(holder.namespace.clone()),
        name: Some(holder.name.clone()),
        uid: Some(holder.uid.clone()),
        ..ObjectReference::default()
    }
}

async fn cancel(
    client: &Client,
    events: &EventRecorder,
    holder: &GpuHolder,
    job: &IdleJob,
    now: Timestamp,
) -> Result<()> {
    let because = job.because(now).unwrap_or_default();
    let (namespace, name, uid) = (&holder.namespace, &holder.name, &holder.uid);
    let jobs = api_of(client.clone(), namespace, holder.kind);
    let done = match by_policy(holder.kind, name, uid, &because) {
        Cancellation::Patch(patch) => {
            let patch = Patch::Merge(patch);
            jobs.patch(name, &PatchParams::default(), &patch)
                .await
                .map(drop)
        }
        Cancellation::Deletion => {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    ..Preconditions::default()
                }),
                ..DeleteParams::default()
            };
            jobs.delete(name, &params).await.map(drop)
        }
        Cancellation::Command(command) => send_command(client.clone(), namespace, command).await,
    };
    match done {
        // The job ended meanwhile, or another has its name.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => return Ok(()),
        done => done?,
    }
    let message =
        format!("The job was cancelled because {because}. Resume it once its GPUs will work.");
    events.note(
        &reference(holder),
        EventType::Warning,
        "IdleGpusCancelled",
        &message,
    );
    tracing::info!(
        namespace,
        job = name,
        because,
        "the policy about idle GPUs cancelled a job"
    );
    Ok(())
}
