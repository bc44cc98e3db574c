//! The rolling upgrade of agents: the server offers a binary to one agent after another, each fetches
//! it through its session, starts it, and reports the digest in its next Hello. `plan` decides which
//! agent is next; this module observes the sessions, sends the parts, and records the progress, so
//! that a server that starts again goes on.

mod binary;
mod plan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};
use parking_lot::Mutex;
use resources::names::VERSION_REFUSED;
use resources::upgrade::{AgentStatus, NodePhase, Rollout, RolloutNode, RolloutState};
use rpc::agent::v1::{BinaryAsk, BinaryChunk, BinaryVerdict, OfferBinary};
use supervisor::{LoopEnd, contained, keep_running};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::agent_binary::TEXT_MAX;
use crate::error::{FleetError, RolloutError, api};
use crate::open_sessions::{OpenSessions, Session};
use binary::Binary;
use plan::{AgentView, InFlight, OfferAnswer, Verdicts};

/// How often the driver looks at the agents.
const LOOK: Duration = Duration::from_millis(500);

/// The parameters of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutOptions {
    /// The most agents that are upgraded at a time.
    pub max_unavailable: u32,
    /// The binary; the server's own if none.
    pub binary: Option<PathBuf>,
}

/// The rollout of this server, if there is one.
pub struct Rollouts {
    nodes: Api<Node>,
    sessions: Arc<OpenSessions>,
    file: Option<PathBuf>,
    /// How long a binary may take from its start to its first session, in seconds.
    session_seconds: u32,
    current: Mutex<Option<Current>>,
    drivers: Mutex<Vec<AbortHandle>>,
}

struct Current {
    rollout: Rollout,
    binary: Option<Arc<Binary>>,
    verdicts: Verdicts,
    flights: BTreeMap<String, InFlight>,
}

impl Rollouts {
    /// Reads the progress that an earlier server recorded.
    pub fn new(
        client: Client,
        sessions: Arc<OpenSessions>,
        file: Option<PathBuf>,
        node_grace: Duration,
    ) -> Rollouts {
        let current = file.as_deref().and_then(recorded).map(|rollout| Current {
            rollout,
            binary: None,
            verdicts: Verdicts::new(),
            flights: BTreeMap::new(),
        });
        Rollouts {
            nodes: Api::all(client),
            sessions,
            file,
            session_seconds: plan::session_seconds(node_grace),
            current: Mutex::new(current),
            drivers: Mutex::default(),
        }
    }

    fn record(&self, rollout: &Rollout) -> Result<(), durable::Error> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let json = serde_json::to_vec_pretty(rollout).expect("a rollout is always JSON");
        durable::replace(file, &json)
    }

    /// The last rollout; none if there was none.
    pub fn last(&self) -> Option<Rollout> {
        let current = self.current.lock();
        current.as_ref().map(|current| current.rollout.clone())
    }

    /// Offers a binary to the connected agents, one after another. Agents that have it are left
    /// alone, so a rollout that stopped goes on with the same call.
    ///
    /// # Errors
    /// If another binary is being rolled out, if the binary can't be offered, if no agent is
    /// connected, or if the progress can't be recorded.
    pub async fn begin(self: &Arc<Self>, options: RolloutOptions) -> Result<Rollout, RolloutError> {
        let path = options.binary.clone();
        let binary = tokio::task::spawn_blocking(move || Binary::open(path.as_deref()))
            .await
            .map_err(|error| RolloutError::Binary {
                path: options.binary.clone().unwrap_or_default(),
                reason: error.to_string(),
            })??;
        let names = self.sessions.nodes();
        if names.is_empty() {
            return Err(RolloutError::NoAgents);
        }
        let rollout = {
            let mut current = self.current.lock();
            let before = current.as_ref().map(|current| &current.rollout);
            if let Some(before) = before
                && before.state == RolloutState::Running
            {
                // The same again: the caller follows the one that runs.
                return match before.sha256 == binary.sha256 {
                    true => Ok(before.clone()),
                    false => Err(RolloutError::Running),
                };
            }
            let node = |name: String| RolloutNode {
                name,
                phase: NodePhase::Waiting,
                detail: String::new(),
            };
            let rollout = Rollout {
                id: before.map_or(1, |before| before.id + 1),
                sha256: binary.sha256.clone(),
                bytes: binary.bytes,
                binary: options.binary.map(|path| path.display().to_string()),
                max_unavailable: options.max_unavailable,
                state: RolloutState::Running,
                nodes: names.into_iter().map(node).collect(),
            };
            self.record(&rollout)?;
            *current = Some(Current {
                rollout: rollout.clone(),
                binary: Some(Arc::new(binary)),
                verdicts: Verdicts::new(),
                flights: BTreeMap::new(),
            });
            rollout
        };
        self.spawn_driver(rollout.id);
        Ok(rollout)
    }

    /// Stops the rollout before the next agent; true if one was running.
    ///
    /// # Errors
    /// If the progress can't be recorded.
    pub fn stop(&self) -> Result<bool, RolloutError> {
        let mut current = self.current.lock();
        let Some(current) = current
            .as_mut()
            .filter(|current| current.rollout.state == RolloutState::Running)
        else {
            return Ok(false);
        };
        current.rollout.state = RolloutState::Stopped {
            reason: "an administrator stopped it".to_owned(),
        };
        self.record(&current.rollout)?;
        Ok(true)
    }

    /// Goes on with a rollout that an earlier server began, if its binary is still there.
    pub async fn resume(self: &Arc<Self>) {
        let Some(rollout) = self.last().filter(is_unfinished) else {
            return;
        };
        let path = rollout.binary.clone().map(PathBuf::from);
        let opened = tokio::task::spawn_blocking(move || Binary::open(path.as_deref())).await;
        let found = match opened {
            Ok(Ok(binary)) if binary.sha256 == rollout.sha256 => Ok(binary),
            Ok(Ok(_)) => Err("the server's binary is another one since".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Some(current) = &mut *self.current.lock() {
            match found {
                Ok(binary) => current.binary = Some(Arc::new(binary)),
                Err(reason) => {
                    tracing::warn!(reason, "the agents' upgrade does not go on");
                    current.rollout.state = RolloutState::Stopped { reason };
                }
            }
        }
        tracing::info!(rollout = rollout.id, "the agents' upgrade continues");
        self.spawn_driver(rollout.id);
    }

    /// Stops driving; the recorded progress stays.
    pub fn shutdown(&self) {
        for driver in self.drivers.lock().drain(..) {
            driver.abort();
        }
    }

    fn spawn_driver(self: &Arc<Self>, id: u64) {
        let driving = keep_driving(Arc::downgrade(self), id, step);
        self.drivers
            .lock()
            .push(tokio::spawn(driving).abort_handle());
    }

    /// The agents of all nodes with their versions.
    ///
    /// # Errors
    /// If the nodes can't be read.
    pub async fn agents(&self) -> Result<Vec<AgentStatus>, FleetError> {
        let all = self
            .nodes
            .list(&ListParams::default())
            .await
            .map_err(api("listing the nodes"))?;
        let sessions = self.sessions.all();
        let agents = all.items.into_iter().map(|node| {
            let name = node.metadata.name.clone().unwrap_or_default();
            let session = sessions.get(&name);
            let info = node
                .status
                .as_ref()
                .and_then(|status| status.node_info.as_ref());
            AgentStatus {
                version: match session {
                    Some(session) => session.agent.version.clone(),
                    None => info.map_or_else(String::new, |info| info.kubelet_version.clone()),
                },
                connected: session.is_some(),
                refused: condition(&node, VERSION_REFUSED).unwrap_or_default(),
                upgrade_refusal: session.map_or_else(String::new, |s| s.agent.refusal.clone()),
                node: name,
            }
        });
        Ok(agents.collect())
    }
}

fn recorded(file: &Path) -> Option<Rollout> {
    let bytes = match std::fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "the progress of the agents' upgrade is not known");
            return None;
        }
    };
    serde_json::from_slice(&bytes)
        .inspect_err(|error| {
            tracing::warn!(file = %file.display(), %error, "the progress of the agents' upgrade is not known");
        })
        .ok()
}

fn is_unfinished(rollout: &Rollout) -> bool {
    let mut nodes = rollout.nodes.iter();
    rollout.state == RolloutState::Running || nodes.any(|node| node.phase.is_in_flight())
}

/// The message of a condition that is true.
fn condition(node: &Node, kind: &str) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == "True")?;
    Some(found.message.clone().unwrap_or_default())
}

/// One look at all agents, with the nodes that came back and whether each is ready, at a time on the driver's clock;
/// false once there is nothing more to do.
type Step = fn(&Rollouts, u64, &BTreeMap<String, bool>, Duration) -> bool;

/// Drives the rollout until its end. After a panic the driver goes on: nothing of a rollout is its own but the clock,
/// which therefore begins here.
fn keep_driving(rollouts: Weak<Rollouts>, id: u64, step: Step) -> impl Future<Output = ()> + Send {
    let began = Instant::now();
    keep_running("the upgrade of agents", move || {
        let rollouts = rollouts.clone();
        async move {
            if let Some(rollouts) = rollouts.upgrade() {
                drive(&rollouts, id, began, step).await;
            }
            LoopEnd::Finished
        }
    })
}

/// Advances the rollout until it has ended and no agent is in flight, or until another one begins.
async fn drive(rollouts: &Rollouts, id: u64, began: Instant, step: Step) {
    let mut ready = BTreeMap::new();
    loop {
        // Only a node that came back is asked for its condition.
        let back: Vec<String> = {
            let current = rollouts.current.lock();
            let Some(current) = current.as_ref().filter(|current| current.rollout.id == id) else {
                return;
            };
            let sessions = rollouts.sessions.all();
            let in_flight = current.rollout.nodes.iter().filter(|node| {
                sessions
                    .get(&node.name)
                    .is_some_and(|session| session.agent.sha256 == current.rollout.sha256)
                    && !matches!(node.phase, NodePhase::Done | NodePhase::Failed)
            });
            in_flight.map(|node| node.name.clone()).collect()
        };
        ready.clear();
        for name in back {
            let is_ready = contained(is_ready(&rollouts.nodes, &name)).await;
            let is_ready = is_ready.unwrap_or_else(|panic| {
                tracing::error!(node = name, %panic, "the server panicked over a node while it upgrades agents; it goes on with the others, and tries again");
                false
            });
            ready.insert(name, is_ready);
        }
        if !step(rollouts, id, &ready, began.elapsed()) {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether the node's agent says that the node is ready.
async fn is_ready(nodes: &Api<Node>, name: &str) -> bool {
    let found = nodes.get_opt(name).await;
    found.is_ok_and(|node| node.is_some_and(|node| condition(&node, "Ready").is_some()))
}

/// What a [`Step`] does.
fn step(rollouts: &Rollouts, id: u64, ready: &BTreeMap<String, bool>, now: Duration) -> bool {
    let mut current = rollouts.current.lock();
    let Some(current) = current.as_mut().filter(|current| current.rollout.id == id) else {
        return false;
    };
    let sessions = rollouts.sessions.all();
    let view = |(name, session): (&String, &Arc<Session>)| {
        let view = AgentView {
            session: session.id,
            sha256: session.agent.sha256.clone(),
            refusal: session.agent.refusal.clone(),
            failed: session.agent.failed.clone(),
            ready: ready.get(name).copied().unwrap_or_default(),
        };
        (name.clone(), view)
    };
    let views = sessions.iter().map(view).collect();
    let before = current.rollout.clone();
    let offers = plan::advance(
        &mut current.rollout,
        &views,
        &mut current.verdicts,
        &mut current.flights,
        now,
    );
    let rollout = &current.rollout;
    if *rollout != before {
        for (node, earlier) in rollout.nodes.iter().zip(&before.nodes) {
            if node != earlier {
                tracing::info!(
                    node = node.name,
                    phase = node.phase.as_str(),
                    detail = node.detail,
                    "an agent is upgraded"
                );
            }
        }
        if let Err(error) = rollouts.record(rollout) {
            tracing::warn!(%error, "the progress of the agents' upgrade was not recorded");
        }
    }
    for name in offers {
        let offer = OfferBinary {
            id: rollout.id,
            sha256: rollout.sha256.clone(),
            bytes: rollout.bytes,
            session_seconds: rollouts.session_seconds,
        };
        let sent = sessions
            .get(&name)
            .is_some_and(|session| session.try_send(offer));
        if !sent && let Some(flight) = current.flights.get_mut(&name) {
            // Offered again at the next look.
            flight.session = 0;
        }
    }
    is_unfinished(&current.rollout)
}

/// The binary that is offered to a node now.
fn offered(rollouts: &Rollouts, node: &str, id: u64) -> Option<Arc<Binary>> {
    let current = rollouts.current.lock();
    let current = current
        .as_ref()
        .filter(|current| current.rollout.id == id)?;
    let mut nodes = current.rollout.nodes.iter();
    let sending = nodes.any(|one| one.name == node && one.phase == NodePhase::Sending);
    current.binary.clone().filter(|_| sending)
}

/// Sends an agent a part of the binary that was offered to it. An agent asks for one part at a time;
/// a request beyond that is dropped.
pub fn send_part(rollouts: &Rollouts, session: &Arc<Session>, request: &BinaryAsk) {
    let Some(binary) = offered(rollouts, &session.node, request.id) else {
        tracing::debug!(
            node = session.node,
            "the server drops a request for a binary"
        );
        return;
    };
    let Ok(permit) = session.sending.clone().try_acquire_owned() else {
        return;
    };
    let (session, id, offset) = (session.clone(), request.id, request.offset);
    tokio::spawn(async move {
        let part = tokio::task::spawn_blocking(move || binary.part(offset)).await;
        // Before the send: the agent asks for the next part when this one arrives.
        drop(permit);
        match part {
            Ok(Ok(data)) => {
                session.send(BinaryChunk { id, offset, data }).await;
            }
            Ok(Err(error)) => {
                tracing::warn!(node = session.node, %error, "the server could not read the binary for an agent");
            }
            Err(error) => tracing::warn!(node = session.node, %error, "reading a binary failed"),
        }
    });
}

/// Notes an agent's answer to the offer.
pub fn record_answer(rollouts: &Rollouts, session: &Session, verdict: BinaryVerdict) {
    let mut current = rollouts.current.lock();
    let Some(current) = current
        .as_mut()
        .filter(|current| current.rollout.id == verdict.id)
    else {
        return;
    };
    let mut nodes = current.rollout.nodes.iter();
    if !nodes.any(|node| node.name == session.node && node.phase == NodePhase::Sending) {
        return;
    }
    let answer = match verdict.accepted {
        true => OfferAnswer::Accepted,
        false => OfferAnswer::Refused(verdict.detail.chars().take(TEXT_MAX).collect()),
    };
    current.verdicts.insert(session.node.clone(), answer);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;
    use crate::open_sessions::session_for_tests;

    /// A rollout over nodes that are ready, with an agent on each that has the binary that is rolled out. The first read of
    /// node n1 panics. The sessions last as long as the second value.
    fn upgraded(nodes: &[&str]) -> (Arc<Rollouts>, impl Sized) {
        let panics = Arc::new(AtomicBool::new(true));
        let service = tower::service_fn(move |request: Request<Body>| {
            let panics = panics.clone();
            async move {
                let path = request.uri().path();
                let Some(name) = path.strip_prefix("/api/v1/nodes/") else {
                    return Err(std::io::Error::other("nowhere"));
                };
                assert!(
                    name != "n1" || !panics.swap(false, Ordering::SeqCst),
                    "over n1"
                );
                let node = serde_json::json!({
                    "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                });
                Ok(Response::new(Body::from(node.to_string().into_bytes())))
            }
        });
        let sessions: Arc<OpenSessions> = Arc::default();
        let client = Client::new(service, "default");
        let rollouts = Rollouts::new(client, sessions.clone(), None, Duration::from_secs(40));
        let node = |name: &&str| RolloutNode {
            name: (*name).to_owned(),
            phase: NodePhase::Waiting,
            detail: String::new(),
        };
        *rollouts.current.lock() = Some(Current {
            rollout: Rollout {
                id: 1,
                sha256: "new".to_owned(),
                bytes: 1,
                binary: None,
                max_unavailable: 1,
                state: RolloutState::Running,
                nodes: nodes.iter().map(node).collect(),
            },
            binary: None,
            verdicts: Verdicts::new(),
            flights: BTreeMap::new(),
        });
        let register =
            |(id, name): (u64, &&str)| sessions.register(session_for_tests(name, id, "new"));
        let registered: Vec<_> = (1..).zip(nodes).map(register).collect();
        (Arc::new(rollouts), registered)
    }

    fn phases(rollouts: &Rollouts) -> Vec<NodePhase> {
        let rollout = rollouts.last().unwrap();
        rollout.nodes.iter().map(|node| node.phase).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_over_one_node_delays_no_other_and_is_tried_again() {
        let (rollouts, _sessions) = upgraded(&["n1", "n2"]);
        let first: Step = |rollouts, id, ready, now| {
            step(rollouts, id, ready, now);
            false
        };
        drive(&rollouts, 1, Instant::now(), first).await;
        let phases_after_the_panic = phases(&rollouts);
        assert_ne!(phases_after_the_panic[0], NodePhase::Done);
        assert_eq!(phases_after_the_panic[1], NodePhase::Done);
        drive(&rollouts, 1, Instant::now(), step).await;
        assert_eq!(phases(&rollouts), [NodePhase::Done, NodePhase::Done]);
        assert_eq!(rollouts.last().unwrap().state, RolloutState::Done);
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_panics_goes_on() {
        static PANICS: AtomicBool = AtomicBool::new(true);
        let (rollouts, _sessions) = upgraded(&["n2"]);
        let panics_once: Step = |rollouts, id, ready, now| {
            assert!(!PANICS.swap(false, Ordering::SeqCst), "in a step");
            step(rollouts, id, ready, now)
        };
        keep_driving(Arc::downgrade(&rollouts), 1, panics_once).await;
        assert!(!PANICS.load(Ordering::SeqCst));
        assert_eq!(phases(&rollouts), [NodePhase::Done]);
    }
}
