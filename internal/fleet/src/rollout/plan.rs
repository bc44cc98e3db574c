//! Which agent is upgraded next. Pure: the driver reports what it observes, and this decides.
//!
//! Problem: every agent gets the binary, at most `max_unavailable` are away at a time, and a binary
//! that does not work must not reach the whole cluster. Method: a state for each node; the first
//! failure stops further offers, and nodes in flight are followed to their end. Cost: one pass over
//! the nodes. Example: with 10 nodes and `max_unavailable` 2, a binary that does not start reaches 2
//! nodes, which go back to the binary before. `e2e/tests/upgrade.rs` holds it.

use std::collections::BTreeMap;
use std::time::Duration;

use resources::upgrade::{NodePhase, Rollout, RolloutNode, RolloutState};

/// How long an agent may take to receive and verify a binary.
const SENDING_MAX: Duration = Duration::from_secs(15 * 60);
/// The limits on the time from a binary's start to its first session, in seconds.
const SESSION_SECONDS: (u64, u64) = (10, 90);
/// How long an agent may be away: the longest time for its new binary, and as long to go back.
const AWAY_MAX: Duration = Duration::from_secs(3 * SESSION_SECONDS.1);

/// How long a binary may take from its start to its first session before the agent goes back, in
/// seconds: half of the time after which the pods of a silent node are lost, so that a binary that
/// fails costs no pod. With the default grace of 40 s these are 20 s.
pub fn session_seconds(node_grace: Duration) -> u32 {
    let seconds = (node_grace.as_secs() / 2).clamp(SESSION_SECONDS.0, SESSION_SECONDS.1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// What the driver observes of a connected agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentView {
    /// Its session.
    pub session: u64,
    /// The digest of its binary.
    pub sha256: String,
    /// Why the server may not upgrade it; empty if it may.
    pub refusal: String,
    /// The last binary that it went back from, and why.
    pub failed: Option<(String, String)>,
    /// The node is ready.
    pub ready: bool,
}

/// What the driver remembers of a node in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// When its phase began.
    pub since: Duration,
    /// The session in which the binary was offered.
    pub session: u64,
}

/// An agent's answer to the offer of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferAnswer {
    /// It has the binary and starts it.
    Accepted,
    /// It keeps its own, for this reason.
    Refused(String),
}

/// The answers of agents to the offer, by node.
pub type Verdicts = BTreeMap<String, OfferAnswer>;

/// Advances a rollout at a time on the driver's clock; returns the nodes to which the binary is to be
/// offered now.
pub fn advance(
    rollout: &mut Rollout,
    agents: &BTreeMap<String, AgentView>,
    verdicts: &mut Verdicts,
    flights: &mut BTreeMap<String, InFlight>,
    now: Duration,
) -> Vec<String> {
    let mut offers = Vec::new();
    let target = rollout.sha256.clone();
    for node in &mut rollout.nodes {
        let view = agents.get(&node.name);
        if view.is_some_and(|view| view.sha256 == target && view.ready) {
            if matches!(node.phase, NodePhase::Waiting) || node.phase.is_in_flight() {
                settle(node, NodePhase::Done, "");
            }
            continue;
        }
        if node.phase.is_in_flight() {
            follow(node, view, &target, verdicts, flights, now, &mut offers);
        } else if node.phase == NodePhase::Waiting
            && let Some(view) = view
            && !view.refusal.is_empty()
        {
            settle(node, NodePhase::Skipped, &view.refusal);
        }
    }
    flights.retain(|name, _| {
        let node = rollout.nodes.iter().find(|node| node.name == *name);
        node.is_some_and(|node| node.phase.is_in_flight())
    });
    let failed = rollout
        .nodes
        .iter()
        .find(|node| node.phase == NodePhase::Failed);
    if let Some(node) = failed
        && rollout.state == RolloutState::Running
    {
        let reason = format!("node {}: {}", node.name, node.detail);
        rollout.state = RolloutState::Stopped { reason };
    }
    if rollout.state != RolloutState::Running {
        return offers;
    }
    begin(rollout, agents, flights, now, &mut offers);
    let in_flight = rollout.nodes.iter().any(|node| node.phase.is_in_flight());
    let mut waiting = rollout
        .nodes
        .iter()
        .filter(|node| node.phase == NodePhase::Waiting);
    if !in_flight {
        rollout.state = match waiting.next() {
            None => RolloutState::Done,
            Some(node) => RolloutState::Stopped {
                reason: format!(
                    "node {}: its agent is not connected; start it, or remove the node (`muster node remove {0}`), \
                     then run `muster upgrade agents` again",
                    node.name
                ),
            },
        };
    }
    offers
}

/// Begins as many waiting nodes as may be away.
fn begin(
    rollout: &mut Rollout,
    agents: &BTreeMap<String, AgentView>,
    flights: &mut BTreeMap<String, InFlight>,
    now: Duration,
    offers: &mut Vec<String>,
) {
    let away = rollout
        .nodes
        .iter()
        .filter(|node| node.phase.is_in_flight())
        .count();
    let free = (rollout.max_unavailable as usize).saturating_sub(away);
    let waiting = rollout
        .nodes
        .iter_mut()
        .filter(|node| node.phase == NodePhase::Waiting)
        .filter_map(|node| agents.get(&node.name).map(|view| (node, view)));
    for (node, view) in waiting.take(free) {
        node.phase = NodePhase::Sending;
        let flight = InFlight {
            since: now,
            session: view.session,
        };
        flights.insert(node.name.clone(), flight);
        offers.push(node.name.clone());
    }
}

/// Follows a node in flight.
fn follow(
    node: &mut RolloutNode,
    view: Option<&AgentView>,
    target: &str,
    verdicts: &mut Verdicts,
    flights: &mut BTreeMap<String, InFlight>,
    now: Duration,
    offers: &mut Vec<String>,
) {
    // None after a restart of the server: the clock begins again.
    let flight = flights.entry(node.name.clone()).or_insert(InFlight {
        since: now,
        session: 0,
    });
    let waited = now.saturating_sub(flight.since);
    if node.phase == NodePhase::Sending {
        match verdicts.remove(&node.name) {
            Some(OfferAnswer::Refused(reason)) => settle(node, NodePhase::Failed, &reason),
            Some(OfferAnswer::Accepted) => {
                node.phase = NodePhase::Restarting;
                flight.since = now;
            }
            None if waited > SENDING_MAX => {
                let minutes = SENDING_MAX.as_secs() / 60;
                let reason = format!("its agent did not get the binary within {minutes} min");
                settle(node, NodePhase::Failed, &reason);
            }
            // The connection broke, or the server started again: the agent has dropped the part that
            // it had, or it has started the binary and comes back with its digest.
            None => {
                if let Some(view) = view
                    && view.session != flight.session
                {
                    if let Some(reason) = failure(view, target)
                        && flight.session != 0
                    {
                        settle(node, NodePhase::Failed, reason);
                    } else if view.sha256 != target {
                        flight.session = view.session;
                        offers.push(node.name.clone());
                    }
                }
            }
        }
        return;
    }
    if let Some(view) = view
        && view.session != flight.session
        && view.sha256 != target
    {
        let reason = failure(view, target).unwrap_or(
            "its agent came back with the binary before, without a reason; read the agent's log",
        );
        settle(node, NodePhase::Failed, reason);
    } else if waited > AWAY_MAX {
        let seconds = AWAY_MAX.as_secs();
        let reason = match view {
            Some(_) => format!("the node is not ready {seconds} s after its agent's upgrade"),
            None => format!("its agent did not come back within {seconds} s; read the agent's log"),
        };
        settle(node, NodePhase::Failed, &reason);
    }
}

/// Why an agent went back from this binary, if it did.
fn failure<'a>(view: &'a AgentView, target: &str) -> Option<&'a str> {
    let (sha256, reason) = view.failed.as_ref()?;
    (sha256 == target).then_some(reason)
}

fn settle(node: &mut RolloutNode, phase: NodePhase, detail: &str) {
    node.phase = phase;
    detail.clone_into(&mut node.detail);
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "new";

    struct Played {
        rollout: Rollout,
        agents: BTreeMap<String, AgentView>,
        verdicts: Verdicts,
        flights: BTreeMap<String, InFlight>,
        now: Duration,
    }

    impl Played {
        fn of(nodes: &[&str], max_unavailable: u32) -> Played {
            let node = |name: &&str| RolloutNode {
                name: (*name).to_owned(),
                phase: NodePhase::Waiting,
                detail: String::new(),
            };
            let view = |name: &&str| {
                let view = AgentView {
                    session: 1,
                    sha256: "old".to_owned(),
                    ready: true,
                    ..AgentView::default()
                };
                ((*name).to_owned(), view)
            };
            Played {
                rollout: Rollout {
                    id: 1,
                    sha256: NEW.to_owned(),
                    bytes: 1,
                    binary: None,
                    max_unavailable,
                    state: RolloutState::Running,
                    nodes: nodes.iter().map(node).collect(),
                },
                agents: nodes.iter().map(view).collect(),
                verdicts: Verdicts::new(),
                flights: BTreeMap::new(),
                now: Duration::ZERO,
            }
        }

        fn advance(&mut self) -> Vec<String> {
            advance(
                &mut self.rollout,
                &self.agents,
                &mut self.verdicts,
                &mut self.flights,
                self.now,
            )
        }

        fn agent(&mut self, name: &str) -> &mut AgentView {
            self.agents.get_mut(name).unwrap()
        }

        fn accept(&mut self, name: &str) {
            self.verdicts.insert(name.to_owned(), OfferAnswer::Accepted);
        }

        /// The agent comes back in another session.
        fn back(&mut self, name: &str, sha256: &str) {
            let view = self.agent(name);
            view.session += 1;
            view.sha256 = sha256.to_owned();
        }

        fn phases(&self) -> Vec<NodePhase> {
            self.rollout.nodes.iter().map(|node| node.phase).collect()
        }

        fn stopped(&self) -> &str {
            match &self.rollout.state {
                RolloutState::Stopped { reason } => reason,
                state => panic!("{state:?}"),
            }
        }
    }

    #[test]
    fn a_binary_that_fails_goes_back_before_its_nodes_pods_are_lost() {
        for (grace, seconds) in [(40, 20), (60, 30), (3600, 90), (5, 10)] {
            assert_eq!(
                session_seconds(Duration::from_secs(grace)),
                seconds,
                "{grace}"
            );
        }
    }

    #[test]
    fn every_agent_gets_the_binary_and_no_more_than_permitted_are_away() {
        let mut played = Played::of(&["a", "b", "c"], 2);
        assert_eq!(played.advance(), ["a", "b"]);
        assert_eq!(played.advance(), [""; 0], "offered once");
        played.accept("a");
        assert_eq!(played.advance(), [""; 0]);
        use NodePhase::{Done, Restarting, Sending, Waiting};
        assert_eq!(played.phases(), [Restarting, Sending, Waiting]);
        // Back, and not ready yet.
        played.back("a", NEW);
        played.agent("a").ready = false;
        assert_eq!(played.advance(), [""; 0]);
        played.agent("a").ready = true;
        assert_eq!(played.advance(), ["c"]);
        assert_eq!(played.phases(), [Done, Sending, Sending]);
        for name in ["b", "c"] {
            played.accept(name);
            played.back(name, NEW);
        }
        played.advance();
        assert_eq!(played.rollout.state, RolloutState::Done);
        assert!(played.flights.is_empty());
    }

    #[test]
    fn the_first_failure_stops_it_and_names_node_and_reason() {
        for (failing, words) in [
            ("refused", "no space"),
            ("back", "no session within 90 s"),
            ("silent", "did not come back"),
            ("stuck", "did not get the binary"),
        ] {
            let mut played = Played::of(&["a", "b"], 1);
            played.advance();
            match failing {
                "refused" => {
                    let why = "no space".to_owned();
                    played
                        .verdicts
                        .insert("a".to_owned(), OfferAnswer::Refused(why));
                }
                "stuck" => played.now = SENDING_MAX + Duration::from_secs(1),
                _ => {
                    played.accept("a");
                    played.advance();
                    if failing == "back" {
                        played.back("a", "old");
                        let why = "no session within 90 s".to_owned();
                        played.agent("a").failed = Some((NEW.to_owned(), why));
                    } else {
                        played.agents.remove("a");
                        played.now = AWAY_MAX + Duration::from_secs(1);
                    }
                }
            }
            assert_eq!(played.advance(), [""; 0], "{failing}: b is left alone");
            let reason = played.stopped();
            assert!(
                reason.starts_with("node a: ") && reason.contains(words),
                "{reason}"
            );
            assert_eq!(played.phases()[1], NodePhase::Waiting);
        }
    }

    #[test]
    fn a_node_in_flight_is_followed_after_another_one_failed() {
        let mut played = Played::of(&["a", "b", "c"], 2);
        played.advance();
        played
            .verdicts
            .insert("a".to_owned(), OfferAnswer::Refused("x".to_owned()));
        played.accept("b");
        assert_eq!(played.advance(), [""; 0]);
        played.back("b", NEW);
        assert_eq!(played.advance(), [""; 0]);
        use NodePhase::{Done, Failed, Waiting};
        assert_eq!(played.phases(), [Failed, Done, Waiting]);
    }

    #[test]
    fn an_agent_that_upgrades_otherwise_is_left_out_and_an_absent_one_is_named() {
        let mut played = Played::of(&["a", "b", "c"], 3);
        played.agent("a").refusal = "use apt".to_owned();
        played.agents.remove("b");
        assert_eq!(played.advance(), ["c"]);
        played.accept("c");
        played.back("c", NEW);
        played.advance();
        use NodePhase::{Done, Skipped, Waiting};
        assert_eq!(played.phases(), [Skipped, Waiting, Done]);
        assert_eq!(played.rollout.nodes[0].detail, "use apt");
        assert!(
            played
                .stopped()
                .starts_with("node b: its agent is not connected")
        );
    }

    #[test]
    fn a_broken_connection_and_a_restarted_server_offer_again() {
        let mut played = Played::of(&["a"], 1);
        played.advance();
        played.back("a", "old");
        assert_eq!(played.advance(), ["a"], "in the new session");
        played.flights.clear();
        assert_eq!(played.advance(), ["a"], "by the new server");
        // It had started the binary before the server learned that.
        played.back("a", NEW);
        played.advance();
        assert_eq!(played.rollout.state, RolloutState::Done);
    }
}
