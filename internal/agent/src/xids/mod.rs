//! What the driver reports of GPUs that fail (XIDs), and what follows: a GPU whose XID asks for more
//! than a restart of its application is not given out until it is well again. Owns what was heard;
//! the listening is `ears`', what outlives the agent is `kept`'s. The judgement is pure.

mod ears;
mod kept;
mod policy;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hardware::kmsg::place;
use hardware::{Gpu, Inventory, Reading, Recovery, Source};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use policy::{Action, Policy};

use crate::concerns::Watch;
use kept::Keep;

/// For how long the last XID is a metric's value: an old one says nothing of now.
const RECENT: Duration = Duration::from_secs(300);
/// Lines of the kernel's log that wait for somebody to know which GPU they are about.
const UNPLACED_MAX: usize = 64;

/// Where it is listened, and what is done about what is heard.
#[derive(Clone, Debug, Default)]
pub struct Hearing {
    /// What each XID means.
    pub policy: Policy,
    /// The kernel's log, or a file that grows like it; absent: only the driver is listened to.
    pub kmsg: Option<PathBuf>,
    /// Where it is kept which GPUs are out, so that another agent knows; nowhere if absent.
    pub state: Option<PathBuf>,
}

/// Who told of an XID. Both tell of most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// NVML's events.
    Driver,
    /// The kernel's log.
    Kernel,
}

/// What was heard of the node's GPUs, and which are out for it.
#[derive(Debug)]
pub struct Xids {
    policy: Policy,
    listening: bool,
    gpus: BTreeMap<String, Heard>,
    /// The node's GPUs when they were last looked at: who they are, and whether they are well.
    known: Vec<(Reading, bool)>,
    /// What the kernel's log had of GPUs that nobody had looked at yet, by their places.
    unplaced: VecDeque<(String, u64)>,
    watch: Watch,
    keep: Keep,
    /// Told when a GPU goes out.
    news: Arc<Notify>,
}

/// What was heard of one GPU.
#[derive(Debug, Default)]
struct Heard {
    last: Option<(u64, Instant)>,
    /// How often each XID was told of, by teller.
    counts: BTreeMap<u64, [u64; 2]>,
    out: Option<Out>,
}

/// Why a GPU is out.
#[derive(Clone, Copy, Debug)]
struct Out {
    xid: u64,
    since: Instant,
    /// Whether it has been gone since, as it is while it is reset.
    gone: bool,
}

impl Xids {
    /// Nothing was heard yet but what another agent has kept.
    pub fn new(policy: Policy, state: Option<PathBuf>, now: Instant) -> Xids {
        let (keep, kept) = Keep::open(state);
        let out = |xid, gone| Out {
            xid,
            gone,
            since: now,
        };
        let gpus = kept.into_iter().map(|(gpu, kept)| {
            let heard = Heard {
                out: Some(out(kept.xid, kept.gone)),
                ..Heard::default()
            };
            (gpu, heard)
        });
        Xids {
            policy,
            listening: false,
            gpus: gpus.collect(),
            known: Vec::new(),
            unplaced: VecDeque::new(),
            watch: Watch::default(),
            keep,
            news: Arc::default(),
        }
    }

    /// Listens to the GPUs at `source` for as long as somebody has the answer.
    pub fn listen(hearing: Hearing, source: Source) -> Arc<Mutex<Xids>> {
        let xids = Xids::new(hearing.policy, hearing.state, Instant::now());
        let heard = Arc::new(Mutex::new(xids));
        ears::open(&heard, source, hearing.kmsg);
        heard
    }

    /// An XID was told of. What both tellers tell of is one.
    pub fn note(&mut self, gpu: &str, xid: u64, teller: Teller, now: Instant) {
        let heard = self.gpus.entry(gpu.to_owned()).or_default();
        let counts = heard.counts.entry(xid).or_default();
        let (own, other) = match teller {
            Teller::Driver => (0, 1),
            Teller::Kernel => (1, 0),
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
        heard.last = Some((xid, now));
        if action.takes_out() {
            heard.out = Some(Out {
                xid,
                since: now,
                gone: false,
            });
            self.keep_out();
            self.news.notify_one();
        }
    }

    /// What is told when a GPU goes out, for one who waits to look at once.
    pub fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    /// The kernel's log has an XID of the GPU at this place.
    pub fn note_at(&mut self, at: &str, xid: u64, now: Instant) {
        let known = self.known.iter().map(|(gpu, _)| gpu);
        let gpu = (known.filter(|gpu| place(&gpu.pci) == at).map(|gpu| &gpu.id)).next();
        match gpu.cloned() {
            Some(gpu) => self.note(&gpu, xid, Teller::Kernel, now),
            None if self.unplaced.len() < UNPLACED_MAX => {
                self.unplaced.push_back((at.to_owned(), xid));
            }
            None => tracing::warn!(at, xid, "an XID of no known GPU is not counted"),
        }
    }

    /// A teller begins to tell, and knows nothing of what was before: the other's count holds.
    pub fn begins(&mut self, teller: Teller) {
        self.listening |= teller == Teller::Driver;
        let heard = self
            .gpus
            .values_mut()
            .flat_map(|gpu| gpu.counts.values_mut());
        for counts in heard {
            let most = counts[0].max(counts[1]);
            counts[teller as usize] = most;
        }
    }

    /// The driver tells nothing any more.
    pub fn ends(&mut self) {
        self.listening = false;
    }

    /// Takes GPUs out of what was found for their XIDs, and lets those back in that a probe finds
    /// well: they are quiet, and the driver, where it says what it wants done, wants nothing; where
    /// it doesn't, they were gone and have come back, as after a reset. Then says what else is wrong
    /// with them.
    pub fn judge(&mut self, found: &mut Inventory, now: Instant) {
        self.known = found.gpus.iter().map(identity).collect();
        for (at, xid) in std::mem::take(&mut self.unplaced) {
            if self.known.iter().any(|(gpu, _)| place(&gpu.pci) == at) {
                self.note_at(&at, xid, now);
            }
        }
        let mut changed = false;
        for gpu in &mut found.gpus {
            let Some(heard) = self.gpus.get_mut(&gpu.id) else {
                continue;
            };
            let Some(out) = &mut heard.out else {
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
                tracing::info!(gpu = gpu.id, xid = out.xid, "the GPU is well again");
                heard.out = None;
                changed = true;
                continue;
            }
            let (action, meaning) = self.policy.of(out.xid);
            take_out(gpu, out.xid, action, meaning);
        }
        if changed {
            self.keep_out();
        }
        self.watch.judge(found, now);
        for (gpu, (_, well)) in found.gpus.iter().zip(&mut self.known) {
            *well = gpu.healthy;
        }
    }

    /// The node's GPUs, as far as who they are, and whether each is well.
    pub fn known(&self) -> &[(Reading, bool)] {
        &self.known
    }

    /// The last XID of a GPU, 0 where there was none lately; nothing where nobody listens.
    pub fn last(&self, gpu: &str, now: Instant) -> Option<u64> {
        let last = self.gpus.get(gpu).and_then(|heard| heard.last);
        let recent = last.filter(|(_, at)| now.duration_since(*at) < RECENT);
        self.listening.then(|| recent.map_or(0, |(xid, _)| xid))
    }

    /// How often each XID of a GPU happened since the agent started.
    pub fn counts(&self, gpu: &str) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.gpus.get(gpu).map(|heard| &heard.counts);
        let counts = counts.into_iter().flatten();
        counts.map(|(xid, by)| (*xid, by[0].max(by[1])))
    }

    fn keep_out(&mut self) {
        let out = self.gpus.iter().filter_map(|(gpu, heard)| {
            let out = heard.out?;
            let kept = kept::Kept {
                xid: out.xid,
                gone: out.gone,
            };
            Some((gpu.clone(), kept))
        });
        let out = out.collect();
        self.keep.write(out);
    }
}

/// Takes a GPU out for its XID; what is wrong with it by itself goes before that.
fn take_out(gpu: &mut Gpu, xid: u64, action: Action, meaning: &str) {
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

/// Who a GPU is, without any value.
fn identity(gpu: &Gpu) -> (Reading, bool) {
    let reading = Reading {
        id: gpu.id.clone(),
        index: gpu.index,
        minor: gpu.minor.or(Some(gpu.index)),
        model: gpu.model.clone(),
        driver: gpu.driver.clone(),
        pci: gpu.pci.clone(),
        ..Reading::default()
    };
    (reading, gpu.healthy)
}

#[cfg(test)]
mod tests;
