//! Past decisions about a gang, for later questions: data and its text. The shell of the scheduler
//! stores the records and bounds their number.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::report::{Estimate, PlacementReport, WaitReason};

/// The kind of a decision, in the terms of `muster simulate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DecisionKind {
    /// It waits, for the reason given.
    #[default]
    Pending,
    /// Members were given nodes.
    Bound,
    /// Room is nominated for members until the victims have left it.
    Nominated,
    /// Room is reserved for members from a time on.
    Reserved,
    /// Members were evicted.
    Evicted,
    /// Members of other gangs were evicted for it.
    Evicts,
    /// The API refused the decision.
    Refused,
}

impl DecisionKind {
    /// True if the decision holds until another one replaces it.
    #[must_use]
    pub fn lasts(self) -> bool {
        matches!(
            self,
            DecisionKind::Pending | DecisionKind::Nominated | DecisionKind::Reserved
        )
    }

    /// The decision as one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            DecisionKind::Pending => "pending",
            DecisionKind::Bound => "bound",
            DecisionKind::Nominated => "nominated",
            DecisionKind::Reserved => "reserved",
            DecisionKind::Evicted => "evicted",
            DecisionKind::Evicts => "evicts",
            DecisionKind::Refused => "refused",
        }
    }
}

/// A pod and the node that the decision is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOnNode {
    /// The pod's name.
    pub pod: String,
    /// The node's name.
    pub node: String,
}

/// The most pods that one record names.
pub const PODS_MAX: usize = 16;

/// One decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionRecord {
    /// When it was made.
    pub at: Timestamp,
    /// When it was last repeated, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The kind of decision.
    pub decision: DecisionKind,
    /// Why the gang waits, if it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<WaitReason>,
    /// The decision in a sentence.
    pub sentence: String,
    /// The binding constraint, if it waits; as last reported.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub binding: String,
    /// What would make it fit, if it waits; as last reported.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub would_fit: String,
    /// Why no gang was evicted for it; as last reported.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evictions: String,
    /// The first estimate of its start, if there was one; `estimate` is the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_estimate: Option<Estimate>,
    /// The last estimate of its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// The pods of the decision, at most [`PODS_MAX`] of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodOnNode>,
    /// The number of pods of the decision.
    #[serde(skip_serializing_if = "is_none")]
    pub count: usize,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

impl DecisionRecord {
    /// The record of a waiting gang.
    #[must_use]
    pub fn pending(report: &PlacementReport, at: Timestamp) -> DecisionRecord {
        DecisionRecord {
            at,
            verdict: Some(report.verdict),
            sentence: report.sentence(),
            binding: report.binding.clone(),
            would_fit: report.would_fit.clone(),
            evictions: report.evictions.clone(),
            first_estimate: report.estimate,
            estimate: report.estimate,
            ..DecisionRecord::default()
        }
    }

    /// The record in one line, as the CLI and the web pages show it.
    #[must_use]
    pub fn message(&self) -> String {
        let mut words = self.sentence.clone();
        let mut add = |label: &str, value: &str| {
            if !value.is_empty() {
                let dot = if words.ends_with('.') { "" } else { "." };
                words.push_str(&format!("{dot} {label}{value}"));
            }
        };
        // A sentence without other content is the binding constraint itself.
        if !self.sentence.contains(&self.binding) {
            add("What binds: ", &self.binding);
        }
        add("What would fit: ", &self.would_fit);
        add("", &self.evictions);
        if let Some(estimate) = &self.estimate {
            add("May start ", &estimate.message());
        }
        if let Some(first) = self
            .first_estimate
            .filter(|_| self.first_estimate != self.estimate)
        {
            add("At first: ", &first.message());
        }
        words
    }

    /// Merges a later record if it repeats this decision, in any wording: the gang waits for the
    /// same reason, or its room is still nominated or reserved. Returns false if it is another
    /// decision.
    pub fn goes_on(&mut self, later: &DecisionRecord) -> bool {
        let same = self.decision == later.decision && self.verdict == later.verdict;
        if !same || !self.decision.lasts() {
            return false;
        }
        let (at, first_estimate) = (self.at, self.first_estimate.or(later.first_estimate));
        *self = DecisionRecord {
            at,
            until: Some(later.until.unwrap_or(later.at)),
            first_estimate,
            ..later.clone()
        };
        true
    }
}

/// Pods as text: the first ones by name, and the number of the others.
#[must_use]
pub fn pods_words(spots: &[PodOnNode], count: usize) -> String {
    let named: Vec<String> = spots
        .iter()
        .map(|spot| format!("{} on {}", spot.pod, spot.node))
        .collect();
    let mut words = named.join(", ");
    if count > spots.len() {
        words.push_str(&format!(" and {} more", count - spots.len()));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(verdict: WaitReason, binding: &str, second: i64) -> DecisionRecord {
        let report = PlacementReport {
            verdict,
            binding: binding.to_owned(),
            ..PlacementReport::default()
        };
        DecisionRecord::pending(&report, Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn waiting_for_the_same_is_one_record_in_its_latest_words() {
        let mut first = waits(WaitReason::InsufficientResources, "3 free", 1);
        assert!(first.goes_on(&waits(WaitReason::InsufficientResources, "2 free", 5)));
        assert_eq!(first.binding, "2 free");
        assert_eq!(first.at.as_second(), 1);
        assert_eq!(first.until.unwrap().as_second(), 5);
        assert!(!first.goes_on(&waits(WaitReason::QuotaExceeded, "2 free", 6)));
    }

    #[test]
    fn a_record_survives_its_json_and_leaves_out_what_it_does_not_have() {
        let record = waits(WaitReason::Waiting, "x", 1);
        let text = serde_json::to_string(&record).unwrap();
        assert!(
            !text.contains("count") && text.contains("\"decision\":\"pending\""),
            "{text}"
        );
        assert_eq!(
            serde_json::from_str::<DecisionRecord>(&text).unwrap(),
            record
        );
    }
}
