//! Reference schedulers to compare with: plain, over GPUs, cores and memory of nodes, with one
//! waiting list for all queues, each gang placed whole. They evict no pods. A pod that requests a
//! part of a GPU gets a whole one, as in Slurm without sharing.

mod conservative;
mod easy;
mod free;

use std::collections::{BTreeMap, BTreeSet};

use resources::devices::ChosenDevices;
use resources::names::NVIDIA_GPU;

use crate::gang::{GangIx, Host, MemberStage, NodeIndex, SimulatedGang};
use crate::planner::{Gangs, PlanDecisions, PlannedStart, Planner};
use crate::policy::Policy;
use crate::reference::free::{Free, PodNeed};
use crate::scenario::Seconds;

/// How many waiting gangs are tried behind the first: Slurm's `bf_max_job_test`.
const BACKFILL_DEPTH: usize = 500;
/// The resolution at which shares are compared.
const SHARE_PARTS: i64 = 1_000_000;
/// The expected duration of work that never ends: a year.
const FOR_EVER: Seconds = 365 * 24 * 3600;

/// A gang's position in the waiting list; lesser comes first.
type WaitRank = (i64, Seconds, GangIx);

/// A gang that waits.
struct WaitingGang {
    /// The requests of each member, in the order of the members.
    needs: Vec<PodNeed>,
    estimate: Seconds,
    queue: usize,
}

/// A gang that runs.
struct Running {
    until: Seconds,
    queue: usize,
    held: Vec<(NodeIndex, PodNeed)>,
}

/// A reference scheduler.
pub(crate) struct ReferenceScheduler {
    kind: Policy,
    free: Free,
    /// The waiting gangs in order.
    line: BTreeSet<WaitRank>,
    waiting: BTreeMap<GangIx, (WaitRank, WaitingGang)>,
    running: BTreeMap<GangIx, Running>,
    /// Running gangs by their expected end.
    ends: BTreeSet<(Seconds, GangIx)>,
    /// By queue: its weight, and the GPUs that its gangs hold.
    queues: Vec<(i64, i64)>,
    devices: HeldDevices,
}

impl ReferenceScheduler {
    /// For these nodes, and queues of these weights.
    pub(crate) fn new(kind: Policy, hosts: &[Host], weights: &[i64]) -> ReferenceScheduler {
        ReferenceScheduler {
            kind,
            free: Free::new(hosts),
            line: BTreeSet::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            ends: BTreeSet::new(),
            queues: weights.iter().map(|weight| (*weight, 0)).collect(),
            devices: HeldDevices::new(hosts),
        }
    }

    fn place(&self, at: GangIx, gang: &SimulatedGang, estimate: Seconds) -> WaitRank {
        let key = match self.kind {
            Policy::Sjf => estimate,
            Policy::Priority | Policy::Easy | Policy::EasyShares | Policy::Conservative => {
                -i64::from(gang.priority)
            }
            Policy::Muster | Policy::Fifo => 0,
        };
        (key, gang.arrived, at)
    }

    /// Starts a gang now if all of it fits.
    fn start(&mut self, at: GangIx, now: Seconds, decided: &mut PlanDecisions) -> bool {
        let Some((_, waiting)) = self.waiting.get(&at) else {
            return false;
        };
        let Some(nodes) = self.free.place(&waiting.needs) else {
            return false;
        };
        self.commit(at, nodes, now, decided);
        true
    }

    /// Records that a gang runs on these nodes, whose resources were taken already.
    fn commit(
        &mut self,
        at: GangIx,
        nodes: Vec<NodeIndex>,
        now: Seconds,
        decided: &mut PlanDecisions,
    ) {
        let Some((place, waiting)) = self.waiting.remove(&at) else {
            return;
        };
        self.line.remove(&place);
        for (member, (node, need)) in nodes.iter().zip(&waiting.needs).enumerate() {
            decided.starts.push(PlannedStart {
                gang: at,
                member,
                node: *node,
                devices: self.devices.take(*node, need.gpus(), at),
            });
        }
        let until = now.saturating_add(waiting.estimate.max(1));
        let held = nodes.into_iter().zip(waiting.needs).collect();
        self.run(at, until, waiting.queue, held);
    }

    fn run(&mut self, at: GangIx, until: Seconds, queue: usize, held: Vec<(NodeIndex, PodNeed)>) {
        self.ends.insert((until, at));
        let running = Running { until, queue, held };
        self.charge(&running, 1);
        self.running.insert(at, running);
    }

    /// Adds a gang's allocation to its queue's (`sign` 1) or subtracts it (-1).
    fn charge(&mut self, running: &Running, sign: i64) {
        let gpus: i64 = running.held.iter().map(|(_, need)| need.gpus()).sum();
        if self.queues.len() <= running.queue {
            // The queue has no definition.
            self.queues.resize(running.queue + 1, (1, 0));
        }
        if let Some((_, held)) = self.queues.get_mut(running.queue) {
            *held += sign * gpus;
        }
    }

    /// The allocation of a gang's queue per weight, if the policy uses it.
    fn share(&self, at: GangIx) -> i64 {
        let waiting = self.waiting.get(&at).map(|(_, waiting)| waiting.queue);
        let queue = waiting.filter(|_| self.kind == Policy::EasyShares);
        let queue = queue.and_then(|queue| self.queues.get(queue));
        queue.map_or(0, |(weight, held)| held * SHARE_PARTS / weight.max(&1))
    }

    /// The waiting gangs in their current order.
    fn in_turn(&self) -> Vec<GangIx> {
        let mut line: Vec<&WaitRank> = self.line.iter().collect();
        if self.kind == Policy::EasyShares {
            line.sort_by_cached_key(|(key, arrived, at)| (*key, self.share(*at), *arrived, *at));
        }
        line.into_iter().map(|place| place.2).collect()
    }

    fn first(&self) -> Option<GangIx> {
        if self.kind != Policy::EasyShares {
            return self.line.first().map(|place| place.2);
        }
        let turn = |place: &&WaitRank| (place.0, self.share(place.2), place.1, place.2);
        self.line.iter().min_by_key(turn).map(|place| place.2)
    }

    /// Starts gangs from the front of the list until one does not fit.
    fn start_in_order(&mut self, now: Seconds, decided: &mut PlanDecisions) {
        while let Some(at) = self.first() {
            if !self.start(at, now, decided) {
                break;
            }
        }
    }

    fn start_what_fits(&mut self, now: Seconds, decided: &mut PlanDecisions) {
        let line: Vec<GangIx> = self.line.iter().map(|place| place.2).collect();
        let mut refused: BTreeSet<Vec<PodNeed>> = BTreeSet::new();
        for at in line {
            let Some((_, waiting)) = self.waiting.get(&at) else {
                continue;
            };
            // Equal requests did not fit earlier in this pass, and free resources only shrink in
            // it.
            if refused.contains(&waiting.needs) {
                continue;
            }
            let needs = waiting.needs.clone();
            if !self.start(at, now, decided) {
                refused.insert(needs);
            }
        }
    }

    fn release(&mut self, at: GangIx) {
        let Some(running) = self.running.remove(&at) else {
            return;
        };
        self.ends.remove(&(running.until, at));
        self.charge(&running, -1);
        for (node, need) in &running.held {
            self.free.give_back(*node, need);
        }
        self.devices.give_back(at);
    }
}

impl Planner for ReferenceScheduler {
    fn arrived(&mut self, at: GangIx, gang: &SimulatedGang, now: Seconds) {
        let estimate = gang.estimate.unwrap_or(FOR_EVER);
        let needs: Vec<PodNeed> = gang
            .members
            .iter()
            .map(|member| self.free.need(&member.ask))
            .collect();
        let placed: Vec<(NodeIndex, PodNeed)> = gang
            .members
            .iter()
            .zip(&needs)
            .filter_map(|(member, need)| match member.stage {
                MemberStage::Placed { node } => Some((node, need.clone())),
                _ => None,
            })
            .collect();
        if gang.whole() {
            // Waiting members beyond the minimum are ignored: this scheduler places whole gangs.
            let until = now.saturating_add((estimate - gang.kept).max(1));
            for (node, need) in &placed {
                self.free.take(*node, need);
                self.devices.take_known(*node, need.gpus(), at, gang);
            }
            self.run(at, until, gang.queue, placed);
            return;
        }
        let place = self.place(at, gang, estimate);
        self.line.insert(place);
        let queue = gang.queue;
        let waiting = WaitingGang {
            needs,
            estimate,
            queue,
        };
        self.waiting.insert(at, (place, waiting));
    }

    fn running(&mut self, _: GangIx, _: &SimulatedGang, _: &[usize], _: Seconds) {}

    fn leaving(&mut self, _: GangIx, _: &SimulatedGang, _: usize, _: Seconds) {}

    fn returned(&mut self, _: GangIx, _: &SimulatedGang, _: usize, _: Seconds) {}

    fn ended(&mut self, at: GangIx, _: &SimulatedGang, _: Seconds) {
        self.release(at);
    }

    fn plan(&mut self, _: &Gangs, now: Seconds) -> PlanDecisions {
        let mut decided = PlanDecisions::default();
        match self.kind {
            Policy::Sjf => self.start_what_fits(now, &mut decided),
            Policy::Easy | Policy::EasyShares => {
                self.start_in_order(now, &mut decided);
                self.backfill_easily(now, &mut decided);
            }
            Policy::Conservative => {
                self.start_in_order(now, &mut decided);
                self.backfill_conservatively(now, &mut decided);
            }
            Policy::Muster | Policy::Fifo | Policy::Priority => {
                self.start_in_order(now, &mut decided);
            }
        }
        decided
    }
}

/// Which gang holds which device ids, for nodes that name their devices.
struct HeldDevices {
    ids: Vec<Vec<String>>,
    holder: Vec<Vec<Option<GangIx>>>,
    by_gang: BTreeMap<GangIx, Vec<(NodeIndex, usize)>>,
}

impl HeldDevices {
    fn new(hosts: &[Host]) -> HeldDevices {
        HeldDevices {
            ids: hosts.iter().map(|host| host.devices.clone()).collect(),
            holder: hosts
                .iter()
                .map(|host| vec![None; host.devices.len()])
                .collect(),
            by_gang: BTreeMap::new(),
        }
    }

    fn take(&mut self, node: NodeIndex, count: i64, gang: GangIx) -> ChosenDevices {
        let mut ids = Vec::new();
        for (place, holder) in self.holder[node].iter_mut().enumerate() {
            if ids.len() as i64 == count {
                break;
            }
            if holder.is_none() {
                *holder = Some(gang);
                self.by_gang.entry(gang).or_default().push((node, place));
                ids.push(self.ids[node][place].clone());
            }
        }
        if ids.is_empty() {
            return ChosenDevices::new();
        }
        let by_resource = BTreeMap::from([(NVIDIA_GPU.to_owned(), ids)]);
        ChosenDevices::from([("main".to_owned(), by_resource)])
    }

    /// Marks the devices of a gang that ran before the start; if its objects name none, any free
    /// ones.
    fn take_known(&mut self, node: NodeIndex, count: i64, at: GangIx, gang: &SimulatedGang) {
        let chosen: BTreeSet<&String> = gang
            .members
            .iter()
            .filter(|member| member.stage == MemberStage::Placed { node })
            .flat_map(|member| member.devices.values())
            .flat_map(|by_resource| by_resource.values().flatten())
            .collect();
        let mut left = count;
        for place in 0..self.holder[node].len() {
            if left > 0
                && chosen.contains(&self.ids[node][place])
                && self.holder[node][place].is_none()
            {
                self.holder[node][place] = Some(at);
                self.by_gang.entry(at).or_default().push((node, place));
                left -= 1;
            }
        }
        if left > 0 {
            self.take(node, left, at);
        }
    }

    fn give_back(&mut self, gang: GangIx) {
        for (node, place) in self.by_gang.remove(&gang).unwrap_or_default() {
            self.holder[node][place] = None;
        }
    }
}
