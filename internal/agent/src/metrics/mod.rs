//! The agent's metrics: the state of GPUs and RDMA ports, and their holders, as one page for
//! Prometheus. Owns when the hardware is read: at a request, and not more often than [`FRESH`].
//! Nothing is read between requests, so unused metrics cost nothing.

mod gpus;
mod holders;
mod own;
mod ports;
mod processes;
mod serve;
mod shares;
#[cfg(test)]
mod tests;
mod xids;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hardware::ports::PortReading;
use hardware::{Meter, Reading, Source};
use hyper::body::Bytes;
use parking_lot::Mutex;
use resources::exposition::Page;
use tokio::time::{Instant, timeout};

pub use holders::{Holder, Holders};
pub use processes::Containers;
pub use serve::{Listen, NoPort, open, serve};

use crate::dra::Specs;
use crate::kubelet::{self, Cluster};
use crate::node::Node;
use crate::pods::Pods;
use crate::shares::Board;
use crate::xids::Xids;

/// The usual port for GPU metrics.
pub const PORT: u16 = 9400;
/// The age up to which a page is reused: several servers that scrape at once cost one reading.
const FRESH: Duration = Duration::from_secs(1);
/// How long a driver may take; a driver with a hung GPU may never answer.
const PATIENCE: Duration = Duration::from_secs(8);

/// The source of the node's pods and their devices.
#[derive(Clone)]
pub enum Whose {
    /// The agent's own pods.
    Own(Arc<Node>, Arc<Pods>),
    /// The kubelet's pods, listed at this socket; their processes are found through the pods'
    /// statuses, and the slices of their claims through the CDI specs.
    Kubelet(PathBuf, Cluster, Specs),
}

/// Produces the page.
pub struct Exporter {
    meter: Arc<Mutex<Meter>>,
    root: PathBuf,
    whose: Whose,
    xids: Arc<Mutex<Xids>>,
    shares: Board,
    hostname: String,
    last: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

impl Exporter {
    /// For a node of this name, whose GPUs are read from `source`.
    pub fn new(
        source: Source,
        hostname: &str,
        whose: Whose,
        xids: Arc<Mutex<Xids>>,
        shares: Board,
    ) -> Exporter {
        Exporter {
            root: source.sysfs_root.clone(),
            whose,
            xids,
            shares,
            meter: Arc::new(Mutex::new(Meter::new(source))),
            hostname: hostname.to_owned(),
            last: tokio::sync::Mutex::default(),
        }
    }

    /// The page, at most [`FRESH`] old; or why there is none.
    async fn page(&self) -> Result<Bytes, String> {
        // Locked during the reading: concurrent requests get the same page.
        let mut last = self.last.lock().await;
        if let Some((at, page)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(page.clone());
        }
        let (gpus, ports) = self.read().await?;
        let holders = self.whose.holders(&gpus).await;
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

    async fn read(&self) -> Result<(Vec<Reading>, Vec<PortReading>), String> {
        let (meter, root) = (self.meter.clone(), self.root.clone());
        let reading = tokio::task::spawn_blocking(move || {
            // Only an abandoned reading can still hold the lock: no second one queues behind it.
            let mut meter = meter.try_lock().ok_or(SILENT)?;
            let gpus = meter.read().map_err(|error| error.to_string())?;
            Ok((gpus, hardware::ports::read(&root)))
        });
        match timeout(PATIENCE, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(format!("the GPUs can't be read: {error}")),
            Err(_) => Err(SILENT.to_owned()),
        }
    }
}

impl Whose {
    /// The holders of devices. Without the kubelet's list the labels lack the holders; the values
    /// stay.
    async fn holders(&self, gpus: &[Reading]) -> Holders {
        let mut holders = Holders::default();
        match self {
            Whose::Own(_, pods) => {
                for (holder, devices) in pods.holders() {
                    for device in devices {
                        holders.note(&device, &holder);
                    }
                }
            }
            Whose::Kubelet(socket, _, specs) => match kubelet::held(socket, true).await {
                Ok(held) => {
                    for (holder, device) in held {
                        holders.note(&device, &holder);
                    }
                    let prepared = specs.all().unwrap_or_default().into_iter();
                    for (device, cut) in prepared.flat_map(|claim| claim.cuts) {
                        holders.has_too(&device, &cut.slice);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the kubelet does not say who has which device");
                }
            },
        }
        // A GPU with one holder belongs to it entirely: its processes need not be looked up.
        let shared = gpus.iter().filter(|gpu| gpus::shared(gpu, &holders));
        let pids: Vec<u32> = shared
            .flat_map(|gpu| gpu.processes.iter().map(|process| process.pid))
            .collect();
        if !pids.is_empty() {
            let containers = self.containers().await;
            for pid in pids {
                if let Some(holder) = containers.of(pid) {
                    holders.note_process(pid, holder);
                }
            }
        }
        holders
    }

    /// The containers to which processes may belong.
    pub async fn containers(&self) -> Containers {
        match self {
            Whose::Own(node, _) => {
                let engines = node.engines();
                let all: Vec<_> = engines.iter().flat_map(|engine| engine.list()).collect();
                Containers::own(&all)
            }
            Whose::Kubelet(_, cluster, _) => match cluster.pods().await {
                Ok(pods) => Containers::of_pods(&pods),
                Err(error) => {
                    tracing::debug!(%error, "the cluster does not say which pods are here");
                    Containers::default()
                }
            },
        }
    }
}

const SILENT: &str = "the GPU driver does not answer; a GPU may have to be reset";
