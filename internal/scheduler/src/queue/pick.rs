//! Which gang of a queue is tried next, in one pass: in queue order, or user by user if the queue's
//! policy is `fair` or `round-robin`.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::gang::GangKey;
use crate::queue::share::QueueShare;
use crate::queue::{GangOrder, QueueIx, Queues, UserIx};
use crate::queue_order::LineKey;
use crate::resource::Room;

/// One pass over a queue's waiting gangs.
#[derive(Debug)]
pub(crate) struct Picker {
    queue: QueueIx,
    order: PassOrder,
}

#[derive(Debug)]
enum PassOrder {
    /// In queue order; the key of the last gang tried.
    Line(Option<LineKey>),
    /// Each user's gangs, by user name, with the position reached in each, and the index of the
    /// next user.
    Users {
        lines: Vec<UserLine>,
        policy: GangOrder,
        turn: usize,
    },
}

#[derive(Debug)]
struct UserLine {
    user: UserIx,
    gangs: Vec<GangKey>,
    next: usize,
}

impl Picker {
    /// Starts a pass. `user` returns a gang's user.
    pub(crate) fn new(
        queues: &Queues,
        queue: QueueIx,
        user: impl Fn(&GangKey) -> UserIx,
    ) -> Picker {
        let policy = queues
            .rules(queue)
            .map_or(GangOrder::Priority, |r| r.policy);
        if !matches!(policy, GangOrder::Fair | GangOrder::RoundRobin) {
            return Picker {
                queue,
                order: PassOrder::Line(None),
            };
        }
        let node = queues.at(queue);
        let mut by_name: BTreeMap<&str, UserLine> = BTreeMap::new();
        for place in &node.line {
            let user = user(&place.gang);
            let line = by_name
                .entry(queues.user_name(user))
                .or_insert_with(|| UserLine {
                    user,
                    gangs: Vec::new(),
                    next: 0,
                });
            line.gangs.push(place.gang.clone());
        }
        let served = node.served.as_deref();
        let names = by_name.keys();
        let turn = names
            .take_while(|name| served.is_some_and(|served| **name <= served))
            .count();
        let lines: Vec<UserLine> = by_name.into_values().collect();
        let order = PassOrder::Users {
            lines,
            policy,
            turn,
        };
        Picker { queue, order }
    }

    /// True if the order differs from queue order.
    pub(crate) fn by_user(&self) -> bool {
        matches!(self.order, PassOrder::Users { .. })
    }

    /// The next gang; the same one until `done` is called.
    pub(crate) fn next(&mut self, queues: &Queues) -> Option<GangKey> {
        let node = queues.at(self.queue);
        match &mut self.order {
            PassOrder::Line(after) => {
                let mut rest = match after {
                    Some(after) => node.line.range((Excluded(&*after), Unbounded)),
                    None => node.line.range(..),
                };
                rest.next().map(|place| place.gang.clone())
            }
            PassOrder::Users {
                lines,
                policy,
                turn,
            } => {
                let waits = |line: &UserLine| line.next < line.gangs.len();
                let count = lines.len().max(1);
                let ring = (0..count).map(|step| (*turn + step) % count);
                let mut ring = ring.filter(|at| lines.get(*at).is_some_and(waits));
                let at = if *policy == GangOrder::Fair {
                    ring.min_by_key(|at| queues.user_share(self.queue, lines[*at].user))
                } else {
                    ring.next()
                }?;
                *turn = at;
                lines[at].gangs.get(lines[at].next).cloned()
            }
        }
    }

    /// The next gang was tried. `place` is its key in queue order; `grows` is true if it got its
    /// minimum and members beyond it wait for a later turn.
    pub(crate) fn done(&mut self, place: Option<LineKey>, grows: bool) {
        match &mut self.order {
            PassOrder::Line(after) => *after = place.max(after.take()),
            PassOrder::Users {
                lines,
                policy,
                turn,
            } => {
                if let Some(line) = lines.get_mut(*turn) {
                    if let Some(gang) = line.gangs.get(line.next).filter(|_| grows) {
                        line.gangs.push(gang.clone());
                    }
                    line.next += 1;
                }
                if *policy == GangOrder::RoundRobin {
                    *turn += 1;
                }
            }
        }
    }
}

impl Queues {
    /// The largest part of the total capacity that a user holds in a queue.
    fn user_share(&self, queue: QueueIx, user: UserIx) -> QueueShare {
        let held = self.table[queue].users.get(&user);
        let all = |ix| self.pool.get(ix);
        held.map_or(QueueShare::NONE, |held| {
            self.dominant(held, &Room::default(), all).0
        })
    }

    /// Records that a user's gang was placed, so that another user is next.
    pub(crate) fn serve(&mut self, queue: QueueIx, user: UserIx) {
        self.table[queue].served = self.users.get(user).cloned();
    }
}
