//! Finds a description's devices on the machine, on a thread of its own, because a device's check
//! may take long or never end.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::sync::watch as channel;

use super::check::Checks;
use super::{Pattern, Vendor};

/// Interval at which the machine is read.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorDevice {
    /// The number in its file's path.
    pub number: u32,
    /// Its name: `renderD128`.
    pub id: String,
    /// The NUMA node to which it is attached, if known.
    pub numa: Option<u32>,
    /// Its health.
    pub state: VendorDeviceState,
}

/// A device's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VendorDeviceState {
    /// Not checked yet.
    Unchecked,
    /// It may be allocated.
    Healthy,
    /// It must not be allocated, for this reason.
    Unhealthy(String),
}

impl VendorDevice {
    /// Whether it may be allocated.
    pub fn healthy(&self) -> bool {
        self.state == VendorDeviceState::Healthy
    }
}

/// The present devices, by number; with a health check none counts as healthy before its first
/// check.
pub(super) fn devices(vendor: &Vendor, root: &Path) -> Vec<VendorDevice> {
    let says =
        |pattern: &Pattern, number| std::fs::read_to_string(below(root, &pattern.of(number))).ok();
    let is = |number: &u32| match &vendor.only {
        None => true,
        Some(only) => says(&only.file, *number).is_some_and(|text| text.trim() == only.is),
    };
    let device = |number| {
        let numa = vendor.numa.as_ref().and_then(|file| says(file, number));
        VendorDevice {
            number,
            id: vendor.device.name(number),
            // The kernel says -1 if it doesn't know.
            numa: numa.and_then(|text| text.trim().parse().ok()),
            state: match vendor.health {
                None => VendorDeviceState::Healthy,
                Some(_) => VendorDeviceState::Unchecked,
            },
        }
    };
    let numbers = numbers(&vendor.device, root).into_iter();
    numbers.filter(is).map(device).collect()
}

/// The numbers for which there is a file.
fn numbers(pattern: &Pattern, root: &Path) -> Vec<u32> {
    let (directory, ..) = pattern.entries();
    let entries = std::fs::read_dir(below(root, directory));
    let entries = entries.into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut numbers: Vec<u32> = names
        .filter_map(|name| pattern.number(&name))
        .filter(|number| below(root, &pattern.of(*number)).exists())
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The path of a machine's file when the machine's root is mounted at `root`.
pub fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Watches a vendor's devices on the machine whose root is mounted at `root`, for as long as there
/// is a receiver. The first list is sent before the checks, too.
pub fn watch(vendor: Vendor, root: PathBuf) -> channel::Receiver<Vec<VendorDevice>> {
    let (seen, devices_now) = channel::channel(Vec::new());
    std::thread::spawn(move || {
        let mut last: Option<Vec<VendorDevice>> = None;
        let mut show = |now: Vec<VendorDevice>| {
            if last.as_ref() != Some(&now) {
                log_changes(&vendor.resource, last.as_deref().unwrap_or_default(), &now);
                seen.send_replace(now.clone());
                last = Some(now);
            }
        };
        show(devices(&vendor, &root));
        let mut checks = vendor.health.clone().map(Checks::new);
        while !seen.is_closed() {
            let mut now = devices(&vendor, &root);
            if let Some(checks) = &mut checks {
                checks.assess(&mut now, Instant::now());
            }
            show(now);
            std::thread::sleep(LOOK_EVERY);
        }
    });
    devices_now
}

/// Logs what changed.
fn log_changes(resource: &str, before: &[VendorDevice], now: &[VendorDevice]) {
    if before.is_empty() && now.is_empty() {
        return;
    }
    let healthy =
        |devices: &[VendorDevice]| devices.iter().filter(|device| device.healthy()).count();
    tracing::info!(
        resource,
        devices = now.len(),
        well = healthy(now),
        "{} of {} were well before",
        healthy(before),
        before.len()
    );
}
