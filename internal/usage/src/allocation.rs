//! One pod's allocation: who holds what, where, and from when until when.

use jiff::Timestamp;
use resources::amounts::{Amounts, CPU, MEMORY};
use serde::{Deserialize, Serialize};

/// A pod's `metadata.uid`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub String);

/// Who an allocation is counted for. A field that the pod does not state is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The pod's namespace.
    pub namespace: String,
    /// The queue of the pod's gang.
    pub queue: String,
    /// The user that the pod runs for (`muster.io/user`).
    pub user: String,
    /// The team that the pod runs for (`muster.io/team`).
    pub team: String,
    /// The model of the node's GPUs, if the pod has any of them.
    pub model: String,
}

/// How an allocation ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocationEnd {
    /// When.
    pub at: Timestamp,
    /// `Succeeded`, `Failed` or `Deleted`; of a failed pod with a reason of its own that reason, such as `Evicted`.
    pub reason: String,
    /// The largest exit code of the pod's containers, if one ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// A pod's allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// The pod's uid.
    pub uid: PodUid,
    /// The pod's name.
    pub pod: String,
    /// Who it is counted for.
    #[serde(flatten)]
    pub owner: Owner,
    /// The kind of the pod's controller, such as `PyTorchJob`; empty for a pod without one.
    pub kind: String,
    /// The name of the pod's controller.
    pub job: String,
    /// The node that the pod is bound to.
    pub node: String,
    /// The pod's requests: cpu in thousandths of a core, memory in bytes, others in units.
    pub amounts: Amounts,
    /// When the pod was created.
    pub submitted: Timestamp,
    /// When the pod was bound.
    pub started: Timestamp,
    /// How it ended; none while the pod holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<AllocationEnd>,
}

/// Of a pod's requests those that are accounted: cpu, memory and extended resources such as `nvidia.com/gpu`.
pub fn accounted(requests: &Amounts) -> Amounts {
    let counts = |name: &str| name == CPU || name == MEMORY || name.contains('/');
    requests
        .iter()
        .filter(|(name, amount)| counts(name) && *amount > 0)
        .map(|(name, amount)| (name.to_owned(), amount))
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An open allocation of two GPUs, a core and a GiB in the namespace `team`.
    pub(crate) fn allocation(pod: &str, user: &str, started: &str) -> Allocation {
        let started = started.parse().unwrap();
        Allocation {
            uid: PodUid(format!("uid-{pod}")),
            pod: pod.to_owned(),
            owner: Owner {
                namespace: "team".to_owned(),
                queue: "research".to_owned(),
                user: user.to_owned(),
                ..Owner::default()
            },
            kind: "PyTorchJob".to_owned(),
            job: "train".to_owned(),
            node: "n1".to_owned(),
            amounts: Amounts::from_iter([
                ("cpu".to_owned(), 1000),
                ("memory".to_owned(), 1 << 30),
                ("nvidia.com/gpu".to_owned(), 2),
            ]),
            submitted: started,
            started,
            ended: None,
        }
    }

    #[test]
    fn cpu_memory_and_extended_resources_are_accounted() {
        let amount = |name: &str, amount| (name.to_owned(), amount);
        let requests = Amounts::from_iter([
            amount("cpu", 500),
            amount("memory", 1 << 30),
            amount("nvidia.com/gpu", 2),
            amount("amd.com/gpu", 0),
            amount("ephemeral-storage", 7),
            amount("pods", 1),
        ]);
        let names: Vec<String> = accounted(&requests)
            .iter()
            .map(|(name, _)| name.to_owned())
            .collect();
        assert_eq!(names, ["cpu", "memory", "nvidia.com/gpu"]);
    }
}
