//! Whom a waiting gang could evict, asked and not decided: for its report. Every kind of eviction
//! counts, also those that are switched off or would lose more than they save; what forbids one
//! (rights, priorities, budgets, minimum runtimes) forbids it here too.

use std::collections::BTreeMap;

use jiff::Timestamp;
use resources::report::Preemptable;

use super::Way;
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::pod::PodKey;
use crate::state::Scheduler;
use crate::what_if::WhatIf;

impl WhatIf {
    /// The gangs whose eviction would let a waiting gang start now: no more victims than needed. Empty
    /// where the gang does not wait for room, or where no eviction that its queue and priority allow
    /// would make room. Costs a search for victims.
    #[must_use]
    pub fn could_evict(mut self, namespace: &str, group: &str, now: Timestamp) -> Vec<Preemptable> {
        let state = &mut self.0;
        let gang = GangKey::group(namespace.into(), group);
        let pod = GangKey::lone(&PodKey::new(namespace, group));
        let waiting = |key: &GangKey| state.gangs.get(key).is_some_and(|gang| gang.line.is_some());
        let Some(key) = [gang, pod].into_iter().find(waiting) else {
            return Vec::new();
        };
        let polite = state
            .gangs
            .get(&key)
            .is_some_and(|g| state.waits_politely(g));
        if polite || state.keeping.contains(&key) || state.nominated.contains(&key) {
            return Vec::new();
        }
        state.config.actions.reclaim = true;
        state.config.actions.preempt = true;
        state.rank_nodes();
        state.reckon_queues();
        let found = state.first_way(&key, now);
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
    /// What the first way takes that leads anywhere: members by gang and reason.
    fn first_way(
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
        for way in ways.filter(|way| *way != Way::Moves) {
            let Ok(found) = self.go(way, key, &ask, now) else {
                continue;
            };
            for bite in &found.bites {
                let own = (bite.gang.clone(), bite.why);
                *victims.entry(own).or_insert(0) += bite.pods.len();
            }
            self.undo(found.txn);
            break;
        }
        self.budgets_in_the_way.clear();
        victims
    }
}
