//! The job controllers against the embedded resource API, in this process: a submitted job becomes
//! pods, Services and a PodGroup, and the job's status shows their state.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod served;

use std::sync::Arc;
use std::time::Duration;

use controllers::{Config, Context, ControlLoop};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use resources::kinds::{JobConditionType, PodGroup, PyTorchJob};
use serde_json::{Value, json};
use tokio::sync::watch;

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "default";

struct Cluster {
    client: Client,
    stop: watch::Sender<bool>,
    loops: Vec<ControlLoop>,
    _data: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Cluster {
        let (data, client) = served("controllers").await;
        let (stop, _) = watch::channel(false);
        let mut cluster = Cluster {
            client,
            stop,
            loops: Vec::new(),
            _data: data,
        };
        cluster.start_controllers();
        cluster
    }

    fn start_controllers(&mut self) {
        let (stop, stopping) = watch::channel(false);
        self.stop = stop;
        self.loops = controllers::jobs::spawn(&Context {
            client: self.client.clone(),
            config: Arc::new(Config {
                scheduler: controllers::SchedulerConfig::default(),
                node_grace: Duration::from_secs(40),
                jobs: controllers::jobs::JobKind::ALL.into(),
                core_controllers: true,
                rendezvous_ports: 20_000..=20_099,
                root_ca: None,
            }),
            stop: stopping,
        });
    }

    async fn stop_controllers(&mut self) {
        self.stop.send(true).unwrap();
        for ControlLoop { task, .. } in self.loops.drain(..) {
            tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn submit(&self, name: &str, spec: Value) {
        let job = json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
            "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec,
        });
        let job: PyTorchJob = serde_json::from_value(job).unwrap();
        self.api()
            .create(&PostParams::default(), &job)
            .await
            .unwrap();
    }

    async fn until_job(
        &self,
        name: &str,
        what: &str,
        met: impl Fn(&PyTorchJob) -> bool,
    ) -> PyTorchJob {
        let api = self.api::<PyTorchJob>();
        let condition = |job: Option<&PyTorchJob>| job.is_some_and(&met);
        match tokio::time::timeout(PATIENCE, await_condition(api.clone(), name, condition)).await {
            Ok(found) => found.unwrap().unwrap(),
            Err(_) => panic!(
                "{name} never was {what}: {:#?}",
                api.get(name).await.unwrap().status
            ),
        }
    }

    async fn until_holds(&self, name: &str, type_: JobConditionType) -> PyTorchJob {
        self.until_job(name, &format!("{type_:?}"), |job| holds(job, type_))
            .await
    }

    async fn until_pod(&self, name: &str, met: impl Fn(Option<&Pod>) -> bool) -> Option<Pod> {
        let waiting = await_condition(self.api::<Pod>(), name, |pod: Option<&Pod>| met(pod));
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .expect("the pod came to it")
            .unwrap()
    }

    async fn pod(&self, name: &str) -> Pod {
        self.until_pod(name, |pod| pod.is_some()).await.unwrap()
    }

    /// Reports a pod's status as the node's agent would.
    async fn report(&self, pod: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.api::<Pod>()
            .patch_status(pod, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn run(&self, pod: &str) {
        self.pod(pod).await;
        self.report(pod, json!({"phase": "Running"})).await;
    }

    async fn exit(&self, pod: &str, code: i32) {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let terminated = json!({"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"});
        let container = json!({
            "name": "pytorch", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated},
        });
        self.report(
            pod,
            json!({"phase": phase, "containerStatuses": [container]}),
        )
        .await;
    }

    async fn pod_names(&self) -> Vec<String> {
        let pods = self
            .api::<Pod>()
            .list(&ListParams::default())
            .await
            .unwrap();
        pods.items
            .into_iter()
            .filter_map(|pod| pod.metadata.name)
            .collect()
    }
}

fn holds(job: &PyTorchJob, type_: JobConditionType) -> bool {
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|known| known.type_ == type_ && known.status == "True")
}

fn master_and_workers(workers: u32, policy: &str) -> Value {
    let replica = |count: u32| {
        json!({"replicas": count, "restartPolicy": policy, "template": {"spec": {
            "containers": [{"name": "pytorch", "command": ["python3", "train.py"]}],
        }}})
    };
    json!({"pytorchReplicaSpecs": {"Master": replica(1), "Worker": replica(workers)}})
}

fn variable(pod: &Pod, name: &str) -> Option<String> {
    let container = &pod.spec.as_ref()?.containers[0];
    container
        .env
        .iter()
        .flatten()
        .find(|known| known.name == name)?
        .value
        .clone()
}

#[tokio::test]
async fn a_submitted_job_becomes_pods_and_succeeds_with_its_master() {
    let mut cluster = Cluster::start().await;
    cluster
        .submit("demo", master_and_workers(2, "OnFailure"))
        .await;
    let names = ["demo-master-0", "demo-worker-0", "demo-worker-1"];
    for name in names {
        let pod = cluster.pod(name).await;
        assert_eq!(variable(&pod, "WORLD_SIZE").as_deref(), Some("3"));
    }
    cluster.until_holds("demo", JobConditionType::Created).await;
    let group = cluster.api::<PodGroup>().get("demo").await.unwrap();
    assert_eq!(group.spec.min_member, Some(3));
    let services = cluster
        .api::<Service>()
        .list(&ListParams::default())
        .await
        .unwrap();
    let ours = services.items.iter().filter(|service| {
        service
            .metadata
            .name
            .as_deref()
            .is_some_and(|name| names.contains(&name))
    });
    assert_eq!(ours.count(), 3);

    for name in names {
        cluster.run(name).await;
    }
    cluster
        .until_job("demo", "running with two active workers", |job| {
            holds(job, JobConditionType::Running)
                && job
                    .status
                    .as_ref()
                    .is_some_and(|status| status.replica_statuses["Worker"].active == 2)
        })
        .await;
    cluster.exit("demo-master-0", 0).await;
    let job = cluster
        .until_holds("demo", JobConditionType::Succeeded)
        .await;
    assert!(!holds(&job, JobConditionType::Running));
    assert!(job.status.unwrap().completion_time.is_some());
    cluster.stop_controllers().await;

    // Events are written asynchronously, so the test waits for them.
    let seen = async {
        loop {
            let events = cluster
                .api::<Event>()
                .list(&ListParams::default())
                .await
                .unwrap();
            let reasons: Vec<String> = events
                .items
                .into_iter()
                .filter_map(|event| event.reason)
                .collect();
            if [
                "PyTorchJobCreated",
                "SuccessfulCreatePod",
                "PyTorchJobSucceeded",
            ]
            .iter()
            .all(|reason| reasons.iter().any(|known| known == reason))
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, seen)
        .await
        .expect("the events were written");
}

#[tokio::test]
async fn restarted_controllers_go_on_from_the_stored_state() {
    let mut cluster = Cluster::start().await;
    let mut spec = master_and_workers(1, "ExitCode");
    spec["runPolicy"] = json!({"backoffLimit": 1});
    cluster.submit("demo", spec).await;
    for name in ["demo-master-0", "demo-worker-0"] {
        cluster.run(name).await;
    }
    cluster.until_holds("demo", JobConditionType::Running).await;
    let first = cluster.pod("demo-worker-0").await.metadata.uid;
    cluster.stop_controllers().await;
    cluster.exit("demo-worker-0", 137).await;
    cluster.start_controllers();
    cluster
        .until_pod("demo-worker-0", |pod| {
            pod.is_some_and(|pod| pod.metadata.uid != first)
        })
        .await;
    cluster.stop_controllers().await;
    // The second failure exceeds the limit, although this controller did not see the first.
    cluster.start_controllers();
    cluster.run("demo-worker-0").await;
    cluster.exit("demo-worker-0", 137).await;
    let job = cluster.until_holds("demo", JobConditionType::Failed).await;
    let conditions = job.status.unwrap().conditions;
    let message = conditions.last().unwrap().message.clone().unwrap();
    assert_eq!(
        message,
        "Job demo has failed because it has reached the specified backoff limit: \
         Rank 1 (demo-worker-0) was killed by SIGKILL (exit code 137) after 2 attempts"
    );
    cluster
        .until_pod("demo-master-0", |pod| pod.is_none())
        .await;
    cluster.stop_controllers().await;
}

#[tokio::test]
async fn a_held_job_gives_its_pods_back_until_it_is_resumed() {
    let mut cluster = Cluster::start().await;
    cluster.submit("demo", master_and_workers(1, "Never")).await;
    cluster.pod("demo-worker-0").await;
    let hold = |suspend: bool| Patch::Merge(json!({"spec": {"runPolicy": {"suspend": suspend}}}));
    let jobs = cluster.api::<PyTorchJob>();
    jobs.patch("demo", &PatchParams::default(), &hold(true))
        .await
        .unwrap();
    cluster
        .until_holds("demo", JobConditionType::Suspended)
        .await;
    for name in ["demo-master-0", "demo-worker-0"] {
        cluster.until_pod(name, |pod| pod.is_none()).await;
    }
    assert!(
        cluster
            .api::<PodGroup>()
            .get_opt("demo")
            .await
            .unwrap()
            .is_none()
    );
    jobs.patch("demo", &PatchParams::default(), &hold(false))
        .await
        .unwrap();
    cluster.pod("demo-master-0").await;
    cluster.pod("demo-worker-0").await;
    cluster.stop_controllers().await;
}

#[tokio::test]
async fn jobs_on_shared_networks_never_share_a_port() {
    let mut cluster = Cluster::start().await;
    let names: Vec<String> = (0..20).map(|n| format!("job-{n}")).collect();
    for name in &names {
        cluster.submit(name, master_and_workers(1, "Never")).await;
    }
    let mut ports = std::collections::BTreeSet::new();
    for name in &names {
        let master = cluster.pod(&format!("{name}-master-0")).await;
        let worker = cluster.pod(&format!("{name}-worker-0")).await;
        let port = variable(&master, "MASTER_PORT").unwrap();
        assert_eq!(variable(&worker, "MASTER_PORT").as_ref(), Some(&port));
        assert!(ports.insert(port.clone()), "{port} was given twice");
    }
    cluster.stop_controllers().await;
}

#[tokio::test]
async fn scaling_an_elastic_job_adds_and_removes_workers() {
    let mut cluster = Cluster::start().await;
    let mut spec = master_and_workers(2, "OnFailure");
    spec["elasticPolicy"] = json!({"minReplicas": 1, "maxReplicas": 4});
    cluster.submit("demo", spec).await;
    cluster.pod("demo-worker-1").await;
    let scale = |count: u32| Patch::Merge(json!({"spec": {"replicas": count}}));
    let jobs = cluster.api::<PyTorchJob>();
    jobs.patch_scale("demo", &PatchParams::default(), &scale(4))
        .await
        .unwrap();
    cluster.pod("demo-worker-3").await;
    jobs.patch_scale("demo", &PatchParams::default(), &scale(1))
        .await
        .unwrap();
    for index in 1..4 {
        cluster
            .until_pod(&format!("demo-worker-{index}"), |pod| pod.is_none())
            .await;
    }
    assert_eq!(
        cluster.pod_names().await,
        ["demo-master-0", "demo-worker-0"]
    );
    cluster.stop_controllers().await;
}

#[tokio::test]
async fn a_plain_indexed_job_runs_to_completion() {
    let mut cluster = Cluster::start().await;
    let job: Job = serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "crunch", "namespace": NAMESPACE},
        "spec": {"completionMode": "Indexed", "completions": 3, "parallelism": 3, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "main", "command": ["true"]}],
        }}},
    }))
    .unwrap();
    let jobs = cluster.api::<Job>();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    let until = |what: &'static str, met: fn(&Job) -> bool| {
        let jobs = jobs.clone();
        async move {
            let waiting = await_condition(jobs, "crunch", move |job: Option<&Job>| {
                job.is_some_and(met)
            });
            tokio::time::timeout(PATIENCE, waiting)
                .await
                .expect(what)
                .unwrap()
                .unwrap()
        }
    };
    until("three pods active", |job| {
        job.status
            .as_ref()
            .is_some_and(|status| status.active == Some(3))
    })
    .await;
    for name in cluster.pod_names().await {
        cluster.exit(&name, 0).await;
    }
    let job = until("complete", |job| {
        let conditions = job
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        conditions
            .into_iter()
            .any(|known| known.type_ == "Complete" && known.status == "True")
    })
    .await;
    let status = job.status.unwrap();
    assert_eq!(
        (status.succeeded, status.completed_indexes.as_deref()),
        (Some(3), Some("0-2"))
    );
    cluster.stop_controllers().await;
}
