//! MPIJob: hostfiles, the variables of each implementation, the launcher's way to the workers, the gang and its end.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, PodStatus, Service};
use k8s_openapi::api::rbac::v1::Role;
use resources::kinds::{MPIJob, PodGroup, TrainingJobStatus};
use serde_json::{Value, json};

use super::world::at;
use crate::action::{Action, Dependent, ReconcileOutcome};
use crate::training::{Network, ObservedTrainingJob, TrainingJob as _, reconcile};

const SHARED: Network = Network::HostShared {
    ports: 15_900..=15_900,
};

/// A job of a launcher and workers, with these further fields of the spec.
fn job(workers: u32, more: &Value) -> MPIJob {
    let replica = |count: u32, command: Value| {
        json!({"replicas": count, "template": {"spec": {"containers": [
            {"name": "mpi", "command": command, "resources": {"requests": {"cpu": "1"}}}]}}})
    };
    let mut spec = json!({"mpiReplicaSpecs": {
        "Launcher": replica(1, json!(["mpirun", "true"])),
        "Worker": replica(workers, json!([])),
    }});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(
        json!({"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob",
        "metadata": {"name": "j", "namespace": "team", "uid": "0123456789"}, "spec": spec}),
    )
    .unwrap()
}

#[derive(Default)]
struct Seen {
    pods: Vec<Pod>,
    config_maps: Vec<ConfigMap>,
}

fn decided(job: &MPIJob, seen: &Seen, network: &Network) -> ReconcileOutcome<TrainingJobStatus> {
    let observed = ObservedTrainingJob {
        job: job.view(),
        pods: &seen.pods.iter().collect::<Vec<_>>(),
        pod_group: None,
        services: &[],
        config_maps: &seen.config_maps.iter().collect::<Vec<_>>(),
        taken_ports: &BTreeSet::new(),
        network,
        scheduler_name: "muster",
        room: crate::pod_room::PodRoom::default(),
    };
    reconcile(&observed, at(0))
}

fn pods(actions: &[Action]) -> BTreeMap<String, Pod> {
    let created = actions.iter().filter_map(|action| match action {
        Action::CreatePod(pod) => Some(pod.as_ref().clone()),
        _ => None,
    });
    created
        .map(|pod| (pod.metadata.name.clone().unwrap(), pod))
        .collect()
}

fn config(actions: &[Action]) -> ConfigMap {
    let mut made = actions.iter().filter_map(|action| match action {
        Action::Create(Dependent::ConfigMap(map)) => Some(map.as_ref().clone()),
        _ => None,
    });
    made.next().expect("a ConfigMap is created")
}

fn group(actions: &[Action]) -> PodGroup {
    let mut made = actions.iter().filter_map(|action| match action {
        Action::ApplyPodGroup(group) => Some(group.as_ref().clone()),
        _ => None,
    });
    made.next().expect("a PodGroup is created")
}

fn hostfile(job: &MPIJob, network: &Network) -> String {
    let actions = decided(job, &Seen::default(), network).actions;
    config(&actions).data.unwrap()["hostfile"].clone()
}

/// `NAME=value` of each variable of a pod.
fn variables(pod: &Pod) -> Vec<String> {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let all = container.env.iter().flatten();
    all.map(|one| format!("{}={}", one.name, one.value.clone().unwrap_or_default()))
        .collect()
}

/// The job's pods with these phases.
fn with_phases(job: &MPIJob, phases: &[(&str, &str)]) -> Seen {
    let mut seen = Seen::default();
    let all = decided(&job.clone(), &seen, &SHARED).actions;
    let config = config(&all);
    // Workers that are ready let a launcher that waits for them start.
    let mut all = pods(&all);
    all.extend(pods(
        &decided(&running_workers(job), &seen, &SHARED).actions,
    ));
    for (name, mut pod) in all {
        let Some((_, phase)) = phases.iter().find(|(one, _)| *one == name) else {
            continue;
        };
        pod.metadata.uid = Some(format!("uid-of-{name}"));
        pod.spec.as_mut().unwrap().node_name = Some("node".to_owned());
        let ready = json!([{"type": "Ready", "status": "True"}]);
        pod.status = Some(PodStatus {
            phase: Some((*phase).to_owned()),
            conditions: (*phase == "Running").then(|| serde_json::from_value(ready).unwrap()),
            ..PodStatus::default()
        });
        seen.pods.push(pod);
    }
    seen.config_maps.push(config);
    seen
}

/// The same job, but its launcher does not wait.
fn running_workers(job: &MPIJob) -> MPIJob {
    let mut job = job.clone();
    job.spec.launcher_creation_policy = None;
    job
}

#[test]
fn the_hostfile_has_the_form_of_the_implementation() {
    let form = |implementation: &str, launcher: bool| {
        hostfile(
            &job(
                2,
                &json!({"slotsPerWorker": 4, "mpiImplementation": implementation, "runLauncherAsWorker": launcher}),
            ),
            &Network::PerPod,
        )
    };
    let workers = "j-worker-0.j.team.svc slots=4\nj-worker-1.j.team.svc slots=4\n";
    assert_eq!(form("OpenMPI", false), workers);
    assert_eq!(
        form("OpenMPI", true),
        format!("j-launcher.j.team.svc slots=4\n{workers}")
    );
    let colons = "j-worker-0.j.team.svc:4\nj-worker-1.j.team.svc:4\n";
    assert_eq!(form("Intel", false), colons);
    assert_eq!(form("MPICH", false), colons);
    let one = job(1, &json!({}));
    assert_eq!(hostfile(&one, &SHARED), "j-worker-0.j.team.svc slots=1\n");
    let with_launcher = job(1, &json!({"runLauncherAsWorker": true}));
    assert_eq!(
        hostfile(&with_launcher, &SHARED),
        "j-launcher slots=1\nj-worker-0.j.team.svc slots=1\n"
    );
}

#[test]
fn the_launcher_knows_its_hostfile_and_the_way_to_the_workers() {
    let of = |implementation: &str, network: &Network| {
        let job = job(
            2,
            &json!({"slotsPerWorker": 2, "mpiImplementation": implementation}),
        );
        let pods = pods(&decided(&job, &Seen::default(), network).actions);
        assert_eq!(variables(&pods["j-worker-1"]), ["K_MPI_JOB_ROLE=worker"]);
        variables(&pods["j-launcher"])
    };
    let unseen = ["NVIDIA_VISIBLE_DEVICES=", "NVIDIA_DRIVER_CAPABILITIES="];
    let expect = |found: Vec<String>, middle: &[&str]| {
        let all = ["K_MPI_JOB_ROLE=launcher"]
            .iter()
            .chain(middle)
            .chain(&unseen);
        assert_eq!(found, all.copied().collect::<Vec<_>>());
    };
    let open = [
        "OMPI_MCA_orte_keep_fqdn_hostnames=true",
        "OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile",
        "OMPI_MCA_orte_set_default_slots=2",
        "PRTE_MCA_prte_keep_fqdn_hostnames=true",
        "PRTE_MCA_prte_default_hostfile=/etc/mpi/hostfile",
        "PRTE_MCA_prte_set_default_slots=2",
    ];
    let ssh = [
        "OMPI_MCA_plm_rsh_args=-o ConnectionAttempts=10",
        "PRTE_MCA_plm_ssh_args=-o ConnectionAttempts=10",
    ];
    expect(of("OpenMPI", &Network::PerPod), &[&open[..], &ssh].concat());
    let shared = of("OpenMPI", &SHARED);
    assert!(shared.contains(&"OMPI_MCA_plm_rsh_agent=/etc/mpi/kubexec.sh".to_owned()));
    assert!(shared.contains(&"PRTE_MCA_plm_ssh_agent=/etc/mpi/kubexec.sh".to_owned()));
    expect(
        of("Intel", &SHARED),
        &[
            "I_MPI_HYDRA_HOST_FILE=/etc/mpi/hostfile",
            "I_MPI_PERHOST=2",
            "I_MPI_HYDRA_BOOTSTRAP=rsh",
            "I_MPI_HYDRA_BOOTSTRAP_EXEC=/etc/mpi/kubexec.sh",
        ],
    );
    expect(
        of("MPICH", &Network::PerPod),
        &[
            "HYDRA_HOST_FILE=/etc/mpi/hostfile",
            "HYDRA_LAUNCH_EXTRA_ARGS=-o ConnectionAttempts=10",
        ],
    );
}

#[test]
fn where_pods_share_an_address_the_launcher_may_run_commands_in_its_jobs_pods_alone() {
    let actions = decided(&job(2, &json!({})), &Seen::default(), &SHARED).actions;
    let script = &config(&actions).data.unwrap()["kubexec.sh"];
    assert_eq!(
        script,
        "#!/bin/sh\nexec /run/muster/muster remote-shell -- \"$@\"\n"
    );
    let roles: Vec<&Role> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Create(Dependent::Role(role)) => Some(role.as_ref()),
            _ => None,
        })
        .collect();
    assert_eq!(roles.len(), 1);
    for rule in roles[0].rules.iter().flatten() {
        let names = rule.resource_names.as_ref().unwrap();
        assert_eq!(names, &["j-worker-0", "j-worker-1"]);
    }
    let pods = pods(&actions);
    let launcher = &pods["j-launcher"];
    let account = "j-launcher-01234567";
    let spec = launcher.spec.as_ref().unwrap();
    assert_eq!(spec.service_account_name.as_deref(), Some(account));
    let annotations = launcher.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["muster.io/command-line"], "true");
    let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
    assert_eq!(mounts[0].mount_path, "/etc/mpi");
    // Its workers have no server for SSH: they wait.
    let worker = &pods["j-worker-0"].spec.as_ref().unwrap().containers[0];
    assert_eq!(worker.command.as_ref().unwrap()[0], "/bin/sh");
    let made = |wanted: fn(&Dependent) -> bool| {
        actions
            .iter()
            .filter(|action| matches!(action, Action::Create(one) if wanted(one)))
            .count()
    };
    assert_eq!(made(|one| matches!(one, Dependent::ServiceAccount(_))), 1);
    assert_eq!(made(|one| matches!(one, Dependent::RoleBinding(_))), 1);
    assert_eq!(made(|one| matches!(one, Dependent::SshKeys(_))), 0);
}

#[test]
fn where_every_pod_has_its_address_the_launcher_has_keys_for_ssh() {
    let actions = decided(&job(1, &json!({})), &Seen::default(), &Network::PerPod).actions;
    assert!(!config(&actions).data.unwrap().contains_key("kubexec.sh"));
    let keys = actions
        .iter()
        .any(|action| matches!(action, Action::Create(Dependent::SshKeys(_))));
    assert!(keys);
    let pods = pods(&actions);
    let worker = &pods["j-worker-0"].spec.as_ref().unwrap().containers[0];
    assert_eq!(
        worker.command.as_deref(),
        Some(&["/usr/sbin/sshd".to_owned(), "-De".to_owned()][..])
    );
    for pod in pods.values() {
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(spec.subdomain.as_deref(), Some("j"));
        assert_eq!(spec.service_account_name, None);
        let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
        assert!(mounts.iter().any(|mount| mount.mount_path == "/root/.ssh"));
    }
    let services: Vec<&Service> = actions
        .iter()
        .filter_map(|action| match action {
            Action::CreateService(service) => Some(service.as_ref()),
            _ => None,
        })
        .collect();
    assert_eq!(services.len(), 1);
    assert_eq!(services[0].metadata.name.as_deref(), Some("j"));
    let selector = services[0]
        .spec
        .as_ref()
        .unwrap()
        .selector
        .as_ref()
        .unwrap();
    assert!(!selector.contains_key("training.kubeflow.org/replica-type"));
}

#[test]
fn launcher_and_workers_are_one_gang_unless_the_launcher_waits() {
    let all = decided(&job(2, &json!({})), &Seen::default(), &SHARED).actions;
    assert_eq!(group(&all).spec.min_member, Some(3));
    let waits = job(2, &json!({"launcherCreationPolicy": "WaitForWorkersReady"}));
    let first = decided(&waits, &Seen::default(), &SHARED).actions;
    let spec = group(&first).spec;
    assert_eq!(spec.min_member, Some(2));
    assert!(!spec.min_task_member.unwrap().contains_key("launcher"));
    let names = |actions: &[Action]| pods(actions).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&first), ["j-worker-0", "j-worker-1"]);
    let half = with_phases(
        &waits,
        &[("j-worker-0", "Running"), ("j-worker-1", "Pending")],
    );
    assert!(names(&decided(&waits, &half, &SHARED).actions).is_empty());
    let ready = with_phases(
        &waits,
        &[("j-worker-0", "Running"), ("j-worker-1", "Running")],
    );
    assert_eq!(
        names(&decided(&waits, &ready, &SHARED).actions),
        ["j-launcher"]
    );
}

#[test]
fn the_list_of_hosts_has_the_workers_that_run() {
    let job = job(2, &json!({}));
    let seen = with_phases(
        &job,
        &[
            ("j-launcher", "Running"),
            ("j-worker-0", "Pending"),
            ("j-worker-1", "Running"),
        ],
    );
    let actions = decided(&job, &seen, &SHARED).actions;
    let changed: Vec<&Value> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Change { patch, .. } => Some(patch),
            _ => None,
        })
        .collect();
    assert_eq!(changed.len(), 1);
    assert_eq!(
        changed[0]["data"]["discover_hosts.sh"],
        "#!/bin/sh\necho j-worker-1.j.team.svc\n"
    );
}

#[test]
fn the_launchers_end_is_the_jobs_and_workers_that_run_are_deleted() {
    let held = |job: &MPIJob, phases: &[(&str, &str)]| {
        let outcome = decided(job, &with_phases(job, phases), &SHARED);
        let held = outcome
            .status
            .conditions
            .iter()
            .filter(|one| one.status == "True");
        let types: Vec<String> = held.map(|one| format!("{:?}", one.type_)).collect();
        let deleted = outcome.actions.iter().filter_map(|action| match action {
            Action::DeletePod { name, .. } => Some(name.clone()),
            _ => None,
        });
        (types.join(" "), deleted.collect::<Vec<_>>())
    };
    let plain = job(2, &json!({}));
    let workers = |phase| [("j-worker-0", phase), ("j-worker-1", phase)];
    let all = |launcher, phase| {
        let mut all = vec![("j-launcher", launcher)];
        all.extend(workers(phase));
        all
    };
    assert_eq!(held(&plain, &all("Running", "Pending")).0, "Created");
    assert_eq!(
        held(&plain, &all("Running", "Running")).0,
        "Created Running"
    );
    let (types, deleted) = held(&plain, &all("Succeeded", "Running"));
    assert_eq!(types, "Created Succeeded");
    assert_eq!(deleted, ["j-worker-0", "j-worker-1"]);
    // A worker that ends does not come back.
    let (types, _) = held(
        &plain,
        &[
            ("j-launcher", "Running"),
            ("j-worker-0", "Failed"),
            ("j-worker-1", "Running"),
        ],
    );
    assert_eq!(types, "Created Failed");
    for spec in [
        json!({"runPolicy": {"cleanPodPolicy": "None"}}),
        json!({"cleanPodPolicy": "None"}),
    ] {
        let (_, deleted) = held(&job(2, &spec), &all("Succeeded", "Running"));
        assert!(deleted.is_empty(), "{spec}");
    }
    let elsewhere = job(
        1,
        &json!({"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}}),
    );
    assert!(
        decided(&elsewhere, &Seen::default(), &SHARED)
            .actions
            .is_empty()
    );
    let here = job(
        1,
        &json!({"runPolicy": {"managedBy": "kubeflow.org/mpi-operator"}}),
    );
    assert!(!decided(&here, &Seen::default(), &SHARED).actions.is_empty());
}
