//! The nodes that a pod's claims allow, as far as that does not depend on which volumes they get:
//! part of the class key. Which free volume each claim gets is decided pod by pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::messages::ClaimProblem;
use super::objects::{Selector, ZONES};
use crate::filter::InfeasibleReason;
use crate::node::{Node, NodeAttributes};

/// What one claim requires of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClaimRequirement {
    /// The pod must wait for the claim on every node.
    Held(ClaimProblem),
    /// Its volume is being provisioned on that node.
    On(String),
    /// Its volume is reachable from these nodes.
    Reached(Arc<Selector>),
    /// Its volume is in one of these zones or regions.
    Zone(&'static str, BTreeSet<String>),
    /// Its volume can be provisioned on these nodes.
    Made(Arc<Selector>),
    /// There is no volume for it on any node.
    Nowhere,
}

/// What all claims of a pod require of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeRequirements {
    rules: Vec<ClaimRequirement>,
    /// Nodes must be checked for each pod: its claims take volumes that other pods may want, or
    /// that only one pod may use.
    per_pod: bool,
    /// Some claim gets its volume with the pod's node.
    takes: bool,
}

impl NodeRequirements {
    /// The rules, sorted and without duplicates; `None` if the pod may be on any node.
    pub(super) fn new(
        mut rules: Vec<ClaimRequirement>,
        per_pod: bool,
        takes: bool,
    ) -> Option<Arc<NodeRequirements>> {
        rules.sort();
        rules.dedup();
        let reach = NodeRequirements {
            rules,
            per_pod,
            takes,
        };
        (reach != NodeRequirements::default()).then(|| Arc::new(reach))
    }

    /// Why the node is infeasible.
    pub(crate) fn refusal(&self, node: &Node, offer: &NodeAttributes) -> Option<InfeasibleReason> {
        let refused = |rule: &ClaimRequirement| match rule {
            ClaimRequirement::Held(kind) if kind.is_unbound() => {
                Some(InfeasibleReason::VolumeUnbound)
            }
            ClaimRequirement::Held(_) => Some(InfeasibleReason::ClaimUnusable),
            ClaimRequirement::On(name) => {
                (*name != *node.name).then_some(InfeasibleReason::NoVolume)
            }
            ClaimRequirement::Reached(nodes) => {
                (!nodes.selects(node, offer)).then_some(InfeasibleReason::VolumeElsewhere)
            }
            ClaimRequirement::Zone(key, values) => {
                (!in_zone(offer, key, values)).then_some(InfeasibleReason::VolumeZone)
            }
            ClaimRequirement::Made(nodes) => {
                (!nodes.selects(node, offer)).then_some(InfeasibleReason::NoVolume)
            }
            ClaimRequirement::Nowhere => Some(InfeasibleReason::NoVolume),
        };
        self.rules.iter().find_map(refused)
    }

    /// True if the pod must wait for a claim.
    pub(crate) fn is_held(&self) -> bool {
        self.rules
            .iter()
            .any(|rule| matches!(rule, ClaimRequirement::Held(_)))
    }

    /// True if nodes must be checked for each pod.
    pub(crate) fn is_per_pod(&self) -> bool {
        self.per_pod
    }

    /// True if a claim of the pod gets its volume with the node.
    pub(crate) fn takes(&self) -> bool {
        self.takes
    }
}

/// True if the node is in such a zone or region. A node without location labels is in all.
pub(super) fn in_zone(offer: &NodeAttributes, key: &str, values: &BTreeSet<String>) -> bool {
    let newer = ZONES.iter().find(|(own, _)| *own == key);
    let label = |key: &str| offer.labels.get(key);
    if ZONES.iter().all(|(key, _)| label(key).is_none()) {
        return true;
    }
    let value = label(key).or_else(|| label(newer?.1));
    value.is_some_and(|value| values.contains(value))
}
