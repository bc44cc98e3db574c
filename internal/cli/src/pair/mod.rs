//! `muster doctor --pair NODE`: whether the RDMA settings of two nodes match, and the bandwidth and latency between
//! them. Each node's own agent describes and measures its end.

mod agent_requests;

use std::net::IpAddr;

use agent_requests::Asker;
use anyhow::{Context, Result, bail};
use hardware::rdma::pair::{self, EndPort, PairAnswer, PairEnd, PairRequest, Test, TestRun};
use hardware::rdma::{self, CheckOutcome as Found, RdmaCheck};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::{error_message, output};
use crate::arguments::Doctor;

/// A node and the description of its end.
struct PairSide {
    name: String,
    end: PairEnd,
}

/// Checks and measures RDMA between two nodes, and prints a table.
pub async fn pair(connection: &ServerConnection, arguments: Doctor) -> Result<CommandOutcome> {
    let there = arguments.pair.context("--pair: which node?")?;
    let here = arguments
        .node
        .context("--node: this host has no name of its own; name the first node")?;
    if here == there {
        bail!(
            "--pair: {there} is the first node itself; name another (--node says which is the first)"
        );
    }
    let asker = Asker::of(connection).await?;
    // Waits for both answers even if one fails, so that no question stays on a Node.
    let (one, other) = tokio::join!(examine(&asker, &here), examine(&asker, &there));
    let (one, other) = (one?, other?);
    for side in [&one, &other] {
        let pods = &side.end.pods;
        if !pods.is_empty() && !arguments.force {
            bail!(
                "pods with GPUs run on {} ({}), from which a test takes bandwidth\n  wait until they have ended, or say --force",
                side.name,
                pods.join(", ")
            );
        }
    }
    for side in [&one, &other] {
        let count = side.end.ports.len();
        output::put_line(&format!(
            "{} ({}): {count} RDMA port(s) that work uses",
            side.name, side.end.address
        ))?;
    }
    let mut checks = pair::compare((&one.name, &one.end), (&other.name, &other.end));
    checks.extend(measurements(&asker, &one, &other, arguments.force).await);
    output::put(&rdma::draw(&checks))?;
    let failed = checks.iter().any(|check| check.answer == Found::Fail);
    Ok(if failed {
        CommandOutcome::No
    } else {
        CommandOutcome::Yes
    })
}

async fn examine(asker: &Asker<'_>, node: &str) -> Result<PairSide> {
    match asker.ask(node, &PairRequest::Examine).await? {
        PairAnswer::End(end) => Ok(PairSide {
            name: node.to_owned(),
            end,
        }),
        other => bail!("node {node:?} answered another request than this one: {other:?}"),
    }
}

/// Measures every rail of a pair: bandwidth each way, then the latency.
async fn measurements(
    asker: &Asker<'_>,
    one: &PairSide,
    other: &PairSide,
    force: bool,
) -> Vec<RdmaCheck> {
    let (mut checks, mut times) = (Vec::new(), Vec::new());
    for (at, of) in pair::rails(&one.end, &other.end) {
        let ends = [(one, &one.end.ports[at]), (other, &other.end.ports[of])];
        for [from, to] in [ends, [ends[1], ends[0]]] {
            let (first, second) = ((from.0.name.as_str(), from.1), (to.0.name.as_str(), to.1));
            checks.push(match run(asker, Test::Bandwidth, from, to, force).await {
                Ok(gbits) => pair::check_bandwidth(first, second, gbits),
                Err(why) => pair::unmeasured(Test::Bandwidth, first, second, &why.to_string()),
            });
        }
        match run(asker, Test::Latency, ends[0], ends[1], force).await {
            Ok(micros) => times.push((ends[0].1, ends[1].1, micros)),
            Err(why) => {
                let [first, second] = ends.map(|(side, port)| (side.name.as_str(), port));
                let why = why.to_string();
                checks.push(pair::unmeasured(Test::Latency, first, second, &why));
            }
        }
    }
    checks.extend(pair::check_latencies(&times));
    checks
}

/// Why a test has no result.
#[derive(Debug, thiserror::Error)]
enum NoResult {
    #[error("{node} reports no address of its own; give its agent --node-address")]
    NoAddress { node: String },
    #[error("{node} does not say where it listens")]
    NoPort { node: String },
    #[error("{node} does not say what it measured")]
    NotMeasured { node: String },
    /// The agent is unreachable, or refused.
    #[error("{0}")]
    NoAnswer(String),
}

/// One test from one port to another.
async fn run(
    asker: &Asker<'_>,
    test: Test,
    from: (&PairSide, &EndPort),
    to: (&PairSide, &EndPort),
    force: bool,
) -> Result<f64, NoResult> {
    let on = |port: &EndPort| TestRun {
        test,
        card: port.card.clone(),
        port: port.number,
        force,
    };
    let unanswered = |error: anyhow::Error| {
        let error = error_message::in_words(error, asker.connection);
        NoResult::NoAnswer(format!("{error:#}"))
    };
    let address: IpAddr = (to.0.end.address.parse()).map_err(|_| NoResult::NoAddress {
        node: to.0.name.clone(),
    })?;
    let serving = asker.ask(&to.0.name, &PairRequest::Serve(on(to.1))).await;
    let PairAnswer::Serving(tcp) = serving.map_err(unanswered)? else {
        let node = to.0.name.clone();
        return Err(NoResult::NoPort { node });
    };
    let measure = PairRequest::Measure {
        run: on(from.1),
        address,
        tcp,
    };
    let measured = asker.ask(&from.0.name, &measure).await;
    match measured.map_err(unanswered)? {
        PairAnswer::Measured(result) => Ok(result),
        _ => Err(NoResult::NotMeasured {
            node: from.0.name.clone(),
        }),
    }
}
