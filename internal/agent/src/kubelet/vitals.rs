//! What the node's GPUs do, and which alerts stand on them, told to the cluster as annotations of the
//! Node, and as events when an alert begins or ends. The embedded engine's server writes the same.

use std::path::PathBuf;

use hardware::Inventory;
use resources::alerts::{Alert, Watcher, news};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::{TRY_EVERY, socket};
use crate::health::{Seen, Told, looks};
use crate::metrics::Holders;

/// Watches GPUs for what is worth telling.
pub struct Vitals {
    watcher: Watcher,
    told: Told,
    last: Option<Instant>,
    /// Where the kubelet lists who has what.
    pod_resources: PathBuf,
    news: watch::Sender<Option<Seen>>,
}

impl Vitals {
    /// With whoever writes what is worth it.
    pub fn new(pod_resources: PathBuf) -> (Vitals, watch::Receiver<Option<Seen>>) {
        let (news, heard) = watch::channel(None);
        let vitals = Vitals {
            watcher: Watcher::default(),
            told: Told::default(),
            last: None,
            pod_resources,
            news,
        };
        (vitals, heard)
    }

    /// Takes in what was found, as often as the embedded engine's agents look.
    pub async fn take(&mut self, found: &Inventory) {
        let now = Instant::now();
        if (self.last).is_some_and(|last| now.duration_since(last) < crate::LOOK) {
            return;
        }
        self.last = Some(now);
        let mut holders = Holders::default();
        match socket::held(&self.pod_resources, true).await {
            Ok(held) => {
                for (holder, device) in held {
                    holders.note(&device, &holder);
                }
            }
            // A GPU of which nobody knows who has it may idle.
            Err(error) => tracing::debug!(%error, "the kubelet does not say who has which device"),
        }
        let looks = looks(found, |gpu| !holders.of(gpu).is_empty());
        let alerts = self.watcher.look(&looks, jiff::Timestamp::now());
        if let Some(seen) = self.told.news(Seen::of(found, alerts), now) {
            self.news.send_replace(Some(seen));
        }
    }
}

/// Keeps the node's annotations at what was told last.
pub async fn publish(cluster: Cluster, mut heard: watch::Receiver<Option<Seen>>) {
    // Those that stood when this agent started: another may have told of them.
    let mut stood: Option<Vec<Alert>> = None;
    loop {
        let seen = heard.borrow_and_update().clone();
        if let Some(seen) = seen {
            let tell = async {
                let before = match stood.take() {
                    Some(before) => before,
                    None => cluster.alerts().await?,
                };
                cluster.tell_vitals(&seen).await?;
                for news in news(&before, &seen.alerts) {
                    let (reason, message) = (&news.reason, &news.message);
                    if news.begins {
                        tracing::warn!("alert {reason}: {message}");
                    }
                    cluster.tell_event(news.warns, reason, message).await;
                }
                stood = Some(seen.alerts.clone());
                Ok::<_, kube::Error>(())
            };
            if let Err(error) = tell.await {
                // The kubelet may not have made the node yet.
                tracing::debug!(%error, "what the GPUs do can't be told yet");
                tokio::time::sleep(TRY_EVERY).await;
                continue;
            }
        }
        if heard.changed().await.is_err() {
            return;
        }
    }
}
