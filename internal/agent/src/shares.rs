//! Watches the use of shared GPUs, reports containers over their shares and ends them if the policy
//! says so. Looks at GPUs only while a container shares one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use devices::holders::DeviceHolder;
use devices::inventory::NodeHardware;
use devices::over_share::{
    LatestShares, OverShare, ShareExcess, ShareJudge, ShareObservation, Unknown,
};
use hardware::{GpuReading, HardwareError, InventorySources, Meter};
use parking_lot::Mutex;
use tokio::task::JoinError;
use tokio::time::timeout;

use crate::pod_source::{GpuSharesError, PodSource};

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the driver may take.
const PATIENCE: Duration = Duration::from_secs(8);
/// The name of MPS's own processes, as far as the kernel keeps a name. They use GPU memory that
/// belongs to no container.
const MPS: &str = "nvidia-cuda-mps";
/// The reason of the events.
pub const OVER_SHARE: &str = "OverGpuShare";

/// Why the use of shared GPUs cannot be read.
#[derive(Debug, thiserror::Error)]
enum ShareReadingError {
    /// The shares that containers hold are unknown.
    #[error(transparent)]
    Shares(#[from] GpuSharesError),
    /// The driver takes too long, now or since an earlier reading.
    #[error("the GPU driver does not answer")]
    Silent,
    /// The GPUs cannot be read.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The reading panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

/// Watches one node's shares.
pub struct ShareWatch {
    pods: Arc<dyn PodSource>,
    machine: Box<dyn Fn() -> NodeHardware + Send + Sync>,
    meter: Arc<Mutex<Meter>>,
    judge: ShareJudge,
    board: LatestShares,
    /// The last log message about processes without a known owner, by GPU.
    unknown: BTreeMap<String, usize>,
    /// The logged reason why nothing could be read.
    blind: Option<String>,
}

impl ShareWatch {
    /// A watch of the shares of these pods on the present machine.
    pub fn new(
        policy: OverShare,
        source: InventorySources,
        pods: Arc<dyn PodSource>,
        machine: impl Fn() -> NodeHardware + Send + Sync + 'static,
        board: LatestShares,
    ) -> ShareWatch {
        ShareWatch {
            pods,
            machine: Box::new(machine),
            meter: Arc::new(Mutex::new(Meter::new(source))),
            judge: ShareJudge::new(policy),
            board,
            unknown: BTreeMap::new(),
            blind: None,
        }
    }

    /// Watches without end.
    pub async fn run(mut self) {
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.observe_shares().await {
                Ok(mut sight) => {
                    let findings = self.judge.observe(&mut sight);
                    self.blind = None;
                    self.report_unknown(&sight);
                    *self.board.lock() = sight;
                    for finding in &findings {
                        self.act(finding).await;
                    }
                }
                Err(error) => {
                    let why = error.to_string();
                    // Without a reading there are no values.
                    *self.board.lock() = ShareObservation::default();
                    if self.blind.as_ref() != Some(&why) {
                        tracing::warn!(why, "the use of shared GPUs cannot be read");
                    }
                    self.blind = Some(why);
                }
            }
        }
    }

    async fn observe_shares(&self) -> Result<ShareObservation, ShareReadingError> {
        let machine = (self.machine)();
        let (held, containers) = self.pods.shares(&machine).await?;
        if held.is_empty() {
            return Ok(ShareObservation::default());
        }
        let readings = self.read().await?;
        let whose = |pid| match containers.of(pid) {
            Some(holder) => Ok(Some(holder)),
            None if is_of_mps(pid) => Ok(None),
            None => Err(Unknown),
        };
        Ok(ShareObservation::of(held, &readings, whose))
    }

    async fn read(&self) -> Result<Vec<GpuReading>, ShareReadingError> {
        let meter = self.meter.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut meter = meter.try_lock().ok_or(ShareReadingError::Silent)?;
            Ok(meter.read()?)
        });
        match timeout(PATIENCE, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ShareReadingError::Silent),
        }
    }

    fn report_unknown(&mut self, sight: &ShareObservation) {
        if self.unknown == sight.unknown {
            return;
        }
        for (gpu, count) in &sight.unknown {
            tracing::warn!(
                gpu,
                processes = count,
                "processes on a shared GPU belong to no container that the agent knows, so it cannot check their \
                 shares; an agent in a container of its own must see the host's processes (hostPID)"
            );
        }
        self.unknown.clone_from(&sight.unknown);
    }

    async fn act(&self, finding: &ShareExcess) {
        let mut words = finding.has.message();
        if finding.end {
            words.push_str("; it is ended for that (--over-share end)");
        }
        let held = &finding.has.held;
        if finding.new {
            let DeviceHolder { namespace, pod, .. } = &held.holder;
            tracing::warn!(namespace, pod, "{words}");
        }
        self.pods.over_share(finding, words).await;
    }
}

fn is_of_mps(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.starts_with(MPS))
}
