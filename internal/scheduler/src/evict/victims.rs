//! Which gangs a waiting gang could evict, for its report: the scheduler searches for victims and
//! decides nothing. Every kind of eviction counts, also kinds that are switched off or would cost
//! more than they save. Queue entitlements, priorities, PodDisruptionBudgets and minimum runtimes
//! forbid an eviction here too.

use std::collections::BTreeMap;

use jiff::Timestamp;
use resources::report::Preemptable;

use super::EvictionMethod;
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::pod::PodKey;
use crate::state::Scheduler;
use crate::what_if::WhatIf;

impl WhatIf {
    /// The gangs whose eviction would let a waiting gang start now, and no more than it needs.
    /// Empty where the gang does not lack room, or where no eviction that its queue and its
    /// priority allow would make room. Costs one search for victims.
    #[must_use]
    pub fn could_evict(mut self, namespace: &str, group: &str, now: Timestamp) -> Vec<Preemptable> {
        let state = &mut self.0;
        let gang = GangKey::group(namespace.into(), group);
        let pod = GangKey::lone(&PodKey::new(namespace, group));
        let waiting = |key: &GangKey| state.gangs.get(key).is_some_and(|gang| gang.line.is_some());
        let Some(key) = [gang, pod].into_iter().find(waiting) else {
            return Vec::new();
        };
        let never_preempts = state
            .gangs
            .get(&key)
            .is_some_and(|g| state.never_preempts(g));
        if never_preempts
            || state.gangs_with_reserved_places.contains(&key)
            || state.nominated.contains(&key)
        {
            return Vec::new();
        }
        state.config.actions.reclaim = true;
        state.config.actions.preempt = true;
        state.rank_nodes();
        state.update_queues();
        let found = state.first_victims(&key, now);
        let victims = found.into_iter().map(|((gang, why), members)| Preemptable {
            namespace: gang.namespace.to_string(),
            group: gang.name.to_string(),
            members,
            why: why.as_str().to_owned(),
        });
        victims.collect()
    }
}

impl Scheduler {
    /// The victims of the first method that finds any: the number of members by gang and reason.
    fn first_victims(
        &mut self,
        key: &GangKey,
        now: Timestamp,
    ) -> BTreeMap<(GangKey, EvictionReason), usize> {
        let ask = self.ask(key);
        let mut victims = BTreeMap::new();
        if !self.fits_when_empty(&ask) {
            return victims;
        }
        let ways = self.ways(&ask).into_iter();
        for way in ways.filter(|way| *way != EvictionMethod::Moves) {
            let Ok(found) = self.go(way, key, &ask, now) else {
                continue;
            };
            for unit in &found.units {
                let own = (unit.gang.clone(), unit.why);
                *victims.entry(own).or_insert(0) += unit.pods.len();
            }
            self.undo(found.transaction);
            break;
        }
        self.budgets_in_the_way.clear();
        victims
    }
}
