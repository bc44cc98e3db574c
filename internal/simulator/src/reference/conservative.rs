//! Conservative backfill: everyone that waits gets a date in turn, and nobody starts where that
//! would move the date of one before it. Time is looked at in steps, to a horizon, and only so
//! many are given dates, as Slurm's backfill does.

use crate::engine::gang::{GangIx, NodeIx};
use crate::engine::planner::Decided;
use crate::reference::Reference;
use crate::reference::free::{Free, Need};
use crate::scenario::Seconds;

/// Seconds of one step: Slurm's `bf_resolution`, wider as its manual advises for long windows.
const STEP: Seconds = 600;
/// Steps looked at: a day, Slurm's `bf_window`.
const STEPS: usize = 144;
/// How many are given dates in one plan.
const DEPTH: usize = 100;

impl Reference {
    pub(super) fn backfill_conservatively(&mut self, now: Seconds, decided: &mut Decided) {
        if self.line.is_empty() {
            return;
        }
        let mut times = self.times(now);
        let line: Vec<GangIx> = self.line.iter().take(DEPTH).map(|place| place.2).collect();
        for at in line {
            let Some((_, waiting)) = self.waiting.get(&at) else {
                continue;
            };
            let steps = steps(waiting.estimate);
            let needs = waiting.needs.clone();
            let Some((step, nodes)) = date(&times, &needs, steps) else {
                // Its date is beyond the horizon: nobody within it can be in its way.
                continue;
            };
            let end = (step + steps).min(STEPS);
            for free in &mut times[step..end] {
                for (node, need) in nodes.iter().zip(&needs) {
                    free.take(*node, need);
                }
            }
            if step == 0 {
                for (node, need) in nodes.iter().zip(&needs) {
                    self.free.take(*node, need);
                }
                self.commit(at, nodes, now, decided);
            }
        }
    }

    /// What is free in each step from now on, by the expected ends of those that run.
    fn times(&self, now: Seconds) -> Vec<Free> {
        let mut free = self.free.clone();
        let mut ends = self.ends.iter().peekable();
        let mut times = Vec::with_capacity(STEPS);
        times.push(free.clone());
        for step in 1..STEPS {
            let until = now.saturating_add(STEP * step as Seconds);
            while let Some((_, gang)) = ends.next_if(|(end, _)| *end <= until) {
                if let Some(running) = self.running.get(gang) {
                    for (node, need) in &running.held {
                        free.give_back(*node, need);
                    }
                }
            }
            times.push(free.clone());
        }
        times
    }
}

fn steps(estimate: Seconds) -> usize {
    let steps = usize::try_from((estimate.max(1).saturating_add(STEP - 1)) / STEP).unwrap_or(STEPS);
    steps.clamp(1, STEPS)
}

/// The first step from which these fit for so many steps, and the nodes.
fn date(times: &[Free], needs: &[Need], steps: usize) -> Option<(usize, Vec<NodeIx>)> {
    let mut step = 0;
    'next: while step < times.len() {
        let end = (step + steps).min(times.len());
        let mut least = times[step].clone();
        if least.clone().place(needs).is_none() {
            step += 1;
            continue;
        }
        for free in &times[step + 1..end] {
            if !free.below(&least) {
                continue;
            }
            least = least.lesser(free);
            if least.clone().place(needs).is_none() {
                step += 1;
                continue 'next;
            }
        }
        return least.place(needs).map(|nodes| (step, nodes));
    }
    None
}
