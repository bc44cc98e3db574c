//! Publishes the state of the node's GPUs and their alerts as annotations of the Node, and as
//! events when an alert begins or ends. The embedded engine's server writes the same.

use std::path::PathBuf;

use devices::holders::DeviceHolders;
use hardware::Inventory;
use resources::alerts::{Alert, AlertWatcher, news};
use tokio::sync::watch;
use tokio::time::Instant;

use super::cluster::NodeClient;
use super::{TRY_EVERY, socket};
use crate::health::{HealthObservation, SentHealth, looks};

/// Watches GPUs for changes to publish.
pub struct GpuReporter {
    watcher: AlertWatcher,
    sent: SentHealth,
    last: Option<Instant>,
    /// The kubelet's pod resources socket.
    pod_resources: PathBuf,
    news: watch::Sender<Option<HealthObservation>>,
}

impl GpuReporter {
    /// The watcher, and the receiver of the values to publish.
    pub fn new(
        pod_resources: PathBuf,
    ) -> (GpuReporter, watch::Receiver<Option<HealthObservation>>) {
        let (news, receiver) = watch::channel(None);
        let vitals = GpuReporter {
            watcher: AlertWatcher::default(),
            sent: SentHealth::default(),
            last: None,
            pod_resources,
            news,
        };
        (vitals, receiver)
    }

    /// Processes an inventory, as often as the embedded engine's agents do.
    pub async fn take(&mut self, found: &Inventory) {
        let now = Instant::now();
        if (self.last).is_some_and(|last| now.duration_since(last) < crate::config::LOOK) {
            return;
        }
        self.last = Some(now);
        let mut holders = DeviceHolders::default();
        match socket::held(&self.pod_resources, true).await {
            Ok(held) => {
                for (holder, device) in held {
                    holders.note(&device, &holder);
                }
            }
            // A GPU with unknown holders may be idle without an alert.
            Err(error) => {
                tracing::debug!(%error, "the kubelet does not list the devices of its pods")
            }
        }
        let looks = looks(found, |gpu| !holders.of(gpu).is_empty());
        let alerts = self.watcher.observe(&looks, jiff::Timestamp::now());
        if let Some(observation) = self.sent.news(HealthObservation::of(found, alerts), now) {
            self.news.send_replace(Some(observation));
        }
    }
}

/// Keeps the node's annotations equal to the last values.
pub async fn publish(
    cluster: NodeClient,
    mut observations: watch::Receiver<Option<HealthObservation>>,
) {
    // The alerts at the start of this agent: an earlier agent may have written their events.
    let mut last_alerts: Option<Vec<Alert>> = None;
    loop {
        let observation = observations.borrow_and_update().clone();
        if let Some(observation) = observation {
            let written = async {
                let before = match last_alerts.take() {
                    Some(before) => before,
                    None => cluster.alerts().await?,
                };
                cluster.report_gpu_state(&observation).await?;
                for news in news(&before, &observation.alerts) {
                    let (reason, message) = (&news.reason, &news.message);
                    if news.begins {
                        tracing::warn!("alert {reason}: {message}");
                    }
                    cluster.report_event(news.warns, reason, message).await;
                }
                last_alerts = Some(observation.alerts.clone());
                Ok::<_, kube::Error>(())
            };
            if let Err(error) = written.await {
                // The kubelet may not have created the Node yet.
                tracing::debug!(%error, "the GPUs' state cannot be written to the Node yet; trying again");
                tokio::time::sleep(TRY_EVERY).await;
                continue;
            }
        }
        if observations.changed().await.is_err() {
            return;
        }
    }
}
