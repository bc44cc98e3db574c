//! Evicts pods whose claims' GPUs failed: their work can't continue, and they hold devices that no
//! pod can use. The agent evicts them, as the scheduler evicts the pods that it placed: only
//! kube-scheduler and the agent know the holders of claims' devices, and kube-scheduler does not
//! evict pods for failed devices.

use std::collections::BTreeSet;
use std::path::PathBuf;

use devices::dra::{Prepared, Specs};
use devices::inventory::NodeHardware;
use devices::mig::drain;
use devices::mig::next::{BlockingHolder, GpuHolders};
use resources::devices::NodeInventory;
use resources::node_event;
use tokio::sync::watch;
use tokio::time::timeout;

use super::cluster::NodeClient;
use super::evictions::{EVICT_EVERY, Evictions};
use super::socket;

/// The reason of the event, as the scheduler uses it.
const REASON: &str = "FailedDevice";

/// Why the holders of failed devices aren't known.
#[derive(Debug, thiserror::Error)]
enum HoldersError {
    /// The specifications of claims' devices can't be read.
    #[error("the CDI specs of claims: {0}")]
    Specs(#[from] std::io::Error),
    /// The kubelet doesn't list its pods.
    #[error("the kubelet's list of devices: {0}")]
    Kubelet(#[from] tonic::Status),
    /// The API doesn't list the node's pods.
    #[error("the node's pods: {0}")]
    Api(#[from] kube::Error),
}

/// The sources of failed devices and their holders.
pub struct FailedDeviceSources {
    /// The API client.
    pub cluster: NodeClient,
    /// The inventory.
    pub machine: watch::Receiver<NodeHardware>,
    /// The kubelet's pod resources socket.
    pub pod_resources: PathBuf,
    /// The devices of claims.
    pub specs: Specs,
}

impl FailedDeviceSources {
    /// Evicts the holders of failed GPUs, for as long as the agent runs.
    pub async fn evict(mut self) {
        let mut evictions = Evictions::default();
        loop {
            let inventory = self.machine.borrow_and_update().inventory.clone();
            if !inventory.gpus.iter().any(|gpu| gpu.failed) {
                evictions = Evictions::default();
                if self.machine.changed().await.is_err() {
                    return;
                }
                continue;
            }
            if let Err(error) = self.observe(&inventory, &mut evictions).await {
                tracing::warn!(
                    %error,
                    "a GPU has failed, and the pods that hold it by a claim are not known"
                );
            }
            // A pod that is bound to the GPU meanwhile is seen at the next look.
            if let Ok(Err(_)) = timeout(EVICT_EVERY, self.machine.changed()).await {
                return;
            }
        }
    }

    async fn observe(
        &self,
        inventory: &NodeInventory,
        evictions: &mut Evictions,
    ) -> Result<(), HoldersError> {
        let prepared = self.specs.all()?;
        let listed = socket::held(&self.pod_resources, true).await?;
        let holders = drain::holders(&listed, &[], &prepared);
        if stranded(inventory, &holders, &prepared).is_empty() {
            return Ok(());
        }
        let pods = self.cluster.pods().await?;
        let (holders, live) = (
            drain::holders(&listed, &pods, &prepared),
            drain::live(&pods),
        );
        let all = stranded(inventory, &holders, &prepared);
        let why = "its GPU has failed, and the processes on it cannot continue";
        for one in evictions.ask(&self.cluster, &all, &live, why).await {
            let (BlockingHolder::Pod { namespace, name }, Some(pod)) = (one, live.get(one)) else {
                continue;
            };
            let about = node_event::Container {
                namespace,
                pod: name,
                uid: &pod.uid,
                container: "",
            };
            let message = format!("evicted: {why}");
            self.cluster.report_pod(&about, REASON, &message).await;
        }
        Ok(())
    }
}

/// The pods that hold a failed GPU, or a part of one, by a claim.
fn stranded(
    inventory: &NodeInventory,
    holders: &GpuHolders,
    prepared: &[Prepared],
) -> BTreeSet<BlockingHolder> {
    let failed = inventory.gpus.iter().filter(|gpu| gpu.failed);
    let names = failed.flat_map(|gpu| {
        let slices = gpu.slices.iter().flatten();
        let slices = slices.map(|slice| slice.id.clone());
        let cuts = prepared.iter().flat_map(|claim| &claim.cuts);
        let cuts = cuts.filter(|(_, cut)| cut.gpu == gpu.id);
        let cuts = cuts.map(|(device, _)| device.clone());
        [gpu.id.clone()].into_iter().chain(slices).chain(cuts)
    });
    let names: BTreeSet<String> = names.collect();
    let all = names.iter().flat_map(|name| holders.of(name));
    let pods = all.filter(|held| matches!(held, BlockingHolder::Pod { .. }));
    pods.cloned().collect()
}

#[cfg(test)]
mod tests {
    use devices::dra::{CreatedPartition, PreparedDevice};
    use hardware::partition::place::InstancePosition;
    use resources::devices::{GpuDevice, MigSlice};

    use super::*;

    fn pod(name: &str) -> BlockingHolder {
        BlockingHolder::Pod {
            namespace: "team".to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn exactly_the_holders_of_a_failed_gpu_or_a_part_of_it_are_stranded() {
        let slice = MigSlice {
            id: "MIG-c".to_owned(),
            ..MigSlice::default()
        };
        let gpu = |id: &str, failed, slices: Option<&MigSlice>| GpuDevice {
            id: id.to_owned(),
            failed,
            slices: slices.map(|slice| vec![slice.clone()]),
            ..GpuDevice::default()
        };
        let inventory = NodeInventory {
            gpus: vec![
                gpu("GPU-a", true, None),
                gpu("GPU-b", false, None),
                gpu("GPU-c", true, Some(&slice)),
                // The GPU is gone, and its slices with it.
                gpu("GPU-d", true, None),
            ],
            ..NodeInventory::default()
        };
        let partition = |device: &str, gpu: &str| {
            let place = InstancePosition {
                profile: "1g.10gb".to_owned(),
                start: 4,
            };
            let given = PreparedDevice {
                request: "r".to_owned(),
                device: device.to_owned(),
                admin: false,
            };
            let cut = CreatedPartition {
                gpu: gpu.to_owned(),
                place,
                slice: String::new(),
            };
            Prepared {
                devices: vec![given],
                cuts: [(device.to_owned(), cut)].into(),
                ..Prepared::default()
            }
        };
        let prepared = [
            partition("gpu-d-1g-10gb-4", "GPU-d"),
            partition("gpu-b-1g-10gb-4", "GPU-b"),
        ];
        let mut holders = GpuHolders::default();
        for (device, name) in [
            ("gpu-a", "whole"),
            ("gpu-b", "well"),
            ("mig-c", "slice"),
            ("gpu-d-1g-10gb-4", "cut"),
            ("gpu-b-1g-10gb-4", "cut-well"),
        ] {
            holders.note(device, pod(name));
        }
        let unused = BlockingHolder::Claim {
            namespace: "team".to_owned(),
            name: "unused".to_owned(),
        };
        holders.note("gpu-a", unused);
        let all = stranded(&inventory, &holders, &prepared);
        assert_eq!(all, ["cut", "slice", "whole"].map(pod).into());
    }
}
