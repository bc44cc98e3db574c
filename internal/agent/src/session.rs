//! The session with the server: connects, sends Hello, then passes messages both ways until the
//! connection ends, and starts again. Pods continue to run regardless.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use rpc::agent::v1::fleet_client::FleetClient;
use rpc::agent::v1::{
    Address, AgentMessage, Heartbeat, Hello, Inventory, LogChunk, LogEnd, LogOpened, OpenLog,
    ServerMessage, server_message,
};
use rpc::{HEARTBEAT_SECONDS, LOG_CHUNK_BYTES, MAX_AGENT_MESSAGE_BYTES, MAX_MESSAGE_BYTES};
use runtime::LogRead;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use crate::config::AgentConfig;
use crate::error::AgentError;
use crate::exec::Execs;
use crate::identity::{AgentIdentity, deep};
use crate::inventory_loop;
use crate::logs::WantedLog;
use crate::measure;
use crate::node::AgentNode;
use crate::pairing;
use crate::pods::Pods;
use crate::upgrade::Incoming;
use crate::version::VERSION;

/// Capacity of the message channel to the server.
const OUTBOUND: usize = 256;

/// Pauses between attempts to reach the server, in seconds; the last one repeats.
const RETRY_SECONDS: [u64; 6] = [1, 1, 2, 4, 8, 15];

/// After a session of this length the next attempt is immediate.
const GOOD: Duration = Duration::from_secs(30);

/// Maximum number of logs that are read at the same time.
const MAX_LOGS: usize = 256;

/// Pause before attempt number `tries` (from 0).
fn pause(tries: usize) -> Duration {
    let last = RETRY_SECONDS.len() - 1;
    Duration::from_secs(RETRY_SECONDS[tries.min(last)])
}

/// Joins if the node has no identity yet, and keeps a session with the server until `stop` says
/// true.
///
/// # Errors
///
/// When the node can't join, and another try can't help.
pub async fn run(
    config: &AgentConfig,
    node: &Arc<AgentNode>,
    pods: &Arc<Pods>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    if let Some(identity) = join(config, node, &mut stop).await? {
        keep(config, node, pods, identity, stop).await;
    }
    Ok(())
}

/// The node's identity; joins if there is none yet. `None` if stopped meanwhile.
async fn join(
    config: &AgentConfig,
    node: &AgentNode,
    stop: &mut watch::Receiver<bool>,
) -> Result<Option<AgentIdentity>, AgentError> {
    let dir = node.layout.identity();
    if let Some(identity) = AgentIdentity::load(&dir, &config.node_name)? {
        // An expired identity is only used if there is no token for a new one.
        if config.token.is_none() || !identity.has_expired(Timestamp::now()) {
            return Ok(Some(identity));
        }
        tracing::info!("the node's certificate has expired; joining again");
    }
    let (token, trust) = config.credentials(&dir)?;
    let mut tries = 0;
    loop {
        let joined = AgentIdentity::join(&dir, &config.server, &trust, token, &config.node_name);
        match joined.await {
            Ok(identity) => {
                tracing::info!(server = config.server, node = config.node_name, "joined");
                return Ok(Some(identity));
            }
            Err(error @ AgentError::Connection { .. }) => {
                tracing::warn!(%error, "not joined yet; trying again");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(pause(tries)) => tries += 1,
            _ = stop.wait_for(|stop| *stop) => return Ok(None),
        }
    }
}

/// Keeps a session with the server until `stop` says true. When the certificate is renewed, the
/// session starts again with the new one.
async fn keep(
    config: &AgentConfig,
    node: &Arc<AgentNode>,
    pods: &Arc<Pods>,
    mut identity: AgentIdentity,
    mut stop: watch::Receiver<bool>,
) {
    let directory = node.layout.identity();
    let mut tries = 0;
    loop {
        if *stop.borrow() {
            return;
        }
        let began = tokio::time::Instant::now();
        let span = tracing::info_span!("session", node = node.facts.name, server = config.server);
        let ended = tokio::select! {
            ended = one(config, node, pods, &identity).instrument(span) => ended,
            renewed = identity.renew_in_time(&directory, &config.server) => {
                tracing::info!("the node's certificate was renewed");
                identity = renewed;
                continue;
            }
            _ = stop.wait_for(|stop| *stop) => return,
        };
        match ended {
            Ok(()) => tracing::info!(server = config.server, "the session ended"),
            Err(error) => {
                tracing::warn!(%error, "no session with the server; pods keep running");
                let refused = matches!(error, AgentError::CertificateRefused { .. });
                if (refused || identity.has_expired(Timestamp::now()))
                    && let Some(new) = join_again(config, &directory).await
                {
                    identity = new;
                }
            }
        }
        tries = if began.elapsed() >= GOOD {
            0
        } else {
            tries + 1
        };
        tokio::select! {
            () = tokio::time::sleep(pause(tries)) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// Joins again if the certificate is no longer accepted and a token is configured.
async fn join_again(config: &AgentConfig, directory: &Path) -> Option<AgentIdentity> {
    let (token, trust) = (config.token.as_deref()?, config.trust()?);
    let joined = AgentIdentity::join(directory, &config.server, &trust, token, &config.node_name);
    match joined.await {
        Ok(identity) => {
            tracing::info!(
                server = config.server,
                node = config.node_name,
                "joined again"
            );
            Some(identity)
        }
        Err(error) => {
            tracing::warn!(%error, "the server refuses the node's certificate, and joining again failed; make a new token (muster token join)");
            None
        }
    }
}

fn hello(config: &AgentConfig, node: &AgentNode, pods: &Pods) -> Hello {
    let read = |path: &str| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let mut labels = config.labels.clone();
    for (label, on) in [
        (resources::names::RUNTIME_CRI, node.images.is_some()),
        (resources::names::RUNTIME_HOST_IMAGES, node.host_images),
    ] {
        labels.insert(label.to_owned(), on.to_string());
    }
    let runtimes: Vec<String> = node.engines().iter().map(|engine| engine.name()).collect();
    let address = |kind: &str, address: &str| Address {
        kind: kind.to_owned(),
        address: address.to_owned(),
    };
    let mut hello = Hello {
        node_name: node.facts.name.clone(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        machine_id: read("/etc/machine-id"),
        agent_version: VERSION.to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        container_runtime: runtimes.join(","),
        inventory: Some(Inventory {
            json: node.machine.lock().json(),
        }),
        labels: labels.into_iter().collect(),
        addresses: vec![
            address("InternalIP", &node.facts.ip),
            address("Hostname", &node.facts.name),
        ],
        pods: pods.held(),
        max_pods: config.max_pods,
        own_pod_network: node.networks.gives(),
        cluster_services: node.networks.gives(),
        network_policies: node.networks.gives(),
        reserved_millicpus: config.reserved.millicpus,
        reserved_memory_bytes: config.reserved.memory_bytes,
        ..Hello::default()
    };
    config.upgrade.describe(&mut hello);
    hello
}

/// One session, from connecting to its end.
async fn one(
    config: &AgentConfig,
    node: &Arc<AgentNode>,
    pods: &Arc<Pods>,
    identity: &AgentIdentity,
) -> Result<(), AgentError> {
    let channel = identity.connect(&config.server).await?;
    let mut client = FleetClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_AGENT_MESSAGE_BYTES);
    let (outbound, stream) = mpsc::channel::<AgentMessage>(OUTBOUND);
    let broken = |status: &tonic::Status| {
        let server = config.server.clone();
        let detail = if status.message().is_empty() {
            deep(status)
        } else {
            status.message().to_owned()
        };
        match status.code() {
            tonic::Code::Unauthenticated => AgentError::CertificateRefused { server, detail },
            tonic::Code::FailedPrecondition => AgentError::VersionRefused { server, detail },
            _ => AgentError::Connection {
                what: "the session with",
                server,
                detail,
            },
        }
    };
    // The receiver still exists, so there is room for the first message.
    let _ = outbound.try_send(hello(config, node, pods).into());
    let mut inbound = client
        .session(ReceiverStream::new(stream))
        .await
        .map_err(|status| broken(&status))?
        .into_inner();
    node.outbox.begin_again();
    let logs = SentLogs::new(node.clone(), outbound.clone());
    let execs = Execs::new(node.clone(), identity.clone(), &config.server);
    let binaries = Incoming::new(config.upgrade.clone(), outbound.clone());
    let hear = async {
        loop {
            match inbound.message().await {
                Ok(Some(message)) => take(node, pods, &logs, &execs, &binaries, message).await,
                Ok(None) => return Ok(()),
                Err(status) => return Err(broken(&status)),
            }
        }
    };
    tokio::select! {
        ended = hear => ended,
        () = send_outbox(node, &outbound) => Ok(()),
        () = beat(&outbound) => Ok(()),
        () = inventory_loop::report(config, node, pods, &outbound) => Ok(()),
        () = measure::report(config, node, pods, &outbound) => Ok(()),
    }
}

async fn take(
    node: &Arc<AgentNode>,
    pods: &Arc<Pods>,
    logs: &SentLogs,
    execs: &Execs,
    binaries: &Incoming,
    message: ServerMessage,
) {
    use server_message::Body;
    match message.body {
        None => {}
        Some(Body::Welcome(welcome)) => {
            tracing::info!(epoch = welcome.epoch, "a session with the server begins");
            binaries.begun();
        }
        Some(Body::Assign(assigned)) => pods.assign(assigned).await,
        Some(Body::Update(update)) => pods.update(update).await,
        Some(Body::Stop(stop)) => pods.stop(stop).await,
        Some(Body::SyncComplete(_)) => tracing::debug!("the server has sent all pods of this node"),
        Some(Body::OpenLog(open)) => logs.open(open),
        Some(Body::CloseLog(close)) => logs.close(close.stream_id),
        Some(Body::LogCredit(credit)) => logs.credit(credit.stream_id, credit.chunks),
        Some(Body::RdmaAsk(ask)) => pairing::answer(node, pods, &logs.outbound, ask),
        Some(Body::PodNetwork(sent)) => {
            node.services.set_range(&sent.service_range);
            node.policies.set_sent(sent.network_policies);
            node.networks.set(sent).await;
        }
        Some(Body::ServiceChanges(changes)) => node.services.take(changes),
        Some(Body::NetworkPolicyChanges(changes)) => node.policies.take(changes),
        Some(Body::OpenExec(open)) => execs.open(open),
        Some(Body::OfferBinary(offer)) => binaries.offered(offer),
        Some(Body::BinaryChunk(chunk)) => binaries.part(chunk),
    }
}

async fn send_outbox(node: &AgentNode, outbound: &mpsc::Sender<AgentMessage>) {
    loop {
        for message in node.outbox.take() {
            if outbound.send(message).await.is_err() {
                return;
            }
        }
        node.outbox.news().await;
    }
}

async fn beat(outbound: &mpsc::Sender<AgentMessage>) {
    let mut tick = tokio::time::interval(Duration::from_secs(u64::from(HEARTBEAT_SECONDS)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut sequence = 0;
    loop {
        tick.tick().await;
        sequence += 1;
        if outbound.send(Heartbeat { sequence }.into()).await.is_err() {
            return;
        }
    }
}

/// The logs being sent.
struct SentLogs {
    node: Arc<AgentNode>,
    outbound: mpsc::Sender<AgentMessage>,
    open: Arc<Mutex<BTreeMap<u64, OpenOne>>>,
}

/// The task that sends a log, and its send window.
type OpenOne = (AbortHandle, Arc<Semaphore>);

impl SentLogs {
    fn new(node: Arc<AgentNode>, outbound: mpsc::Sender<AgentMessage>) -> SentLogs {
        SentLogs {
            node,
            outbound,
            open: Arc::default(),
        }
    }

    fn open(&self, open: OpenLog) {
        let id = open.stream_id;
        let credit = Arc::new(Semaphore::new(open.credit as usize));
        let mut all = self.open.lock();
        if all.len() >= MAX_LOGS {
            let outbound = self.outbound.clone();
            tokio::spawn(async move {
                let error = format!("{MAX_LOGS} logs of this node are being read already");
                let _ = outbound.send(log_end(id, error, false)).await;
            });
            return;
        }
        let (node, outbound) = (self.node.clone(), self.outbound.clone());
        let (table, allowed) = (self.open.clone(), credit.clone());
        let task = tokio::spawn(async move {
            let end = match send_log(&node, &outbound, &open, &allowed).await {
                Some(error) => error,
                None => return,
            };
            table.lock().remove(&id);
            let _ = outbound.send(end).await;
        });
        all.insert(id, (task.abort_handle(), credit));
    }

    fn close(&self, id: u64) {
        if let Some((task, _)) = self.open.lock().remove(&id) {
            task.abort();
        }
    }

    fn credit(&self, id: u64, chunks: u32) {
        if let Some((_, credit)) = self.open.lock().get(&id) {
            // Never more than a whole window, so that a wrong credit does not flood the connection.
            let room = (rpc::LOG_WINDOW_CHUNKS as usize).saturating_sub(credit.available_permits());
            credit.add_permits(room.min(chunks as usize));
        }
    }
}

impl Drop for SentLogs {
    fn drop(&mut self) {
        for (_, (task, _)) in std::mem::take(&mut *self.open.lock()) {
            task.abort();
        }
    }
}

fn log_end(stream_id: u64, error: String, not_found: bool) -> AgentMessage {
    LogEnd {
        stream_id,
        error,
        not_found,
    }
    .into()
}

/// Sends a log; returns its last message, or `None` when the session is gone.
async fn send_log(
    node: &Arc<AgentNode>,
    outbound: &mpsc::Sender<AgentMessage>,
    open: &OpenLog,
    credit: &Semaphore,
) -> Option<AgentMessage> {
    let id = open.stream_id;
    let wanted = WantedLog {
        namespace: &open.namespace,
        pod: &open.pod,
        uid: &open.uid,
        container: &open.container,
        previous: open.previous,
    };
    let Some(found) = node.logs.find(&wanted) else {
        return Some(log_end(id, String::new(), true));
    };
    let positive = |value: Option<i64>| value.map(|value| u64::try_from(value).unwrap_or(0));
    let options = LogRead {
        tail_lines: positive(open.tail_lines),
        since: open
            .since_unix_nanos
            .and_then(|nanos| Timestamp::from_nanosecond(i128::from(nanos)).ok()),
        timestamps: open.timestamps,
        follow: open.follow,
        limit_bytes: positive(open.limit_bytes),
    };
    let engines = node.engines();
    let (uid, container, attempt) = (found.uid, found.container, found.attempt);
    // A run that is unknown to all engines has ended.
    let finished = move || {
        !engines.iter().any(|engine| {
            engine.list().iter().any(|status| {
                status.pod.uid == uid
                    && status.name == container
                    && status.attempt == attempt
                    && status.exit().is_none()
            })
        })
    };
    outbound
        .send(LogOpened { stream_id: id }.into())
        .await
        .ok()?;
    let mut stream = runtime::read_logs(found.path, options, finished);
    while let Some(read) = stream.next().await {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => return Some(log_end(id, error.to_string(), false)),
        };
        for part in bytes.chunks(LOG_CHUNK_BYTES) {
            credit.acquire().await.ok()?.forget();
            let chunk = LogChunk {
                stream_id: id,
                data: part.to_vec(),
            };
            outbound.send(chunk.into()).await.ok()?;
        }
    }
    Some(log_end(id, String::new(), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_stay_there() {
        let pauses: Vec<u64> = (0..8).map(|tries| pause(tries).as_secs()).collect();
        assert_eq!(pauses, [1, 1, 2, 4, 8, 15, 15, 15]);
    }
}
