//! Requests to a node's agent: through the server that holds the agent's session or, in a Kubernetes cluster, through
//! an annotation of its Node that the agent answers with another annotation.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use hardware::rdma::pair::{PairAnswer, PairRefusal, PairRequest, Reply, StoredRequest};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use resources::names::{RDMA_ANSWER, RDMA_ASK};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::connection::ServerConnection;
use crate::platform::escape;

/// How long an agent may take to describe its end, which needs no measurement.
const EXAMINE: Duration = Duration::from_secs(15);
/// How long an agent may take for a test; a test takes at most half of that.
const RUN: Duration = Duration::from_secs(60);
/// Interval between checks for an answer.
const LOOK: Duration = Duration::from_millis(200);
/// Number of retries of a write that conflicts with another write to the Node.
const TRIES: u32 = 10;
/// A part of the embedded engine's version string.
const OWN: &str = "+muster";

/// Sends requests to agents.
pub struct Asker<'a> {
    pub connection: &'a ServerConnection,
    cluster: bool,
}

impl<'a> Asker<'a> {
    /// Chooses the way that fits the answering server.
    pub async fn of(connection: &'a ServerConnection) -> Result<Asker<'a>> {
        let version = connection.ask("/version").await?;
        let version = version["gitVersion"].as_str().unwrap_or_default();
        Ok(Asker {
            connection,
            cluster: !version.contains(OWN),
        })
    }

    /// Sends a request to a node's agent and returns the answer.
    pub async fn ask(&self, node: &str, ask: &PairRequest) -> Result<PairAnswer> {
        if self.cluster {
            return self.by_annotation(node, ask).await;
        }
        let path = format!("/api/v1/rdma/{}", escape(node));
        let body: Value = serde_json::to_value(ask)?;
        let answer = self.connection.call("POST", &path, &body).await?;
        serde_json::from_value(answer)
            .with_context(|| format!("node {node:?} answers what this muster does not know"))
    }

    async fn by_annotation(&self, node: &str, ask: &PairRequest) -> Result<PairAnswer> {
        let nodes: Api<Node> = Api::all(self.connection.client.clone());
        let now = Timestamp::now();
        let question = StoredRequest {
            id: format!("{:x}-{:x}", now.as_nanosecond(), std::process::id()),
            asked: now.as_second(),
            ask: ask.clone(),
        };
        put(&nodes, node, &question).await?;
        let answered = answer(&nodes, node, &question).await;
        // The request is over. A command that was killed leaves its request behind; later commands overwrite an old
        // one.
        let gone = json!({"metadata": {"annotations": {RDMA_ASK: null, RDMA_ANSWER: null}}});
        let removed = write(&nodes, node, &gone).await;
        let answered = answered?;
        removed?;
        match answered {
            Ok(answer) => Ok(answer),
            Err(refusal) => Err(refusal.into()),
        }
    }
}

/// How long to wait for an answer.
fn patience(ask: &PairRequest) -> Duration {
    match ask {
        PairRequest::Examine => EXAMINE,
        PairRequest::Serve(_) | PairRequest::Measure { .. } => RUN,
    }
}

/// Writes a question unless another user's question is pending.
async fn put(nodes: &Api<Node>, node: &str, question: &StoredRequest) -> Result<()> {
    let json = serde_json::to_string(question)?;
    for _ in 0..TRIES {
        let found = nodes.get_metadata(node).await?.metadata;
        let stands = found.annotations.as_ref().and_then(|all| all.get(RDMA_ASK));
        if let Some(wait) = stands.and_then(|stands| busy(stands, question.asked)) {
            bail!(
                "node {node:?}: another user has it checked; try again when that check has ended, in {wait} s at most"
            );
        }
        // The write names the version that was read: of two concurrent commands, the second one gets a conflict.
        let note = json!({"metadata": {
            "resourceVersion": found.resource_version,
            "annotations": {RDMA_ASK: json, RDMA_ANSWER: null},
        }});
        match write(nodes, node, &note).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            written => return Ok(written?),
        }
    }
    bail!("the Node {node:?} changes too often to write a request to it; try again");
}

/// For how many more seconds a pending question may be awaited, at a time in seconds since 1970; none if its author
/// has given up.
fn busy(stands: &str, now: i64) -> Option<i64> {
    let question: StoredRequest = serde_json::from_str(stands).ok()?;
    let limit = patience(&question.ask).as_secs().cast_signed();
    let left = question.asked + limit - now;
    (1..=limit).contains(&left).then_some(left)
}

async fn answer(
    nodes: &Api<Node>,
    node: &str,
    question: &StoredRequest,
) -> Result<Result<PairAnswer, PairRefusal>> {
    let limit = patience(&question.ask);
    let asked = Instant::now();
    while asked.elapsed() < limit {
        let found = nodes.get_metadata(node).await?.metadata;
        let annotations = found.annotations.unwrap_or_default();
        if let Some(text) = annotations.get(RDMA_ANSWER) {
            let reply: Reply = serde_json::from_str(text)
                .with_context(|| format!("node {node:?} answers what this muster does not know"))?;
            if reply.id == question.id {
                return Ok(reply.answer);
            }
        }
        sleep(LOOK).await;
    }
    bail!(
        "node {node:?}: its agent has not answered within {} s\n  it must run there with --pair (chart: agent.pair), \
         and may watch its Node; look at its log",
        limit.as_secs()
    );
}

async fn write(nodes: &Api<Node>, node: &str, note: &Value) -> Result<(), kube::Error> {
    let as_us = PatchParams::default();
    let patch = Patch::Merge(note);
    let written = nodes.patch_metadata(node, &as_us, &patch).await;
    written.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_stands_in_others_way_until_who_asked_it_has_given_up() {
        let question = StoredRequest {
            id: "a".to_owned(),
            asked: 1000,
            ask: PairRequest::Examine,
        };
        let stands = serde_json::to_string(&question).unwrap();
        for (now, left) in [
            (1000, Some(15)),
            (1014, Some(1)),
            (1015, None),
            (5000, None),
            // The author's clock is ahead by more than the longest wait.
            (900, None),
        ] {
            assert_eq!(busy(&stands, now), left, "{now}");
        }
        assert_eq!(busy("nothing that is known", 1000), None);
    }
}
