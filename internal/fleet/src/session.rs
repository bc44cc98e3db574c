//! One node's session: from Hello to the end of the connection. The server reads nothing before the
//! certificate has been validated. A reader receives the agent's messages, a driver sends the
//! desired pods, a third task renews the lease; they never wait for each other, so that neither peer
//! can block the other.

mod pod_network;
mod registered;
mod services;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use resources::devices::NodeInventory;
use rpc::agent::v1::fleet_server::{Fleet as FleetService, FleetServer};
use rpc::agent::v1::{
    AgentMessage, Assign, EventNote, ExecFrame, Hello, HostsEntry, ServerMessage, SyncComplete,
    Update, Welcome, agent_message,
};
use rpc::{
    HEARTBEAT_SECONDS, MAX_AGENT_MESSAGE_BYTES, MAX_MESSAGE_BYTES, PeerIdentity,
    SESSION_SILENCE_SECONDS,
};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::Fleet;
use crate::health;
use crate::hosts::{self, NameSource};
use crate::index::node_of;
use crate::logs::LogSinks;
use crate::measurements;
use crate::node::NodeDescription;
use crate::node_requests::PendingNodeRequests;
use crate::resolve::{Resolved, resolve};
use crate::rollout::{self, AgentBinary};
use crate::sent_instructions::{Instruction, SentInstructions};
use crate::skew;
use crate::status::PendingReports;
use registered::RegisteredSession;
#[cfg(test)]
pub(crate) use registered::session_for_tests;

/// The capacity of the queue of messages to one agent.
const OUTBOUND: usize = 256;

/// How long an agent may take to send its Hello.
const HELLO: Duration = Duration::from_secs(10);

/// The maximum number of sessions of one node that may be opening at a time: an agent opens one,
/// and another after it abandoned the first.
pub const OPENING_MAX: usize = 4;

/// How long a session may wait for the first lists after the server's start.
const SYNC: Duration = Duration::from_secs(30);

/// Changes within this time are sent together.
const COALESCE: Duration = Duration::from_millis(20);

/// The delay before a failed operation, or data that a pod lacks, is retried.
const AGAIN: Duration = Duration::from_secs(3);

/// The delay before the renewal of a running pod's tokens is retried.
const RENEW_TOKENS_AGAIN: Duration = Duration::from_secs(30);

/// How often a live node's lease is renewed.
const RENEW: Duration = Duration::from_secs(5);

/// A node with a message this recent is alive.
const ALIVE: Duration = Duration::from_secs(12);

type Outbound = mpsc::Sender<Result<ServerMessage, Status>>;

/// A connected node, as the rest of the fleet sees it.
pub struct Session {
    /// The node's name.
    pub node: String,
    /// The identity in the connection's certificate.
    pub peer: PeerIdentity,
    /// Distinguishes the sessions of a node.
    pub id: u64,
    outbound: Outbound,
    wake: Notify,
    ended: watch::Sender<bool>,
    /// The logs being read from the node.
    pub logs: LogSinks,
    /// Requests that the node has not answered yet.
    pub asks: PendingNodeRequests,
    book: Mutex<SentInstructions>,
    heard: Mutex<Instant>,
    /// The node's inventory; a separate task writes the latest.
    inventory: watch::Sender<NodeInventory>,
    /// The agent's latest health report; a separate task writes the latest.
    health: watch::Sender<Option<health::ReportedHealth>>,
    description: NodeDescription,
    /// The agent's binary, as it reported it.
    pub agent: AgentBinary,
    /// Held while a part of a binary is read for the agent.
    pub sending: Arc<Semaphore>,
}

impl Session {
    /// Wakes the driver: an object that concerns the node has changed.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Ends the session.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Sends a message; false if the session has ended.
    pub async fn send(&self, message: impl Into<ServerMessage>) -> bool {
        self.outbound.send(Ok(message.into())).await.is_ok()
    }

    /// Sends a message if the queue has room for it now.
    pub fn try_send(&self, message: impl Into<ServerMessage>) -> bool {
        self.outbound.try_send(Ok(message.into())).is_ok()
    }
}

/// The tonic service.
struct SessionService(Arc<Fleet>);

/// The service's routes.
pub fn routes(fleet: &Arc<Fleet>) -> tonic::service::Routes {
    let server = FleetServer::new(SessionService(fleet.clone()))
        .max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    tonic::service::Routes::new(server)
}

#[tonic::async_trait]
impl FleetService for SessionService {
    type SessionStream =
        Pin<Box<dyn futures::Stream<Item = Result<ServerMessage, Status>> + Send + 'static>>;

    type ExecStream = crate::exec::ToAgent;

    async fn exec(
        &self,
        request: Request<Streaming<ExecFrame>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        self.0.exec_opened(request).await
    }

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let peer = request.extensions().get::<PeerIdentity>().cloned();
        let node = self.0.admitted(peer.as_ref())?;
        let _opening = self.0.opening.take(node).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "{OPENING_MAX} sessions of node {node:?} are being opened already"
            ))
        })?;
        let mut inbound = request.into_inner();
        let hello = read_hello(&mut inbound).await?;
        let peer = own(peer, &hello.node_name)?;
        skew::check(&self.0, &hello).await?;
        let outbound = begin(&self.0, peer, hello, inbound).await?;
        Ok(Response::new(Box::pin(outbound)))
    }
}

async fn read_hello(inbound: &mut Streaming<AgentMessage>) -> Result<Hello, Status> {
    let first = tokio::time::timeout(HELLO, inbound.message())
        .await
        .map_err(|_| Status::deadline_exceeded("the agent sent no Hello in time"))??;
    match first.and_then(|message| message.body) {
        Some(agent_message::Body::Hello(hello)) => Ok(hello),
        _ => Err(Status::invalid_argument(
            "the first message of a session must be Hello",
        )),
    }
}

/// Returns the peer, if it is the node in the Hello.
fn own(peer: Option<PeerIdentity>, node: &str) -> Result<PeerIdentity, Status> {
    let Some(peer) = peer else {
        return Err(Status::unauthenticated(
            "a session needs a node's client certificate; join with a token first",
        ));
    };
    if peer.node_name() != Some(node) {
        return Err(Status::permission_denied(format!(
            "the certificate is for {:?}, not for node {node:?}",
            peer.common_name
        )));
    }
    Ok(peer)
}

fn read_inventory(json: &str) -> Result<NodeInventory, Status> {
    serde_json::from_str(json).map_err(|error| {
        Status::invalid_argument(format!(
            "the inventory of the Hello cannot be read: {error}"
        ))
    })
}

async fn begin(
    fleet: &Arc<Fleet>,
    peer: PeerIdentity,
    hello: Hello,
    inbound: Streaming<AgentMessage>,
) -> Result<ReceiverStream<Result<ServerMessage, Status>>, Status> {
    let unavailable = |error: crate::FleetError| Status::unavailable(error.to_string());
    let inventory = read_inventory(hello.inventory.as_ref().map_or("{}", |i| &i.json))?;
    let mut synced = fleet.synced.subscribe();
    tokio::time::timeout(SYNC, synced.wait_for(|synced| *synced))
        .await
        .map_err(|_| Status::unavailable("the server has not read its pods yet; try again"))?
        .map_err(|_| Status::unavailable("the server is stopping"))?;
    let description = NodeDescription::of(&hello, &inventory);
    let node = description.name.clone();
    // The previous session must not write after the new epoch began.
    if let Some(before) = fleet.sessions.lock().remove(&node) {
        tracing::info!(node, "a new session replaces the one before");
        before.end();
    }
    let epoch = fleet
        .nodes
        .register(&description, &inventory)
        .await
        .map_err(unavailable)?;
    let pods = pods_of(fleet, &node).await.map_err(unavailable)?;
    let (book, stops) = SentInstructions::open(&hello.pods, &pods);
    let (outbound, stream) = mpsc::channel(OUTBOUND);
    let session = Arc::new(Session {
        node: node.clone(),
        peer,
        id: fleet.next_id(),
        outbound,
        wake: Notify::new(),
        ended: watch::Sender::new(false),
        logs: LogSinks::default(),
        asks: PendingNodeRequests::default(),
        book: Mutex::new(book),
        heard: Mutex::new(Instant::now()),
        inventory: watch::Sender::new(inventory),
        health: watch::Sender::new(None),
        description,
        agent: AgentBinary::of(&hello),
        sending: Arc::new(Semaphore::new(1)),
    });
    if let Some(before) = fleet.sessions.lock().insert(node.clone(), session.clone()) {
        before.end();
    }
    let registered = RegisteredSession {
        fleet: fleet.clone(),
        session: session.clone(),
    };
    // The certificate may have been revoked since the check; from here on the fleet ends the
    // session.
    if !fleet.counts(&session.peer) {
        session.end();
    }
    let span = tracing::info_span!("session", node = session.node, epoch);
    span.in_scope(|| {
        tracing::info!(
            held = hello.pods.len(),
            fenced = stops.len(),
            "a session begins"
        );
    });
    let fleet = fleet.clone();
    let driven = async move {
        let _registered = registered;
        let welcome = Welcome {
            epoch,
            heartbeat_seconds: HEARTBEAT_SECONDS,
        };
        let reports = PendingReports::new(fleet.client.clone(), session.node.clone());
        let mut ended = session.ended.subscribe();
        // Subscribes before any message arrives that could be missed.
        let inventories = session.inventory.subscribe();
        let why = tokio::select! {
            why = read(&fleet, &session, &reports, inbound) => why,
            () = async {
                session.send(welcome).await;
                for stop in stops {
                    session.send(stop).await;
                }
                drive(&fleet, &session).await;
            } => "the agent disconnected".to_owned(),
            () = write_inventories(&fleet, &session, inventories) => "the loop that writes the inventory ended".to_owned(),
            () = health::write(&fleet, &session.node, session.health.subscribe()) => "the loop that writes the health ended".to_owned(),
            () = keep(&fleet, &session) => "the loop that renews the node's lease ended".to_owned(),
            () = reports.clone().run() => "the loop that writes the pods' status ended".to_owned(),
            _ = ended.wait_for(|ended| *ended) => "it was replaced, or the node's certificate is no longer valid, or the server stops".to_owned(),
            () = expiry(session.peer.not_after) => "the node's certificate has expired".to_owned(),
        };
        tracing::info!(why, "a session ends");
    };
    tokio::spawn(driven.instrument(span));
    Ok(ReceiverStream::new(stream))
}

/// Returns when a certificate that ends at `not_after` (seconds since 1970) has expired. Checks the
/// clock periodically: it may be set, and the machine may sleep.
async fn expiry(not_after: i64) {
    const LOOK: Duration = Duration::from_secs(60);
    while Timestamp::now().as_second() <= not_after {
        tokio::time::sleep(LOOK).await;
    }
}

/// The node's pods, read from the API rather than the index, which may be behind.
async fn pods_of(fleet: &Fleet, node: &str) -> Result<Vec<Arc<Pod>>, crate::FleetError> {
    let api: Api<Pod> = Api::all(fleet.client.clone());
    let parameters = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let list = api
        .list(&parameters)
        .await
        .map_err(crate::error::api(format!(
            "listing the pods of node {node:?}"
        )))?;
    let pods = list
        .items
        .into_iter()
        .filter(|pod| node_of(pod) == Some(node))
        .collect::<Vec<_>>();
    for pod in &pods {
        fleet.change(|index| index.put_pod(pod.clone()));
    }
    Ok(pods.into_iter().map(Arc::new).collect())
}

/// Receives the agent's messages until the connection ends; returns the reason.
async fn read(
    fleet: &Fleet,
    session: &Arc<Session>,
    reports: &Arc<PendingReports>,
    mut inbound: Streaming<AgentMessage>,
) -> String {
    let silence = Duration::from_secs(SESSION_SILENCE_SECONDS);
    loop {
        let message = match tokio::time::timeout(silence, inbound.message()).await {
            Err(_) => return format!("no message from the agent for {SESSION_SILENCE_SECONDS} s"),
            Ok(Err(status)) => return format!("the connection failed: {}", status.message()),
            Ok(Ok(None)) => return "the agent ended the session".to_owned(),
            Ok(Ok(Some(message))) => message,
        };
        *session.heard.lock() = Instant::now();
        use agent_message::Body;
        match message.body {
            None | Some(Body::Heartbeat(_)) => {}
            Some(Body::Hello(_)) => return "the agent sent a second Hello".to_owned(),
            Some(Body::PodStatus(status)) => {
                if let Some(phase) = phase_of(&status.status_json) {
                    session.book.lock().reported(&status.uid, &phase);
                }
                reports.status(status);
            }
            Some(Body::PodGone(gone)) => {
                session.book.lock().gone(&gone.uid);
                reports.gone(gone);
            }
            Some(Body::Event(note)) if is_about_own_pod(fleet, &session.node, &note) => {
                reports.event(note);
            }
            Some(Body::Event(note)) => tracing::debug!(
                node = session.node,
                namespace = note.namespace,
                pod = note.name,
                "the server drops an event about a pod that is not bound to the node"
            ),
            Some(Body::Inventory(inventory)) => match read_inventory(&inventory.json) {
                Ok(inventory) => drop(session.inventory.send_replace(inventory)),
                Err(status) => tracing::warn!(
                    node = session.node,
                    error = status.message(),
                    "the server drops an inventory"
                ),
            },
            Some(Body::Measurements(said)) => {
                let sink = fleet.measurements.as_ref();
                measurements::hand_on(sink, &fleet.index.lock(), &session.node, said);
            }
            Some(Body::Health(said)) => health::hear(&session.node, &said, &session.health),
            Some(Body::LogOpened(opened)) => session.logs.opened(opened.stream_id),
            Some(Body::LogChunk(chunk)) => session.logs.chunk(chunk.stream_id, chunk.data.into()),
            Some(Body::LogEnd(end)) => session.logs.ended(end),
            Some(Body::RdmaAnswer(answer)) => session.asks.answered(answer),
            Some(Body::BinaryAsk(ask)) => rollout::serve(fleet, session, &ask),
            Some(Body::BinaryVerdict(verdict)) => rollout::judged(fleet, session, verdict),
        }
    }
}

/// True if an event is about a pod that is bound to the node. A node may not report about other
/// pods.
fn is_about_own_pod(fleet: &Fleet, node: &str, note: &EventNote) -> bool {
    let pod = fleet.index.lock().pod(&note.namespace, &note.name);
    pod.is_some_and(|pod| {
        pod.metadata.uid.as_deref() == Some(note.uid.as_str()) && node_of(&pod) == Some(node)
    })
}

/// Writes the node's inventory whenever it changes, while its session lasts, in sequence, so that
/// the last report is the one that remains. The first was written with the Hello.
async fn write_inventories(
    fleet: &Fleet,
    session: &Session,
    mut said: watch::Receiver<NodeInventory>,
) {
    while said.changed().await.is_ok() {
        let inventory = said.borrow_and_update().clone();
        let written = fleet
            .nodes
            .write_inventory(&session.description, &inventory)
            .await;
        if let Err(error) = written {
            tracing::warn!(node = session.node, %error, "the server could not write an inventory; it tries again");
            tokio::time::sleep(AGAIN).await;
            // Retried with the latest report.
            said.mark_changed();
        }
    }
}

fn phase_of(status_json: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Phase {
        phase: Option<String>,
    }
    serde_json::from_str::<Phase>(status_json).ok()?.phase
}

/// The data that the driver has sent for a pod, so that it sends only changes.
#[derive(Default)]
struct Sent {
    names_version: u64,
    hosts: Vec<HostsEntry>,
    /// The data found for an incomplete pod; fetched again until it is complete.
    lacking: Option<Resolved>,
    /// When the pod's tokens have to be replaced.
    renew_at: Option<Timestamp>,
}

/// Sends the agent its desired pods until the session ends.
async fn drive(fleet: &Arc<Fleet>, session: &Arc<Session>) {
    let mut sent: BTreeMap<String, Sent> = BTreeMap::new();
    let mut complete = false;
    let mut resolve_at = Instant::now() + AGAIN;
    let (mut network, mut services) = (None, None);
    loop {
        if !pod_network::send(fleet, session, &mut network).await
            || !services::send(fleet, session, &mut services).await
        {
            return;
        }
        let pods = fleet.index.lock().pods_of_node(&session.node);
        let tells = session.book.lock().review(&pods);
        for tell in tells {
            if !carry_out(fleet, session, &mut sent, tell).await {
                return;
            }
        }
        if !send_changes(fleet, session, &mut sent, &pods).await {
            return;
        }
        if Instant::now() >= resolve_at {
            resolve_at = Instant::now() + AGAIN;
            if !resolve_again(fleet, session, &mut sent, &pods).await {
                return;
            }
        }
        if !complete {
            complete = true;
            if !session.send(SyncComplete {}).await {
                return;
            }
        }
        if !renew_tokens(fleet, session, &mut sent, &pods).await {
            return;
        }
        let lacking = sent.values().any(|sent| sent.lacking.is_some());
        let renewal = sent.values().filter_map(|sent| sent.renew_at).min();
        let wait = renewal.map(|at| until(at, Timestamp::now()));
        tokio::select! {
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            () = session.wake.notified() => {}
            () = tokio::time::sleep_until(resolve_at), if lacking => {}
            () = session.outbound.closed() => return,
        }
        tokio::time::sleep(COALESCE).await;
    }
}

async fn carry_out(
    fleet: &Arc<Fleet>,
    session: &Arc<Session>,
    sent: &mut BTreeMap<String, Sent>,
    tell: Instruction,
) -> bool {
    match tell {
        Instruction::Stop(stop) => session.send(stop).await,
        Instruction::Assign(pod) => {
            let resolved = resolve(&fleet.client, &pod, Timestamp::now()).await;
            assign(fleet, session, sent, &pod, resolved).await
        }
        Instruction::Vanished {
            namespace,
            name,
            uid,
        } => {
            // A stop must not rely on a view that may be stale.
            let api: Api<Pod> = Api::namespaced(fleet.client.clone(), &namespace);
            match api.get_opt(&name).await {
                Ok(Some(pod))
                    if pod.metadata.uid.as_deref() == Some(&uid)
                        && node_of(&pod) == Some(&session.node) =>
                {
                    fleet.change(|index| index.put_pod(pod));
                    true
                }
                Ok(_) => {
                    sent.remove(&uid);
                    let stop = session.book.lock().confirm_vanished(&uid);
                    match stop {
                        Some(stop) => session.send(stop).await,
                        None => true,
                    }
                }
                Err(error) => {
                    tracing::warn!(node = session.node, pod = name, %error, "the server could not read whether a pod exists; it asks again");
                    let session = session.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(AGAIN).await;
                        session.wake();
                    });
                    true
                }
            }
        }
    }
}

async fn assign(
    fleet: &Fleet,
    session: &Session,
    sent: &mut BTreeMap<String, Sent>,
    pod: &Arc<Pod>,
    resolved: Resolved,
) -> bool {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let (names_version, hosts) = names_of(fleet, session, pod);
    let pod_json = match serde_json::to_string(pod.as_ref()) {
        Ok(json) => json,
        Err(error) => {
            tracing::error!(node = session.node, uid, %error, "the server cannot encode a pod as JSON");
            return true;
        }
    };
    if !resolved.no_namespace.is_empty() {
        let why = &resolved.no_namespace;
        tracing::warn!(
            node = session.node,
            uid,
            why,
            "the server does not assign a pod yet: its Unix account is unknown"
        );
        sent.entry(uid).or_default().lacking = Some(resolved);
        return true;
    }
    let entry = sent.entry(uid).or_default();
    entry.names_version = names_version;
    entry.hosts = hosts.clone();
    let message = Assign {
        pod_json,
        volumes: resolved.volumes.clone(),
        env: resolved.env.clone(),
        hosts,
        unix_account: resolved.unix_account.clone(),
    };
    entry.renew_at = resolved.renew_at;
    entry.lacking = resolved.has_problem().then_some(resolved);
    session.send(message).await
}

fn names_of(fleet: &Fleet, session: &Session, pod: &Pod) -> (u64, Vec<HostsEntry>) {
    let (namespace, gang, source) = scope_of(fleet, session, pod);
    let index = fleet.index.lock();
    (
        index.names_version(namespace),
        hosts::entries(&index, namespace, gang, source),
    )
}

/// A namespace, optionally a gang in it, and where else pods find names: these pods share one hosts file.
type HostsScope<'a> = (&'a str, Option<&'a str>, NameSource);

fn scope_of<'a>(fleet: &Fleet, session: &Session, pod: &'a Pod) -> HostsScope<'a> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let serves = session.description.cluster_services && fleet.nodes.ranges.services.is_some();
    let source = match serves && hosts::asks_dns(pod) {
        true => NameSource::Dns,
        false => NameSource::HostsFile,
    };
    (namespace, hosts::gang_of(pod), source)
}

/// Sends the hosts entries that changed, computed once for each gang.
async fn send_changes(
    fleet: &Fleet,
    session: &Session,
    sent: &mut BTreeMap<String, Sent>,
    pods: &[Arc<Pod>],
) -> bool {
    let mut computed: BTreeMap<HostsScope, (u64, Vec<HostsEntry>)> = BTreeMap::new();
    let mut updates = Vec::new();
    for pod in pods {
        let Some(uid) = pod.metadata.uid.as_deref() else {
            continue;
        };
        let Some(entry) = sent.get_mut(uid) else {
            continue;
        };
        if !session.book.lock().has(uid) {
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if fleet.index.lock().names_version(namespace) == entry.names_version {
            continue;
        }
        let (version, hosts) = computed
            .entry(scope_of(fleet, session, pod))
            .or_insert_with(|| names_of(fleet, session, pod));
        entry.names_version = *version;
        if entry.hosts != *hosts {
            entry.hosts.clone_from(hosts);
            updates.push(Update {
                uid: uid.to_owned(),
                hosts: hosts.clone(),
            });
        }
    }
    for update in updates {
        if !session.send(update).await {
            return false;
        }
    }
    true
}

/// Fetches again the data that pods lack, and sends the changes.
async fn resolve_again(
    fleet: &Arc<Fleet>,
    session: &Arc<Session>,
    sent: &mut BTreeMap<String, Sent>,
    pods: &[Arc<Pod>],
) -> bool {
    for pod in pods {
        let Some(uid) = pod.metadata.uid.as_deref() else {
            continue;
        };
        let Some(before) = sent.get_mut(uid).and_then(|sent| sent.lacking.take()) else {
            continue;
        };
        if !session.book.lock().has(uid) {
            continue;
        }
        let now = resolve(&fleet.client, pod, Timestamp::now()).await;
        if now == before {
            if let Some(entry) = sent.get_mut(uid) {
                entry.lacking = Some(before);
            }
        } else if !assign(fleet, session, sent, pod, now).await {
            return false;
        }
    }
    true
}

/// The longest wait for the next renewal of tokens, because the clock may be set and the machine may be suspended.
const RENEWAL_LOOK: Duration = Duration::from_secs(60);

/// How long to wait for a moment, at most [`RENEWAL_LOOK`].
fn until(at: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    left.min(RENEWAL_LOOK)
}

/// Sends the pods whose tokens are due new ones. A pod that lacks something then keeps its old data, so that its
/// containers can start again meanwhile, and is tried again later.
async fn renew_tokens(
    fleet: &Arc<Fleet>,
    session: &Arc<Session>,
    sent: &mut BTreeMap<String, Sent>,
    pods: &[Arc<Pod>],
) -> bool {
    let now = Timestamp::now();
    let mut due = Vec::new();
    for (uid, entry) in sent.iter_mut() {
        // Taken from pods that have ended, too: they need no token.
        if entry.renew_at.take_if(|at| *at <= now).is_some() && session.book.lock().has(uid) {
            due.push(uid.clone());
        }
    }
    for uid in due {
        let of_uid = |pod: &&Arc<Pod>| pod.metadata.uid.as_ref() == Some(&uid);
        let Some(pod) = pods.iter().find(of_uid).filter(|pod| !hosts::ended(pod)) else {
            continue;
        };
        let resolved = resolve(&fleet.client, pod, now).await;
        if !resolved.has_problem() {
            if !assign(fleet, session, sent, pod, resolved).await {
                return false;
            }
        } else if let Some(entry) = sent.get_mut(&uid) {
            tracing::warn!(
                node = session.node,
                uid,
                "the server could not renew the tokens of a pod; it tries again"
            );
            entry.renew_at = now.checked_add(RENEW_TOKENS_AGAIN).ok();
        }
    }
    true
}

/// Renews the lease of a live node, and corrects its Node object.
async fn keep(fleet: &Arc<Fleet>, session: &Arc<Session>) {
    let mut tick = tokio::time::interval_at(Instant::now() + RENEW, RENEW);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if session.heard.lock().elapsed() > ALIVE {
            continue;
        }
        let inventory = session.inventory.borrow().clone();
        let kept = async {
            fleet.nodes.renew_lease(&session.node).await?;
            fleet
                .nodes
                .keep_ready(&session.description, &inventory)
                .await
        };
        if let Err(error) = kept.await {
            tracing::warn!(node = session.node, %error, "the server could not renew a node's lease; it tries again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_only_for_the_node_that_the_certificate_names() {
        let named = |common_name: &str| PeerIdentity {
            common_name: common_name.to_owned(),
            admission: None,
            not_after: 0,
        };
        let code =
            |peer: Option<PeerIdentity>| own(peer, "n1").map_err(|status| status.code()).map(drop);
        let right = PeerIdentity::node_common_name("n1");
        assert_eq!(code(Some(named(&right))), Ok(()));
        for other in ["system:node:n2", "system:node:", "n1", "admin"] {
            let refused = code(Some(named(other)));
            assert_eq!(refused, Err(tonic::Code::PermissionDenied), "{other}");
        }
        assert_eq!(code(None), Err(tonic::Code::Unauthenticated));
    }

    #[tokio::test]
    async fn an_event_is_taken_only_about_a_pod_that_is_bound_to_the_node() {
        let api = tower::service_fn(|_: http::Request<kube::client::Body>| async move {
            Ok::<_, std::io::Error>(
                http::Response::builder()
                    .status(503)
                    .body(kube::client::Body::empty())
                    .unwrap(),
            )
        });
        let dir = tempfile::tempdir().unwrap();
        let ca = crate::CertificateAuthority::load_or_create(dir.path()).unwrap();
        let client = kube::Client::new(api, "default");
        let fleet = Fleet::start(client, crate::FleetConfig::new(Arc::new(ca)));
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": {"nodeName": "n1", "containers": []},
        }))
        .unwrap();
        fleet.change(|index| index.put_pod(pod));
        let note = |name: &str, uid: &str| EventNote {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..EventNote::default()
        };
        for (node, note, want) in [
            ("n1", note("p", "u"), true),
            ("n2", note("p", "u"), false),
            ("n1", note("p", "earlier"), false),
            ("n1", note("other", "u"), false),
        ] {
            assert_eq!(
                is_about_own_pod(&fleet, node, &note),
                want,
                "{node} {note:?}"
            );
        }
        fleet.shutdown();
    }

    #[test]
    fn the_wait_for_a_renewal_is_short_and_never_negative() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (due, now, wait) in [(100, 90, 10), (90, 100, 0), (10_000, 0, 60)] {
            assert_eq!(
                until(at(due), at(now)),
                Duration::from_secs(wait),
                "{due} {now}"
            );
        }
    }

    #[test]
    fn the_phase_is_read_from_a_status_and_nonsense_has_none() {
        assert_eq!(
            phase_of(r#"{"phase":"Running"}"#).as_deref(),
            Some("Running")
        );
        assert_eq!(phase_of("{}"), None);
        assert_eq!(phase_of("["), None);
    }
}
