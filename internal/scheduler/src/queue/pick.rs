//! Which of a queue's gangs is tried next, in one pass over its line: along the line, or user by
//! user where the queue's policy says so.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::gang::GangKey;
use crate::line::LineKey;
use crate::queue::share::Share;
use crate::queue::{Policy, QueueIx, Queues, UserIx};
use crate::resource::Room;

/// One pass over a queue's line.
#[derive(Debug)]
pub(crate) struct Picker {
    queue: QueueIx,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// Along the line; the last place that was dealt with.
    Line(Option<LineKey>),
    /// The lines of the users by name, each with how far it was dealt with, and whose turn it is.
    Users {
        lines: Vec<UserLine>,
        policy: Policy,
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
    /// Starts a pass. `user` tells whose a gang is.
    pub(crate) fn new(
        queues: &Queues,
        queue: QueueIx,
        user: impl Fn(&GangKey) -> UserIx,
    ) -> Picker {
        let policy = queues.rules(queue).map_or(Policy::Priority, |r| r.policy);
        if !matches!(policy, Policy::Fair | Policy::RoundRobin) {
            return Picker {
                queue,
                way: Way::Line(None),
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
        let way = Way::Users {
            lines,
            policy,
            turn,
        };
        Picker { queue, way }
    }

    /// Is the order another than that of the line?
    pub(crate) fn by_user(&self) -> bool {
        matches!(self.way, Way::Users { .. })
    }

    /// Who is next; the same one until it is dealt with.
    pub(crate) fn next(&mut self, queues: &Queues) -> Option<GangKey> {
        let node = queues.at(self.queue);
        match &mut self.way {
            Way::Line(after) => {
                let mut rest = match after {
                    Some(after) => node.line.range((Excluded(&*after), Unbounded)),
                    None => node.line.range(..),
                };
                rest.next().map(|place| place.gang.clone())
            }
            Way::Users {
                lines,
                policy,
                turn,
            } => {
                let waits = |line: &UserLine| line.next < line.gangs.len();
                let count = lines.len().max(1);
                let ring = (0..count).map(|step| (*turn + step) % count);
                let mut ring = ring.filter(|at| lines.get(*at).is_some_and(waits));
                let at = if *policy == Policy::Fair {
                    ring.min_by_key(|at| queues.user_share(self.queue, lines[*at].user))
                } else {
                    ring.next()
                }?;
                *turn = at;
                lines[at].gangs.get(lines[at].next).cloned()
            }
        }
    }

    /// The one that was next is dealt with. `place` is where it stood in the line; `grows` is
    /// true if it got its minimum and members beyond that wait, whose turn comes later.
    pub(crate) fn done(&mut self, place: Option<LineKey>, grows: bool) {
        match &mut self.way {
            Way::Line(after) => *after = place.max(after.take()),
            Way::Users {
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
                if *policy == Policy::RoundRobin {
                    *turn += 1;
                }
            }
        }
    }
}

impl Queues {
    /// The largest part of all there is that a user holds in a queue.
    fn user_share(&self, queue: QueueIx, user: UserIx) -> Share {
        let held = self.table[queue].users.get(&user);
        let all = |ix| self.pool.get(ix);
        held.map_or(Share::NONE, |held| {
            self.dominant(held, &Room::default(), all).0
        })
    }

    /// Notes that a user's gang was served, so that the next turn is another's.
    pub(crate) fn serve(&mut self, queue: QueueIx, user: UserIx) {
        self.table[queue].served = self.users.get(user).cloned();
    }
}
