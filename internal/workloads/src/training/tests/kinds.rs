//! What sets each kind apart: the variables and ports that its replicas are given, and when it has succeeded.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use resources::kinds::{JAXJob, PaddleJob, TFJob, XGBoostJob};
use serde_json::{Value, json};

use super::world::at;
use crate::action::{Action, ReconcileOutcome};
use crate::training::{Network, ObservedTrainingJob, TrainingJob, reconcile};

/// A job of `kind` whose replicas are those counted in `specs`, with policy Never unless they name one.
fn job<K: serde::de::DeserializeOwned>(kind: &str, field: &str, specs: &Value, more: &Value) -> K {
    let mut replicas = json!({});
    for (role, count) in specs.as_object().unwrap() {
        replicas[role] = json!({"replicas": count,
            "template": {"spec": {"containers": [{"name": "main", "command": ["train"]}]}}});
    }
    let mut spec = json!({field: replicas});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({"apiVersion": "kubeflow.org/v1", "kind": kind,
        "metadata": {"name": "j", "namespace": "team", "uid": "u"}, "spec": spec}))
    .unwrap()
}

fn tf(specs: &Value, more: &Value) -> TFJob {
    job("TFJob", "tfReplicaSpecs", specs, more)
}

fn shared(ports: std::ops::RangeInclusive<u16>) -> Network {
    Network::HostShared { ports }
}

fn decided(
    job: &impl TrainingJob,
    pods: &[&Pod],
    network: &Network,
) -> ReconcileOutcome<resources::kinds::TrainingJobStatus> {
    let observed = ObservedTrainingJob {
        job: job.view(),
        pods,
        pod_group: None,
        services: &[],
        config_maps: &[],
        taken_ports: &BTreeSet::from([16_001]),
        network,
        scheduler_name: "muster",
        room: crate::pod_room::PodRoom::default(),
    };
    reconcile(&observed, at(0))
}

fn created(job: &impl TrainingJob, network: &Network) -> Vec<Pod> {
    let actions = decided(job, &[], network).actions.into_iter();
    actions
        .filter_map(|action| match action {
            Action::CreatePod(pod) => Some(*pod),
            _ => None,
        })
        .collect()
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap()
}

/// `NAME=value` of each variable with a value.
fn variables(pods: &[Pod], of: &str) -> Vec<String> {
    let pod = pods
        .iter()
        .find(|pod| name(pod) == of)
        .expect("the pod is created");
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let all = container.env.iter().flatten();
    all.filter_map(|one| Some(format!("{}={}", one.name, one.value.as_ref()?)))
        .collect()
}

/// The pods with these phases, as the job's controller sees them.
fn with_phases(job: &impl TrainingJob, phases: &[(&str, &str)]) -> Vec<Pod> {
    let mut pods = created(job, &Network::PerPod);
    for (number, pod) in pods.iter_mut().enumerate() {
        let phase = phases.iter().find(|(one, _)| *one == name(pod));
        pod.metadata.uid = Some(format!("pod-{number}"));
        pod.status = Some(PodStatus {
            phase: Some(phase.map_or("Running", |(_, phase)| *phase).to_owned()),
            ..PodStatus::default()
        });
    }
    pods
}

/// The conditions that hold once the pods have these phases.
fn holds(job: &impl TrainingJob, phases: &[(&str, &str)]) -> Vec<String> {
    let pods = with_phases(job, phases);
    let pods: Vec<&Pod> = pods.iter().collect();
    let status = decided(job, &pods, &Network::PerPod).status;
    let held = status.conditions.iter().filter(|one| one.status == "True");
    held.map(|one| format!("{:?}", one.type_)).collect()
}

#[test]
fn tensorflow_replicas_know_all_addresses_and_their_own_task() {
    let job = tf(&json!({"Chief": 1, "Worker": 2, "PS": 1}), &json!({}));
    let pods = created(&job, &Network::PerPod);
    let config = |pod: &str, role: &str, index: u32| {
        let cluster = json!({
            "chief": ["j-chief-0.team.svc:2222"],
            "ps": ["j-ps-0.team.svc:2222"],
            "worker": ["j-worker-0.team.svc:2222", "j-worker-1.team.svc:2222"],
        });
        let expected = json!({"cluster": cluster, "task": {"type": role, "index": index}, "environment": "cloud"});
        let found = variables(&pods, pod);
        assert_eq!(found[0], "PYTHONUNBUFFERED=1");
        let text = found[1].strip_prefix("TF_CONFIG=").unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), expected);
    };
    config("j-chief-0", "chief", 0);
    config("j-worker-1", "worker", 1);
    config("j-ps-0", "ps", 0);
    let alone = created(&tf(&json!({"Worker": 1}), &json!({})), &Network::PerPod);
    assert_eq!(variables(&alone, "j-worker-0"), ["PYTHONUNBUFFERED=1"]);
}

#[test]
fn a_dynamic_tensorflow_worker_sees_itself_and_the_parameter_servers() {
    let job = tf(
        &json!({"Worker": 2, "PS": 2}),
        &json!({"enableDynamicWorker": true}),
    );
    let pods = created(&job, &Network::PerPod);
    let config = |pod: &str| variables(&pods, pod)[1].clone();
    assert_eq!(
        config("j-worker-1"),
        "TF_CONFIG={\"cluster\":{\"worker\":{\"1\":\"j-worker-1.team.svc:2222\"},\
         \"ps\":[\"j-ps-0.team.svc:2222\",\"j-ps-1.team.svc:2222\"]},\
         \"task\":{\"type\":\"worker\",\"index\":1}}"
    );
    assert_eq!(
        config("j-ps-1"),
        "TF_CONFIG={\"cluster\":{\"ps\":[\"j-ps-1.team.svc:2222\"]},\"task\":{\"type\":\"ps\",\"index\":1}}"
    );
}

#[test]
fn tensorflow_replicas_that_share_an_address_have_ports_in_a_row() {
    let job = tf(&json!({"Worker": 2, "PS": 1}), &json!({}));
    // 16001 is taken, so three in a row start at 16002.
    let network = shared(16_000..=16_009);
    let pods = created(&job, &network);
    let text = variables(&pods, "j-ps-0")[1].clone();
    for address in [
        "j-worker-0.team.svc:16002",
        "j-worker-1.team.svc:16003",
        "j-ps-0.team.svc:16004",
    ] {
        assert!(text.contains(address), "{text}");
    }
    let outcome = decided(&job, &[], &network);
    let port = outcome.annotations.get("muster.io/rendezvous-port");
    assert_eq!(port, Some(&Some("16002".to_owned())));
    assert_eq!(crate::training::ports_needed(&job), 3);
    // Too short a range is told, and creates nothing.
    assert!(created(&job, &shared(16_000..=16_003)).is_empty());
    let event = decided(&job, &[], &shared(16_000..=16_003)).events.pop();
    assert_eq!(event.unwrap().reason, "NoRendezvousPort");
}

#[test]
fn xgboost_replicas_know_the_tracker_and_the_workers() {
    let job: XGBoostJob = job(
        "XGBoostJob",
        "xgbReplicaSpecs",
        &json!({"Master": 1, "Worker": 2}),
        &json!({}),
    );
    let pods = created(&job, &Network::PerPod);
    assert_eq!(
        variables(&pods, "j-worker-1"),
        [
            "PYTHONUNBUFFERED=1",
            "MASTER_PORT=9999",
            "MASTER_ADDR=j-master-0",
            "WORLD_SIZE=3",
            "RANK=2",
            "WORKER_PORT=9999",
            "WORKER_ADDRS=j-worker-0,j-worker-1",
        ]
    );
    assert_eq!(variables(&pods, "j-master-0")[4], "RANK=0");
}

#[test]
fn paddle_rank_0_gets_its_own_address_and_the_others_its_name() {
    let collective: PaddleJob = job(
        "PaddleJob",
        "paddleReplicaSpecs",
        &json!({"Worker": 2}),
        &json!({}),
    );
    let pods = created(&collective, &Network::PerPod);
    assert_eq!(
        variables(&pods, "j-worker-0"),
        [
            "PYTHONUNBUFFERED=1",
            "PADDLE_JOB_ID=j",
            "PADDLE_NNODES=2",
            "PADDLE_MASTER=$(POD_IP_DUMMY):36543",
        ]
    );
    assert_eq!(
        variables(&pods, "j-worker-1")[3],
        "PADDLE_MASTER=j-worker-0:36543"
    );
    let own = pods[0].spec.as_ref().unwrap().containers[0]
        .env
        .as_ref()
        .unwrap();
    let source = own.iter().find_map(|one| one.value_from.as_ref()).unwrap();
    assert_eq!(
        source.field_ref.as_ref().unwrap().field_path,
        "status.podIP"
    );

    let servers: PaddleJob = job(
        "PaddleJob",
        "paddleReplicaSpecs",
        &json!({"Master": 1, "Worker": 1}),
        &json!({}),
    );
    let pods = created(&servers, &Network::PerPod);
    assert_eq!(variables(&pods, "j-master-0")[3], "PADDLE_SERVER_NUM=1");
    assert_eq!(
        variables(&pods, "j-worker-0")[3..],
        ["PADDLE_TRAINER_NUM=1", "PADDLE_MASTER=j-master-0:36543"]
    );
}

#[test]
fn jax_processes_know_the_coordinator() {
    let job: JAXJob = job(
        "JAXJob",
        "jaxReplicaSpecs",
        &json!({"Worker": 2}),
        &json!({}),
    );
    let pods = created(&job, &Network::PerPod);
    assert_eq!(
        variables(&pods, "j-worker-1"),
        [
            "PYTHONUNBUFFERED=1",
            "COORDINATOR_PORT=6666",
            "COORDINATOR_ADDRESS=j-worker-0",
            "NUM_PROCESSES=2",
            "PROCESS_ID=1",
            "JAX_COORDINATOR_ADDRESS=j-worker-0:6666",
        ]
    );
}

#[test]
fn the_replicas_that_decide_on_success_are_the_kinds_own() {
    let done = ["Created", "Succeeded"];
    let runs = ["Created", "Running"];
    let workers = json!({"Worker": 2});
    type Row = (
        TFJob,
        &'static [(&'static str, &'static str)],
        [&'static str; 2],
    );
    let table: [Row; 5] = [
        (
            tf(&workers, &json!({})),
            &[("j-worker-0", "Succeeded")],
            done,
        ),
        (
            tf(&workers, &json!({})),
            &[("j-worker-1", "Succeeded")],
            runs,
        ),
        (
            tf(&workers, &json!({"successPolicy": "AllWorkers"})),
            &[("j-worker-0", "Succeeded")],
            runs,
        ),
        (
            tf(&workers, &json!({"successPolicy": "AllWorkers"})),
            &[("j-worker-0", "Succeeded"), ("j-worker-1", "Succeeded")],
            done,
        ),
        (
            tf(&json!({"Chief": 1, "Worker": 1}), &json!({})),
            &[("j-worker-0", "Succeeded")],
            runs,
        ),
    ];
    for (job, phases, expected) in &table {
        assert_eq!(holds(job, phases), *expected, "{phases:?}");
    }
    let jax: JAXJob = job("JAXJob", "jaxReplicaSpecs", &workers, &json!({}));
    assert_eq!(holds(&jax, &[("j-worker-0", "Succeeded")]), runs);
    let all = [("j-worker-0", "Succeeded"), ("j-worker-1", "Succeeded")];
    assert_eq!(holds(&jax, &all), done);
}

#[test]
fn a_failed_worker_fails_a_tensorflow_job_unless_workers_come_and_go() {
    let specs = json!({"Worker": 2, "PS": 1});
    let failed: &[(&str, &str)] = &[("j-worker-1", "Failed")];
    assert_eq!(
        holds(&tf(&specs, &json!({})), failed),
        ["Created", "Failed"]
    );
    let dynamic = tf(&specs, &json!({"enableDynamicWorker": true}));
    assert_eq!(holds(&dynamic, failed), ["Created", "Running"]);
    let server: &[(&str, &str)] = &[("j-ps-0", "Failed")];
    assert_eq!(holds(&dynamic, server), ["Created", "Failed"]);
}

#[test]
fn the_leading_replica_of_a_tensorflow_job_has_its_label() {
    let role = |job: &TFJob, pod: &str| {
        let pods = created(job, &Network::PerPod);
        let pod = pods.iter().find(|one| name(one) == pod).unwrap();
        let labels = pod.metadata.labels.as_ref().unwrap();
        labels.get("training.kubeflow.org/job-role").cloned()
    };
    let with_chief = tf(&json!({"Chief": 1, "Worker": 1}), &json!({}));
    assert_eq!(role(&with_chief, "j-chief-0").as_deref(), Some("master"));
    assert_eq!(role(&with_chief, "j-worker-0"), None);
    let without = tf(&json!({"Worker": 2}), &json!({}));
    assert_eq!(role(&without, "j-worker-0").as_deref(), Some("master"));
    assert_eq!(role(&without, "j-worker-1"), None);
}

#[test]
fn a_spec_that_no_kind_can_run_is_refused_with_its_field() {
    let refused = |job: &dyn Fn() -> ReconcileOutcome<resources::kinds::TrainingJobStatus>| {
        let status = job().status;
        status.conditions[0].message.clone().unwrap()
    };
    let both = tf(&json!({"Chief": 1, "Master": 1}), &json!({}));
    let said = refused(&|| decided(&both, &[], &Network::PerPod));
    assert!(
        said.contains("spec.tfReplicaSpecs: Chief and Master"),
        "{said}"
    );
    let none: XGBoostJob = job(
        "XGBoostJob",
        "xgbReplicaSpecs",
        &json!({"Worker": 1}),
        &json!({}),
    );
    let said = refused(&|| decided(&none, &[], &Network::PerPod));
    assert!(
        said.contains("spec.xgbReplicaSpecs: give a Master"),
        "{said}"
    );
    let master: JAXJob = job(
        "JAXJob",
        "jaxReplicaSpecs",
        &json!({"Master": 1}),
        &json!({}),
    );
    let said = refused(&|| decided(&master, &[], &Network::PerPod));
    assert!(
        said.contains("\"Master\" is not a replica type; use Worker"),
        "{said}"
    );
}

#[test]
fn a_lost_node_is_charged_to_no_job_of_any_kind() {
    fn check(job: &impl TrainingJob, role: &str) {
        let mut pods = created(job, &Network::PerPod);
        for (number, pod) in pods.iter_mut().enumerate() {
            pod.metadata.uid = Some(format!("u-{number}"));
            pod.status = Some(PodStatus {
                phase: Some("Running".to_owned()),
                ..PodStatus::default()
            });
        }
        let lost = pods
            .iter_mut()
            .find(|pod| name(pod).contains(role))
            .unwrap();
        let status = lost.status.as_mut().unwrap();
        (status.phase, status.reason) = (Some("Failed".to_owned()), Some("NodeLost".to_owned()));
        let uid = lost.metadata.uid.clone();
        let all: Vec<&Pod> = pods.iter().collect();
        let outcome = decided(job, &all, &Network::PerPod);
        let kind = job.view().kind.kind;
        assert!(
            outcome.status.completion_time.is_none(),
            "{kind}: {:?}",
            outcome.status
        );
        let replaced = outcome.actions.iter().any(|action| {
            matches!(action, Action::DeletePod { uid: deleted, .. } if Some(deleted) == uid.as_ref())
        });
        assert!(replaced, "{kind}: {:?}", outcome.actions);
        let record = outcome.annotations["muster.io/failure"].clone().unwrap();
        assert!(
            record.contains(r#""class":"node-lost""#) && record.contains(r#""charged":false"#),
            "{kind}: {record}"
        );
    }
    let policy = json!({"runPolicy": {"backoffLimit": 0}});
    let both = json!({"Master": 1, "Worker": 2});
    check(&tf(&json!({"Chief": 1, "Worker": 2}), &policy), "worker");
    check(
        &job::<XGBoostJob>("XGBoostJob", "xgbReplicaSpecs", &both, &policy),
        "worker",
    );
    check(
        &job::<PaddleJob>("PaddleJob", "paddleReplicaSpecs", &both, &policy),
        "worker",
    );
    check(
        &job::<JAXJob>("JAXJob", "jaxReplicaSpecs", &json!({"Worker": 2}), &policy),
        "worker",
    );
    let pair = json!({"Launcher": 1, "Worker": 2});
    check(
        &job::<resources::kinds::MPIJob>("MPIJob", "mpiReplicaSpecs", &pair, &policy),
        "worker",
    );
}
