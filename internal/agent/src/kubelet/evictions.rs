//! Pods that are asked to go by the Eviction API, so that their disruption budgets are kept: each again after a
//! while, for as long as it is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::cluster::Cluster;
use super::mig::drain::Live;
use super::mig::next::Held;

/// How often a pod is asked to go.
pub const EVICT_EVERY: Duration = Duration::from_secs(10);

/// Who was asked: when, and what the API said against it.
#[derive(Default)]
pub struct Evictions(BTreeMap<Held, (Instant, Option<String>)>);

impl Evictions {
    /// Asks those of the holders to go that are pods, have not been told to, and were not asked lately; answers
    /// whom the API has told to go now.
    pub async fn ask<'a>(
        &mut self,
        cluster: &Cluster,
        holders: &'a BTreeSet<Held>,
        live: &BTreeMap<Held, Live>,
        why: &str,
    ) -> Vec<&'a Held> {
        self.0.retain(|asked, _| holders.contains(asked));
        let mut gone = Vec::new();
        for one in holders {
            let (Held::Pod { namespace, name }, Some(pod)) = (one, live.get(one)) else {
                continue;
            };
            let lately = (self.0.get(one)).is_some_and(|(at, _)| at.elapsed() < EVICT_EVERY);
            if pod.going || lately {
                continue;
            }
            let asked = cluster.evict(namespace, name, &pod.uid, pod.grace);
            let refused = asked.await.err();
            match &refused {
                None => {
                    tracing::info!("{one} is evicted: {why}");
                    gone.push(one);
                }
                Some(refused) if self.refused(one) != Some(refused) => {
                    tracing::warn!("{one} can't be evicted yet, though {why}: {refused}");
                }
                Some(_) => {}
            }
            self.0.insert(one.clone(), (Instant::now(), refused));
        }
        gone
    }

    /// What the API said last against a pod's eviction.
    pub fn refused(&self, held: &Held) -> Option<&str> {
        self.0.get(held)?.1.as_deref()
    }
}
