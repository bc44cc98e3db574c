//! A job's pods by task and index, and their counts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use resources::kinds::VolcanoTaskStatus;

use super::plan::{ParsedVolcanoJob, Task};
use super::{TASK_INDEX, VERSION};
use crate::failure;
use crate::ownership::controlled_by;
use crate::pod_facts::{self, PodPhase};
use resources::names::TASK_SPEC;

/// One pod of the job's present version.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    pub(crate) index: u32,
    pub(crate) pod: &'a Pod,
}

/// The pods of a job.
pub(crate) struct Members<'a> {
    by_task: BTreeMap<&'a str, Vec<Member<'a>>>,
    /// The job's `status.version`.
    version: u32,
    /// Pods of earlier versions, of removed tasks, and beyond the replicas.
    pub(crate) surplus: Vec<&'a Pod>,
}

/// How many pods are in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) pending: u32,
    pub(crate) running: u32,
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
    pub(crate) terminating: u32,
}

impl Counts {
    /// Pods that have started, whatever became of them.
    pub(crate) fn started(&self) -> u32 {
        self.running + self.succeeded + self.failed
    }

    /// Pods that have ended.
    pub(crate) fn ended(&self) -> u32 {
        self.succeeded + self.failed
    }

    fn add(&mut self, pod: &Pod) {
        if pod_facts::is_leaving(pod) {
            self.terminating += 1;
            return;
        }
        match PodPhase::of(pod) {
            PodPhase::Pending => self.pending += 1,
            PodPhase::Running => self.running += 1,
            PodPhase::Succeeded => self.succeeded += 1,
            PodPhase::Failed => self.failed += 1,
        }
    }
}

impl<'a> Members<'a> {
    /// Sorts a job's pods; those of other owners are left out.
    pub(crate) fn of(
        plan: &'a ParsedVolcanoJob<'_>,
        pods: &[&'a Pod],
        version: i32,
    ) -> Members<'a> {
        let mut members = Members {
            by_task: BTreeMap::new(),
            version: u32::try_from(version).unwrap_or_default(),
            surplus: Vec::new(),
        };
        let version = version.to_string();
        for pod in pods.iter().copied() {
            if !controlled_by(&pod.metadata, plan.meta) {
                continue;
            }
            let labels = pod.metadata.labels.as_ref();
            let label = |name: &str| labels.and_then(|all| all.get(name)).map(String::as_str);
            let index = label(TASK_INDEX).and_then(|index| index.parse().ok());
            let place = (label(TASK_SPEC).and_then(|name| plan.task(name))).zip(index);
            match place {
                Some((task, index))
                    if index < task.replicas && label(VERSION) == Some(version.as_str()) =>
                {
                    let member = Member { index, pod };
                    members.by_task.entry(&task.name).or_default().push(member);
                }
                _ => members.surplus.push(pod),
            }
        }
        members
    }

    /// The pods of a task.
    pub(crate) fn of_task(&self, task: &str) -> &[Member<'a>] {
        self.by_task.get(task).map_or(&[], Vec::as_slice)
    }

    /// The pods of a task that are not being deleted.
    pub(crate) fn of_present(&self, task: &str) -> impl Iterator<Item = &Member<'a>> {
        let all = self.of_task(task).iter();
        all.filter(|member| !pod_facts::is_leaving(member.pod))
    }

    /// All pods of the present version.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'a Pod> + Clone {
        self.by_task.values().flatten().map(|member| member.pod)
    }

    /// The pods of the present version as those of ranks, which follow the tasks.
    pub(crate) fn ranks<'s>(
        &'s self,
        plan: &'s ParsedVolcanoJob<'_>,
    ) -> impl Iterator<Item = failure::Member<'s>> {
        plan.tasks.iter().flat_map(move |task| {
            let of_task = self.of_task(&task.name).iter();
            of_task.map(move |member| failure::Member {
                pod: member.pod,
                rank: Some(plan.ordinal(task, member.index)),
                main: "",
                attempts: 1,
                attempt: self.version,
                hang: None,
            })
        })
    }

    /// The sentence about the end of a task's pod.
    pub(crate) fn sentence(
        plan: &ParsedVolcanoJob<'_>,
        task: &Task<'_>,
        member: &Member<'_>,
    ) -> String {
        let member = failure::Member {
            pod: member.pod,
            rank: Some(plan.ordinal(task, member.index)),
            main: "",
            attempts: 1,
            attempt: 0,
            hang: None,
        };
        failure::record(&member).sentence()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.all().for_each(|pod| counts.add(pod));
        counts
    }

    pub(crate) fn counts_of(&self, task: &str) -> Counts {
        let mut counts = Counts::default();
        let pods = self.of_task(task).iter().map(|member| member.pod);
        pods.for_each(|pod| counts.add(pod));
        counts
    }

    /// By task the number of pods in each phase, as the status has it.
    pub(crate) fn by_phase(&self) -> BTreeMap<String, VolcanoTaskStatus> {
        let of_task = |(task, members): (&&str, &Vec<Member<'a>>)| {
            let mut phase: BTreeMap<String, i32> = BTreeMap::new();
            for member in members {
                let name = match PodPhase::of(member.pod) {
                    PodPhase::Pending => "Pending",
                    PodPhase::Running => "Running",
                    PodPhase::Succeeded => "Succeeded",
                    PodPhase::Failed => "Failed",
                };
                *phase.entry(name.to_owned()).or_default() += 1;
            }
            let status = VolcanoTaskStatus { phase: Some(phase) };
            ((*task).to_owned(), status)
        };
        self.by_task.iter().map(of_task).collect()
    }
}
