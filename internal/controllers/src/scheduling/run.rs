//! The loop: takes changes in, plans shortly after the first of them, and keeps a bounded
//! number of writes under way. Everything it must remember is in the API: it may be stopped
//! at any time and starts by listing.

mod outcomes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use jiff::Timestamp;
use parking_lot::Mutex;
use scheduler::{Bind, Event, Eviction, GroupRef, GroupUpdate, Plan, PodRef, Recut, Unscheduled};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::binder::{self, Outcome};
use super::board::ReportBoard;
use super::brain::Brain;
use super::claims::{self, Claims};
use super::evictor::{self, Evicted};
use super::feed::{self, Told};
use super::keeper;
use super::lane::Lane;
use super::queues::Book;
use super::recutter;
use super::rests::Rests;
use super::set_aside::{self, SetAside, Subject};
use super::statuses::{self, Transitions, about_group, about_pod};
use super::stopped;
use crate::again::{self, caught};
use crate::notes::{Kind, Notes};
use crate::{Config, Context};

/// Changes are gathered for so long before they are planned for, or for as long as the last
/// plan took.
const GATHER: Duration = Duration::from_millis(5);
/// The same while bindings wait to be written: what a plan decided would come after them, and each of
/// them is told of as a change.
const GATHER_BESIDE_BINDS: Duration = Duration::from_millis(50);
/// How many changes are taken in before the loop looks at anything else.
const CHANGES_AT_ONCE: usize = 1024;
/// How many bindings may be under way at once.
const BINDS_IN_FLIGHT: usize = 128;
/// How many evictions may be under way at once.
const EVICTIONS_IN_FLIGHT: usize = 32;
/// No new plan is made while so many binds wait to be written.
const BINDS_WAITING_MAX: usize = 65_536;
/// How many statuses and conditions may be under way at once.
const WRITES_IN_FLIGHT: usize = 16;
/// The same while bindings wait: what the API can take goes to them first. Words that wait
/// meanwhile become one.
const WRITES_BESIDE_BINDS: usize = 1;
/// And so long statuses and conditions wait for the bindings to be through, before they are written
/// beside them: many small gangs that start at once have a status each.
const WORDS_GIVE_WAY: Duration = Duration::from_secs(5);
/// Up to so many members of gangs that one plan binds, each has an event of its own: who starts
/// more at once reads their PodGroup's, and their pods'.
const MEMBERS_TOLD: usize = 64;
/// How long a PodGroup's new wording waits when nothing else is new.
const GROUP_WORDS_EVERY: Duration = Duration::from_secs(5);
/// How long a pod's new reason waits.
const POD_WORDS_EVERY: Duration = Duration::from_secs(10);
/// How often queues' statuses are written at most.
const QUEUES_EVERY: Duration = Duration::from_secs(1);

/// Namespace and name of a pod.
type PodKey = (String, String);

/// A pod's reason for waiting.
#[derive(Clone)]
struct PodWord {
    pod: PodRef,
    /// A pod without a PodGroup: the event is about it.
    lone: bool,
    message: String,
}

/// A write that has ended.
enum Written {
    Group(GroupRef, Result<(), kube::Error>),
    Pod(PodKey, Result<(), kube::Error>),
    Queue(String, Result<(), kube::Error>),
    Recut(Box<recutter::Told>),
}

/// A plan that is being made: when it was begun, and what comes of it.
struct Planning {
    started: Instant,
    made: JoinHandle<(Plan, usize)>,
}

struct Loop {
    client: kube::Client,
    config: Arc<Config>,
    /// What is left out for a while, because the loop panicked over it.
    aside: Arc<Mutex<SetAside>>,
    board: Arc<ReportBoard>,
    brain: Arc<Mutex<Brain>>,
    notes: Notes,
    listed: BTreeSet<&'static str>,
    gather: Duration,
    plan_due: Option<Instant>,
    planning: Option<Planning>,
    /// How many kinds must be listed.
    kinds: usize,
    /// Gangs whose volumes are bound first.
    claims: Claims,
    claiming: FuturesUnordered<BoxFuture<'static, keeper::Written>>,
    /// Bindings to write; and whether the pod is told by an event of its own.
    binds: VecDeque<(Bind, bool)>,
    binding: FuturesUnordered<BoxFuture<'static, (Outcome, bool)>>,
    evictions: VecDeque<Eviction>,
    /// Nodes to tell how their GPUs are to be cut.
    recuts: VecDeque<Recut>,
    evicting: FuturesUnordered<BoxFuture<'static, Evicted>>,
    groups: Lane<GroupRef, GroupUpdate>,
    pods: Lane<PodKey, PodWord>,
    writes: FuturesUnordered<BoxFuture<'static, Written>>,
    transitions: Transitions,
    /// What each PodGroup's events last said.
    said: BTreeMap<GroupRef, String>,
    /// Gangs for which something failed.
    rests: Rests,
    /// Nodes that were told of, or that others took room of, while bindings wait to be written.
    touched: BTreeSet<String>,
    queues: Book,
    queues_due: Option<Instant>,
}

/// Runs until the context says stop.
pub(super) async fn run(mut ctx: Context, board: Arc<ReportBoard>, aside: Arc<Mutex<SetAside>>) {
    aside.lock().begin();
    let brain = board.brain();
    *brain.lock() = Brain::new(&ctx.config.scheduler);
    let (mut changes, kinds) = feed::feed(&ctx.client, &ctx.config.scheduler);
    let mut this = Loop {
        notes: Notes::new(ctx.client.clone(), "muster-scheduler"),
        client: ctx.client.clone(),
        config: ctx.config.clone(),
        aside,
        board,
        brain,
        listed: BTreeSet::new(),
        gather: GATHER,
        plan_due: None,
        planning: None,
        kinds,
        claims: Claims::default(),
        claiming: FuturesUnordered::new(),
        binds: VecDeque::new(),
        binding: FuturesUnordered::new(),
        evictions: VecDeque::new(),
        recuts: VecDeque::new(),
        evicting: FuturesUnordered::new(),
        groups: Lane::new(GROUP_WORDS_EVERY),
        pods: Lane::new(POD_WORDS_EVERY),
        writes: FuturesUnordered::new(),
        transitions: Transitions::default(),
        said: BTreeMap::new(),
        rests: Rests::default(),
        touched: BTreeSet::new(),
        queues: Book::default(),
        queues_due: None,
    };
    loop {
        this.start_writes(Instant::now());
        let next = this.next_due();
        tokio::select! {
            () = stopped(&mut ctx.stop) => return this.finish().await,
            // The plan has what it is made from to itself.
            made = made(&mut this.planning), if this.planning.is_some() => this.planned(made),
            told = changes.next(), if this.planning.is_none() => match told {
                Some(told) => this.take_changes(told, &mut changes),
                None => return,
            },
            Some(outcome) = this.binding.next(), if !this.binding.is_empty() => this.bound(outcome),
            Some(written) = this.claiming.next(), if !this.claiming.is_empty() => this.claims.written(written),
            Some(evicted) = this.evicting.next(), if !this.evicting.is_empty() => this.evicted(evicted),
            Some(written) = this.writes.next(), if !this.writes.is_empty() => this.written(written),
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
        this.plan_if_due();
    }
}

/// What comes of the plan that is being made, once that is known.
async fn made(planning: &mut Option<Planning>) -> Result<(Plan, usize), JoinError> {
    match planning {
        Some(planning) => (&mut planning.made).await,
        None => std::future::pending().await,
    }
}

impl Loop {
    /// May plans be made? Not before everything was listed: a plan over part of the cluster
    /// would give away what others hold.
    fn ready(&self) -> bool {
        self.listed.len() == self.kinds
            && self.binds.len() < BINDS_WAITING_MAX
            && self.planning.is_none()
    }

    /// How long changes are gathered now before they are planned for.
    fn gathers(&self) -> Duration {
        if self.binds.is_empty() {
            self.gather
        } else {
            self.gather.max(GATHER_BESIDE_BINDS)
        }
    }

    fn plan_by(&mut self, due: Instant) {
        self.plan_due = Some(self.plan_due.map_or(due, |old| old.min(due)));
    }

    fn next_due(&self) -> Option<Instant> {
        let plan = self.plan_due.filter(|_| self.ready());
        let writes = (self.writes.len() < self.writes_max()).then(|| {
            let patience = self.patience();
            [self.groups.next_due(patience), self.pods.next_due(patience)]
                .into_iter()
                .flatten()
                .min()
        });
        let queues = self.queues_due.filter(|_| self.reckons_queues());
        let claims = self.claims.next_due().filter(|_| self.planning.is_none());
        let aside = self.aside.lock().next_due().filter(|_| self.ready());
        let all = [plan, writes.flatten(), queues, claims, aside];
        all.into_iter().flatten().min()
    }

    fn take_changes(&mut self, first: Told, changes: &mut BoxStream<'static, Told>) {
        let brain = self.brain.clone();
        let mut brain = brain.lock();
        let mut told = Some(first);
        for _ in 0..CHANGES_AT_ONCE {
            match told {
                Some(told) => self.take_in(told, &mut brain),
                None => break,
            }
            told = changes.next().now_or_never().flatten();
        }
        if let Some(told) = told {
            self.take_in(told, &mut brain);
        }
        self.reconsider(&mut brain);
        drop(brain);
        self.plan_by(Instant::now() + self.gathers());
    }

    fn take_in(&mut self, told: Told, brain: &mut Brain) {
        match told {
            Told::Change(event) => {
                let admitted = self.aside.lock().admit(event);
                if let Some(event) = admitted {
                    self.take_change(event, brain);
                }
            }
            Told::Listed(kind) => self.has_listed(kind),
        }
    }

    fn take_change(&mut self, event: Event, brain: &mut Brain) {
        self.heed(&event);
        if !self.binds.is_empty()
            && let Some(node) = brain.news_of(&event)
        {
            self.touched.insert(node.to_owned());
        }
        let subjects = set_aside::subjects_of(&event);
        if let Err(panic) = caught(|| brain.apply(event)) {
            self.aside.lock().blame(subjects.clone(), Instant::now());
            self.give_up(brain, &subjects, &panic.0);
        }
    }

    /// The scheduler panicked: its state may be changed in part, and is not used again. The loop ends, and
    /// begins with a list and without these.
    fn give_up(&self, brain: &mut Brain, subjects: &[Subject], panic: &str) -> ! {
        *brain = Brain::new(&self.config.scheduler);
        tracing::error!(
            panic,
            ?subjects,
            "the scheduler panicked over these and leaves them out for a while"
        );
        let words = again::panicked_note(panic);
        for about in subjects.iter().filter_map(set_aside::reference) {
            self.notes
                .note(&about, Kind::Warning, again::PANICKED, &words);
        }
        std::panic::resume_unwind(Box::new(panic.to_owned()))
    }

    /// Takes in what was told of those that have been left out for long enough.
    fn try_again(&mut self, now: Instant) {
        let events = self.aside.lock().release(now);
        if events.is_empty() {
            return;
        }
        let brain = self.brain.clone();
        let mut brain = brain.lock();
        for event in events {
            self.take_in(Told::Change(event), &mut brain);
        }
        drop(brain);
        self.plan_by(now + self.gathers());
    }

    /// Keeps back those of the bindings that wait to be written that what was told since speaks
    /// against.
    fn reconsider(&mut self, brain: &mut Brain) {
        let touched = std::mem::take(&mut self.touched);
        if touched.is_empty() {
            return;
        }
        let now = Timestamp::now();
        self.binds.retain(|(bind, _)| {
            let against = touched.contains(&bind.node).then(|| brain.objection(bind));
            let Some(against) = against.flatten() else {
                return true;
            };
            tracing::info!(pod = %bind.pod.name, namespace = %bind.pod.namespace, node = %bind.node, against, "a binding is not written and planned anew");
            brain.bind_failed(&bind.pod, &bind.group, now, None);
            false
        });
    }

    fn has_listed(&mut self, kind: &'static str) {
        self.listed.insert(kind);
        if self.listed.len() == self.kinds {
            self.board.tally().set_listed();
        }
    }

    /// The server stops: what was begun is written to its end, and of what was decided the bindings,
    /// since a gang is not to be left half bound. The rest is decided anew at the next start.
    async fn finish(mut self) {
        self.evictions.clear();
        loop {
            self.start_binds();
            tokio::select! {
                Some(outcome) = self.binding.next(), if !self.binding.is_empty() => self.bound(outcome),
                Some(evicted) = self.evicting.next(), if !self.evicting.is_empty() => self.evicted(evicted),
                Some(written) = self.writes.next(), if !self.writes.is_empty() => self.written(written),
                else => return,
            }
        }
    }

    /// What the loop itself must know of a change.
    fn heed(&mut self, event: &Event) {
        self.claims.heed(event);
        match event {
            Event::PodChanged(pod) if pod.spec.as_ref().is_some_and(|s| s.node_name.is_some()) => {
                let meta = &pod.metadata;
                let name = |field: &Option<String>| field.clone().unwrap_or_default();
                self.pods.forget(&(name(&meta.namespace), name(&meta.name)));
            }
            Event::PodGone(namespace, name) => {
                self.pods.forget(&(namespace.clone(), name.clone()));
                self.rests.forget(&GroupRef {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    lone: true,
                });
            }
            Event::PodGroupChanged(group) => self.transitions.see(group),
            Event::PodGroupGone(namespace, name) => {
                let group = GroupRef {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    lone: false,
                };
                self.groups.forget(&group);
                self.transitions.forget(&group);
                self.said.remove(&group);
                self.rests.forget(&group);
            }
            Event::QueueChanged(queue) => self.queues.see(queue),
            Event::QueueGone(name) => self.queues.forget(name),
            _ => {}
        }
    }

    fn plan_if_due(&mut self) {
        let now = Instant::now();
        if self.ready() {
            self.try_again(now);
        }
        if self.planning.is_none() && self.claims.stirred(now) {
            let brain = self.brain.clone();
            let settled = self.claims.settle(brain.lock().scheduler(), now);
            if !settled.is_empty() {
                settled.into_iter().for_each(|gang| self.settled(gang, now));
                self.reconsider(&mut brain.lock());
                self.plan_by(now + self.gathers());
            }
        }
        if self.ready() && self.plan_due.is_some_and(|due| due <= now) {
            self.plan_due = None;
            let brain = self.brain.clone();
            // Off the runtime's threads: a large plan takes a while, and bindings go on meanwhile.
            let plan = move || brain.lock().plan(Timestamp::now());
            self.planning = Some(Planning {
                started: now,
                made: tokio::task::spawn_blocking(plan),
            });
        }
        if self.reckons_queues() && self.queues_due.is_some_and(|due| due <= now) {
            self.queues_due = None;
            let views = self.brain.lock().queues();
            for (name, patch) in self.queues.news(&views) {
                let client = self.client.clone();
                let write = async move {
                    let result = super::queues::write(client, name.clone(), patch).await;
                    Written::Queue(name, result)
                };
                self.writes.push(write.boxed());
            }
        }
    }

    /// May queues' statuses be made now?
    fn reckons_queues(&self) -> bool {
        self.listed.len() == self.kinds && self.planning.is_none()
    }

    fn planned(&mut self, made: Result<(Plan, usize), JoinError>) {
        let started = self.planning.take().map(|planning| planning.started);
        let (plan, violations) = match made {
            Ok(planned) => planned,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => {
                    let subjects = self.aside.lock().blame_plan(Instant::now());
                    let brain = self.brain.clone();
                    let mut brain = brain.lock();
                    self.give_up(&mut brain, &subjects, &again::words_of(&*panic))
                }
                Err(_) => return,
            },
        };
        self.aside.lock().went_well();
        let took = started.map_or(Duration::ZERO, |started| started.elapsed());
        self.gather = GATHER.max(took);
        self.board.tally().planned(took, violations);
        if let Some(wake) = plan.wake {
            let wait =
                Duration::try_from(wake.duration_since(Timestamp::now())).unwrap_or_default();
            self.plan_by(Instant::now() + wait);
        }
        if !plan.unchanged {
            self.carry_out(plan);
        }
    }

    fn carry_out(&mut self, plan: Plan) {
        let now = Instant::now();
        let at = Timestamp::now();
        self.board.decided(&plan, at);
        self.board.put(plan.reports, at);
        for bind in &plan.binds {
            self.pods
                .forget(&(bind.pod.namespace.clone(), bind.pod.name.clone()));
        }
        self.evictions.extend(plan.evictions);
        self.recuts.extend(plan.recuts);
        let members = plan.binds.iter().filter(|bind| !bind.group.lone).count();
        let told = |bind: Bind| {
            let told = bind.group.lone || members <= MEMBERS_TOLD;
            (bind, told)
        };
        let binds = plan.binds.into_iter().map(told).collect();
        let (binds, needy) = self.claims.take(binds, now);
        self.binds.extend(binds);
        for (group, claims) in needy {
            let all: Vec<&str> = claims.iter().map(String::as_str).collect();
            tracing::info!(namespace = %group.namespace, name = %group.name, claims = %claims::names(&all), "a gang has a place and waits for its claims to be bound");
        }
        for update in plan.groups {
            if let Some(update) = self.claims.keep(update) {
                self.groups
                    .put(update.group.clone(), update, now, statuses::is_news);
            }
        }
        for Unscheduled {
            group,
            pods,
            message,
        } in plan.unscheduled
        {
            for pod in pods.iter() {
                let key = (pod.namespace.clone(), pod.name.clone());
                let word = PodWord {
                    pod: pod.clone(),
                    lone: group.lone,
                    message: message.clone(),
                };
                self.pods
                    .put(key, word, now, |old, new| old.pod.uid != new.pod.uid);
            }
        }
        self.queues_due.get_or_insert(now + QUEUES_EVERY);
    }

    fn start_writes(&mut self, now: Instant) {
        while self.evicting.len() < EVICTIONS_IN_FLIGHT {
            let Some(eviction) = self.evictions.pop_front() else {
                break;
            };
            let evicted = evictor::evict(self.client.clone(), eviction.clone());
            // One that panics was refused: the pod stays, and the others are evicted.
            let evicted = AssertUnwindSafe(evicted).catch_unwind().map(|evicted| {
                evicted.unwrap_or_else(|panic| Evicted {
                    eviction,
                    refused: Some(format!("it panicked: {}", again::words_of(&*panic))),
                })
            });
            self.evicting.push(evicted.boxed());
        }
        while self.claiming.len() < claims::IN_FLIGHT {
            let Some(write) = self.claims.next_write() else {
                break;
            };
            self.claiming
                .push(keeper::write(self.client.clone(), write).boxed());
        }
        self.start_binds();
        let (writes_max, patience) = (self.writes_max(), self.patience());
        while self.writes.len() < writes_max {
            if let Some((group, update)) = self.groups.take(now, patience) {
                self.write_group(group, &update);
            } else if let Some((key, word)) = self.pods.take(now, patience) {
                self.write_pod(key, word);
            } else if let Some(recut) = self.recuts.pop_front() {
                let told = recutter::tell(self.client.clone(), recut);
                let write = told.map(|told| Written::Recut(Box::new(told)));
                self.writes.push(write.boxed());
            } else {
                break;
            }
        }
    }

    /// How many statuses and conditions may be under way now.
    fn writes_max(&self) -> usize {
        if self.binds.is_empty() {
            WRITES_IN_FLIGHT
        } else {
            WRITES_BESIDE_BINDS
        }
    }

    /// How long after it is due a status or a condition is written now.
    fn patience(&self) -> Duration {
        if self.binds.is_empty() {
            Duration::ZERO
        } else {
            WORDS_GIVE_WAY
        }
    }

    fn start_binds(&mut self) {
        // A pod's condition under way would undo what its binding says: that one waits its turn.
        for _ in 0..self.binds.len() {
            if self.binding.len() >= BINDS_IN_FLIGHT {
                break;
            }
            let Some((bind, told)) = self.binds.pop_front() else {
                break;
            };
            if self
                .pods
                .busy(&(bind.pod.namespace.clone(), bind.pod.name.clone()))
            {
                self.binds.push_back((bind, told));
                continue;
            }
            let outcome = binder::bind(self.client.clone(), bind);
            self.binding
                .push(outcome.map(move |outcome| (outcome, told)).boxed());
        }
        self.notes.give_way(!self.binds.is_empty());
    }

    fn write_group(&mut self, group: GroupRef, update: &GroupUpdate) {
        let patch = self.transitions.patch(update, Timestamp::now());
        let (kind, reason, message) = statuses::words(update);
        let last = self.said.get(&group);
        // That a gang is whole is news to whoever was told that it waits; else its condition says it.
        let news = match kind {
            Kind::Warning => last != Some(&message),
            Kind::Normal => !message.is_empty() && last.is_some_and(|last| *last != message),
        };
        if news {
            self.notes
                .note(&about_group(&group, &update.uid), kind, reason, &message);
            self.said.insert(group.clone(), message);
        }
        let client = self.client.clone();
        let write = async move {
            let result = statuses::write_group(client, group.clone(), patch).await;
            Written::Group(group, result)
        };
        self.writes.push(write.boxed());
    }

    fn write_pod(&mut self, key: PodKey, word: PodWord) {
        if word.lone {
            self.notes.note(
                &about_pod(&word.pod),
                Kind::Warning,
                "FailedScheduling",
                &word.message,
            );
        }
        let client = self.client.clone();
        let write = async move {
            let result = statuses::write_pod(client, word.pod, word.message).await;
            Written::Pod(key, result)
        };
        self.writes.push(write.boxed());
    }
}
