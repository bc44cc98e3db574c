//! Watches the use of shared GPUs, reports containers over their shares and ends them if the policy
//! says so. Looks at GPUs only while a container shares one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use devices::holders::Holder;
use devices::inventory::Machine;
use devices::over_share::{Board, Finding, Judge, OverShare, Sight, Unknown};
use hardware::{Meter, Reading, Source};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::pod_source::PodSource;

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the driver may take.
const PATIENCE: Duration = Duration::from_secs(8);
/// The name of MPS's own processes, as far as the kernel keeps a name. They use GPU memory that
/// belongs to no container.
const MPS: &str = "nvidia-cuda-mps";
/// The reason of the events.
pub const OVER_SHARE: &str = "OverGpuShare";

/// Watches one node's shares.
pub struct Watch {
    pods: Arc<dyn PodSource>,
    machine: Box<dyn Fn() -> Machine + Send + Sync>,
    meter: Arc<Mutex<Meter>>,
    judge: Judge,
    board: Board,
    /// The last log message about processes without a known owner, by GPU.
    unknown: BTreeMap<String, usize>,
    /// The logged reason why nothing could be read.
    blind: Option<String>,
}

impl Watch {
    /// A watch of the shares of these pods on the present machine.
    pub fn new(
        policy: OverShare,
        source: Source,
        pods: Arc<dyn PodSource>,
        machine: impl Fn() -> Machine + Send + Sync + 'static,
        board: Board,
    ) -> Watch {
        Watch {
            pods,
            machine: Box::new(machine),
            meter: Arc::new(Mutex::new(Meter::new(source))),
            judge: Judge::new(policy),
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
            match self.sight().await {
                Ok(mut sight) => {
                    let findings = self.judge.look(&mut sight);
                    self.blind = None;
                    self.tell_unknown(&sight);
                    *self.board.lock() = sight;
                    for finding in &findings {
                        self.act(finding).await;
                    }
                }
                Err(why) => {
                    // Without a reading there are no values.
                    *self.board.lock() = Sight::default();
                    if self.blind.as_ref() != Some(&why) {
                        tracing::warn!(why, "the use of shared GPUs can't be read");
                    }
                    self.blind = Some(why);
                }
            }
        }
    }

    async fn sight(&self) -> Result<Sight, String> {
        let machine = (self.machine)();
        let (held, containers) = self.pods.shares(&machine).await?;
        if held.is_empty() {
            return Ok(Sight::default());
        }
        let readings = self.read().await?;
        let whose = |pid| match containers.of(pid) {
            Some(holder) => Ok(Some(holder)),
            None if is_of_mps(pid) => Ok(None),
            None => Err(Unknown),
        };
        Ok(Sight::of(held, &readings, whose))
    }

    async fn read(&self) -> Result<Vec<Reading>, String> {
        let meter = self.meter.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut meter = meter.try_lock().ok_or("the GPU driver does not answer")?;
            meter.read().map_err(|error| error.to_string())
        });
        match timeout(PATIENCE, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the GPU driver does not answer".to_owned()),
        }
    }

    fn tell_unknown(&mut self, sight: &Sight) {
        if self.unknown == sight.unknown {
            return;
        }
        for (gpu, count) in &sight.unknown {
            tracing::warn!(
                gpu,
                processes = count,
                "processes on a shared GPU are of no container that is known here, so whether shares \
                 are kept is unknown; an agent in a container of its own must see the host's processes \
                 (hostPID)"
            );
        }
        self.unknown.clone_from(&sight.unknown);
    }

    async fn act(&self, finding: &Finding) {
        let mut words = finding.has.words();
        if finding.end {
            words.push_str("; it is ended for that (--over-share end)");
        }
        let held = &finding.has.held;
        if finding.new {
            let Holder { namespace, pod, .. } = &held.holder;
            tracing::warn!(namespace, pod, "{words}");
        }
        self.pods.over_share(finding, words).await;
    }
}

fn is_of_mps(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.starts_with(MPS))
}
