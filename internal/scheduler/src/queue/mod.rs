//! Queues: a tree of any depth, what each holds, what it is entitled to, and what bounds it. Says
//! how much more a queue may take and whose turn is next; who is placed where is decided elsewhere.
//!
//! **The tree.** `spec.parent` names the queue above; without one, or with one that does not exist
//! or would close a circle, a queue hangs below the root. Gangs may wait in any queue: where an
//! inner one has gangs of its own, these share with its children as one more child of weight 1.
//!
//! **Amounts.** Every queue keeps sums over itself and all below it, brought up to date along the
//! path to the root with every pod that is placed (`account`). *Allocated* is what is held, *fixed*
//! the part held by work that must not be evicted, *requested* what is held or waited for.
//!
//! **Entitlement** (`divide`), for each level and resource: what is reserved or deserved and asked
//! for, first; the rest by surplus weight among those who still ask, higher priority first, in
//! whole units. It moves only with what is requested and what there is, not with placements.
//!
//! **Bounds** (`limits`), for the queue and everything above it: capability and borrowing limit are
//! never passed; what is reserved for others is left alone; non-preemptible work stays within what
//! its queue deserves, where that is said; a user stays within the user limit, a team within the
//! team limit. Within its bounds a
//! queue may use what is idle, whatever its entitlement: it may lose it again (`share`).
//!
//! **Turns** (`turns`): on every level the queue of higher priority; then one that is not above
//! its share; one that stays within what it deserves with its next gang; the smaller dominant
//! share, with its next gang and without; the one entitled to less; the older.
//!
//! **By GPU model.** An amount of `nvidia.com/gpu.MODEL` (any words of the product's name, as in
//! `nvidia.com/gpu.H100`), in any list, is about the GPUs of that model; `nvidia.com/gpu` is about
//! all of them. Pods go on both accounts. A gang that does not say which model it wants is tried
//! on each (`place`).
//!
//! # In others' words
//!
//! The table, and the reader of their objects, is `resources::mapping`.

mod account;
mod borrow;
mod divide;
mod felt;
mod limits;
mod pick;
mod portion;
pub(crate) mod rules;
mod share;
mod tree;
mod turns;
mod usage;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use resources::names::DEFAULT_QUEUE;

use crate::line::LineKey;
use crate::resource::{GPU, Ix, Room, Set};

pub(crate) use limits::Bound;
pub(crate) use pick::Picker;
pub(crate) use rules::{Door, Policy, Rules};
pub(crate) use share::Share;
pub(crate) use turns::{Next, Turns};
pub use usage::Decay;

/// A queue's place in the table. Depends on the order of events: nothing may be decided by it.
pub(crate) type QueueIx = usize;
/// A user's number. Depends on the order of events: nothing may be decided by it.
pub(crate) type UserIx = usize;

/// A team's number. Depends on the order of events: nothing may be decided by it.
pub(crate) type TeamIx = usize;

/// The queue above all others. A Queue object named `root` sets its rules.
pub(crate) const ROOT: QueueIx = 0;
/// The root's name.
const ROOT_NAME: &str = "root";

/// On whose account something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payer {
    pub(crate) queue: QueueIx,
    pub(crate) user: UserIx,
    /// The team it runs for, where it names one.
    pub(crate) team: Option<TeamIx>,
    /// The work must not be evicted.
    pub(crate) fixed: bool,
}

/// What gangs hold and ask for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// What they hold.
    pub(crate) allocated: Room,
    /// What those of them hold that must not be evicted.
    pub(crate) fixed: Room,
    /// What they hold and what their waiting members ask for.
    pub(crate) requested: Room,
    /// What gangs that were let in and have not started said they need.
    pub(crate) expected: Room,
}

/// One queue, or the place of one that gangs name but that is not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) name: Arc<str>,
    pub(crate) rules: Option<Rules>,
    /// The gangs that wait.
    pub(crate) line: BTreeSet<LineKey>,
    /// Gangs that name it.
    pub(crate) gangs: usize,
    /// Of the gangs that name it.
    own: Sums,
    /// Of those and all gangs below it.
    sum: Sums,
    /// What users hold by gangs that name it.
    users: BTreeMap<UserIx, Room>,
    /// What users hold in it and below, where it limits them.
    limited: BTreeMap<UserIx, Room>,
    /// What teams hold by gangs that name it.
    teams: BTreeMap<TeamIx, Room>,
    /// What teams hold in it and below, where it limits them.
    limited_teams: BTreeMap<TeamIx, Room>,
    parent: QueueIx,
    children: Vec<QueueIx>,
    /// Its place by age and name among all queues.
    rank: usize,
    /// What nobody outside may use although nobody inside does.
    kept: Room,
    /// The sum of what its children keep.
    kept_below: Room,
    /// What it is entitled to, with all below it.
    entitled: Room,
    /// What its own gangs are entitled to beside its children.
    own_entitled: Room,
    /// Its part of what its parent deserves, where quotas are more than there is.
    pub(crate) promised: Room,
    /// How much it may hold as its share, over all resources: settles ties.
    size: Share,
    /// What it held of late, as an average that forgets.
    usage: Room,
    /// What it held at the end of the last plan.
    held_then: Room,
    /// The user whose gang was served last.
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
    /// What the default queue goes by until somebody writes it down.
    standard: Rules,
    /// Queues from the root downwards: parents before their children.
    order: Vec<QueueIx>,
    /// Rules or queues changed: the tree and all sums are to be made again.
    stale: bool,
    /// What is requested changed: entitlements are to be made again.
    restless: bool,
    /// What there is to share.
    pool: Room,
    clock: usage::Clock,
    /// What could be felt of the entitlements when that was last asked.
    felt: Vec<i64>,
    /// The resources that are counted in thousandths.
    gpus: Set,
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
            standard: Rules::default(),
            order: vec![ROOT],
            stale: true,
            restless: true,
            pool: Room::default(),
            clock: usage::Clock::default(),
            felt: Vec::new(),
            gpus: 1 << GPU,
        }
    }
}

impl Queues {
    /// Notes which resources are counted in thousandths.
    pub(crate) fn count_in_thousandths(&mut self, gpus: Set) {
        self.restless |= self.gpus != gpus;
        self.gpus = gpus;
    }

    /// Where the queue of this name is, if anything is known of it.
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

    /// All queues by name; the root only where somebody wrote it down or put gangs into it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, QueueIx, &Queue)> {
        let all = self.index.iter();
        all.map(|(name, at)| (name, *at, &self.table[*at]))
            .filter(|(_, at, queue)| *at != ROOT || queue.rules.is_some() || queue.gangs > 0)
    }

    /// The queue's rules; none for a queue that gangs name but nobody wrote down. The default
    /// queue takes work even before somebody did.
    pub(crate) fn rules(&self, at: QueueIx) -> Option<&Rules> {
        let queue = &self.table[at];
        let standard = (&*queue.name == DEFAULT_QUEUE).then_some(&self.standard);
        queue.rules.as_ref().or(standard)
    }

    /// Makes a place for a queue that is named for the first time.
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

    /// Takes in what a Queue object says, or that it is gone. True if the order of its line may
    /// be another now.
    pub(crate) fn set_rules(&mut self, name: &str, rules: Option<Rules>) -> bool {
        let at = self.place(name);
        let policy = |rules: &Option<Rules>| rules.as_ref().map_or(Policy::Priority, |r| r.policy);
        let reordered = policy(&self.table[at].rules) != policy(&rules);
        self.table[at].rules = rules;
        self.stale = true;
        self.tidy(at);
        reordered
    }

    /// Notes that a gang names the queue.
    pub(crate) fn join(&mut self, at: QueueIx) {
        self.table[at].gangs += 1;
    }

    /// Notes that a gang names it no more.
    pub(crate) fn leave(&mut self, at: QueueIx) {
        let queue = &mut self.table[at];
        queue.gangs = queue.gangs.saturating_sub(1);
        self.tidy(at);
    }

    /// Forgets a queue that neither exists nor is named by a gang.
    fn tidy(&mut self, at: QueueIx) {
        let queue = &self.table[at];
        if at == ROOT || queue.rules.is_some() || queue.gangs > 0 {
            return;
        }
        self.index.remove(&*queue.name);
        self.table[at] = Queue::default();
        self.free.push(at);
        self.stale = true;
    }

    /// A user's number. Users are few and stay known.
    pub(crate) fn user(&mut self, name: &str) -> UserIx {
        number(&mut self.users, &mut self.user_index, name)
    }

    /// A team's number. Teams are few and stay known.
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

    /// The queue and those above it, the root last.
    pub(crate) fn path(&self, from: QueueIx) -> impl Iterator<Item = QueueIx> + '_ {
        let up = |at: &QueueIx| (*at != ROOT).then(|| self.table[*at].parent);
        std::iter::successors(Some(from), up)
    }

    /// The queues right below it, oldest first.
    pub(crate) fn children(&self, at: QueueIx) -> &[QueueIx] {
        &self.table[at].children
    }

    /// Its place by age and name among all queues.
    pub(crate) fn rank(&self, at: QueueIx) -> usize {
        self.table[at].rank
    }

    /// What the queue and all below it hold.
    pub(crate) fn allocated(&self, at: QueueIx, ix: Ix) -> i64 {
        self.table[at].sum.allocated.get(ix)
    }

    /// What those of them hold that must not be evicted.
    pub(crate) fn fixed(&self, at: QueueIx, ix: Ix) -> i64 {
        self.table[at].sum.fixed.get(ix)
    }

    /// What all queues hold or wait for.
    pub(crate) fn requested(&self, ix: Ix) -> i64 {
        self.table[ROOT].sum.requested.get(ix)
    }
}

/// The number of a name; a new one for a name that is new.
fn number(names: &mut Vec<Arc<str>>, index: &mut BTreeMap<Arc<str>, usize>, name: &str) -> usize {
    if let Some(at) = index.get(name) {
        return *at;
    }
    let name: Arc<str> = Arc::from(name);
    names.push(name.clone());
    index.insert(name, names.len() - 1);
    names.len() - 1
}
