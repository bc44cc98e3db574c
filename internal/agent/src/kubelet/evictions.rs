//! Evicts pods through the Eviction API, so that their disruption budgets are honoured: the request
//! is repeated until the pod is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use devices::mig::drain::Live;
use devices::mig::next::BlockingHolder;
use tokio::time::Instant;

use super::cluster::NodeClient;

/// Interval between two eviction requests for a pod.
pub const EVICT_EVERY: Duration = Duration::from_secs(10);

/// The pods with a request: its time, and the API's refusal.
#[derive(Default)]
pub struct Evictions(BTreeMap<BlockingHolder, (Instant, Option<String>)>);

impl Evictions {
    /// Requests the eviction of those holders that are pods, are not terminating, and had no recent
    /// request; returns the pods whose eviction the API has granted now.
    pub async fn ask<'a>(
        &mut self,
        cluster: &NodeClient,
        holders: &'a BTreeSet<BlockingHolder>,
        live: &BTreeMap<BlockingHolder, Live>,
        why: &str,
    ) -> Vec<&'a BlockingHolder> {
        self.0.retain(|asked, _| holders.contains(asked));
        let mut gone = Vec::new();
        for one in holders {
            let (BlockingHolder::Pod { namespace, name }, Some(pod)) = (one, live.get(one)) else {
                continue;
            };
            let lately = (self.0.get(one)).is_some_and(|(at, _)| at.elapsed() < EVICT_EVERY);
            if pod.going || lately {
                continue;
            }
            let asked = cluster.evict(namespace, name, &pod.uid, pod.grace);
            let refused = asked.await.err().map(|error| error.to_string());
            match &refused {
                None => {
                    tracing::info!("{one} is evicted: {why}");
                    gone.push(one);
                }
                Some(refused) if self.refused(one) != Some(refused) => {
                    tracing::warn!("{one} cannot be evicted yet, though {why}: {refused}");
                }
                Some(_) => {}
            }
            self.0.insert(one.clone(), (Instant::now(), refused));
        }
        gone
    }

    /// The API's last refusal to evict a pod.
    pub fn refused(&self, held: &BlockingHolder) -> Option<&str> {
        self.0.get(held)?.1.as_deref()
    }
}
