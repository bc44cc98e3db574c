//! Simulated time: processes arrivals, ends and returns in order, and asks a planner for a plan
//! after changes. Owns the order of events and the settings; `stage` processes each event.

pub(crate) mod account;
mod eviction;
mod interrupt;
mod muster;
mod objects;
mod owners;
mod quotas;
mod reservations;
mod stage;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::decision::Decision;
use crate::engine::muster::Muster;
use crate::engine::stage::SimulatedCluster;
use crate::error::SimulatorError;
use crate::gang::{GangIx, Host};
use crate::outcome::SimulationOutcome;
use crate::planner::Planner;
use crate::policy::Policy;
use crate::reference::ReferenceScheduler;
use crate::scenario::{Job, JobWork, Scenario, Seconds};

/// How many plans in a row may result only from the planner's own request to be asked again.
const IDLE_WAKES_MAX: u32 = 1000;

/// The options of a simulation.
#[derive(Clone, Debug)]
pub struct SimulationOptions {
    /// The scheduler's policy.
    pub policy: Policy,
    /// The name in results; the policy's name if none is given.
    pub label: Option<String>,
    /// The least seconds between two plans; changes meanwhile are gathered.
    pub gather: Seconds,
    /// Check every plan of the production scheduler against the invariants.
    pub check: bool,
    /// Seconds from an eviction until the pod is gone.
    pub grace: Seconds,
    /// The seconds between checkpoints; without checkpoints an interruption loses all work.
    pub checkpoint: Option<Seconds>,
    /// Stop at this second.
    pub until: Option<Seconds>,
    /// Record why gangs wait.
    pub reports: bool,
    /// The production scheduler's own settings.
    pub scheduler: scheduler::Config,
}

impl Default for SimulationOptions {
    fn default() -> SimulationOptions {
        SimulationOptions {
            policy: Policy::Muster,
            label: None,
            gather: 1,
            check: true,
            grace: 30,
            checkpoint: None,
            until: None,
            reports: true,
            scheduler: scheduler::Config::default(),
        }
    }
}

/// An event, in the order in which events of one second are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// A gang's work is done, if this is still the same run.
    End { gang: GangIx, run: u32 },
    /// An evicted member is gone.
    Gone { gang: GangIx, member: usize },
}

/// The future events.
#[derive(Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(Seconds, Happening)>>,
}

impl Agenda {
    pub(crate) fn put(&mut self, at: Seconds, what: Happening) {
        self.heap.push(Reverse((at, what)));
    }

    fn next(&self) -> Option<Seconds> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    fn take(&mut self, now: Seconds) -> Option<Happening> {
        (self.next()? <= now)
            .then(|| self.heap.pop().map(|Reverse((_, what))| what))
            .flatten()
    }
}

/// Runs a scenario under a policy. `record` receives each decision as it is made.
pub fn run(
    scenario: &Scenario,
    options: &SimulationOptions,
    record: &mut dyn FnMut(&Decision<'_>),
) -> Result<SimulationOutcome, SimulatorError> {
    let traced = |job: &Job| matches!(job.work, JobWork::Shaped(_));
    if scenario.nodes.is_empty() && scenario.jobs.iter().any(traced) {
        return Err(SimulatorError::Nothing(
            "the input has no node for the trace's jobs; give Node objects in a file, or --cluster 4xhgx-h100".to_owned(),
        ));
    }
    if scenario.jobs.is_empty() {
        return Err(SimulatorError::Nothing(
            "the input has no work: no pod, job or PodGroup, and no line of a trace that ran"
                .to_owned(),
        ));
    }
    let mut hosts: Vec<Host> = scenario.nodes.iter().map(Host::of).collect();
    hosts.extend(
        unknown_nodes(scenario)
            .iter()
            .map(|name| Host::unknown(name)),
    );
    let planner: Box<dyn Planner> = match options.policy.reference() {
        None => Box::new(Muster::new(
            scenario,
            &hosts,
            scenario.settings.applied(options.scheduler.clone()),
            options.check,
            options.reports,
        )),
        Some(kind) => Box::new(ReferenceScheduler::new(kind, &hosts, &scenario.weights())),
    };
    let mut arrivals: Vec<usize> = (0..scenario.jobs.len()).collect();
    arrivals.sort_by_key(|job| (scenario.jobs[*job].arrival, *job));
    let mut arrivals = arrivals.into_iter().peekable();
    let first = arrivals.peek().map_or(0, |job| scenario.jobs[*job].arrival);
    let mut stage = SimulatedCluster::new(scenario, options, hosts, planner, first, record);

    let mut due: Option<Seconds> = None;
    let mut requeue_at: Option<Seconds> = None;
    let mut planned: Option<Seconds> = None;
    let mut idle = 0;
    loop {
        let arrival = arrivals.peek().map(|job| scenario.jobs[*job].arrival);
        let next = [arrival, stage.agenda.next(), due, requeue_at]
            .into_iter()
            .flatten()
            .min();
        let Some(now) = next else { break };
        if options.until.is_some_and(|until| now > until) {
            break;
        }
        if arrival.is_none() && stage.agenda.next().is_none() && due.is_none() {
            idle += 1;
            if idle > IDLE_WAKES_MAX {
                break;
            }
        } else {
            idle = 0;
        }
        stage.advance(now);
        let mut changed = false;
        while let Some(what) = stage.agenda.take(now) {
            changed |= stage.happen(what);
        }
        while let Some(job) = arrivals.next_if(|job| scenario.jobs[*job].arrival <= now) {
            stage.arrive(job);
            changed = true;
            if arrivals.peek().is_none() {
                stage.all_arrived();
            }
        }
        if changed {
            let soonest = planned.map_or(now, |last| now.max(last + options.gather.max(0)));
            due = Some(due.map_or(soonest, |due| due.min(soonest)));
        }
        if due.is_some_and(|due| due <= now)
            || requeue_at.is_some_and(|requeue_at| requeue_at <= now)
        {
            due = None;
            requeue_at = stage.plan();
            planned = Some(now);
        }
    }
    Ok(stage.close(options.until))
}

/// Nodes that pods are bound to and that the scenario lacks.
fn unknown_nodes(scenario: &Scenario) -> BTreeSet<&str> {
    let known: BTreeSet<&str> = scenario
        .nodes
        .iter()
        .filter_map(|node| node.metadata.name.as_deref())
        .collect();
    scenario
        .pods_on_nodes()
        .filter(|name| !known.contains(name))
        .collect()
}
