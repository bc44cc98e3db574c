//! The loop: applies changes, plans shortly after the first of them, and keeps a bounded number of
//! writes in flight. All lasting state is in the API, so the loop may be stopped at any time and
//! starts by listing.

mod outcomes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use jiff::Timestamp;
use parking_lot::Mutex;
use scheduler::{
    Bind, Event, Eviction, GroupRef, GroupUpdate, Plan, PodRef, Repartition, Unscheduled,
};
use supervisor::{caught, contained, panic_message};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::backoff::GangBackoff;
use super::binder::{self, BindingOutcome};
use super::checked_planner::CheckedPlanner;
use super::claims::{self, ClaimBindings};
use super::event_handlers::{self, WatchMessage};
use super::evictor::{self, Evicted};
use super::mig_repartitioner;
use super::queries::ReportBoard;
use super::queues::QueueStatusCache;
use super::set_aside::{self, SetAside, SetAsideUnit};
use super::statuses::{self, Transitions, about_group, about_pod};
use super::stopped;
use super::volume_binder;
use super::write_queue::WriteQueue;
use crate::context::{Config, Context};
use crate::event_recorder::{EventRecorder, EventType};
use crate::retry;

/// How long changes are gathered before planning, unless the last plan took longer.
const GATHER: Duration = Duration::from_millis(5);
/// The same while bindings wait to be written: the bindings of a new plan would come after them,
/// and each written binding comes back as a change.
const GATHER_BESIDE_BINDS: Duration = Duration::from_millis(50);
/// How many changes are applied before the loop turns to anything else.
const CHANGES_AT_ONCE: usize = 1024;
/// How many bindings may be in flight at once.
const BINDS_IN_FLIGHT: usize = 128;
/// How many evictions may be in flight at once.
const EVICTIONS_IN_FLIGHT: usize = 32;
/// No new plan is made while this many bindings wait to be written.
const BINDS_WAITING_MAX: usize = 65_536;
/// How many statuses and conditions may be in flight at once.
const WRITES_IN_FLIGHT: usize = 16;
/// The same while bindings wait: bindings have priority over the API's capacity. Statuses of one
/// object that wait meanwhile become one write.
const WRITES_BESIDE_BINDS: usize = 1;
/// How long statuses and conditions wait for bindings before they are written concurrently: many
/// small gangs that start at once have a status each.
const WORDS_GIVE_WAY: Duration = Duration::from_secs(5);
/// If one plan binds at most this many members of gangs, each pod gets an event. In a larger plan,
/// the PodGroups and the pods themselves show it.
const MEMBERS_NOTIFIED_MAX: usize = 64;
/// How long a PodGroup's new message waits if nothing else in its status changed.
const GROUP_WORDS_EVERY: Duration = Duration::from_secs(5);
/// How long a change of a pod's reason waits.
const POD_WORDS_EVERY: Duration = Duration::from_secs(10);
/// The least time between two writes of queues' statuses.
const QUEUES_EVERY: Duration = Duration::from_secs(1);

/// Namespace and name of a pod.
type PodName = (String, String);

/// A pod's reason for waiting.
#[derive(Clone)]
struct PodWaitReason {
    pod: PodRef,
    /// The pod has no PodGroup, so the event is about the pod.
    lone: bool,
    message: String,
}

/// A write that has ended.
enum FinishedWrite {
    Group(GroupRef, Result<(), kube::Error>),
    Pod(PodName, Result<(), kube::Error>),
    Queue(String, Result<(), kube::Error>),
    Repartition(Box<mig_repartitioner::RepartitionOutcome>),
}

/// A plan in progress: its start and its future result.
struct Planning {
    started: Instant,
    made: JoinHandle<(Plan, usize)>,
}

struct Loop {
    client: kube::Client,
    config: Arc<Config>,
    /// The objects left out for a while because the loop panicked over them.
    aside: Arc<Mutex<SetAside>>,
    board: Arc<ReportBoard>,
    planner: Arc<Mutex<CheckedPlanner>>,
    notes: EventRecorder,
    listed: BTreeSet<&'static str>,
    gather: Duration,
    plan_due: Option<Instant>,
    planning: Option<Planning>,
    /// How many kinds must be listed.
    kinds: usize,
    /// Gangs whose volumes must be bound before their pods.
    claims: ClaimBindings,
    claiming: FuturesUnordered<BoxFuture<'static, volume_binder::VolumeWriteOutcome>>,
    /// Bindings to write, and whether each pod gets an event of its own.
    binds: VecDeque<(Bind, bool)>,
    binding: FuturesUnordered<BoxFuture<'static, (BindingOutcome, bool)>>,
    evictions: VecDeque<Eviction>,
    /// Nodes whose MIG label must be written.
    repartitions: VecDeque<Repartition>,
    evicting: FuturesUnordered<BoxFuture<'static, Evicted>>,
    groups: WriteQueue<GroupRef, GroupUpdate>,
    pods: WriteQueue<PodName, PodWaitReason>,
    writes: FuturesUnordered<BoxFuture<'static, FinishedWrite>>,
    transitions: Transitions,
    /// The last event message of each PodGroup.
    last_messages: BTreeMap<GroupRef, String>,
    /// The backoff of gangs for which a write failed.
    rests: GangBackoff,
    /// Nodes that changed, or on which another client bound a pod, while bindings wait to be
    /// written.
    touched: BTreeSet<String>,
    queues: QueueStatusCache,
    queues_due: Option<Instant>,
}

/// Runs until `ctx.stop` turns true.
pub(super) async fn run(mut ctx: Context, board: Arc<ReportBoard>, aside: Arc<Mutex<SetAside>>) {
    aside.lock().begin();
    let planner = board.planner();
    *planner.lock() = CheckedPlanner::new(&ctx.config.scheduler);
    let (mut changes, kinds) = event_handlers::watch_events(&ctx.client, &ctx.config.scheduler);
    let mut this = Loop {
        notes: EventRecorder::new(ctx.client.clone(), "muster-scheduler"),
        client: ctx.client.clone(),
        config: ctx.config.clone(),
        aside,
        board,
        planner,
        listed: BTreeSet::new(),
        gather: GATHER,
        plan_due: None,
        planning: None,
        kinds,
        claims: ClaimBindings::default(),
        claiming: FuturesUnordered::new(),
        binds: VecDeque::new(),
        binding: FuturesUnordered::new(),
        evictions: VecDeque::new(),
        repartitions: VecDeque::new(),
        evicting: FuturesUnordered::new(),
        groups: WriteQueue::new(GROUP_WORDS_EVERY),
        pods: WriteQueue::new(POD_WORDS_EVERY),
        writes: FuturesUnordered::new(),
        transitions: Transitions::default(),
        last_messages: BTreeMap::new(),
        rests: GangBackoff::default(),
        touched: BTreeSet::new(),
        queues: QueueStatusCache::default(),
        queues_due: None,
    };
    loop {
        this.start_writes(Instant::now());
        let next = this.next_due();
        tokio::select! {
            () = stopped(&mut ctx.stop) => return this.finish().await,
            // The planner is locked for the plan, so no change is applied meanwhile.
            made = made(&mut this.planning), if this.planning.is_some() => this.planned(made),
            message = changes.next(), if this.planning.is_none() => match message {
                Some(message) => this.take_changes(message, &mut changes),
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

/// The result of the plan in progress, once it is known.
async fn made(planning: &mut Option<Planning>) -> Result<(Plan, usize), JoinError> {
    match planning {
        Some(planning) => (&mut planning.made).await,
        None => std::future::pending().await,
    }
}

impl Loop {
    /// Whether plans may be made. Not before everything was listed: a plan over part of the cluster
    /// would allocate resources that unlisted pods hold.
    fn ready(&self) -> bool {
        self.listed.len() == self.kinds
            && self.binds.len() < BINDS_WAITING_MAX
            && self.planning.is_none()
    }

    /// How long changes are gathered now before planning.
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

    fn take_changes(
        &mut self,
        first: WatchMessage,
        changes: &mut BoxStream<'static, WatchMessage>,
    ) {
        let planner = self.planner.clone();
        let mut planner = planner.lock();
        let mut message = Some(first);
        for _ in 0..CHANGES_AT_ONCE {
            match message {
                Some(message) => self.take_in(message, &mut planner),
                None => break,
            }
            message = changes.next().now_or_never().flatten();
        }
        if let Some(message) = message {
            self.take_in(message, &mut planner);
        }
        self.reconsider(&mut planner);
        drop(planner);
        self.plan_by(Instant::now() + self.gathers());
    }

    fn take_in(&mut self, message: WatchMessage, planner: &mut CheckedPlanner) {
        match message {
            WatchMessage::Change(event) => {
                let admitted = self.aside.lock().admit(event);
                if let Some(event) = admitted {
                    self.take_change(event, planner);
                }
            }
            WatchMessage::Listed(kind) => self.has_listed(kind),
        }
    }

    fn take_change(&mut self, event: Event, planner: &mut CheckedPlanner) {
        self.note_change(&event);
        if !self.binds.is_empty()
            && let Some(node) = planner.news_of(&event)
        {
            self.touched.insert(node.to_owned());
        }
        let subjects = set_aside::subjects_of(&event);
        if let Err(panic) = caught(|| planner.apply(event)) {
            self.aside.lock().blame(subjects.clone(), Instant::now());
            self.give_up(planner, &subjects, panic.message());
        }
    }

    /// The scheduler panicked. Its state may be changed in part and is discarded. The loop ends and
    /// restarts from a list, without these objects.
    fn give_up(&self, planner: &mut CheckedPlanner, subjects: &[SetAsideUnit], panic: &str) -> ! {
        *planner = CheckedPlanner::new(&self.config.scheduler);
        tracing::error!(
            panic,
            ?subjects,
            "the scheduler panicked on these objects and leaves them out for a while"
        );
        let words = retry::panicked_note(panic);
        for about in subjects.iter().filter_map(set_aside::reference) {
            self.notes
                .note(&about, EventType::Warning, retry::PANICKED, &words);
        }
        std::panic::resume_unwind(Box::new(panic.to_owned()))
    }

    /// Applies the withheld changes of objects that have been left out for long enough.
    fn try_again(&mut self, now: Instant) {
        let events = self.aside.lock().release(now);
        if events.is_empty() {
            return;
        }
        let planner = self.planner.clone();
        let mut planner = planner.lock();
        for event in events {
            self.take_in(WatchMessage::Change(event), &mut planner);
        }
        drop(planner);
        self.plan_by(now + self.gathers());
    }

    /// Drops unwritten bindings that later changes made invalid.
    fn reconsider(&mut self, planner: &mut CheckedPlanner) {
        let touched = std::mem::take(&mut self.touched);
        if touched.is_empty() {
            return;
        }
        let now = Timestamp::now();
        self.binds.retain(|(bind, _)| {
            let against = touched.contains(&bind.node).then(|| planner.objection(bind));
            let Some(against) = against.flatten() else {
                return true;
            };
            tracing::info!(pod = %bind.pod.name, namespace = %bind.pod.namespace, node = %bind.node, against, "the scheduler does not write a binding and plans the pod again");
            planner.bind_failed(&bind.pod, &bind.group, now, None);
            false
        });
    }

    fn has_listed(&mut self, kind: &'static str) {
        self.listed.insert(kind);
        if self.listed.len() == self.kinds {
            self.board.tally().set_listed();
        }
    }

    /// The server stops. Writes in flight are completed, and so are the planned bindings, since a
    /// gang must not stay half bound. The rest is decided anew at the next start.
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

    /// Updates the loop's own state for a change.
    fn note_change(&mut self, event: &Event) {
        self.claims.note_event(event);
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
                self.last_messages.remove(&group);
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
        if self.planning.is_none() && self.claims.is_due(now) {
            let planner = self.planner.clone();
            let settled = self.claims.settle(planner.lock().scheduler(), now);
            if !settled.is_empty() {
                settled.into_iter().for_each(|gang| self.settled(gang, now));
                self.reconsider(&mut planner.lock());
                self.plan_by(now + self.gathers());
            }
        }
        if self.ready() && self.plan_due.is_some_and(|due| due <= now) {
            self.plan_due = None;
            let planner = self.planner.clone();
            // Outside the runtime's threads: a large plan takes a while, and bindings go on
            // meanwhile.
            let plan = move || planner.lock().plan(Timestamp::now());
            self.planning = Some(Planning {
                started: now,
                made: tokio::task::spawn_blocking(plan),
            });
        }
        if self.reckons_queues() && self.queues_due.is_some_and(|due| due <= now) {
            self.queues_due = None;
            let views = self.planner.lock().queues();
            for (name, patch) in self.queues.news(&views) {
                let client = self.client.clone();
                let write = async move {
                    let result = super::queues::write(client, name.clone(), patch).await;
                    FinishedWrite::Queue(name, result)
                };
                self.writes.push(write.boxed());
            }
        }
    }

    /// Whether queues' statuses may be computed now.
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
                    let planner = self.planner.clone();
                    let mut planner = planner.lock();
                    self.give_up(&mut planner, &subjects, &panic_message(&*panic))
                }
                Err(_) => return,
            },
        };
        self.aside.lock().record_success();
        let took = started.map_or(Duration::ZERO, |started| started.elapsed());
        self.gather = GATHER.max(took);
        self.board.tally().planned(took, violations);
        if let Some(requeue_at) = plan.requeue_at {
            let wait =
                Duration::try_from(requeue_at.duration_since(Timestamp::now())).unwrap_or_default();
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
        self.repartitions.extend(plan.repartitions);
        let members = plan.binds.iter().filter(|bind| !bind.group.lone).count();
        let with_notice = |bind: Bind| {
            let notifies = bind.group.lone || members <= MEMBERS_NOTIFIED_MAX;
            (bind, notifies)
        };
        let binds = plan.binds.into_iter().map(with_notice).collect();
        let (binds, needy) = self.claims.take(binds, now);
        self.binds.extend(binds);
        for (group, claims) in needy {
            let all: Vec<&str> = claims.iter().map(String::as_str).collect();
            tracing::info!(namespace = %group.namespace, name = %group.name, claims = %claims::names(&all), "a gang has a placement and waits for its PersistentVolumeClaims to be bound");
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
                let word = PodWaitReason {
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
            // A write that panics counts as refused: the pod stays, and the other evictions go on.
            let evicted = contained(evicted).map(|evicted| {
                evicted.unwrap_or_else(|panic| Evicted {
                    eviction,
                    refused: Some(format!("the scheduler panicked: {panic}")),
                })
            });
            self.evicting.push(evicted.boxed());
        }
        while self.claiming.len() < claims::IN_FLIGHT {
            let Some(write) = self.claims.next_write() else {
                break;
            };
            self.claiming
                .push(volume_binder::write(self.client.clone(), write).boxed());
        }
        self.start_binds();
        let (writes_max, patience) = (self.writes_max(), self.patience());
        while self.writes.len() < writes_max {
            if let Some((group, update)) = self.groups.take(now, patience) {
                self.write_group(group, &update);
            } else if let Some((key, word)) = self.pods.take(now, patience) {
                self.write_pod(key, word);
            } else if let Some(repartition) = self.repartitions.pop_front() {
                let written = mig_repartitioner::repartition_node(self.client.clone(), repartition);
                let write = written.map(|outcome| FinishedWrite::Repartition(Box::new(outcome)));
                self.writes.push(write.boxed());
            } else {
                break;
            }
        }
    }

    /// How many statuses and conditions may be in flight now.
    fn writes_max(&self) -> usize {
        if self.binds.is_empty() {
            WRITES_IN_FLIGHT
        } else {
            WRITES_BESIDE_BINDS
        }
    }

    /// How long past its due time a status or a condition waits now.
    fn patience(&self) -> Duration {
        if self.binds.is_empty() {
            Duration::ZERO
        } else {
            WORDS_GIVE_WAY
        }
    }

    fn start_binds(&mut self) {
        // A pod's condition in flight would overwrite its binding's condition, so that binding
        // waits.
        for _ in 0..self.binds.len() {
            if self.binding.len() >= BINDS_IN_FLIGHT {
                break;
            }
            let Some((bind, notifies)) = self.binds.pop_front() else {
                break;
            };
            if self
                .pods
                .busy(&(bind.pod.namespace.clone(), bind.pod.name.clone()))
            {
                self.binds.push_back((bind, notifies));
                continue;
            }
            let outcome = binder::bind(self.client.clone(), bind);
            self.binding
                .push(outcome.map(move |outcome| (outcome, notifies)).boxed());
        }
        self.notes.set_yielding(!self.binds.is_empty());
    }

    fn write_group(&mut self, group: GroupRef, update: &GroupUpdate) {
        let patch = self.transitions.patch(update, Timestamp::now());
        let (kind, reason, message) = statuses::words(update);
        let last = self.last_messages.get(&group);
        // A gang's completion gets an event only after an event that it waits; otherwise the
        // condition alone reports it.
        let news = match kind {
            EventType::Warning => last != Some(&message),
            EventType::Normal => !message.is_empty() && last.is_some_and(|last| *last != message),
        };
        if news {
            self.notes
                .note(&about_group(&group, &update.uid), kind, reason, &message);
            self.last_messages.insert(group.clone(), message);
        }
        let client = self.client.clone();
        let write = async move {
            let result = statuses::write_group(client, group.clone(), patch).await;
            FinishedWrite::Group(group, result)
        };
        self.writes.push(write.boxed());
    }

    fn write_pod(&mut self, key: PodName, word: PodWaitReason) {
        if word.lone {
            self.notes.note(
                &about_pod(&word.pod),
                EventType::Warning,
                "FailedScheduling",
                &word.message,
            );
        }
        let client = self.client.clone();
        let write = async move {
            let result = statuses::write_pod(client, word.pod, word.message).await;
            FinishedWrite::Pod(key, result)
        };
        self.writes.push(write.boxed());
    }
}
