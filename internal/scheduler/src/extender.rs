//! Answers kube-scheduler's extender protocol: which nodes can take one pod that another scheduler
//! places, and which devices it gets on a node. Checks only what kube-scheduler cannot see: single
//! GPUs, their parts, slices and health, and what is left for expected pods. Queues, shares and
//! reservations apply only to pods that this scheduler places. Decides and keeps nothing: the
//! placed pod arrives as an event, like any other.
//!
//! Cost: a fresh class view, then one lookup for each node. Tests: `tests/extender.rs`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::devices::ChosenDevices;

use crate::class::ClassIx;
use crate::config::PlacementStrategy;
use crate::devices::{self, DeviceRequest};
use crate::filter::InfeasibleReason;
use crate::fit::NodeFit;
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::resource::each;
use crate::score;
use crate::state::Scheduler;

/// The highest score of a node (kube-scheduler's `MaxExtenderPriority`).
pub const PREFERENCE_MAX: i64 = 10;

/// Why a node cannot take a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The reason, worded to follow the node's name.
    pub why: String,
    /// True if the node could not take the pod even if all its pods were gone.
    pub lasting: bool,
}

impl Infeasible {
    fn lasting(why: impl Into<String>) -> Infeasible {
        Infeasible {
            why: why.into(),
            lasting: true,
        }
    }
}

/// A pod to be removed: its uid, class and GPUs.
type Leaves = (String, ClassIx, Vec<Arc<str>>);

impl Scheduler {
    /// Whether each of these nodes has room at once for a pod of another scheduler, in their order.
    pub fn extender_filter(
        &mut self,
        pod: &k8s::Pod,
        nodes: &[&str],
    ) -> Vec<Result<(), Infeasible>> {
        let Some((class, _)) = self.extender_class_of(pod) else {
            return vec![Err(Infeasible::lasting("the pod has no spec")); nodes.len()];
        };
        let nodes = nodes.iter();
        nodes
            .map(|name| self.room_at_once(class, name).map(|_| ()))
            .collect()
    }

    /// The score of each of these nodes for a pod of another scheduler, from 0 to
    /// [`PREFERENCE_MAX`], in their order. The best nodes get the maximum; each further rank gets
    /// less; a node without room gets 0.
    pub fn extender_scores(&mut self, pod: &k8s::Pod, nodes: &[&str]) -> Vec<i64> {
        let Some((class, _)) = self.extender_class_of(pod) else {
            return vec![0; nodes.len()];
        };
        let at: Vec<Option<NodeIx>> = nodes
            .iter()
            .map(|name| self.room_at_once(class, name).ok())
            .collect();
        let scores = self.fragmentation_scores(class, &at);
        let spread = self.config.placement == PlacementStrategy::Spread;
        let kinds = at.iter().zip(scores).map(|(at, worth)| {
            let key = self.views.get(&class)?.key((*at)?)?;
            let (idle, spare) = key.emptiness();
            let empty = if spread {
                (-idle, -spare)
            } else {
                (idle, spare)
            };
            Some((key.rank_without_sharing_cost(), Reverse(worth), empty))
        });
        let kinds: Vec<_> = kinds.collect();
        let distinct: BTreeSet<_> = kinds.iter().flatten().collect();
        let order: BTreeMap<_, i64> = distinct.into_iter().zip(0..).collect();
        let steps = order.len() as i64 - 1;
        let preference = |rank: i64| match rank {
            0 => PREFERENCE_MAX,
            // Rounded up: only the best rank gets the maximum.
            rank => PREFERENCE_MAX - (PREFERENCE_MAX * rank + steps - 1) / steps,
        };
        let ranks = kinds.iter().map(|kind| order.get(kind.as_ref()?).copied());
        ranks.map(|rank| rank.map_or(0, preference)).collect()
    }

    /// The devices that a pod gets on the node that another scheduler chose.
    ///
    /// # Errors
    /// Why the node cannot take it (any more).
    pub fn extender_devices(
        &mut self,
        pod: &k8s::Pod,
        node: &str,
    ) -> Result<ChosenDevices, Infeasible> {
        let Some((class, asks)) = self.extender_class_of(pod) else {
            return Err(Infeasible::lasting("the pod has no spec"));
        };
        let at = self.room_at_once(class, node)?;
        let take = self.take_on(class, at);
        let picked = self.pick_gpus(class, at, &take);
        let mut dealt = devices::deal(&asks, &picked);
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let key = PodKey::new(pod.metadata.namespace.as_deref().unwrap_or("default"), name);
        self.add_listed(&key, at, &asks, &mut dealt);
        // They count as held from the pod's event on.
        self.listed.release(&key);
        Ok(dealt)
    }

    /// Whether each node would have room for a pod of another scheduler once the given pods (by
    /// uid), and those that are terminating already, were gone; in their order.
    pub fn extender_filter_without(
        &mut self,
        pod: &k8s::Pod,
        gone: &[(&str, BTreeSet<&str>)],
    ) -> Vec<bool> {
        let Some((class, _)) = self.extender_class_of(pod) else {
            return vec![false; gone.len()];
        };
        let before = (self.changed, self.releases);
        let asked: BTreeSet<&str> = gone.iter().flat_map(|(_, uids)| uids).copied().collect();
        let mut leaving: BTreeMap<NodeIx, Vec<Leaves>> = BTreeMap::new();
        for (_, pod) in self.pods.in_any_order() {
            let there = pod.node.filter(|_| pod.stage.occupies());
            if let Some(at) = there
                && asked.contains(pod.uid.as_str())
            {
                let leaves = (pod.uid.clone(), pod.class, pod.devices.clone());
                leaving.entry(at).or_default().push(leaves);
            }
        }
        let mut fits = Vec::with_capacity(gone.len());
        for (name, uids) in gone {
            let Some(at) = self.node_index.get(*name).copied() else {
                fits.push(false);
                continue;
            };
            let there = leaving.get(&at).map_or(&[][..], Vec::as_slice).iter();
            let there: Vec<&Leaves> = there
                .filter(|(uid, ..)| uids.contains(uid.as_str()))
                .collect();
            for (_, class, devices) in &there {
                let take = self.take_on(*class, at);
                self.vacate(at, &take, devices);
            }
            self.touch(at);
            self.refresh(class);
            fits.push(
                self.views
                    .get(&class)
                    .is_some_and(|view| view.holds(at) > 0),
            );
            for (_, class, devices) in &there {
                let take = self.take_on(*class, at);
                self.occupy(at, &take, devices);
            }
            self.touch(at);
        }
        (self.changed, self.releases) = before;
        fits
    }

    /// The pod's class, its fresh view, and what its containers request. The class is kept until
    /// another one is asked about, because the same pod is usually asked about several times.
    fn extender_class_of(&mut self, pod: &k8s::Pod) -> Option<(ClassIx, Arc<[DeviceRequest]>)> {
        let spec = alone(pod.spec.as_ref()?);
        let namespace = self.namespace(pod.metadata.namespace.as_deref());
        let (class, asks) = self.read_asks(pod, &spec, &namespace);
        if let Some(old) = self.extender_class.replace(class) {
            self.leave_class(old);
        }
        self.apply_new_models();
        self.rank_nodes();
        self.refresh(class);
        Some((class, asks))
    }

    /// The node, if it has room for a pod of the class now, without waiting for terminating pods.
    fn room_at_once(&self, class: ClassIx, name: &str) -> Result<NodeIx, Infeasible> {
        let unknown = || Infeasible::lasting("the scheduler does not know the node yet");
        let at = self.node_index.get(name).copied().ok_or_else(unknown)?;
        let view = self.views.get(&class).ok_or_else(unknown)?;
        let (node, facts) = (&self.nodes[at], self.classes.get(class));
        match view.node_fit(at) {
            NodeFit::Absent => Err(unknown()),
            NodeFit::Refused(refusal) => Err(Infeasible::lasting(refusal.of_one())),
            NodeFit::Short { limits, apart } => {
                let names: Vec<&str> = each(limits).map(|ix| self.names.name(ix)).collect();
                Err(Infeasible {
                    why: match apart {
                        true => InfeasibleReason::OneAtMost.of_one().to_owned(),
                        false => format!("Insufficient {}", names.join(", ")),
                    },
                    lasting: view.empty_at(at) == 0,
                })
            }
            NodeFit::Holds { .. } if score::awaits(facts, node) => Err(Infeasible {
                why: "terminating pods still hold what it requests".to_owned(),
                lasting: false,
            }),
            NodeFit::Holds { .. } => Ok(at),
        }
    }
}

/// The spec without what the other scheduler checks itself: inter-pod rules and ResourceClaims.
/// Volumes are not checked here either.
fn alone(spec: &k8s::PodSpec) -> k8s::PodSpec {
    let mut spec = spec.clone();
    spec.topology_spread_constraints = None;
    spec.resource_claims = None;
    if let Some(affinity) = &mut spec.affinity {
        affinity.pod_affinity = None;
        affinity.pod_anti_affinity = None;
    }
    spec
}
