//! Why a gang waits, in a form that people and programs read: what was tried, what binds, what would make it fit.
//! Data and its one-line sentence; who fills it in is the scheduler.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What keeps a gang from starting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// Nothing binds but its place in the line.
    #[default]
    Waiting,
    /// The queue's capability (or a quota) is used up.
    QuotaExceeded,
    /// Fewer members exist than the gang needs.
    NotEnoughMembers,
    /// Some member fits no node even when empty (selector, taint, runtime, size).
    NoNodeFits,
    /// The nodes that fit have too little free now.
    InsufficientResources,
    /// The queue takes no new work.
    QueueClosed,
    /// The queue named does not exist.
    QueueMissing,
    /// No network domain of the level that it requires holds it.
    TopologyUnsatisfied,
    /// There is no node at all.
    NoNodes,
}

impl Verdict {
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
            Self::TopologyUnsatisfied => "TopologyUnsatisfied",
            Self::NoNodes => "NoNodes",
        }
    }
}

/// How many nodes were left out for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonCount {
    /// The reason, as kube-scheduler words it (`Insufficient nvidia.com/gpu`).
    pub reason: String,
    /// How many nodes.
    pub nodes: usize,
}

/// One task (replica type) of a waiting gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskReport {
    /// The task's name; empty where the gang has only one.
    pub name: String,
    /// Members that must start together.
    pub wanted: usize,
    /// Members that exist.
    pub present: usize,
    /// Members that would find room now.
    pub placeable: usize,
    /// What one member asks for (cpu in thousandths).
    pub each: BTreeMap<String, i64>,
}

/// When something may start, as far as can be told from when others are expected to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// One of ten such answers turns out to be earlier than this.
    pub earliest: Timestamp,
    /// As it looks now.
    pub likely: Timestamp,
    /// One of ten turns out to be later than this.
    pub latest: Timestamp,
}

impl Estimate {
    /// In words, as the CLI, the API and the UI show it.
    #[must_use]
    pub fn words(&self) -> String {
        format!(
            "about {}, most likely between {} and {}",
            self.likely, self.earliest, self.latest
        )
    }
}

/// A gang that a waiting one could evict.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preemptable {
    /// Its namespace.
    pub namespace: String,
    /// Its PodGroup, or the pod's own name for a gang of one.
    pub group: String,
    /// How many of its members would have to go.
    pub members: usize,
    /// By which right, in a word: `Preempted`, `Reclaimed`.
    pub why: String,
}

/// How many gangs are named in words.
const NAMED_MAX: usize = 8;

/// Whom a gang could evict, in words, as the CLI, the API and the UI show it; nothing for nobody.
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

/// Why one gang is not running, and what would change that.
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
    /// Members for which there would be room now.
    pub members_placed_possible: usize,
    /// Since when it waits.
    pub since: Option<Timestamp>,
    /// What keeps it.
    pub verdict: Verdict,
    /// What binds, in a sentence.
    pub binding: String,
    /// What would make it fit, in a sentence.
    pub would_fit: String,
    /// Nodes looked at.
    pub nodes: usize,
    /// Why nodes were left out, most frequent first.
    pub per_reason: Vec<ReasonCount>,
    /// Gangs before it in its queue.
    pub ahead: usize,
    /// Its tasks.
    pub tasks: Vec<TaskReport>,
    /// When it may start, where that can be told.
    pub estimate: Option<Estimate>,
    /// Why nobody is evicted for it, in a sentence; empty where that was not asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evictions: String,
}

impl PlacementReport {
    /// One line, as kube-scheduler writes it: `0/2 nodes are available: 2 Insufficient nvidia.com/gpu.`
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

    /// Nodes refused, when each node is counted under one reason; never more than there are.
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
            verdict: Verdict::QueueClosed,
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
