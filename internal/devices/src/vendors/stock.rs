//! Described devices on the embedded engine: which devices the server gets to know, and what a
//! container gets for the devices that the scheduler chose. Pure but for [`DeviceStock`], which holds
//! the last results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use resources::devices::DescribedDevice;
use tokio::sync::watch as channel;

use super::{HostMount, Vendor, VendorDevice, VendorDeviceState, watch};

/// How long the agent waits for the first checks.
const PATIENCE: Duration = Duration::from_secs(10);

/// A resource's present devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stock {
    /// Their description.
    pub vendor: Arc<Vendor>,
    /// The present devices.
    pub devices: Vec<VendorDevice>,
}

impl Stock {
    /// A device's id outside the agent: its file.
    fn id(&self, device: &VendorDevice) -> String {
        let file = self.vendor.device.of(device.number);
        file.display().to_string()
    }

    fn find(&self, id: &str) -> Option<&VendorDevice> {
        self.devices.iter().find(|device| self.id(device) == id)
    }
}

/// The published devices of a machine, by resource. A device in several descriptions belongs to the
/// first resource, and a resource without devices is not offered.
pub fn offered(stocks: &BTreeMap<String, Stock>) -> BTreeMap<String, Vec<DescribedDevice>> {
    let mut known = BTreeSet::new();
    let mut all = BTreeMap::new();
    for (resource, stock) in stocks {
        let mut devices = Vec::new();
        for device in &stock.devices {
            let id = stock.id(device);
            if !known.insert(id.clone()) {
                continue;
            }
            devices.push(DescribedDevice {
                id,
                numa: device.numa,
                healthy: device.healthy(),
                why: match &device.state {
                    VendorDeviceState::Unchecked => "it has not been checked yet".to_owned(),
                    VendorDeviceState::Healthy => String::new(),
                    VendorDeviceState::Unhealthy(why) => why.clone(),
                },
            });
        }
        if !devices.is_empty() {
            all.insert(resource.clone(), devices);
        }
    }
    all
}

/// What a container gets for its devices, and which files it must not open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerDevices {
    /// Its variables.
    pub variables: BTreeMap<String, String>,
    /// Its device files; some may not exist.
    pub files: Vec<PathBuf>,
    /// Files and directories of the machine to mount; some may not exist.
    pub mounts: Vec<HostMount>,
    /// The files of all other devices; some may not exist.
    pub denied: Vec<PathBuf>,
}

/// Why a container can't get the devices that were chosen for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VendorAllocationError {
    /// The machine has no description of the resource.
    #[error(
        "container {container:?} was given {resource}, of which this node has no description any more: \
         start its agent with that --vendor file, or delete the pod"
    )]
    NotDescribed {
        /// The container.
        container: String,
        /// The resource.
        resource: String,
    },
    /// Fewer devices were chosen than the container requests.
    #[error(
        "container {container:?} asks for {asked} of {resource}, but {chosen} were chosen for it"
    )]
    TooFew {
        /// The container.
        container: String,
        /// The number of devices that it requests.
        asked: usize,
        /// The resource.
        resource: String,
        /// The number of chosen devices.
        chosen: usize,
    },
    /// The machine lacks a chosen device.
    #[error(
        "device {device:?} was chosen for container {container:?}, but this node has no such {resource}"
    )]
    NoDevice {
        /// The device.
        device: String,
        /// The container.
        container: String,
        /// The resource.
        resource: String,
    },
}

/// What a container gets that requests so many of each resource and for which the scheduler chose
/// these devices.
///
/// # Errors
///
/// Fewer devices were chosen than requested, or the machine lacks one of them.
pub fn equipment(
    stocks: &BTreeMap<String, Stock>,
    container: &str,
    asked: &BTreeMap<String, usize>,
    chosen: &BTreeMap<String, Vec<String>>,
) -> Result<ContainerDevices, VendorAllocationError> {
    if let Some(resource) = chosen.keys().find(|name| !stocks.contains_key(*name)) {
        return Err(VendorAllocationError::NotDescribed {
            container: container.to_owned(),
            resource: resource.clone(),
        });
    }
    let mut equipment = ContainerDevices::default();
    let mut own = BTreeSet::new();
    for (resource, stock) in stocks {
        let ids = chosen.get(resource).map_or(&[][..], Vec::as_slice);
        let count = asked.get(resource).copied().unwrap_or(0);
        if count > ids.len() {
            return Err(VendorAllocationError::TooFew {
                container: container.to_owned(),
                asked: count,
                resource: resource.clone(),
                chosen: ids.len(),
            });
        }
        let find = |id: &String| {
            stock
                .find(id)
                .cloned()
                .ok_or_else(|| VendorAllocationError::NoDevice {
                    device: id.clone(),
                    container: container.to_owned(),
                    resource: resource.clone(),
                })
        };
        let devices = ids
            .iter()
            .map(find)
            .collect::<Result<Vec<VendorDevice>, _>>()?;
        if devices.is_empty() {
            continue;
        }
        let vendor = &stock.vendor;
        equipment.variables.extend(vendor.variables(&devices));
        for file in vendor.files(&devices) {
            if own.insert(file.clone()) {
                equipment.files.push(file);
            }
        }
        equipment.mounts.extend(vendor.mounts.iter().cloned());
    }
    let all = stocks.values().flat_map(|stock| {
        let of = |device: &VendorDevice| stock.vendor.own(device.number);
        stock.devices.iter().flat_map(of)
    });
    let others: BTreeSet<PathBuf> = all.filter(|file| !own.contains(file)).collect();
    equipment.denied = others.into_iter().collect();
    Ok(equipment)
}

/// The present devices of all descriptions.
#[derive(Clone, Debug)]
pub struct DeviceStock(Vec<(Arc<Vendor>, channel::Receiver<Vec<VendorDevice>>)>);

impl DeviceStock {
    /// Starts watching the machine whose root is mounted at `root`.
    pub fn begin(vendors: &[Vendor], root: &Path) -> DeviceStock {
        let all = vendors.iter().map(|vendor| {
            let seen = watch(vendor.clone(), root.to_owned());
            (Arc::new(vendor.clone()), seen)
        });
        DeviceStock(all.collect())
    }

    /// The same, after each device was checked once, if the checks end.
    pub async fn watch(vendors: &[Vendor], root: &Path) -> DeviceStock {
        let mut described = DeviceStock::begin(vendors, root);
        described.first().await;
        described
    }

    /// Waits until each device was checked once, if the checks end, and logs devices with two
    /// descriptions.
    pub async fn first(&mut self) {
        let first = tokio::time::timeout(PATIENCE, self.checked()).await;
        if first.is_err() {
            tracing::warn!(
                "other vendors' devices are not checked yet; pods get none of them until the first check ends"
            );
        }
        self.warn_of_overlaps();
    }

    /// Each description, with the receiver of its devices.
    pub fn each(&self) -> impl Iterator<Item = (&Vendor, channel::Receiver<Vec<VendorDevice>>)> {
        (self.0.iter()).map(|(vendor, seen)| (&**vendor, seen.clone()))
    }

    async fn checked(&mut self) {
        for (_, seen) in &mut self.0 {
            let known = |now: &[VendorDevice]| {
                now.iter()
                    .all(|it| it.state != VendorDeviceState::Unchecked)
            };
            while seen.changed().await.is_ok() && !known(&seen.borrow()) {}
        }
    }

    /// A device in several descriptions is offered by only one of them.
    fn warn_of_overlaps(&self) {
        let now = self.now();
        let mut known: BTreeMap<String, &str> = BTreeMap::new();
        for (resource, stock) in &now {
            for id in stock.devices.iter().map(|device| stock.id(device)) {
                if let Some(first) = known.get(&id) {
                    tracing::warn!(
                        "{id} is described as {first} and as {resource}: it is offered as {first}"
                    );
                }
                known.entry(id).or_insert(resource);
            }
        }
    }

    /// Waits for a change since the last call.
    pub async fn news(&mut self) {
        let mut all: Vec<_> = (self.0.iter_mut())
            .map(|(_, seen)| Box::pin(seen.changed()))
            .collect();
        while !all.is_empty() {
            let (changed, _, rest) = select_all(all).await;
            if changed.is_ok() {
                return;
            }
            all = rest;
        }
        std::future::pending().await
    }

    /// Each resource's present devices.
    pub fn now(&self) -> BTreeMap<String, Stock> {
        let all = self.0.iter().map(|(vendor, seen)| {
            let stock = Stock {
                vendor: vendor.clone(),
                devices: seen.borrow().clone(),
            };
            (vendor.resource.clone(), stock)
        });
        all.collect()
    }
}
