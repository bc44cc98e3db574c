//! TrainJobs: the JobSet that each runtime gives, and the life cycle over time.

use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;

const START: i64 = 1_800_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

fn replicated(name: &str, step: &str, container: &str) -> Value {
    json!({"name": name, "template": {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": step}},
        "spec": {"template": {"spec": {"containers": [{"name": container, "image": "runtime",
            "env": [{"name": "A", "value": "runtime"}],
            "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]}}}}})
}

fn runtime(policy: Value) -> TrainingRuntimeSpec {
    serde_json::from_value(json!({"mlPolicy": policy, "template": {
        "metadata": {"labels": {"of": "runtime"}},
        "spec": {"replicatedJobs": [replicated("node", "trainer", "node")]}}}))
    .unwrap()
}

fn train_job(spec: Value) -> TrainJob {
    let mut spec = spec;
    spec["runtimeRef"] = json!({"name": "torch-distributed", "kind": "ClusterTrainingRuntime"});
    serde_json::from_value(json!({"metadata": {"name": "tj", "namespace": "team", "uid": "job-uid",
        "creationTimestamp": at(0), "annotations": {names::USER: "ann", names::QUEUE_NAME: "gold"}}, "spec": spec}))
    .unwrap()
}

fn built(policy: Value, spec: Value) -> JobSet {
    let (job, runtime) = (train_job(spec), runtime(policy));
    Builder::new(&job, &runtime).unwrap().build(PORT)
}

/// The variables of the trainer's first container, without those by which it reports progress.
fn env(job_set: &JobSet) -> Vec<(String, String)> {
    let mut all = all_env(job_set);
    all.retain(|(name, _)| !name.starts_with(REPORT_PREFIX));
    all
}

const REPORT_PREFIX: &str = "KUBEFLOW_TRAINER_SERVER_";

fn all_env(job_set: &JobSet) -> Vec<(String, String)> {
    let spec = job_set.spec.replicated_jobs[0]
        .template
        .spec
        .as_ref()
        .unwrap();
    let container = &spec.template.spec.as_ref().unwrap().containers[0];
    let text = |variable: &EnvVar| {
        let field = variable
            .value_from
            .as_ref()
            .map(|from| from.field_ref.as_ref().unwrap().field_path.clone());
        (
            variable.name.clone(),
            variable.value.clone().or(field).unwrap(),
        )
    };
    container.env.iter().flatten().map(text).collect()
}

const INDEX: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

#[test]
fn each_framework_gets_its_variables() {
    let gpus = json!({"limits": {"nvidia.com/gpu": "4"}});
    let torch = |processes: &str| {
        vec![
            ("PET_NNODES", "2"),
            ("PET_NPROC_PER_NODE", processes),
            ("PET_NODE_RANK", INDEX),
            ("PET_MASTER_ADDR", "tj-node-0-0.tj"),
            ("PET_MASTER_PORT", "29500"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect::<Vec<_>>()
    };
    for (policy, trainer, processes) in [
        // As many as the runtime's container has CPUs.
        (json!({"torch": {}}), json!({"numNodes": 2}), "3"),
        (json!({"torch": {}, "numNodes": 2}), json!({}), "3"),
        (
            json!({"torch": {}}),
            json!({"numNodes": 2, "numProcPerNode": 2}),
            "2",
        ),
        (
            json!({"torch": {"numProcPerNode": "gpu"}}),
            json!({"numNodes": 2}),
            "gpu",
        ),
        (
            json!({"torch": {}}),
            json!({"numNodes": 2, "resourcesPerNode": gpus}),
            "auto",
        ),
        (
            json!({"torch": {}}),
            json!({"numNodes": 2, "resourcesPerNode": {"requests": {"cpu": "100m"}}}),
            "1",
        ),
    ] {
        let set = built(policy, json!({"trainer": trainer}));
        assert_eq!(env(&set)[1..], torch(processes), "{trainer}");
        let reports = all_env(&set)
            .into_iter()
            .filter_map(|(name, _)| Some(name.strip_prefix(REPORT_PREFIX)?.to_owned()));
        assert_eq!(reports.collect::<Vec<_>>(), ["URL", "CA_CERT", "TOKEN"]);
        let spec = set.spec.replicated_jobs[0].template.spec.as_ref().unwrap();
        assert_eq!((spec.parallelism, spec.completions), (Some(2), Some(2)));
    }
    // Without a trainer the variables are set as well.
    assert_eq!(
        env(&built(json!({"torch": {}, "numNodes": 2}), json!({})))[1..],
        torch("3")
    );
    let jax = built(json!({"jax": {}}), json!({"trainer": {"numNodes": 3}}));
    assert_eq!(
        env(&jax)[1..]
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect::<Vec<_>>(),
        [
            ("JAX_NUM_PROCESSES", "3"),
            ("JAX_PROCESS_ID", INDEX),
            ("JAX_COORDINATOR_ADDRESS", "tj-node-0-0.tj:29500")
        ]
    );
    let xgboost = built(
        json!({"xgboost": {}}),
        json!({"trainer": {"numNodes": 3, "resourcesPerNode": gpus}}),
    );
    assert_eq!(
        env(&xgboost)[1..]
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect::<Vec<_>>(),
        [
            ("DMLC_TRACKER_URI", "tj-node-0-0.tj"),
            ("DMLC_TRACKER_PORT", "29500"),
            ("DMLC_TASK_ID", INDEX),
            ("DMLC_NUM_WORKER", "12")
        ]
    );
    assert_eq!(
        env(&built(json!({}), json!({"trainer": {"numNodes": 3}}))).len(),
        1
    );
}

#[test]
fn the_trainer_the_patches_and_the_job_override_the_runtime() {
    let set = built(
        json!({"torch": {}}),
        json!({"suspend": true,
        "trainer": {"image": "mine", "command": ["torchrun"], "args": ["train.py"],
            "env": [{"name": "A", "value": "job"}, {"name": "B", "value": "b"}],
            "resourcesPerNode": {"requests": {"cpu": "5"}}},
        "runtimePatches": [{"manager": "a.example/m", "trainingRuntimeSpec": {"template": {
            "metadata": {"annotations": {"note": "patched", names::TEAM: "other", names::QUEUE_NAME: "other"}},
            "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": {
                "nodeSelector": {"zone": "a"}, "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "node", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}}}}}]}}}}]}),
    );
    let pod = set.spec.replicated_jobs[0]
        .template
        .spec
        .as_ref()
        .unwrap()
        .template
        .spec
        .as_ref()
        .unwrap();
    let container = &pod.containers[0];
    assert_eq!(container.image.as_deref(), Some("mine"));
    assert_eq!(
        (
            container.command.as_ref().unwrap()[0].as_str(),
            container.args.as_ref().unwrap()[0].as_str()
        ),
        ("torchrun", "train.py")
    );
    assert_eq!(
        env(&set)[..2],
        [
            ("A".to_owned(), "job".to_owned()),
            ("B".to_owned(), "b".to_owned())
        ]
    );
    let requests = container
        .resources
        .as_ref()
        .unwrap()
        .requests
        .as_ref()
        .unwrap();
    assert_eq!(
        (requests["cpu"].0.as_str(), requests["memory"].0.as_str()),
        ("5", "1Gi")
    );
    assert_eq!(
        container.volume_mounts.as_ref().unwrap()[0].mount_path,
        "/v"
    );
    assert_eq!(pod.node_selector.as_ref().unwrap()["zone"], "a");
    let annotations = set.metadata.annotations.as_ref().unwrap();
    assert_eq!(
        (
            annotations["note"].as_str(),
            annotations[names::USER].as_str(),
            annotations[names::QUEUE_NAME].as_str()
        ),
        ("patched", "ann", "gold")
    );
    assert_eq!(set.metadata.labels.as_ref().unwrap()["of"], "runtime");
    assert_eq!(set.spec.suspend, Some(true));
}

#[test]
fn initializers_get_what_they_load_and_a_job_that_does_not_fit_says_why() {
    let mut runtime = runtime(json!({"torch": {}}));
    let loader = replicated(
        "dataset-initializer",
        "dataset-initializer",
        "dataset-initializer",
    );
    runtime
        .template
        .spec
        .replicated_jobs
        .insert(0, serde_json::from_value(loader).unwrap());
    let job = train_job(
        json!({"initializer": {"dataset": {"storageUri": "hf://a/b", "env": [{"name": "T", "value": "t"}],
        "secretRef": {"name": "token"}}}}),
    );
    let set = Builder::new(&job, &runtime).unwrap().build(PORT);
    let variables = env(&set);
    assert!(
        variables.contains(&("STORAGE_URI".to_owned(), "hf://a/b".to_owned()))
            && variables.contains(&("T".to_owned(), "t".to_owned()))
    );
    let pod = set.spec.replicated_jobs[0]
        .template
        .spec
        .as_ref()
        .unwrap()
        .template
        .spec
        .as_ref()
        .unwrap();
    assert_eq!(
        pod.containers[0].env_from.as_ref().unwrap()[0]
            .secret_ref
            .as_ref()
            .unwrap()
            .name,
        "token"
    );
    let misfits = [
        (
            json!({"torch": {}}),
            json!({"initializer": {"model": {}}}),
            "spec.initializer.model: no job of the runtime",
        ),
        (
            json!({"mpi": {}}),
            json!({}),
            "the runtime's mlPolicy is for MPI or Flux",
        ),
        (
            json!({"torch": {}}),
            json!({"runtimePatches": [{"manager": "a.example/m", "trainingRuntimeSpec": {"template": {"spec": {
            "replicatedJobs": [{"name": "none"}]}}}}]}),
            "spec.runtimePatches of \"a.example/m\": the runtime's replicatedJobs has no \"none\"",
        ),
    ];
    for (policy, spec, begin) in misfits {
        let (job, runtime) = (train_job(spec), self::runtime(policy));
        let error = Builder::new(&job, &runtime).err().unwrap().to_string();
        assert!(error.starts_with(begin), "{error}");
    }
}

/// A TrainJob with what its controller created.
struct World {
    job: TrainJob,
    runtime: Option<TrainingRuntimeSpec>,
    revision: Option<ControllerRevision>,
    job_set: Option<JobSet>,
    network: Network,
    taken: BTreeSet<u16>,
    second: i64,
    events: Vec<String>,
}

impl World {
    fn new(spec: Value) -> World {
        World {
            job: train_job(spec),
            runtime: Some(runtime(json!({"torch": {}}))),
            revision: None,
            job_set: None,
            network: Network::PerPod,
            taken: BTreeSet::new(),
            second: 0,
            events: Vec::new(),
        }
    }

    fn step(&mut self) -> (bool, Option<Timestamp>) {
        let revisions: Vec<&ControllerRevision> = self.revision.iter().collect();
        let observed = ObservedTrainJob {
            job: &self.job,
            runtime: self.runtime.as_ref(),
            revisions: &revisions,
            job_set: self.job_set.as_ref(),
            network: &self.network,
            taken_ports: &self.taken,
        };
        let outcome = reconcile(&observed, at(self.second));
        let known = self.job.status.clone().unwrap_or_default();
        let changed = known != outcome.status
            || !outcome.actions.is_empty()
            || !outcome.annotations.is_empty();
        for (name, value) in outcome.annotations {
            let annotations = self.job.metadata.annotations.get_or_insert_default();
            annotations.insert(name, value.unwrap());
        }
        for action in outcome.actions {
            match action {
                Action::Create(Dependent::JobSet(set)) => {
                    self.job_set.get_or_insert(*set);
                }
                Action::Create(Dependent::Revision(revision)) => self.revision = Some(*revision),
                Action::Change { patch, .. } => {
                    self.job_set.as_mut().unwrap().spec.suspend =
                        patch["spec"]["suspend"].as_bool();
                }
                Action::Delete { .. } => self.job_set = None,
                other => panic!("{other:?}"),
            }
        }
        self.job.status = Some(outcome.status);
        self.events
            .extend(outcome.events.into_iter().map(|event| event.reason));
        (changed, outcome.requeue_at)
    }

    fn settle(&mut self) {
        for _ in 0..10 {
            if !self.step().0 {
                return;
            }
        }
        panic!("decisions do not come to rest");
    }

    fn status_of_set(&mut self, status: Value) {
        self.job_set.as_mut().unwrap().status = Some(serde_json::from_value(status).unwrap());
    }

    fn condition(&self, type_: &str) -> Option<(String, String)> {
        let mut all = self.job.status.as_ref()?.conditions.iter();
        all.find(|known| known.type_ == type_)
            .map(|known| (known.status.clone(), known.reason.clone()))
    }
}

#[test]
fn a_job_runs_as_a_job_set_and_reads_its_status() {
    let mut world = World::new(json!({}));
    world.settle();
    assert!(world.revision.is_some());
    let record = r#"{"class":"exit-code","pod":"p"}"#;
    world
        .job_set
        .as_mut()
        .unwrap()
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(names::FAILURE.to_owned(), record.to_owned());
    world.status_of_set(json!({"replicatedJobsStatus": [{"name": "node", "ready": 1, "active": 1}], "startTime": at(3)}));
    world.settle();
    let status = world.job.status.as_ref().unwrap();
    assert_eq!(
        (
            status.jobs_status[0].name.as_str(),
            status.jobs_status[0].ready
        ),
        ("node", 1)
    );
    assert_eq!(status.start_time, Some(Time(at(3))));
    assert_eq!(
        world.job.metadata.annotations.as_ref().unwrap()[names::FAILURE],
        record
    );
    for (of_set, reason, type_) in [
        ("Completed", "AllJobsCompleted", "Complete"),
        ("Failed", "ReachedMaxRestarts", "Failed"),
    ] {
        let mut world = World::new(json!({}));
        world.settle();
        world.status_of_set(json!({"terminalState": of_set, "conditions": [{"type": of_set, "status": "True", "reason": reason,
            "message": "m", "lastTransitionTime": at(9)}]}));
        world.settle();
        assert_eq!(
            world.condition(type_),
            Some(("True".to_owned(), reason.to_owned()))
        );
        assert!(is_finished(&world.job) && world.job_set.is_some());
        world.job_set = None;
        world.settle();
        assert!(world.job_set.is_none(), "a job that has ended stays so");
    }
}

#[test]
fn a_job_waits_for_its_runtime_and_keeps_it_as_it_was() {
    let mut world = World::new(json!({"suspend": true}));
    let of_cluster = world.runtime.take();
    world.settle();
    let message = world.job.status.as_ref().unwrap().message.clone().unwrap();
    assert!(
        message.contains("There is no ClusterTrainingRuntime \"torch-distributed\""),
        "{message}"
    );
    assert!(world.job_set.is_none());
    world.runtime = of_cluster;
    world.settle();
    let before = world.job_set.clone().unwrap();
    assert_eq!(world.job.status.as_ref().unwrap().message, None);
    // The runtime changes, and the job's JobSet does not.
    world.runtime = Some(runtime(json!({"jax": {}})));
    world.settle();
    assert_eq!(world.job_set.as_ref().unwrap().spec, before.spec);
    // A patch while it is suspended makes it anew, from the runtime as it was.
    world.job.spec.runtime_patches = serde_json::from_value(json!([{"manager": "a.example/m", "trainingRuntimeSpec": {"template": {
        "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": {"nodeSelector": {"z": "a"}}}}}}]}}}}])).unwrap();
    world.settle();
    let after = world.job_set.clone().unwrap();
    assert_ne!(after.spec, before.spec);
    assert!(env(&after).iter().any(|(name, _)| name == "PET_NNODES"));
    world.job.spec.suspend = Some(false);
    world.settle();
    assert_eq!(world.job_set.as_ref().unwrap().spec.suspend, Some(false));
    assert_eq!(
        world.condition("Suspended"),
        Some(("False".to_owned(), "Resumed".to_owned()))
    );
    world.job.spec.suspend = Some(true);
    world.settle();
    assert_eq!(world.job_set.as_ref().unwrap().spec.suspend, Some(true));
}

#[test]
fn a_deadline_counts_from_the_start_or_the_last_resumption_and_ends_the_job() {
    let mut world = World::new(json!({"activeDeadlineSeconds": 60}));
    world.settle();
    assert_eq!(world.step().1, Some(at(60)));
    world.second = 50;
    world.job.spec.suspend = Some(true);
    world.settle();
    world.second = 100;
    world.settle();
    world.job.spec.suspend = Some(false);
    world.settle();
    assert_eq!(world.step().1, Some(at(160)));
    world.second = 160;
    world.settle();
    assert_eq!(
        world.condition("Failed"),
        Some(("True".to_owned(), "DeadlineExceeded".to_owned()))
    );
    assert!(world.job_set.is_none());
}

#[test]
fn jobs_that_share_their_nodes_address_have_a_port_each() {
    let mut world = World::new(json!({}));
    world.network = Network::HostShared {
        ports: 12_000..=12_001,
    };
    world.taken.insert(12_000);
    world.settle();
    assert_eq!(
        world.job.metadata.annotations.as_ref().unwrap()[names::RENDEZVOUS_PORT],
        "12001"
    );
    assert!(
        env(world.job_set.as_ref().unwrap())
            .contains(&("PET_MASTER_PORT".to_owned(), "12001".to_owned()))
    );
    let mut full = World::new(json!({}));
    full.network = Network::HostShared {
        ports: 12_000..=12_000,
    };
    full.taken.insert(12_000);
    full.settle();
    assert!(full.job_set.is_none() && full.events.contains(&"NoRendezvousPort".to_owned()));
    assert!(full.step().1.is_some());
    // A plain runtime listens on none.
    let mut plain = World::new(json!({}));
    plain.runtime = Some(runtime(json!({})));
    plain.network = Network::HostShared {
        ports: 12_000..=12_000,
    };
    plain.taken.insert(12_000);
    plain.settle();
    assert!(plain.job_set.is_some());
}

#[test]
fn what_is_not_the_controllers_is_left_alone() {
    let mut other = World::new(json!({"managedBy": "kueue.x-k8s.io/multikueue"}));
    assert!(!other.step().0);
    // A JobSet of this name that is not the job's.
    let mut world = World::new(json!({}));
    world.job_set = Some(
        serde_json::from_value(json!({"metadata": {"name": "tj", "uid": "else"}, "spec": {}}))
            .unwrap(),
    );
    world.settle();
    let message = world.job.status.as_ref().unwrap().message.clone().unwrap();
    assert!(
        message.starts_with("JobSet \"tj\" is not this TrainJob's"),
        "{message}"
    );
    assert!(world.step().1.is_some());
}
