//! Processes each event of the simulation: gangs arrive, are placed, run, are interrupted, end.
//! Updates the account and the results on the way.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use resources::devices::chosen;

use crate::decision::{Decision, DecisionDetail};
use crate::engine::account::Account;
use crate::engine::objects::{Made, Maker, own_duration, queue_of};
use crate::engine::owners::JobOwner;
use crate::engine::quotas::{self, NamespaceQuotas};
use crate::engine::{Agenda, Happening, SimulationOptions};
use crate::gang::{GangIx, GangPod, Host, MemberStage as Standing, NodeIndex, SimulatedGang};
use crate::outcome::{GangOutcome, SimulationOutcome};
use crate::planner::{PlanDecisions, Planner};
use crate::scenario::{Job, JobWork, Scenario, Seconds};

/// A gang that a quota does not admit, with everything needed to admit it later.
struct QuotaBlockedGang {
    made: Made,
    job: usize,
    owner: Option<usize>,
    result: usize,
}

/// The simulated cluster at a moment.
pub(crate) struct SimulatedCluster<'a> {
    scenario: &'a Scenario,
    pub(super) options: &'a SimulationOptions,
    record: &'a mut dyn FnMut(&Decision<'_>),
    policy: String,
    pub(super) planner: Box<dyn Planner>,
    maker: Maker,
    pub(crate) agenda: Agenda,
    pub(super) hosts: Vec<Host>,
    /// The memory of the cluster's smallest GPU, in MiB, if known.
    gpu_memory: Option<i64>,
    nodes: BTreeMap<String, NodeIndex>,
    queues: BTreeMap<String, usize>,
    pub(super) account: Account,
    quotas: NamespaceQuotas,
    kept_out: BTreeMap<String, VecDeque<QuotaBlockedGang>>,
    owners: Vec<JobOwner>,
    pub(super) gangs: Vec<SimulatedGang>,
    pub(super) outcome: SimulationOutcome,
    /// Nominations and reservations, as last recorded.
    pub(super) holds: BTreeMap<(GangIx, usize), (NodeIndex, Option<Timestamp>)>,
    pub(super) now: Seconds,
}

impl<'a> SimulatedCluster<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        options: &'a SimulationOptions,
        hosts: Vec<Host>,
        planner: Box<dyn Planner>,
        first: Seconds,
        record: &'a mut dyn FnMut(&Decision<'_>),
    ) -> SimulatedCluster<'a> {
        let names = scenario
            .queues
            .iter()
            .map(|queue| queue.metadata.name.clone().unwrap_or_default());
        let names: Vec<String> = names.collect();
        let weights = scenario.weights();
        let label = options
            .label
            .clone()
            .unwrap_or_else(|| options.policy.to_string());
        let mut account = Account::new(&hosts, &weights);
        account.begin(first);
        SimulatedCluster {
            outcome: SimulationOutcome {
                policy: label.clone(),
                start: scenario.start,
                gpu_milli: account.total(),
                nodes: scenario.nodes.len(),
                first,
                last: first,
                queues: names.clone(),
                weights,
                ..SimulationOutcome::default()
            },
            policy: label,
            planner,
            maker: Maker::new(scenario),
            agenda: Agenda::default(),
            nodes: hosts
                .iter()
                .enumerate()
                .map(|(at, host)| (host.name.to_string(), at))
                .collect(),
            queues: names
                .into_iter()
                .enumerate()
                .map(|(at, name)| (name, at))
                .collect(),
            gpu_memory: hosts.iter().filter_map(|host| host.gpu_memory).min(),
            hosts,
            account,
            quotas: NamespaceQuotas::new(&scenario.quotas),
            kept_out: BTreeMap::new(),
            owners: Vec::new(),
            gangs: Vec::new(),
            holds: BTreeMap::new(),
            now: first,
            scenario,
            options,
            record,
        }
    }

    pub(crate) fn advance(&mut self, now: Seconds) {
        self.account.advance(now);
        self.now = now;
    }

    fn say(&mut self, namespace: &str, group: &str, what: DecisionDetail<'_>) {
        let span = SignedDuration::from_secs(self.now);
        let decision = Decision {
            policy: &self.policy,
            at: self
                .scenario
                .start
                .checked_add(span)
                .unwrap_or(Timestamp::MAX),
            second: self.now,
            namespace,
            group,
            what,
        };
        (self.record)(&decision);
    }

    pub(super) fn say_of(&mut self, at: GangIx, what: DecisionDetail<'_>) {
        let (namespace, name) = (
            self.gangs[at].namespace.clone(),
            self.gangs[at].name.clone(),
        );
        self.say(&namespace, &name, what);
    }

    fn queue_at(&mut self, name: &str) -> usize {
        if let Some(at) = self.queues.get(name) {
            return *at;
        }
        let at = self.outcome.queues.len();
        self.outcome.queues.push(name.to_owned());
        self.outcome.weights.push(1);
        self.account.add_queue(1);
        self.queues.insert(name.to_owned(), at);
        at
    }

    /// A job arrives.
    pub(crate) fn arrive(&mut self, at: usize) {
        let scenario = self.scenario;
        let job = &scenario.jobs[at];
        let (made, owner) = match &job.work {
            JobWork::Shaped(shapes) => (vec![self.maker.shaped(job, shapes)], None),
            JobWork::Pods(group, pods) => {
                let mut made = self.maker.written(group.as_deref(), pods, job.arrival);
                // Pods that the input shows as bound stay where they are.
                for (pod, written) in made.pods.iter_mut().zip(pods) {
                    pod.status.clone_from(&written.status);
                }
                (vec![made], None)
            }
            JobWork::PyTorch(training) => (vec![self.maker.pytorch(training, job.arrival)], None),
            JobWork::Batch(batch) => {
                let mut owner = JobOwner::new(&self.maker, batch, at, job.arrival);
                let made = owner.reconcile(&self.maker, job.arrival);
                self.owners.push(owner);
                (made, Some(self.owners.len() - 1))
            }
        };
        for made in made {
            self.admit(made, at, owner, None);
        }
    }

    /// Admits a gang, or keeps it aside while a quota has no room.
    fn admit(&mut self, made: Made, job: usize, owner: Option<usize>, known: Option<usize>) {
        let written = &self.scenario.jobs[job];
        if made.pods.is_empty() && made.group.is_none() {
            return;
        }
        let lone = made.group.is_none();
        let meta = match &made.group {
            Some(group) => &group.metadata,
            None => &made.pods[0].metadata,
        };
        let namespace = meta
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let name = meta.name.clone().unwrap_or_default();
        let queue_name = queue_of(&made);
        let queue = self.queue_at(&queue_name);
        let duration = own_duration(&made).or(written.duration);
        let result = known.unwrap_or_else(|| {
            self.outcome.gangs.push(GangOutcome {
                namespace: namespace.clone(),
                name: name.clone(),
                queue,
                members: made.pods.len(),
                arrived: self.now,
                duration,
                ..GangOutcome::default()
            });
            self.outcome.gangs.len() - 1
        });
        if self.quotas.bind(&namespace)
            && let Err(over) = self.quotas.take(&namespace, &made.pods)
        {
            if known.is_none() {
                let report = quotas::over(&namespace, &name, &queue_name, &made, &over);
                self.outcome.gangs[result].verdict = Some(report.verdict);
                self.say(
                    &namespace,
                    &name,
                    DecisionDetail::Pending {
                        queue: &queue_name,
                        report: &report,
                    },
                );
            }
            let line = self.kept_out.entry(namespace).or_default();
            let out = QuotaBlockedGang {
                made,
                job,
                owner,
                result,
            };
            line.push_back(out);
            return;
        }
        let priority = made
            .pods
            .first()
            .and_then(|pod| pod.spec.as_ref()?.priority);
        let class = made
            .group
            .as_ref()
            .and_then(|group| group.spec.priority_class_name.clone());
        let class = class.or_else(|| {
            made.pods
                .first()?
                .spec
                .as_ref()?
                .priority_class_name
                .clone()
        });
        let gang = SimulatedGang {
            namespace,
            name,
            lone,
            group: made.group,
            queue,
            priority: self.priority(class.as_deref(), priority),
            members: {
                let memory = self.gpu_memory;
                let members = made.pods.into_iter();
                members.map(|pod| GangPod::new(pod, memory)).collect()
            },
            arrived: self.now,
            duration,
            estimate: written.walltime.or(duration),
            kept: 0,
            whole_since: None,
            run: 0,
            ended: false,
            owner,
            last_reason: None,
            result,
        };
        self.enter(gang, written);
    }

    fn priority(&self, class: Option<&str>, own: Option<i32>) -> i32 {
        let classes = &self.scenario.priority_classes;
        let named = classes
            .iter()
            .find(|it| it.metadata.name.as_deref() == class && class.is_some());
        let default = || classes.iter().find(|it| it.global_default == Some(true));
        named
            .map(|it| it.value)
            .or(own)
            .or_else(|| default().map(|it| it.value))
            .unwrap_or(0)
    }

    fn enter(&mut self, mut gang: SimulatedGang, job: &Job) {
        let at = self.gangs.len();
        let milli = gang.gpu_milli();
        self.outcome.gangs[gang.result].gpu_milli = milli;
        let mut leaving = Vec::new();
        for (place, member) in gang.members.iter_mut().enumerate() {
            let bound = member
                .pod
                .spec
                .as_mut()
                .and_then(|spec| spec.node_name.take());
            let status = member.pod.status.take();
            let deleted = member.pod.metadata.deletion_timestamp.take();
            let Some(node) = bound.and_then(|name| self.nodes.get(&name).copied()) else {
                continue;
            };
            member.since = status
                .and_then(|status| status.start_time)
                .map(|time| time.0);
            member.stage = Standing::Placed { node };
            if let Some(deleted) = deleted {
                member.stage = Standing::Leaving { node };
                let owners = member.pod.metadata.owner_references.as_ref();
                member.last = gang.lone && owners.is_none_or(Vec::is_empty);
                // The deletion timestamp is the end of the grace period.
                let until = deleted.0.as_second() - self.scenario.start.as_second();
                let since = self.now.max(until - self.options.grace.max(0));
                leaving.push((place, since));
            }
            member.devices = chosen(member.pod.metadata.annotations.as_ref());
            self.account.hold(node, gang.queue, member.ask.gpu_milli);
        }
        self.account.wait(gang.queue, milli);
        let before = gang.whole();
        self.gangs.push(gang);
        if before {
            self.outcome.gangs[self.gangs[at].result].ran_before = true;
            self.begin(at, job.elapsed);
        }
        self.planner.arrived(at, &self.gangs[at], self.now);
        for (place, since) in leaving {
            self.leave(at, place, since, self.options.grace);
        }
    }

    /// A gang became complete; `elapsed` of its work was done before.
    fn begin(&mut self, at: GangIx, elapsed: Seconds) {
        let gang = &mut self.gangs[at];
        gang.whole_since = Some(self.now);
        gang.last_reason = None;
        gang.run += 1;
        gang.kept = gang.kept.max(elapsed);
        let (queue, milli, placed) = (gang.queue, gang.gpu_milli(), gang.placed_milli());
        if let Some(duration) = gang.duration {
            let end = self.now + (duration - gang.kept).max(0);
            self.agenda.put(
                end,
                Happening::End {
                    gang: at,
                    run: gang.run,
                },
            );
        }
        self.account.stop_waiting(queue, milli);
        self.account.work(placed);
        let waited = self.now - gang.arrived;
        let result = &mut self.outcome.gangs[gang.result];
        result.verdict = None;
        if result.started.is_none() {
            result.started = Some(self.now);
        }
        let queue = self.outcome.queues[queue].clone();
        self.say_of(
            at,
            DecisionDetail::Started {
                queue: &queue,
                gpu_milli: milli,
                waited,
            },
        );
    }

    /// Processes an event. Returns whether anything changed.
    pub(crate) fn happen(&mut self, what: Happening) -> bool {
        match what {
            Happening::End { gang, run } => {
                let own = &self.gangs[gang];
                let current = !own.ended && own.run == run && own.whole_since.is_some();
                if current {
                    self.end(gang);
                }
                current
            }
            Happening::Gone { gang, member } => self.gone(gang, member),
        }
    }

    fn end(&mut self, at: GangIx) {
        let placed = self.gangs[at].placed_milli();
        let gang = &mut self.gangs[at];
        gang.ended = true;
        let queue = gang.queue;
        if gang.whole_since.is_some() {
            self.account.work(-placed);
        } else {
            self.account.stop_waiting(queue, gang.gpu_milli());
        }
        for member in &gang.members {
            if let Standing::Placed { node } | Standing::Leaving { node } = member.stage {
                self.account.hold(node, queue, -member.ask.gpu_milli);
            }
        }
        self.planner.ended(at, &self.gangs[at], self.now);
        let gang = &mut self.gangs[at];
        let members = std::mem::take(&mut gang.members);
        gang.group = None;
        let (owner, namespace, completion) =
            (gang.owner, gang.namespace.clone(), self.now - gang.arrived);
        self.outcome.gangs[gang.result].ended = Some(self.now);
        self.outcome.last = self.now;
        self.say_of(at, DecisionDetail::Ended { completion });
        if self.quotas.bind(&namespace) {
            let pods: Vec<_> = members.iter().map(|member| member.pod.clone()).collect();
            self.quotas.give_back(&namespace, &pods);
            let waiting = self.kept_out.remove(&namespace).unwrap_or_default();
            for out in waiting {
                self.admit(out.made, out.job, out.owner, Some(out.result));
            }
        }
        if let Some(owner) = owner {
            for member in &members {
                self.owners[owner].succeeded(member.name());
            }
            let made = self.owners[owner].reconcile(&self.maker, self.now);
            let job = self.owners[owner].written;
            for made in made {
                self.admit(made, job, Some(owner), None);
            }
        }
    }

    /// An evicted member's grace period is over: its resources are free, and its successor waits.
    fn gone(&mut self, at: GangIx, place: usize) -> bool {
        let gang = &mut self.gangs[at];
        if gang.ended {
            return false;
        }
        let queue = gang.queue;
        let Some(member) = gang.members.get_mut(place) else {
            return false;
        };
        let Standing::Leaving { node } = member.stage else {
            return false;
        };
        let (pod, last) = (member.name().to_owned(), member.last);
        let host = self.hosts[node].name.clone();
        self.say_of(
            at,
            DecisionDetail::Gone {
                pod: &pod,
                node: &host,
            },
        );
        if last {
            self.end(at);
            return true;
        }
        let Some(member) = self.gangs[at].members.get_mut(place) else {
            return false;
        };
        member.stage = Standing::Waiting;
        member.since = None;
        member.devices.clear();
        member.generation += 1;
        if let Some(annotations) = &mut member.pod.metadata.annotations {
            annotations.remove(resources::names::DEVICES);
        }
        self.account.hold(node, queue, -member.ask.gpu_milli);
        self.planner.returned(at, &self.gangs[at], place, self.now);
        true
    }

    /// The last job has arrived.
    pub(crate) fn all_arrived(&mut self) {
        self.outcome.arriving = Some(self.account.so_far());
    }

    /// Asks for a plan and carries it out. Returns when to ask again.
    pub(crate) fn plan(&mut self) -> Option<Seconds> {
        let decided = self.planner.plan(&self.gangs, self.now);
        self.outcome.plans += 1;
        let requeue_at = decided.requeue_at;
        self.carry_out(decided);
        requeue_at
    }

    fn carry_out(&mut self, decided: PlanDecisions) {
        for what in &decided.violations {
            self.outcome.violations += 1;
            self.say("", "", DecisionDetail::Violation { what });
        }
        let mut touched: BTreeMap<GangIx, Vec<usize>> = BTreeMap::new();
        for evict in decided.evictions {
            self.evict(evict);
        }
        if let Some(holds) = decided.holds {
            self.hold(holds, &decided.starts);
        }
        for start in decided.starts {
            let gang = &mut self.gangs[start.gang];
            let before = gang.placed_milli();
            let whole = gang.whole_since.is_some();
            let member = &mut gang.members[start.member];
            member.stage = Standing::Placed { node: start.node };
            member.since = Some(self.maker.now(self.now));
            member.devices = start.devices;
            self.account
                .hold(start.node, gang.queue, member.ask.gpu_milli);
            if whole {
                let more = gang.placed_milli() - before;
                self.account.work(more);
            }
            self.outcome.binds += 1;
            touched.entry(start.gang).or_default().push(start.member);
            let (namespace, name) = (
                self.gangs[start.gang].namespace.clone(),
                self.gangs[start.gang].name.clone(),
            );
            let pod = self.gangs[start.gang].members[start.member]
                .name()
                .to_owned();
            let devices = self.gangs[start.gang].members[start.member].devices.clone();
            let node = self.hosts[start.node].name.clone();
            self.say(
                &namespace,
                &name,
                DecisionDetail::Bound {
                    pod: &pod,
                    node: &node,
                    devices: &devices,
                },
            );
        }
        for (at, members) in touched {
            if self.gangs[at].whole_since.is_none() && self.gangs[at].whole() {
                self.begin(at, 0);
            }
            self.planner
                .running(at, &self.gangs[at], &members, self.now);
        }
        for (at, estimate) in decided.estimates {
            let gang = &self.gangs[at];
            let result = &mut self.outcome.gangs[gang.result];
            if gang.whole_since.is_none() && result.started.is_none() && result.foretold.is_none() {
                result.foretold = Some(estimate);
            }
        }
        for (at, report) in decided.reports {
            let gang = &mut self.gangs[at];
            if gang.last_reason == Some(report.verdict) {
                continue;
            }
            gang.last_reason = Some(report.verdict);
            if gang.whole_since.is_none() {
                self.outcome.gangs[gang.result].verdict = Some(report.verdict);
            }
            let queue = self.outcome.queues[self.gangs[at].queue].clone();
            self.say_of(
                at,
                DecisionDetail::Pending {
                    queue: &queue,
                    report: &report,
                },
            );
        }
    }

    /// The end of the simulation.
    pub(crate) fn close(mut self, until: Option<Seconds>) -> SimulationOutcome {
        if let Some(until) = until {
            self.advance(until.max(self.now));
        }
        self.outcome.last = self.outcome.last.max(self.now);
        let (whole, series, width, fairness) = self.account.close();
        self.outcome.whole = whole;
        self.outcome.series = series;
        self.outcome.width = width;
        self.outcome.fairness = fairness;
        self.outcome
    }
}
