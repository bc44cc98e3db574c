//! Whose turn it is: on every level of the tree the waiting queues in order, brought up to date
//! along one path after each turn. Choosing costs the depth of the tree.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::queue::share::Share;
use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::Room;

/// A queue's place among its siblings. Lesser comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    priority: Reverse<i32>,
    /// It holds more than its share.
    above: bool,
    /// With its next gang it would hold more than it deserves.
    over: bool,
    /// Its next gang asks for something that it has no share in.
    beyond: bool,
    /// Its dominant share with its next gang, and without.
    with: Share,
    without: Share,
    /// What it is entitled to: the weaker queue goes first.
    size: Share,
    rank: usize,
}

/// Who has the turn on a level: a queue's own gangs, or one of the queues below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seat {
    Own,
    Child(QueueIx),
}

/// One level.
#[derive(Clone, Debug, Default)]
struct Level {
    waiting: BTreeSet<(Key, Seat)>,
    /// What the next gang of its own needs, if one waits.
    need: Option<Room>,
    /// Its keys in its own level and in its parent's.
    own: Option<Key>,
    child: Option<Key>,
}

/// The queues with waiting gangs, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    levels: Vec<Level>,
    waiting: usize,
}

/// What comes next in a queue.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    /// A gang that needs this.
    Needs(Room),
    /// Nobody: the queue is out of this round.
    Nobody,
}

impl Turns {
    /// The queue whose turn it is.
    pub(crate) fn first(&self) -> Option<QueueIx> {
        let mut at = ROOT;
        loop {
            match self.levels.get(at)?.waiting.first()?.1 {
                Seat::Own => return Some(at),
                Seat::Child(child) => at = child,
            }
        }
    }

    /// Does nobody but this queue wait?
    pub(crate) fn alone(&self) -> bool {
        self.waiting <= 1
    }

    /// Says what comes next in a queue, and puts it and those above it where they belong now.
    pub(crate) fn seat(&mut self, queues: &Queues, queue: QueueIx, next: Next) {
        if self.levels.len() < queues.table.len() {
            self.levels.resize_with(queues.table.len(), Level::default);
        }
        let waited = self.levels[queue].need.is_some();
        self.levels[queue].need = match next {
            Next::Needs(need) => Some(need),
            Next::Nobody => None,
        };
        let waits = self.levels[queue].need.is_some();
        self.waiting = self.waiting + usize::from(waits) - usize::from(waited);
        self.seat_own(queues, queue);
        let mut at = queue;
        while at != ROOT {
            let parent = queues.table[at].parent;
            let key = self.need(at).map(|need| Key::of(queues, at, need));
            let old = std::mem::replace(&mut self.levels[at].child, key.clone());
            if old != key {
                self.swap(parent, Seat::Child(at), old, key);
            }
            at = parent;
        }
    }

    fn seat_own(&mut self, queues: &Queues, queue: QueueIx) {
        let need = self.levels[queue].need.as_ref();
        let key = need.map(|need| Key::own(queues, queue, need));
        let old = std::mem::replace(&mut self.levels[queue].own, key.clone());
        self.swap(queue, Seat::Own, old, key);
    }

    fn swap(&mut self, level: QueueIx, seat: Seat, old: Option<Key>, new: Option<Key>) {
        let waiting = &mut self.levels[level].waiting;
        if let Some(old) = old {
            waiting.remove(&(old, seat));
        }
        if let Some(new) = new {
            waiting.insert((new, seat));
        }
    }

    /// What the gang needs that comes next in a queue or below it.
    fn need(&self, from: QueueIx) -> Option<&Room> {
        let mut at = from;
        loop {
            let level = &self.levels[at];
            match level.waiting.first()?.1 {
                Seat::Own => return level.need.as_ref(),
                Seat::Child(child) => at = child,
            }
        }
    }
}

impl Key {
    fn of(queues: &Queues, at: QueueIx, need: &Room) -> Key {
        let held = &queues.table[at].sum.allocated;
        let share = |ix| queues.allocatable(at, ix);
        let (with, beyond) = queues.dominant(held, need, share);
        let asked = need.iter().filter(|(_, amount)| *amount > 0);
        let mut asked = asked.filter(|(ix, _)| queues.counts(*ix));
        let over =
            asked.any(|(ix, amount)| held.get(ix).saturating_add(amount) > queues.deserved(at, ix));
        let priority = queues.rules(at).map_or(0, |rules| rules.priority);
        Key {
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

    /// For gangs that name a queue which has others below it.
    fn own(queues: &Queues, at: QueueIx, need: &Room) -> Key {
        let queue = &queues.table[at];
        let none = Room::default();
        if queue.children.is_empty() {
            // Nobody to be compared with.
            return Key {
                priority: Reverse(0),
                above: false,
                over: false,
                beyond: false,
                with: Share::NONE,
                without: Share::NONE,
                size: Share::NONE,
                rank: usize::MAX,
            };
        }
        let held = &queue.own.allocated;
        let share = |ix| queue.own_entitled.get(ix);
        let (with, beyond) = queues.dominant(held, need, share);
        let mut counted = held.iter().filter(|(ix, _)| queues.counts(*ix));
        Key {
            priority: Reverse(0),
            above: counted.any(|(ix, amount)| amount > share(ix)),
            over: true,
            beyond,
            with,
            without: queues.dominant(held, &none, share).0,
            size: Share::NONE,
            rank: usize::MAX,
        }
    }
}
