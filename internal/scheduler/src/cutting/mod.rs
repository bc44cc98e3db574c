//! Cutting idle GPUs (MIG) for gangs that wait for slices, and making them whole again for those that
//! wait for GPUs: opt-in (`Config::cutting`). Says which label of which node is to have which value, and
//! why; the node's agent does it. Of a node that somebody uses, or asked to be cut otherwise, nothing is
//! changed; nor is one that was changed lately. Which nodes is `choose`'s.

mod choose;
mod cuttable;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use resources::mig::Choice;
use resources::report::Verdict;

use crate::class::ClassIx;
use crate::filter::Refusal;
use crate::fit::Standing;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::plan::{GroupRef, Plan};
use crate::resource::{Demand, Room, Set, each};
use crate::state::Scheduler;

use choose::{Chosen, Cut, Members, Site, Want, choose};
pub(crate) use cuttable::{Cuttable, State};

/// For how many waiting gangs GPUs are cut in one look; the first of them by priority and age.
const GANGS_MAX: usize = 64;
/// How many nodes that could be cut are looked at, by name.
const NODES_MAX: usize = 256;
/// How often it is looked at.
const LOOK_EVERY: SignedDuration = SignedDuration::from_secs(1);

/// For whom GPUs are cut, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cutting {
    /// The queues whose gangs GPUs are cut for; of all where empty.
    pub queues: Vec<String>,
    /// How long a gang waits before GPUs are cut for it.
    pub after: SignedDuration,
    /// How long a node's GPUs stay as they were cut.
    pub every: SignedDuration,
}

impl Default for Cutting {
    fn default() -> Cutting {
        Cutting {
            queues: Vec::new(),
            after: SignedDuration::from_secs(30),
            every: SignedDuration::from_mins(10),
        }
    }
}

/// A node whose GPUs are to be cut. It counts as being cut until `forget_recut` says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recut {
    /// The node's name.
    pub node: String,
    /// The configuration that its label had before; none where it had none.
    pub before: Option<String>,
    /// What its label and annotation are to say.
    pub choice: Choice,
    /// The gang that it is for.
    pub group: GroupRef,
    /// Which one of that name.
    pub uid: String,
}

/// What was decided of a node, and what it said before.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    choice: Choice,
    before: Cuttable,
}

/// What is remembered of cutting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// Nodes whose agents say what they can make of their GPUs.
    able: BTreeSet<NodeIx>,
    /// What was decided and no event has confirmed yet.
    decided: BTreeMap<NodeIx, Decided>,
    /// Nodes that could not be told, and until when they are left alone.
    resting: BTreeMap<NodeIx, Timestamp>,
    looked: Option<Timestamp>,
}

impl Scheduler {
    /// What a node says of its GPUs, as it counts: what was decided and it does not say yet is so.
    pub(crate) fn as_decided(&mut self, at: NodeIx, said: Option<Cuttable>) -> Option<Cuttable> {
        let able = said.as_ref().is_some_and(|said| !said.cuts.is_empty());
        if able {
            self.cutting.able.insert(at);
        } else {
            self.cutting.able.remove(&at);
        }
        let Some(decided) = self.cutting.decided.get_mut(&at) else {
            return said;
        };
        let mut said = said?;
        if said.choice.as_ref() == Some(&decided.choice) {
            self.cutting.decided.remove(&at);
            return Some(said);
        }
        decided.before.clone_from(&said);
        begin(&mut said, &decided.choice);
        Some(said)
    }

    /// A node is gone.
    pub(crate) fn forget_cutting(&mut self, at: NodeIx) {
        self.cutting.able.remove(&at);
        self.cutting.decided.remove(&at);
        self.cutting.resting.remove(&at);
    }

    /// A node could not be told how its GPUs are to be cut: they are as they were, and it is not
    /// tried again before `until`.
    pub fn forget_recut(&mut self, node: &str, until: Timestamp) {
        let Some(at) = self.node_index.get(node).copied() else {
            return;
        };
        self.cutting.resting.insert(at, until);
        let Some(decided) = self.cutting.decided.remove(&at) else {
            return;
        };
        self.put_cuttable(at, decided.before);
    }

    fn put_cuttable(&mut self, at: NodeIx, cuttable: Cuttable) {
        if let Some(offer) = &self.nodes[at].offer {
            let mut offer = offer.clone();
            offer.cuttable = Some(cuttable);
            self.set_offer(at, Some(offer));
        }
    }

    /// Decides whose GPUs are cut for whom; the last part of a plan.
    pub(crate) fn cut(&mut self, now: Timestamp, plan: &mut Plan) {
        let Some(config) = self.config.cutting.clone() else {
            return;
        };
        self.cutting.resting.retain(|_, until| now < *until);
        if self.cutting.able.is_empty() {
            return;
        }
        let next = self
            .cutting
            .looked
            .and_then(|at| at.checked_add(LOOK_EVERY).ok());
        if let Some(next) = next.filter(|next| now < *next) {
            return self.look_again(next);
        }
        let gangs = self.wanting(&config, now);
        if !gangs.iter().any(|(_, want)| want.cuts) {
            return;
        }
        self.cutting.looked = Some(now);
        let (nodes, sites) = self.sites(&config, now);
        let places: BTreeMap<NodeIx, usize> = nodes
            .iter()
            .enumerate()
            .map(|(site, at)| (*at, site))
            .collect();
        let wants: Vec<Want> = gangs
            .iter()
            .map(|(_, want)| self.placed(want, &places))
            .collect();
        for Chosen { site, cut, want } in choose(&wants, &sites, self.names.devices()) {
            let (at, cut, key) = (nodes[site], &sites[site].cuts[cut], &gangs[want].0);
            plan.recuts.extend(self.decide_cut(at, cut, key, now));
        }
    }

    /// Has a plan made at that time, even if nothing changes.
    fn look_again(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// The gangs that wait for room and ask for GPUs or slices, the first in line first; their members'
    /// sites are not known yet.
    fn wanting(&mut self, config: &Cutting, now: Timestamp) -> Vec<(GangKey, Wanting)> {
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
                let short = [Verdict::InsufficientResources, Verdict::NoNodeFits];
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

    /// What a gang's waiting members ask for; none where none asks for whole GPUs or slices, or some
    /// for parts of GPUs.
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
            // GPUs of a model are given out as GPUs are.
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

    /// A gang with the nodes that would have its members.
    fn placed(&mut self, want: &Wanting, places: &BTreeMap<NodeIx, usize>) -> Want {
        let members = want.kinds.iter().map(|(class, each, count)| {
            self.refresh(*class);
            let view = self.views.get(class);
            let standing = |at: NodeIx| view.map_or(Standing::Absent, |view| view.standing(at));
            let takes = |at: NodeIx| match standing(at) {
                Standing::Refused(refusal) => refusal == Refusal::Recut,
                Standing::Absent => false,
                Standing::Holds { .. } | Standing::Short { .. } => true,
            };
            let sites = places.iter().filter(|(at, _)| takes(**at));
            Members {
                each: each.clone(),
                count: *count,
                sites: sites.map(|(_, site)| *site).collect(),
            }
        });
        Want {
            members: members.collect(),
            cuts: want.cuts,
        }
    }

    /// The nodes with GPUs or slices, by name, and what can be had of them.
    fn sites(&mut self, config: &Cutting, now: Timestamp) -> (Vec<NodeIx>, Vec<Site>) {
        let devices = self.names.devices();
        let (mut nodes, mut sites) = (Vec::new(), Vec::new());
        let (mut due, mut able): (Option<Timestamp>, usize) = (None, 0);
        for at in self.node_index.values().copied() {
            let node = &self.nodes[at];
            let Some(offer) = node.offer.as_ref().filter(|_| node.usable()) else {
                continue;
            };
            let has = |set: Set| each(set).any(|ix| offer.allocatable.get(ix) > 0);
            let cuttable = offer.cuttable.as_ref();
            if cuttable.is_none() && !has(devices) {
                continue;
            }
            let lasts = |from: Timestamp| from.checked_add(config.every).unwrap_or(Timestamp::MAX);
            let ours = cuttable.filter(|it| it.is_ours());
            let chosen = ours.and_then(|it| it.choice.as_ref());
            let until = chosen
                .map(|choice| lasts(choice.at))
                .filter(|until| now < *until);
            let changing = cuttable.is_some_and(|it| it.state == State::Changing);
            // The kubelet tells of what is there only after a while.
            let promised = cuttable.filter(|_| changing || until.is_some());
            let promised = promised.and_then(Cuttable::promised);
            let mut site = Site::default();
            for ix in self.names.numbers() {
                let is_device = devices & 1 << ix != 0;
                let told = promised.filter(|_| is_device).map(|cut| given(cut, ix));
                let has = told.unwrap_or_else(|| offer.capacity(ix));
                let free = told.map_or_else(|| node.free(ix), |told| told - node.used.get(ix));
                site.empty.set(ix, has);
                site.room.set(ix, free);
            }
            if let Some(ours) = ours.filter(|it| it.state == State::Settled && able < NODES_MAX) {
                let other = |cut: &&Cut| ours.asked.as_deref() != Some(&*cut.name);
                site.cuts = ours.cuts.iter().filter(other).cloned().collect();
                let taken = |room: &Room| each(devices).any(|ix| room.get(ix) != 0);
                let used = taken(&node.used) || taken(&node.leaving) || offer.health.works_unseen();
                let rests = self.cutting.resting.get(&at).copied();
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

    /// Decides that a node's GPUs are cut so for a gang.
    fn decide_cut(
        &mut self,
        at: NodeIx,
        cut: &Cut,
        key: &GangKey,
        now: Timestamp,
    ) -> Option<Recut> {
        let before = self.nodes[at].offer.as_ref()?.cuttable.clone()?;
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
        let choice = Choice {
            configuration: cut.name.to_string(),
            at: now,
            why: format!(
                "{}/{} waits for {}, nobody uses the GPUs of {}, and cut as {} they are {}",
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
        let mut cuttable = before.clone();
        let old = before.asked.clone();
        begin(&mut cuttable, &choice);
        let decided = Decided {
            choice: choice.clone(),
            before,
        };
        self.cutting.decided.insert(at, decided);
        self.put_cuttable(at, cuttable);
        Some(Recut {
            node: self.nodes[at].name.to_string(),
            before: old,
            choice,
            group: GroupRef::of(key),
            uid,
        })
    }
}

/// A gang that waits: its members by class, what each asks for, how many; and whether GPUs may be cut
/// for it.
struct Wanting {
    kinds: Vec<(ClassIx, Demand, u64)>,
    cuts: bool,
}

/// How much of a resource there is under a configuration.
fn given(cut: &Cut, ix: crate::resource::Ix) -> i64 {
    let mut gives = cut.gives.iter().filter(|(other, _)| *other == ix);
    gives.next().map_or(0, |(_, amount)| *amount)
}

/// A node is told.
fn begin(cuttable: &mut Cuttable, choice: &Choice) {
    cuttable.asked = Some(choice.configuration.clone());
    cuttable.state = State::Changing;
    cuttable.choice = Some(choice.clone());
}
