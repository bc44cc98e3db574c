//! What was decided on a gang, kept for later questions: data and its words. Who keeps it, and how
//! much of it, is the scheduler's shell.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::report::{Estimate, PlacementReport, Verdict};

/// What kind of decision it was. The words are those of `muster simulate`'s decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    /// It waits, for the reason given.
    #[default]
    Pending,
    /// Members were given nodes.
    Bound,
    /// Room is held for members until others have left it.
    Nominated,
    /// Room is planned for members from a time on.
    Reserved,
    /// Members were evicted.
    Evicted,
    /// Members of others were evicted for it.
    Evicts,
    /// The API refused what was decided.
    Refused,
}

impl Decision {
    /// Does it hold until another is taken?
    #[must_use]
    pub fn lasts(self) -> bool {
        matches!(
            self,
            Decision::Pending | Decision::Nominated | Decision::Reserved
        )
    }

    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Pending => "pending",
            Decision::Bound => "bound",
            Decision::Nominated => "nominated",
            Decision::Reserved => "reserved",
            Decision::Evicted => "evicted",
            Decision::Evicts => "evicts",
            Decision::Refused => "refused",
        }
    }
}

/// A pod and the node that the decision is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spot {
    /// The pod's name.
    pub pod: String,
    /// The node's name.
    pub node: String,
}

/// How many pods one record names.
pub const SPOTS_MAX: usize = 16;

/// One decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// When it fell.
    pub at: Timestamp,
    /// Until when it was said again, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What kind it is.
    pub decision: Decision,
    /// What keeps it, where it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// What was decided, in a sentence.
    pub sentence: String,
    /// What binds, where it waits; as last said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub binding: String,
    /// What would make it fit, where it waits; as last said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub would_fit: String,
    /// Why nobody was evicted for it; as last said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evictions: String,
    /// When it was first expected to start, where that could be told: what came of it is below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_estimate: Option<Estimate>,
    /// When it was last expected to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// The pods that it is about, at most [`SPOTS_MAX`] of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Spot>,
    /// How many pods it is about.
    #[serde(skip_serializing_if = "is_none")]
    pub count: usize,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

impl Record {
    /// That a gang waits.
    #[must_use]
    pub fn pending(report: &PlacementReport, at: Timestamp) -> Record {
        Record {
            at,
            verdict: Some(report.verdict),
            sentence: report.sentence(),
            binding: report.binding.clone(),
            would_fit: report.would_fit.clone(),
            evictions: report.evictions.clone(),
            first_estimate: report.estimate,
            estimate: report.estimate,
            ..Record::default()
        }
    }

    /// All that it says, in one line, as the CLI and the pages show it.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = self.sentence.clone();
        let mut add = |label: &str, value: &str| {
            if !value.is_empty() {
                let dot = if words.ends_with('.') { "" } else { "." };
                words.push_str(&format!("{dot} {label}{value}"));
            }
        };
        // A sentence that has nothing else to say is what binds.
        if !self.sentence.contains(&self.binding) {
            add("What binds: ", &self.binding);
        }
        add("What would fit: ", &self.would_fit);
        add("", &self.evictions);
        if let Some(estimate) = &self.estimate {
            add("May start ", &estimate.words());
        }
        if let Some(first) = self
            .first_estimate
            .filter(|_| self.first_estimate != self.estimate)
        {
            add("At first: ", &first.words());
        }
        words
    }

    /// Takes in a later one if it says the same again, in whatever words: waiting for the same
    /// reason, or room held or planned. False if it is another decision.
    pub fn goes_on(&mut self, later: &Record) -> bool {
        let same = self.decision == later.decision && self.verdict == later.verdict;
        if !same || !self.decision.lasts() {
            return false;
        }
        let (at, first_estimate) = (self.at, self.first_estimate.or(later.first_estimate));
        *self = Record {
            at,
            until: Some(later.until.unwrap_or(later.at)),
            first_estimate,
            ..later.clone()
        };
        true
    }
}

/// Pods in words: the first of them by name, and how many more.
#[must_use]
pub fn spots_words(spots: &[Spot], count: usize) -> String {
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

    fn waits(verdict: Verdict, binding: &str, second: i64) -> Record {
        let report = PlacementReport {
            verdict,
            binding: binding.to_owned(),
            ..PlacementReport::default()
        };
        Record::pending(&report, Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn waiting_for_the_same_is_one_record_in_its_latest_words() {
        let mut first = waits(Verdict::InsufficientResources, "3 free", 1);
        assert!(first.goes_on(&waits(Verdict::InsufficientResources, "2 free", 5)));
        assert_eq!(first.binding, "2 free");
        assert_eq!(first.at.as_second(), 1);
        assert_eq!(first.until.unwrap().as_second(), 5);
        assert!(!first.goes_on(&waits(Verdict::QuotaExceeded, "2 free", 6)));
    }

    #[test]
    fn a_record_survives_its_json_and_leaves_out_what_it_does_not_have() {
        let record = waits(Verdict::Waiting, "x", 1);
        let text = serde_json::to_string(&record).unwrap();
        assert!(
            !text.contains("count") && text.contains("\"decision\":\"pending\""),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
