//! Handles XIDs, the errors that the driver reports of GPUs: a GPU whose XID needs more than a
//! restart of its application is withheld until it is healthy again. Owns the XIDs that were
//! reported; `listener` reads them, and `record` saves the withheld GPUs for the next agent. The
//! judgement is pure.

mod listener;
mod policy;
mod record;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hardware::kmsg::place;
use hardware::{Gpu, GpuReading, Inventory, InventorySources, Recovery};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use policy::{XidAction, XidPolicy};

use crate::gpu_defects::GpuWatch;
use record::XidRecord;

/// How long the last XID is a metric's value; an older XID says nothing of the current state.
const RECENT: Duration = Duration::from_secs(300);
/// Maximum number of kernel log lines that are kept until their GPU is known.
const UNPLACED_MAX: usize = 64;

/// Where XIDs are read, and which action follows each.
#[derive(Clone, Debug, Default)]
pub struct XidSources {
    /// The action for each XID.
    pub policy: XidPolicy,
    /// The kernel's log, or a file that grows like it. If absent, only the driver's events are
    /// read.
    pub kmsg: Option<PathBuf>,
    /// The file that keeps withheld GPUs for the next agent; not kept if absent.
    pub state: Option<PathBuf>,
}

/// The source of an XID. Most XIDs arrive from both sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidReporter {
    /// NVML's events.
    Driver,
    /// The kernel's log.
    Kernel,
}

/// XIDs reported for the node's GPUs, and the GPUs withheld because of them.
#[derive(Debug)]
pub struct XidMonitor {
    policy: XidPolicy,
    listening: bool,
    gpus: BTreeMap<String, GpuXids>,
    /// Identity and health of the node's GPUs at the last inventory.
    known: Vec<(GpuReading, bool)>,
    /// XIDs from the kernel's log for GPUs that no inventory has listed yet, by PCI address.
    unplaced: VecDeque<(String, u64)>,
    watch: GpuWatch,
    keep: XidRecord,
    /// Notified when a GPU is withheld.
    news: Arc<Notify>,
}

/// The XIDs of one GPU.
#[derive(Debug, Default)]
struct GpuXids {
    last: Option<(u64, Instant)>,
    /// How often each XID was reported, by source.
    counts: BTreeMap<u64, [u64; 2]>,
    out: Option<Out>,
}

/// Why a GPU is withheld.
#[derive(Clone, Copy, Debug)]
struct Out {
    xid: u64,
    since: Instant,
    /// Whether the GPU has disappeared since, as it does during a reset.
    gone: bool,
}

impl XidMonitor {
    /// Starts with the entries that the previous agent saved and with no other XIDs.
    pub fn new(policy: XidPolicy, state: Option<PathBuf>, now: Instant) -> XidMonitor {
        let (keep, kept) = XidRecord::open(state);
        let out = |xid, gone| Out {
            xid,
            gone,
            since: now,
        };
        let gpus = kept.into_iter().map(|(gpu, kept)| {
            let xids = GpuXids {
                out: Some(out(kept.xid, kept.gone)),
                ..GpuXids::default()
            };
            (gpu, xids)
        });
        XidMonitor {
            policy,
            listening: false,
            gpus: gpus.collect(),
            known: Vec::new(),
            unplaced: VecDeque::new(),
            watch: GpuWatch::default(),
            keep,
            news: Arc::default(),
        }
    }

    /// Listens to the GPUs at `source` until the returned value is dropped.
    pub fn listen(hearing: XidSources, source: InventorySources) -> Arc<Mutex<XidMonitor>> {
        let xids = XidMonitor::new(hearing.policy, hearing.state, Instant::now());
        let monitor = Arc::new(Mutex::new(xids));
        listener::open(&monitor, source, hearing.kmsg);
        monitor
    }

    /// Records an XID. If both sources report it, it counts once.
    pub fn note(&mut self, gpu: &str, xid: u64, reporter: XidReporter, now: Instant) {
        let xids = self.gpus.entry(gpu.to_owned()).or_default();
        let counts = xids.counts.entry(xid).or_default();
        let (own, other) = match reporter {
            XidReporter::Driver => (0, 1),
            XidReporter::Kernel => (1, 0),
        };
        counts[own] += 1;
        if counts[own] <= counts[other] {
            return;
        }
        let (action, meaning) = self.policy.of(xid);
        tracing::warn!(
            gpu,
            xid,
            meaning,
            todo = action.advice(),
            "the driver reports an XID"
        );
        xids.last = Some((xid, now));
        if action.takes_out() {
            xids.out = Some(Out {
                xid,
                since: now,
                gone: false,
            });
            self.keep_out();
            self.news.notify_one();
        }
    }

    /// The notification that a GPU was withheld, for a caller that then takes the inventory at
    /// once.
    pub fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    /// Records an XID from the kernel's log for the GPU at this PCI address.
    pub fn note_at(&mut self, at: &str, xid: u64, now: Instant) {
        let known = self.known.iter().map(|(gpu, _)| gpu);
        let gpu = (known.filter(|gpu| place(&gpu.pci) == at).map(|gpu| &gpu.id)).next();
        match gpu.cloned() {
            Some(gpu) => self.note(&gpu, xid, XidReporter::Kernel, now),
            None if self.unplaced.len() < UNPLACED_MAX => {
                self.unplaced.push_back((at.to_owned(), xid));
            }
            None => tracing::warn!(at, xid, "an XID of no known GPU is not counted"),
        }
    }

    /// A source starts and does not know earlier XIDs: the other source's counts apply to these.
    pub fn begins(&mut self, reporter: XidReporter) {
        self.listening |= reporter == XidReporter::Driver;
        let all_counts = self
            .gpus
            .values_mut()
            .flat_map(|gpu| gpu.counts.values_mut());
        for counts in all_counts {
            let most = counts[0].max(counts[1]);
            counts[reporter as usize] = most;
        }
    }

    /// The driver delivers no more events.
    pub fn ends(&mut self) {
        self.listening = false;
    }

    /// Marks GPUs in the inventory as unhealthy because of their XIDs. A withheld GPU is released
    /// when a probe finds it healthy, it has reported no XID for the policy's quiet time, and the
    /// driver requests no recovery action; if the driver does not report recovery actions, the GPU
    /// must have disappeared and come back, as after a reset. Then adds the other concerns of each
    /// GPU.
    pub fn assess(&mut self, found: &mut Inventory, now: Instant) {
        self.known = found.gpus.iter().map(identity).collect();
        for (at, xid) in std::mem::take(&mut self.unplaced) {
            if self.known.iter().any(|(gpu, _)| place(&gpu.pci) == at) {
                self.note_at(&at, xid, now);
            }
        }
        let mut changed = false;
        for gpu in &mut found.gpus {
            let Some(xids) = self.gpus.get_mut(&gpu.id) else {
                continue;
            };
            let Some(out) = &mut xids.out else {
                continue;
            };
            changed |= !gpu.healthy && !out.gone;
            out.gone |= !gpu.healthy;
            let quiet = now.duration_since(out.since) >= self.policy.quiet();
            let well = match gpu.signs.recovery {
                Some(recovery) => recovery == Recovery::None,
                None => out.gone,
            };
            if quiet && well && gpu.healthy {
                tracing::info!(gpu = gpu.id, xid = out.xid, "the GPU is healthy again");
                xids.out = None;
                changed = true;
                continue;
            }
            let (action, meaning) = self.policy.of(out.xid);
            take_out(gpu, out.xid, action, meaning);
        }
        if changed {
            self.keep_out();
        }
        self.watch.assess(found, now);
        for (gpu, (_, well)) in found.gpus.iter().zip(&mut self.known) {
            *well = gpu.healthy;
        }
    }

    /// Identity and health of the node's GPUs.
    pub fn known(&self) -> &[(GpuReading, bool)] {
        &self.known
    }

    /// The last XID of a GPU, 0 without a recent XID, `None` if no source is read.
    pub fn last(&self, gpu: &str, now: Instant) -> Option<u64> {
        let last = self.gpus.get(gpu).and_then(|xids| xids.last);
        let recent = last.filter(|(_, at)| now.duration_since(*at) < RECENT);
        self.listening.then(|| recent.map_or(0, |(xid, _)| xid))
    }

    /// How often each XID of a GPU was reported since the agent started.
    pub fn counts(&self, gpu: &str) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.gpus.get(gpu).map(|xids| &xids.counts);
        let counts = counts.into_iter().flatten();
        counts.map(|(xid, by)| (*xid, by[0].max(by[1])))
    }

    fn keep_out(&mut self) {
        let out = self.gpus.iter().filter_map(|(gpu, xids)| {
            let out = xids.out?;
            let kept = record::WithheldReason {
                xid: out.xid,
                gone: out.gone,
            };
            Some((gpu.clone(), kept))
        });
        let out = out.collect();
        self.keep.write(out);
    }
}

/// Marks a GPU as unhealthy for its XID; a problem that the GPU already has takes precedence.
fn take_out(gpu: &mut Gpu, xid: u64, action: XidAction, meaning: &str) {
    let colon = if meaning.is_empty() { "" } else { ": " };
    let reported = format!("XID {xid}{colon}{meaning}");
    if gpu.healthy {
        let advice = action.advice();
        gpu.problem = format!("the driver reported {reported}; {advice}");
    } else {
        gpu.problem = format!("{}; before, {reported}", gpu.problem);
    }
    gpu.healthy = false;
    gpu.failed |= action.is_fatal();
}

/// A GPU's identity without any readings, and its health.
fn identity(gpu: &Gpu) -> (GpuReading, bool) {
    let reading = GpuReading {
        id: gpu.id.clone(),
        index: gpu.index,
        minor: gpu.minor.or(Some(gpu.index)),
        model: gpu.model.clone(),
        driver: gpu.driver.clone(),
        pci: gpu.pci.clone(),
        ..GpuReading::default()
    };
    (reading, gpu.healthy)
}

#[cfg(test)]
mod tests;
