//! Repartitions idle GPUs (MIG) for gangs that wait for slices, and makes GPUs whole again for
//! gangs that wait for whole ones. Opt-in (`Config::repartition`). Produces label values and their
//! reason; the node's agent applies them. A node whose GPUs are in use, whose configuration was
//! requested by a user, or that was changed recently is not changed. `choose` selects the
//! nodes.
//!
//! Tests: `tests/repartition.rs`, `choose_tests.rs`.

mod annotations;
mod choose;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use resources::mig::ChosenConfiguration;
use resources::report::WaitReason;

use crate::class::ClassIx;
use crate::filter::InfeasibleReason;
use crate::fit::NodeFit;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::plan::{GroupRef, Plan};
use crate::resource::{Demand, ResourceSet, Room, each};
use crate::state::Scheduler;

pub(crate) use annotations::{MigAnnotations, MigState};
use choose::{CandidateNode, Chosen, GpuConfiguration, MemberGroup, WaitingSliceGang, choose};

/// The most waiting gangs considered in one round, by priority and age.
const GANGS_MAX: usize = 64;
/// The most nodes that could be cut that are considered in one round, by name.
const NODES_MAX: usize = 256;
/// The time between two rounds.
const LOOK_EVERY: SignedDuration = SignedDuration::from_secs(1);

/// Which gangs GPUs are cut for, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepartitionBudget {
    /// The queues whose gangs GPUs are cut for; all queues if empty.
    pub queues: Vec<String>,
    /// How long a gang waits before GPUs are cut for it.
    pub after: SignedDuration,
    /// How long a node's GPUs keep a configuration.
    pub every: SignedDuration,
}

impl Default for RepartitionBudget {
    fn default() -> RepartitionBudget {
        RepartitionBudget {
            queues: Vec::new(),
            after: SignedDuration::from_secs(30),
            every: SignedDuration::from_mins(10),
        }
    }
}

/// A node whose GPUs are to be repartitioned. It counts as changing until `forget_repartition` is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repartition {
    /// The node's name.
    pub node: String,
    /// The label's previous value, if it had one.
    pub before: Option<String>,
    /// The new value of its label and annotation.
    pub choice: ChosenConfiguration,
    /// The gang that it is for.
    pub group: GroupRef,
    /// The uid of the PodGroup, or of the pod.
    pub uid: String,
}

/// A decision for a node, and the node's state before it.
#[derive(Clone, Debug)]
pub(crate) struct RepartitionDecision {
    choice: ChosenConfiguration,
    before: MigAnnotations,
}

/// The state kept between rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct RepartitionState {
    /// Nodes whose agents list configurations.
    able: BTreeSet<NodeIx>,
    /// Decisions that no event has confirmed yet.
    decided: BTreeMap<NodeIx, RepartitionDecision>,
    /// Nodes whose label could not be written, and until when they are skipped.
    resting: BTreeMap<NodeIx, Timestamp>,
    looked: Option<Timestamp>,
}

impl Scheduler {
    /// A node's MIG state, with a decision that no event has confirmed yet applied to it.
    pub(crate) fn as_decided(
        &mut self,
        at: NodeIx,
        annotations: Option<MigAnnotations>,
    ) -> Option<MigAnnotations> {
        let able = annotations
            .as_ref()
            .is_some_and(|annotations| !annotations.cuts.is_empty());
        if able {
            self.repartition.able.insert(at);
        } else {
            self.repartition.able.remove(&at);
        }
        let Some(decided) = self.repartition.decided.get_mut(&at) else {
            return annotations;
        };
        let mut annotations = annotations?;
        if annotations.choice.as_ref() == Some(&decided.choice) {
            self.repartition.decided.remove(&at);
            return Some(annotations);
        }
        decided.before.clone_from(&annotations);
        begin(&mut annotations, &decided.choice);
        Some(annotations)
    }

    /// Forgets a node that is gone.
    pub(crate) fn forget_repartition_state(&mut self, at: NodeIx) {
        self.repartition.able.remove(&at);
        self.repartition.decided.remove(&at);
        self.repartition.resting.remove(&at);
    }

    /// Undoes a decision that could not be written to the node; the node is skipped until `until`.
    pub fn forget_repartition(&mut self, node: &str, until: Timestamp) {
        let Some(at) = self.node_index.get(node).copied() else {
            return;
        };
        self.repartition.resting.insert(at, until);
        let Some(decided) = self.repartition.decided.remove(&at) else {
            return;
        };
        self.put_mig_annotations(at, decided.before);
    }

    fn put_mig_annotations(&mut self, at: NodeIx, mig_annotations: MigAnnotations) {
        if let Some(offer) = &self.nodes[at].offer {
            let mut offer = offer.clone();
            offer.mig_annotations = Some(mig_annotations);
            self.set_offer(at, Some(offer));
        }
    }

    /// Decides which nodes are cut; the last step of a plan.
    pub(crate) fn cut(&mut self, now: Timestamp, plan: &mut Plan) {
        let Some(config) = self.config.repartition.clone() else {
            return;
        };
        self.repartition.resting.retain(|_, until| now < *until);
        if self.repartition.able.is_empty() {
            return;
        }
        let next = self
            .repartition
            .looked
            .and_then(|at| at.checked_add(LOOK_EVERY).ok());
        if let Some(next) = next.filter(|next| now < *next) {
            return self.look_again(next);
        }
        let gangs = self.wanting(&config, now);
        if !gangs.iter().any(|(_, want)| want.cuts) {
            return;
        }
        self.repartition.looked = Some(now);
        let (nodes, sites) = self.sites(&config, now);
        let places: BTreeMap<NodeIx, usize> = nodes
            .iter()
            .enumerate()
            .map(|(site, at)| (*at, site))
            .collect();
        let wants: Vec<WaitingSliceGang> = gangs
            .iter()
            .map(|(_, want)| self.placed(want, &places))
            .collect();
        for Chosen { site, cut, want } in choose(&wants, &sites, self.names.devices()) {
            let (at, cut, key) = (nodes[site], &sites[site].cuts[cut], &gangs[want].0);
            plan.repartitions
                .extend(self.decide_repartition(at, cut, key, now));
        }
    }

    /// Requests a plan at that time, even if nothing changes.
    fn look_again(&mut self, at: Timestamp) {
        self.requeue_by(at);
    }

    /// The gangs that wait for room and request GPUs or slices, in order; their members' nodes are
    /// not filled in yet.
    fn wanting(&mut self, config: &RepartitionBudget, now: Timestamp) -> Vec<(GangKey, Wanting)> {
        let mut all = Vec::new();
        let mut due: Option<Timestamp> = None;
        for (_, _, queue) in self
            .queues
            .iter()
            .filter(|(_, _, queue)| !queue.line.is_empty())
        {
            let named =
                config.queues.is_empty() || config.queues.iter().any(|it| **it == *queue.name);
            for line in &queue.line {
                let Some(gang) = self.gangs.get(&line.gang) else {
                    continue;
                };
                let verdict = gang.report.as_ref().map(|report| report.verdict);
                let short = [WaitReason::InsufficientResources, WaitReason::NoNodeFits];
                if !verdict.is_some_and(|verdict| short.contains(&verdict)) {
                    continue;
                }
                let Some(kinds) = self.asks_of(&line.gang, gang) else {
                    continue;
                };
                let ready = line
                    .created
                    .checked_add(config.after)
                    .unwrap_or(Timestamp::MAX);
                if named && now < ready {
                    due = Some(due.map_or(ready, |due| due.min(ready)));
                }
                let priorities = gang.priorities.iter().map(|(priority, _)| *priority);
                let urgency = std::cmp::Reverse(priorities.max().unwrap_or(0));
                let want = Wanting {
                    kinds,
                    cuts: named && ready <= now,
                };
                all.push(((urgency, line.created, line.gang.clone()), want));
            }
        }
        if let Some(due) = due {
            self.look_again(due);
        }
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all.truncate(GANGS_MAX);
        all.into_iter()
            .map(|((.., key), want)| (key, want))
            .collect()
    }

    /// What a gang's waiting members request; `None` if none requests whole GPUs or slices, or if
    /// one requests a part of a GPU.
    fn asks_of(&self, key: &GangKey, gang: &Gang) -> Option<Vec<(ClassIx, Demand, u64)>> {
        let devices = self.names.devices();
        let lacking = gang.minimum(key).saturating_sub(gang.total.have()).max(1);
        let mut asks = false;
        let mut kinds = Vec::new();
        for (class, count) in gang.kinds.iter() {
            let known = self.classes.get(*class);
            if known.share().is_some() {
                return None;
            }
            // GPUs of a model are allocated as GPUs.
            let models = known.models();
            let demand = known.demand().0.iter().copied();
            let demand = demand.filter(|(ix, _)| models & 1 << ix == 0);
            let demand = Demand(demand.collect());
            asks |= demand.0.iter().any(|(ix, _)| devices & 1 << ix != 0);
            let count = if gang.kinds.len() == 1 {
                lacking.min(*count)
            } else {
                *count
            };
            kinds.push((*class, demand, count as u64));
        }
        asks.then_some(kinds)
    }

    /// The gang, with the nodes that could run its members.
    fn placed(&mut self, want: &Wanting, places: &BTreeMap<NodeIx, usize>) -> WaitingSliceGang {
        let members = want.kinds.iter().map(|(class, each, count)| {
            self.refresh(*class);
            let view = self.views.get(class);
            let node_fit = |at: NodeIx| view.map_or(NodeFit::Absent, |view| view.node_fit(at));
            let takes = |at: NodeIx| match node_fit(at) {
                NodeFit::Refused(refusal) => refusal == InfeasibleReason::Repartition,
                NodeFit::Absent => false,
                NodeFit::Holds { .. } | NodeFit::Short { .. } => true,
            };
            let sites = places.iter().filter(|(at, _)| takes(**at));
            MemberGroup {
                each: each.clone(),
                count: *count,
                sites: sites.map(|(_, site)| *site).collect(),
            }
        });
        WaitingSliceGang {
            members: members.collect(),
            cuts: want.cuts,
        }
    }

    /// The nodes with GPUs or slices, by name, with what they have.
    fn sites(
        &mut self,
        config: &RepartitionBudget,
        now: Timestamp,
    ) -> (Vec<NodeIx>, Vec<CandidateNode>) {
        let devices = self.names.devices();
        let (mut nodes, mut sites) = (Vec::new(), Vec::new());
        let (mut due, mut able): (Option<Timestamp>, usize) = (None, 0);
        for at in self.node_index.values().copied() {
            let node = &self.nodes[at];
            let Some(offer) = node.offer.as_ref().filter(|_| node.usable()) else {
                continue;
            };
            let has = |set: ResourceSet| each(set).any(|ix| offer.allocatable.get(ix) > 0);
            let mig_annotations = offer.mig_annotations.as_ref();
            if mig_annotations.is_none() && !has(devices) {
                continue;
            }
            let lasts = |from: Timestamp| from.checked_add(config.every).unwrap_or(Timestamp::MAX);
            let ours = mig_annotations.filter(|it| it.is_ours());
            let chosen = ours.and_then(|it| it.choice.as_ref());
            let until = chosen
                .map(|choice| lasts(choice.at))
                .filter(|until| now < *until);
            let changing = mig_annotations.is_some_and(|it| it.state == MigState::Changing);
            // The kubelet reports new devices only after a while.
            let promised = mig_annotations.filter(|_| changing || until.is_some());
            let promised = promised.and_then(MigAnnotations::promised);
            let mut site = CandidateNode::default();
            for ix in self.names.numbers() {
                let is_device = devices & 1 << ix != 0;
                let cut_amount = promised.filter(|_| is_device).map(|cut| given(cut, ix));
                let has = cut_amount.unwrap_or_else(|| offer.capacity(ix));
                let free = cut_amount.map_or_else(
                    || node.free(ix),
                    |cut_amount| cut_amount - node.used.get(ix),
                );
                site.empty.set(ix, has);
                site.room.set(ix, free);
            }
            if let Some(ours) = ours.filter(|it| it.state == MigState::Settled && able < NODES_MAX)
            {
                let other = |cut: &&GpuConfiguration| ours.asked.as_deref() != Some(&*cut.name);
                site.cuts = ours.cuts.iter().filter(other).cloned().collect();
                let taken = |room: &Room| each(devices).any(|ix| room.get(ix) != 0);
                let used =
                    taken(&node.used) || taken(&node.leaving) || offer.health.has_unknown_work();
                let rests = self.repartition.resting.get(&at).copied();
                site.open = !used && until.is_none() && rests.is_none();
                able += 1;
                if let Some(until) = until.or(rests).filter(|_| !used) {
                    due = Some(due.map_or(until, |due| due.min(until)));
                }
            }
            nodes.push(at);
            sites.push(site);
        }
        if let Some(due) = due {
            self.look_again(due);
        }
        (nodes, sites)
    }

    /// Decides that a node's GPUs are cut in this way for a gang.
    fn decide_repartition(
        &mut self,
        at: NodeIx,
        cut: &GpuConfiguration,
        key: &GangKey,
        now: Timestamp,
    ) -> Option<Repartition> {
        let before = self.nodes[at].offer.as_ref()?.mig_annotations.clone()?;
        let gang = self.gangs.get(key)?;
        let asked = gang
            .waiting
            .iter()
            .filter(|(ix, _)| self.names.devices() & 1 << ix != 0);
        let asked = asked.filter(|(_, amount)| *amount > 0);
        let asked = asked
            .map(|(ix, n)| format!("{} of {}", self.names.quantity(ix, n), self.names.name(ix)));
        let gives = cut.gives.iter();
        let gives = gives.map(|(ix, n)| {
            format!(
                "{} of {}",
                self.names.quantity(*ix, *n),
                self.names.name(*ix)
            )
        });
        let choice = ChosenConfiguration {
            configuration: cut.name.to_string(),
            at: now,
            why: format!(
                "{}/{} waits for {}; no pod uses the GPUs of {}, and configuration {} makes them {}",
                key.namespace,
                key.name,
                asked.collect::<Vec<_>>().join(" and "),
                self.nodes[at].name,
                cut.name,
                gives.collect::<Vec<_>>().join(" and "),
            ),
        };
        let uid = match &gang.spec {
            Some(spec) => spec.uid.clone(),
            None => {
                let mut members = gang.members.iter().filter_map(|pod| self.pods.get(pod));
                members
                    .next()
                    .map(|pod| pod.uid.clone())
                    .unwrap_or_default()
            }
        };
        let mut mig_annotations = before.clone();
        let old = before.asked.clone();
        begin(&mut mig_annotations, &choice);
        let decided = RepartitionDecision {
            choice: choice.clone(),
            before,
        };
        self.repartition.decided.insert(at, decided);
        self.put_mig_annotations(at, mig_annotations);
        Some(Repartition {
            node: self.nodes[at].name.to_string(),
            before: old,
            choice,
            group: GroupRef::of(key),
            uid,
        })
    }
}

/// A waiting gang: its members by class, each one's request and their number, and whether GPUs may
/// be cut for it.
struct Wanting {
    kinds: Vec<(ClassIx, Demand, u64)>,
    cuts: bool,
}

/// The amount of a resource in a configuration.
fn given(cut: &GpuConfiguration, ix: crate::resource::Ix) -> i64 {
    let mut gives = cut.gives.iter().filter(|(other, _)| *other == ix);
    gives.next().map_or(0, |(_, amount)| *amount)
}

/// Marks a node's change as in progress.
fn begin(mig_annotations: &mut MigAnnotations, choice: &ChosenConfiguration) {
    mig_annotations.asked = Some(choice.configuration.clone());
    mig_annotations.state = MigState::Changing;
    mig_annotations.choice = Some(choice.clone());
}
