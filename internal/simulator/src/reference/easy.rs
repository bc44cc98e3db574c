//! EASY backfill: the first that waits gets a date, by the expected ends of those that run, and
//! the nodes it will have then; others start now if they end before it or leave it its room.

use crate::engine::gang::GangIx;
use crate::engine::planner::Decided;
use crate::reference::free::Free;
use crate::reference::{BACKFILL_DEPTH, Reference};
use crate::scenario::Seconds;

impl Reference {
    pub(super) fn backfill_easily(&mut self, now: Seconds, decided: &mut Decided) {
        let Some(head) = self.first() else { return };
        // What is left beside the head at its date; none if it can never start.
        let (date, beside) = match self.date(head, now) {
            Some((date, beside)) => (date, beside),
            None => (Seconds::MAX, self.free.clone()),
        };
        let mut both = self.free.lesser(&beside);
        let mut behind = self.in_turn();
        behind.retain(|at| *at != head);
        behind.truncate(BACKFILL_DEPTH);
        for at in behind {
            let Some((_, waiting)) = self.waiting.get(&at) else {
                continue;
            };
            let short = now.saturating_add(waiting.estimate) <= date;
            let needs = waiting.needs.clone();
            let from = if short { &mut self.free } else { &mut both };
            let Some(nodes) = from.place(&needs) else {
                continue;
            };
            for (node, need) in nodes.iter().zip(&needs) {
                if short {
                    let room = self.free.room(*node);
                    both.lower(*node, &room);
                } else {
                    self.free.take(*node, need);
                }
            }
            self.commit(at, nodes, now, decided);
        }
    }

    /// When the head can start if nothing else does, and what is free beside it then.
    fn date(&self, head: GangIx, now: Seconds) -> Option<(Seconds, Free)> {
        let (_, waiting) = self.waiting.get(&head)?;
        let mut then = self.free.clone();
        let mut ends = self.ends.iter().peekable();
        while let Some((end, gang)) = ends.next() {
            if let Some(running) = self.running.get(gang) {
                for (node, need) in &running.held {
                    then.give_back(*node, need);
                }
            }
            if ends.peek().is_some_and(|(next, _)| next == end) {
                continue;
            }
            if then.place(&waiting.needs).is_some() {
                // Who should have ended already may do so at any moment.
                return Some(((*end).max(now + 1), then));
            }
        }
        None
    }
}
