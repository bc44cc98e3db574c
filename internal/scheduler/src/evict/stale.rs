//! Gangs that run with fewer members than they need: half a gang holds room and gets nothing done.
//! After a grace in which its missing members may come back, it is evicted whole.

use jiff::Timestamp;

use crate::gang::GangKey;
use crate::plan::{EvictionReason, Plan};
use crate::state::Scheduler;

impl Scheduler {
    /// Evicts gangs that were below their minimum for too long, and notes those that are now.
    pub(crate) fn evict_stale(&mut self, now: Timestamp, plan: &mut Plan) {
        let suspects: Vec<GangKey> = self.broken.iter().cloned().collect();
        for key in suspects {
            if self.keeping.contains(&key) {
                // Members are moving: it will be whole again when they are back.
                continue;
            }
            let Some(gang) = self.gangs.get_mut(&key) else {
                continue;
            };
            let since = *gang.stale_since.get_or_insert(now);
            let due = since
                .checked_add(self.config.stale_after)
                .unwrap_or(Timestamp::MAX);
            if now < due {
                self.wake = Some(self.wake.map_or(due, |wake| wake.min(due)));
                continue;
            }
            let Some(bite) = self
                .gangs
                .get(&key)
                .and_then(|gang| self.whole_bite(&key, gang))
            else {
                continue;
            };
            if self.broken_budget(&bite).is_some() {
                continue;
            }
            let mut txn = self.begin();
            for pod in &bite.pods {
                txn.evict(self, pod);
            }
            self.keep(txn);
            for pod in &bite.pods {
                plan.evictions
                    .extend(self.eviction(pod, EvictionReason::StaleGang, None));
            }
            self.settle(&key);
            self.version += 1;
        }
    }

    /// Notes whether a gang is below its minimum while members run; part of settling it.
    pub(crate) fn note_broken(&mut self, key: &GangKey) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        let broken = gang.spec.is_some()
            && gang.total.occupying() > 0
            && !gang.whole(key)
            && !gang.total_ended(key);
        if broken {
            self.broken.insert(key.clone());
        } else {
            gang.stale_since = None;
            self.broken.remove(key);
        }
    }
}
