//! Queues: a tree of any depth, with what each queue holds, what it is entitled to, and its bounds.
//! This module says how much more a queue may take and which queue is next. Placement is decided
//! elsewhere.
//!
//! **The tree.** `spec.parent` names the parent. A queue without a parent, or whose parent does not
//! exist or would close a cycle, is a child of the root. Gangs may wait in any queue. The own gangs
//! of an inner queue share with its children like one more child of weight 1.
//!
//! **Amounts.** Each queue keeps sums over itself and all queues below it, updated along the path
//! to the root for every placed pod (`account`). *Allocated* is what pods hold, *fixed* the part
//! held by non-preemptible work, *requested* what pods hold or wait for.
//!
//! **Entitlement** (`divide`), for each level and resource: first what is reserved or deserved, as
//! far as it is requested; then the rest by surplus weight among queues that still request, higher
//! priority first, in whole units. It changes only with requests and capacity, not with placements.
//!
//! **Bounds** (`limits`), for the queue and all queues above it: capability and borrowing limit are
//! never exceeded; reservations of other queues are respected; non-preemptible work stays within
//! the deserved amount, if one is set; a user stays within the user limit and a team within the
//! team limit. Within its bounds a queue may use idle capacity beyond its entitlement, and may lose
//! it to reclaim (`share`).
//!
//! **Turns** (`turns`): at each level, in this order: the queue of higher priority; one that is not
//! above its share; one that stays within its deserved amount with its next gang; the smaller
//! dominant share with its next gang, then without it; the smaller entitlement; the older queue.
//!
//! **By GPU model.** An amount of `nvidia.com/gpu.MODEL` (any words of the product's name, such as
//! `nvidia.com/gpu.H100`), in any list, is about the GPUs of that model; `nvidia.com/gpu` is about
//! all GPUs. Pods are charged to both. A gang that names no model is tried on each (`place`).
//!
//! # Other schedulers' terms
//!
//! The table, and the reader of their objects, is `resources::mapping`.

mod account;
mod borrow;
mod divide;
mod limits;
mod pick;
mod portion;
pub(crate) mod rules;
mod share;
mod share_change;
mod tree;
mod turns;
mod usage;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use resources::names::DEFAULT_QUEUE;

use crate::queue_order::LineKey;
use crate::resource::{GPU, Ix, ResourceSet, Room};

pub(crate) use limits::LimitingRule;
pub(crate) use pick::Picker;
pub(crate) use rules::{Admission, GangOrder, QueueRules};
pub(crate) use share::QueueShare;
pub(crate) use turns::{NextGang, QueueTurns};
pub use usage::Decay;

/// A queue's index in the table. It depends on event order, so no decision may depend on it.
pub(crate) type QueueIx = usize;
/// A user's number. It depends on event order, so no decision may depend on it.
pub(crate) type UserIx = usize;

/// A team's number. It depends on event order, so no decision may depend on it.
pub(crate) type TeamIx = usize;

/// The root queue. A Queue object named `root` sets its rules.
pub(crate) const ROOT: QueueIx = 0;
/// The root's name.
const ROOT_NAME: &str = "root";

/// The account that a pod or gang is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payer {
    pub(crate) queue: QueueIx,
    pub(crate) user: UserIx,
    /// The team, if the gang names one.
    pub(crate) team: Option<TeamIx>,
    /// True if the work must not be evicted.
    pub(crate) fixed: bool,
}

/// Sums over gangs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GangSums {
    /// What their placed members hold.
    pub(crate) allocated: Room,
    /// The part of that which must not be evicted.
    pub(crate) fixed: Room,
    /// What their members hold and what their waiting members request.
    pub(crate) requested: Room,
    /// The `minResources` of gangs that are admitted and have not started.
    pub(crate) expected: Room,
}

/// One queue, or the entry for a queue that gangs name and that does not exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) name: Arc<str>,
    pub(crate) rules: Option<QueueRules>,
    /// Its waiting gangs, in queue order.
    pub(crate) line: BTreeSet<LineKey>,
    /// The number of gangs that name it.
    pub(crate) gangs: usize,
    /// Sums over the gangs that name it.
    own: GangSums,
    /// Sums over those and all gangs below it.
    sum: GangSums,
    /// What each user holds through gangs that name it.
    users: BTreeMap<UserIx, Room>,
    /// What each user holds in it and below, if it has a user limit.
    limited: BTreeMap<UserIx, Room>,
    /// What each team holds through gangs that name it.
    teams: BTreeMap<TeamIx, Room>,
    /// What each team holds in it and below, if it has a team limit.
    limited_teams: BTreeMap<TeamIx, Room>,
    parent: QueueIx,
    children: Vec<QueueIx>,
    /// Its position by age and name among all queues.
    rank: usize,
    /// What is reserved for it and not used: other queues may not use it.
    kept: Room,
    /// The sum of what its children keep reserved.
    kept_below: Room,
    /// Its entitlement, with all queues below it.
    entitled: Room,
    /// The entitlement of its own gangs, apart from its children.
    own_entitled: Room,
    /// Its part of its parent's deserved amount, if quotas exceed capacity.
    pub(crate) promised: Room,
    /// Its allocatable share summed over all resources; settles ties.
    size: QueueShare,
    /// Its decaying average of past use.
    usage: Room,
    /// What it held at the end of the last plan.
    held_then: Room,
    /// The user whose gang was placed last.
    served: Option<Arc<str>>,
}

/// All queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    table: Vec<Queue>,
    index: BTreeMap<String, QueueIx>,
    free: Vec<QueueIx>,
    users: Vec<Arc<str>>,
    user_index: BTreeMap<Arc<str>, UserIx>,
    teams: Vec<Arc<str>>,
    team_index: BTreeMap<Arc<str>, TeamIx>,
    /// The default queue's rules until a Queue object for it exists.
    standard: QueueRules,
    /// Queues from the root downwards: parents before their children.
    order: Vec<QueueIx>,
    /// Rules or queues changed: the tree and all sums must be rebuilt.
    stale: bool,
    /// Requests changed: entitlements must be recomputed.
    requests_changed: bool,
    /// The capacity to share.
    pool: Room,
    clock: usage::Clock,
    /// The entitlements at the last call of `shifted`.
    last_entitlements: Vec<i64>,
    /// The resources that are counted in thousandths.
    gpus: ResourceSet,
}

impl Default for Queues {
    fn default() -> Queues {
        let root = Queue {
            name: Arc::from(ROOT_NAME),
            ..Queue::default()
        };
        Queues {
            table: vec![root],
            index: BTreeMap::from([(ROOT_NAME.to_owned(), ROOT)]),
            free: Vec::new(),
            users: Vec::new(),
            user_index: BTreeMap::new(),
            teams: Vec::new(),
            team_index: BTreeMap::new(),
            standard: QueueRules::default(),
            order: vec![ROOT],
            stale: true,
            requests_changed: true,
            pool: Room::default(),
            clock: usage::Clock::default(),
            last_entitlements: Vec::new(),
            gpus: 1 << GPU,
        }
    }
}

impl Queues {
    /// Sets which resources are counted in thousandths.
    pub(crate) fn count_in_thousandths(&mut self, gpus: ResourceSet) {
        self.requests_changed |= self.gpus != gpus;
        self.gpus = gpus;
    }

    /// The index of the queue of this name, if it is known.
    pub(crate) fn find(&self, name: &str) -> Option<QueueIx> {
        self.index.get(name).copied()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Queue> {
        self.find(name).map(|at| &self.table[at])
    }

    pub(crate) fn at(&self, at: QueueIx) -> &Queue {
        &self.table[at]
    }

    pub(crate) fn at_mut(&mut self, at: QueueIx) -> &mut Queue {
        &mut self.table[at]
    }

    pub(crate) fn name(&self, at: QueueIx) -> &str {
        &self.table[at].name
    }

    /// All queues by name; the root only if it has a Queue object or gangs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, QueueIx, &Queue)> {
        let all = self.index.iter();
        all.map(|(name, at)| (name, *at, &self.table[*at]))
            .filter(|(_, at, queue)| *at != ROOT || queue.rules.is_some() || queue.gangs > 0)
    }

    /// The queue's rules; `None` for a queue without a Queue object. The default queue has rules
    /// even without one.
    pub(crate) fn rules(&self, at: QueueIx) -> Option<&QueueRules> {
        let queue = &self.table[at];
        let standard = (&*queue.name == DEFAULT_QUEUE).then_some(&self.standard);
        queue.rules.as_ref().or(standard)
    }

    /// True if some queue admits only the namespaces that its selector matches.
    pub(crate) fn any_selects_namespaces(&self) -> bool {
        let mut rules = self.table.iter().filter_map(|queue| queue.rules.as_ref());
        rules.any(|rules| rules.namespaces.is_some())
    }

    /// The index of a queue, added to the table if the name is new.
    pub(crate) fn place(&mut self, name: &str) -> QueueIx {
        if let Some(at) = self.index.get(name) {
            return *at;
        }
        let queue = Queue {
            name: Arc::from(name),
            ..Queue::default()
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.table[at] = queue;
                at
            }
            None => {
                self.table.push(queue);
                self.table.len() - 1
            }
        };
        self.index.insert(name.to_owned(), at);
        self.stale = true;
        at
    }

    /// Applies a Queue object, or its deletion. Returns true if the order of its waiting gangs, or which of them it
    /// admits, may have changed.
    pub(crate) fn set_rules(&mut self, name: &str, rules: Option<QueueRules>) -> bool {
        let at = self.place(name);
        let policy =
            |rules: &Option<QueueRules>| rules.as_ref().map_or(GangOrder::Priority, |r| r.policy);
        let reordered = policy(&self.table[at].rules) != policy(&rules);
        let selector =
            |rules: &Option<QueueRules>| rules.as_ref().and_then(|r| r.namespaces.clone());
        let selects = selector(&self.table[at].rules) != selector(&rules);
        self.table[at].rules = rules;
        self.stale = true;
        self.remove_if_unused(at);
        reordered || selects
    }

    /// Records that a gang names the queue.
    pub(crate) fn join(&mut self, at: QueueIx) {
        self.table[at].gangs += 1;
    }

    /// Records that a gang no longer names the queue.
    pub(crate) fn leave(&mut self, at: QueueIx) {
        let queue = &mut self.table[at];
        queue.gangs = queue.gangs.saturating_sub(1);
        self.remove_if_unused(at);
    }

    /// Removes a queue that neither exists nor is named by a gang.
    fn remove_if_unused(&mut self, at: QueueIx) {
        let queue = &self.table[at];
        if at == ROOT || queue.rules.is_some() || queue.gangs > 0 {
            return;
        }
        self.index.remove(&*queue.name);
        self.table[at] = Queue::default();
        self.free.push(at);
        self.stale = true;
    }

    /// A user's number. Users are few and are never removed.
    pub(crate) fn user(&mut self, name: &str) -> UserIx {
        number(&mut self.users, &mut self.user_index, name)
    }

    /// A team's number. Teams are few and are never removed.
    pub(crate) fn team(&mut self, name: &str) -> TeamIx {
        number(&mut self.teams, &mut self.team_index, name)
    }

    pub(crate) fn team_name(&self, team: TeamIx) -> &str {
        self.teams.get(team).map_or("", |name| name)
    }

    pub(crate) fn user_name(&self, user: UserIx) -> &str {
        self.users.get(user).map_or("", |name| name)
    }

    pub(crate) fn user_id(&self, user: UserIx) -> Arc<str> {
        self.users.get(user).cloned().unwrap_or_default()
    }

    /// The queue and its ancestors, the root last.
    pub(crate) fn path(&self, from: QueueIx) -> impl Iterator<Item = QueueIx> + '_ {
        let up = |at: &QueueIx| (*at != ROOT).then(|| self.table[*at].parent);
        std::iter::successors(Some(from), up)
    }

    /// The queue's children, oldest first.
    pub(crate) fn children(&self, at: QueueIx) -> &[QueueIx] {
        &self.table[at].children
    }

    /// Its position by age and name among all queues.
    pub(crate) fn rank(&self, at: QueueIx) -> usize {
        self.table[at].rank
    }

    /// What the queue and all queues below it hold.
    pub(crate) fn allocated(&self, at: QueueIx, ix: Ix) -> i64 {
        self.table[at].sum.allocated.get(ix)
    }

    /// The non-preemptible part of that.
    pub(crate) fn fixed(&self, at: QueueIx, ix: Ix) -> i64 {
        self.table[at].sum.fixed.get(ix)
    }

    /// What all queues hold or wait for.
    pub(crate) fn requested(&self, ix: Ix) -> i64 {
        self.table[ROOT].sum.requested.get(ix)
    }
}

/// The number of a name; a new one if the name is new.
fn number(names: &mut Vec<Arc<str>>, index: &mut BTreeMap<Arc<str>, usize>, name: &str) -> usize {
    if let Some(at) = index.get(name) {
        return *at;
    }
    let name: Arc<str> = Arc::from(name);
    names.push(name.clone());
    index.insert(name, names.len() - 1);
    names.len() - 1
}
