//! Gangs that run with fewer members than their minimum: an incomplete gang holds room and makes no
//! progress. The scheduler gives the missing members a grace period to come back, and then evicts
//! the gang whole (`tests/evictions.rs`).

use jiff::Timestamp;

use crate::gang::GangKey;
use crate::plan::{EvictionReason, Plan};
use crate::state::Scheduler;

impl Scheduler {
    /// Evicts gangs that were below their minimum for longer than the grace period, and records
    /// gangs that fell below it now.
    pub(crate) fn evict_incomplete_gangs(&mut self, now: Timestamp, plan: &mut Plan) {
        let suspects: Vec<GangKey> = self.incomplete_gangs.iter().cloned().collect();
        for key in suspects {
            if self.gangs_with_reserved_places.contains(&key) {
                // Members of the gang are moving: it is complete again once they are back.
                continue;
            }
            let Some(gang) = self.gangs.get_mut(&key) else {
                continue;
            };
            let since = *gang.incomplete_since.get_or_insert(now);
            let due = since
                .checked_add(self.config.stale_after)
                .unwrap_or(Timestamp::MAX);
            if now < due {
                self.requeue_by(due);
                continue;
            }
            let Some(unit) = self
                .gangs
                .get(&key)
                .and_then(|gang| self.whole_gang_unit(&key, gang))
            else {
                continue;
            };
            if self.broken_budget(&unit).is_some() {
                continue;
            }
            let mut transaction = self.begin();
            for pod in &unit.pods {
                transaction.evict(self, pod);
            }
            self.keep(transaction);
            for pod in &unit.pods {
                plan.evictions
                    .extend(self.eviction(pod, EvictionReason::StaleGang, None));
            }
            self.settle(&key);
            self.version += 1;
        }
    }

    /// Records whether a gang runs below its minimum; part of settling the gang.
    pub(crate) fn note_incomplete(&mut self, key: &GangKey) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        let broken = gang.spec.is_some()
            && gang.total.occupying() > 0
            && !gang.whole(key)
            && !gang.total_ended(key);
        if broken {
            self.incomplete_gangs.insert(key.clone());
        } else {
            gang.incomplete_since = None;
            self.incomplete_gangs.remove(key);
        }
    }
}
