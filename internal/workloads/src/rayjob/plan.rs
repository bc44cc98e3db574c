//! Reads a RayJob's spec: sets KubeRay's defaults, and refuses an invalid spec with its field. All later code works on a
//! [`ParsedRayJob`].

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::{RayJob, RayJobSpec};
use resources::names;

use crate::pod_names;
use crate::ray::MANAGED_BY;

/// The submission mode in which the user submits the program.
const INTERACTIVE: &str = "InteractiveMode";
/// The submission mode in which a Job submits the program.
const BY_A_JOB: &str = "K8sJobMode";

/// Why a job cannot run: the field and its accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidRayJob {
    #[error("spec.submissionMode: {mode:?}: use K8sJobMode or InteractiveMode")]
    Mode { mode: String },
    #[error("spec.rayClusterSpec: give it, or name an existing cluster in clusterSelector")]
    NoCluster,
    #[error("spec.entrypoint: give the command that the cluster's head runs")]
    NoEntrypoint,
}

/// A job's parsed spec.
pub(crate) struct ParsedRayJob<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a RayJobSpec,
    /// The existing cluster that the job runs on; absent if it has its own.
    pub(crate) selected: Option<&'a str>,
    /// True if the user submits the program.
    pub(crate) interactive: bool,
    /// Attempts after the first.
    pub(crate) retries: i32,
}

impl<'a> ParsedRayJob<'a> {
    /// Reads the spec, or returns the invalid field.
    pub(crate) fn of(job: &'a RayJob) -> Result<ParsedRayJob<'a>, InvalidRayJob> {
        let spec = &job.spec;
        let selector = spec.cluster_selector.as_ref();
        let selected = selector.and_then(|all| all.get(names::RAY_CLUSTER));
        let mode = spec.submission_mode.as_deref().unwrap_or(BY_A_JOB);
        if ![BY_A_JOB, INTERACTIVE].contains(&mode) {
            let mode = mode.to_owned();
            return Err(InvalidRayJob::Mode { mode });
        }
        let interactive = mode == INTERACTIVE;
        if selected.is_none() && spec.ray_cluster_spec.is_none() {
            return Err(InvalidRayJob::NoCluster);
        }
        let entrypoint = spec.entrypoint.as_deref().unwrap_or_default();
        if entrypoint.is_empty() && !interactive {
            return Err(InvalidRayJob::NoEntrypoint);
        }
        Ok(ParsedRayJob {
            meta: &job.metadata,
            spec,
            selected: selected.map(String::as_str),
            interactive,
            retries: spec.backoff_limit.unwrap_or(0),
        })
    }

    pub(crate) fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// A name for an attempt that begins now, unlike those of earlier attempts.
    pub(crate) fn attempt_name(&self, failed: i32, now: Timestamp) -> String {
        let number = now.as_second().wrapping_add(i64::from(failed));
        let number = u32::try_from(number & i64::from(u32::MAX)).unwrap_or_default();
        let uid = self.meta.uid.as_deref().unwrap_or_default();
        pod_names::numbered(self.name(), "", uid, number)
    }

    /// The job's name in Ray that the spec or, in InteractiveMode, the user's annotation has.
    pub(crate) fn given_id(&self) -> Option<&'a str> {
        let annotations = self.meta.annotations.as_ref();
        let noted = annotations.and_then(|all| all.get(names::RAY_SUBMISSION_ID));
        let noted = noted.filter(|_| self.interactive);
        let given = noted.or(self.spec.job_id.as_ref());
        given.map(String::as_str).filter(|id| !id.is_empty())
    }
}

/// Whether `managedBy` names another controller for this job.
pub(crate) fn managed_elsewhere(job: &RayJob) -> bool {
    let manager = job.spec.managed_by.as_deref();
    manager.is_some_and(|manager| manager != MANAGED_BY)
}
