//! Checks whether the node's RDMA works. A thread of its own reads the state, because a card whose
//! firmware hangs may block a reader of its files for a minute: often for the ports' state, rarely
//! for everything else. Owns the thread; [`port_health`] evaluates the results.

mod port_health;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hardware::description::MachineDescription;
use hardware::rdma::pair::{self, PairEnd};
use hardware::rdma::{self, Files, PortCounters, RdmaCheck, RdmaProposal};
use hardware::{HardwareError, Inventory, InventorySources};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use port_health::FabricJudge;

/// Interval of port checks: a link that goes down is reported within five seconds.
const GLANCE: Duration = Duration::from_secs(2);
/// Interval of full readings: some hundred small files a card.
const READ: Duration = Duration::from_secs(60);
/// How long the agent waits for the first reading.
const PATIENCE: Duration = Duration::from_secs(10);
/// The age from which a reading is stale: the cards block the reader.
const STALE: Duration = Duration::from_secs(180);

/// The last reading and its time.
#[derive(Debug)]
struct FabricReading {
    files: Files,
    /// Counters that grew since the reading before.
    growth: Vec<RdmaCheck>,
    at: Instant,
}

/// State that the thread and the agent share.
#[derive(Debug, Default)]
struct SharedReading {
    reading: Mutex<Option<FabricReading>>,
    /// Notified when there are new results to judge.
    news: Notify,
    /// Notified after the first reading.
    first: Notify,
}

/// Watches the node's RDMA while this value exists.
#[derive(Debug)]
pub struct FabricWatch {
    shared: Arc<SharedReading>,
    /// Sends the machine's devices to the thread; `None` for a described machine, which has no
    /// files.
    to_thread: Option<Sender<Inventory>>,
    /// The devices that were sent last.
    sent: Mutex<Option<Inventory>>,
    expected: Option<Inventory>,
    judge: Mutex<FabricJudge>,
    since: Instant,
}

impl FabricWatch {
    /// Starts watching a machine with these devices, and waits for the first reading.
    ///
    /// # Errors
    ///
    /// When the description of the expected cards can't be read.
    pub async fn watch(
        source: &InventorySources,
        expected: Option<&Path>,
        found: &Inventory,
    ) -> Result<Arc<FabricWatch>, HardwareError> {
        let load = |file: &Path| {
            let mut expected = Inventory::default();
            MachineDescription::load(file)?.apply(&mut expected);
            Ok::<_, HardwareError>(expected)
        };
        let shared = Arc::<SharedReading>::default();
        let to_thread = (source.description.is_none()).then(|| {
            let (to_thread, devices) = channel();
            let (root, shared) = (source.sysfs_root.clone(), shared.clone());
            std::thread::spawn(move || watch(&root, &devices, &shared));
            to_thread
        });
        let fabric = FabricWatch {
            shared,
            to_thread,
            sent: Mutex::default(),
            expected: expected.map(load).transpose()?,
            judge: Mutex::default(),
            since: Instant::now(),
        };
        fabric.notify(found);
        if fabric.to_thread.is_some()
            && timeout(PATIENCE, fabric.shared.first.notified())
                .await
                .is_err()
        {
            tracing::warn!("the RDMA cards' files cannot be read yet");
        }
        for check in fabric.checks(found) {
            if check.answer == rdma::CheckOutcome::Fail {
                tracing::warn!("{}", check.sentence());
            }
        }
        Ok(Arc::new(fabric))
    }

    /// Waits until there are new results to judge.
    pub async fn news(&self) {
        self.shared.news.notified().await;
    }

    /// Adds a machine's RDMA problems to its inventory, and whether work across machines can come.
    pub fn assess(&self, found: &mut Inventory, now: Instant) {
        self.notify(found);
        let mut checks = self.checks(found);
        let mut read = self.since;
        if let Some(reading) = &*self.shared.reading.lock() {
            checks.extend(reading.growth.iter().cloned());
            read = reading.at;
        }
        let held = self.to_thread.is_some() && now.duration_since(read) >= STALE;
        if held && !found.nics.is_empty() {
            let words = "the RDMA cards' files cannot be read: a card hangs; look at dmesg";
            found.concerns.push(words.to_owned());
        }
        self.judge.lock().assess(found, &checks, now);
    }

    /// The RDMA variables for work on a machine: none for a described machine, whose cards may not
    /// exist.
    pub fn proposal(&self, found: &Inventory) -> RdmaProposal {
        let reading = self.shared.reading.lock();
        let files = reading.as_ref().map(|reading| &reading.files);
        files.map_or_else(RdmaProposal::default, |files| {
            RdmaProposal::of(found, files)
        })
    }

    /// The expected cards, if described.
    pub fn expected(&self) -> Option<&Inventory> {
        self.expected.as_ref()
    }

    /// The node as one end of a test between two nodes: empty for a described machine.
    pub fn end(&self) -> PairEnd {
        let (found, reading) = (self.sent.lock(), self.shared.reading.lock());
        let known = found.as_ref().zip(reading.as_ref());
        known.map_or_else(PairEnd::default, |(found, reading)| {
            pair::end(found, &reading.files)
        })
    }

    fn checks(&self, found: &Inventory) -> Vec<RdmaCheck> {
        let reading = self.shared.reading.lock();
        let files = reading.as_ref().map(|reading| &reading.files);
        rdma::examine(found, files, self.expected.as_ref())
    }

    /// Sends the devices to the thread if they changed.
    fn notify(&self, found: &Inventory) {
        let Some(to_thread) = &self.to_thread else {
            return;
        };
        let devices = Inventory {
            kernel: found.kernel.clone(),
            gpus: (found.gpus.iter())
                .map(|gpu| hardware::Gpu {
                    pci: gpu.pci.clone(),
                    ..hardware::Gpu::default()
                })
                .collect(),
            nics: found.nics.clone(),
            ..Inventory::default()
        };
        let mut sent = self.sent.lock();
        if sent.as_ref() != Some(&devices) {
            // The thread runs for as long as this value exists.
            let _ = to_thread.send(devices.clone());
            *sent = Some(devices);
        }
    }
}

/// The thread's loop: ends when the sender of devices is dropped.
fn watch(root: &Path, devices: &Receiver<Inventory>, shared: &SharedReading) {
    let Ok(mut found) = devices.recv() else {
        return;
    };
    let mut before: Option<(PortCounters, Instant)> = None;
    let mut growth = Vec::new();
    loop {
        let states = hardware::ports::states(root);
        let files = Files::read(root, &found);
        let counted = PortCounters::of(&hardware::ports::read(root));
        let at = Instant::now();
        // Two readings in short succession say nothing of counters: the last result stays.
        let close = |since: Instant| at.duration_since(since) < rdma::LEAST;
        if before.as_ref().is_none_or(|(_, since)| !close(*since)) {
            if let Some((old, since)) = &before {
                growth = rdma::growth(old, &counted, at.duration_since(*since));
            }
            before = Some((counted, at));
        }
        let growth = growth.clone();
        *shared.reading.lock() = Some(FabricReading { files, growth, at });
        shared.first.notify_one();
        shared.news.notify_one();
        loop {
            match devices.recv_timeout(GLANCE) {
                Ok(devices) => {
                    found = devices;
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if at.elapsed() >= READ || hardware::ports::states(root) != states {
                break;
            }
        }
    }
}
