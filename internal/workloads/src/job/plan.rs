//! Reads a Job's spec, with Kubernetes' defaults.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The `managedBy` value for which this controller works, as it does if the field is absent.
const MANAGED_BY: &str = "kubernetes.io/job-controller";
/// `backoffLimit` if the spec has none.
const DEFAULT_BACKOFF_LIMIT: u32 = 6;

/// A Job's parsed spec.
pub(crate) struct ParsedJob<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a JobSpec,
    pub(crate) parallelism: u32,
    pub(crate) completions: Option<u32>,
    pub(crate) indexed: bool,
    pub(crate) backoff_limit: u32,
    /// The failures allowed per index, if the limit is per index.
    pub(crate) backoff_limit_per_index: Option<u32>,
}

impl<'a> ParsedJob<'a> {
    /// `None` if there is nothing to run.
    pub(crate) fn of(job: &'a Job) -> Option<ParsedJob<'a>> {
        let spec = job.spec.as_ref()?;
        let indexed = spec.completion_mode.as_deref() == Some("Indexed");
        // Without either field both are one; an Indexed Job always sets its completions.
        let neither = spec.completions.is_none() && spec.parallelism.is_none();
        let completions = count(spec.completions).or((neither || indexed).then_some(1));
        let per_index = count(spec.backoff_limit_per_index).filter(|_| indexed);
        let default_limit = if per_index.is_some() {
            u32::MAX
        } else {
            DEFAULT_BACKOFF_LIMIT
        };
        Some(ParsedJob {
            meta: &job.metadata,
            spec,
            parallelism: count(spec.parallelism).unwrap_or(1),
            completions,
            indexed,
            backoff_limit: count(spec.backoff_limit).unwrap_or(default_limit),
            backoff_limit_per_index: per_index,
        })
    }

    pub(crate) fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether the node restarts containers, which counts as failures.
    pub(crate) fn restarts_in_place(&self) -> bool {
        let pod = self.spec.template.spec.as_ref();
        pod.and_then(|pod| pod.restart_policy.as_deref()) == Some("OnFailure")
    }

    /// Whether a terminating pod keeps its slot until it has ended.
    pub(crate) fn waits_for_stopping(&self) -> bool {
        match self.spec.pod_replacement_policy.as_deref() {
            Some(policy) => policy == "Failed",
            None => self.spec.pod_failure_policy.is_some(),
        }
    }
}

/// Whether `managedBy` names another controller for this job.
pub(crate) fn managed_elsewhere(job: &Job) -> bool {
    let manager = job
        .spec
        .as_ref()
        .and_then(|spec| spec.managed_by.as_deref());
    manager.is_some_and(|manager| manager != MANAGED_BY)
}

fn count(number: Option<i32>) -> Option<u32> {
    number.map(|number| u32::try_from(number).unwrap_or_default())
}
