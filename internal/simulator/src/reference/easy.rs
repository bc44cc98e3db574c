//! EASY backfill: the first waiting gang gets a start date, by the expected ends of running gangs,
//! and the nodes it will have then. Other gangs start now if they end before that date or leave the
//! reserved resources free.

use crate::gang::GangIx;
use crate::planner::PlanDecisions;
use crate::reference::free::Free;
use crate::reference::{BACKFILL_DEPTH, ReferenceScheduler};
use crate::scenario::Seconds;

impl ReferenceScheduler {
    pub(super) fn backfill_easily(&mut self, now: Seconds, decided: &mut PlanDecisions) {
        let Some(head) = self.first() else { return };
        // The resources beside the head's reservation at its date; none if the head can never
        // start.
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

    /// When the head can start if no other gang does, and the resources that are free beside it
    /// then.
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
                // A gang past its expected end may end at any moment.
                return Some(((*end).max(now + 1), then));
            }
        }
        None
    }
}
