//! Exclusive resources: GPUs that a container can use with no other device, and resources whose
//! devices are shared so. A container gets at most one of them. Read anew from the objects.

use resources::names::{NVIDIA_GPU, NVIDIA_MIG};

use crate::cluster::{ClusterAccount, PodFacts};
use crate::node_facts::NodeFacts;
use crate::violation::{Invariant, ProposedBind, Violation};

/// Why a bind gives a container more than one exclusive device; one entry for each container and
/// resource.
fn wrong(bind: &ProposedBind, pod: &PodFacts, node: &NodeFacts) -> Vec<String> {
    let mut all = Vec::new();
    for (container, given) in &bind.devices {
        let nvidias = |resource: &str| resource == NVIDIA_GPU || resource.starts_with(NVIDIA_MIG);
        let ids = given.iter().filter(|(resource, _)| nvidias(resource));
        let ids: Vec<&String> = ids.flat_map(|(_, ids)| ids).collect();
        let alone = ids.iter().find(|id| node.alone.contains(**id));
        if let Some(alone) = alone.filter(|_| ids.len() > 1) {
            all.push(format!(
                "container {container} gets {} devices, of which it can have {alone} by itself only",
                ids.len()
            ));
        }
    }
    let asked = pod.several.iter();
    let single = asked.filter(|resource| node.one_at_most.contains(*resource));
    all.extend(single.map(|resource| {
        format!("a container requests several of {resource}, of which it can get at most one")
    }));
    all
}

/// No container gets another device beside an exclusive one.
pub(crate) fn by_itself(before: &ClusterAccount, binds: &[ProposedBind], out: &mut Vec<Violation>) {
    for bind in binds {
        let (pod, node) = (before.pods.get(&bind.pod), before.nodes.get(&bind.node));
        let Some((pod, node)) = pod.zip(node) else {
            continue;
        };
        out.extend(wrong(bind, pod, node).into_iter().map(|what| Violation {
            invariant: Invariant::ByItself,
            what: format!("pod {} on node {}: {what}", bind.pod, bind.node),
            pods: vec![bind.pod.clone()],
        }));
    }
}
