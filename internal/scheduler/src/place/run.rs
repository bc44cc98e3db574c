//! One placement attempt in progress: takes capacity for members, returns it after a failure, and
//! records the placed members at the end. Only this module changes the state during an attempt.

use std::collections::{BTreeMap, BTreeSet};

use crate::class::ClassIx;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::pod::{PodKey, PodStage};
use crate::queue::{LimitingRule, Payer};
use crate::report::Obstacle;
use crate::resource::Demand;
use crate::state::Scheduler;

use super::Placement;
use super::scope::PlacementScope;

/// Why the placement of some pods ended early.
#[derive(Clone, Debug)]
pub(super) enum PlacementStop {
    /// The queue's bound allows no more.
    Queue {
        class: ClassIx,
        bound: LimitingRule,
        missing: usize,
        possible: usize,
    },
    /// There is no room for `missing` more pods of a class.
    Room {
        class: ClassIx,
        missing: usize,
        possible: usize,
    },
    /// No domain holds a part.
    Domain(Box<Obstacle>),
}

impl PlacementStop {
    /// How many members would find room. Of two stops, the one with more is the more informative.
    fn possible(&self) -> usize {
        match self {
            PlacementStop::Queue { possible, .. } | PlacementStop::Room { possible, .. } => {
                *possible
            }
            PlacementStop::Domain(obstacle) => obstacle.possible(),
        }
    }

    /// The same stop, with `more` further pods that were not tried.
    pub(super) fn and_missing(mut self, more: usize) -> PlacementStop {
        if let PlacementStop::Queue { missing, .. } | PlacementStop::Room { missing, .. } =
            &mut self
        {
            *missing += more;
        }
        self
    }

    /// True if another domain cannot help.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, PlacementStop::Queue { .. })
    }

    /// The more informative of two stops.
    pub(super) fn or(self, other: Option<PlacementStop>) -> PlacementStop {
        match other {
            Some(other) if other.possible() >= self.possible() => other,
            _ => self,
        }
    }
}

/// The state of one attempt.
#[derive(Debug)]
pub(super) struct PlacementRun {
    pub(super) payer: Payer,
    /// Nodes with members of the gang: the next member tries them first.
    pub(super) own: BTreeSet<NodeIx>,
    pub(super) placed: Vec<Placement>,
    /// Members that were placed before the attempt.
    pub(super) have: usize,
    /// The scope in which each branch was placed; members beyond its minimum are placed by it.
    pub(super) scopes: BTreeMap<usize, PlacementScope>,
    /// The gang is a single pod without a PodGroup.
    pub(super) lone: bool,
    /// The number of waiting members.
    pub(super) waiting: usize,
    /// The most members beyond the minimum that may still be placed.
    pub(super) beyond: usize,
}

impl PlacementRun {
    pub(super) fn new(gang: &Gang, payer: Payer, lone: bool, beyond: usize) -> PlacementRun {
        PlacementRun {
            payer,
            own: gang.nodes.keys().copied().collect(),
            placed: Vec::new(),
            have: gang.total.have(),
            scopes: BTreeMap::new(),
            lone,
            waiting: gang.total.pending,
            beyond,
        }
    }
}

impl Scheduler {
    /// How many more pods of a demand the queue may take, and the bound that allows no more.
    pub(super) fn allowance(
        &self,
        run: &PlacementRun,
        demand: &Demand,
    ) -> (usize, Option<LimitingRule>) {
        let (allowed, bound) = self.queues.allows(run.payer, demand, |ix| self.idle(ix));
        (allowed as usize, bound)
    }

    /// Takes capacity for pods of one class on nodes that hold them; each node gets its count, in
    /// order.
    pub(super) fn take_room(
        &mut self,
        class: ClassIx,
        pods: &[PodKey],
        picks: &[(NodeIx, u64)],
        run: &mut PlacementRun,
    ) {
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
            let take = self.take_on(class, *at);
            for pod in chunk {
                let devices = self.pick_gpus(class, *at, &take);
                self.occupy(*at, &take, &devices);
                self.count_member_for_rules(pod, class, *at, true);
                run.placed.push(Placement {
                    pod: pod.clone(),
                    node: *at,
                    devices,
                    class,
                });
            }
            self.queues
                .charge(run.payer, &take.demand, chunk.len() as i64);
            self.touch(*at);
            run.own.insert(*at);
        }
    }

    /// Undoes all placements after the first `to`.
    pub(super) fn undo_placements(&mut self, run: &mut PlacementRun, to: usize) {
        // Undoing a trial frees nothing that other gangs could not have used before.
        let releases = self.releases;
        self.give_back(run, to);
        self.releases = releases;
    }

    fn give_back(&mut self, run: &mut PlacementRun, to: usize) {
        while run.placed.len() > to {
            let Some(placement) = run.placed.pop() else {
                return;
            };
            let take = self.take_on(placement.class, placement.node);
            self.vacate(placement.node, &take, &placement.devices);
            self.count_member_for_rules(&placement.pod, placement.class, placement.node, false);
            self.queues.charge(run.payer, &take.demand, -1);
            self.touch(placement.node);
        }
    }

    /// The obstacle to report for an attempt that ended with this stop.
    pub(super) fn obstacle(&mut self, stop: PlacementStop, run: &PlacementRun) -> Obstacle {
        match stop {
            PlacementStop::Queue {
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
            PlacementStop::Room {
                class,
                missing,
                possible,
            } => {
                self.refresh(class);
                self.no_room(class, missing, possible)
            }
            PlacementStop::Domain(obstacle) => *obstacle,
        }
    }

    /// Records the placement in the members and their gang. Capacity and the queue's account were
    /// charged while placing.
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
            gang.count(&placement.pod, &pod.task, PodStage::Pending, false);
            gang.count_kind(pod.class, false);
            gang.count(&placement.pod, &pod.task, stage, true);
            gang.count_part(part.as_ref(), PodStage::Pending, false);
            gang.count_part(part.as_ref(), stage, true);
            gang.count_node(placement.node, true);
            let class = self.classes.get(placement.class);
            let take = class.take(Some(&self.nodes[placement.node]));
            gang.allocated.add(&take.demand, 1);
            gang.waiting.add(class.demand(), -1);
            // On a node the request is known exactly (a part of GPU memory depends on the node).
            gang.requested.add(class.demand(), -1);
            gang.requested.add(&take.demand, 1);
            if class.demand() != &take.demand
                && let Some(payer) = gang.payer
            {
                self.queues.request(payer.queue, class.demand(), -1);
                self.queues.request(payer.queue, &take.demand, 1);
            }
            if stage == PodStage::Pipelined {
                self.nodes[placement.node].count_nominated(&take, &placement.devices, true);
            }
            pod.stage = stage;
            pod.node = Some(placement.node);
            pod.devices = placement.devices.clone();
            pod.assumed = stage == PodStage::Bound;
            gang.assumed += usize::from(pod.assumed);
        }
        self.settle(key);
    }
}
