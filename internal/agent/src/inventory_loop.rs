//! Reads the hardware for the server, for as long as a session lasts.

use std::collections::BTreeSet;

use devices::inventory::NodeHardware;
use jiff::Timestamp;
use rpc::agent::v1::{AgentMessage, Inventory};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::AgentConfig;
use crate::health::{self, HealthObservation, SentHealth};
use crate::node::AgentNode;
use crate::pods::Pods;

/// Reads the hardware every [`AgentConfig::look`], and at once when a part of it reports a change.
/// Sends the inventory when it changed, and the GPUs' state. Ends with the session.
pub async fn report(
    config: &AgentConfig,
    node: &AgentNode,
    pods: &Pods,
    outbound: &mpsc::Sender<AgentMessage>,
) {
    let mut device_monitor = node.device_monitor.lock().await;
    let news = node.xids.lock().news();
    let mut cards = node.cards.clone();
    let mut described = node.described.clone();
    let mut sent = SentHealth::default();
    let mut tick = tokio::time::interval(config.look);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            // A failed GPU is reported at once.
            () = news.notified() => {}
            // A link that goes down is reported at once.
            () = node.fabric.news() => {}
            // RDMA cards that appear, disappear or get device files are reported at once.
            () = cards.news() => {}
            // Changes of other vendors' devices are reported at once.
            () = described.news() => {}
        }
        match device_monitor.observe().await {
            Ok(found) => {
                let mut found = config.take_in(found);
                (node.loads.lock()).note(&found, Instant::now());
                (node.xids.lock()).assess(&mut found, Instant::now());
                (node.fabric).assess(&mut found, Instant::now());
                (node.fault).notify(&mut found, Instant::now());
                let sharing = &node.shared.sharing;
                let mut now = NodeHardware::labelled(&found, sharing, node.started);
                now.rdma = node.fabric.proposal(&found);
                now.share(&cards);
                now.describe(&described);
                now.withhold(&pods.held_as());
                (node.fault).assess(&mut now, Instant::now());
                now.inventory.disk_bytes = node.disk_bytes;
                (node.pressure).assess(&mut now, Instant::now());
                now.topology = node.topology.renew(&found).await;
                node.shared.observe(&now);
                let json = now.json();
                let changed = {
                    let mut machine = node.machine.lock();
                    let changed = *machine != now;
                    *machine = now;
                    changed
                };
                if changed && outbound.send(Inventory { json }.into()).await.is_err() {
                    return;
                }
                let held = pods.holders().into_iter();
                let held: BTreeSet<String> = held.flat_map(|(_, devices)| devices).collect();
                let looks = health::looks(&found, |gpu| held.contains(gpu));
                let alerts = (node.alerts.lock()).observe(&looks, Timestamp::now());
                let disk = (node.pressure).why(Instant::now());
                let observation = HealthObservation::of(&found, alerts).with_disk(disk);
                if let Some(observation) = sent.news(observation, Instant::now())
                    && outbound.send(observation.message().into()).await.is_err()
                {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the hardware cannot be read; the last inventory stays")
            }
        }
    }
}
