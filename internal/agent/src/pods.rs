//! The node's pods: one worker each, found by uid. Routes the server's messages and the runtime's
//! events to the right worker, and delays new pods while others must still end.

mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use devices::holders::DeviceHolder;
use devices::share::share_of;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use resources::devices::{ChosenDevices, chosen};
use resources::parts::SharedPart;
use rpc::agent::v1::{Assign, HeldPod, PodGone, Stop, Update};
use runtime::ContainerStatus;
use supervisor::{LoopEnd, keep_running};
use tokio::sync::{broadcast, mpsc, watch};

use crate::disk::valid_uid;
use crate::engine::ContainerEngine;
use crate::error::AgentError;
use crate::eviction::{DiskLimits, DiskUser, PodDirectoryKind, PressureReason};
use crate::lifecycle::PodLifecycle;
use crate::node::AgentNode;
use crate::worker::WorkerParameters;
use crate::worker_message::{MAX_WORDS, WorkerMessage};

/// Uids of pods that are gone, remembered so that a late message can't restart one.
const MAX_LEFT: usize = 4096;

/// How long a container without a pod may take to end before the agent continues.
const STRANGER_LIMIT: Duration = Duration::from_secs(30);

struct PodHandle {
    namespace: String,
    name: String,
    /// The scheduler's choice of devices for its containers.
    devices: ChosenDevices,
    /// The part of each device that it requests; `None` for whole devices.
    share: Option<SharedPart>,
    /// Its disk limits.
    disk: Arc<DiskLimits>,
    words: mpsc::Sender<WorkerMessage>,
    /// The grace period and the reason of the latest request to end the pod: a worker that is started
    /// again gets it again.
    stop: Option<(u32, String)>,
}

impl PodHandle {
    fn holder(&self, container: &str) -> DeviceHolder {
        DeviceHolder {
            namespace: self.namespace.clone(),
            pod: self.name.clone(),
            container: container.to_owned(),
        }
    }
}

/// The pods of this node.
pub struct Pods {
    node: Arc<AgentNode>,
    workers: Mutex<BTreeMap<String, PodHandle>>,
    /// Pods that must be gone before a new pod starts.
    fenced: Mutex<BTreeSet<String>>,
    fence: watch::Sender<bool>,
    left: Mutex<VecDeque<String>>,
}

impl Pods {
    /// Starts without pods.
    pub fn new(node: Arc<AgentNode>) -> Arc<Pods> {
        Arc::new(Pods {
            node,
            workers: Mutex::default(),
            fenced: Mutex::default(),
            fence: watch::Sender::new(false),
            left: Mutex::default(),
        })
    }

    /// Takes over the pods and containers of an earlier agent.
    pub async fn recover(self: &Arc<Self>) -> Result<(), AgentError> {
        let mut found: Vec<(Arc<dyn ContainerEngine>, ContainerStatus)> = Vec::new();
        for engine in self.node.engines() {
            let containers = engine.recover().await.map_err(AgentError::Recover)?;
            found.extend(containers.into_iter().map(|c| (engine.clone(), c)));
            self.follow(engine);
        }
        let statuses: Vec<ContainerStatus> = found.iter().map(|(_, s)| s.clone()).collect();
        let mut known = BTreeSet::new();
        for (assigned, machine) in self.node.layout.kept_pods()? {
            let Some((uid, pod)) = read(&assigned) else {
                continue;
            };
            known.insert(uid.clone());
            self.spawn(uid, pod, assigned, machine, Some(&statuses));
        }
        tracing::info!(
            pods = known.len(),
            containers = found.len(),
            "pods of an earlier agent were found"
        );
        found.retain(|(_, container)| !known.contains(&container.pod.uid));
        // Awaited, so that a pod of the same uid that the server sends next finds its place free.
        join_all(found.iter().map(|(engine, c)| end_stranger(engine, c))).await;
        for (engine, container) in &found {
            engine.release(&container.pod.uid).await;
        }
        Ok(())
    }

    /// The server assigns a pod to this node.
    pub async fn assign(self: &Arc<Self>, assigned: Assign) {
        let Some((uid, pod)) = read(&assigned) else {
            return;
        };
        if self.left.lock().contains(&uid) {
            self.report_deleted(&pod.metadata.namespace, &pod.metadata.name, &uid);
            return;
        }
        if let Some(words) = self.worker_channel(&uid) {
            let _ = words
                .send(WorkerMessage::Assigned(Box::new(assigned)))
                .await;
            return;
        }
        if let Err(error) = self.node.layout.pod(&uid).keep_assigned(&assigned) {
            // Not started: a restarted agent could not find it again. The server sends it again in
            // the next session.
            tracing::error!(uid, %error, "the agent cannot write a pod's record to disk and does not start the pod");
            return;
        }
        self.spawn(uid, pod, assigned, PodLifecycle::default(), None);
    }

    /// The server requests a pod's end.
    pub async fn stop(self: &Arc<Self>, stop: Stop) {
        let Some(words) = self.worker_channel(&stop.uid) else {
            self.node.outbox.gone(PodGone {
                namespace: stop.namespace,
                name: stop.name,
                uid: stop.uid,
            });
            return;
        };
        if stop.fence {
            self.fenced.lock().insert(stop.uid.clone());
            self.fence.send_replace(true);
        }
        if let Some(handle) = self.workers.lock().get_mut(&stop.uid) {
            handle.stop = Some((stop.grace_seconds, stop.reason.clone()));
        }
        let message = WorkerMessage::Stop {
            grace: stop.grace_seconds,
            reason: stop.reason,
        };
        let _ = words.send(message).await;
    }

    /// The server sends new names for a pod's hosts file.
    pub async fn update(&self, update: Update) {
        if let Some(words) = self.worker_channel(&update.uid) {
            let _ = words.send(WorkerMessage::Hosts(update.hosts)).await;
        }
    }

    /// Every pod on this node.
    pub fn held(&self) -> Vec<HeldPod> {
        let running = self.node.running.lock();
        self.workers
            .lock()
            .iter()
            .map(|(uid, handle)| HeldPod {
                namespace: handle.namespace.clone(),
                name: handle.name.clone(),
                uid: uid.clone(),
                running: running.get(uid).copied().unwrap_or(true),
            })
            .collect()
    }

    /// The containers with devices, and these: those of pods that still run.
    pub fn holders(&self) -> Vec<(DeviceHolder, Vec<String>)> {
        let running = self.node.running.lock();
        let workers = self.workers.lock();
        let live = workers.iter().filter(|(uid, handle)| {
            !handle.devices.is_empty() && running.get(*uid).copied().unwrap_or(true)
        });
        live.flat_map(|(_, handle)| {
            handle.devices.iter().map(|(container, devices)| {
                let holder = handle.holder(container);
                (holder, devices.values().flatten().cloned().collect())
            })
        })
        .collect()
    }

    /// The devices of pods that still run, each with its resource.
    pub fn held_as(&self) -> BTreeMap<String, String> {
        let running = self.node.running.lock();
        let workers = self.workers.lock();
        let live = (workers.iter()).filter(|(uid, _)| running.get(*uid).copied().unwrap_or(true));
        let given = live.flat_map(|(_, handle)| handle.devices.values().flatten());
        given
            .flat_map(|(resource, ids)| ids.iter().map(|id| (id.clone(), resource.clone())))
            .collect()
    }

    /// The containers of running pods that request parts of GPUs: the pod's uid, the container, the
    /// part, and the GPUs.
    pub fn shares(&self) -> Vec<(String, DeviceHolder, SharedPart, Vec<String>)> {
        let running = self.node.running.lock();
        let workers = self.workers.lock();
        let live = (workers.iter()).filter(|(uid, _)| running.get(*uid).copied().unwrap_or(true));
        live.filter_map(|(uid, handle)| Some((uid, handle, handle.share?)))
            .flat_map(|(uid, handle, share)| {
                handle.devices.iter().map(move |(container, devices)| {
                    let holder = handle.holder(container);
                    let ids = devices.values().flatten().cloned().collect();
                    (uid.clone(), holder, share, ids)
                })
            })
            .collect()
    }

    /// Handles a container over its GPU share: reports it if `report`, and ends it if `end`.
    pub async fn over_share(
        &self,
        uid: &str,
        container: &str,
        why: String,
        report: bool,
        end: bool,
    ) {
        if let Some(words) = self.worker_channel(uid) {
            let message = WorkerMessage::OverShare {
                container: container.to_owned(),
                why,
                report,
                end,
            };
            let _ = words.send(message).await;
        }
    }

    /// Every pod on this node, with the directories in which it may write to the disk.
    pub fn disk_users(&self) -> Vec<DiskUser> {
        let running = self.node.running.lock();
        let workers = self.workers.lock();
        let user = |(uid, handle): (&String, &PodHandle)| DiskUser {
            uid: uid.clone(),
            limits: handle.disk.clone(),
            parts: self.disk_parts(uid, handle),
            layers: BTreeMap::new(),
            running: running.get(uid).copied().unwrap_or(true),
        };
        workers.iter().map(user).collect()
    }

    fn disk_parts(&self, uid: &str, handle: &PodHandle) -> Vec<(PodDirectoryKind, PathBuf)> {
        let dir = self.node.layout.pod(uid);
        let mut parts = vec![(PodDirectoryKind::Messages, dir.messages())];
        for name in handle.disk.volumes.keys() {
            parts.push((
                PodDirectoryKind::Volume(name.clone()),
                dir.volumes().join(name),
            ));
        }
        for name in handle.disk.containers.keys() {
            let (namespace, pod) = (&handle.namespace, &handle.name);
            let logs = self.node.logs.of_container(namespace, pod, uid, name);
            parts.push((PodDirectoryKind::Log(name.clone()), logs));
        }
        parts
    }

    /// Evicts a pod. A worker that hangs must not stop the caller, which asks again at its next turn.
    pub fn evict(&self, uid: &str, eviction: PressureReason) {
        if let Some(words) = self.worker_channel(uid) {
            let _ = words.try_send(WorkerMessage::Evict(eviction));
        }
    }

    /// The uids of the pods on this node.
    pub fn uids(&self) -> BTreeSet<String> {
        self.workers.lock().keys().cloned().collect()
    }

    fn worker_channel(&self, uid: &str) -> Option<mpsc::Sender<WorkerMessage>> {
        self.workers.lock().get(uid).map(|h| h.words.clone())
    }

    fn report_deleted(&self, namespace: &Option<String>, name: &Option<String>, uid: &str) {
        self.node.outbox.gone(PodGone {
            namespace: namespace.clone().unwrap_or_default(),
            name: name.clone().unwrap_or_default(),
            uid: uid.to_owned(),
        });
    }

    fn spawn(
        self: &Arc<Self>,
        uid: String,
        pod: Pod,
        assigned: Assign,
        machine: PodLifecycle,
        found: Option<&[ContainerStatus]>,
    ) {
        let (to_self, words) = mpsc::channel(MAX_WORDS);
        let handle = PodHandle {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            devices: chosen(pod.metadata.annotations.as_ref()),
            share: share_of(&pod),
            disk: Arc::new(DiskLimits::of(&pod)),
            words: to_self.clone(),
            stop: None,
        };
        {
            let mut workers = self.workers.lock();
            if workers.contains_key(&uid) {
                return;
            }
            workers.insert(uid.clone(), handle);
        }
        let start = WorkerParameters {
            node: self.node.clone(),
            assigned,
            pod,
            machine,
            fence: self.fence.subscribe(),
            words,
            to_self,
        };
        let found = found.map(<[ContainerStatus]>::to_vec);
        tokio::spawn(work::keep_working(self.clone(), uid, start, found));
    }

    fn ended(&self, uid: &str) {
        self.workers.lock().remove(uid);
        self.node.running.lock().remove(uid);
        {
            let mut left = self.left.lock();
            if left.len() >= MAX_LEFT {
                left.pop_front();
            }
            left.push_back(uid.to_owned());
        }
        let mut fenced = self.fenced.lock();
        fenced.remove(uid);
        let closed = !fenced.is_empty();
        self.fence
            .send_if_modified(|fence| std::mem::replace(fence, closed) != closed);
    }

    /// Passes a runtime's events to the workers for as long as there are pods.
    fn follow(self: &Arc<Self>, engine: Arc<dyn ContainerEngine>) {
        let pods = Arc::downgrade(self);
        // Before the workers read which containers exist, so that no change is missed.
        let mut first = Some(engine.changes());
        let start = move || {
            let missed = first.is_none();
            let changes = first.take().unwrap_or_else(|| engine.changes());
            let news = if missed { engine.list() } else { Vec::new() };
            pass_on(pods.clone(), engine.clone(), changes, news)
        };
        tokio::spawn(keep_running("the containers' changes", start));
    }
}

/// Passes these containers' states to their pods' workers, and then all changes.
async fn pass_on(
    pods: Weak<Pods>,
    engine: Arc<dyn ContainerEngine>,
    mut changes: broadcast::Receiver<ContainerStatus>,
    mut news: Vec<ContainerStatus>,
) -> LoopEnd {
    loop {
        let Some(pods) = pods.upgrade() else {
            return LoopEnd::Finished;
        };
        for status in news {
            if let Some(words) = pods.worker_channel(&status.pod.uid) {
                let _ = words.send(WorkerMessage::Seen(Box::new(status))).await;
            }
        }
        drop(pods);
        news = match changes.recv().await {
            Ok(status) => vec![status],
            // Some events were missed: all containers are listed instead.
            Err(broadcast::error::RecvError::Lagged(_)) => engine.list(),
            Err(broadcast::error::RecvError::Closed) => return LoopEnd::Finished,
        };
    }
}

/// Ends a container whose pod is no longer on this node: a container must not run without a pod.
async fn end_stranger(engine: &Arc<dyn ContainerEngine>, found: &ContainerStatus) {
    let id = &found.id;
    tracing::warn!(container = %id, "a container without a pod is ended");
    let mut changes = engine.changes();
    let ended = async {
        engine.stop(id, Duration::ZERO).await?;
        let alive = |c: &ContainerStatus| c.id == *id && c.exit().is_none();
        while engine.list().iter().any(alive) {
            if let Err(broadcast::error::RecvError::Closed) = changes.recv().await {
                break;
            }
        }
        engine.remove(id).await
    };
    match tokio::time::timeout(STRANGER_LIMIT, ended).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::warn!(container = %id, %why, "the container could not be ended"),
        Err(_) => {
            tracing::warn!(container = %id, "the container did not end within {STRANGER_LIMIT:?}")
        }
    }
}

fn read(assigned: &Assign) -> Option<(String, Pod)> {
    let pod: Pod = match serde_json::from_str(&assigned.pod_json) {
        Ok(pod) => pod,
        Err(error) => {
            tracing::warn!(%error, "the agent cannot read a pod that the server sent, and does not run it");
            return None;
        }
    };
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    if !valid_uid(&uid) {
        tracing::warn!(
            uid,
            "a pod with a uid that cannot name a directory is not run"
        );
        return None;
    }
    Some((uid, pod))
}
