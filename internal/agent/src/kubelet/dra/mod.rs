//! The agent beside a kubelet as a DRA driver (dynamic resource allocation, `resource.k8s.io/v1`):
//! publishes the machine's devices in ResourceSlices, and gives containers the devices that
//! kube-scheduler allocated to their claims. If configured, it offers GPUs in every slice into
//! which they can be partitioned, and partitions them for the claims that get one.
//!
//! ResourceSlices stay when the agent stops: the next agent updates them, and without a next agent
//! the kubelet removes them after half a minute.

mod driver;
mod error;
mod publish;
mod registration;
mod serve;

use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::watch;

use devices::dra::DiscoveredDevices;
use devices::inventory::NodeHardware;

use crate::kubelet::{KubeletConfig, KubeletError};

/// Offers the machine's devices to claims until `stop` says true.
///
/// # Errors
///
/// When a socket can't be created. The driver waits for a kubelet or an API that is not available.
pub async fn run(
    config: &KubeletConfig,
    client: kube::Client,
    machine: watch::Receiver<NodeHardware>,
    found: watch::Receiver<DiscoveredDevices>,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    let driver = driver::DraDriver::new(config, client.clone(), machine, found).await;
    tokio::select! {
        ended = serve::driver(config, driver.clone(), stop.clone()) => ended,
        ended = serve::registration(config, stop) => ended,
        () = publish::publish(config, client, driver.offer()) => Ok(()),
        () = driver.follow() => Ok(()),
        () = driver.remove_stale_claims() => Ok(()),
    }
}

/// The GPUs and slices that pods hold from the device plugin: pods from before `--devices dra` keep
/// their devices.
async fn held(socket: &Path) -> Result<BTreeSet<String>, tonic::Status> {
    let held = crate::kubelet::held(socket, false).await?.into_iter();
    // Each unit of a shared device has a number behind the device's UUID.
    let device = |(_, id): (_, String)| id.split("::").next().map(str::to_owned);
    Ok(held.filter_map(device).collect())
}
