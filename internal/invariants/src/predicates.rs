//! The predicates: each examines the account with the binds applied.

use std::collections::{BTreeMap, BTreeSet};

use resources::amounts::{Amounts, quantity_of};
use resources::names::{GPU_OF_MODEL, GPU_SHARED, NVIDIA_GPU};
use resources::quantity::Quantity;

use crate::alone;
use crate::cluster::{ClusterAccount, GroupId, PodFacts};
use crate::constraints::forbidden;
use crate::gpus;
use crate::violation::{Invariant, PodId, ProposedBind, Violation};

/// Returns the violations of the binds. `before` is the cluster without them. A violation counts
/// only if a bind contributes to it; existing faults are not attributed to the binds.
#[must_use]
pub fn check(before: &ClusterAccount, binds: &[ProposedBind]) -> Vec<Violation> {
    let mut violations = Vec::new();
    bound_once(before, binds, &mut violations);
    constraints(before, binds, &mut violations);
    node_capacity(before, binds, &mut violations);
    devices(before, binds, &mut violations);
    alone::by_itself(before, binds, &mut violations);
    whole_gangs(before, binds, &mut violations);
    queue_capability(before, binds, &mut violations);
    violations
}

fn known<'a>(
    before: &'a ClusterAccount,
    binds: &'a [ProposedBind],
) -> impl Iterator<Item = (&'a ProposedBind, &'a PodFacts)> {
    binds
        .iter()
        .filter_map(|bind| Some((bind, before.pods.get(&bind.pod)?)))
}

fn by_node(binds: &[ProposedBind]) -> BTreeMap<&str, Vec<&ProposedBind>> {
    let mut nodes: BTreeMap<&str, Vec<&ProposedBind>> = BTreeMap::new();
    for bind in binds {
        nodes.entry(&bind.node).or_default().push(bind);
    }
    nodes
}

fn pods_of(binds: &[&ProposedBind]) -> Vec<PodId> {
    binds.iter().map(|bind| bind.pod.clone()).collect()
}

fn bound_once(before: &ClusterAccount, binds: &[ProposedBind], out: &mut Vec<Violation>) {
    let mut seen = BTreeSet::new();
    for bind in binds {
        let what = match before.pods.get(&bind.pod) {
            None => Some("does not exist".to_owned()),
            Some(pod) if pod.uid != bind.uid => Some(format!(
                "was replaced by another pod of this name (uid {})",
                pod.uid
            )),
            Some(pod) if pod.ended => Some("has ended".to_owned()),
            Some(pod) => pod
                .at
                .as_ref()
                .map(|(node, _)| format!("is already on node {node}")),
        };
        let twice = (!seen.insert(&bind.pod)).then(|| "is bound twice".to_owned());
        for what in what.into_iter().chain(twice) {
            out.push(Violation {
                invariant: Invariant::BoundOnce,
                what: format!("pod {} {what}", bind.pod),
                pods: vec![bind.pod.clone()],
            });
        }
    }
}

fn constraints(before: &ClusterAccount, binds: &[ProposedBind], out: &mut Vec<Violation>) {
    for (bind, pod) in known(before, binds) {
        let why = match before.nodes.get(&bind.node) {
            None => Some("the node does not exist".to_owned()),
            Some(node) => forbidden(&pod.demands, &bind.node, node),
        };
        if let Some(why) = why {
            out.push(Violation {
                invariant: Invariant::Constraints,
                what: format!("pod {} on node {}: {why}", bind.pod, bind.node),
                pods: vec![bind.pod.clone()],
            });
        }
    }
}

fn node_capacity(before: &ClusterAccount, binds: &[ProposedBind], out: &mut Vec<Violation>) {
    for (name, new) in by_node(binds) {
        let Some(node) = before.nodes.get(name) else {
            continue;
        };
        let mut used = Amounts::new();
        let residents = before.on_node.get(name).into_iter().flatten();
        for pod in residents.filter_map(|id| before.pods.get(id)) {
            used.add(&pod.requests);
        }
        let mut asked = Amounts::new();
        for pod in new.iter().filter_map(|bind| before.pods.get(&bind.pod)) {
            asked.add(&pod.requests);
        }
        for (resource, amount) in asked.iter().filter(|(_, amount)| *amount > 0) {
            let (had, has) = (used.get(resource), node.allocatable.get(resource));
            if had.saturating_add(amount) > has {
                let [had, amount, has] = [had, amount, has].map(|n| quantity_of(resource, n));
                out.push(Violation {
                    invariant: Invariant::NodeCapacity,
                    what: format!("node {name} has {resource}: {has}, of which {had} are used, and {amount} more are bound"),
                    pods: asking(before, &new, resource),
                });
            }
        }
    }
}

/// The pods among the binds that request a resource.
fn asking(before: &ClusterAccount, binds: &[&ProposedBind], resource: &str) -> Vec<PodId> {
    let asks = |id: &PodId| {
        before
            .pods
            .get(id)
            .is_some_and(|pod| pod.requests.get(resource) > 0)
    };
    pods_of(binds).into_iter().filter(asks).collect()
}

fn devices(before: &ClusterAccount, binds: &[ProposedBind], out: &mut Vec<Violation>) {
    for (name, new) in by_node(binds) {
        gpus::given(before, name, &new, out);
        gpus::one_by_one(before, name, &new, out);
    }
}

fn whole_gangs(before: &ClusterAccount, binds: &[ProposedBind], out: &mut Vec<Violation>) {
    let mut gangs: BTreeMap<&GroupId, Vec<&ProposedBind>> = BTreeMap::new();
    for (bind, pod) in known(before, binds) {
        if let Some(group) = &pod.group {
            gangs.entry(group).or_default().push(bind);
        }
    }
    for (group, new) in gangs {
        let name = format!("{}/{}", group.0, group.1);
        let mut broken = |what: String| {
            out.push(Violation {
                invariant: Invariant::WholeGangs,
                what,
                pods: pods_of(&new),
            });
        };
        let Some(facts) = before.groups.get(group) else {
            broken(format!("gang {name} has members bound and no PodGroup"));
            continue;
        };
        let fresh: BTreeSet<&PodId> = new.iter().map(|bind| &bind.pod).collect();
        let members = before.members.get(group).into_iter().flatten();
        let holding: Vec<&PodFacts> = members
            .filter_map(|id| Some((id, before.pods.get(id)?)))
            .filter(|(id, pod)| pod.at.is_some() || pod.succeeded || fresh.contains(id))
            .map(|(_, pod)| pod)
            .collect();
        if holding.len() < facts.min_member {
            broken(format!(
                "gang {name} would have {} of {} members",
                holding.len(),
                facts.min_member
            ));
        }
        for (task, min) in &facts.min_task_member {
            let have = holding.iter().filter(|pod| pod.task == *task).count();
            if have < *min {
                broken(format!(
                    "gang {name} would have {have} of {min} members of task {task}"
                ));
            }
        }
    }
}

fn queue_capability(before: &ClusterAccount, binds: &[ProposedBind], out: &mut Vec<Violation>) {
    let mut queues: BTreeMap<String, (Amounts, Vec<&ProposedBind>)> = BTreeMap::new();
    for (bind, pod) in known(before, binds) {
        let Some(queue) = before.queue_of(pod) else {
            continue;
        };
        let (asked, pods) = queues.entry(queue).or_default();
        asked.add(&pod.requests);
        pods.push(bind);
    }
    for (queue, (asked, pods)) in queues {
        let Some(capability) = before.capability.get(&queue) else {
            continue;
        };
        let none = Amounts::new();
        let held = before.queue_held.get(&queue).unwrap_or(&none);
        gpu_capability(before, &queue, &pods, out);
        gpus::by_model(before, &queue, &pods, out);
        for (resource, allowed) in capability
            .iter()
            .filter(|(name, _)| *name != NVIDIA_GPU)
            .filter(|(name, _)| !name.starts_with(GPU_OF_MODEL) || *name == GPU_SHARED)
        {
            let (had, more) = (held.get(resource), asked.get(resource));
            if more > 0 && had.saturating_add(more) > allowed {
                let [had, more, allowed] = [had, more, allowed].map(|n| quantity_of(resource, n));
                out.push(Violation {
                    invariant: Invariant::QueueCapability,
                    what: format!("queue {queue} may use {resource}: {allowed}, holds {had}, and {more} more are bound"),
                    pods: asking(before, &pods, resource),
                });
            }
        }
    }
}

/// The same for GPUs, in thousandths.
fn gpu_capability(
    before: &ClusterAccount,
    queue: &str,
    binds: &[&ProposedBind],
    out: &mut Vec<Violation>,
) {
    let Some(allowed) = before.gpu_capability.get(queue).copied() else {
        return;
    };
    let charge = |bind: &&&ProposedBind| {
        let node = before.nodes.get(&bind.node);
        before
            .pods
            .get(&bind.pod)
            .map_or(0, |pod| pod.gpus.charge(node))
    };
    let had = before.gpus_held.get(queue).copied().unwrap_or(0);
    let more: i64 = binds.iter().map(|bind| charge(&bind)).sum();
    if more > 0 && had.saturating_add(more) > allowed {
        let [had, more, allowed] = [had, more, allowed].map(Quantity::from_milli);
        let asking: Vec<&ProposedBind> = binds
            .iter()
            .filter(|bind| charge(bind) > 0)
            .copied()
            .collect();
        out.push(Violation {
            invariant: Invariant::QueueCapability,
            what: format!("queue {queue} may use {NVIDIA_GPU}: {allowed}, holds {had}, and {more} more are bound"),
            pods: pods_of(&asking),
        });
    }
}
