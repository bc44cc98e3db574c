//! Reads a RayJob's spec: sets KubeRay's defaults, and refuses an invalid spec with its field. All later code works on a
//! [`ParsedRayJob`].

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::{RayJob, RayJobSpec};
use resources::{names, ray_program};
use serde_json::Value;

use crate::pod_names;
use crate::ray::MANAGED_BY;

/// What submits the program: `spec.submissionMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmissionMode {
    /// A Job.
    K8sJob,
    /// The server, by Ray's REST API.
    Http,
    /// A container of the head's pod.
    Sidecar,
    /// The user.
    Interactive,
}

impl SubmissionMode {
    fn of(text: Option<&str>) -> Option<SubmissionMode> {
        match text.unwrap_or("K8sJobMode") {
            "K8sJobMode" => Some(SubmissionMode::K8sJob),
            "HTTPMode" => Some(SubmissionMode::Http),
            "SidecarMode" => Some(SubmissionMode::Sidecar),
            "InteractiveMode" => Some(SubmissionMode::Interactive),
            _ => None,
        }
    }
}

/// Why a job cannot run: the field and its accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidRayJob {
    #[error(
        "spec.submissionMode: {mode:?}: use K8sJobMode, HTTPMode, SidecarMode or InteractiveMode"
    )]
    Mode { mode: String },
    #[error("spec.rayClusterSpec: give it, or name an existing cluster in clusterSelector")]
    NoCluster,
    #[error("spec.entrypoint: give the command that the cluster's head runs")]
    NoEntrypoint,
    #[error("spec.jobId: {id:?}: in HTTPMode use letters, digits, '-', '_' and '.' only")]
    Id { id: String },
    #[error("spec.runtimeEnvYAML: {0}")]
    RuntimeEnv(ray_program::InvalidRuntimeEnv),
    #[error(
        "spec.clusterSelector: SidecarMode needs a cluster of the job's own: give rayClusterSpec, or use HTTPMode"
    )]
    SidecarSelects,
    #[error("spec.rayClusterSpec.headGroupSpec.template: in SidecarMode give the head's pod")]
    SidecarHead,
}

/// A job's parsed spec.
pub(crate) struct ParsedRayJob<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) spec: &'a RayJobSpec,
    /// The existing cluster that the job runs on; absent if it has its own.
    pub(crate) selected: Option<&'a str>,
    pub(crate) mode: SubmissionMode,
    /// The runtime environment as JSON, in HTTPMode.
    pub(crate) runtime_env: Option<Value>,
    /// Attempts after the first.
    pub(crate) retries: i32,
}

impl<'a> ParsedRayJob<'a> {
    /// Reads the spec, or returns the invalid field.
    pub(crate) fn of(job: &'a RayJob) -> Result<ParsedRayJob<'a>, InvalidRayJob> {
        let spec = &job.spec;
        let selector = spec.cluster_selector.as_ref();
        let selected = selector.and_then(|all| all.get(names::RAY_CLUSTER));
        let given = spec.submission_mode.as_deref();
        let mode = SubmissionMode::of(given).ok_or_else(|| InvalidRayJob::Mode {
            mode: given.unwrap_or_default().to_owned(),
        })?;
        if selected.is_none() && spec.ray_cluster_spec.is_none() {
            return Err(InvalidRayJob::NoCluster);
        }
        let entrypoint = spec.entrypoint.as_deref().unwrap_or_default();
        if entrypoint.is_empty() && mode != SubmissionMode::Interactive {
            return Err(InvalidRayJob::NoEntrypoint);
        }
        if mode == SubmissionMode::Sidecar {
            check_sidecar(spec, selected.is_some())?;
        }
        let runtime_env = match mode {
            SubmissionMode::Http => Some(check_http(spec)?),
            _ => None,
        };
        Ok(ParsedRayJob {
            meta: &job.metadata,
            spec,
            selected: selected.map(String::as_str),
            mode,
            runtime_env,
            retries: spec.backoff_limit.unwrap_or(0),
        })
    }

    pub(crate) fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn is_interactive(&self) -> bool {
        self.mode == SubmissionMode::Interactive
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
        let noted = noted.filter(|_| self.is_interactive());
        let given = noted.or(self.spec.job_id.as_ref());
        given.map(String::as_str).filter(|id| !id.is_empty())
    }
}

/// What a container of the head submits to: the head of the job's own cluster, with a template of its own.
fn check_sidecar(spec: &RayJobSpec, selects: bool) -> Result<(), InvalidRayJob> {
    if selects {
        return Err(InvalidRayJob::SidecarSelects);
    }
    let cluster = spec.ray_cluster_spec.as_ref();
    let head = cluster.and_then(|cluster| cluster.head_group_spec.template.as_ref());
    let pod = head.and_then(|template| template.spec.as_ref());
    match pod.is_some_and(|pod| !pod.containers.is_empty()) {
        true => Ok(()),
        false => Err(InvalidRayJob::SidecarHead),
    }
}

/// What the server submits: the name must be a part of an address, and the runtime environment an object. Returns the
/// latter.
fn check_http(spec: &RayJobSpec) -> Result<Value, InvalidRayJob> {
    let id = spec.job_id.as_deref().unwrap_or_default();
    if !id.is_empty() && !ray_program::is_id(id) {
        return Err(InvalidRayJob::Id { id: id.to_owned() });
    }
    let text = spec.runtime_env_yaml.as_deref().unwrap_or_default();
    ray_program::runtime_env(text).map_err(InvalidRayJob::RuntimeEnv)
}

/// Whether `managedBy` names another controller for this job.
pub(crate) fn managed_elsewhere(job: &RayJob) -> bool {
    let manager = job.spec.managed_by.as_deref();
    manager.is_some_and(|manager| manager != MANAGED_BY)
}
