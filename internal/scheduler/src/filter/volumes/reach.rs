//! Where a pod's claims let it run, as far as that is the same whichever volumes they get: part of
//! what makes a class. Which free volume each claim gets is looked at pod by pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::objects::{Selector, ZONES};
use super::words::Kind;
use crate::filter::Refusal;
use crate::node::{Node, Offer};

/// What one claim asks of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// Something must be done about the claim first, wherever the pod goes.
    Held(Kind),
    /// Its volume is being made there.
    On(String),
    /// Its volume is reached from there.
    Reached(Arc<Selector>),
    /// Its volume is in one of these zones or regions.
    Zone(&'static str, BTreeSet<String>),
    /// Its volume can be made there.
    Made(Arc<Selector>),
    /// It has no volume anywhere.
    Nowhere,
}

/// What all claims of a pod ask of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reach {
    rules: Vec<Rule>,
    /// A node must be looked at for each pod by itself: its claims take volumes that others may
    /// want, or none but one pod may use them.
    picky: bool,
    /// Some claim gets its volume with the pod's node.
    takes: bool,
}

impl Reach {
    /// What is left of these once told apart; none where the pod may be anywhere.
    pub(super) fn new(mut rules: Vec<Rule>, picky: bool, takes: bool) -> Option<Arc<Reach>> {
        rules.sort();
        rules.dedup();
        let reach = Reach {
            rules,
            picky,
            takes,
        };
        (reach != Reach::default()).then(|| Arc::new(reach))
    }

    /// Why the node is out of the question.
    pub(crate) fn refusal(&self, node: &Node, offer: &Offer) -> Option<Refusal> {
        let refused = |rule: &Rule| match rule {
            Rule::Held(kind) if kind.is_unbound() => Some(Refusal::VolumeUnbound),
            Rule::Held(_) => Some(Refusal::ClaimUnusable),
            Rule::On(name) => (*name != *node.name).then_some(Refusal::NoVolume),
            Rule::Reached(nodes) => {
                (!nodes.selects(node, offer)).then_some(Refusal::VolumeElsewhere)
            }
            Rule::Zone(key, values) => {
                (!in_zone(offer, key, values)).then_some(Refusal::VolumeZone)
            }
            Rule::Made(nodes) => (!nodes.selects(node, offer)).then_some(Refusal::NoVolume),
            Rule::Nowhere => Some(Refusal::NoVolume),
        };
        self.rules.iter().find_map(refused)
    }

    /// Must something be done about a claim before the pod may go anywhere?
    pub(crate) fn is_held(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule, Rule::Held(_)))
    }

    /// Must nodes be looked at for each pod by itself?
    pub(crate) fn is_picky(&self) -> bool {
        self.picky
    }

    /// Does a pod take volumes with its node?
    pub(crate) fn takes(&self) -> bool {
        self.takes
    }
}

/// Is the node in such a zone or region? One that says nothing of zones and regions is in all.
pub(super) fn in_zone(offer: &Offer, key: &str, values: &BTreeSet<String>) -> bool {
    let newer = ZONES.iter().find(|(own, _)| *own == key);
    let said = |key: &str| offer.labels.get(key);
    if ZONES.iter().all(|(key, _)| said(key).is_none()) {
        return true;
    }
    let value = said(key).or_else(|| said(newer?.1));
    value.is_some_and(|value| values.contains(value))
}
