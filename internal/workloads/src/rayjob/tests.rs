//! A RayJob's life: its cluster, the submission, the end, retries, suspension and deletion.

mod modes;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use resources::kinds::{RayCluster, RayJob, RayJobStatus};
use serde_json::{Value, json};

use super::*;
use crate::action::DependentKind;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// A job's namespace in memory.
struct World {
    job: RayJob,
    cluster: Option<RayCluster>,
    submitter: Option<Job>,
    head: Option<Pod>,
    program: Option<ProgramObservation>,
    /// True once the job deleted itself.
    gone: bool,
    /// How many submitters and clusters were created.
    created: (u32, u32),
}

impl World {
    fn new(more: Value) -> World {
        let pod = json!({"spec": {"containers": [{"name": "ray", "image": "r:1",
            "env": [{"name": "PATH", "value": "/ray"}], "resources": {"limits": {"cpu": 4}}}]}});
        let mut spec = json!({"entrypoint": "python x.py",
            "rayClusterSpec": {"headGroupSpec": {"template": pod}}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let meta = json!({"name": "demo", "namespace": "team", "uid": "job-uid",
            "annotations": {"muster.io/user": "ann", "scheduling.volcano.sh/queue-name": "q"}});
        let job = json!({"metadata": meta, "spec": spec});
        World {
            job: serde_json::from_value(job).unwrap(),
            cluster: None,
            submitter: None,
            head: None,
            program: None,
            gone: false,
            created: (0, 0),
        }
    }

    fn decide(&self, second: i64) -> ReconcileOutcome<RayJobStatus> {
        self.decide_with_request(second).outcome
    }

    fn decide_with_request(&self, second: i64) -> RayJobDecision {
        let named = cluster_of(&self.job);
        let cluster = self.cluster.as_ref();
        let observed = ObservedRayJob {
            job: &self.job,
            cluster: cluster.filter(|known| named.is_some_and(|named| named == name(known))),
            jobs: &self.submitter.iter().collect::<Vec<_>>(),
            pods: &self.head.iter().collect::<Vec<_>>(),
            program: self.program.as_ref(),
        };
        reconcile(&observed, at(second))
    }

    /// Decides and acts until nothing is left to do; returns the events' reasons.
    fn settle(&mut self, second: i64) -> Vec<String> {
        let mut reasons = Vec::new();
        for _ in 0..20 {
            let outcome = self.decide(second);
            reasons.extend(outcome.events.into_iter().map(|event| event.reason));
            let same = self.job.status.as_ref() == Some(&outcome.status);
            self.job.status = Some(outcome.status);
            if outcome.actions.is_empty() && same {
                return reasons;
            }
            for action in outcome.actions {
                self.act(action);
            }
        }
        panic!("the decisions do not come to rest: {:#?}", self.job.status);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Create(Dependent::Job(job)) => {
                assert!(self.submitter.is_none(), "the name is taken");
                self.created.0 += 1;
                let mut job = *job;
                job.metadata.uid = Some(format!("submitter-{}", self.created.0));
                self.submitter = Some(job);
            }
            Action::Create(Dependent::RayCluster(cluster)) => {
                assert!(self.cluster.is_none(), "one cluster at a time");
                self.created.1 += 1;
                let mut cluster = *cluster;
                cluster.metadata.uid = Some(format!("cluster-{}", self.created.1));
                self.cluster = Some(cluster);
            }
            Action::Delete { kind, uid, .. } => match kind {
                DependentKind::Job => {
                    let gone = self.submitter.take().expect("the submitter exists");
                    assert_eq!(gone.metadata.uid, Some(uid));
                }
                DependentKind::RayCluster => {
                    let gone = self.cluster.take().expect("the cluster exists");
                    assert_eq!(gone.metadata.uid, Some(uid));
                }
                other => panic!("{other:?}"),
            },
            Action::Change { patch, .. } => {
                let groups = patch["spec"]["workerGroupSpecs"].clone();
                let cluster = self.cluster.as_mut().expect("the cluster exists");
                cluster.spec.worker_group_specs = serde_json::from_value(groups).unwrap();
            }
            Action::DeleteJob { .. } => {
                self.gone = true;
                self.job.metadata.deletion_timestamp = Some(Time(at(0)));
            }
            other => panic!("{other:?}"),
        }
    }

    fn ready(&mut self, head: &str) {
        let cluster = self.cluster.as_mut().expect("the cluster exists");
        let service = format!("{}-head-svc", name(cluster));
        let status = json!({"state": "ready", "endpoints": {"dashboard": "14001"},
            "head": {"run": head, "serviceName": service}});
        cluster.status = serde_json::from_value(status).unwrap();
    }

    fn submitter_ends(&mut self, type_: &str, reason: &str, message: &str) {
        let submitter = self.submitter.as_mut().expect("the submitter exists");
        let condition = JobCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..JobCondition::default()
        };
        submitter.status = Some(JobStatus {
            conditions: Some(vec![condition]),
            ..JobStatus::default()
        });
    }

    fn status(&self) -> &RayJobStatus {
        self.job.status.as_ref().unwrap()
    }

    fn phase(&self) -> &str {
        let status = self.status().job_deployment_status.as_deref();
        status.unwrap_or_default()
    }

    /// The condition that is true.
    fn holds(&self) -> Option<&str> {
        let mut all = self.status().conditions.iter().rev();
        let held = all.find(|one| one.status == "True")?;
        Some(&held.type_)
    }

    /// Brings a new job to the state in which its program runs.
    fn run(&mut self, second: i64, head: &str) {
        self.settle(second);
        self.ready(head);
        self.settle(second);
        assert_eq!(self.phase(), "Running");
    }
}

const EXIT_3: &str = "Container ray-job-submitter for pod team/demo-x failed with exit code 3 matching FailJob rule at index 0";

#[test]
fn a_program_is_submitted_once_its_cluster_is_ready_and_ends_the_job() {
    let mut world = World::new(json!({"runtimeEnvYAML": "env_vars: {A: b}"}));
    world.settle(0);
    assert_eq!((world.phase(), world.holds()), ("Initializing", None));
    let id = world.status().job_id.clone().unwrap();
    let cluster = world.cluster.clone().unwrap();
    assert_eq!(name(&cluster), id);
    assert!(id.starts_with("demo-") && id.len() == 10, "{id}");
    let notes = cluster.metadata.annotations.as_ref().unwrap();
    assert_eq!(notes["muster.io/user"], "ann");
    assert_eq!(notes["scheduling.volcano.sh/queue-name"], "q");
    assert!(world.submitter.is_none());
    world.ready("head-1");
    world.settle(1);
    assert_eq!((world.phase(), world.holds()), ("Running", Some("Running")));
    let submitter = world.submitter.clone().unwrap();
    assert_eq!(submitter.metadata.name.as_deref(), Some("demo"));
    let pod = submitter.spec.unwrap().template.spec.unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    let container = &pod.containers[0];
    assert_eq!(container.image.as_deref(), Some("r:1"));
    assert_eq!(container.resources, None, "it starts beside a full queue");
    let env = container.env.as_ref().unwrap();
    let value = |key: &str| {
        let found = env.iter().find(|one| one.name == key).unwrap();
        found.value.clone().unwrap()
    };
    assert_eq!(value("PATH"), "/ray");
    assert_eq!(value("RAY_JOB_SUBMISSION_ID"), id);
    let dashboard = format!("{id}-head-svc.team.svc.cluster.local:14001");
    assert_eq!(value("RAY_DASHBOARD_ADDRESS"), dashboard);
    let program: Value = serde_json::from_str(&value("MUSTER_RAY_JOB")).unwrap();
    assert_eq!(program["entrypoint"], "python x.py");
    assert_eq!(program["runtimeEnvYAML"], "env_vars: {A: b}");
    assert_eq!(program["stopOnTermination"], false);
    world.submitter_ends("Complete", "CompletionsReached", "");
    assert_eq!(world.settle(9), ["RayJobSucceeded"]);
    let status = world.status();
    assert_eq!(status.job_status.as_deref(), Some("SUCCEEDED"));
    assert_eq!((status.succeeded, status.failed), (Some(1), None));
    assert_eq!(status.end_time.as_ref().map(|time| time.0), Some(at(9)));
    assert_eq!(world.holds(), Some("Succeeded"));
    assert!(world.cluster.is_some(), "nothing asks for its deletion");
    assert!(world.settle(10).is_empty(), "nothing is told twice");
}

#[test]
fn the_programs_exit_code_is_the_cause_and_a_lost_submitter_is_not() {
    let table = [
        (
            "PodFailurePolicy",
            EXIT_3,
            "AppFailed",
            "The program failed with exit code 3.",
        ),
        (
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
            "SubmissionFailed",
            "The pods that submit and follow the program failed: Job has reached the specified backoff limit.",
        ),
    ];
    for (reason, message, want, sentence) in table {
        let mut world = World::new(json!({}));
        world.run(0, "head-1");
        world.submitter_ends("Failed", reason, message);
        assert_eq!(world.settle(5), ["RayJobFailed"]);
        let status = world.status();
        assert_eq!(status.reason.as_deref(), Some(want));
        assert_eq!(status.message.as_deref(), Some(sentence));
        assert_eq!(status.failed, Some(1));
        assert_eq!((world.phase(), world.holds()), ("Failed", Some("Failed")));
    }
}

#[test]
fn a_lost_submitter_is_replaced_and_a_lost_head_or_cluster_ends_the_attempt() {
    let mut world = World::new(json!({}));
    world.run(0, "head-1");
    world.submitter = None;
    world.settle(1);
    assert_eq!((world.phase(), world.created.0), ("Running", 2));
    world.ready("head-2");
    world.settle(2);
    assert_eq!(world.status().reason.as_deref(), Some("HeadLost"));
    assert!(
        world.submitter.is_none(),
        "it must not submit to the new head"
    );
    let mut world = World::new(json!({}));
    world.run(0, "head-1");
    world.cluster = None;
    world.settle(1);
    assert_eq!(world.status().reason.as_deref(), Some("ClusterLost"));
    assert_eq!(world.created, (1, 1));
    // The server died after it created the submitter and before it wrote so; meanwhile the head was replaced.
    let mut world = World::new(json!({}));
    world.settle(0);
    world.ready("head-1");
    let known = world.decide(1);
    world.job.status = Some(known.status);
    let create = world.decide(1);
    for action in create.actions {
        world.act(action);
    }
    world.ready("head-2");
    world.settle(2);
    assert_eq!(world.status().reason.as_deref(), Some("HeadLost"));
    assert_eq!(world.created, (1, 1));
}

#[test]
fn each_retry_has_a_cluster_and_a_program_of_its_own() {
    let mut world = World::new(json!({"backoffLimit": 1}));
    world.run(0, "head-1");
    let first = world.status().job_id.clone();
    world.submitter_ends("Failed", "PodFailurePolicy", EXIT_3);
    assert_eq!(world.settle(5), ["RayJobRetries"]);
    assert_eq!((world.phase(), world.holds()), ("Initializing", None));
    assert_ne!(world.status().job_id, first);
    assert_eq!(world.status().ray_cluster_name, world.status().job_id);
    assert_eq!((world.status().failed, world.created), (Some(1), (1, 2)));
    world.ready("head-2");
    world.settle(6);
    world.submitter_ends("Failed", "PodFailurePolicy", EXIT_3);
    assert_eq!(world.settle(9), ["RayJobFailed"]);
    assert_eq!((world.status().failed, world.created), (Some(2), (2, 2)));
}

#[test]
fn deadlines_stop_a_job() {
    let mut world = World::new(json!({"activeDeadlineSeconds": 60, "backoffLimit": 3}));
    world.run(0, "head-1");
    assert_eq!(world.decide(59).requeue_at, Some(at(60)));
    world.settle(60);
    assert_eq!(world.status().reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!((world.cluster, world.submitter), (None, None));
    let mut world = World::new(json!({"preRunningDeadlineSeconds": 10}));
    world.settle(0);
    world.settle(10);
    let reason = world.status().reason.as_deref();
    assert_eq!(reason, Some("PreRunningDeadlineExceeded"));
    let mut world = World::new(json!({"preRunningDeadlineSeconds": 10}));
    world.run(0, "head-1");
    world.settle(11);
    assert_eq!(world.phase(), "Running");
}

#[test]
fn a_suspended_job_has_no_cluster_and_starts_anew_when_it_is_resumed() {
    let mut world = World::new(json!({"suspend": true}));
    world.settle(0);
    assert_eq!(
        (world.phase(), world.holds()),
        ("Suspended", Some("Suspended"))
    );
    assert_eq!(world.created, (0, 0));
    world.job.spec.suspend = None;
    world.run(1, "head-1");
    let first = world.status().job_id.clone();
    world.job.spec.suspend = Some(true);
    world.settle(2);
    assert_eq!(world.phase(), "Suspended");
    assert!(world.cluster.is_none() && world.submitter.is_none());
    assert_eq!(world.status().failed, None, "a suspension is no failure");
    world.job.spec.suspend = Some(false);
    world.run(3, "head-2");
    assert_ne!(world.status().job_id, first);
    // After its end a job stays as it is.
    world.submitter_ends("Complete", "", "");
    world.settle(4);
    world.job.spec.suspend = Some(true);
    world.settle(5);
    assert_eq!(world.phase(), "Complete");
}

#[test]
fn what_the_spec_says_is_deleted_at_its_time() {
    let rules = json!({"deletionRules": [
        {"policy": "DeleteWorkers", "condition": {"jobStatus": "SUCCEEDED", "ttlSeconds": 5}},
        {"policy": "DeleteCluster", "condition": {"jobDeploymentStatus": "Complete", "ttlSeconds": 9}},
        {"policy": "DeleteSelf", "condition": {"jobStatus": "FAILED"}}]});
    let pod = json!({"spec": {"containers": [{"name": "ray"}]}});
    let workers = json!({"headGroupSpec": {"template": pod},
        "workerGroupSpecs": [{"replicas": 1, "template": pod}]});
    let mut world = World::new(json!({"deletionStrategy": rules, "rayClusterSpec": workers}));
    world.run(0, "head-1");
    world.submitter_ends("Complete", "", "");
    world.settle(10);
    let held = |world: &World| {
        let cluster = world.cluster.as_ref()?;
        cluster.spec.worker_group_specs.as_ref()?[0].suspend
    };
    assert_eq!(world.decide(10).requeue_at, Some(at(15)));
    world.settle(14);
    assert_eq!(held(&world), None);
    world.settle(15);
    assert_eq!(held(&world), Some(true));
    world.settle(19);
    assert!(world.cluster.is_none() && !world.gone);
    let mut world =
        World::new(json!({"shutdownAfterJobFinishes": true, "ttlSecondsAfterFinished": 4}));
    world.run(0, "head-1");
    world.submitter_ends("Complete", "", "");
    world.settle(13);
    assert!(world.cluster.is_some());
    world.settle(17);
    assert!(world.cluster.is_none() && world.submitter.is_some() && !world.gone);
    let mut world =
        World::new(json!({"deletionStrategy": {"onFailure": {"policy": "DeleteSelf"}}}));
    world.run(0, "head-1");
    world.submitter_ends("Failed", "PodFailurePolicy", EXIT_3);
    world.settle(1);
    assert!(world.gone);
}

fn selecting(user: &str) -> World {
    let mut world = World::new(json!({"rayClusterSpec": null,
        "clusterSelector": {"ray.io/cluster": "shared"}}));
    let cluster = json!({"metadata": {"name": "shared", "namespace": "team", "uid": "other",
        "annotations": {"muster.io/user": user}},
        "spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "ray"}]}}}}});
    world.settle(0);
    assert_eq!(world.decide(0).requeue_at, Some(at(5)), "it looks again");
    world.cluster = Some(serde_json::from_value(cluster).unwrap());
    world.ready("head-1");
    world.settle(1);
    world
}

#[test]
fn a_selected_cluster_is_used_if_it_runs_for_the_same_user_and_is_never_deleted() {
    let mut world = selecting("ann");
    assert_eq!(world.phase(), "Running");
    world.job.spec.active_deadline_seconds = Some(30);
    world.settle(40);
    assert_eq!(world.phase(), "Failed");
    assert!(world.cluster.is_some() && world.submitter.is_none());
    let world = selecting("bob");
    assert_eq!(
        world.status().reason.as_deref(),
        Some("ClusterOfAnotherUser")
    );
    assert_eq!(world.created, (0, 0));
}

#[test]
fn in_interactive_mode_the_user_submits_and_the_job_follows() {
    let mut world = World::new(json!({"submissionMode": "InteractiveMode", "entrypoint": null}));
    world.settle(0);
    world.ready("head-1");
    world.settle(1);
    assert_eq!((world.phase(), world.created.0), ("Waiting", 0));
    let notes = world.job.metadata.annotations.get_or_insert_default();
    notes.insert(names::RAY_SUBMISSION_ID.to_owned(), "mine".to_owned());
    world.settle(2);
    assert_eq!(world.phase(), "Running");
    assert_eq!(world.status().job_id.as_deref(), Some("mine"));
    let submitter = world.submitter.as_ref().unwrap().spec.as_ref().unwrap();
    let pod = submitter.template.spec.as_ref().unwrap();
    let env = pod.containers[0].env.as_ref().unwrap();
    let program = env.iter().find(|one| one.name == "MUSTER_RAY_JOB").unwrap();
    let program: Value = serde_json::from_str(program.value.as_ref().unwrap()).unwrap();
    assert!(program["entrypoint"].is_null(), "it only follows");
}

#[test]
fn an_invalid_or_foreign_job_creates_nothing() {
    let mut world = World::new(json!({"submissionMode": "SSHMode"}));
    assert_eq!(world.settle(0), ["RayJobFailed"]);
    assert_eq!(world.phase(), "ValidationFailed");
    world.job.spec.submission_mode = None;
    world.settle(1);
    assert_eq!((world.phase(), world.holds()), ("Initializing", None));
    let mut world = World::new(json!({"managedBy": "kueue.x-k8s.io/multikueue"}));
    assert!(world.settle(0).is_empty());
    assert_eq!(world.status(), &RayJobStatus::default());
}
