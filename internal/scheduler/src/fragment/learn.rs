//! A mix learnt from the pods that arrive, for clusters where nothing is known in advance.

use std::collections::BTreeMap;

use super::mix::Mix;
use super::node::Demand;

/// Pods seen before the first mix is made.
const FIRST: u64 = 50;

/// Counts arrivals and says when the mix should be made anew: after 50 pods, then each time their
/// number has doubled.
#[derive(Clone, Debug)]
pub struct Learner {
    counts: BTreeMap<Demand, u64>,
    seen: u64,
    due: u64,
}

impl Default for Learner {
    fn default() -> Learner {
        Learner {
            counts: BTreeMap::new(),
            seen: 0,
            due: FIRST,
        }
    }
}

impl Learner {
    /// Counts one arrival, placed or not. A mix is returned when it is time to use a new one.
    pub fn arrived(&mut self, demand: &Demand) -> Option<Mix> {
        *self.counts.entry(*demand).or_insert(0) += 1;
        self.seen += 1;
        if self.seen < self.due {
            return None;
        }
        self.due = self.due.saturating_mul(2);
        Some(Mix::from_counts(&self.counts))
    }
}
