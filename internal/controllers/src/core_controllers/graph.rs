//! The decisions of garbage collection: ownership, and the steps that follow from an owner that is
//! gone or being deleted. Pure: it takes the API's objects and returns steps. The rules are
//! Kubernetes': background, foreground (`foregroundDeletion`) and orphan.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use resources::registry::{self, Kind};

/// The finalizer of an object that is deleted after its dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object whose dependents are orphaned.
pub(super) const ORPHAN: &str = "orphan";

/// The most owners of one object that are requested at once; the next follow when these have been
/// answered.
const ASKED_AT_ONCE: usize = 256;

/// An object's uid.
pub(super) type Uid = String;

/// The fields of an object that garbage collection needs.
#[derive(Clone)]
pub(super) struct GraphNode {
    pub(super) uid: Uid,
    pub(super) kind: &'static Kind,
    /// Empty for cluster-scoped kinds.
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) resource_version: String,
    pub(super) owners: Vec<OwnerReference>,
    pub(super) finalizers: Vec<String>,
    pub(super) deleting: bool,
}

impl GraphNode {
    fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }

    fn awaits_dependents(&self) -> bool {
        self.deleting && self.has_finalizer(FOREGROUND)
    }
}

/// How an object's own dependents are treated when it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cascade {
    Background,
    Foreground,
    Orphan,
}

/// The next step for an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GraphStep {
    /// Ask the API whether this owner exists; the graph has not seen it.
    AskOwner(OwnerReference),
    /// Delete the object.
    Delete(Uid, Cascade),
    /// Remove these owners from the object's references.
    DropOwners(Uid, Vec<Uid>),
    /// Set `blockOwnerDeletion` to false, so that its owners can be deleted before it.
    Unblock(Uid),
    /// Remove this finalizer from the object.
    DropFinalizer(Uid, &'static str),
}

/// All objects with their owners and dependents.
#[derive(Default)]
pub(super) struct OwnerGraph {
    nodes: BTreeMap<Uid, GraphNode>,
    dependents: BTreeMap<Uid, BTreeSet<Uid>>,
}

impl OwnerGraph {
    pub(super) fn get(&self, uid: &str) -> Option<&GraphNode> {
        self.nodes.get(uid)
    }

    /// The objects of a kind.
    pub(super) fn of_kind(&self, kind: &Kind) -> Vec<Uid> {
        let same =
            |node: &&GraphNode| node.kind.plural == kind.plural && node.kind.group == kind.group;
        let found = self.nodes.values().filter(same);
        found.map(|node| node.uid.clone()).collect()
    }

    /// Adds or updates an object; returns the objects to process because of it.
    pub(super) fn apply(&mut self, node: GraphNode) -> Vec<Uid> {
        let mut look = Vec::new();
        if !node.owners.is_empty() || node.deleting {
            look.push(node.uid.clone());
        }
        let began_waiting = node.awaits_dependents()
            && !self
                .nodes
                .get(&node.uid)
                .is_some_and(GraphNode::awaits_dependents);
        if began_waiting {
            look.extend(self.dependents_of(&node.uid).cloned());
        }
        for owner in &node.owners {
            let dependents = self.dependents.entry(owner.uid.clone()).or_default();
            dependents.insert(node.uid.clone());
        }
        let blocks: BTreeSet<Uid> = blocked_owners(&node).map(str::to_owned).collect();
        let kept: BTreeSet<Uid> = node.owners.iter().map(|owner| owner.uid.clone()).collect();
        let uid = node.uid.clone();
        if let Some(old) = self.nodes.insert(uid.clone(), node) {
            let gone: Vec<Uid> = old
                .owners
                .iter()
                .map(|owner| owner.uid.clone())
                .filter(|owner| !kept.contains(owner))
                .collect();
            for owner in &gone {
                self.forget_dependent(owner, &uid);
            }
            let unblocked = blocked_owners(&old)
                .filter(|owner| !blocks.contains(*owner))
                .map(str::to_owned);
            look.extend(gone);
            look.extend(unblocked);
        }
        look
    }

    /// Removes an object; returns the objects to process because of it.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<Uid> {
        let Some(node) = self.nodes.remove(uid) else {
            return Vec::new();
        };
        let mut look: Vec<Uid> = self.dependents_of(uid).cloned().collect();
        for owner in node.owners {
            self.forget_dependent(&owner.uid, uid);
            look.push(owner.uid);
        }
        look
    }

    fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Uid> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Whether any object names this one as its owner.
    pub(super) fn is_owner(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    fn forget_dependent(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    /// The next steps for an object. `absent` holds the owners that do not exist, as the API said.
    pub(super) fn decide(&self, uid: &str, absent: &BTreeSet<Uid>) -> Vec<GraphStep> {
        match self.nodes.get(uid) {
            None => Vec::new(),
            Some(node) if node.deleting => self.decide_deleting(node),
            Some(node) => self.decide_live(node, absent),
        }
    }

    fn decide_deleting(&self, node: &GraphNode) -> Vec<GraphStep> {
        if node.has_finalizer(ORPHAN) {
            let strip =
                |dependent: &Uid| GraphStep::DropOwners(dependent.clone(), vec![node.uid.clone()]);
            let steps: Vec<GraphStep> = self.dependents_of(&node.uid).map(strip).collect();
            if steps.is_empty() {
                return vec![GraphStep::DropFinalizer(node.uid.clone(), ORPHAN)];
            }
            return steps;
        }
        if node.has_finalizer(FOREGROUND) {
            let blocking = |dependent: &&Uid| {
                let dependent = self.nodes.get(*dependent);
                dependent.is_some_and(|d| blocked_owners(d).any(|owner| owner == node.uid))
            };
            if self.dependents_of(&node.uid).find(blocking).is_none() {
                return vec![GraphStep::DropFinalizer(node.uid.clone(), FOREGROUND)];
            }
        }
        Vec::new()
    }

    fn decide_live(&self, node: &GraphNode, absent: &BTreeSet<Uid>) -> Vec<GraphStep> {
        let (mut solid, mut dangling, mut waiting) = (0, Vec::new(), Vec::new());
        let mut unknown = Vec::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for owner in node.owners.iter().filter(|owner| seen.insert(&owner.uid)) {
            match self.nodes.get(&owner.uid) {
                // A namespaced owner in another namespace is not an owner.
                Some(found) if found.kind.namespaced && found.namespace != node.namespace => {
                    dangling.push(owner.uid.clone());
                }
                Some(found) if found.awaits_dependents() => waiting.push(owner.uid.clone()),
                Some(_) => solid += 1,
                None if absent.contains(&owner.uid) => dangling.push(owner.uid.clone()),
                // The kind is not registered here: another operator judges the owner.
                None if owner_kind(owner).is_none() => solid += 1,
                None => {
                    unknown.push(GraphStep::AskOwner(owner.clone()));
                    if unknown.len() == ASKED_AT_ONCE {
                        break;
                    }
                }
            }
        }
        if !unknown.is_empty() {
            return unknown;
        }
        if solid > 0 {
            let lost: Vec<Uid> = dangling.into_iter().chain(waiting).collect();
            return if lost.is_empty() {
                Vec::new()
            } else {
                vec![GraphStep::DropOwners(node.uid.clone(), lost)]
            };
        }
        if !waiting.is_empty() {
            let mut own = self.dependents_of(&node.uid).peekable();
            if own.peek().is_some() {
                // A cycle of owners would wait for itself.
                let ring = own.any(|uid| {
                    self.nodes
                        .get(uid)
                        .is_some_and(GraphNode::awaits_dependents)
                });
                let mut steps = Vec::new();
                if ring && blocked_owners(node).next().is_some() {
                    steps.push(GraphStep::Unblock(node.uid.clone()));
                }
                steps.push(GraphStep::Delete(node.uid.clone(), Cascade::Foreground));
                return steps;
            }
        }
        if waiting.is_empty() && dangling.is_empty() {
            return Vec::new();
        }
        let cascade = if node.has_finalizer(ORPHAN) {
            Cascade::Orphan
        } else if node.has_finalizer(FOREGROUND) {
            Cascade::Foreground
        } else {
            Cascade::Background
        };
        vec![GraphStep::Delete(node.uid.clone(), cascade)]
    }
}

/// The owners whose deletion this object blocks.
fn blocked_owners(node: &GraphNode) -> impl Iterator<Item = &str> {
    let blocked = node.owners.iter();
    blocked
        .filter(|owner| owner.block_owner_deletion == Some(true))
        .map(|owner| owner.uid.as_str())
}

/// The registered kind that a reference names, if its objects are in the graph.
pub(super) fn owner_kind(owner: &OwnerReference) -> Option<&'static Kind> {
    let (group, version) = owner
        .api_version
        .split_once('/')
        .unwrap_or(("", &owner.api_version));
    registry::by_kind(group, version, &owner.kind).filter(|kind| is_collected(kind))
}

/// Whether the graph holds objects of this kind: not if nothing owns them and they are too many to
/// watch.
pub(super) fn is_collected(kind: &Kind) -> bool {
    kind.kind != "Event"
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
