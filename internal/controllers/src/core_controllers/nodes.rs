//! The loop over nodes: watches their leases, declares silent nodes and their pods lost, and
//! reverts that when a node renews its lease again. [`node_liveness`](super::node_liveness) decides when a
//! node counts as silent, by the clock of [`server_clock`](super::server_clock). Only the agent sets Ready
//! again. A node whose disk is too full gets a taint ([`pressure`]).

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference, Taint};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use nix::time::{ClockId, clock_gettime};
use resources::names::{NODE_LEASES, NODE_LOST};
use serde_json::json;

use super::access::{answered, together, unless_gone};
use super::lost_pods::{self, BoundPod, PodPart};
use super::mirror::{self, FieldMirror, ObjectKey, uid_of};
use super::node_liveness::{self, NodeVerdict};
use super::server_clock::ServerClock;
use super::{pressure, stopped};
use crate::context::Context;
use crate::event_recorder::{EventRecorder, EventType as NoteKind};
use crate::retry::{PANICKED, guarded, panic_in, panicked_note};

/// How many times per grace period nodes are judged, and the bounds of the interval.
const LOOKS_PER_GRACE: u32 = 10;
const LOOK_SOONEST: Duration = Duration::from_millis(100);
const LOOK_LATEST: Duration = Duration::from_secs(1);
/// After this fraction of the grace period without a sign of life, the loop asks the store whether
/// it takes writes at all: on a full disk no node can renew its lease. So each node has the rest of
/// its grace period to be heard once there is room again.
const DOUBT_PER_GRACE: u32 = 2;

/// The fields of a node that this loop needs.
struct NodeFields {
    uid: String,
    resource_version: String,
    conditions: Vec<NodeCondition>,
    taints: Vec<Taint>,
}

impl NodeFields {
    fn of(node: Node) -> NodeFields {
        NodeFields {
            uid: uid_of(&node),
            resource_version: node.metadata.resource_version.unwrap_or_default(),
            conditions: node.status.and_then(|s| s.conditions).unwrap_or_default(),
            taints: node.spec.and_then(|s| s.taints).unwrap_or_default(),
        }
    }

    fn reference(&self, name: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// When a node last gave a sign of life.
struct LastHeartbeat {
    renewed: Option<Timestamp>,
    /// By the clock that runs while this server is awake.
    at: Duration,
    /// Whether that was a sign of life, and not the first sight of the lease.
    alive: bool,
}

struct NodeWatcher {
    client: Client,
    notes: EventRecorder,
    grace: Duration,
    nodes: FieldMirror<NodeFields>,
    pods: FieldMirror<BoundPod>,
    heartbeats: BTreeMap<String, LastHeartbeat>,
    clock: ServerClock,
    /// How many gaps this server's clock has had.
    gaps: u64,
}

pub(crate) async fn run(mut ctx: Context) {
    let mut nodes = mirror::watch(
        Api::<Node>::all(ctx.client.clone()),
        watcher::Config::default(),
    );
    let mut leases = mirror::watch(
        Api::<Lease>::namespaced(ctx.client.clone(), NODE_LEASES),
        watcher::Config::default(),
    );
    let mut pods = mirror::watch(
        Api::<PodPart>::all(ctx.client.clone()),
        watcher::Config::default().fields("spec.nodeName!="),
    );
    let every = (ctx.config.node_grace / LOOKS_PER_GRACE).clamp(LOOK_SOONEST, LOOK_LATEST);
    let mut state = NodeWatcher {
        clock: ServerClock::new(ctx.config.node_grace, every),
        gaps: 0,
        client: ctx.client.clone(),
        notes: EventRecorder::new(ctx.client.clone(), "node-controller"),
        grace: ctx.config.node_grace,
        nodes: FieldMirror::new(),
        pods: FieldMirror::new(),
        heartbeats: BTreeMap::new(),
    };
    let mut look = tokio::time::interval(every);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // Received lease renewals count before silence is judged.
            biased;
            () = stopped(&mut ctx.stop) => return,
            Some(event) = leases.next() => state.take_lease(event),
            Some(event) = nodes.next() => state.take_node(event),
            Some(event) = pods.next() => { state.pods.take(event, BoundPod::of); }
            _ = look.tick() => state.observe().await,
        }
    }
}

impl NodeWatcher {
    /// Reads the machine's clock, and counts a gap since the last reading.
    fn read_clock(&mut self) {
        let Some(gap) = self.clock.read(since_boot()) else {
            return;
        };
        self.gaps = self.gaps.saturating_add(1);
        tracing::warn!(
            seconds = gap.as_secs(),
            "this server did not run for a while; the time does not count towards any node's grace period"
        );
    }

    fn take_node(&mut self, event: watcher::Event<Node>) {
        self.read_clock();
        for change in self.nodes.take(event, NodeFields::of) {
            let name = change.key.1.clone();
            if self.nodes.get(&change.key).is_none() {
                self.heartbeats.remove(&name);
            } else {
                let at = self.clock.now();
                self.heartbeats
                    .entry(name)
                    .or_insert_with(|| LastHeartbeat {
                        renewed: None,
                        at,
                        alive: false,
                    });
            }
        }
    }

    fn take_lease(&mut self, event: watcher::Event<Lease>) {
        let leases = match event {
            watcher::Event::Apply(lease) | watcher::Event::InitApply(lease) => lease,
            _ => return,
        };
        let name = leases.metadata.name.clone().unwrap_or_default();
        self.receive(&name, renew_time(&leases));
    }

    /// Records a lease's renewal; an unchanged time is no sign of life.
    fn receive(&mut self, name: &str, renewed: Option<Timestamp>) {
        self.read_clock();
        let now = self.clock.now();
        match self.heartbeats.get_mut(name) {
            Some(heartbeat) if heartbeat.renewed == renewed => {}
            Some(heartbeat) => {
                // The first sight of a lease does not tell when it was renewed.
                heartbeat.alive = heartbeat.renewed.is_some() || heartbeat.alive;
                heartbeat.renewed = renewed;
                heartbeat.at = now;
            }
            None => {
                let first = LastHeartbeat {
                    renewed,
                    at: now,
                    alive: false,
                };
                self.heartbeats.insert(name.to_owned(), first);
            }
        }
    }

    async fn observe(&mut self) {
        self.read_clock();
        if !self.nodes.synced() || !self.pods.synced() {
            return;
        }
        if let Err(error) = guarded(self.try_to_write()).await
            && answered(&error, 503)
        {
            tracing::warn!(%error, "no node lease can be renewed, so the controller marks no node as lost");
            self.clock.was_deaf();
            return;
        }
        let names: Vec<ObjectKey> = self.nodes.iter().map(|(key, _)| key.clone()).collect();
        for key in names {
            // The time spent on writes about earlier nodes does not count against this one.
            self.read_clock();
            let Err(error) = guarded(self.inspect(&key)).await else {
                continue;
            };
            // While the store takes no writes, no node can give a sign of life.
            if answered(&error, 503) {
                self.clock.was_deaf();
            }
            if let (Some(panic), Some(node)) = (panic_in(&error), self.nodes.get(&key)) {
                let words = panicked_note(panic);
                self.note(&key, node, NoteKind::Warning, PANICKED, &words);
            }
            if !answered(&error, 409) {
                tracing::warn!(node = key.1, %error, "the controller could not handle a node; it tries again");
            }
        }
    }

    /// If a node is silent, dry-runs the write that would declare it lost.
    async fn try_to_write(&self) -> kube::Result<()> {
        let doubt = self.grace / DOUBT_PER_GRACE;
        let silent = self.nodes.iter().filter(|((_, name), _)| {
            let heartbeat = self.heartbeats.get(name);
            heartbeat.is_some_and(|heartbeat| self.clock.silence(heartbeat.at) >= doubt)
        });
        let now = Timestamp::now();
        let mut changed = silent.filter_map(|((_, name), node)| {
            let conditions = node_liveness::lost_conditions(&node.conditions, now)?;
            Some((name, node, conditions))
        });
        let Some((name, node, conditions)) = changed.next() else {
            return Ok(());
        };
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        self.write_conditions(name, node, &conditions, &params)
            .await
    }

    async fn write_conditions(
        &self,
        name: &str,
        node: &NodeFields,
        conditions: &[NodeCondition],
        params: &PatchParams,
    ) -> kube::Result<()> {
        let patch = Patch::Merge(json!({
            "metadata": { "uid": node.uid },
            "status": { "conditions": conditions },
        }));
        let api: Api<Node> = Api::all(self.client.clone());
        unless_gone(api.patch_status(name, params, &patch).await)?;
        Ok(())
    }

    async fn inspect(&mut self, key: &ObjectKey) -> kube::Result<()> {
        let (Some(node), Some(heartbeat)) = (self.nodes.get(key), self.heartbeats.get(&key.1))
        else {
            return Ok(());
        };
        let silent = self.clock.silence(heartbeat.at);
        // A new grace period after a gap is no sign of life: a lost node returns when it renews its
        // lease.
        let alive = heartbeat.alive && self.clock.since(heartbeat.at) < self.grace;
        match node_liveness::judge(silent, alive, self.grace, &node.taints) {
            NodeVerdict::Fine => self.follow_pressure(key, node).await,
            NodeVerdict::Returned => self.take_back(key, node).await,
            NodeVerdict::Lost => {
                let known = node_liveness::lost_taints(&node.taints, Timestamp::now()).is_none();
                if !known {
                    let gaps = self.gaps;
                    let renewed = self.has_renewed_meanwhile(key).await?;
                    self.read_clock();
                    // An API that answers slowly has delayed the node's renewals, too.
                    if renewed || self.gaps != gaps {
                        return Ok(());
                    }
                }
                self.declare_lost(key).await
            }
        }
    }

    /// Sets or removes the taint of a node whose disk is too full.
    async fn follow_pressure(&self, key: &ObjectKey, node: &NodeFields) -> kube::Result<()> {
        match pressure::taints(&node.conditions, &node.taints, Timestamp::now()) {
            Some(taints) => self.set_taints(key, node, &taints).await,
            None => Ok(()),
        }
    }

    /// Reads the lease from the API before a node is declared lost: a watch may be behind.
    async fn has_renewed_meanwhile(&mut self, key: &ObjectKey) -> kube::Result<bool> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), NODE_LEASES);
        let Some(lease) = api.get_opt(&key.1).await? else {
            return Ok(false);
        };
        let renewed = renew_time(&lease);
        let known = self
            .heartbeats
            .get(&key.1)
            .and_then(|heartbeat| heartbeat.renewed);
        self.receive(&key.1, renewed);
        Ok(known != renewed)
    }

    async fn take_back(&self, key: &ObjectKey, node: &NodeFields) -> kube::Result<()> {
        let taints = node_liveness::returned_taints(&node.taints);
        self.set_taints(key, node, &taints).await?;
        let message = format!("Node {} reports its status again", key.1);
        self.note(key, node, NoteKind::Normal, "NodeReachable", &message);
        Ok(())
    }

    async fn declare_lost(&self, key: &ObjectKey) -> kube::Result<()> {
        let now = Timestamp::now();
        let Some(node) = self.nodes.get(key) else {
            return Ok(());
        };
        if let Some(taints) = node_liveness::lost_taints(&node.taints, now) {
            self.set_taints(key, node, &taints).await?;
        }
        if let Some(conditions) = node_liveness::lost_conditions(&node.conditions, now) {
            let params = PatchParams::default();
            self.write_conditions(&key.1, node, &conditions, &params)
                .await?;
            let message = format!("Node {} status is now: NodeNotReady", key.1);
            self.note(key, node, NoteKind::Warning, "NodeNotReady", &message);
        }
        self.declare_pods_lost(key, now).await
    }

    async fn declare_pods_lost(&self, key: &ObjectKey, now: Timestamp) -> kube::Result<()> {
        let message = format!(
            "Node {} stopped answering for more than {} s; the pod is given up",
            key.1,
            self.grace.as_secs()
        );
        let mut writes = Vec::new();
        for (pod_key, pod) in self.pods.iter() {
            if pod.node == key.1 && !pod.finished {
                writes.push(self.declare_pod_lost(pod_key, pod, &message, now).boxed());
            }
        }
        together(writes).await
    }

    async fn declare_pod_lost(
        &self,
        key: &ObjectKey,
        pod: &BoundPod,
        message: &str,
        now: Timestamp,
    ) -> kube::Result<()> {
        lost_pods::declare(&self.client, key, pod, message, now).await?;
        let about = pod.reference(key);
        self.notes
            .note(&about, NoteKind::Warning, NODE_LOST, message);
        Ok(())
    }

    async fn set_taints(
        &self,
        key: &ObjectKey,
        node: &NodeFields,
        taints: &[Taint],
    ) -> kube::Result<()> {
        let patch = Patch::Merge(json!({
            "metadata": { "uid": node.uid, "resourceVersion": node.resource_version },
            "spec": { "taints": taints },
        }));
        let api: Api<Node> = Api::all(self.client.clone());
        let params = PatchParams::default();
        unless_gone(api.patch(&key.1, &params, &patch).await)?;
        Ok(())
    }

    fn note(
        &self,
        key: &ObjectKey,
        node: &NodeFields,
        kind: NoteKind,
        reason: &str,
        message: &str,
    ) {
        self.notes
            .note(&node.reference(&key.1), kind, reason, message);
    }
}

/// The time since the machine started, by a clock that is never set and that also runs while the
/// machine is suspended.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .expect("Linux has had this clock since 2.6.39")
        .into()
}

fn renew_time(lease: &Lease) -> Option<Timestamp> {
    let spec = lease.spec.as_ref()?;
    spec.renew_time.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;

    use super::*;

    /// An API that answers dry runs with a given code, has no lease, and counts real writes.
    fn api(dry_runs: &Arc<AtomicU16>, writes: &Arc<AtomicUsize>) -> Client {
        let (dry_runs, writes) = (dry_runs.clone(), writes.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let dry = request
                .uri()
                .query()
                .is_some_and(|q| q.contains("dryRun=All"));
            let code = match *request.method() {
                Method::PATCH if dry => dry_runs.load(Ordering::SeqCst),
                Method::PATCH => {
                    writes.fetch_add(1, Ordering::SeqCst);
                    404
                }
                _ => 404,
            };
            let reason = if code == 404 { "NotFound" } else { "Unknown" };
            let body = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": reason, "message": "no", "code": code,
            });
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            async move { Ok::<_, kube::Error>(response) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn no_node_is_lost_while_the_store_takes_no_writes() {
        let (dry_runs, writes) = (Arc::new(AtomicU16::new(503)), Arc::default());
        let client = api(&dry_runs, &writes);
        // Without any grace the node is silent for too long at once.
        let mut state = NodeWatcher {
            clock: ServerClock::new(Duration::ZERO, Duration::from_secs(3600)),
            gaps: 0,
            notes: EventRecorder::new(client.clone(), "node-controller"),
            client,
            grace: Duration::ZERO,
            nodes: FieldMirror::new(),
            pods: FieldMirror::new(),
            heartbeats: BTreeMap::new(),
        };
        let node = json!({"metadata": {"name": "n1", "uid": "u"}});
        state.take_node(watcher::Event::Init);
        state.take_node(watcher::Event::InitApply(
            serde_json::from_value(node).unwrap(),
        ));
        state.take_node(watcher::Event::InitDone);
        state
            .pods
            .take(watcher::Event::<PodPart>::Init, BoundPod::of);
        state
            .pods
            .take(watcher::Event::<PodPart>::InitDone, BoundPod::of);
        state.observe().await;
        assert_eq!(writes.load(Ordering::SeqCst), 0);
        // Once the store takes writes, silence counts: taints and conditions are written.
        dry_runs.store(404, Ordering::SeqCst);
        state.observe().await;
        assert_eq!(writes.load(Ordering::SeqCst), 2);
    }
}
