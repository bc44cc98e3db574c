//! The count of a Job's ended pods. Every pod has its own number, its attempt. The job's annotation
//! records the outcome of each ended attempt, so that an end counts once and stays counted when its
//! pod is gone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use super::failure_policy::{self, FailedPodEffect};
use super::indexes::Indexes;
use super::plan::ParsedJob;
use super::pods::{attempt_of, index_of};
use crate::pod_facts::{self, PodPhase};

/// The annotation on a Job that holds its ended attempts.
pub const ATTEMPTS: &str = resources::names::ATTEMPTS;

/// The annotation's form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TallyAnnotation {
    #[serde(skip_serializing_if = "String::is_empty")]
    succeeded: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    failed: String,
    /// Failures by index, if the limit is per index.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<u32, u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    failed_indexes: String,
}

/// The outcomes of a Job's attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttemptTally {
    succeeded: Indexes,
    failed: Indexes,
    failures: BTreeMap<u32, u32>,
    pub(crate) completed_indexes: Indexes,
    pub(crate) failed_indexes: Indexes,
    /// Why a failed pod fails the whole job, if one does.
    pub(crate) fails_job: Option<String>,
}

impl AttemptTally {
    /// Reads the stored counts and adds the observed pods.
    pub(crate) fn of(plan: &ParsedJob<'_>, completed: Option<&str>, pods: &[&Pod]) -> AttemptTally {
        let mut tally = AttemptTally::read(plan, completed);
        for pod in pods {
            let Some(attempt) = attempt_of(pod) else {
                continue;
            };
            match PodPhase::of(pod) {
                PodPhase::Succeeded => tally.succeed(plan, attempt, index_of(pod)),
                PodPhase::Failed => tally.fail(plan, attempt, pod),
                PodPhase::Pending | PodPhase::Running => {}
            }
        }
        tally
    }

    pub(crate) fn read(plan: &ParsedJob<'_>, completed: Option<&str>) -> AttemptTally {
        let annotations = plan.meta.annotations.as_ref();
        let text = annotations.and_then(|annotations| annotations.get(ATTEMPTS));
        let written: TallyAnnotation = text
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let mut completed_indexes = Indexes::default();
        if plan.indexed {
            completed_indexes = Indexes::parse(completed.unwrap_or_default());
            completed_indexes.truncate(plan.completions.unwrap_or_default());
        }
        AttemptTally {
            succeeded: Indexes::parse(&written.succeeded),
            failed: Indexes::parse(&written.failed),
            failures: written.failures,
            completed_indexes,
            failed_indexes: Indexes::parse(&written.failed_indexes),
            fails_job: None,
        }
    }

    fn succeed(&mut self, plan: &ParsedJob<'_>, attempt: u32, index: Option<u32>) {
        self.succeeded.insert(attempt);
        if let Some(index) = index
            && plan.indexed
            && index < plan.completions.unwrap_or_default()
        {
            self.completed_indexes.insert(index);
        }
    }

    fn fail(&mut self, plan: &ParsedJob<'_>, attempt: u32, pod: &Pod) {
        // A pod with a deletion request fails because of it; that does not count against the job.
        if self.failed.contains(attempt) || pod_facts::is_leaving(pod) {
            return;
        }
        let meaning = failure_policy::judge(plan, pod);
        match &meaning {
            FailedPodEffect::Ignored => return,
            FailedPodEffect::FailsJob(why) => {
                self.fails_job.get_or_insert_with(|| why.clone());
            }
            FailedPodEffect::Counts | FailedPodEffect::FailsIndex => {}
        }
        self.failed.insert(attempt);
        let (Some(index), Some(limit)) = (index_of(pod), plan.backoff_limit_per_index) else {
            return;
        };
        let failures = self.failures.entry(index).or_default();
        *failures = failures.saturating_add(1);
        if meaning == FailedPodEffect::FailsIndex || *failures > limit {
            self.failed_indexes.insert(index);
        }
    }

    /// The annotation's text; empty if no attempt has ended.
    pub(crate) fn write(&self) -> String {
        let written = TallyAnnotation {
            succeeded: self.succeeded.to_string(),
            failed: self.failed.to_string(),
            failures: self.failures.clone(),
            failed_indexes: self.failed_indexes.to_string(),
        };
        if written == TallyAnnotation::default() {
            return String::new();
        }
        serde_json::to_string(&written).expect("texts and maps with number keys serialize")
    }

    /// How many successes count towards completion.
    pub(crate) fn successes(&self, plan: &ParsedJob<'_>) -> u32 {
        if plan.indexed {
            self.completed_indexes.len()
        } else {
            self.succeeded.len()
        }
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failed.len()
    }

    pub(crate) fn failures_of(&self, index: u32) -> u32 {
        self.failures.get(&index).copied().unwrap_or_default()
    }

    /// The used attempts: those of ended pods and of present ones.
    pub(crate) fn used_attempts(&self, pods: &[&Pod]) -> Indexes {
        let mut used: Indexes = pods.iter().filter_map(|pod| attempt_of(pod)).collect();
        used.insert_all(&self.succeeded);
        used.insert_all(&self.failed);
        used
    }
}
