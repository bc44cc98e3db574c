//! The Jobs of a JobSet: those of the present run by name, and those of earlier runs. A run is told by the labels with
//! the numbers of restarts.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::jobset;
use resources::kinds::JobSetStatus;
use resources::names;

use super::plan::{ParsedJobSet, ParsedReplicatedJob};
use crate::ownership::{controlled_by, controller};
use crate::pod_facts::PodPhase;

/// How a Job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChildEnd<'a> {
    Complete,
    Failed {
        reason: &'a str,
        message: &'a str,
        at: Option<Timestamp>,
    },
}

/// A Job of the present run.
#[derive(Clone, Copy)]
pub(crate) struct Child<'a> {
    pub(crate) job: &'a Job,
    pub(crate) replicated_job: &'a str,
    pub(crate) index: u32,
}

impl<'a> Child<'a> {
    pub(crate) fn name(&self) -> &'a str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn end(&self) -> Option<ChildEnd<'a>> {
        let conditions = self.job.status.as_ref()?.conditions.as_deref()?;
        let holds = |type_: &str| {
            let mut all = conditions.iter();
            all.find(|known| known.type_ == type_ && known.status == "True")
        };
        if let Some(failed) = holds("Failed") {
            return Some(ChildEnd::Failed {
                reason: failed.reason.as_deref().unwrap_or_default(),
                message: failed.message.as_deref().unwrap_or_default(),
                at: failed.last_transition_time.as_ref().map(|time| time.0),
            });
        }
        holds("Complete").map(|_| ChildEnd::Complete)
    }

    pub(crate) fn is_suspended(&self) -> bool {
        let spec = self.job.spec.as_ref();
        spec.and_then(|spec| spec.suspend) == Some(true)
    }

    /// Whether all its pods are ready or have succeeded.
    pub(crate) fn is_ready(&self, at_once: u32) -> bool {
        let status = self.job.status.as_ref();
        let count = |number: Option<i32>| u32::try_from(number.unwrap_or(0)).unwrap_or_default();
        status.is_some_and(|status| {
            count(status.ready).saturating_add(count(status.succeeded)) >= at_once
        })
    }

    /// Whether a pod of it waits or runs.
    pub(crate) fn is_active(&self) -> bool {
        let active = self.job.status.as_ref().and_then(|status| status.active);
        active.is_some_and(|active| active > 0)
    }
}

/// The Jobs of a JobSet.
pub(crate) struct Children<'a> {
    /// Those of the present run, by name.
    pub(crate) current: BTreeMap<&'a str, Child<'a>>,
    /// Those of earlier runs.
    pub(crate) previous: Vec<&'a Job>,
    /// Pods that still run and belong to none of the present Jobs.
    leftovers: Vec<&'a Pod>,
}

/// A number in a label.
pub(crate) fn number(meta: &ObjectMeta, label: &str) -> Option<u32> {
    meta.labels.as_ref()?.get(label)?.parse().ok()
}

/// How often one Job alone was recreated.
pub(crate) fn job_restarts(status: &JobSetStatus, replicated_job: &str, index: u32) -> u32 {
    let mut all = status.replicated_jobs_status.iter();
    let counts = all
        .find(|one| one.name == replicated_job)
        .and_then(|one| one.job_restarts.as_ref());
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let restarts = counts.and_then(|counts| counts.get(index)).copied();
    u32::try_from(restarts.unwrap_or(0)).unwrap_or_default()
}

impl<'a> Children<'a> {
    pub(crate) fn of(
        plan: &ParsedJobSet<'a>,
        status: &JobSetStatus,
        jobs: &[&'a Job],
        pods: &[&'a Pod],
    ) -> Children<'a> {
        let mut children = Children {
            current: BTreeMap::new(),
            previous: Vec::new(),
            leftovers: Vec::new(),
        };
        let restarts = u32::try_from(status.restarts).unwrap_or_default();
        for job in jobs.iter().copied() {
            let meta = &job.metadata;
            if !controlled_by(meta, plan.meta) {
                continue;
            }
            let labels = meta.labels.as_ref();
            let name = labels.and_then(|labels| labels.get(jobset::REPLICATED_JOB));
            let of = name.and_then(|name| plan.job(name));
            let index = number(meta, jobset::JOB_INDEX);
            let present = number(meta, jobset::RESTART_ATTEMPT) == Some(restarts);
            let child = of.zip(index).filter(|(of, index)| {
                let own = number(meta, jobset::JOB_RESTART_ATTEMPT).unwrap_or(0);
                present && *index < of.replicas && own == job_restarts(status, of.name, *index)
            });
            match child {
                Some((of, index)) => {
                    let child = Child {
                        job,
                        replicated_job: of.name,
                        index,
                    };
                    children.current.insert(child.name(), child);
                }
                None => children.previous.push(job),
            }
        }
        let uid = |child: &Child<'a>| child.job.metadata.uid.as_deref();
        let uids: BTreeSet<&str> = children.current.values().filter_map(uid).collect();
        let of_current = |pod: &Pod| {
            controller(&pod.metadata).is_some_and(|owner| uids.contains(owner.uid.as_str()))
        };
        children.leftovers = pods
            .iter()
            .copied()
            .filter(|pod| !PodPhase::of(pod).is_finished() && !of_current(pod))
            .collect();
        children
    }

    /// Whether no Job may be created yet: Jobs or pods of an earlier run of the whole JobSet are there. Ranks of two runs
    /// must not meet.
    pub(crate) fn earlier_run_ends(&self, restarts: u32) -> bool {
        let earlier = |meta: &ObjectMeta| number(meta, jobset::RESTART_ATTEMPT) != Some(restarts);
        self.previous.iter().any(|job| earlier(&job.metadata))
            || self.leftovers.iter().any(|pod| earlier(&pod.metadata))
    }

    /// Whether this Job may not be created yet: an earlier one of its name is there, or pods of it still run.
    pub(crate) fn blocks(&self, name: &str) -> bool {
        let earlier = |job: &&Job| job.metadata.name.as_deref() == Some(name);
        let of_job = |pod: &Pod| {
            let labels = pod.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get(names::BATCH_JOB_NAME))
                .map(String::as_str)
                == Some(name)
        };
        self.previous.iter().any(earlier) || self.leftovers.iter().any(|pod| of_job(pod))
    }

    /// The present Jobs of one replicated job.
    pub(crate) fn of_job<'c>(
        &'c self,
        job: &'c ParsedReplicatedJob<'_>,
    ) -> impl Iterator<Item = &'c Child<'a>> {
        let all = self.current.values();
        all.filter(move |child| child.replicated_job == job.name)
    }

    /// The failed Jobs of the present run.
    pub(crate) fn failed(&self) -> impl Iterator<Item = FailedChild<'a>> {
        self.current.values().filter_map(|child| match child.end() {
            Some(ChildEnd::Failed {
                reason,
                message,
                at,
            }) => Some(FailedChild {
                child: *child,
                reason,
                message,
                at,
            }),
            _ => None,
        })
    }
}

/// A failed Job with what its condition says.
#[derive(Clone, Copy)]
pub(crate) struct FailedChild<'a> {
    pub(crate) child: Child<'a>,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
    pub(crate) at: Option<Timestamp>,
}
