//! The ssh and mpi plugins: keys, hosts, and the way from the master to the workers.

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::rbac::v1::Role;

use super::*;
use crate::action::SshKeys;

const SHARED: Network = Network::HostShared {
    ports: names::VOLCANO_PORTS,
};
/// The worker of Volcano's example.
const SSH_SERVER: &str = "mkdir -p /var/run/sshd; /usr/sbin/sshd -D;";

fn script(name: &str, replicas: i32, script: &str) -> Value {
    let mut task = task(name, replicas, json!({}));
    let container = &mut task["template"]["spec"]["containers"][0];
    container["command"] = json!(["/bin/sh", "-c", script]);
    task
}

/// A job of a master and two workers on this network.
fn job(plugins: &Value, network: &Network) -> World {
    let tasks = [
        script("master", 1, "mpiexec --host ${MPI_HOST} -np 2 hello"),
        script("worker", 2, SSH_SERVER),
    ];
    let mut world = World::new(json!({"plugins": plugins, "tasks": tasks}));
    world.network = network.clone();
    world.settle();
    assert_eq!(
        world.names(),
        ["j-master-0", "j-worker-0", "j-worker-1"],
        "{}",
        world.message()
    );
    world
}

impl World {
    fn spec(&self, pod: &str) -> &PodSpec {
        self.pods[pod].spec.as_ref().unwrap()
    }

    fn command(&self, pod: &str) -> Vec<&str> {
        let words = self.spec(pod).containers[0].command.iter().flatten();
        words.map(String::as_str).collect()
    }

    fn mounts(&self, pod: &str) -> Vec<&str> {
        let mounts = self.spec(pod).containers[0].volume_mounts.iter().flatten();
        mounts.map(|mount| mount.mount_path.as_str()).collect()
    }

    fn ports(&self, pod: &str) -> Vec<i32> {
        let ports = self.spec(pod).containers[0].ports.iter().flatten();
        ports.map(|port| port.container_port).collect()
    }

    fn keys(&self) -> Option<&SshKeys> {
        self.access.iter().find_map(|one| match one {
            Dependent::SshKeys(keys) => Some(keys.as_ref()),
            _ => None,
        })
    }

    fn roles(&self) -> Vec<&Role> {
        let roles = self.access.iter().filter_map(|one| match one {
            Dependent::Role(role) => Some(role.as_ref()),
            _ => None,
        });
        roles.collect()
    }
}

fn text(keys: &SshKeys, file: &str) -> String {
    let data = keys.secret.data.as_ref().unwrap();
    String::from_utf8(data[file].0.clone()).unwrap()
}

#[test]
fn the_master_runs_commands_in_its_jobs_workers_alone_where_pods_share_an_address() {
    let world = job(&json!({"mpi": []}), &SHARED);
    let env = world.env("j-master-0");
    for (name, value) in [
        ("MPI_HOST", "j-worker-0.j,j-worker-1.j"),
        ("VC_WORKER_NUM", "2"),
        ("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh"),
        ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
        ("PRTE_MCA_plm_ssh_agent", "/etc/mpi/kubexec.sh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "/etc/mpi/kubexec.sh"),
        ("HYDRA_LAUNCHER_EXEC", "/etc/mpi/kubexec.sh"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!world.env("j-worker-0").contains_key("MPI_HOST"));
    assert_eq!(
        world.files["kubexec.sh"],
        "#!/bin/sh\nexec /run/muster/muster remote-shell -- \"$@\"\n"
    );
    let roles = world.roles();
    assert_eq!(roles.len(), 1);
    for rule in roles[0].rules.iter().flatten() {
        let names = rule.resource_names.as_ref().unwrap();
        assert_eq!(names, &["j-worker-0", "j-worker-1"]);
    }
    let account = "j-mpi-u-j";
    assert_eq!(
        world.spec("j-master-0").service_account_name.as_deref(),
        Some(account)
    );
    assert_eq!(world.spec("j-worker-0").service_account_name, None);
    let annotations = world.pods["j-master-0"]
        .metadata
        .annotations
        .as_ref()
        .unwrap();
    assert_eq!(annotations[names::COMMAND_LINE], "true");
    // No SSH server runs on a shared address: the workers wait, and no keys are made.
    assert_eq!(
        world.command("j-master-0")[2],
        "mpiexec --host ${MPI_HOST} -np 2 hello"
    );
    assert_eq!(
        world.command("j-worker-1"),
        resources::training::MPI_WORKER_COMMAND
    );
    assert!(world.keys().is_none());
    for pod in world.names() {
        assert_eq!(world.mounts(pod), ["/etc/volcano", "/etc/mpi"], "{pod}");
        assert_eq!(world.ports(pod), [22], "{pod}");
    }
    let made = world.job.status.as_ref().unwrap();
    let made = made.controlled_resources.as_ref().unwrap();
    let made: Vec<&str> = made.keys().map(String::as_str).collect();
    assert_eq!(made, ["plugin-mpi", "plugin-svc"]);
}

#[test]
fn the_master_uses_ssh_where_every_pod_has_an_address() {
    let plugins = json!({"mpi": ["--port=2222"]});
    let world = job(&plugins, &Network::PerPod);
    let env = world.env("j-master-0");
    assert_eq!(env["MPI_HOST"], "j-worker-0.j,j-worker-1.j");
    assert!(!env.contains_key("OMPI_MCA_plm_rsh_agent"));
    assert!(world.roles().is_empty());
    assert!(!world.files.contains_key("kubexec.sh"));
    assert_eq!(world.command("j-worker-0")[2], SSH_SERVER);
    for pod in world.names() {
        assert_eq!(world.mounts(pod), ["/etc/volcano", "/root/.ssh"], "{pod}");
        assert_eq!(world.ports(pod), [2222], "{pod}");
        assert_eq!(world.spec(pod).service_account_name, None);
    }
    let keys = world.keys().unwrap();
    assert_eq!(keys.secret.metadata.name.as_deref(), Some("j-ssh"));
    assert_eq!(
        (keys.private, keys.public),
        ("id_rsa", &["id_rsa.pub", "authorized_keys"][..])
    );
    assert_eq!(
        text(keys, "config"),
        "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nIdentityFile /root/.ssh/id_rsa\n\
         Host j-master-0 j-master-0.j\n  HostName j-master-0.j\n  Port 22\n\
         Host j-worker-0 j-worker-0.j\n  HostName j-worker-0.j\n  Port 22\n\
         Host j-worker-1 j-worker-1.j\n  HostName j-worker-1.j\n  Port 22\n"
    );
    let volumes = world.spec("j-worker-0").volumes.as_ref().unwrap();
    let volume = volumes.iter().find(|one| one.name == "j-ssh").unwrap();
    let files = volume.secret.as_ref().unwrap();
    assert_eq!(files.secret_name.as_deref(), Some("j-ssh"));
    let items = files.items.as_ref().unwrap();
    assert!(items.iter().all(|item| item.mode == Some(0o600)));
    let paths: Vec<&str> = items.iter().map(|item| item.path.as_str()).collect();
    assert_eq!(paths, ["id_rsa", "id_rsa.pub", "authorized_keys", "config"]);
}

#[test]
fn the_ssh_plugin_takes_a_path_a_port_and_a_pair_of_keys() {
    // Where pods do not run as root, the files are where every user may go.
    let world = job(&json!({"ssh": ["--no-root"]}), &SHARED);
    assert_eq!(world.mounts("j-worker-0"), ["/etc/volcano-ssh"]);
    assert_eq!(world.command("j-worker-0")[2], SSH_SERVER);
    let config = text(world.keys().unwrap(), "config");
    assert!(
        config.contains("IdentityFile /etc/volcano-ssh/id_rsa\n"),
        "{config}"
    );
    let given = json!({"ssh": ["--ssh-key-file-path=/home/ann/.ssh", "--ssh-port=2026",
        "--ssh-private-key=-----BEGIN KEY-----\nA==\n-----END KEY-----", "--ssh-public-key=ssh-rsa A== x"]});
    for network in [&SHARED, &Network::PerPod] {
        let world = job(&given, network);
        assert_eq!(world.mounts("j-master-0"), ["/home/ann/.ssh"]);
        let keys = world.keys().unwrap();
        assert_eq!(
            text(keys, "id_rsa"),
            "-----BEGIN KEY-----\nA==\n-----END KEY-----\n"
        );
        assert_eq!(text(keys, "authorized_keys"), "ssh-rsa A== x");
        let config = text(keys, "config");
        assert!(config.contains("IdentityFile /home/ann/.ssh/id_rsa\n"));
        assert!(config.contains("  Port 2026\n"), "{config}");
        assert!(world.ports("j-master-0").is_empty());
    }
}

#[test]
fn keys_and_rights_are_created_again_with_each_pod_and_never_without_one() {
    let mut world = job(&json!({"mpi": [], "ssh": []}), &SHARED);
    let made = world.access.len();
    world.settle();
    assert_eq!(world.access.len(), made);
    world.run("j-master-0");
    world.run("j-worker-0");
    world.run("j-worker-1");
    world.set(
        "j-worker-1",
        json!({"phase": "Failed", "reason": "NodeLost", "message": "The node is gone."}),
    );
    world.settle();
    assert_eq!(world.access.len(), 2 * made);
    // The master may name its own service account, and every task its own port and container.
    let mut master = script("master", 1, "mpiexec hello");
    let spec = &mut master["template"]["spec"];
    spec["serviceAccountName"] = json!("ann");
    spec["hostNetwork"] = json!(true);
    spec["initContainers"] = json!([{"name": "i", "image": "x"}]);
    let other = json!({"name": "other", "image": "x", "ports": [{"containerPort": 22}]});
    let mut worker = script("ranks", 1, "exec sleep infinity");
    let containers = worker["template"]["spec"]["containers"].as_array_mut();
    containers.unwrap().push(other);
    let plugins = json!({"mpi": ["--worker=ranks"]});
    let mut world = World::new(json!({"plugins": plugins, "tasks": [master, worker]}));
    world.network = SHARED;
    world.settle();
    let master = world.spec("j-master-0");
    assert_eq!(master.service_account_name.as_deref(), Some("ann"));
    assert!(
        world.ports("j-master-0").is_empty(),
        "it would be the node's"
    );
    let inits = master.init_containers.as_ref().unwrap();
    let env: Vec<&str> = (inits[0].env.iter().flatten())
        .map(|one| one.name.as_str())
        .collect();
    assert!(env.contains(&"MPI_HOST"), "{env:?}");
    let accounts = world.access.iter();
    let accounts = accounts.filter(|one| matches!(one, Dependent::ServiceAccount(_)));
    assert_eq!(accounts.count(), 0);
    let containers = &world.spec("j-ranks-0").containers;
    assert_eq!(containers[1].ports.as_ref().unwrap().len(), 1);
    assert_eq!(world.command("j-ranks-0")[2], "exec sleep infinity");
    let annotations = world.pods["j-ranks-0"].metadata.annotations.as_ref();
    assert_eq!(
        annotations.unwrap()["kubectl.kubernetes.io/default-container"],
        "c"
    );
}

#[test]
fn a_job_with_more_hosts_than_a_variable_or_a_secret_holds_says_so() {
    for (plugins, workers, words) in [
        (
            json!({"mpi": []}),
            11_000,
            "spec.plugins[mpi]: MPI_HOST would have",
        ),
        (
            json!({"ssh": []}),
            20_000,
            "spec.plugins[ssh]: the Secret with keys and host names would have",
        ),
    ] {
        let tasks = [
            script("master", 1, "true"),
            script("worker", workers, "true"),
        ];
        let mut world = World::new(json!({"plugins": plugins, "tasks": tasks}));
        world.network = SHARED;
        world.settle();
        assert!(world.message().contains(words), "{}", world.message());
        assert_eq!(world.made, 0);
    }
}
