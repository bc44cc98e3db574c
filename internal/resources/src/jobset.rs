//! JobSet as its controller, the CLI and the pages name it: its labels, its state in one word, and the order of its
//! pods. TrainJobs share all of this: a TrainJob runs as a JobSet of its own name. Source: jobset.x-k8s.io/v1alpha2.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json;
use crate::names::COMPLETION_INDEX;

/// The API group.
pub const GROUP: &str = "jobset.x-k8s.io";
/// The kind.
pub const KIND: &str = "JobSet";
/// The `managedBy` of JobSets that Muster runs, as it does those without one.
pub const MANAGER: &str = "jobset.sigs.k8s.io/jobset-controller";

/// Label on Jobs and pods: the JobSet's name.
pub const NAME: &str = "jobset.sigs.k8s.io/jobset-name";
/// Label on Jobs and pods: the JobSet's uid.
pub const UID: &str = "jobset.sigs.k8s.io/jobset-uid";
/// Label on Jobs and pods: the name of their replicated job.
pub const REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
/// Label on Jobs and pods: the Jobs of their replicated job.
pub const REPLICAS: &str = "jobset.sigs.k8s.io/replicatedjob-replicas";
/// Label on Jobs and pods: the Jobs of the whole JobSet.
pub const GLOBAL_REPLICAS: &str = "jobset.sigs.k8s.io/global-replicas";
/// Label on Jobs and pods: the Job's number in its replicated job.
pub const JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";
/// Label on Jobs and pods: the Job's number in the JobSet.
pub const GLOBAL_INDEX: &str = "jobset.sigs.k8s.io/job-global-index";
/// Label on Jobs and pods: the SHA-1 of the Job's namespace and name.
pub const JOB_KEY: &str = "jobset.sigs.k8s.io/job-key";
/// Label on Jobs and pods: the restart of the whole JobSet that they are part of; 0 is the first run.
pub const RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/restart-attempt";
/// Label on Jobs and pods: the restart of their Job alone.
pub const JOB_RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/job-restart-attempt";
/// Label on Jobs and pods: the group of their replicated job.
pub const GROUP_NAME: &str = "jobset.sigs.k8s.io/group-name";
/// Label on Jobs and pods: the Jobs of that group.
pub const GROUP_REPLICAS: &str = "jobset.sigs.k8s.io/group-replicas";
/// Label on Jobs and pods: the Job's number in that group.
pub const GROUP_INDEX: &str = "jobset.sigs.k8s.io/job-group-index";
/// Label on Jobs and pods: where the pod is reached that `spec.coordinator` names.
pub const COORDINATOR: &str = "jobset.sigs.k8s.io/coordinator";
/// Annotation on a JobSet or a Job's template: each Job has a topology domain (a node label) to itself. Muster does not
/// follow it.
pub const EXCLUSIVE_TOPOLOGY: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";

/// The conditions that say in which state a JobSet or TrainJob is, strongest first, each with the state.
const STATES: [(&str, &str); 5] = [
    ("Failed", "Failed"),
    ("Completed", "Completed"),
    ("Complete", "Complete"),
    ("Suspended", "Suspended"),
    ("RestartingJobSet", "Restarting"),
];

/// The state of a JobSet or TrainJob in one word; none for the status of another kind. It runs once a Job of it is ready.
#[must_use]
pub fn state(status: &Value) -> Option<&'static str> {
    let counts = ["replicatedJobsStatus", "jobsStatus"];
    let jobs = counts.into_iter().find(|name| status[*name].is_array())?;
    let conditions = json::items(status, &["conditions"]);
    let holds = |type_: &str| {
        let mut all = conditions.iter();
        all.any(|one| one["type"] == type_ && one["status"] == "True")
    };
    if let Some((_, state)) = STATES.into_iter().find(|(type_, _)| holds(type_)) {
        return Some(state);
    }
    let began = |job: &Value| {
        ["ready", "succeeded"]
            .iter()
            .any(|name| job[*name].as_i64() > Some(0))
    };
    let runs = json::items(status, &[jobs]).iter().any(began);
    Some(if runs { "Running" } else { "Pending" })
}

/// Why a JobSet or TrainJob is in this state: the message of the state's condition, or what it waits for.
#[must_use]
pub fn message<'s>(status: &'s Value, state: &str) -> &'s str {
    let type_ = STATES.iter().find(|(_, word)| *word == state);
    let conditions = json::items(status, &["conditions"]);
    let found = type_.and_then(|(type_, _)| {
        let mut all = conditions.iter();
        all.find(|one| one["type"] == *type_ && one["status"] == "True")
    });
    match found {
        Some(condition) => json::text(condition, &["message"]),
        None => json::text(status, &["message"]),
    }
}

/// One replicated job of a spec: its name, its pods at a time, and the template of its pods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicatedJobShape<'a> {
    /// Its name.
    pub name: &'a str,
    /// The pods of all its Jobs that run at a time.
    pub pods: i64,
    /// The template of the pods.
    pub template: &'a Value,
}

/// The replicated jobs of a JobSet, in the order of the spec; none for an object of another kind.
#[must_use]
pub fn replicated_jobs(job_set: &Value) -> Vec<ReplicatedJobShape<'_>> {
    let all = json::items(job_set, &["spec", "replicatedJobs"]).iter();
    all.map(|job| {
        let replicas = json::int(job, &["replicas"]).unwrap_or(1);
        let number = |key: &str| json::int(job, &["template", "spec", key]);
        let parallelism = number("parallelism").unwrap_or(1);
        let at_once = number("completions").map_or(parallelism, |all| all.min(parallelism));
        ReplicatedJobShape {
            name: json::text(job, &["name"]),
            pods: replicas.max(0).saturating_mul(at_once.max(0)),
            template: json::at(job, &["template", "spec", "template"]),
        }
    })
    .collect()
}

/// A pod's place among those of its JobSet: the number of its Job in the JobSet, then its index in the Job. Pods of
/// other kinds have none.
#[must_use]
pub fn place(labels: Option<&BTreeMap<String, String>>) -> Option<(u32, u32)> {
    let number = |name: &str| labels?.get(name)?.parse().ok();
    Some((number(GLOBAL_INDEX)?, number(COMPLETION_INDEX).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_state_is_that_of_the_strongest_condition_or_of_the_ready_jobs() {
        let with = |types: &[&str], ready: i64| {
            let conditions: Vec<Value> = types
                .iter()
                .map(|type_| json!({"type": type_, "status": "True", "message": format!("{type_} holds")}))
                .collect();
            json!({"conditions": conditions, "replicatedJobsStatus": [{"name": "a", "ready": ready}]})
        };
        for (types, ready, wanted, why) in [
            (&[][..], 0, "Pending", ""),
            (&["StartupPolicyInProgress"], 0, "Pending", ""),
            (&["StartupPolicyCompleted"], 1, "Running", ""),
            (
                &["RestartingJobSet"],
                1,
                "Restarting",
                "RestartingJobSet holds",
            ),
            (
                &["Suspended", "RestartingJobSet"],
                0,
                "Suspended",
                "Suspended holds",
            ),
            (
                &["StartupPolicyCompleted", "Completed"],
                0,
                "Completed",
                "Completed holds",
            ),
            (&["Completed", "Failed"], 0, "Failed", "Failed holds"),
        ] {
            let status = with(types, ready);
            let found = state(&status).unwrap();
            assert_eq!((found, message(&status, found)), (wanted, why), "{types:?}");
        }
        let trained = json!({"jobsStatus": [{"name": "node", "ready": 1}], "message": "m"});
        assert_eq!(state(&trained), Some("Running"));
        assert_eq!(message(&trained, "Running"), "m");
        assert_eq!(
            state(&json!({"conditions": [{"type": "Failed", "status": "True"}]})),
            None
        );
    }

    #[test]
    fn pods_are_counted_and_ordered_as_their_jobs_are() {
        let job_set = json!({"spec": {"replicatedJobs": [
            {"name": "one", "template": {"spec": {"template": {"spec": {}}}}},
            {"name": "few", "replicas": 3, "template": {"spec": {"parallelism": 4, "completions": 2}}},
            {"name": "none", "replicas": 0, "template": {"spec": {"parallelism": 4}}},
        ]}});
        let counts: Vec<_> = replicated_jobs(&job_set)
            .iter()
            .map(|job| (job.name, job.pods))
            .collect();
        assert_eq!(counts, [("one", 1), ("few", 6), ("none", 0)]);
        assert!(replicated_jobs(&json!({})).is_empty());
        let labels = |global: &str, index: &str| {
            BTreeMap::from([
                (GLOBAL_INDEX.to_owned(), global.to_owned()),
                (COMPLETION_INDEX.to_owned(), index.to_owned()),
            ])
        };
        assert_eq!(place(Some(&labels("1", "2"))), Some((1, 2)));
        assert_eq!(place(Some(&labels("x", "2"))), None);
        assert_eq!(place(None), None);
    }
}
