//! Why a gang waits, for users and programs: the checks, the binding constraint, and what would make the gang fit. Data
//! and its one-line sentence; the scheduler fills it in.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The reason that a gang does not start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WaitReason {
    /// Only the gangs ahead of it in the queue delay it.
    #[default]
    Waiting,
    /// The queue's capability (or a quota) is used up.
    QuotaExceeded,
    /// Fewer members exist than the gang needs.
    NotEnoughMembers,
    /// No node fits some member even when empty (selector, taint, runtime, size).
    NoNodeFits,
    /// The nodes that fit have too few free resources now.
    InsufficientResources,
    /// The queue takes no new work.
    QueueClosed,
    /// The queue named does not exist.
    QueueMissing,
    /// The queue admits no work from the namespace.
    NamespaceNotAdmitted,
    /// No topology domain of the required level fits the gang.
    TopologyUnsatisfied,
    /// There is no node at all.
    NoNodes,
}

impl WaitReason {
    /// The condition reason shown on a PodGroup.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Waiting => "WaitingInQueue",
            Self::QuotaExceeded => "QueueQuotaExceeded",
            Self::NotEnoughMembers => "NotEnoughPods",
            Self::NoNodeFits => "NoNodeFits",
            Self::InsufficientResources => "NotEnoughResources",
            Self::QueueClosed => "QueueClosed",
            Self::QueueMissing => "QueueNotFound",
            Self::NamespaceNotAdmitted => "NamespaceNotAdmitted",
            Self::TopologyUnsatisfied => "TopologyUnsatisfied",
            Self::NoNodes => "NoNodes",
        }
    }
}

/// The reason of nodes that start no pods without an image. Each such node's condition `muster.io/suspect` has the
/// cause, which clients add to the report.
pub const NO_PROCESSES: &str = "node(s) did not run pods without an image";

/// The number of nodes that one reason excludes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonCount {
    /// The reason, as kube-scheduler words it (`Insufficient nvidia.com/gpu`).
    pub reason: String,
    /// The number of nodes.
    pub nodes: usize,
}

/// One task (replica type) of a waiting gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskReport {
    /// The task's name; empty if the gang has only one.
    pub name: String,
    /// Members that must start together.
    pub wanted: usize,
    /// Members that exist.
    pub present: usize,
    /// Members that fit now.
    pub placeable: usize,
    /// The request of one member (cpu in thousandths).
    pub each: BTreeMap<String, i64>,
}

/// When a gang may start, estimated from the expected ends of running gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// The 10th percentile: one start in ten is earlier.
    pub earliest: Timestamp,
    /// The most likely time.
    pub likely: Timestamp,
    /// The 90th percentile: one start in ten is later.
    pub latest: Timestamp,
}

impl Estimate {
    /// The estimate as text, as the CLI, the API and the UI show it.
    #[must_use]
    pub fn message(&self) -> String {
        format!(
            "about {}, most likely between {} and {}",
            self.likely, self.earliest, self.latest
        )
    }
}

/// A gang that a waiting gang could evict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preemptable {
    /// Its namespace.
    pub namespace: String,
    /// Its PodGroup, or the pod's own name for a gang of one.
    pub group: String,
    /// The number of its members that would be evicted.
    pub members: usize,
    /// The reason of the eviction: `Preempted`, `Reclaimed`.
    pub why: String,
}

/// The most gangs that the text names.
const NAMED_MAX: usize = 8;

/// The gangs that a gang could evict, as text, as the CLI, the API and the UI show it; empty if there are none.
#[must_use]
pub fn preemptable_words(victims: &[Preemptable]) -> String {
    if victims.is_empty() {
        return String::new();
    }
    let named = victims.iter().take(NAMED_MAX).map(|victim| {
        let Preemptable {
            namespace,
            group,
            members,
            why,
        } = victim;
        let members = match members {
            1 => "1 member".to_owned(),
            many => format!("{many} members"),
        };
        format!("{members} of {namespace}/{group} ({why})")
    });
    let mut words = named.collect::<Vec<_>>().join(", ");
    if victims.len() > NAMED_MAX {
        let _ = write!(words, ", and {} more gangs", victims.len() - NAMED_MAX);
    }
    format!("it would start now if evicted: {words}")
}

/// Why a gang does not run, and what would change that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementReport {
    /// Namespace of the gang.
    pub namespace: String,
    /// Its PodGroup, or the pod's own name for a gang of one.
    pub group: String,
    /// The queue it waits in.
    pub queue: String,
    /// Members that must start together.
    pub members_wanted: usize,
    /// Members that would fit now.
    pub members_placed_possible: usize,
    /// The time since which it waits.
    pub since: Option<Timestamp>,
    /// The reason that it waits.
    pub verdict: WaitReason,
    /// The binding constraint, in a sentence.
    pub binding: String,
    /// What would make it fit, in a sentence.
    pub would_fit: String,
    /// The number of nodes checked.
    pub nodes: usize,
    /// The reasons that exclude nodes, most frequent first.
    pub per_reason: Vec<ReasonCount>,
    /// The number of gangs ahead of it in its queue.
    pub ahead: usize,
    /// Its tasks.
    pub tasks: Vec<TaskReport>,
    /// When it may start, if that can be estimated.
    pub estimate: Option<Estimate>,
    /// Why no gang is evicted for it, in a sentence; empty if evictions were not considered.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evictions: String,
}

impl PlacementReport {
    /// One line in kube-scheduler's wording: `0/2 nodes are available: 2 Insufficient nvidia.com/gpu.`
    pub fn sentence(&self) -> String {
        let mut out = String::new();
        if self.members_wanted > 1 {
            let _ = write!(
                out,
                "gang of {} must start together ({} can be scheduled): ",
                self.members_wanted, self.members_placed_possible
            );
        }
        if self.per_reason.is_empty() {
            out.push_str(if self.binding.is_empty() {
                self.verdict.reason()
            } else {
                &self.binding
            });
            if !out.ends_with('.') {
                out.push('.');
            }
            return out;
        }
        let _ = write!(
            out,
            "{}/{} nodes are available: ",
            self.nodes - self.refused(),
            self.nodes
        );
        for (i, reason) in self.per_reason.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let _ = write!(out, "{comma}{} {}", reason.nodes, reason.reason);
        }
        out.push('.');
        out
    }

    /// The number of excluded nodes if each counts under one reason; at most the number of nodes.
    fn refused(&self) -> usize {
        self.per_reason
            .iter()
            .map(|r| r.nodes)
            .sum::<usize>()
            .min(self.nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_as_kube_scheduler_words_it() {
        let mut report = PlacementReport {
            members_wanted: 1,
            nodes: 2,
            per_reason: vec![ReasonCount {
                reason: "Insufficient nvidia.com/gpu".into(),
                nodes: 2,
            }],
            ..PlacementReport::default()
        };
        assert_eq!(
            report.sentence(),
            "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
        );
        report.members_wanted = 6;
        report.members_placed_possible = 2;
        assert_eq!(
            report.sentence(),
            "gang of 6 must start together (2 can be scheduled): 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
        );
    }

    #[test]
    fn a_report_without_nodes_says_what_binds() {
        let report = PlacementReport {
            verdict: WaitReason::QueueClosed,
            binding: "queue research is closed".into(),
            ..PlacementReport::default()
        };
        assert_eq!(report.sentence(), "queue research is closed.");
        assert_eq!(PlacementReport::default().sentence(), "WaitingInQueue.");
    }

    #[test]
    fn a_report_survives_its_json() {
        let report = PlacementReport {
            group: "g".into(),
            ahead: 3,
            ..PlacementReport::default()
        };
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.contains("membersWanted"));
        assert_eq!(
            serde_json::from_str::<PlacementReport>(&text).unwrap(),
            report
        );
    }
}
