//! Which queue is next: at each level of the tree, the queues with waiting gangs in order. After
//! each turn only one path is updated, so a turn costs the depth of the tree (times the logarithm
//! of the siblings).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::queue::share::QueueShare;
use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::Room;

/// A queue's position among its siblings. Lesser comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueueRank {
    priority: Reverse<i32>,
    /// True if it holds more than its share.
    above: bool,
    /// True if it would hold more than it deserves with its next gang.
    over: bool,
    /// True if its next gang requests a resource that it has no share in.
    beyond: bool,
    /// Its dominant share with its next gang, and without.
    with: QueueShare,
    without: QueueShare,
    /// Its allocatable share: the smaller goes first.
    size: QueueShare,
    rank: usize,
}

/// The next at a level: the queue's own gangs, or one of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TurnEntry {
    Own,
    Child(QueueIx),
}

/// One level of the tree.
#[derive(Clone, Debug, Default)]
struct TreeLevel {
    waiting: BTreeSet<(QueueRank, TurnEntry)>,
    /// What the next gang of its own requests, if one waits.
    need: Option<Room>,
    /// Its keys: among its own children, and in its parent's level.
    own: Option<QueueRank>,
    child: Option<QueueRank>,
}

/// The queues with waiting gangs, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueTurns {
    levels: Vec<TreeLevel>,
    waiting: usize,
}

/// A queue's next gang.
#[derive(Clone, Debug)]
pub(crate) enum NextGang {
    /// A gang that requests this.
    Needs(Room),
    /// No gang waits: the queue is out of this round.
    NoGang,
}

impl QueueTurns {
    /// The queue whose turn it is.
    pub(crate) fn first(&self) -> Option<QueueIx> {
        let mut at = ROOT;
        loop {
            match self.levels.get(at)?.waiting.first()?.1 {
                TurnEntry::Own => return Some(at),
                TurnEntry::Child(child) => at = child,
            }
        }
    }

    /// True if at most one queue has waiting gangs.
    pub(crate) fn alone(&self) -> bool {
        self.waiting <= 1
    }

    /// Sets a queue's next gang, and repositions the queue and its ancestors.
    pub(crate) fn seat(&mut self, queues: &Queues, queue: QueueIx, next: NextGang) {
        if self.levels.len() < queues.table.len() {
            self.levels
                .resize_with(queues.table.len(), TreeLevel::default);
        }
        let waited = self.levels[queue].need.is_some();
        self.levels[queue].need = match next {
            NextGang::Needs(need) => Some(need),
            NextGang::NoGang => None,
        };
        let waits = self.levels[queue].need.is_some();
        self.waiting = self.waiting + usize::from(waits) - usize::from(waited);
        self.seat_own(queues, queue);
        let mut at = queue;
        while at != ROOT {
            let parent = queues.table[at].parent;
            let key = self.need(at).map(|need| QueueRank::of(queues, at, need));
            let old = std::mem::replace(&mut self.levels[at].child, key.clone());
            if old != key {
                self.swap(parent, TurnEntry::Child(at), old, key);
            }
            at = parent;
        }
    }

    fn seat_own(&mut self, queues: &Queues, queue: QueueIx) {
        let need = self.levels[queue].need.as_ref();
        let key = need.map(|need| QueueRank::own(queues, queue, need));
        let old = std::mem::replace(&mut self.levels[queue].own, key.clone());
        self.swap(queue, TurnEntry::Own, old, key);
    }

    fn swap(
        &mut self,
        level: QueueIx,
        seat: TurnEntry,
        old: Option<QueueRank>,
        new: Option<QueueRank>,
    ) {
        let waiting = &mut self.levels[level].waiting;
        if let Some(old) = old {
            waiting.remove(&(old, seat));
        }
        if let Some(new) = new {
            waiting.insert((new, seat));
        }
    }

    /// What the next gang in a queue or below it requests.
    fn need(&self, from: QueueIx) -> Option<&Room> {
        let mut at = from;
        loop {
            let level = &self.levels[at];
            match level.waiting.first()?.1 {
                TurnEntry::Own => return level.need.as_ref(),
                TurnEntry::Child(child) => at = child,
            }
        }
    }
}

impl QueueRank {
    fn of(queues: &Queues, at: QueueIx, need: &Room) -> QueueRank {
        let held = &queues.table[at].sum.allocated;
        let share = |ix| queues.allocatable(at, ix);
        let (with, beyond) = queues.dominant(held, need, share);
        let asked = need.iter().filter(|(_, amount)| *amount > 0);
        let mut asked = asked.filter(|(ix, _)| queues.counts(*ix));
        let over =
            asked.any(|(ix, amount)| held.get(ix).saturating_add(amount) > queues.deserved(at, ix));
        let priority = queues.rules(at).map_or(0, |rules| rules.priority);
        QueueRank {
            priority: Reverse(priority),
            above: queues.above_share(at).is_some(),
            over,
            beyond,
            with,
            without: queues.dominant_share(at),
            size: queues.table[at].size,
            rank: queues.table[at].rank,
        }
    }

    /// The key of the own gangs of a queue that has children.
    fn own(queues: &Queues, at: QueueIx, need: &Room) -> QueueRank {
        let queue = &queues.table[at];
        let none = Room::default();
        if queue.children.is_empty() {
            // No siblings to compare with.
            return QueueRank {
                priority: Reverse(0),
                above: false,
                over: false,
                beyond: false,
                with: QueueShare::NONE,
                without: QueueShare::NONE,
                size: QueueShare::NONE,
                rank: usize::MAX,
            };
        }
        let held = &queue.own.allocated;
        let share = |ix| queue.own_entitled.get(ix);
        let (with, beyond) = queues.dominant(held, need, share);
        let mut counted = held.iter().filter(|(ix, _)| queues.counts(*ix));
        QueueRank {
            priority: Reverse(0),
            above: counted.any(|(ix, amount)| amount > share(ix)),
            over: true,
            beyond,
            with,
            without: queues.dominant(held, &none, share).0,
            size: QueueShare::NONE,
            rank: usize::MAX,
        }
    }
}
