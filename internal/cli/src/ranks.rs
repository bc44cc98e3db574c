//! Finds the pod of a job's rank and waits until it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::runtime::watcher::{self, watch_object};
use resources::jobset;
use resources::leader_worker_set;
use resources::names;
use resources::numbers::GANG_MEMBERS_MAX;
use resources::registry::Kind;
use resources::training::{self, ReplicaType, TrainingKind};
use resources::volcano;

use super::connection::ServerConnection;
use super::output::ProgressReporter;
use super::{failure, kinds};

/// Consecutive failures of a watch after which it is given up.
pub const MOST_ERRORS: u32 = 40;

/// Pause before a failed watch is retried.
pub const REST: Duration = Duration::from_millis(500);

/// The result of waiting for a pod's start.
pub enum StartResult {
    /// The pod runs or has run: its name.
    Started(String),
    /// The pod cannot start any more: the reason.
    Over(String),
}

/// The next state of a watched object, or none if it does not exist. Failed watches are restarted,
/// up to a limit.
pub async fn next<K>(
    changes: &mut (impl Stream<Item = watcher::Result<Option<K>>> + Unpin),
) -> Result<Option<K>> {
    let mut errors = 0;
    loop {
        match changes.next().await {
            Some(Ok(object)) => return Ok(object),
            Some(Err(error)) => {
                let error = anyhow::Error::new(error);
                errors += 1;
                if errors > MOST_ERRORS || failure::lasts(&error) {
                    return Err(error);
                }
                if errors == 1 {
                    ProgressReporter::default().say("the server does not answer; trying again");
                }
                tokio::time::sleep(REST).await;
            }
            None => bail!("the watch ended"),
        }
    }
}

/// The name of the pod that runs a rank. The master is rank 0 and workers follow; a Volcano Job's ranks follow its
/// tasks; a Job's ranks are its completion indexes, or its pods by age; a JobSet's follow its Jobs and their indexes; a
/// LeaderWorkerSet's follow its groups, in each of which the leader comes first.
pub async fn pod_of(
    connection: &ServerConnection,
    kind: &Kind,
    job: &DynamicObject,
    rank: u32,
) -> Result<String> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    if has_named_pods(kind) {
        return named(kind.training(), name, job, rank);
    }
    let mut list = pods_of(connection, kind, name).await?;
    if kinds::is_job_set(kind) {
        list = last_of_each_place(list);
    }
    match list
        .get(rank as usize)
        .and_then(|pod| pod.metadata.name.clone())
    {
        Some(pod) => Ok(pod),
        None => Err(failure::not_found(format!(
            "job {name:?} has {} pods, so no rank {rank}",
            list.len()
        ))),
    }
}

/// The pod that a name means: a pod's own, or that of a rank of a job.
pub async fn pod_named(connection: &ServerConnection, name: &str, rank: u32) -> Result<String> {
    let pod = kinds::kind("pods")?;
    let mut among = vec![pod];
    among.extend(kinds::job_kinds());
    match kinds::find(connection, name, &among).await? {
        Some((kind, found)) if kind.plural == pod.plural => {
            Ok(found.metadata.name.unwrap_or_default())
        }
        Some((kind, job)) => pod_of(connection, kind, &job, rank).await,
        None => Err(failure::not_found(format!(
            "there is no job and no pod {name:?} in namespace {:?}",
            connection.namespace
        ))),
    }
}

/// Whether the names of a job's pods follow from the job's.
fn has_named_pods(kind: &Kind) -> bool {
    kind.training().is_some() || kind.is_volcano_job() || kind.is_leader_worker_set()
}

/// The pod of a rank of a job whose pods have names that follow from the job's; `kind` is none for Volcano's Job and
/// LeaderWorkerSets.
fn named(
    kind: Option<&TrainingKind>,
    name: &str,
    job: &DynamicObject,
    rank: u32,
) -> Result<String> {
    let object = serde_json::json!({"metadata": {"name": name}, "spec": job.data["spec"]});
    let limit = usize::try_from(GANG_MEMBERS_MAX).unwrap_or(usize::MAX);
    let names = match (kind, leader_worker_set::shape(&object)) {
        (Some(kind), _) => kind.rank_names(&object, limit),
        (None, Some(shape)) => shape.rank_names(name, shape.groups, limit),
        (None, None) => volcano::rank_names(&object, limit),
    };
    names.get(rank as usize).cloned().ok_or_else(|| {
        failure::not_found(format!(
            "job {name:?} has {} replicas, so no rank {rank}",
            names.len()
        ))
    })
}

/// A job's pods, by rank.
pub async fn pods_of(connection: &ServerConnection, kind: &Kind, name: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let label = match kind.training() {
        Some(_) => names::JOB_NAME,
        None if kind.is_volcano_job() => volcano::JOB_NAME,
        None if kinds::is_job_set(kind) => jobset::NAME,
        None if kind.is_leader_worker_set() => leader_worker_set::NAME,
        None => names::BATCH_JOB_NAME,
    };
    let selector = match (kind.group, kind.kind) {
        ("ray.io", "RayService") => {
            let (origin, of_kind) = (names::RAY_ORIGIN_NAME, names::RAY_ORIGIN_KIND);
            format!("{origin}={name},{of_kind}={}", kind.kind)
        }
        _ => format!("{label}={name}"),
    };
    let selector = ListParams::default().labels(&selector);
    let mut list = pods.list(&selector).await?.items;
    // The heads of a RayService's clusters come before their workers.
    let works = |pod: &Pod| {
        let labels = pod.metadata.labels.as_ref();
        let type_ = labels.and_then(|labels| labels.get(names::RAY_NODE_TYPE));
        type_.is_some_and(|type_| type_ == "worker")
    };
    list.sort_by_key(|pod| {
        let created = pod.metadata.creation_timestamp.clone();
        (works(pod), order(pod), created)
    });
    Ok(list)
}

/// The pods of a JobSet that run or ran last in each place, of pods in the order of places and ages.
fn last_of_each_place(pods: Vec<Pod>) -> Vec<Pod> {
    let place = |pod: &Pod| jobset::place(pod.metadata.labels.as_ref());
    let mut last: Vec<Pod> = Vec::new();
    for pod in pods {
        match last.last_mut() {
            Some(known) if place(known) == place(&pod) => *known = pod,
            _ => last.push(pod),
        }
    }
    last
}

/// The place of a pod among its job's pods.
type Place = (Option<(u32, u32)>, Option<ReplicaType>, u32);

fn order(pod: &Pod) -> Place {
    let read = |map: &Option<BTreeMap<String, String>>, name: &str| {
        let map = map.as_ref()?;
        map.get(name).cloned()
    };
    let labels = &pod.metadata.labels;
    let role = read(labels, names::REPLICA_TYPE);
    let role = training::ALL
        .iter()
        .flat_map(|kind| kind.roles)
        .find(|known| role.as_deref() == Some(known.lower()));
    let index = read(&pod.metadata.annotations, names::COMPLETION_INDEX)
        .or_else(|| read(labels, names::REPLICA_INDEX))
        .or_else(|| read(labels, volcano::TASK_INDEX));
    (
        jobset::place(labels.as_ref()).or_else(|| leader_worker_set::place(labels.as_ref())),
        role.copied(),
        index.and_then(|text| text.parse().ok()).unwrap_or(0),
    )
}

/// The exit status of the replica that failed first, as an exit status of this program; none if no
/// pod reports one.
pub fn first_failure(pods: &[Pod]) -> Option<u8> {
    let ends = pods.iter().flat_map(|pod| {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|s| s.container_statuses.as_ref());
        let states = statuses
            .into_iter()
            .flatten()
            .filter_map(|c| c.state.as_ref());
        states.filter_map(|state| state.terminated.as_ref())
    });
    // The pods come by rank, so that the lowest rank wins a tie.
    ends.filter(|end| end.exit_code != 0)
        .min_by_key(|end| end.finished_at.clone())
        .map(|end| u8::try_from(end.exit_code).unwrap_or(u8::MAX))
}

/// Waits until a job's rank runs, or until it cannot run any more.
pub async fn await_rank(
    connection: &ServerConnection,
    kind: &'static Kind,
    job: &DynamicObject,
    rank: u32,
) -> Result<StartResult> {
    let name = job.metadata.name.clone().unwrap_or_default();
    let mut changes = std::pin::pin!(watch_object(connection.api(kind), &name));
    // The pods of a Job have generated names: check after each change of the job.
    let pod = loop {
        let Some(job) = next(&mut changes).await? else {
            return Ok(StartResult::Over(format!("the job {name:?} is gone")));
        };
        match pod_of(connection, kind, &job, rank).await {
            Ok(pod) => break pod,
            Err(error) if has_named_pods(kind) => return Err(error),
            Err(error) if kinds::ended(&job).is_some() => {
                return Ok(StartResult::Over(error.to_string()));
            }
            Err(_) => {}
        }
    };
    until_started(connection, &pod, Some((kind, &name))).await
}

/// Waits until a pod has started or ended, so that its log can be followed; or until its job has
/// ended without it.
pub async fn until_started(
    connection: &ServerConnection,
    pod: &str,
    job: Option<(&'static Kind, &str)>,
) -> Result<StartResult> {
    let pods: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let started = async {
        let mut progress = ProgressReporter::default();
        let mut changes = std::pin::pin!(watch_object(pods, pod));
        loop {
            let Some(object) = next(&mut changes).await? else {
                if job.is_none() {
                    return Ok(StartResult::Over(format!("the pod {pod:?} is gone")));
                }
                continue;
            };
            if has_log(&object) {
                return Ok(StartResult::Started(pod.to_string()));
            }
            progress.say(&waits_for(pod, &object));
        }
    };
    let Some((kind, name)) = job else {
        return started.await;
    };
    let over = async {
        let mut changes = std::pin::pin!(watch_object(connection.api(kind), name));
        loop {
            match next(&mut changes).await? {
                None => return Ok(StartResult::Over(format!("the job {name:?} is gone"))),
                // An ended job starts no more pods: its logs can be read at once.
                Some(job) if kinds::ended(&job).is_some() => {
                    return Ok(StartResult::Started(pod.to_string()));
                }
                Some(_) => {}
            }
        }
    };
    tokio::select! {
        started = started => started,
        over = over => over,
    }
}

fn has_log(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Running" | "Succeeded" | "Failed"))
}

/// Why a pod does not run yet, as reported by the scheduler.
fn waits_for(name: &str, pod: &Pod) -> String {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let unscheduled = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    match unscheduled.and_then(|condition| condition.message.as_deref()) {
        Some(message) if !message.is_empty() => format!("{name} waits: {message}"),
        _ => format!("{name} is about to start"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(spec: serde_json::Value) -> DynamicObject {
        serde_json::from_value(serde_json::json!({"metadata": {"name": "j"}, "spec": spec}))
            .unwrap()
    }

    #[test]
    fn the_master_is_rank_0_and_a_rank_too_many_is_refused() {
        let both = job(
            serde_json::json!({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}}),
        );
        assert_eq!(
            named(Some(&training::PYTORCH_JOB), "j", &both, 0).unwrap(),
            "j-master-0"
        );
        assert_eq!(
            named(Some(&training::PYTORCH_JOB), "j", &both, 2).unwrap(),
            "j-worker-1"
        );
        assert_eq!(
            named(Some(&training::PYTORCH_JOB), "j", &both, 3)
                .unwrap_err()
                .to_string(),
            "job \"j\" has 3 replicas, so no rank 3"
        );
        let elastic = job(serde_json::json!({
            "elasticPolicy": {"maxReplicas": 4},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 2}},
        }));
        assert_eq!(
            named(Some(&training::PYTORCH_JOB), "j", &elastic, 3).unwrap(),
            "j-worker-3"
        );
        assert!(named(Some(&training::PYTORCH_JOB), "j", &elastic, 4).is_err());
    }

    #[test]
    fn the_ranks_of_a_leader_worker_set_go_through_its_groups() {
        let set = job(serde_json::json!({"replicas": 2, "leaderWorkerTemplate": {"size": 2}}));
        let pod = |rank: u32| named(None, "m", &set, rank);
        for (rank, name) in (0..).zip(["m-0", "m-0-1", "m-1", "m-1-1"]) {
            assert_eq!(pod(rank).unwrap(), name);
        }
        assert!(pod(4).unwrap_err().to_string().contains("so no rank 4"));
    }

    #[test]
    fn the_ranks_of_a_job_set_are_the_newest_pods_of_its_jobs_indexes() {
        let pod = |name: &str, job: &str, index: &str, second: u32| -> Pod {
            serde_json::from_value(serde_json::json!({"metadata": {"name": name,
                "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
                "labels": {jobset::GLOBAL_INDEX: job, names::COMPLETION_INDEX: index}}}))
            .unwrap()
        };
        let mut pods = vec![
            pod("b1", "1", "1", 1),
            pod("a0-new", "0", "0", 9),
            pod("a0", "0", "0", 1),
            pod("b0", "1", "0", 1),
        ];
        pods.sort_by_key(|pod| (order(pod), pod.metadata.creation_timestamp.clone()));
        let names: Vec<String> = last_of_each_place(pods)
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect();
        assert_eq!(names, ["a0-new", "b0", "b1"]);
    }

    #[test]
    fn a_pod_that_waits_says_so_in_the_schedulers_words() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {}, "spec": {"containers": []},
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "message": "no room"}]},
        }))
        .unwrap();
        assert!(!has_log(&pod));
        assert_eq!(waits_for("p", &pod), "p waits: no room");
    }
}
