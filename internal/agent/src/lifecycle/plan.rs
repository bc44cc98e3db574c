//! The fields of a pod's spec that control its lifecycle. Owns their parsing; decides nothing.

use k8s_openapi::api::core::v1::{Container, Pod};

/// Kubernetes' default for spec.terminationGracePeriodSeconds.
pub const DEFAULT_GRACE_SECONDS: u32 = 30;

/// When ended containers are restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodRestartPolicy {
    /// After any exit code.
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Never.
    Never,
}

impl PodRestartPolicy {
    /// Whether a container that ended with `code` is restarted.
    pub fn restarts(self, code: i32) -> bool {
        match self {
            PodRestartPolicy::Always => true,
            PodRestartPolicy::OnFailure => code != 0,
            PodRestartPolicy::Never => false,
        }
    }
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlan {
    /// Its name.
    pub name: String,
    /// Its image; empty for a process.
    pub image: String,
    /// Whether it is an init container that runs beside the others (restartPolicy Always).
    pub sidecar: bool,
    /// Whether it counts as started only after its startup probe succeeds.
    pub startup_probe: bool,
    /// Whether it counts as ready only while its readiness probe succeeds.
    pub readiness_probe: bool,
    /// Grace period when a probe kills it, if it differs from the pod's.
    pub probe_grace: Option<u32>,
}

/// One pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPlan {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Containers that run before the others, in order.
    pub init: Vec<ContainerPlan>,
    /// The containers.
    pub main: Vec<ContainerPlan>,
    /// Its restart policy.
    pub restart: PodRestartPolicy,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace: u32,
    /// Seconds that it may be active.
    pub active_deadline: Option<i64>,
}

impl PodPlan {
    /// Reads a pod.
    pub fn of(pod: &Pod) -> PodPlan {
        let spec = pod.spec.as_ref();
        let restart = match spec.and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => PodRestartPolicy::Never,
            Some("OnFailure") => PodRestartPolicy::OnFailure,
            _ => PodRestartPolicy::Always,
        };
        let init = spec.and_then(|spec| spec.init_containers.as_ref());
        PodPlan {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            init: init.into_iter().flatten().map(ContainerPlan::of).collect(),
            main: spec
                .map(|spec| &spec.containers)
                .into_iter()
                .flatten()
                .map(ContainerPlan::of)
                .collect(),
            restart,
            grace: spec
                .and_then(|spec| spec.termination_grace_period_seconds)
                .map_or(DEFAULT_GRACE_SECONDS, seconds),
            active_deadline: spec.and_then(|spec| spec.active_deadline_seconds),
        }
    }

    /// Every container, init containers first.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &ContainerPlan> {
        self.init.iter().chain(&self.main)
    }

    /// A container by its name.
    pub fn container(&self, name: &str) -> Option<&ContainerPlan> {
        self.all().find(|container| container.name == name)
    }
}

impl ContainerPlan {
    fn of(container: &Container) -> ContainerPlan {
        let probe_grace = [&container.liveness_probe, &container.startup_probe]
            .into_iter()
            .flatten()
            .find_map(|probe| probe.termination_grace_period_seconds);
        ContainerPlan {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            sidecar: container.restart_policy.as_deref() == Some("Always"),
            startup_probe: container.startup_probe.is_some(),
            readiness_probe: container.readiness_probe.is_some(),
            probe_grace: probe_grace.map(seconds),
        }
    }
}

fn seconds(seconds: i64) -> u32 {
    u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
}
