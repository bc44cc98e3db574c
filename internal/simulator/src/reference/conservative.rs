//! Conservative backfill: everyone that waits gets a date in turn, and nobody starts where that
//! would move the date of one before it. Time is looked at to a horizon, in steps where much
//! happens, and only so many are given dates, as Slurm's backfill does.

use crate::engine::gang::{GangIx, NodeIx};
use crate::engine::planner::Decided;
use crate::reference::Reference;
use crate::reference::free::{Free, Need};
use crate::scenario::Seconds;

/// Seconds of one step where much happens: Slurm's `bf_resolution`, wider as its manual advises
/// for long windows.
const STEP: Seconds = 600;
/// How many may run and wait for their ends to be looked at to the second.
const FEW: usize = 64;
/// Seconds looked at: a day, Slurm's `bf_window`.
const WINDOW: Seconds = 86_400;
/// How many are given dates in one plan.
const DEPTH: usize = 100;

/// What is free from a second on, until the next one's.
type Moment = (Seconds, Free);

impl Reference {
    pub(super) fn backfill_conservatively(&mut self, now: Seconds, decided: &mut Decided) {
        if self.line.is_empty() {
            return;
        }
        let few = self.running.len() + self.line.len() <= FEW;
        let step = if few { 1 } else { STEP };
        let mut times = self.times(now, step);
        let line: Vec<GangIx> = self.line.iter().take(DEPTH).map(|place| place.2).collect();
        for at in line {
            let Some((_, waiting)) = self.waiting.get(&at) else {
                continue;
            };
            let needs = waiting.needs.clone();
            let Some((from, nodes)) = date(&times, &needs, waiting.estimate) else {
                // Its date is beyond the horizon: nobody within it can be in its way.
                continue;
            };
            let start = times[from].0;
            let end = round_up(start.saturating_add(waiting.estimate.max(1)) - now, step) + now;
            split(&mut times, end);
            for (_, free) in times.iter_mut().filter(|(at, _)| *at >= start && *at < end) {
                for (node, need) in nodes.iter().zip(&needs) {
                    free.take(*node, need);
                }
            }
            if from == 0 {
                for (node, need) in nodes.iter().zip(&needs) {
                    self.free.take(*node, need);
                }
                self.commit(at, nodes, now, decided);
            }
        }
    }

    /// What is free from now on, by the expected ends of those that run.
    fn times(&self, now: Seconds, step: Seconds) -> Vec<Moment> {
        let mut times = vec![(now, self.free.clone())];
        for (end, gang) in &self.ends {
            // Who should have ended already may do so at any moment.
            let end = now + round_up((*end - now).max(1), step);
            if end > now + WINDOW {
                break;
            }
            let last = times.len() - 1;
            if times[last].0 < end {
                let free = times[last].1.clone();
                times.push((end, free));
            }
            let last = times.len() - 1;
            if let Some(running) = self.running.get(gang) {
                for (node, need) in &running.held {
                    times[last].1.give_back(*node, need);
                }
            }
        }
        times
    }
}

fn round_up(seconds: Seconds, step: Seconds) -> Seconds {
    seconds.saturating_add(step - 1) / step * step
}

/// Makes a moment at this second, if it lies before the last one.
fn split(times: &mut Vec<Moment>, at: Seconds) {
    let place = times.partition_point(|(second, _)| *second < at);
    if place > 0 && times.get(place).is_none_or(|(second, _)| *second > at) {
        let free = times[place - 1].1.clone();
        times.insert(place, (at, free));
    }
}

/// The first moment from which these fit for so long, and the nodes.
fn date(times: &[Moment], needs: &[Need], seconds: Seconds) -> Option<(usize, Vec<NodeIx>)> {
    'next: for (from, (start, free)) in times.iter().enumerate() {
        let end = start.saturating_add(seconds.max(1));
        let mut least = free.clone();
        if least.clone().place(needs).is_none() {
            continue;
        }
        for (_, free) in times[from + 1..].iter().take_while(|(at, _)| *at < end) {
            if !free.below(&least) {
                continue;
            }
            least = least.lesser(free);
            if least.clone().place(needs).is_none() {
                continue 'next;
            }
        }
        return least.place(needs).map(|nodes| (from, nodes));
    }
    None
}
