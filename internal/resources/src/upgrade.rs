//! The state of an upgrade as the server reports it and the command line prints it: the store's
//! format, the agents' versions, the snapshots, and the rollout of a binary to agents. Pure.

use serde::{Deserialize, Serialize};

use crate::release::{Release, check_agent};

/// The state of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeStatus {
    /// The server's version.
    pub server: String,
    /// The store.
    pub store: StoreStatus,
    /// The agents of all nodes, by name.
    pub agents: Vec<AgentStatus>,
    /// The snapshots from before upgrades, the newest first.
    pub snapshots: Vec<SnapshotStatus>,
    /// The last rollout of a binary to agents; none if there was none.
    pub rollout: Option<Rollout>,
}

/// The store's format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// The format that was written.
    pub format: u32,
    /// The oldest format whose binaries read the store.
    pub readable_from: u32,
    /// The upgrade is final: binaries of older formats cannot read the store any more.
    pub finalized: bool,
}

/// A node's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The node.
    pub node: String,
    /// The version that the agent last reported.
    pub version: String,
    /// It has a session now.
    pub connected: bool,
    /// Why the server refuses its version; empty if it does not.
    pub refused: String,
    /// Why the server may not upgrade it; empty if it may, or if it is not connected.
    pub upgrade_refusal: String,
}

/// A snapshot of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The file on the server.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was taken, in seconds since 1970.
    pub taken: i64,
    /// The version that had written the store.
    pub from: String,
    /// The version that took the snapshot.
    pub to: String,
}

/// A rollout of a binary to agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// Its number.
    pub id: u64,
    /// The binary's SHA-256 digest, in hexadecimal.
    pub sha256: String,
    /// The binary's size in bytes.
    pub bytes: u64,
    /// The binary's path on the server; none for the server's own binary.
    pub binary: Option<String>,
    /// The most agents that are upgraded at a time.
    pub max_unavailable: u32,
    /// Its progress.
    pub state: RolloutState,
    /// The nodes, by name.
    pub nodes: Vec<RolloutNode>,
}

/// The progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "phase")]
pub enum RolloutState {
    /// Agents are being upgraded.
    Running,
    /// A failure stopped it, or an administrator: no further agent is upgraded.
    Stopped {
        /// The node and the reason.
        reason: String,
    },
    /// Every agent has the binary, or may not be upgraded by the server.
    Done,
}

/// One node of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutNode {
    /// The node.
    pub name: String,
    /// Its progress.
    pub phase: NodePhase,
    /// Why it failed or was left out; empty otherwise.
    #[serde(default)]
    pub detail: String,
}

/// The progress of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NodePhase {
    /// Not begun.
    Waiting,
    /// The agent receives the binary.
    Sending,
    /// The agent has the binary and starts it.
    Restarting,
    /// The agent runs the binary, and the node is ready.
    Done,
    /// The agent kept its binary, or went back to it.
    Failed,
    /// The server may not upgrade this agent.
    Skipped,
}

impl NodePhase {
    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NodePhase::Waiting => "Waiting",
            NodePhase::Sending => "Sending",
            NodePhase::Restarting => "Restarting",
            NodePhase::Done => "Done",
            NodePhase::Failed => "Failed",
            NodePhase::Skipped => "Skipped",
        }
    }

    /// The agent may be away for the upgrade.
    #[must_use]
    pub fn is_in_flight(self) -> bool {
        matches!(self, NodePhase::Sending | NodePhase::Restarting)
    }
}

/// The agents that a finalization must not leave behind, each with the reason: agents whose version
/// this server does not accept. Once the upgrade is final, no older server can take them back.
#[must_use]
pub fn left_behind(server: Release, agents: &[AgentStatus]) -> Vec<String> {
    let reason = |agent: &AgentStatus| {
        if !agent.refused.is_empty() {
            return Some(agent.refused.clone());
        }
        if !agent.connected {
            return None;
        }
        check_agent(server, &agent.version)
            .err()
            .map(|error| error.to_string())
    };
    let found = agents
        .iter()
        .filter_map(|agent| Some(format!("node {}: {}", agent.node, reason(agent)?)));
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_the_server_refuses_hinder_a_finalization_and_absent_ones_do_not() {
        let agent = |node: &str, version: &str, connected: bool, refused: &str| AgentStatus {
            node: node.to_owned(),
            version: version.to_owned(),
            connected,
            refused: refused.to_owned(),
            ..AgentStatus::default()
        };
        let server: Release = "0.4.0".parse().unwrap();
        let agents = [
            agent("a", "v0.4.0+muster", true, ""),
            agent("b", "v0.2.1+muster", true, ""),
            agent("c", "v0.1.0+muster", true, ""),
            agent("d", "v0.1.0+muster", false, ""),
            agent("e", "v0.1.0+muster", false, "too old"),
        ];
        let found = left_behind(server, &agents);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("node c: "), "{found:?}");
        assert_eq!(found[1], "node e: too old");
    }
}
