//! The device plugin of a described vendor's devices. The kubelet chooses which of them a container
//! gets: the scheduler only counts them, as it does any resource. The node's condition lists their
//! problems.

use std::path::{Path, PathBuf};

use devices::vendors::{self, Vendor, VendorDevice};
use resources::devices::NodeInventory;
use resources::node_conditions::DEVICES;
use rpc::kubelet::v1beta1 as wire;
use tokio::sync::watch;
use tonic::Status;

use super::TRY_EVERY;
use super::cluster::{HealthyCondition, NodeClient};
use super::counted_plugin::{self, PluginOffer};

/// The device plugin for one vendor's resource.
pub struct VendorPlugin {
    pub(super) vendor: Vendor,
    /// Where the machine's root is mounted.
    pub(super) root: PathBuf,
    pub(super) devices: watch::Receiver<Vec<VendorDevice>>,
}

impl PluginOffer for VendorPlugin {
    type Seen = Vec<VendorDevice>;

    fn seen(&self) -> watch::Receiver<Vec<VendorDevice>> {
        self.devices.clone()
    }

    fn offered(&self, now: &Vec<VendorDevice>) -> Vec<wire::Device> {
        let device =
            |one: &VendorDevice| counted_plugin::device(one.id.clone(), one.healthy(), one.numa);
        now.iter().map(device).collect()
    }

    fn equipment(&self, ids: &[String]) -> Result<wire::ContainerAllocateResponse, Status> {
        let devices = self.devices.borrow();
        let one = |id: &String| {
            let found = devices.iter().find(|device| device.id == *id);
            let unknown = || format!("this node has no {} {id:?}", self.vendor.resource);
            (found.cloned()).ok_or_else(|| Status::invalid_argument(unknown()))
        };
        let given = ids
            .iter()
            .map(one)
            .collect::<Result<Vec<VendorDevice>, Status>>()?;
        let there = |path: &Path| vendors::below(&self.root, path).exists();
        let files = self.vendor.files(&given).into_iter();
        let files = files.filter(|file| there(file));
        let files = files.map(|file| counted_plugin::file(file.display().to_string()));
        let mounts = self.vendor.mounts.iter().filter(|mount| there(&mount.from));
        let mounts = mounts.map(|mount| wire::Mount {
            container_path: mount.to.display().to_string(),
            host_path: mount.from.display().to_string(),
            read_only: mount.read_only,
        });
        tracing::info!(
            resource = self.vendor.resource,
            devices = ids.join(","),
            "devices given"
        );
        Ok(wire::ContainerAllocateResponse {
            envs: self.vendor.variables(&given).into_iter().collect(),
            devices: files.collect(),
            mounts: mounts.collect(),
            ..wire::ContainerAllocateResponse::default()
        })
    }
}

/// Keeps the node's condition equal to the unhealthy devices and their problems.
pub async fn keep_condition(cluster: NodeClient, mut devices: vendors::DeviceStock) {
    devices.first().await;
    let mut reported = None;
    loop {
        let described = vendors::offered(&devices.now());
        let inventory = NodeInventory {
            described,
            ..NodeInventory::default()
        };
        let wrong = inventory.unhealthy_devices().unwrap_or_default();
        if reported.as_ref() != Some(&wrong) {
            if let Err(error) = cluster
                .report_condition(&DEVICES, &wrong, HealthyCondition::Absent)
                .await
            {
                // The kubelet may not have created the Node yet.
                tracing::debug!(%error, "the unhealthy devices cannot be written to the Node yet; trying again");
                tokio::time::sleep(TRY_EVERY).await;
                continue;
            }
            reported = Some(wrong);
        }
        devices.news().await;
    }
}
