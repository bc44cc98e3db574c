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
mod services;
mod token_renewal;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use resources::release::Release;
use rpc::agent::v1::fleet_server::{Fleet as FleetService, FleetServer};
use rpc::agent::v1::{AgentMessage, ExecFrame, Hello, ServerMessage, Welcome};
use rpc::{HEARTBEAT_SECONDS, MAX_AGENT_MESSAGE_BYTES, MAX_MESSAGE_BYTES, PeerIdentity};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use crate::admissions::Admissions;
use crate::agent_binary::AgentBinary;
use crate::error::{FleetError, api};
use crate::exec::{self, Execs};
use crate::health;
use crate::live_index::LiveIndex;
use crate::log_streams::LogSinks;
use crate::measurements::MeasurementSink;
use crate::node::{NodeDescription, NodeObjects};
use crate::node_places::NodePlaces;
use crate::open_sessions::{OpenSessions, Session};
use crate::peer_check;
use crate::pending_requests::PendingNodeRequests;
use crate::pod_fields::node_of;
use crate::rollout::Rollouts;
use crate::sent_instructions::SentInstructions;
use crate::skew;
use crate::status::PendingReports;
use desired_pods::drive;
use hello::{own, read_hello, read_inventory};
use inbound::{read, write_inventories};

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

/// What the sessions work with.
pub struct SessionServer {
    /// Acts as the fleet itself.
    pub client: Client,
    /// The server's version, which decides which agents it accepts.
    pub version: Release,
    /// Which nodes may connect.
    pub admissions: Arc<Admissions>,
    /// The Node objects and leases.
    pub nodes: NodeObjects,
    /// The cluster's state that sessions need.
    pub index: Arc<LiveIndex>,
    /// The sessions that are open.
    pub sessions: Arc<OpenSessions>,
    /// How many sessions of each node are being opened.
    pub opening: NodePlaces,
    /// The commands in containers.
    pub execs: Arc<Execs>,
    /// The upgrade of agents.
    pub rollouts: Arc<Rollouts>,
    /// Receives what the agents measure; none: it is dropped.
    pub measurements: Option<MeasurementSink>,
}

/// The tonic service.
struct SessionService(Arc<SessionServer>);

/// The service's routes.
pub fn routes(server: Arc<SessionServer>) -> tonic::service::Routes {
    let service = FleetServer::new(SessionService(server))
        .max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    tonic::service::Routes::new(service)
}

#[tonic::async_trait]
impl FleetService for SessionService {
    type SessionStream =
        Pin<Box<dyn futures::Stream<Item = Result<ServerMessage, Status>> + Send + 'static>>;

    type ExecStream = exec::ToAgent;

    async fn exec(
        &self,
        request: Request<Streaming<ExecFrame>>,
    ) -> Result<Response<Self::ExecStream>, Status> {
        let peer = request.extensions().get::<PeerIdentity>().cloned();
        let node = peer_check::admitted(&self.0.admissions, peer.as_ref(), Timestamp::now())?;
        self.0.execs.opened(node, request.into_inner()).await
    }

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let peer = request.extensions().get::<PeerIdentity>().cloned();
        let node = peer_check::admitted(&self.0.admissions, peer.as_ref(), Timestamp::now())?;
        let _opening = self.0.opening.take(node).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "{OPENING_MAX} sessions of node {node:?} are being opened already"
            ))
        })?;
        let mut inbound = request.into_inner();
        let hello = read_hello(&mut inbound).await?;
        let peer = own(peer, &hello.node_name)?;
        skew::check(self.0.version, &self.0.nodes, &hello).await?;
        let outbound = begin(&self.0, peer, hello, inbound).await?;
        Ok(Response::new(Box::pin(outbound)))
    }
}

async fn begin(
    server: &Arc<SessionServer>,
    peer: PeerIdentity,
    hello: Hello,
    inbound: Streaming<AgentMessage>,
) -> Result<ReceiverStream<Result<ServerMessage, Status>>, Status> {
    let unavailable = |error: FleetError| Status::unavailable(error.to_string());
    let inventory = read_inventory(hello.inventory.as_ref().map_or("{}", |i| &i.json))?;
    let mut synced = server.index.synced();
    tokio::time::timeout(SYNC, synced.wait_for(|synced| *synced))
        .await
        .map_err(|_| Status::unavailable("the server has not read its pods yet; try again"))?
        .map_err(|_| Status::unavailable("the server is stopping"))?;
    let description = NodeDescription::of(&hello, &inventory);
    let node = description.name.clone();
    // The previous session must not write after the new epoch began.
    if let Some(before) = server.sessions.remove(&node) {
        tracing::info!(node, "a new session replaces the one before");
        before.end();
    }
    let epoch = server
        .nodes
        .register(&description, &inventory)
        .await
        .map_err(unavailable)?;
    let pods = pods_of(server, &node).await.map_err(unavailable)?;
    let (instructions, stops) = SentInstructions::open(&hello.pods, &pods);
    let (outbound, stream) = mpsc::channel(OUTBOUND);
    let session = Arc::new(Session {
        node: node.clone(),
        peer,
        id: server.sessions.next_id(),
        outbound,
        wake: Notify::new(),
        ended: watch::Sender::new(false),
        logs: LogSinks::default(),
        requests: PendingNodeRequests::default(),
        instructions: Mutex::new(instructions),
        last_message: Mutex::new(Instant::now()),
        inventory: watch::Sender::new(inventory),
        health: watch::Sender::new(None),
        description,
        agent: AgentBinary::of(&hello),
        sending: Arc::new(Semaphore::new(1)),
    });
    let registered = server.sessions.register(session.clone());
    // The certificate may have been revoked since the check; from here on the fleet ends the
    // session.
    if !peer_check::is_valid(&server.admissions, &session.peer, Timestamp::now()) {
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
    let server = server.clone();
    let driven = async move {
        let _registered = registered;
        let welcome = Welcome {
            epoch,
            heartbeat_seconds: HEARTBEAT_SECONDS,
        };
        let reports = PendingReports::new(server.client.clone(), session.node.clone());
        let mut ended = session.ended.subscribe();
        // Subscribes before any message arrives that could be missed.
        let inventories = session.inventory.subscribe();
        let why = tokio::select! {
            why = read(&server, &session, &reports, inbound) => why,
            () = async {
                session.send(welcome).await;
                for stop in stops {
                    session.send(stop).await;
                }
                drive(&server, &session).await;
            } => "the agent disconnected".to_owned(),
            () = write_inventories(&server.nodes, &session, inventories) => "the loop that writes the inventory ended".to_owned(),
            () = health::write(&server.nodes, &session.node, session.health.subscribe()) => "the loop that writes the health ended".to_owned(),
            () = renew_lease(&server.nodes, &session) => "the loop that renews the node's lease ended".to_owned(),
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
async fn pods_of(server: &SessionServer, node: &str) -> Result<Vec<Arc<Pod>>, FleetError> {
    let pods: Api<Pod> = Api::all(server.client.clone());
    let parameters = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let list = pods
        .list(&parameters)
        .await
        .map_err(api(format!("listing the pods of node {node:?}")))?;
    let pods = list
        .items
        .into_iter()
        .filter(|pod| node_of(pod) == Some(node))
        .collect::<Vec<_>>();
    for pod in &pods {
        server.index.change(|index| index.put_pod(pod.clone()));
    }
    Ok(pods.into_iter().map(Arc::new).collect())
}

/// Renews the lease of a live node, and corrects its Node object.
async fn renew_lease(nodes: &NodeObjects, session: &Session) {
    let mut tick = tokio::time::interval_at(Instant::now() + RENEW, RENEW);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        if session.last_message.lock().elapsed() > ALIVE {
            continue;
        }
        let inventory = session.inventory.borrow().clone();
        let renewed = async {
            nodes.renew_lease(&session.node).await?;
            nodes.keep_ready(&session.description, &inventory).await
        };
        if let Err(error) = renewed.await {
            tracing::warn!(node = session.node, %error, "the server could not renew a node's lease; it tries again");
        }
    }
}
