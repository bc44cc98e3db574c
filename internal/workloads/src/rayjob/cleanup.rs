//! What is deleted after a job's end, and when: by `shutdownAfterJobFinishes`, or by the rules of `deletionStrategy`.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use resources::kinds::{RayCluster, RayJobStatus};
use resources::numbers::later;
use serde_json::json;

use super::plan::ParsedRayJob;
use crate::action::{Action, DependentKind};

/// A thing to delete at a time.
struct Due {
    policy: String,
    at: Timestamp,
}

/// The actions that are due, and when the next one is.
pub(crate) fn after_the_end(
    job: &ParsedRayJob<'_>,
    status: &RayJobStatus,
    cluster: Option<&RayCluster>,
    now: Timestamp,
) -> (Vec<Action>, Option<Timestamp>) {
    let (mut actions, mut next): (Vec<Action>, Option<Timestamp>) = (Vec::new(), None);
    for due in dues(job, status) {
        if due.at > now {
            next = Some(next.map_or(due.at, |known| known.min(due.at)));
            continue;
        }
        match due.policy.as_str() {
            "DeleteSelf" => actions.push(Action::DeleteJob {
                name: job.name().to_owned(),
                uid: job.meta.uid.clone().unwrap_or_default(),
            }),
            "DeleteCluster" => actions.extend(cluster.and_then(delete_cluster)),
            "DeleteWorkers" => actions.extend(cluster.and_then(delete_workers)),
            _ => {}
        }
    }
    (actions, next)
}

fn dues(job: &ParsedRayJob<'_>, status: &RayJobStatus) -> Vec<Due> {
    let Some(end) = status.end_time.as_ref() else {
        return Vec::new();
    };
    let due = |policy: &str, seconds: i32| Due {
        policy: policy.to_owned(),
        at: later(end.0, i64::from(seconds)),
    };
    let spec = job.spec;
    let succeeded = status.job_status.as_deref() == Some("SUCCEEDED");
    let Some(strategy) = &spec.deletion_strategy else {
        let seconds = spec.ttl_seconds_after_finished.unwrap_or(0);
        let shutdown = spec.shutdown_after_job_finishes == Some(true);
        return shutdown
            .then(|| due("DeleteCluster", seconds))
            .into_iter()
            .collect();
    };
    let ended = if succeeded {
        &strategy.on_success
    } else {
        &strategy.on_failure
    };
    let mut all: Vec<Due> = ended.iter().map(|end| due(&end.policy, 0)).collect();
    for rule in &strategy.deletion_rules {
        let condition = &rule.condition;
        let (result, phase) = if succeeded {
            ("SUCCEEDED", "Complete")
        } else {
            ("FAILED", "Failed")
        };
        let about = condition.job_status.as_deref() == Some(result)
            || condition.job_deployment_status.as_deref() == Some(phase);
        if about {
            all.push(due(&rule.policy, condition.ttl_seconds.unwrap_or(0)));
        }
    }
    all
}

/// Deletes the cluster and its pods.
pub(crate) fn delete_cluster(cluster: &RayCluster) -> Option<Action> {
    let meta = &cluster.metadata;
    meta.deletion_timestamp.is_none().then(|| Action::Delete {
        kind: DependentKind::RayCluster,
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    })
}

/// Deletes the cluster's workers: each group is suspended.
fn delete_workers(cluster: &RayCluster) -> Option<Action> {
    let meta = &cluster.metadata;
    let mut groups = cluster.spec.worker_group_specs.clone().unwrap_or_default();
    let stay = groups.iter().any(|group| group.suspend != Some(true));
    for group in &mut groups {
        group.suspend = Some(true);
    }
    (stay && meta.deletion_timestamp.is_none()).then(|| Action::Change {
        kind: DependentKind::RayCluster,
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        patch: json!({"metadata": {}, "spec": {"workerGroupSpecs": groups}}),
    })
}

/// Deletes the Job that submitted the program.
pub(crate) fn delete_submitter(submitter: &Job) -> Option<Action> {
    let meta = &submitter.metadata;
    meta.deletion_timestamp.is_none().then(|| Action::Delete {
        kind: DependentKind::Job,
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    })
}
