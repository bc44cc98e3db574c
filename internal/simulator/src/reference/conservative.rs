//! Conservative backfill: every waiting gang gets a start date in turn, and no gang starts if that
//! would delay the date of one before it. As in Slurm's backfill, the timeline has a horizon and,
//! for many gangs, a coarse resolution, and the number of dates is limited.

use crate::gang::{GangIx, NodeIndex};
use crate::planner::PlanDecisions;
use crate::reference::ReferenceScheduler;
use crate::reference::free::{Free, PodNeed};
use crate::scenario::Seconds;

/// The resolution in seconds with many gangs: Slurm's `bf_resolution`, wider as its manual advises
/// for long windows.
const STEP: Seconds = 600;
/// Up to this many running and waiting gangs, ends are exact to the second.
const FEW: usize = 64;
/// The horizon in seconds: a day, Slurm's `bf_window`.
const WINDOW: Seconds = 86_400;
/// How many gangs get dates in one plan.
const DEPTH: usize = 100;

/// The free resources from a second until the next entry's.
type ResourceStep = (Seconds, Free);

impl ReferenceScheduler {
    pub(super) fn backfill_conservatively(&mut self, now: Seconds, decided: &mut PlanDecisions) {
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
                // Its date is beyond the horizon, so it conflicts with no start within it.
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

    /// The timeline of free resources, by the expected ends of running gangs.
    fn times(&self, now: Seconds, step: Seconds) -> Vec<ResourceStep> {
        let mut times = vec![(now, self.free.clone())];
        for (end, gang) in &self.ends {
            // A gang past its expected end may end at any moment.
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

/// Splits the timeline at this second, unless that is before the first entry or has one already.
fn split(times: &mut Vec<ResourceStep>, at: Seconds) {
    let place = times.partition_point(|(second, _)| *second < at);
    if place > 0 && times.get(place).is_none_or(|(second, _)| *second > at) {
        let free = times[place - 1].1.clone();
        times.insert(place, (at, free));
    }
}

/// The first entry from which these fit for this duration, and the nodes.
fn date(
    times: &[ResourceStep],
    needs: &[PodNeed],
    seconds: Seconds,
) -> Option<(usize, Vec<NodeIndex>)> {
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
