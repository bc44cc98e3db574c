//! One attempt under way: taking room for members, giving it back, and noting at the end what was
//! placed. The only place where an attempt changes the state.

use std::collections::{BTreeMap, BTreeSet};

use crate::class::ClassIx;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::pod::{PodKey, Stage};
use crate::queue::{Bound, Payer};
use crate::report::Obstacle;
use crate::resource::{Demand, GPU};
use crate::state::Scheduler;

use super::Placement;
use super::scope::Scope;

/// What ended the placing of some pods early.
#[derive(Clone, Debug)]
pub(super) enum Stop {
    /// The queue may take no more.
    Queue {
        class: ClassIx,
        bound: Bound,
        missing: usize,
        possible: usize,
    },
    /// There is no room for so many more of a class.
    Room {
        class: ClassIx,
        missing: usize,
        possible: usize,
    },
    /// No domain holds a part.
    Domain(Box<Obstacle>),
}

impl Stop {
    /// How much would have found room: the further an attempt got, the more it says.
    fn possible(&self) -> usize {
        match self {
            Stop::Queue { possible, .. } | Stop::Room { possible, .. } => *possible,
            Stop::Domain(obstacle) => obstacle.possible(),
        }
    }

    /// The same, where so many more wait that were not tried.
    pub(super) fn and_missing(mut self, more: usize) -> Stop {
        if let Stop::Queue { missing, .. } | Stop::Room { missing, .. } = &mut self {
            *missing += more;
        }
        self
    }

    /// Would another domain be no better?
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Stop::Queue { .. })
    }

    /// The one that says more.
    pub(super) fn or(self, other: Option<Stop>) -> Stop {
        match other {
            Some(other) if other.possible() >= self.possible() => other,
            _ => self,
        }
    }
}

/// One attempt.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) payer: Payer,
    /// Nodes that members of the gang are on: the first to be looked at for the next.
    pub(super) own: BTreeSet<NodeIx>,
    pub(super) placed: Vec<Placement>,
    /// Members that were there before.
    pub(super) have: usize,
    /// Where each branch was placed, for those who come after its minimum.
    pub(super) scopes: BTreeMap<usize, Scope>,
    /// A pod by itself has no neighbours to be close to.
    pub(super) lone: bool,
    /// How many members beyond the minimum are wanted still, at most.
    pub(super) beyond: usize,
}

impl Run {
    pub(super) fn new(gang: &Gang, payer: Payer, lone: bool, beyond: usize) -> Run {
        Run {
            payer,
            own: gang.nodes.keys().copied().collect(),
            placed: Vec::new(),
            have: gang.total.have(),
            scopes: BTreeMap::new(),
            lone,
            beyond,
        }
    }
}

impl Scheduler {
    /// How many pods of a demand the queue may take more, and what allows no more.
    pub(super) fn allowance(&self, run: &Run, demand: &Demand) -> (usize, Option<Bound>) {
        let (allowed, bound) = self.queues.allows(run.payer, demand, |ix| self.idle(ix));
        (allowed as usize, bound)
    }

    /// Takes room for pods of one class on nodes that hold them: each node gets its count, in the
    /// given order.
    pub(super) fn take_room(
        &mut self,
        class: ClassIx,
        pods: &[PodKey],
        picks: &[(NodeIx, u64)],
        run: &mut Run,
    ) {
        let demand = self.classes.get(class).demand().clone();
        let gpus = usize::try_from(demand.get(GPU)).unwrap_or(0);
        let mut rest = pods;
        for (at, count) in picks {
            let count = usize::try_from(*count)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            if count == 0 {
                continue;
            }
            let (chunk, after) = rest.split_at(count);
            rest = after;
            for pod in chunk {
                let devices = self.choose_devices(*at, gpus);
                self.occupy(*at, &demand, &devices);
                self.meet_member(pod, class, *at, true);
                run.placed.push(Placement {
                    pod: pod.clone(),
                    node: *at,
                    devices,
                    class,
                });
            }
            self.queues.charge(run.payer, &demand, chunk.len() as i64);
            self.touch(*at);
            run.own.insert(*at);
        }
    }

    /// Devices that nobody holds; those that somebody is about to leave only where the others do
    /// not suffice.
    fn choose_devices(&self, at: NodeIx, count: usize) -> Vec<std::sync::Arc<str>> {
        let node = &self.nodes[at];
        match node.offer.as_ref().and_then(|offer| offer.devices.as_ref()) {
            Some(devices) if count > 0 && !node.leaving_held.is_empty() => {
                let mut held = node.held.clone();
                held.extend(node.leaving_held.iter().map(|(id, n)| (id.clone(), *n)));
                let free = devices.choose(&held, count);
                if free.len() == count {
                    free
                } else {
                    devices.choose(&node.held, count)
                }
            }
            Some(devices) if count > 0 => devices.choose(&node.held, count),
            _ => Vec::new(),
        }
    }

    /// Gives back everything after the first so many placements.
    pub(super) fn give_room_back(&mut self, run: &mut Run, to: usize) {
        // What was only tried frees nothing.
        let eased = self.eased;
        self.give_back(run, to);
        self.eased = eased;
    }

    fn give_back(&mut self, run: &mut Run, to: usize) {
        while run.placed.len() > to {
            let Some(placement) = run.placed.pop() else {
                return;
            };
            let demand = self.classes.get(placement.class).demand().clone();
            self.vacate(placement.node, &demand, &placement.devices);
            self.meet_member(&placement.pod, placement.class, placement.node, false);
            self.queues.charge(run.payer, &demand, -1);
            self.touch(placement.node);
        }
    }

    /// What to say of an attempt that ended so.
    pub(super) fn obstacle(&mut self, stop: Stop, run: &Run) -> Obstacle {
        match stop {
            Stop::Queue {
                class,
                bound,
                missing,
                possible,
            } => {
                let each = self.classes.get(class).demand().get(bound.resource());
                let asked = each.saturating_mul(missing as i64);
                let queue = self.queues.name(run.payer.queue);
                self.over_quota(queue, bound, asked, possible)
            }
            Stop::Room {
                class,
                missing,
                possible,
            } => {
                self.refresh(class);
                self.no_room(class, missing, possible)
            }
            Stop::Domain(obstacle) => *obstacle,
        }
    }

    /// Notes what was placed in the members and their gang. Their room and their queue's account
    /// were taken while placing.
    pub(super) fn assume(&mut self, key: &GangKey, placed: &[Placement]) {
        let stages = self.stages(key, placed);
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        for (placement, stage) in placed.iter().zip(stages) {
            let Some(pod) = self.pods.get_mut(&placement.pod) else {
                continue;
            };
            let part = pod.part.clone();
            gang.count(&placement.pod, &pod.task, Stage::Pending, false);
            gang.count_kind(placement.class, false);
            gang.count(&placement.pod, &pod.task, stage, true);
            gang.count_part(part.as_ref(), Stage::Pending, false);
            gang.count_part(part.as_ref(), stage, true);
            gang.count_node(placement.node, true);
            let demand = self.classes.get(placement.class).demand();
            gang.allocated.add(demand, 1);
            gang.waiting.add(demand, -1);
            if stage == Stage::Pipelined {
                self.nodes[placement.node].pipelined.add(demand, 1);
            }
            pod.stage = stage;
            pod.node = Some(placement.node);
            pod.devices = placement.devices.clone();
            pod.assumed = stage == Stage::Bound;
        }
        self.settle(key);
    }
}
