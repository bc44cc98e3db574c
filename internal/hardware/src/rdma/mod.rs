//! Whether a machine's RDMA works and works well: checks that are answered from its [`Inventory`],
//! from [`Files`] of sysfs, proc and dev under a root, and from what its ports counted between two
//! looks. Owns the questions, the answers and what to do about them; who takes which node out for
//! them is decided elsewhere. What can't be read is unknown, which is neither good nor bad.

mod acs;
mod cards;
mod dcb;
mod devices;
mod files;
mod gid;
mod growth;
pub mod pair;
mod proposal;
mod routes;
mod settings;
mod table;

use std::collections::BTreeMap;

use crate::graph::Graph;
use crate::inventory::{Inventory, LinkKind};
use crate::wiring::{Nic, Port};

pub use acs::Acs;
pub use devices::{Device, Devices, devices};
pub use files::{CardFiles, Files, GpuDirect, Iommu, Netdev};
pub use gid::Gid;
pub use growth::{Counted, LEAST, growth};
pub use proposal::Proposal;
pub use routes::Route;
pub use table::draw;

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It is as it should be.
    Pass,
    /// It can't be found out, or nobody says what it should be.
    Unknown,
    /// It is not as it should be.
    Fail,
}

impl Answer {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Answer::Pass => "pass",
            Answer::Unknown => "unknown",
            Answer::Fail => "fail",
        }
    }
}

/// What it means where a check fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The machine is set up so, and is since it was started: worth changing, no sign of a fault.
    Setting,
    /// Something became worse than it was made to be.
    Harms,
    /// Work that spans machines can't be expected to go on here.
    Breaks,
}

/// A question, its answer, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was asked, in two or three words: `port state`.
    pub name: &'static str,
    /// Of what: `mlx5_0/1` is a card's port, `GPU 3` a GPU; empty for the machine.
    pub place: String,
    /// The answer.
    pub answer: Answer,
    /// What was seen.
    pub found: String,
    /// What to do about it; empty where it passes.
    pub advice: String,
    /// What it means where it fails.
    pub weight: Weight,
}

impl Check {
    /// What is wrong and what to do, in a sentence for people who see neither table nor machine.
    pub fn sentence(&self) -> String {
        let place = match self.place.as_str() {
            "" => "RDMA",
            place => place,
        };
        format!("{place}: {}: {}; {}", self.name, self.found, self.advice)
    }
}

/// A check's question and what its failing means, to which answers are given.
#[derive(Clone, Copy, Debug)]
struct Question(&'static str, Weight);

impl Question {
    fn answer(self, place: &str, answer: Answer, found: String, advice: String) -> Check {
        Check {
            name: self.0,
            place: place.to_owned(),
            answer,
            found,
            advice,
            weight: self.1,
        }
    }

    fn pass(self, place: &str, found: impl Into<String>) -> Check {
        self.answer(place, Answer::Pass, found.into(), String::new())
    }

    fn fail(self, place: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        self.answer(place, Answer::Fail, found.into(), advice.into())
    }

    fn unknown(self, place: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        self.answer(place, Answer::Unknown, found.into(), advice.into())
    }
}

/// Everything that can be said of a machine's RDMA but for what its ports count: from its
/// inventory, from its files where it has any (a described machine has none), and held against
/// what it is `expected` to have; without that against the most that others of its kind have.
/// Nothing for a machine that has no RDMA and is expected to have none.
pub fn examine(
    found: &Inventory,
    files: Option<&Files>,
    expected: Option<&Inventory>,
) -> Vec<Check> {
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

/// How a port is called in answers.
fn port_name(nic: &Nic, port: &Port) -> String {
    format!("{}/{}", nic.name, port.number)
}

/// Which cards are nearest to each GPU.
#[derive(Clone, Debug, Default)]
struct Near {
    /// By GPU, in the inventory's order: the best kind of path to a card, and the cards at its
    /// end, by their places in the inventory.
    gpus: Vec<Option<(LinkKind, Vec<usize>)>>,
}

impl Near {
    fn of(found: &Inventory) -> Near {
        let graph = Graph::of(found);
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

    /// Whether a card is one that a GPU reaches without the host's bridge.
    fn paired(&self, nic: usize) -> bool {
        let gpus = self.gpus.iter().flatten();
        let mut close = gpus.filter(|(kind, _)| *kind <= LinkKind::Pxb);
        close.any(|(_, nics)| nics.contains(&nic))
    }
}
