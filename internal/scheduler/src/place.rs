//! Placing one gang: whole, or not at all. What was taken on the way to a failure is given back
//! before anybody sees it; why it failed is told from the moment of failure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::class::ClassIx;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::pod::{PodKey, Stage};
use crate::queue::{Bound, Door, Payer};
use crate::report::Obstacle;
use crate::resource::{CPU, GPU, MEMORY};
use crate::state::Scheduler;

/// A member and the room found for it.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub(crate) pod: PodKey,
    pub(crate) node: NodeIx,
    pub(crate) devices: Vec<Arc<str>>,
    pub(crate) class: ClassIx,
}

/// What came of trying a gang.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// There was nothing to place.
    Nothing,
    /// Nothing was placed.
    Blocked(Obstacle),
    /// The gang is whole; members beyond the minimum may still wait.
    Placed(Vec<Placement>, Option<Obstacle>),
}

/// Waiting members of one class.
struct Batch {
    class: ClassIx,
    pods: Vec<PodKey>,
}

/// Which members to place: those that the gang's tasks require, then `needed` of the others, then
/// what fits of the rest.
struct Wanted {
    required: Vec<Batch>,
    others: Vec<Batch>,
    needed: usize,
    /// How many members beyond the minimum are wanted at most.
    beyond: usize,
}

/// What ended the placing of a batch early.
enum Stop {
    Queue(Bound),
    Room,
}

/// One attempt under way.
struct Run {
    payer: Payer,
    /// Nodes that members of the gang are on: the first to be looked at for the next.
    own: Vec<NodeIx>,
    placed: Vec<Placement>,
    have: usize,
}

impl Scheduler {
    /// Tries to place a gang with all its members, and takes what it places.
    pub(crate) fn attempt(&mut self, key: &GangKey, now: Timestamp) -> Attempt {
        self.attempt_most(key, now, usize::MAX)
    }

    /// Tries to place a gang: its minimum, or so many members beyond it where it is whole.
    pub(crate) fn attempt_most(&mut self, key: &GangKey, now: Timestamp, beyond: usize) -> Attempt {
        // What is kept for its moved members is theirs now.
        let kept = self.let_go(key);
        let attempt = self.attempt_freely(key, now, beyond);
        match attempt {
            Attempt::Placed(..) => self.forget_places(kept),
            _ => self.keep_again(key, kept),
        }
        attempt
    }

    fn attempt_freely(&mut self, key: &GangKey, now: Timestamp, beyond: usize) -> Attempt {
        if let Err(obstacle) = self.let_in(key, now) {
            return Attempt::Blocked(obstacle);
        }
        let Some(gang) = self.gangs.get(key) else {
            return Attempt::Nothing;
        };
        if let Some(obstacle) = self.missing_members(key, gang) {
            return Attempt::Blocked(obstacle);
        }
        if gang.total.pending == 0 {
            return Attempt::Nothing;
        }
        let Some(payer) = gang.payer else {
            return Attempt::Nothing;
        };
        let wanted = self.wanted(key, gang, beyond);
        let mut run = Run {
            payer,
            own: gang.nodes.keys().copied().collect(),
            placed: Vec::new(),
            have: gang.total.have(),
        };
        match self.place(&wanted, &mut run) {
            Ok(rest) if run.placed.is_empty() => match rest {
                Some(obstacle) => Attempt::Blocked(obstacle),
                None => Attempt::Nothing,
            },
            Ok(rest) => {
                self.assume(key, &run.placed);
                Attempt::Placed(run.placed, rest)
            }
            Err(obstacle) => {
                self.give_back(&run);
                Attempt::Blocked(obstacle)
            }
        }
    }

    /// The gates before placement: a failed binding's pause, the queue, what the gang says that it
    /// needs at least.
    fn let_in(&mut self, key: &GangKey, now: Timestamp) -> Result<(), Obstacle> {
        let Some(gang) = self.gangs.get(key) else {
            return Ok(());
        };
        if let Some(until) = gang.held_until {
            if now < until {
                self.wake = Some(self.wake.map_or(until, |wake| wake.min(until)));
                return Err(Obstacle::held());
            }
            if let Some(gang) = self.gangs.get_mut(key) {
                gang.held_until = None;
            }
        }
        let Some(gang) = self.gangs.get(key) else {
            return Ok(());
        };
        if gang.spec.is_none() && !key.lone {
            return Err(Obstacle::no_group(key));
        }
        let rules = gang.payer.and_then(|payer| self.queues.rules(payer.queue));
        let Some(rules) = rules else {
            return Err(Obstacle::no_queue(&gang.queue));
        };
        if gang.admitted {
            return Ok(());
        }
        if rules.door != Door::Open {
            return Err(Obstacle::closed(&gang.queue));
        }
        if let Some(obstacle) = self.too_large(gang) {
            return Err(obstacle);
        }
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.admitted = true;
        }
        self.settle(key);
        Ok(())
    }

    /// Volcano's gate on `minResources`: a gang is let in while its queue's capability could hold
    /// it beside those let in before. A full cluster is no reason to keep it out, one that is
    /// too small is.
    fn too_large(&self, gang: &Gang) -> Option<Obstacle> {
        let spec = gang.spec.as_ref()?;
        let mut needs = spec.min_resources.0.iter();
        if let Some((ix, asked)) = needs.find(|(ix, asked)| *asked > self.total.get(*ix)) {
            return Some(self.beyond_cluster(*ix, *asked));
        }
        let bound = self.queues.admits(gang.payer?, &spec.min_resources)?;
        let asked = spec.min_resources.get(bound.resource());
        Some(self.over_quota(&gang.queue, bound, asked, 0))
    }

    fn missing_members(&self, key: &GangKey, gang: &Gang) -> Option<Obstacle> {
        let minimum = gang.minimum(key);
        let mut missing = Vec::new();
        for (task, min) in gang.spec.iter().flat_map(|spec| &spec.min_task_member) {
            let present = gang.task(task).present();
            if present < *min {
                missing.push(format!("{present} of {min} of task {task}"));
            }
        }
        let present = gang.total.present();
        if missing.is_empty() && present >= minimum {
            return None;
        }
        if missing.is_empty() {
            missing.push(format!("{present} of {minimum}"));
        }
        Some(Obstacle::missing_members(
            &missing.join(", "),
            gang.total.have(),
        ))
    }

    /// Beyond the minimum at most so many members are wanted.
    fn wanted(&self, key: &GangKey, gang: &Gang, beyond: usize) -> Wanted {
        let tasks = gang.spec.iter().flat_map(|spec| &spec.min_task_member);
        let mut short: BTreeMap<&str, usize> = tasks
            .map(|(task, min)| (&**task, min.saturating_sub(gang.task(task).have())))
            .collect();
        let mut required: BTreeMap<ClassIx, Vec<PodKey>> = BTreeMap::new();
        let mut others: BTreeMap<ClassIx, Vec<PodKey>> = BTreeMap::new();
        let mut needed = gang.minimum(key).saturating_sub(gang.total.have());
        for (_, name) in &gang.pending {
            let Some(pod) = self.pods.get(name) else {
                continue;
            };
            let into = match short.get_mut(&*pod.task) {
                Some(n) if *n > 0 => {
                    *n -= 1;
                    needed = needed.saturating_sub(1);
                    &mut required
                }
                _ => &mut others,
            };
            into.entry(pod.class).or_default().push(name.clone());
        }
        if others.len() == 1 && needed > 0 {
            // Nothing to choose from: the others that are needed are required too.
            for (class, pods) in &mut others {
                let rest = pods.split_off(needed.min(pods.len()));
                let first = std::mem::replace(pods, rest);
                required.entry(*class).or_default().extend(first);
            }
            needed = 0;
        }
        Wanted {
            required: self.batches(required),
            others: self.batches(others),
            needed,
            beyond,
        }
    }

    /// The hardest to place first. Not by the class's number, which is an accident.
    fn batches(&self, by_class: BTreeMap<ClassIx, Vec<PodKey>>) -> Vec<Batch> {
        let mut batches: Vec<Batch> = by_class
            .into_iter()
            .filter(|(_, pods)| !pods.is_empty())
            .map(|(class, pods)| Batch { class, pods })
            .collect();
        batches.sort_by_cached_key(|batch| {
            let demand = self.classes.get(batch.class).demand();
            let size = [GPU, CPU, MEMORY].map(|ix| -demand.get(ix));
            (size, batch.pods.first().map(PodKey::ranked))
        });
        batches
    }

    /// Places what is wanted. An error says why the minimum cannot be had; what was taken by then
    /// is still taken. The success says why members beyond the minimum wait, if any do.
    fn place(&mut self, wanted: &Wanted, run: &mut Run) -> Result<Option<Obstacle>, Obstacle> {
        self.foresee(wanted, run.have)?;
        let mut coming: BTreeMap<ClassIx, usize> = BTreeMap::new();
        for batch in wanted.required.iter().chain(&wanted.others) {
            *coming.entry(batch.class).or_default() += batch.pods.len();
        }
        for batch in &wanted.required {
            let (placed, stop) = self.place_batch(batch.class, &batch.pods, &mut coming, run);
            if let Some(stop) = stop {
                let missing = batch.pods.len() - placed;
                return Err(self.obstacle(batch.class, &stop, missing, run));
            }
        }
        let mut needed = wanted.needed;
        let mut later: Vec<(ClassIx, &[PodKey])> = Vec::new();
        let mut stopped = None;
        for batch in &wanted.others {
            let now = needed.min(batch.pods.len());
            let (placed, stop) =
                self.place_batch(batch.class, &batch.pods[..now], &mut coming, run);
            needed -= placed;
            match stop {
                Some(stop) => stopped = stopped.or(Some((batch.class, stop))),
                None => later.push((batch.class, &batch.pods[now..])),
            }
        }
        if needed > 0 {
            let first = wanted.others.first().map_or(0, |batch| batch.class);
            let (class, stop) = stopped.unwrap_or((first, Stop::Room));
            return Err(self.obstacle(class, &stop, needed, run));
        }
        let mut rest = stopped.map(|(class, stop)| self.obstacle(class, &stop, 1, run));
        let mut beyond = wanted.beyond;
        for (class, pods) in later {
            let pods = &pods[..pods.len().min(beyond)];
            beyond -= pods.len();
            let (placed, stop) = self.place_batch(class, pods, &mut coming, run);
            if let Some(stop) = stop
                && rest.is_none()
            {
                rest = Some(self.obstacle(class, &stop, pods.len() - placed, run));
            }
        }
        Ok(rest)
    }

    /// Refuses at once what the room on all nodes together shows to be hopeless, without placing
    /// anything.
    fn foresee(&mut self, wanted: &Wanted, have: usize) -> Result<(), Obstacle> {
        for batch in wanted.required.iter().chain(&wanted.others) {
            if let Some(unmet) = self.classes.get(batch.class).unmet() {
                return Err(Obstacle::undecided(unmet.words(), have));
            }
        }
        let mut possible = have;
        let mut worst: Option<(ClassIx, usize)> = None;
        for batch in &wanted.required {
            self.refresh(batch.class);
            let room = self.views.get(&batch.class).map_or(0, |view| view.room);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            possible += room.min(batch.pods.len());
            if room < batch.pods.len() && worst.is_none() {
                worst = Some((batch.class, batch.pods.len() - room));
            }
        }
        match worst {
            Some((class, missing)) => Err(self.no_room(class, missing, possible)),
            None => Ok(()),
        }
    }

    /// Places members of one class, as many as can be; says what ended it if not all could.
    fn place_batch(
        &mut self,
        class: ClassIx,
        pods: &[PodKey],
        coming: &mut BTreeMap<ClassIx, usize>,
        run: &mut Run,
    ) -> (usize, Option<Stop>) {
        if pods.is_empty() {
            return (0, None);
        }
        let demand = self.classes.get(class).demand().clone();
        self.refresh(class);
        let mut own: Vec<NodeIx> = match self.views.get(&class) {
            Some(view) => run
                .own
                .iter()
                .copied()
                .filter(|at| view.holds(*at) > 0)
                .collect(),
            None => Vec::new(),
        };
        let mut next = 0;
        while next < pods.len() {
            let (allowed, bound) = self.queues.allows(run.payer, &demand, |ix| self.idle(ix));
            if let (0, Some(bound)) = (allowed, bound) {
                return (next, Some(Stop::Queue(bound)));
            }
            self.refresh(class);
            // Room is sought for all that are still to come, so that they stay together.
            let ahead = coming
                .get(&class)
                .copied()
                .unwrap_or(0)
                .max(pods.len() - next);
            let want = u32::try_from(ahead).unwrap_or(u32::MAX);
            let Some(at) = self.pick_node(class, &own, want) else {
                return (next, Some(Stop::Room));
            };
            let holds = self.views.get(&class).map_or(0, |view| view.holds(at));
            let count = holds.min(allowed) as usize;
            let chunk = &pods[next..pods.len().min(next + count)];
            let take = self.take_on(class, at);
            for pod in chunk {
                let devices = self.pick_gpus(class, at, &take);
                self.occupy(at, &take, &devices);
                run.placed.push(Placement {
                    pod: pod.clone(),
                    node: at,
                    devices,
                    class,
                });
            }
            self.queues
                .charge(run.payer, &take.demand, chunk.len() as i64);
            self.touch(at);
            next += chunk.len();
            if let Some(n) = coming.get_mut(&class) {
                *n = n.saturating_sub(chunk.len());
            }
            if chunk.len() == count {
                own.retain(|mine| *mine != at);
            } else if !own.contains(&at) {
                own.push(at);
            }
            if !run.own.contains(&at) {
                run.own.push(at);
            }
        }
        (next, None)
    }

    fn obstacle(&mut self, class: ClassIx, stop: &Stop, missing: usize, run: &Run) -> Obstacle {
        let possible = run.have + run.placed.len();
        match stop {
            Stop::Queue(bound) => {
                let each = self.classes.get(class).demand().get(bound.resource());
                let asked = each.saturating_mul(missing as i64);
                let queue = self.queues.name(run.payer.queue);
                self.over_quota(queue, *bound, asked, possible)
            }
            Stop::Room => {
                self.refresh(class);
                self.no_room(class, missing, possible)
            }
        }
    }

    /// Undoes an attempt.
    fn give_back(&mut self, run: &Run) {
        for placement in &run.placed {
            let take = self.take_on(placement.class, placement.node);
            self.vacate(placement.node, &take, &placement.devices);
            self.queues.charge(run.payer, &take.demand, -1);
            self.touch(placement.node);
        }
    }

    /// Notes what was placed in the members and their gang. Their room and their queue's account
    /// were taken while placing.
    fn assume(&mut self, key: &GangKey, placed: &[Placement]) {
        let stages = self.stages(key, placed);
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        for (placement, stage) in placed.iter().zip(stages) {
            let Some(pod) = self.pods.get_mut(&placement.pod) else {
                continue;
            };
            gang.count(&placement.pod, &pod.task, Stage::Pending, false);
            gang.count(&placement.pod, &pod.task, stage, true);
            gang.count_node(placement.node, true);
            let class = self.classes.get(placement.class);
            let take = class.take(Some(&self.nodes[placement.node]));
            gang.allocated.add(&take.demand, 1);
            gang.waiting.add(class.demand(), -1);
            // What it asks for is known more exactly now.
            gang.requested.add(class.demand(), -1);
            gang.requested.add(&take.demand, 1);
            if class.demand() != &take.demand
                && let Some(payer) = gang.payer
            {
                self.queues.request(payer.queue, class.demand(), -1);
                self.queues.request(payer.queue, &take.demand, 1);
            }
            if stage == Stage::Pipelined {
                self.nodes[placement.node].see_pipelined(&take, &placement.devices, true);
            }
            pod.stage = stage;
            pod.node = Some(placement.node);
            pod.devices = placement.devices.clone();
            pod.assumed = stage == Stage::Bound;
        }
        self.settle(key);
    }
}
