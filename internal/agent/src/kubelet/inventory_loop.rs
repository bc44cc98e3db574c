//! Reads the machine every [`LOOK_EVERY`] and passes what changed to the other components: the
//! inventory, the devices that claims may get, the GPUs that need an MPS daemon, and the GPUs'
//! state.

use std::sync::Arc;

use devices::delivery::CdiFile;
use devices::dra;
use devices::fabric::FabricWatch;
use devices::inventory::NodeHardware;
use devices::mig::Withheld;
use devices::mps::{self, MpsDaemonStates, MpsPlan};
use devices::xids::XidMonitor;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::gpu_report::GpuReporter;
use super::{KubeletConfig, LOOK_EVERY};
use crate::device_monitor::DeviceMonitor;

/// What an inventory is made of, apart from the reading itself.
pub(super) struct Sources {
    /// The agent's configuration.
    pub config: Arc<KubeletConfig>,
    /// The GPUs' XIDs.
    pub xids: Arc<Mutex<XidMonitor>>,
    /// The state of the RDMA network.
    pub fabric: Arc<FabricWatch>,
    /// The GPUs that are to be partitioned.
    pub withheld: Withheld,
    /// The state of the MPS daemons.
    pub stands: watch::Receiver<MpsDaemonStates>,
    /// The devices that claims may get.
    pub claimable: watch::Sender<dra::DiscoveredDevices>,
    /// When this agent started, seconds since 1970.
    pub started: i64,
}

impl Sources {
    /// The inventory of a reading, and the GPUs that need an MPS daemon. Publishes the devices for
    /// claims if they changed.
    pub fn inventory(&self, mut found: hardware::Inventory) -> (NodeHardware, MpsPlan) {
        let at = tokio::time::Instant::now();
        self.xids.lock().assess(&mut found, at);
        self.fabric.assess(&mut found, at);
        let mut claimable = dra::DiscoveredDevices {
            devices: dra::claimables(&found),
            gpus: dra::gpus(&found),
        };
        let settings = &self.config.settings;
        if let Some(strategy) = &settings.mig_strategy {
            found.mig_strategy.clone_from(strategy);
        }
        let mut machine = NodeHardware::labelled(&found, &settings.sharing, self.started);
        machine.rdma = self.fabric.proposal(&found);
        self.withheld.take_out(&mut machine, &mut claimable.devices);
        replace_if_changed(&self.claimable, claimable);
        let wanted = mps::wanted(&machine.inventory, &settings.sharing);
        machine.mps = mps::known_or_waiting(&wanted, &self.stands.borrow(), &self.config.mps);
        (machine, wanted)
    }
}

/// The loop's own state, and the receivers' ends of what it publishes.
pub(super) struct InventoryLoop {
    /// Reads the machine.
    pub device_monitor: DeviceMonitor,
    /// What else an inventory is made of.
    pub sources: Sources,
    /// The file with the devices for container runtimes, if the agent writes one.
    pub cdi: Option<Arc<CdiFile>>,
    /// The GPUs' state to publish.
    pub vitals: GpuReporter,
    /// The GPUs that need an MPS daemon.
    pub wanted: watch::Sender<MpsPlan>,
    /// The inventory.
    pub machine: watch::Sender<NodeHardware>,
}

impl InventoryLoop {
    /// Runs without end.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.device_monitor.observe().await {
                Ok(found) => {
                    self.vitals.take(&found).await;
                    self.publish(found);
                }
                // The last inventory stays valid until the machine can be read again.
                Err(error) => {
                    tracing::warn!(%error, "the hardware cannot be read; the last inventory stays")
                }
            }
        }
    }

    fn publish(&self, found: hardware::Inventory) {
        let (now, wanted) = self.sources.inventory(found);
        if let Some(file) = &self.cdi {
            file.renew(&now);
        }
        replace_if_changed(&self.wanted, wanted);
        self.machine.send_if_modified(|before| {
            let changed = *before != now;
            if changed {
                // Prepared before the first request, so that admission of a pod does not wait for
                // the table.
                now.chooser.prepare();
                *before = now;
            }
            changed
        });
    }
}

/// Publishes a value if it differs from the last one.
fn replace_if_changed<T: PartialEq>(channel: &watch::Sender<T>, now: T) {
    channel.send_if_modified(|before| {
        let changed = *before != now;
        *before = now;
        changed
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_changed_value_wakes_its_receivers() {
        let (channel, mut receiver) = watch::channel(1);
        receiver.borrow_and_update();
        replace_if_changed(&channel, 1);
        assert!(!receiver.has_changed().unwrap());
        replace_if_changed(&channel, 2);
        assert!(receiver.has_changed().unwrap());
        assert_eq!(*receiver.borrow_and_update(), 2);
    }
}
