//! What a policy is to the benchmark, and which there are. The scheduler's own is called as it
//! ships.

use std::fmt;

use scheduler::fragment::{Chooser, Demand, Mix, Room, Tuning};

use super::baseline::{BestFit, Fgd};
use super::data::{Cluster, Pod, counts, typical};

/// Where a pod goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index of the node.
    pub node: usize,
    /// Bit i: GPU i.
    pub mask: u16,
}

/// A placement policy.
pub trait Policy {
    /// Picks a node among those where the pod fits; none only if there is none.
    fn choose(&mut self, nodes: &[Room], rank: &[u32], demand: &Demand) -> Option<Choice>;
    /// Told after each placement what the node has left.
    fn placed(&mut self, _node: usize, _room: &Room) {}
    /// Told of each arrival once it is decided.
    fn arrived(&mut self, _demand: &Demand) {}
}

/// What the scheduler's own policy knows of the pods to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knowledge {
    /// The popularity of the classes in the variant's list, as FGD does.
    #[default]
    Popularity,
    /// Nothing at the start; it learns from the arrivals.
    Learnt,
    /// Nothing at all.
    None,
}

/// The policies that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// The paper's fragmentation gradient descent.
    Fgd,
    /// The paper's best fit.
    BestFit,
    /// The scheduler's own.
    Muster,
}

impl Which {
    /// All, in the order of the tables.
    pub const ALL: [Which; 3] = [Which::Fgd, Which::BestFit, Which::Muster];

    /// The policy at the start of a run.
    #[must_use]
    pub fn make(
        self,
        cluster: &Cluster,
        pods: &[Pod],
        rank: &[u32],
        knows: Knowledge,
    ) -> Box<dyn Policy> {
        match self {
            Which::Fgd => Box::new(Fgd::new(typical(pods), &cluster.shapes)),
            Which::BestFit => Box::new(BestFit),
            Which::Muster => {
                let mix = match knows {
                    Knowledge::Popularity => Mix::from_counts(&counts(pods)),
                    Knowledge::Learnt | Knowledge::None => Mix::default(),
                };
                let chooser = Chooser::new(&mix, &cluster.shapes, rank, Tuning::default());
                Box::new(if knows == Knowledge::Learnt {
                    chooser.learning()
                } else {
                    chooser
                })
            }
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Which::Fgd => "FGD",
            Which::BestFit => "BestFit",
            Which::Muster => "Muster",
        })
    }
}

impl Policy for Chooser {
    fn choose(&mut self, _nodes: &[Room], _rank: &[u32], demand: &Demand) -> Option<Choice> {
        let place = Chooser::choose(self, demand)?;
        Some(Choice {
            node: place.node,
            mask: place.mask,
        })
    }

    fn placed(&mut self, node: usize, room: &Room) {
        self.set_room(node, room);
    }

    fn arrived(&mut self, demand: &Demand) {
        Chooser::arrived(self, demand);
    }
}
