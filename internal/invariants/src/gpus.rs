//! Whether any GPU would be overcommitted, unknown or unhealthy. Fractions are counted in thousandths of a GPU.

use std::collections::{BTreeMap, BTreeSet};

use resources::devices::ChosenDevices;
use resources::names;
use resources::quantity::Quantity;

use crate::cluster::{ClusterAccount, PodFacts};
use crate::gpu_request::{GpuRequest, WHOLE};
use crate::node_facts::NodeFacts;
use crate::products::{contains_name, words};
use crate::violation::{Invariant, PodId, ProposedBind, Violation};

fn ids(chosen: &ChosenDevices) -> BTreeSet<&String> {
    let lists = chosen
        .values()
        .filter_map(|by_resource| by_resource.get(names::NVIDIA_GPU));
    lists.flatten().collect()
}

/// The slices and other vendors' devices chosen for a pod, with their resource.
fn listed(chosen: &ChosenDevices) -> impl Iterator<Item = (&String, &String)> {
    let lists = chosen.values().flatten();
    let lists = lists.filter(|(resource, _)| *resource != names::NVIDIA_GPU);
    lists.flat_map(|(resource, ids)| ids.iter().map(move |id| (resource, id)))
}

/// No slice or other vendor's device is allocated to two pods, unknown, unhealthy, or of another
/// resource than requested.
pub(crate) fn one_by_one(
    before: &ClusterAccount,
    name: &str,
    new: &[&ProposedBind],
    out: &mut Vec<Violation>,
) {
    let Some(node) = before.nodes.get(name) else {
        return;
    };
    let mut held: BTreeMap<&String, &PodId> = BTreeMap::new();
    for id in before.on_node.get(name).into_iter().flatten() {
        if let Some((_, chosen)) = before.pods.get(id).and_then(|pod| pod.at.as_ref()) {
            held.extend(listed(chosen).map(|(_, device)| (device, id)));
        }
    }
    for bind in new {
        let mut mine = BTreeMap::new();
        for (resource, device) in listed(&bind.devices) {
            let wrong = match (node.listed.get(device), held.get(device)) {
                (None, _) => Some("which the node does not have".to_owned()),
                (Some((of, _)), _) if of != resource => Some(format!("which is one of {of}")),
                (Some((_, false)), _) => Some("which is unhealthy".to_owned()),
                (_, Some(holder)) => Some(format!("which {holder} holds")),
                _ => None,
            };
            mine.insert(device, &bind.pod);
            out.extend(wrong.map(|wrong| Violation {
                invariant: Invariant::Devices,
                what: format!("pod {} gets {device} on node {name}, {wrong}", bind.pod),
                pods: vec![bind.pod.clone()],
            }));
        }
        held.extend(mine);
    }
}

/// The allocations of one node's GPUs.
#[derive(Default)]
struct GpuAllocations<'a> {
    held: BTreeMap<&'a String, (i64, &'a PodId)>,
    /// Whole GPUs whose ids are unknown.
    unnamed: i64,
    /// Whether any pod shares a GPU.
    shares: bool,
}

impl<'a> GpuAllocations<'a> {
    /// Adds a pod; returns the earlier holders of GPUs that are overcommitted now.
    fn add(
        &mut self,
        pod: &'a PodId,
        facts: &PodFacts,
        node: &NodeFacts,
        chosen: &'a ChosenDevices,
    ) -> Vec<(&'a String, &'a PodId)> {
        let each = facts.gpus.each(Some(node)).min(WHOLE);
        let chosen = ids(chosen);
        self.shares |= facts.gpus.shares();
        self.unnamed += (facts.gpus.count() - chosen.len() as i64).max(0);
        let mut beyond = Vec::new();
        for id in chosen {
            let (held, holder) = self.held.entry(id).or_insert((0, pod));
            *held += each;
            if *held > WHOLE {
                beyond.push((id, *holder));
            }
            *holder = pod;
        }
        beyond
    }

    fn begun(&self) -> i64 {
        self.held.len() as i64 + self.unnamed
    }
}

/// No GPU is overcommitted, unknown, or unhealthy; a pod gets as many as it requests. Where a
/// node's GPUs are only counted, the counts are checked.
pub(crate) fn given(
    before: &ClusterAccount,
    name: &str,
    new: &[&ProposedBind],
    out: &mut Vec<Violation>,
) {
    let Some(node) = before.nodes.get(name) else {
        return;
    };
    let all = node.allocatable.get(names::NVIDIA_GPU);
    let mut given = GpuAllocations::default();
    for id in before.on_node.get(name).into_iter().flatten() {
        let pod = before.pods.get(id);
        if let Some((pod, (_, chosen))) = pod.and_then(|pod| Some((pod, pod.at.as_ref()?))) {
            given.add(id, pod, node, chosen);
        }
    }
    for bind in new {
        let Some(pod) = before.pods.get(&bind.pod) else {
            continue;
        };
        let chosen = ids(&bind.devices);
        let (count, shares) = (pod.gpus.count(), pod.gpus.shares());
        let mut wrong = Vec::new();
        if chosen.len() as i64 != count && (shares || node.devices.is_some()) {
            let got = chosen.len();
            wrong.push(format!("asks for {count} devices and gets {got}"));
        }
        let each = pod.gpus.each(Some(node));
        wrong.extend(pod.needs.unmet(node));
        let by_memory = matches!(pod.gpus, GpuRequest::Memory(..) | GpuRequest::Both(..));
        if each > WHOLE || (by_memory && node.gpu_memory.is_none()) {
            wrong.push(format!(
                "asks for more memory than a GPU of node {name} has"
            ));
        }
        for device in chosen {
            let known = match &node.devices {
                Some(devices) => devices.get(device).copied(),
                None if shares => {
                    let index = device.parse::<i64>().ok();
                    index.filter(|at| (0..all).contains(at)).map(|_| true)
                }
                None => Some(true),
            };
            match known {
                None => wrong.push(format!("gets {device}, which node {name} does not have")),
                Some(false) => {
                    wrong.push(format!("gets {device} on node {name}, which is unhealthy"));
                }
                Some(true) => {}
            }
        }
        let before = given.begun();
        for (device, holder) in given.add(&bind.pod, pod, node, &bind.devices) {
            wrong.push(format!(
                "gets {device} on node {name}, which {holder} holds"
            ));
        }
        let begins = given.shares && given.begun() > before;
        if begins && given.begun() > all {
            wrong.push(format!(
                "gets a GPU on node {name}, all {all} of which are held"
            ));
        }
        for what in wrong {
            out.push(Violation {
                invariant: Invariant::Devices,
                what: format!("pod {} {what}", bind.pod),
                pods: vec![bind.pod.clone()],
            });
        }
    }
}

/// No queue holds more GPUs of a model than its capability for the model.
pub(crate) fn by_model(
    before: &ClusterAccount,
    queue: &str,
    binds: &[&ProposedBind],
    out: &mut Vec<Violation>,
) {
    for (name, allowed) in before.model_capability.get(queue).into_iter().flatten() {
        let model = words(name.trim_start_matches(names::GPU_OF_MODEL));
        let charge = |pod: &PodFacts, node: &String| {
            let node = before.nodes.get(node);
            let is = node.is_some_and(|node| {
                let all = &node.products;
                !all.is_empty() && all.iter().all(|product| contains_name(product, &model))
            });
            if is { pod.gpus.charge(node) } else { 0 }
        };
        let there = before.pods.values().filter(|pod| !pod.leaving);
        let there = there.filter(|pod| before.queue_of(pod).as_deref() == Some(queue));
        let had: i64 = there
            .filter_map(|pod| Some(charge(pod, &pod.at.as_ref()?.0)))
            .sum();
        let new = |bind: &&&ProposedBind| {
            let pod = before.pods.get(&bind.pod);
            pod.map_or(0, |pod| charge(pod, &bind.node))
        };
        let more: i64 = binds.iter().map(|bind| new(&bind)).sum();
        if more > 0 && had.saturating_add(more) > *allowed {
            let [had, more, allowed] = [had, more, *allowed].map(Quantity::from_milli);
            let pods = binds.iter().filter(|bind| new(bind) > 0);
            out.push(Violation {
                invariant: Invariant::QueueCapability,
                what: format!(
                    "queue {queue} may use {name}: {allowed}, holds {had}, and {more} more are bound"
                ),
                pods: pods.map(|bind| bind.pod.clone()).collect(),
            });
        }
    }
}
