//! SidecarMode: a container of the head's pod submits the program and follows it. The head is not started anew, so that
//! the program is submitted once; the container's exit code is the program's.

use k8s_openapi::api::core::v1::Pod;
use resources::kinds::RayCluster;

use super::objects::{CONTAINER, NOT_THE_PROGRAMS};
use super::{Decision, ProgramEnd, failed_with, head_run, name};
use crate::pod_facts;
use crate::ray::HEAD_POD_READY;

/// The reasons of a cluster whose head is not ready, and will not be.
const WITHOUT_HEAD: [&str; 2] = ["HeadPodNotFound", "HeadPodEnded"];

impl Decision<'_> {
    /// Judges a job whose cluster is not ready yet: the program may end before the workers are there. Returns whether
    /// the attempt is over.
    pub(super) fn is_over_before_ready(&mut self) -> bool {
        let cluster = self.usable();
        if self.outcome.status.head_run.is_none() {
            let started = cluster.and_then(started_run);
            self.outcome.status.head_run = started.map(str::to_owned);
        }
        if self.outcome.status.head_run.is_none() {
            return false;
        }
        if let Some(end) = self.end_of_the_submitter() {
            self.conclude(end);
            return true;
        }
        cluster.is_some_and(|cluster| self.is_head_lost(cluster))
    }

    /// Follows the program by the submitting container.
    pub(super) fn follow_by_the_head(&mut self) {
        if let Some(end) = self.end_of_the_submitter() {
            return self.conclude(end);
        }
        if let Some(cluster) = self.kept_cluster() {
            self.is_head_lost(cluster);
        }
    }

    /// The pod of the head that the program was submitted to.
    fn head(&self) -> Option<&Pod> {
        let run = self.outcome.status.head_run.as_deref()?;
        let uid = run.split('/').next()?;
        let mut pods = self.pods.iter().copied();
        pods.find(|pod| pod_facts::uid(pod) == uid)
    }

    fn end_of_the_submitter(&self) -> Option<ProgramEnd> {
        let mut ends = pod_facts::exit_codes(self.head()?);
        let (_, code) = ends.find(|(container, _)| *container == CONTAINER)?;
        Some(match code {
            0 => ProgramEnd::Succeeded,
            code if NOT_THE_PROGRAMS.contains(&code) => ProgramEnd::Failed {
                reason: "SubmissionFailed",
                message: format!(
                    "The container {CONTAINER} of the head ended with exit code {code} before the program did."
                ),
            },
            code => failed_with(code),
        })
    }

    /// Whether the head that runs the program is gone or another one; then the attempt fails.
    fn is_head_lost(&mut self, cluster: &RayCluster) -> bool {
        let status = cluster.status.as_ref();
        let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
        let gone = conditions.any(|one| {
            one.type_ == HEAD_POD_READY
                && one.status == "False"
                && WITHOUT_HEAD.contains(&one.reason.as_str())
        });
        let run = head_run(cluster);
        let other = run.is_some() && run != self.outcome.status.head_run.as_deref();
        let lost = gone || other || self.head().is_some_and(has_ray_ended);
        if lost {
            let text = format!(
                "The head of RayCluster {} ended, and the program was lost with it.",
                name(cluster)
            );
            self.fail("HeadLost", &text);
        }
        lost
    }
}

/// The run of a head that has started: its node has given it an address.
fn started_run(cluster: &RayCluster) -> Option<&str> {
    let head = cluster.status.as_ref()?.head.as_ref()?;
    head.pod_ip.as_ref()?;
    head.run.as_deref()
}

/// Whether the container that runs Ray has ended: it is the first, and is not started again.
fn has_ray_ended(head: &Pod) -> bool {
    let first = head.spec.as_ref().and_then(|spec| spec.containers.first());
    let name = first.map(|container| container.name.as_str());
    pod_facts::exit_codes(head).any(|(container, _)| Some(container) == name)
}
