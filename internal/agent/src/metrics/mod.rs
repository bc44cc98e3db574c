//! The agent's metrics: the state of GPUs and RDMA ports, and their holders, as one page for
//! Prometheus. Owns when the hardware is read: at a request, and not more often than [`FRESH`].
//! Nothing is read between requests, so unused metrics cost nothing.

mod gpus;
mod own;
mod ports;
mod serve;
mod shares;
#[cfg(test)]
mod tests;
mod xids;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use devices::holders::DeviceHolders;
use devices::over_share::LatestShares;
use devices::xids::XidMonitor;
use hardware::ports::PortReading;
use hardware::{GpuReading, HardwareError, InventorySources, Meter};
use hyper::body::Bytes;
use parking_lot::Mutex;
use resources::exposition::Page;
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};

pub use serve::{Listen, NoPort, open, serve};

use crate::pod_source::PodSource;

/// The usual port for GPU metrics.
pub const PORT: u16 = 9400;
/// The age up to which a page is reused: several servers that scrape at once cost one reading.
const FRESH: Duration = Duration::from_secs(1);
/// How long a driver may take; a driver with a hung GPU may never answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
enum PageError {
    /// The driver takes too long, now or since an earlier reading.
    #[error("the GPU driver does not answer; a GPU may have to be reset")]
    Silent,
    /// The GPUs cannot be read.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The reading panicked.
    #[error("the GPUs cannot be read: {0}")]
    Panicked(JoinError),
}

/// Produces the page.
pub struct Exporter {
    meter: Arc<Mutex<Meter>>,
    root: PathBuf,
    pods: Arc<dyn PodSource>,
    xids: Arc<Mutex<XidMonitor>>,
    shares: LatestShares,
    hostname: String,
    last: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

impl Exporter {
    /// For a node of this name, whose GPUs are read from `source`.
    pub fn new(
        source: InventorySources,
        hostname: &str,
        pods: Arc<dyn PodSource>,
        xids: Arc<Mutex<XidMonitor>>,
        shares: LatestShares,
    ) -> Exporter {
        Exporter {
            root: source.sysfs_root.clone(),
            pods,
            xids,
            shares,
            meter: Arc::new(Mutex::new(Meter::new(source))),
            hostname: hostname.to_owned(),
            last: tokio::sync::Mutex::default(),
        }
    }

    /// The page, at most [`FRESH`] old; or why there is none.
    async fn page(&self) -> Result<Bytes, PageError> {
        // Locked during the reading: concurrent requests get the same page.
        let mut last = self.last.lock().await;
        if let Some((at, page)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(page.clone());
        }
        let (gpus, ports) = self.read().await?;
        let holders = holders(&*self.pods, &gpus).await;
        let mut page = Page::default();
        gpus::write(&mut page, &gpus, &holders, &self.hostname);
        xids::write(&mut page, &self.xids.lock(), &holders, &self.hostname);
        shares::write(&mut page, &self.shares.lock(), &self.hostname);
        ports::write(&mut page, &ports, &self.hostname);
        own::write(&mut page);
        let page = Bytes::from(page.text());
        *last = Some((Instant::now(), page.clone()));
        Ok(page)
    }

    async fn read(&self) -> Result<(Vec<GpuReading>, Vec<PortReading>), PageError> {
        let (meter, root) = (self.meter.clone(), self.root.clone());
        let reading = tokio::task::spawn_blocking(move || {
            // Only an abandoned reading can still hold the lock: no second one queues behind it.
            let mut meter = meter.try_lock().ok_or(PageError::Silent)?;
            let gpus = meter.read()?;
            Ok((gpus, hardware::ports::read(&root)))
        });
        match timeout(PATIENCE, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(PageError::Panicked(error)),
            Err(_) => Err(PageError::Silent),
        }
    }
}

/// The holders of devices, and of the processes on GPUs that several containers hold.
async fn holders(pods: &dyn PodSource, gpus: &[GpuReading]) -> DeviceHolders {
    let mut holders = pods.device_holders().await;
    // A GPU with one holder belongs to it entirely: its processes need not be looked up.
    let shared = gpus.iter().filter(|gpu| gpus::shared(gpu, &holders));
    let pids: Vec<u32> = shared
        .flat_map(|gpu| gpu.processes.iter().map(|process| process.pid))
        .collect();
    if !pids.is_empty() {
        let containers = pods.containers().await;
        for pid in pids {
            if let Some(holder) = containers.of(pid) {
                holders.note_process(pid, holder);
            }
        }
    }
    holders
}
