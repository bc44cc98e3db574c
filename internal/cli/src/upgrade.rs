//! `muster upgrade`: the state of an upgrade, its finalization, and the rolling upgrade of agents.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use resources::upgrade::{
    AgentStatus, NodePhase, Rollout, RolloutState, StoreStatus, UpgradeStatus,
};
use serde_json::{Value, json};

use super::connection::{ServerConnection, absolute};
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use crate::arguments::{Output, UpgradeAgents, UpgradeCommand};

const STATUS: &str = "/api/v1/upgrade";
const AGENTS: &str = "/api/v1/upgrade/agents";

/// How often the progress is asked for.
const LOOK: Duration = Duration::from_secs(1);
/// How many questions in a row may stay without an answer: the server may be started again meanwhile.
const MISSED_MAX: u32 = 60;

/// Runs one of the commands.
pub async fn upgrade(
    connection: &ServerConnection,
    command: UpgradeCommand,
) -> Result<CommandOutcome> {
    match command {
        UpgradeCommand::Status(listing) => status(connection, listing.output).await,
        UpgradeCommand::Finalize => finalize(connection).await,
        UpgradeCommand::Agents(arguments) if arguments.stop => stop(connection).await,
        UpgradeCommand::Agents(arguments) => agents(connection, arguments).await,
        UpgradeCommand::Rollback => unreachable!("the binary runs it on the server's machine"),
    }
}

async fn fetch(connection: &ServerConnection) -> Result<(Value, UpgradeStatus)> {
    let answer = connection.ask(STATUS).await?;
    let status = serde_json::from_value(answer.clone())
        .context("the server's answer is not the state of an upgrade")?;
    Ok((answer, status))
}

async fn status(connection: &ServerConnection, form: Option<Output>) -> Result<CommandOutcome> {
    let (answer, status) = fetch(connection).await?;
    if let Some(form @ (Output::Json | Output::Yaml)) = form {
        output::print_value(&answer, form)?;
    } else {
        output::put(&words(&status))?;
    }
    Ok(CommandOutcome::Yes)
}

fn words(status: &UpgradeStatus) -> String {
    let StoreStatus {
        format,
        readable_from,
        finalized,
    } = status.store;
    let mut out = format!("server {}, store format {format}, ", status.server);
    out.push_str(&match finalized {
        true => "finalized\n".to_owned(),
        false => format!(
            "not finalized: the version before can still read the store (from format {readable_from} on); once all is \
             well, run `muster upgrade finalize`\n"
        ),
    });
    if !status.agents.is_empty() {
        let mut table = Table::new(["NODE", "AGENT", "CONNECTED", "UPGRADE"]);
        for agent in &status.agents {
            let connected = if agent.connected { "yes" } else { "no" };
            table.row([&agent.node, &agent.version, connected, &remark(agent)]);
        }
        out.push('\n');
        out.push_str(&table.render());
    }
    if !status.snapshots.is_empty() {
        let mut table = Table::new(["SNAPSHOT", "FROM", "TO", "TAKEN", "BYTES"]);
        for snapshot in &status.snapshots {
            let taken = Timestamp::from_second(snapshot.taken);
            table.row([
                snapshot.path.clone(),
                snapshot.from.clone(),
                snapshot.to.clone(),
                taken.map_or_else(|_| String::new(), |taken| taken.to_string()),
                snapshot.bytes.to_string(),
            ]);
        }
        out.push('\n');
        out.push_str(&table.render());
    }
    if let Some(rollout) = &status.rollout {
        out.push('\n');
        out.push_str(&sentence(rollout));
        out.push('\n');
    }
    out
}

fn remark(agent: &AgentStatus) -> String {
    match (&*agent.refused, agent.connected, &*agent.upgrade_refusal) {
        ("", false, _) => "-".to_owned(),
        ("", true, "") => "by the server".to_owned(),
        ("", true, refusal) => refusal.to_owned(),
        (refused, _, _) => format!("refused: {refused}"),
    }
}

/// The progress of a rollout in a sentence.
fn sentence(rollout: &Rollout) -> String {
    let count = |phase: NodePhase| {
        let nodes = rollout.nodes.iter();
        nodes.filter(|node| node.phase == phase).count()
    };
    let total = rollout.nodes.len();
    let skipped = match count(NodePhase::Skipped) {
        0 => String::new(),
        skipped => format!(", {skipped} upgraded otherwise"),
    };
    let done = format!(
        "agents' upgrade to {}: {} of {total} done{skipped}",
        rollout.sha256.get(..12).unwrap_or(&rollout.sha256),
        count(NodePhase::Done),
    );
    match &rollout.state {
        RolloutState::Running => format!("{done}, going on"),
        RolloutState::Stopped { reason } => format!("{done}, stopped: {reason}"),
        RolloutState::Done => done,
    }
}

async fn finalize(connection: &ServerConnection) -> Result<CommandOutcome> {
    let path = "/api/v1/upgrade/finalization";
    let answer = connection.call("POST", path, &Value::Null).await?;
    let store: StoreStatus =
        serde_json::from_value(answer).context("the server's answer is not a store's format")?;
    output::put_line(&format!(
        "the upgrade is final: a muster that knows only formats before {} can't read the store any more",
        store.format
    ))?;
    Ok(CommandOutcome::Yes)
}

async fn stop(connection: &ServerConnection) -> Result<CommandOutcome> {
    let answer = connection.call("DELETE", AGENTS, &Value::Null).await?;
    let stopped = answer["stopped"].as_bool().unwrap_or_default();
    output::put_line(match stopped {
        true => "the agents' upgrade stops before the next agent",
        false => "no upgrade of agents is running",
    })?;
    Ok(CommandOutcome::Yes)
}

async fn agents(connection: &ServerConnection, arguments: UpgradeAgents) -> Result<CommandOutcome> {
    let body = json!({
        "maxUnavailable": arguments.max_unavailable,
        "binary": arguments.binary.as_deref().map(absolute),
    });
    let answer = connection.call("POST", AGENTS, &body).await?;
    let mut shown: Rollout =
        serde_json::from_value(answer).context("the server's answer is not a rollout")?;
    if arguments.detach {
        output::put_line(&sentence(&shown))?;
        return Ok(CommandOutcome::Yes);
    }
    let id = shown.id;
    shown.nodes.clear();
    let mut missed = 0;
    loop {
        let now = match fetch(connection).await {
            Ok((_, status)) => status.rollout,
            Err(error) if missed >= MISSED_MAX => return Err(error),
            Err(_) => {
                missed += 1;
                tokio::time::sleep(LOOK).await;
                continue;
            }
        };
        missed = 0;
        let now = now
            .filter(|rollout| rollout.id == id)
            .context("the server does not know this upgrade any more; run the command again")?;
        for line in changes(&shown, &now) {
            output::put_line(&line)?;
        }
        let in_flight = now.nodes.iter().any(|node| node.phase.is_in_flight());
        match &now.state {
            RolloutState::Done => {
                output::put_line(&sentence(&now))?;
                return Ok(CommandOutcome::Yes);
            }
            RolloutState::Stopped { .. } if !in_flight => {
                output::put_line(&sentence(&now))?;
                output::tell("`muster upgrade agents` goes on with the agents that are left")?;
                return Ok(CommandOutcome::No);
            }
            _ => {}
        }
        shown = now;
        tokio::time::sleep(LOOK).await;
    }
}

/// A line for each node whose progress changed.
fn changes(before: &Rollout, now: &Rollout) -> Vec<String> {
    let changed = now.nodes.iter().filter(|node| {
        let earlier = before.nodes.iter().find(|other| other.name == node.name);
        node.phase != NodePhase::Waiting && earlier.is_none_or(|other| other.phase != node.phase)
    });
    let line = |node: &resources::upgrade::RolloutNode| match &*node.detail {
        "" => format!("{}: {}", node.name, node.phase.as_str()),
        detail => format!("{}: {}: {detail}", node.name, node.phase.as_str()),
    };
    changed.map(line).collect()
}

#[cfg(test)]
mod tests {
    use resources::upgrade::RolloutNode;

    use super::*;

    fn rollout(phases: &[NodePhase], state: RolloutState) -> Rollout {
        let node = |(number, phase): (usize, &NodePhase)| RolloutNode {
            name: format!("n{number}"),
            phase: *phase,
            detail: match phase {
                NodePhase::Failed => "no space".to_owned(),
                _ => String::new(),
            },
        };
        Rollout {
            id: 1,
            sha256: "0123456789abcdef".to_owned(),
            bytes: 1,
            binary: None,
            max_unavailable: 1,
            state,
            nodes: phases.iter().enumerate().map(node).collect(),
        }
    }

    #[test]
    fn progress_is_told_once_a_change_and_the_end_in_a_sentence() {
        use NodePhase::{Done, Failed, Sending, Skipped, Waiting};
        let first = rollout(&[Sending, Waiting], RolloutState::Running);
        let nothing = rollout(&[], RolloutState::Running);
        assert_eq!(changes(&nothing, &first), ["n0: Sending"]);
        let reason = "node n1: no space".to_owned();
        let last = rollout(&[Done, Failed, Skipped], RolloutState::Stopped { reason });
        let lines = ["n0: Done", "n1: Failed: no space", "n2: Skipped"];
        assert_eq!(changes(&first, &last), lines);
        assert_eq!(changes(&last, &last), [""; 0]);
        assert_eq!(
            sentence(&last),
            "agents' upgrade to 0123456789ab: 1 of 3 done, 1 upgraded otherwise, stopped: node n1: no space"
        );
    }

    #[test]
    fn the_state_names_what_is_left_to_do() {
        let mut status = UpgradeStatus {
            server: "0.2.0".to_owned(),
            store: StoreStatus {
                format: 2,
                readable_from: 1,
                finalized: false,
            },
            agents: vec![AgentStatus {
                node: "n1".to_owned(),
                version: "v0.1.0+muster".to_owned(),
                connected: true,
                ..AgentStatus::default()
            }],
            snapshots: Vec::new(),
            rollout: None,
        };
        let text = words(&status);
        assert!(
            text.starts_with("server 0.2.0, store format 2, not finalized"),
            "{text}"
        );
        assert!(text.contains("muster upgrade finalize"), "{text}");
        let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["n1", "v0.1.0+muster", "yes", "by", "the", "server"]);
        status.store.finalized = true;
        assert!(words(&status).starts_with("server 0.2.0, store format 2, finalized\n"));
    }
}
