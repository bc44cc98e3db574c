//! One node's session: from Hello to the end of the connection. The server reads nothing before the
//! certificate has been validated. A reader receives the agent's messages, a driver sends the
//! desired pods, a third task renews the lease; they never wait for each other, so that neither peer
//! can block the other.

mod desired_pods;
mod hello;
mod host_names;
mod inbound;
mod network_policies;
mod pod_network;
mod registered;
mod services;
mod token_renewal;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use resources::devices::NodeInventory;
use rpc::agent::v1::fleet_server::{Fleet as FleetService, FleetServer};
use rpc::agent::v1::{AgentMessage, ExecFrame, Hello, ServerMessage, Welcome};
use rpc::{HEARTBEAT_SECONDS, MAX_AGENT_MESSAGE_BYTES, MAX_MESSAGE_BYTES, PeerIdentity};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::Fleet;
use crate::health;
use crate::index::node_of;
use crate::logs::LogSinks;
use crate::node::NodeDescription;
use crate::node_requests::PendingNodeRequests;
use crate::rollout::{self, AgentBinary};
use crate::sent_instructions::SentInstructions;
use crate::skew;
use crate::status::PendingReports;
use desired_pods::drive;
use hello::{own, read_hello, read_inventory};
use inbound::{read, write_inventories};
use registered::RegisteredSession;
#[cfg(test)]
pub(crate) use registered::session_for_tests;

/// The capacity of the queue of messages to one agent.
const OUTBOUND: usize = 256;

/// The maximum number of sessions of one node that may be opening at a time: an agent opens one,
/// and another after it abandoned the first.
pub const OPENING_MAX: usize = 4;

/// How long a session may wait for the first lists after the server's start.
const SYNC: Duration = Duration::from_secs(30);

/// The delay before a failed operation, or data that a pod lacks, is retried.
const AGAIN: Duration = Duration::from_secs(3);

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
