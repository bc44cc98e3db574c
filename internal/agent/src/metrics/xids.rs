//! The metric families of GPU faults: XIDs, and whether each GPU is offered. They include GPUs that
//! don't answer any more, which have no other values. Pure.

use devices::holders::DeviceHolders;
use devices::xids::XidMonitor;
use resources::exposition::{Kind, Page};
use tokio::time::Instant;

use super::gpus::{held, plainly};

/// Writes the families. dcgm-exporter keeps its last XID without end; this metric returns to 0
/// after a while, and the counter beside it counts all.
pub fn write(page: &mut Page, xids: &XidMonitor, holders: &DeviceHolders, hostname: &str) {
    let now = Instant::now();
    let last = xids.known().iter().filter_map(|(gpu, _)| {
        let last = xids.last(&gpu.id, now)?;
        Some((held(gpu, holders, hostname), last as f64))
    });
    page.family(
        "DCGM_FI_DEV_XID_ERRORS",
        Kind::Gauge,
        "Value of the last XID error encountered.",
        last,
    );
    let counted = xids.known().iter().flat_map(|(gpu, _)| {
        let plain = plainly(gpu, hostname);
        (xids.counts(&gpu.id))
            .map(move |(xid, count)| (plain.clone().with("xid", &xid.to_string()), count as f64))
    });
    page.family(
        "muster_gpu_xids_total",
        Kind::Counter,
        "XIDs that the driver reported since the agent started.",
        counted,
    );
    let well = (xids.known().iter())
        .map(|(gpu, well)| (plainly(gpu, hostname), f64::from(u8::from(*well))));
    page.family(
        "muster_gpu_healthy",
        Kind::Gauge,
        "Whether the GPU is offered to pods.",
        well,
    );
}
