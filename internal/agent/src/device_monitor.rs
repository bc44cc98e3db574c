//! Reads the hardware on a thread of its own: a driver with a hung GPU may never answer, and must
//! neither block the agent nor leave its GPUs reported as healthy. Owns the thread; judges nothing
//! else.

use std::sync::mpsc as threads;
use std::time::Duration;

use hardware::{HardwareError, Inventory, InventorySources, MachineProbe};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a read may take. Eight GPUs take some milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads the machine's hardware. It reports devices that disappear, so one instance is kept for as
/// long as the agent runs.
#[derive(Debug)]
pub struct DeviceMonitor {
    ask: threads::Sender<()>,
    answers: mpsc::Receiver<Result<Inventory, HardwareError>>,
    /// Whether a read is in progress.
    asked: bool,
    last: Option<Inventory>,
    patience: Duration,
}

impl DeviceMonitor {
    /// Opens no driver yet. The thread ends when this value is dropped.
    pub fn new(source: InventorySources) -> DeviceMonitor {
        let mut machine = MachineProbe::new(source);
        DeviceMonitor::seeing(PATIENCE, move || machine.observe())
    }

    fn seeing(
        patience: Duration,
        mut see: impl FnMut() -> Result<Inventory, HardwareError> + Send + 'static,
    ) -> DeviceMonitor {
        let (ask, asked) = threads::channel();
        let (answer, answers) = mpsc::channel(1);
        std::thread::spawn(move || {
            while asked.recv().is_ok() {
                if answer.blocking_send(see()).is_err() {
                    return;
                }
            }
        });
        DeviceMonitor {
            ask,
            answers,
            asked: false,
            last: None,
            patience,
        }
    }

    /// The current inventory. If the driver does not answer in time, the previous inventory with
    /// all GPUs unhealthy. The first read has no time limit.
    ///
    /// # Errors
    ///
    /// When the machine can't be read.
    pub async fn observe(&mut self) -> Result<Inventory, HardwareError> {
        if !self.asked {
            // The thread runs for as long as this value exists.
            let _ = self.ask.send(());
            self.asked = true;
        }
        let answer = match &self.last {
            None => self.answers.recv().await,
            Some(last) => match timeout(self.patience, self.answers.recv()).await {
                Ok(answer) => answer,
                Err(_) => return Ok(silent(last)),
            },
        };
        self.asked = false;
        match answer {
            Some(Ok(found)) => {
                self.last = Some(found.clone());
                Ok(found)
            }
            Some(Err(error)) => Err(error),
            // The thread failed and its state is lost.
            None => Ok(self.last.as_ref().map(silent).unwrap_or_default()),
        }
    }
}

fn silent(last: &Inventory) -> Inventory {
    let mut found = last.clone();
    let problem = "the NVIDIA driver does not answer; a GPU may have to be reset, or the machine \
                   restarted";
    found.warnings = vec![problem.to_owned()];
    for gpu in &mut found.gpus {
        gpu.healthy = false;
        gpu.problem = problem.to_owned();
    }
    found
}

#[cfg(test)]
mod tests {
    use hardware::Gpu;

    use super::*;

    #[tokio::test]
    async fn a_driver_that_hangs_leaves_no_gpu_looking_well_and_is_waited_for() {
        let (go, gate) = threads::channel::<()>();
        let gpu = Gpu {
            healthy: true,
            ..Gpu::default()
        };
        let mut device_monitor = DeviceMonitor::seeing(Duration::from_millis(1), move || {
            let _ = gate.recv();
            Ok(Inventory {
                gpus: vec![gpu.clone()],
                ..Inventory::default()
            })
        });
        go.send(()).unwrap();
        assert!(device_monitor.observe().await.unwrap().gpus[0].healthy);
        for _ in 0..2 {
            let found = device_monitor.observe().await.unwrap();
            assert!(!found.gpus[0].healthy && !found.gpus[0].failed);
            assert!(found.gpus[0].problem.contains("does not answer"));
        }
        go.send(()).unwrap();
        let mut healthy = false;
        while !healthy {
            healthy = device_monitor.observe().await.unwrap().gpus[0].healthy;
        }
    }
}
