//! What the server does with the messages of an agent.

use std::sync::Arc;
use std::time::Duration;

use resources::devices::NodeInventory;
use rpc::SESSION_SILENCE_SECONDS;
use rpc::agent::v1::{AgentMessage, EventNote, agent_message};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Streaming;

use super::hello::read_inventory;
use super::{AGAIN, Session, SessionServer, health, node_of};
use crate::live_index::LiveIndex;
use crate::measurements;
use crate::node::NodeObjects;
use crate::rollout;
use crate::status::PendingReports;

/// Receives the agent's messages until the connection ends; returns the reason.
pub(super) async fn read(
    server: &SessionServer,
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
        *session.last_message.lock() = Instant::now();
        use agent_message::Body;
        match message.body {
            None | Some(Body::Heartbeat(_)) => {}
            Some(Body::Hello(_)) => return "the agent sent a second Hello".to_owned(),
            Some(Body::PodStatus(status)) => {
                if let Some(phase) = phase_of(&status.status_json) {
                    session.instructions.lock().reported(&status.uid, &phase);
                }
                reports.status(status);
            }
            Some(Body::PodGone(gone)) => {
                session.instructions.lock().gone(&gone.uid);
                reports.gone(gone);
            }
            Some(Body::Event(note)) if is_about_own_pod(&server.index, &session.node, &note) => {
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
            Some(Body::Measurements(measured)) => {
                let sink = server.measurements.as_ref();
                measurements::hand_on(sink, &server.index.lock(), &session.node, measured);
            }
            Some(Body::Health(health)) => health::hear(&session.node, &health, &session.health),
            Some(Body::LogOpened(opened)) => session.logs.opened(opened.stream_id),
            Some(Body::LogChunk(chunk)) => session.logs.chunk(chunk.stream_id, chunk.data.into()),
            Some(Body::LogEnd(end)) => session.logs.ended(end),
            Some(Body::RdmaAnswer(answer)) => session.requests.answered(answer),
            Some(Body::BinaryAsk(request)) => {
                rollout::send_part(&server.rollouts, session, &request);
            }
            Some(Body::BinaryVerdict(verdict)) => {
                rollout::record_answer(&server.rollouts, session, verdict);
            }
        }
    }
}

/// True if an event is about a pod that is bound to the node. A node may not report about other
/// pods.
pub(super) fn is_about_own_pod(index: &LiveIndex, node: &str, note: &EventNote) -> bool {
    let pod = index.lock().pod(&note.namespace, &note.name);
    pod.is_some_and(|pod| {
        pod.metadata.uid.as_deref() == Some(note.uid.as_str()) && node_of(&pod) == Some(node)
    })
}

/// Writes the node's inventory whenever it changes, while its session lasts, in sequence, so that
/// the last report is the one that remains. The first was written with the Hello.
pub(super) async fn write_inventories(
    nodes: &NodeObjects,
    session: &Session,
    mut inventories: watch::Receiver<NodeInventory>,
) {
    while inventories.changed().await.is_ok() {
        let inventory = inventories.borrow_and_update().clone();
        let written = nodes.write_inventory(&session.description, &inventory);
        if let Err(error) = written.await {
            tracing::warn!(node = session.node, %error, "the server could not write an inventory; it tries again");
            tokio::time::sleep(AGAIN).await;
            // Retried with the latest report.
            inventories.mark_changed();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_taken_only_about_a_pod_that_is_bound_to_the_node() {
        let index = LiveIndex::new(Arc::default());
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
            "spec": {"nodeName": "n1", "containers": []},
        }))
        .unwrap();
        index.change(|index| index.put_pod(pod));
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
                is_about_own_pod(&index, node, &note),
                want,
                "{node} {note:?}"
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
