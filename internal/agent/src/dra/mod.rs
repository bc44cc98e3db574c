//! The agent beside a kubelet as a DRA driver (dynamic resource allocation, `resource.k8s.io/v1`):
//! tells the cluster in ResourceSlices what the machine has, and gives containers what
//! kube-scheduler allocated to their claims. Where it is to, it offers GPUs in every slice that they can
//! be cut into, and cuts them for the claims that get one.
//!
//! Slices stay when the agent stops: the next one finds them as they should be, and where none
//! comes the kubelet removes them after half a minute.

mod attributes;
mod claimable;
mod counters;
mod cutting;
mod driver;
mod grant;
mod partitions;
mod prepared;
mod publish;
mod registration;
mod serve;
mod slices;
mod verbs;

use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::watch;

pub use claimable::{Claimable, all as claimables, gpus, name_of};
pub use partitions::Found;
#[cfg(test)]
pub use prepared::{Cut, Given};
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
    found: watch::Receiver<Found>,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    let driver = driver::Driver::new(config, client.clone(), machine, found).await;
    tokio::select! {
        ended = serve::driver(config, driver.clone(), stop.clone()) => ended,
        ended = serve::registration(config, stop) => ended,
        () = publish::publish(config, client, driver.offer()) => Ok(()),
        () = driver.follow() => Ok(()),
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
