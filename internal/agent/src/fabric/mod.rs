//! Whether the node's RDMA works. Looked at from a thread of its own, as a card whose firmware hangs
//! may hold whoever reads its files for a minute: whether ports are up often, everything else now
//! and then. Owns the thread; [`judgement`] says what is made of it.

mod judgement;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use hardware::description::Description;
use hardware::rdma::pair::{self, End};
use hardware::rdma::{self, Check, Counted, Files, Proposal};
use hardware::{HardwareError, Inventory, Source};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use judgement::Judge;

/// How often it is looked at whether ports are up: a link that goes down is told within five seconds.
const GLANCE: Duration = Duration::from_secs(2);
/// How often everything is read: some hundred small files a card.
const READ: Duration = Duration::from_secs(60);
/// How long the first reading is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// A reading that is so old was followed by none: the cards hold the reader.
const STALE: Duration = Duration::from_secs(180);

/// What was read last, and when.
#[derive(Debug)]
struct Reading {
    files: Files,
    /// What grew since the reading before.
    growth: Vec<Check>,
    at: Instant,
}

/// What thread and agent share.
#[derive(Debug, Default)]
struct Shared {
    reading: Mutex<Option<Reading>>,
    /// Something is to be judged anew.
    news: Notify,
    /// The first reading is there.
    first: Notify,
}

/// Watches the node's RDMA for as long as it is there.
#[derive(Debug)]
pub struct Fabric {
    shared: Arc<Shared>,
    /// Tells the thread what the machine has; none for a described machine, which has no files.
    tell: Option<Sender<Inventory>>,
    told: Mutex<Option<Inventory>>,
    expected: Option<Inventory>,
    judge: Mutex<Judge>,
    since: Instant,
}

impl Fabric {
    /// Begins to watch a machine that has this, and waits for the first reading.
    ///
    /// # Errors
    ///
    /// When the description of what is expected can't be read.
    pub async fn watch(
        source: &Source,
        expected: Option<&Path>,
        found: &Inventory,
    ) -> Result<Arc<Fabric>, HardwareError> {
        let load = |file: &Path| {
            let mut expected = Inventory::default();
            Description::load(file)?.apply(&mut expected);
            Ok::<_, HardwareError>(expected)
        };
        let shared = Arc::<Shared>::default();
        let tell = (source.description.is_none()).then(|| {
            let (tell, told) = channel();
            let (root, shared) = (source.sysfs_root.clone(), shared.clone());
            std::thread::spawn(move || watch(&root, &told, &shared));
            tell
        });
        let fabric = Fabric {
            shared,
            tell,
            told: Mutex::default(),
            expected: expected.map(load).transpose()?,
            judge: Mutex::default(),
            since: Instant::now(),
        };
        fabric.tell(found);
        if fabric.tell.is_some()
            && timeout(PATIENCE, fabric.shared.first.notified())
                .await
                .is_err()
        {
            tracing::warn!("the RDMA cards' files can't be read yet");
        }
        for check in fabric.checks(found) {
            if check.answer == rdma::Answer::Fail {
                tracing::warn!("{}", check.sentence());
            }
        }
        Ok(Arc::new(fabric))
    }

    /// Told whenever something is to be judged anew.
    pub async fn news(&self) {
        self.shared.news.notified().await;
    }

    /// Says of a machine what is wrong with its RDMA, and whether work that spans machines can come.
    pub fn judge(&self, found: &mut Inventory, now: Instant) {
        self.tell(found);
        let mut checks = self.checks(found);
        let mut read = self.since;
        if let Some(reading) = &*self.shared.reading.lock() {
            checks.extend(reading.growth.iter().cloned());
            read = reading.at;
        }
        let held = self.tell.is_some() && now.duration_since(read) >= STALE;
        if held && !found.nics.is_empty() {
            let words = "the RDMA cards' files can't be read: a card hangs; look at dmesg";
            found.concerns.push(words.to_owned());
        }
        self.judge.lock().judge(found, &checks, now);
    }

    /// What work on a machine is told of its RDMA: nothing of one that is described, as it may not
    /// be there.
    pub fn proposal(&self, found: &Inventory) -> Proposal {
        let reading = self.shared.reading.lock();
        let files = reading.as_ref().map(|reading| &reading.files);
        files.map_or_else(Proposal::default, |files| Proposal::of(found, files))
    }

    /// What the machine is described to have, where somebody says so.
    pub fn expected(&self) -> Option<&Inventory> {
        self.expected.as_ref()
    }

    /// What it is as one end of a pair: nothing of a described machine.
    pub fn end(&self) -> End {
        let (found, reading) = (self.told.lock(), self.shared.reading.lock());
        let known = found.as_ref().zip(reading.as_ref());
        known.map_or_else(End::default, |(found, reading)| {
            pair::end(found, &reading.files)
        })
    }

    fn checks(&self, found: &Inventory) -> Vec<Check> {
        let reading = self.shared.reading.lock();
        let files = reading.as_ref().map(|reading| &reading.files);
        rdma::examine(found, files, self.expected.as_ref())
    }

    /// Tells the thread which devices there are, where those changed.
    fn tell(&self, found: &Inventory) {
        let Some(tell) = &self.tell else { return };
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
        let mut told = self.told.lock();
        if told.as_ref() != Some(&devices) {
            // The thread is there as long as this is.
            let _ = tell.send(devices.clone());
            *told = Some(devices);
        }
    }
}

/// The thread: ends when nobody tells it of devices any more.
fn watch(root: &Path, told: &Receiver<Inventory>, shared: &Shared) {
    let Ok(mut found) = told.recv() else { return };
    let mut before: Option<(Counted, Instant)> = None;
    let mut growth = Vec::new();
    loop {
        let states = hardware::ports::states(root);
        let files = Files::read(root, &found);
        let counted = Counted::of(&hardware::ports::read(root));
        let at = Instant::now();
        // Two looks just after each other say nothing of counters: what was said holds.
        let close = |since: Instant| at.duration_since(since) < rdma::LEAST;
        if before.as_ref().is_none_or(|(_, since)| !close(*since)) {
            if let Some((old, since)) = &before {
                growth = rdma::growth(old, &counted, at.duration_since(*since));
            }
            before = Some((counted, at));
        }
        let growth = growth.clone();
        *shared.reading.lock() = Some(Reading { files, growth, at });
        shared.first.notify_one();
        shared.news.notify_one();
        loop {
            match told.recv_timeout(GLANCE) {
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
