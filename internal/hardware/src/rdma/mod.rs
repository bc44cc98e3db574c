//! Checks whether a machine's RDMA works and works well, from its [`Inventory`], from [`Files`] of
//! sysfs, proc and dev under a root, and from its ports' counters at two times. Owns the
//! questions, the answers and the remedies; other code decides whether a node is taken out of
//! service. An unreadable value is unknown, which is neither good nor bad.

mod acs;
mod cards;
mod counter_growth;
mod dcb;
mod devices;
mod files;
mod gid;
pub mod pair;
mod proposal;
mod routes;
mod settings;
mod table;

use std::collections::BTreeMap;

use crate::graph::PathGraph;
use crate::inventory::{Inventory, LinkKind};
use crate::wiring::{CardPort, Nic};

pub use acs::Acs;
pub use counter_growth::{LEAST, PortCounters, growth};
pub use devices::{RdmaDevice, RdmaDevices, devices};
pub use files::{CardFiles, Files, GpuDirect, Iommu, Netdev};
pub use gid::Gid;
pub use proposal::RdmaProposal;
pub use routes::Route;
pub use table::draw;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckOutcome {
    /// The value is as expected.
    Pass,
    /// The value cannot be read, or no expectation exists.
    Unknown,
    /// The value is not as expected.
    Fail,
}

impl CheckOutcome {
    /// The result as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            CheckOutcome::Pass => "pass",
            CheckOutcome::Unknown => "unknown",
            CheckOutcome::Fail => "fail",
        }
    }
}

/// The meaning of a failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureSeverity {
    /// A configuration since the start: worth a change, no sign of a fault.
    Setting,
    /// A value has become worse than its original state.
    Harms,
    /// Work that spans machines is not expected to run here.
    Breaks,
}

/// A question, its answer, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaCheck {
    /// The question in two or three words: `port state`.
    pub name: &'static str,
    /// The place: `mlx5_0/1` is a card's port, `GPU 3` a GPU; empty for the machine.
    pub place: String,
    /// The answer.
    pub answer: CheckOutcome,
    /// The value that was found.
    pub found: String,
    /// The remedy; empty for a passed check.
    pub advice: String,
    /// The meaning of a failure.
    pub weight: FailureSeverity,
}

impl RdmaCheck {
    /// The fault and the remedy in one sentence, for users who see neither table nor machine.
    pub fn sentence(&self) -> String {
        let place = match self.place.as_str() {
            "" => "RDMA",
            place => place,
        };
        format!("{place}: {}: {}; {}", self.name, self.found, self.advice)
    }
}

/// A check's question and the meaning of its failure, from which answers are made.
#[derive(Clone, Copy, Debug)]
struct CheckQuestion(&'static str, FailureSeverity);

impl CheckQuestion {
    fn answer(self, place: &str, answer: CheckOutcome, found: String, advice: String) -> RdmaCheck {
        RdmaCheck {
            name: self.0,
            place: place.to_owned(),
            answer,
            found,
            advice,
            weight: self.1,
        }
    }

    fn pass(self, place: &str, found: impl Into<String>) -> RdmaCheck {
        self.answer(place, CheckOutcome::Pass, found.into(), String::new())
    }

    fn fail(self, place: &str, found: impl Into<String>, advice: impl Into<String>) -> RdmaCheck {
        self.answer(place, CheckOutcome::Fail, found.into(), advice.into())
    }

    fn unknown(
        self,
        place: &str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> RdmaCheck {
        self.answer(place, CheckOutcome::Unknown, found.into(), advice.into())
    }
}

/// All checks of a machine's RDMA except those of its counters: against its inventory, against its
/// files if it has any (a described machine has none), and against the `expected` inventory, or
/// without one against the best values of cards of the same kind. Empty for a machine without RDMA
/// and without an expectation of it.
pub fn examine(
    found: &Inventory,
    files: Option<&Files>,
    expected: Option<&Inventory>,
) -> Vec<RdmaCheck> {
    let wanted = expected.is_some_and(|expected| !expected.nics.is_empty());
    let unbound = files.is_some_and(|files| !files.unbound.is_empty());
    if found.nics.is_empty() && !wanted && !unbound {
        return Vec::new();
    }
    let near = Near::of(found);
    let mut checks = cards::all(found, expected, &near);
    if let Some(files) = files {
        checks.extend(settings::all(found, files, &near));
    }
    checks
}

/// The name of a port in answers.
fn port_name(nic: &Nic, port: &CardPort) -> String {
    format!("{}/{}", nic.name, port.number)
}

/// The nearest cards of each GPU.
#[derive(Clone, Debug, Default)]
struct Near {
    /// By GPU, in the inventory's order: the best kind of path to a card, and the cards at its
    /// end, by their places in the inventory.
    gpus: Vec<Option<(LinkKind, Vec<usize>)>>,
}

impl Near {
    fn of(found: &Inventory) -> Near {
        let graph = PathGraph::of(found);
        let count = found.gpus.len();
        let nearest = |gpu: usize| {
            let mut kinds: BTreeMap<LinkKind, Vec<usize>> = BTreeMap::new();
            for nic in 0..found.nics.len() {
                if let Some(edge) = graph.edge(gpu, count + nic) {
                    kinds.entry(edge.kind).or_default().push(nic);
                }
            }
            kinds.pop_first()
        };
        Near {
            gpus: (0..count).map(nearest).collect(),
        }
    }

    /// Whether a GPU reaches a card without the host bridge.
    fn paired(&self, nic: usize) -> bool {
        let gpus = self.gpus.iter().flatten();
        let mut close = gpus.filter(|(kind, _)| *kind <= LinkKind::Pxb);
        close.any(|(_, nics)| nics.contains(&nic))
    }
}
