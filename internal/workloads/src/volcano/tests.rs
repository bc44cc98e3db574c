//! Volcano Jobs over time, in a world that carries out what is decided.

mod launch;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::action::Dependent;

/// A namespace with one job, whose pods the test moves.
struct World {
    job: VolcanoJob,
    pods: BTreeMap<String, Pod>,
    group: Option<PodGroup>,
    services: Vec<Service>,
    commands: Vec<VolcanoCommand>,
    files: BTreeMap<String, String>,
    claims: Vec<PersistentVolumeClaim>,
    /// Keys for SSH, service accounts and their rights.
    access: Vec<Dependent>,
    events: Vec<String>,
    made: u32,
    now: Timestamp,
    network: Network,
    deleted: bool,
    requeue_at: Option<Timestamp>,
}

impl World {
    fn new(spec: Value) -> World {
        let job =
            json!({"metadata": {"name": "j", "namespace": "team", "uid": "u-j"}, "spec": spec});
        World {
            job: serde_json::from_value(job).unwrap(),
            pods: BTreeMap::new(),
            group: None,
            services: Vec::new(),
            commands: Vec::new(),
            files: BTreeMap::new(),
            claims: Vec::new(),
            access: Vec::new(),
            events: Vec::new(),
            made: 0,
            now: "2026-11-26T12:00:00Z".parse().unwrap(),
            network: Network::PerPod,
            deleted: false,
            requeue_at: None,
        }
    }

    fn look(&self) -> ReconcileOutcome<VolcanoJobStatus> {
        let pods: Vec<&Pod> = self.pods.values().collect();
        let services: Vec<&Service> = self.services.iter().collect();
        let commands: Vec<&VolcanoCommand> = self.commands.iter().collect();
        let taken = BTreeSet::from([13_000]);
        let observed = ObservedVolcanoJob {
            job: &self.job,
            pods: &pods,
            pod_group: self.group.as_ref(),
            services: &services,
            commands: &commands,
            network: &self.network,
            taken_ports: &taken,
            scheduler_name: "muster",
            room: PodRoom::default(),
        };
        reconcile(&observed, self.now)
    }

    /// Decides and carries out once; true if something changed.
    fn step(&mut self) -> bool {
        let outcome = self.look();
        let mut changed = !outcome.actions.is_empty() || !outcome.annotations.is_empty();
        for (name, value) in outcome.annotations {
            let annotations = self.job.metadata.annotations.get_or_insert_default();
            annotations.insert(name, value.unwrap());
        }
        for action in outcome.actions {
            self.carry_out(action);
        }
        changed |= self.job.status.as_ref() != Some(&outcome.status);
        self.job.status = Some(outcome.status);
        self.events
            .extend(outcome.events.into_iter().map(|event| event.reason));
        self.requeue_at = outcome.requeue_at;
        changed
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::CreatePod(mut pod) => {
                self.made += 1;
                pod.metadata.uid = Some(format!("u-{}", self.made));
                let name = pod.metadata.name.clone().unwrap();
                assert!(!self.pods.contains_key(&name), "{name} exists");
                self.pods.insert(name, *pod);
            }
            Action::DeletePod { name, uid, .. } => {
                assert_eq!(self.pods[&name].metadata.uid.as_deref(), Some(uid.as_str()));
                self.pods.remove(&name);
            }
            Action::ApplyPodGroup(group) => self.group = Some(*group),
            Action::CreateService(service) => self.services.push(*service),
            Action::Create(Dependent::ConfigMap(files)) => {
                self.files.extend(files.data.unwrap());
            }
            Action::Create(Dependent::Claim(claim)) => self.claims.push(*claim),
            Action::Create(access) => self.access.push(access),
            Action::DeletePodGroup { .. } => self.group = None,
            Action::Delete { name, .. } => {
                self.commands
                    .retain(|command| command.metadata.name.as_ref() != Some(&name));
            }
            Action::DeleteJob { .. } => self.deleted = true,
            other => panic!("{other:?}"),
        }
    }

    /// Goes on until nothing changes.
    fn settle(&mut self) {
        for _ in 0..20 {
            if !self.step() || self.deleted {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.job.status);
    }

    fn set(&mut self, pod: &str, status: Value) {
        let pod = self
            .pods
            .get_mut(pod)
            .unwrap_or_else(|| panic!("there is no pod {pod}"));
        pod.status = Some(serde_json::from_value(status).unwrap());
    }

    fn run(&mut self, pod: &str) {
        self.set(
            pod,
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        );
    }

    fn end(&mut self, pod: &str, code: i32) {
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let end = json!({"exitCode": code, "reason": "Error", "finishedAt": self.now.to_string()});
        self.set(
            pod,
            json!({"phase": phase, "containerStatuses": [{"name": "c", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": {"terminated": end}}]}),
        );
    }

    fn later(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    fn phase(&self) -> &str {
        self.job
            .status
            .as_ref()
            .unwrap()
            .state
            .phase
            .as_deref()
            .unwrap()
    }

    fn message(&self) -> &str {
        self.job
            .status
            .as_ref()
            .unwrap()
            .state
            .message
            .as_deref()
            .unwrap()
    }

    fn names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }

    fn env(&self, pod: &str) -> BTreeMap<String, String> {
        let containers = &self.pods[pod].spec.as_ref().unwrap().containers;
        let env = containers[0].env.iter().flatten();
        env.map(|one| (one.name.clone(), one.value.clone().unwrap_or_default()))
            .collect()
    }
}

fn task(name: &str, replicas: i32, more: Value) -> Value {
    let mut task = json!({"name": name, "replicas": replicas, "template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "x", "command": "train.sh",
            "resources": {"requests": {"cpu": "1"}}}]}}});
    task.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    task
}

fn two_workers(more: Value) -> World {
    let mut spec = json!({"tasks": [task("worker", 2, json!({}))]});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let mut world = World::new(spec);
    world.settle();
    world
}

#[test]
fn a_job_is_a_gang_that_runs_and_completes() {
    let mut world = two_workers(json!({"queue": "research", "priorityClassName": "high"}));
    assert_eq!(world.phase(), "Pending");
    assert_eq!(world.names(), ["j-worker-0", "j-worker-1"]);
    let group = &world.group.as_ref().unwrap().spec;
    assert_eq!(
        (group.min_member, group.queue.as_deref()),
        (Some(2), Some("research"))
    );
    assert_eq!(
        group.min_task_member,
        Some(BTreeMap::from([("worker".to_owned(), 2)]))
    );
    assert_eq!(group.min_resources.as_ref().unwrap()["cpu"].0, "2");
    let pod = &world.pods["j-worker-1"];
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(
        spec.containers[0].command,
        Some(vec!["train.sh".to_owned()])
    );
    assert_eq!(spec.priority_class_name.as_deref(), Some("high"));
    assert_eq!(spec.scheduler_name.as_deref(), Some("muster"));
    let labels = pod.metadata.labels.as_ref().unwrap();
    for (name, value) in [
        ("volcano.sh/job-name", "j"),
        ("volcano.sh/task-spec", "worker"),
        ("volcano.sh/task-index", "1"),
        ("volcano.sh/job-version", "0"),
        ("volcano.sh/queue-name", "research"),
    ] {
        assert_eq!(labels.get(name).map(String::as_str), Some(value), "{name}");
    }
    world.run("j-worker-0");
    world.settle();
    assert_eq!(world.phase(), "Pending", "one of two is not enough");
    world.run("j-worker-1");
    world.settle();
    assert_eq!(world.phase(), "Running");
    world.end("j-worker-0", 0);
    world.settle();
    world.end("j-worker-1", 0);
    world.settle();
    assert_eq!(
        (world.phase(), world.message()),
        ("Completed", "2 of 2 pods have succeeded.")
    );
    let status = world.job.status.as_ref().unwrap();
    assert_eq!((status.succeeded, status.running), (Some(2), None));
    let phases: Vec<&str> = (status.conditions.iter().flatten())
        .map(|one| one.status.as_str())
        .collect();
    assert_eq!(phases, ["Pending", "Running", "Completed"]);
    assert!(is_finished(&world.job));
}

#[test]
fn a_job_without_policies_fails_when_too_few_of_its_pods_have_succeeded() {
    let mut world = two_workers(json!({}));
    world.end("j-worker-0", 3);
    world.settle();
    assert_ne!(world.phase(), "Failed", "the other pod may still run");
    world.end("j-worker-1", 0);
    world.settle();
    assert_eq!(
        (world.phase(), world.message()),
        (
            "Failed",
            "Rank 0 (j-worker-0) exited with code 3; 1 of 2 pods have succeeded, and minAvailable is 2."
        )
    );
    // One of two is enough for this one.
    let mut world = two_workers(json!({"minAvailable": 1}));
    world.end("j-worker-0", 3);
    world.end("j-worker-1", 0);
    world.settle();
    assert_eq!(world.phase(), "Completed");
}

#[test]
fn a_job_is_restarted_as_a_whole_until_it_was_run_often_enough() {
    let policy =
        json!({"policies": [{"event": "PodFailed", "action": "RestartJob"}], "maxRetry": 2});
    let mut world = two_workers(policy);
    world.run("j-worker-0");
    world.run("j-worker-1");
    world.settle();
    world.end("j-worker-1", 7);
    world.settle();
    let status = world.job.status.clone().unwrap();
    assert_eq!((status.version, status.retry_count), (Some(1), Some(1)));
    assert_eq!(world.phase(), "Pending");
    assert_eq!(
        world.message(),
        "The job starts again: Rank 1 (j-worker-1) exited with code 7."
    );
    let labels = world.pods["j-worker-0"].metadata.labels.as_ref().unwrap();
    assert_eq!(labels["volcano.sh/job-version"], "1");
    assert_eq!(world.made, 4);
    world.end("j-worker-0", 7);
    world.settle();
    assert_eq!(
        (world.phase(), world.message()),
        (
            "Failed",
            "Rank 0 (j-worker-0) exited with code 7; the job was run 2 times, and maxRetry is 2."
        )
    );
    assert!(world.pods.is_empty());
}

#[test]
fn policies_are_chosen_by_exit_code_and_event_the_tasks_own_first() {
    let of_task = json!({"policies": [{"exitCode": 3, "action": "TerminateJob"}]});
    let spec = json!({
        "tasks": [task("a", 1, of_task), task("b", 1, json!({}))],
        "policies": [{"events": ["PodFailed", "PodEvicted"], "action": "AbortJob"}],
    });
    for (pod, code, end) in [
        ("j-a-0", 3, "Terminated"),
        ("j-a-0", 4, "Aborted"),
        ("j-b-0", 3, "Aborted"),
    ] {
        let mut world = World::new(spec.clone());
        world.settle();
        world.run("j-a-0");
        world.run("j-b-0");
        world.settle();
        world.end(pod, code);
        world.settle();
        assert_eq!(world.phase(), end, "{pod} {code}");
        let rank = u8::from(pod == "j-b-0");
        let words = format!("Rank {rank} ({pod}) exited with code {code}.");
        assert_eq!(world.message(), words);
        // What has ended stays for its log; what ran is stopped.
        assert_eq!(world.names(), [pod]);
    }
    let complete = json!({"policies": [{"event": "TaskCompleted", "action": "CompleteJob"}]});
    let mut world = World::new(json!({"tasks": [task("a", 1, complete), task("b", 1, json!({}))]}));
    world.settle();
    world.run("j-b-0");
    world.end("j-a-0", 0);
    world.settle();
    assert_eq!(
        (world.phase(), world.message()),
        ("Completed", "task a is complete.")
    );
}

#[test]
fn a_pod_or_a_task_is_restarted_alone_and_counts_as_a_retry() {
    let policy = |action: &str| json!({"policies": [{"event": "PodFailed", "action": action}], "maxRetry": 2});
    let mut world = two_workers(policy("RestartPod"));
    world.run("j-worker-0");
    world.end("j-worker-1", 1);
    world.settle();
    assert_eq!(world.made, 3);
    assert_eq!(world.job.status.as_ref().unwrap().retry_count, Some(1));
    // The watch still shows the deleted pod for a while: it is not counted again.
    let stale = world.look();
    assert_eq!(stale.status.retry_count, Some(1));
    world.end("j-worker-1", 1);
    world.settle();
    assert_eq!(world.phase(), "Failed");
    let mut world = two_workers(policy("RestartTask"));
    world.run("j-worker-0");
    world.end("j-worker-1", 1);
    world.settle();
    assert_eq!(world.made, 4);
}

#[test]
fn a_policy_with_a_timeout_waits_and_is_dropped_if_the_pod_recovers() {
    let policy =
        json!({"policies": [{"event": "PodPending", "action": "AbortJob", "timeout": "10m"}]});
    let mut world = two_workers(policy.clone());
    let created = json!({"creationTimestamp": world.now.to_string()});
    for pod in world.pods.values_mut() {
        pod.metadata.creation_timestamp =
            serde_json::from_value(created["creationTimestamp"].clone()).unwrap();
    }
    world.settle();
    assert_eq!(
        world.requeue_at,
        Some(world.now + SignedDuration::from_mins(10))
    );
    world.run("j-worker-0");
    world.run("j-worker-1");
    world.later(700);
    world.settle();
    assert_eq!(world.phase(), "Running");
    let mut world = two_workers(policy);
    for pod in world.pods.values_mut() {
        pod.metadata.creation_timestamp =
            serde_json::from_value(created["creationTimestamp"].clone()).unwrap();
    }
    world.later(600);
    world.settle();
    assert_eq!(world.phase(), "Aborted");
}

#[test]
fn what_the_platform_ended_is_replaced_unless_a_policy_says_otherwise() {
    let lost = json!({"phase": "Failed", "reason": "NodeLost", "message": "The node is gone."});
    let mut world = two_workers(json!({}));
    world.run("j-worker-0");
    world.run("j-worker-1");
    world.settle();
    world.set("j-worker-1", lost.clone());
    world.settle();
    assert_eq!((world.made, world.phase()), (3, "Running"));
    assert_eq!(world.job.status.as_ref().unwrap().retry_count, None);
    let mut world =
        two_workers(json!({"policies": [{"event": "PodEvicted", "action": "RestartJob"}]}));
    for version in 1..6 {
        world.set("j-worker-1", lost.clone());
        world.settle();
        let status = world.job.status.as_ref().unwrap();
        assert_eq!((status.version, status.retry_count), (Some(version), None));
    }
    for (action, made) in [("RestartPod", 7), ("RestartTask", 12)] {
        let mut world =
            two_workers(json!({"policies": [{"event": "PodEvicted", "action": action}]}));
        for _ in 0..5 {
            world.set("j-worker-1", lost.clone());
            world.settle();
        }
        assert_eq!((world.made, world.phase()), (made, "Pending"), "{action}");
        assert_eq!(world.job.status.as_ref().unwrap().retry_count, None);
    }
}

#[test]
fn min_success_ends_a_job_early_and_its_time_to_live_removes_it() {
    let mut world = two_workers(json!({"minSuccess": 1, "ttlSecondsAfterFinished": 60}));
    world.run("j-worker-0");
    world.end("j-worker-1", 0);
    world.settle();
    assert_eq!(world.phase(), "Completed");
    assert_eq!(world.names(), ["j-worker-1"]);
    assert!(!world.deleted);
    world.later(60);
    world.settle();
    assert!(world.deleted);
}

#[test]
fn a_task_waits_for_those_that_it_depends_on() {
    let depends = json!({"dependsOn": {"name": ["ps"]}});
    let mut world = World::new(
        json!({"tasks": [task("ps", 2, json!({"minAvailable": 1})), task("worker", 1, depends)]}),
    );
    world.settle();
    assert_eq!(world.names(), ["j-ps-0", "j-ps-1"]);
    assert_eq!(world.group.as_ref().unwrap().spec.min_member, Some(2));
    world.run("j-ps-1");
    world.settle();
    assert_eq!(world.names(), ["j-ps-0", "j-ps-1", "j-worker-0"]);
    assert_eq!(world.group.as_ref().unwrap().spec.min_member, Some(3));
    // A task that has begun goes on when the other ends.
    world.end("j-ps-1", 0);
    world.settle();
    assert_eq!(world.names().len(), 3);
}

#[test]
fn the_plugins_tell_pods_where_the_others_are() {
    let spec = json!({
        "plugins": {"pytorch": ["--master=master", "--worker=worker"], "env": ["--"], "svc": []},
        "tasks": [task("master", 1, json!({})), task("worker", 2, json!({}))],
    });
    let mut world = World::new(spec.clone());
    world.settle();
    let env = world.env("j-worker-1");
    for (name, value) in [
        ("VC_TASK_INDEX", "1"),
        ("VC_WORKER_HOSTS", "j-worker-0.j,j-worker-1.j"),
        ("VC_MASTER_NUM", "1"),
        ("MASTER_ADDR", "j-master-0.j"),
        ("MASTER_PORT", "23456"),
        ("WORLD_SIZE", "3"),
        ("RANK", "2"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(world.env("j-master-0")["RANK"], "0");
    assert_eq!(world.files["worker.host"], "j-worker-0.j\nj-worker-1.j");
    let pod = world.pods["j-worker-1"].spec.as_ref().unwrap();
    assert_eq!(
        (pod.hostname.as_deref(), pod.subdomain.as_deref()),
        (Some("j-worker-1"), Some("j"))
    );
    let mount = &pod.containers[0].volume_mounts.as_ref().unwrap()[0];
    assert_eq!(mount.mount_path, "/etc/volcano");
    assert_eq!(world.services.len(), 1);
    // Where pods share their node's address, the port is one that no other job holds.
    let mut world = World::new(spec);
    world.network = Network::HostShared {
        ports: names::VOLCANO_PORTS,
    };
    world.settle();
    assert_eq!(world.env("j-worker-0")["MASTER_PORT"], "13001");
    let annotations = world.job.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations[names::RENDEZVOUS_PORT], "13001");
    assert_eq!(ports_needed(&world.job), 1);
}

#[test]
fn tensorflow_tasks_get_their_cluster_each_with_a_port_of_its_own_on_shared_addresses() {
    let tasks = json!([task("ps", 1, json!({})), task("worker", 2, json!({}))]);
    let mut world = World::new(json!({"plugins": {"tensorflow": []}, "tasks": tasks}));
    world.settle();
    let config: Value = serde_json::from_str(&world.env("j-worker-1")["TF_CONFIG"]).unwrap();
    let expected = json!({
        "cluster": {"ps": ["j-ps-0.j:2222"], "worker": ["j-worker-0.j:2222", "j-worker-1.j:2222"]},
        "task": {"type": "worker", "index": 1},
    });
    assert_eq!(config, expected);
    world = World::new(json!({"plugins": {"tensorflow": []}, "tasks": tasks}));
    world.network = Network::HostShared {
        ports: names::VOLCANO_PORTS,
    };
    world.settle();
    let config: Value = serde_json::from_str(&world.env("j-ps-0")["TF_CONFIG"]).unwrap();
    assert_eq!(
        config["cluster"]["worker"],
        json!(["j-worker-0.j:13002", "j-worker-1.j:13003"])
    );
    assert_eq!(ports_needed(&world.job), 3);
}

#[test]
fn volumes_are_mounted_and_described_claims_created() {
    let volumes = json!([
        {"mountPath": "/data", "volumeClaimName": "given"},
        {"mountPath": "/out", "volumeClaim": {"accessModes": ["ReadWriteOnce"]}},
    ]);
    let world = two_workers(json!({"volumes": volumes}));
    let claims: Vec<&str> = (world.claims.iter())
        .map(|claim| claim.metadata.name.as_deref().unwrap())
        .collect();
    assert_eq!(claims, ["j-volume-1"]);
    let spec = world.pods["j-worker-0"].spec.as_ref().unwrap();
    let used: Vec<&str> = (spec.volumes.iter().flatten())
        .map(|volume| {
            volume
                .persistent_volume_claim
                .as_ref()
                .unwrap()
                .claim_name
                .as_str()
        })
        .collect();
    assert_eq!(used, ["given", "j-volume-1"]);
}

#[test]
fn a_job_that_cannot_be_run_says_why_and_creates_nothing() {
    for (plugins, words) in [
        (
            json!({"ray": []}),
            "use a RayJob or RayCluster of ray.io/v1",
        ),
        (
            json!({"horovod": []}),
            "Muster does not run the plugin \"horovod\"; remove it",
        ),
        (
            json!({"pytorch": ["--port=0"]}),
            "spec.plugins[pytorch]: \"--port=0\" is not one of --master=TASK",
        ),
        (
            json!({"mpi": []}),
            "the job has no task \"master\"; name the task whose pods run mpirun by --master=TASK",
        ),
        (
            json!({"mpi": ["--master=worker", "--worker=ranks"]}),
            "the job has no task \"ranks\"; name the task in whose pods the ranks run by --worker=TASK",
        ),
        (
            json!({"mpi": ["--master=worker", "--port=x"]}),
            "spec.plugins[mpi]: \"--port=x\" is not one of --master=TASK",
        ),
        (
            json!({"ssh": ["--ssh-private-key=secret words"]}),
            "--ssh-private-key and --ssh-public-key are a pair",
        ),
        (
            json!({"ssh": ["--ssh-key-file-path=.ssh"]}),
            "spec.plugins[ssh]: \"--ssh-key-file-path\" is not one of --ssh-key-file-path=/PATH",
        ),
    ] {
        let mut world = two_workers(json!({"plugins": plugins}));
        assert!(world.message().contains(words), "{}", world.message());
        assert_eq!((world.phase(), world.made), ("Pending", 0));
        assert_eq!(world.events, ["NotRunnable"]);
        world.settle();
        assert_eq!(world.events.len(), 1);
    }
}

proptest! {
    /// Whatever happens to the pods: decisions come to rest, no name is used twice at a time, and a finished job runs
    /// nothing.
    #[test]
    fn a_job_comes_to_rest_whatever_happens_to_its_pods(
        replicas in prop::collection::vec(0..3_i32, 1..4),
        action in prop::sample::select(vec!["AbortJob", "RestartJob", "RestartTask", "RestartPod", "TerminateJob", "CompleteJob", "SyncJob"]),
        event in prop::sample::select(vec!["*", "PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "PodRunning"]),
        happenings in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8), 0..30),
    ) {
        let tasks: Vec<Value> = (replicas.iter().enumerate())
            .map(|(number, replicas)| task(&format!("t{number}"), *replicas, json!({})))
            .collect();
        let mut world = World::new(json!({"tasks": tasks, "policies": [{"event": event, "action": action}]}));
        world.settle();
        for (index, what) in happenings {
            let names: Vec<String> = world.pods.keys().cloned().collect();
            if names.is_empty() { break; }
            let name = index.get(&names);
            match what {
                0 => world.run(name),
                1 => world.end(name, 0),
                2 => world.end(name, 9),
                _ => world.set(name, json!({"phase": "Failed", "reason": "Evicted"})),
            }
            // A pod that is restarted as soon as it runs never comes to rest.
            if event == "PodRunning" && action.starts_with("Restart") {
                world.step();
            } else {
                world.settle();
            }
            if is_finished(&world.job) {
                world.settle();
                let open = world.pods.values().filter(|pod| !PodPhase::of(pod).is_finished());
                prop_assert_eq!(open.count(), 0, "{}", world.phase());
            }
        }
    }
}

#[test]
fn a_command_is_carried_out_once_and_deleted() {
    let order = |world: &mut World, action: &str| {
        let command = json!({"metadata": {"name": action, "uid": action}, "action": action,
            "target": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": "u-j"}});
        world
            .commands
            .push(serde_json::from_value(command).unwrap());
        world.settle();
        assert!(world.commands.is_empty(), "{action}");
    };
    let running = || {
        let mut world = World::new(json!({"tasks": [task("worker", 2, json!({}))]}));
        world.settle();
        world.run("j-worker-0");
        world.run("j-worker-1");
        world.settle();
        world
    };
    let mut world = running();
    let first = world.pods["j-worker-0"].metadata.uid.clone();
    order(&mut world, "AbortJob");
    assert_eq!(world.phase(), "Aborted");
    assert!(world.pods.is_empty() && world.group.is_none());
    assert!(
        world
            .message()
            .contains("Command AbortJob asks for AbortJob.")
    );
    order(&mut world, "ResumeJob");
    assert_eq!(world.phase(), "Pending");
    assert_ne!(world.pods["j-worker-0"].metadata.uid, first);
    assert_eq!(
        world.job.status.as_ref().unwrap().retry_count,
        None,
        "a resumed job spends no retry"
    );
    world.run("j-worker-0");
    world.run("j-worker-1");
    world.settle();
    let second = world.pods["j-worker-0"].metadata.uid.clone();
    order(&mut world, "RestartJob");
    assert_ne!(world.pods["j-worker-0"].metadata.uid, second);
    assert_eq!(world.job.status.as_ref().unwrap().retry_count, Some(1));
    world.run("j-worker-0");
    world.end("j-worker-1", 3);
    world.settle();
    let failed = world.pods["j-worker-1"].metadata.uid.clone();
    order(&mut world, "RestartTask");
    assert_ne!(world.pods["j-worker-1"].metadata.uid, failed);
    order(&mut world, "TerminateJob");
    assert_eq!(world.phase(), "Terminated");
    order(&mut world, "ResumeJob");
    assert_eq!(world.phase(), "Terminated");
    assert_eq!(world.events.last().unwrap(), "CommandDropped");
    let mut world = running();
    order(&mut world, "CompleteJob");
    assert_eq!(world.phase(), "Completed");

    // Both at once: the job stops, and then starts.
    let mut world = running();
    for action in ["AbortJob", "ResumeJob"] {
        let command = json!({"metadata": {"name": action, "uid": action}, "action": action});
        world
            .commands
            .push(serde_json::from_value(command).unwrap());
    }
    world.settle();
    assert!(world.commands.is_empty());
    assert_eq!(
        (world.phase(), world.job.status.as_ref().unwrap().version),
        ("Pending", Some(1))
    );
}
