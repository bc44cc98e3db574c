//! The agent beside a kubelet as a DRA driver (dynamic resource allocation, `resource.k8s.io/v1`):
//! tells the cluster in ResourceSlices what the machine has, and gives containers what
//! kube-scheduler allocated to their claims.
//!
//! Slices stay when the agent stops: the next one finds them as they should be, and where none
//! comes the kubelet removes them after half a minute.

mod claimable;
mod driver;
mod grant;
mod prepared;
mod publish;
mod registration;
mod serve;
mod slices;

use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::watch;

pub use claimable::{Claimable, all as claimables, name_of};
#[cfg(test)]
pub use prepared::Given;
pub use prepared::{Prepared, Specs};

use crate::inventory::Machine;
use crate::kubelet::{KubeletConfig, KubeletError};

/// The driver's name, which classes and claims choose it by.
pub const DRIVER: &str = "gpu.muster.io";

/// Gives out the machine's devices by claims until `stop` says true.
///
/// # Errors
///
/// When a socket can't be made. A kubelet or an API that is away is waited for.
pub async fn run(
    config: &KubeletConfig,
    client: kube::Client,
    machine: watch::Receiver<Machine>,
    devices: watch::Receiver<Vec<Claimable>>,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    let driver = driver::Driver::new(config, client.clone(), machine, devices.clone());
    tokio::select! {
        ended = serve::driver(config, driver.clone(), stop.clone()) => ended,
        ended = serve::registration(config, stop) => ended,
        () = publish::publish(config, client, devices) => Ok(()),
        () = driver.tidy() => Ok(()),
    }
}

/// The GPUs and slices that pods have from the device plugin: what ran before `--devices dra` was
/// asked for keeps what it has.
async fn held(socket: &Path) -> Result<BTreeSet<String>, tonic::Status> {
    let held = crate::kubelet::held(socket, false).await?.into_iter();
    // Of a device that several have, each unit has a number after it.
    let device = |(_, id): (_, String)| id.split("::").next().map(str::to_owned);
    Ok(held.filter_map(device).collect())
}
