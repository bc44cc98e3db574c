//! Why a rank of a job failed, as data: a class, the evidence for it, and the one sentence that conditions, events, the
//! REST API, the CLI and the pages say. Owns the words and the annotation `muster.io/failure` that keeps the record
//! after the pod is gone; `workloads` decides the class from a pod's status.

mod evidence;
mod policy;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use evidence::{LogEvidence, of_log};
pub use policy::{FailureAction, FailureResponseRule, OnFailure, OnFailureError};

use crate::names;

/// What made a rank fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// The program ended with a code of its own, and nothing says why.
    #[default]
    ExitCode,
    /// A Python exception ended the program.
    PythonError,
    /// A signal ended the program.
    Signal,
    /// The program used more memory than its container's limit.
    OutOfMemory,
    /// The pod's GPU reported an error (an XID, an uncorrectable ECC error), or was lost.
    GpuError,
    /// NCCL, gloo or RDMA reported an error: often another rank's end is its cause.
    NetworkError,
    /// The container did not start, for example because its command does not exist.
    StartError,
    /// The container's image cannot be had.
    ImageError,
    /// A volume, or an object that the container needs, cannot be had.
    VolumeError,
    /// The pod's node was lost.
    NodeLost,
    /// The pod's node could not start it for a reason of the node.
    NodeUnfit,
    /// The scheduler took the pod's place for other work.
    Preempted,
    /// The pod was evicted: a drain, a taint, or its node's lack of memory or disk.
    Evicted,
    /// No rank wrote a log line or worked for as long as the job permits (`muster.io/hang-after`).
    Hang,
}

impl FailureClass {
    /// All classes.
    pub const ALL: [FailureClass; 14] = [
        FailureClass::ExitCode,
        FailureClass::PythonError,
        FailureClass::Signal,
        FailureClass::OutOfMemory,
        FailureClass::GpuError,
        FailureClass::NetworkError,
        FailureClass::StartError,
        FailureClass::ImageError,
        FailureClass::VolumeError,
        FailureClass::NodeLost,
        FailureClass::NodeUnfit,
        FailureClass::Preempted,
        FailureClass::Evicted,
        FailureClass::Hang,
    ];

    /// The class in annotations and answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FailureClass::ExitCode => "exit-code",
            FailureClass::PythonError => "python-error",
            FailureClass::Signal => "signal",
            FailureClass::OutOfMemory => "out-of-memory",
            FailureClass::GpuError => "gpu-error",
            FailureClass::NetworkError => "network-error",
            FailureClass::StartError => "start-error",
            FailureClass::ImageError => "image-error",
            FailureClass::VolumeError => "volume-error",
            FailureClass::NodeLost => "node-lost",
            FailureClass::NodeUnfit => "node-unfit",
            FailureClass::Preempted => "preempted",
            FailureClass::Evicted => "evicted",
            FailureClass::Hang => "hang",
        }
    }

    /// Whether the pod has not started and its node tries again by itself.
    #[must_use]
    pub fn is_retried_by_node(self) -> bool {
        matches!(self, FailureClass::ImageError | FailureClass::VolumeError)
    }
}

/// The end of one rank, as the job's controller recorded it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailureRecord {
    /// The class.
    pub class: FailureClass,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid.
    pub uid: String,
    /// Its rank, for kinds whose pods have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Its node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The exit code, if a program ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What happened, as the predicate of a sentence: `exited with code 1`; of a hang, which is of no single rank, the
    /// whole sentence.
    pub what: String,
    /// The evidence: `ValueError: bad shard 17 (train.py line 12, in load)`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evidence: String,
    /// How often a program of this rank failed, this time included.
    pub attempts: u32,
    /// The attempt of the gang that the pod was part of; 0 is the first.
    #[serde(skip_serializing_if = "is_first")]
    pub attempt: u32,
    /// Whether it counts against the job's budget: what the platform did does not.
    pub charged: bool,
    /// What followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<FailureAction>,
    /// When the pod ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

fn is_first(attempt: &u32) -> bool {
    *attempt == 0
}

impl FailureRecord {
    /// The record in a job's annotations.
    #[must_use]
    pub fn read<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<FailureRecord> {
        serde_json::from_str(annotation(names::FAILURE)?).ok()
    }

    /// The annotation's text.
    #[must_use]
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The sentence, without a full stop: `Rank 1 (j-worker-0) exited with code 1 after 2 attempts: ValueError: bad
    /// shard 17 (train.py line 12, in load)`.
    #[must_use]
    pub fn sentence(&self) -> String {
        if self.class == FailureClass::Hang {
            return self.what.clone();
        }
        let who = match self.rank {
            Some(rank) => format!("Rank {rank} ({})", self.pod),
            None => format!("Pod {}", self.pod),
        };
        let mut text = format!("{who} {}", self.what);
        if self.attempts > 1 {
            text.push_str(&format!(" after {} attempts", self.attempts));
        }
        if !self.evidence.is_empty() {
            text.push_str(": ");
            text.push_str(&self.evidence);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_keeps_all_of_its_fields_and_words_one_sentence() {
        let record = FailureRecord {
            class: FailureClass::PythonError,
            pod: "j-worker-0".to_owned(),
            uid: "u".to_owned(),
            rank: Some(1),
            node: "n".to_owned(),
            exit_code: Some(1),
            what: "exited with code 1".to_owned(),
            evidence: "ValueError: bad shard 17".to_owned(),
            attempts: 2,
            attempt: 1,
            charged: true,
            action: Some(FailureAction::RestartGang),
            at: Some(Timestamp::UNIX_EPOCH),
        };
        let text = record.write();
        assert_eq!(
            FailureRecord::read(|_| Some(text.as_str())),
            Some(record.clone())
        );
        assert!(
            text.contains(r#""class":"python-error""#)
                && text.contains(r#""action":"restart-gang""#)
        );
        assert_eq!(
            record.sentence(),
            "Rank 1 (j-worker-0) exited with code 1 after 2 attempts: ValueError: bad shard 17"
        );
        let alone = FailureRecord {
            rank: None,
            evidence: String::new(),
            attempts: 1,
            ..record
        };
        assert_eq!(alone.sentence(), "Pod j-worker-0 exited with code 1");
        let hung = FailureRecord {
            class: FailureClass::Hang,
            what: "No rank has written a log line".to_owned(),
            ..alone
        };
        assert_eq!(hung.sentence(), "No rank has written a log line");
    }

    #[test]
    fn a_class_is_written_as_it_is_named() {
        for class in FailureClass::ALL {
            let written = serde_json::to_string(&class).unwrap();
            assert_eq!(written, format!("{:?}", class.as_str()));
        }
    }
}
