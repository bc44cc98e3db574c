//! KAI Scheduler's cases: which pods run, wait or are evicted, and whether it stays so.
//! `action/` cases are one plan with one action; `cycle/` cases are rounds until nothing moves.

mod comparison;
mod gpus;
mod outcome;
mod scene;

use serde_json::Value;

use self::comparison::compare;
use self::outcome::Seen;
use self::scene::scene;
use crate::Outcome;
use crate::cluster::{Cluster, ORDERS, Scene, text};
use crate::engine::Decisions;

/// Rounds beyond the case's own before its state is compared: later is as good.
const SLACK: u64 = 10;

const GPU: &str = "nvidia.com/gpu";

pub fn run(case: &Value) -> Outcome {
    let scene = scene(case);
    let mut first = None;
    for order in 0..ORDERS {
        let plan = Cluster::new(&scene, order).plan();
        if *first.get_or_insert_with(|| plan.clone()) != plan {
            return Outcome::Fail(format!("order {order}: another plan than in order 0"));
        }
        let result = if text(&case["id"]).starts_with("cycle/") {
            rounds(case, &scene, order)
        } else {
            session(case, &scene, order)
        };
        if let Err(why) = result {
            return Outcome::Fail(format!("order {order}: {why}"));
        }
    }
    Outcome::Pass
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// One plan with one action.
fn session(case: &Value, scene: &Scene, order: u64) -> Result<(), String> {
    let mut cluster = Cluster::new(scene, order);
    let decisions = cluster.plan();
    let seen = Seen::of(scene, &cluster, &decisions);
    let result =
        checked(&cluster, case, &decisions).and_then(|()| compare(case, scene, &cluster, &seen));
    result.map_err(|why| format!("{why}; {}", told(&decisions)))
}

/// Rounds until the state is the case's, and then some.
fn rounds(case: &Value, scene: &Scene, order: u64) -> Result<(), String> {
    let mut cluster = Cluster::new(scene, order);
    let first = case["rounds"].as_u64().unwrap_or(1) + SLACK;
    let last = first + case["stable_rounds"].as_u64().unwrap_or(0);
    let mut past = String::new();
    for round in 1..=last {
        let decisions = cluster.plan();
        note(&mut past, round, &decisions);
        checked(&cluster, case, &decisions).map_err(|why| format!("round {round}: {why}"))?;
        if round >= first {
            let seen = Seen::of(scene, &cluster, &decisions);
            compare(case, scene, &cluster, &seen)
                .map_err(|why| format!("round {round}: {why}; {past}{}", told(&decisions)))?;
        }
        cluster.pass(&decisions);
    }
    Ok(())
}

/// Keeps what a round decided, in short, for when the end is not as wanted.
fn note(past: &mut String, round: u64, decisions: &Decisions) {
    const LONGEST: usize = 600;
    let binds = decisions
        .binds
        .iter()
        .map(|placed| format!("{} to {}", placed.pod, placed.node));
    let evictions = decisions
        .evictions
        .iter()
        .map(|evicted| format!("{} {}", evicted.pod, evicted.why));
    let all: Vec<String> = binds.chain(evictions).collect();
    if !all.is_empty() && past.len() < LONGEST {
        past.push_str(&format!("[{round}: {}] ", all.join(", ")));
    }
}

fn checked(cluster: &Cluster, case: &Value, decisions: &Decisions) -> Result<(), String> {
    if !cluster.faults.is_empty() {
        return Err(cluster.faults.join(", "));
    }
    let bound = case["expect"]["max_per_round"]["evictions"].as_u64();
    if bound == Some(0) && !decisions.evictions.is_empty() {
        return Err(format!("evicts {:?}, wanted nobody", decisions.evictions));
    }
    Ok(())
}

fn told(decisions: &Decisions) -> String {
    let evicted = decisions
        .evictions
        .iter()
        .map(|e| format!("{} {}", e.pod, e.why));
    let waits = decisions
        .waits
        .iter()
        .map(|(group, why)| format!("{group}: {why}"));
    let all: Vec<String> = evicted.chain(waits).collect();
    all.join("; ")
}
