//! Where a job would be placed if it were submitted now: the job controller's decision for a job
//! without dependents, tried out on the scheduler's own state. Writes nothing.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use resources::kinds::{
    JAXJob, JobSet, LeaderWorkerSet, MPIJob, PaddleJob, PodGroup, PyTorchJob, RayCluster, RayJob,
    RayService, TFJob, XGBoostJob,
};
use resources::names;
use resources::report::PlacementReport;
use serde::de::DeserializeOwned;
use serde_json::Value;
use workloads::training::{self, Network, TrainingJob};
use workloads::{Action, Dependent, job, jobset, leaderworkerset, ray, rayjob, rayservice};

use crate::scheduling::ReportBoard;

/// A placeholder uid for the job, which does not exist yet; owner references need one.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// The pods with the nodes where they would be placed, or why they would wait.
pub type PlacementPreview = Result<Vec<(String, String)>, Box<PlacementReport>>;

/// Tries an object as admission would store it; none for a kind without pods.
pub async fn preview(board: &ReportBoard, object: &Value) -> Option<PlacementPreview> {
    let (group, pods) = wanted(object, Timestamp::now())?;
    let trial = board.would_place(group, pods).await;
    Some(match trial.reports.into_iter().next() {
        Some(report) => Err(Box::new(report)),
        None => {
            let place = |bind: scheduler::Bind| (bind.pod.name, bind.node);
            Ok(trial.binds.into_iter().map(place).collect())
        }
    })
}

fn wanted(object: &Value, now: Timestamp) -> Option<(Option<PodGroup>, Vec<Pod>)> {
    let mut object = object.clone();
    object["metadata"]["uid"] = NO_UID.into();
    let actions = match object["kind"].as_str()? {
        "Pod" => vec![Action::CreatePod(Box::new(
            serde_json::from_value(object).ok()?,
        ))],
        "Job" if object["apiVersion"] == "batch/v1" => {
            let job: Job = serde_json::from_value(object).ok()?;
            of_job(&job, now)
        }
        "JobSet" => {
            let job_set: JobSet = serde_json::from_value(object).ok()?;
            let actions = jobset::preview(&job_set, now).into_iter();
            actions
                .flat_map(|action| match action {
                    Action::Create(Dependent::Job(mut job)) => {
                        job.metadata.uid = job.metadata.name.clone();
                        of_job(&job, now)
                    }
                    other => vec![other],
                })
                .collect()
        }
        "PyTorchJob" => training::<PyTorchJob>(object, now)?,
        "TFJob" => training::<TFJob>(object, now)?,
        "XGBoostJob" => training::<XGBoostJob>(object, now)?,
        "PaddleJob" => training::<PaddleJob>(object, now)?,
        "JAXJob" => training::<JAXJob>(object, now)?,
        "RayCluster" => ray(object, now)?,
        "RayJob" => {
            let job: RayJob = serde_json::from_value(object).ok()?;
            let mut cluster = rayjob::preview(&job)?;
            cluster.metadata.uid = Some(NO_UID.to_owned());
            of_cluster(&cluster, now)
        }
        "RayService" => {
            let service: RayService = serde_json::from_value(object).ok()?;
            let mut cluster = rayservice::preview(&service)?;
            cluster.metadata.uid = Some(NO_UID.to_owned());
            of_cluster(&cluster, now)
        }
        "MPIJob" => training::<MPIJob>(object, now)?,
        "LeaderWorkerSet" => first_group(object, now)?,
        _ => return None,
    };
    let mut group = None;
    let mut pods = Vec::new();
    for action in actions {
        match action {
            Action::CreatePod(pod) => pods.push(*pod),
            Action::ApplyPodGroup(wanted) => group = Some(*wanted),
            _ => {}
        }
    }
    Some((group, pods))
}

/// What a Job's controller would do first.
fn of_job(job: &Job, now: Timestamp) -> Vec<Action> {
    let observed = job::ObservedJob {
        job,
        pods: &[],
        room: workloads::PodRoom::default(),
    };
    job::reconcile(&observed, now).actions
}

/// What a training job's controller would do first.
fn training<K: TrainingJob + DeserializeOwned>(
    object: Value,
    now: Timestamp,
) -> Option<Vec<Action>> {
    let job: K = serde_json::from_value(object).ok()?;
    let observed = training::ObservedTrainingJob {
        job: job.view(),
        pods: &[],
        pod_group: None,
        services: &[],
        config_maps: &[],
        taken_ports: &BTreeSet::new(),
        // Ports do not influence placement.
        network: &Network::PerPod,
        scheduler_name: names::SCHEDULER,
        room: workloads::PodRoom::default(),
    };
    Some(training::reconcile(&observed, now).actions)
}

/// What the RayCluster controller would do first.
fn ray(object: Value, now: Timestamp) -> Option<Vec<Action>> {
    let cluster: RayCluster = serde_json::from_value(object).ok()?;
    Some(of_cluster(&cluster, now))
}

/// What the LeaderWorkerSet controller would do first about the first group: each group is a gang of its own. None for a
/// set with claims, which do not exist yet.
fn first_group(object: Value, now: Timestamp) -> Option<Vec<Action>> {
    let mut set: LeaderWorkerSet = serde_json::from_value(object).ok()?;
    let claims = set
        .spec
        .leader_worker_template
        .volume_claim_templates
        .iter();
    if claims.flatten().next().is_some() {
        return None;
    }
    set.spec.replicas = set.spec.replicas.map(|groups| groups.min(1));
    let observed = leaderworkerset::ObservedLeaderWorkerSet {
        set: &set,
        pods: &[],
        revisions: &[],
        services: &[],
        pod_groups: &[],
        claim: &|_| None,
        room: workloads::PodRoom::default(),
    };
    Some(leaderworkerset::reconcile(&observed, now).actions)
}

fn of_cluster(cluster: &RayCluster, now: Timestamp) -> Vec<Action> {
    let observed = ray::ObservedRayCluster {
        cluster,
        pods: &[],
        pod_group: None,
        services: &[],
        taken_ports: &BTreeSet::new(),
        // Ports do not influence placement.
        network: &Network::PerPod,
        scheduler_name: names::SCHEDULER,
        room: workloads::PodRoom::default(),
    };
    ray::reconcile(&observed, now).actions
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_training_job_wants_its_group_and_all_its_pods() {
        let template = json!({"spec": {"containers": [{"name": "c", "command": ["x"]}]}});
        let job = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {"name": "j", "namespace": "n"},
            "spec": {"pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template},
                "Worker": {"replicas": 2, "template": template},
            }},
        });
        let (group, pods) = wanted(&job, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(group.unwrap().spec.min_member, Some(3));
        assert_eq!(pods.len(), 3);
    }

    #[test]
    fn a_ray_cluster_wants_its_group_its_head_and_its_workers() {
        let template = json!({"spec": {"containers": [{"name": "c"}]}});
        let cluster = json!({
            "apiVersion": "ray.io/v1", "kind": "RayCluster",
            "metadata": {"name": "r", "namespace": "n"},
            "spec": {"headGroupSpec": {"template": template}, "workerGroupSpecs": [
                {"groupName": "g", "replicas": 2, "minReplicas": 1, "template": template}]},
        });
        let (group, pods) = wanted(&cluster, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(group.unwrap().spec.min_member, Some(2));
        assert_eq!(pods.len(), 3);
    }

    #[test]
    fn a_job_set_wants_its_group_and_the_pods_of_all_its_jobs() {
        let template = json!({"spec": {"parallelism": 2, "completions": 2,
            "template": {"spec": {"containers": [{"name": "c"}]}}}});
        let job_set = json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"name": "s", "namespace": "n"},
            "spec": {"replicatedJobs": [
                {"name": "a", "template": template}, {"name": "b", "replicas": 2, "template": template}]},
        });
        let (group, pods) = wanted(&job_set, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(group.unwrap().spec.min_member, Some(6));
        let names: std::collections::BTreeSet<_> =
            pods.iter().map(|pod| pod.metadata.name.clone()).collect();
        assert_eq!(names.len(), 6);
    }

    #[test]
    fn a_leader_worker_set_wants_its_first_group() {
        let template = json!({"spec": {"containers": [{"name": "c"}]}});
        let mut set = json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
            "metadata": {"name": "m", "namespace": "n"},
            "spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
        });
        let (group, pods) = wanted(&set, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(group.unwrap().spec.min_member, Some(2));
        let names: Vec<_> = pods.iter().map(|pod| pod.metadata.name.clone()).collect();
        assert_eq!(names, [Some("m-0".to_owned()), Some("m-0-1".to_owned())]);
        set["spec"]["leaderWorkerTemplate"]["volumeClaimTemplates"] =
            json!([{"metadata": {"name": "data"}}]);
        assert!(wanted(&set, Timestamp::UNIX_EPOCH).is_none());
    }

    #[test]
    fn an_object_without_pods_has_no_preview() {
        let queue = json!({"kind": "Queue", "metadata": {"name": "q"}});
        assert!(wanted(&queue, Timestamp::UNIX_EPOCH).is_none());
    }
}
