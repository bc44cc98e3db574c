//! A real Kubernetes 1.34: etcd, kube-apiserver with its own authorization, and the other programs
//! that a test requests, each on a free port with its own directory, so that several clusters run
//! side by side. All programs end when it is dropped.
//!
//! Nodes are plain objects, unless a test starts a kubelet ([`Kubelet`]).

mod faults;
mod kubelet;
mod packaged;
mod process;

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::ports::{free_address, free_port};
use crate::{Ran, eventually, eventually_ok, kubectl, run};
pub(crate) use faults::post;
pub use kubelet::Kubelet;
use process::Process;

/// How long a program may take to be ready on a busy machine.
const START: Duration = Duration::from_secs(120);

/// Static tokens for the cluster's own users.
const USERS: &[(&str, &str, &str)] = &[
    ("admin", "admin", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
];

/// A running cluster.
pub struct Cluster {
    // Dropped in this order: clients of the API end before the API does.
    others: Vec<Process>,
    apiserver: Process,
    etcd: Process,
    address: Ipv4Addr,
    port: u16,
    /// etcd's host and port.
    etcd_address: String,
    /// Whether its nodes have kubelets.
    kubelets: bool,
    /// The enabled feature gates.
    gates: String,
    directory: tempfile::TempDir,
}

/// The settings of a cluster's start.
#[derive(Debug, Clone)]
pub struct Setup {
    address: Ipv4Addr,
    nodes: Vec<String>,
    durable: bool,
    unmarked: bool,
    audited: bool,
    plain_json: bool,
    gates: String,
    versions: String,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            address: Ipv4Addr::LOCALHOST,
            nodes: Vec::new(),
            durable: false,
            unmarked: false,
            audited: false,
            plain_json: false,
            gates: String::new(),
            versions: String::new(),
        }
    }
}

/// The resources that a program of a cluster has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// CPU time, in seconds.
    pub cpu: f64,
    /// Peak resident memory, in MiB.
    pub peak_mib: f64,
}

impl Setup {
    /// Makes etcd flush acknowledged writes, as in production. Otherwise a test's writes need not
    /// outlive the machine.
    #[must_use]
    pub fn durable(mut self) -> Setup {
        self.durable = true;
        self
    }

    /// New nodes are not marked as not ready: they have their own state from the start.
    #[must_use]
    pub fn unmarked(mut self) -> Setup {
        self.unmarked = true;
        self
    }

    /// kube-apiserver logs every write request ([`Cluster::audit_log`]).
    #[must_use]
    pub fn audited(mut self) -> Setup {
        self.audited = true;
        self
    }

    /// kube-apiserver stores every object as JSON in etcd, so that a [`crate::History`] can read
    /// it.
    #[must_use]
    pub fn plain_json(mut self) -> Setup {
        self.plain_json = true;
        self
    }

    /// kube-apiserver and kube-scheduler with these feature gates, as `Name=true,...`.
    #[must_use]
    pub fn gates(mut self, gates: &str) -> Setup {
        self.gates = gates.to_owned();
        self
    }

    /// kube-apiserver serves these versions too, as `group/version=true,...`.
    #[must_use]
    pub fn versions(mut self, versions: &str) -> Setup {
        self.versions = versions.to_owned();
        self
    }

    /// The API listens on an address that other network namespaces reach.
    #[must_use]
    pub fn at(mut self, address: Ipv4Addr) -> Setup {
        self.address = address;
        self
    }

    /// A kubelet may join under this name.
    #[must_use]
    pub fn kubelet(mut self, node: &str) -> Setup {
        self.nodes.push(node.to_string());
        self
    }

    /// Starts etcd and kube-apiserver, and waits until the API answers.
    pub fn start(self) -> Cluster {
        Cluster::start_with(&self)
    }
}

/// Logs the author and the time of writes, without their bodies.
fn audit_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]},
            {"level": "None"},
        ],
    })
}

fn token(user: &str) -> String {
    format!("token-of-{user}")
}

impl Cluster {
    /// etcd and kube-apiserver, nothing else.
    pub fn start() -> Cluster {
        Setup::default().start()
    }

    fn start_with(setup: &Setup) -> Cluster {
        let directory = tempfile::Builder::new().prefix("muster-kube-").tempdir();
        let directory = directory.expect("a directory");
        let at = |name: &str| directory.path().join(name).display().to_string();
        let (clients, peers, port) = (free_port(), free_port(), free_port());
        let etcd_address = format!("127.0.0.1:{clients}");
        let etcd_url = format!("http://{etcd_address}");
        let peer_url = format!("http://127.0.0.1:{peers}");
        let etcd = Process::part("etcd", directory.path())
            // A test's writes need not outlive the machine.
            .flag("data-dir", &at("etcd"))
            .flag("unsafe-no-fsync", "true")
            .flag("log-level", "error")
            .flag("listen-client-urls", &etcd_url)
            .flag("advertise-client-urls", &etcd_url)
            .flag("listen-peer-urls", &peer_url)
            .flag("initial-advertise-peer-urls", &peer_url)
            .flag("initial-cluster", &format!("default={peer_url}"))
            .start();
        let mut users: Vec<String> = (USERS.iter())
            .map(|(name, user, group)| format!("{},{user},{name},{group}\n", token(name)))
            .collect();
        let node =
            |node: &String| format!("{},system:node:{node},{node},system:nodes\n", token(node));
        users.extend(setup.nodes.iter().map(node));
        std::fs::write(at("tokens.csv"), users.concat()).expect("the users' file is written");
        run(Command::new("openssl").args(["genrsa", "-out", &at("sa.key"), "2048"])).ok();
        let address = setup.address.to_string();
        let apiserver = Process::part("kube-apiserver", directory.path())
            .flag("etcd-servers", &etcd_url)
            .flag("cert-dir", &at("certs"))
            .flag("bind-address", &address)
            .flag("advertise-address", &address)
            .flag("secure-port", &port.to_string())
            .flag("token-auth-file", &at("tokens.csv"))
            .flag("authorization-mode", "Node,RBAC")
            // As in every distribution; MPS's daemons need it.
            .flag("allow-privileged", "true")
            .flag("enable-admission-plugins", "NodeRestriction")
            .flag(
                "disable-admission-plugins",
                if setup.unmarked {
                    "TaintNodesByCondition"
                } else {
                    ""
                },
            )
            .flag("service-account-issuer", "https://kubernetes.default.svc")
            .flag("service-account-key-file", &at("sa.key"))
            .flag("service-account-signing-key-file", &at("sa.key"))
            .flag("service-cluster-ip-range", "10.0.0.0/24")
            .flag("endpoint-reconciler-type", "none")
            .flag("kubelet-preferred-address-types", "InternalIP");
        let apiserver = apiserver
            .flag("feature-gates", &setup.gates)
            .flag("runtime-config", &setup.versions);
        let apiserver = match setup.plain_json {
            true => apiserver.flag("storage-media-type", "application/json"),
            false => apiserver,
        };
        let apiserver = match setup.audited {
            true => {
                std::fs::write(at("audit.json"), audit_policy().to_string())
                    .expect("a policy is written");
                apiserver
                    .flag("audit-policy-file", &at("audit.json"))
                    .flag("audit-log-path", &at("audit.log"))
                    .flag("audit-log-maxsize", "4096")
            }
            false => apiserver,
        };
        let apiserver = apiserver.start();
        let cluster = Cluster {
            others: Vec::new(),
            apiserver,
            etcd,
            address: setup.address,
            port,
            etcd_address,
            kubelets: !setup.nodes.is_empty(),
            gates: setup.gates.clone(),
            directory,
        };
        cluster.await_api();
        cluster
    }

    fn await_api(&self) {
        // kube-apiserver writes the key after the certificate, which may be incomplete when it
        // appears.
        let key = self.directory.path().join("certs/apiserver.key");
        eventually("kube-apiserver's certificate and key", START, || {
            key.exists().then_some(())
        });
        for name in USERS.iter().map(|(name, ..)| name) {
            self.write_kubeconfig(name, &token(name));
        }
        eventually_ok("kube-apiserver is ready", START, || {
            self.etcd.must_run();
            self.apiserver.must_run();
            let ran = self.kubectl(&["get", "--raw", "/readyz"]);
            (ran.code == Some(0)).then_some(()).ok_or(ran.err)
        });
        // kube-apiserver creates it after it is ready.
        eventually("the default namespace", START, || {
            let ran = self.kubectl(&["get", "namespace", "default", "kube-system"]);
            (ran.code == Some(0)).then_some(())
        });
        // Pods need it, even without a kube-controller-manager that creates it.
        self.kubectl(&["create", "serviceaccount", "default"]).ok();
    }

    /// kube-controller-manager; if the nodes are plain objects, without the controllers that mark
    /// nodes without a kubelet as not ready.
    #[must_use]
    pub fn with_controller_manager(mut self) -> Cluster {
        let key = self.directory.path().join("sa.key");
        let controllers = match self.kubelets {
            true => "*,-node-ipam-controller",
            false => "*,-node-ipam-controller,-node-lifecycle-controller",
        };
        let process = Process::part("kube-controller-manager", self.directory.path())
            .flag(
                "kubeconfig",
                &self
                    .kubeconfig_of("controller-manager")
                    .display()
                    .to_string(),
            )
            .flag("use-service-account-credentials", "true")
            .flag(
                "service-account-private-key-file",
                &key.display().to_string(),
            )
            .flag("controllers", controllers)
            .flag("root-ca-file", &self.authority().display().to_string())
            .flag("leader-elect", "false")
            .flag("secure-port", "0")
            // The default of 15 s is long for a test.
            .flag("horizontal-pod-autoscaler-sync-period", "2s")
            .flag("pvclaimbinder-sync-period", "1s")
            .start();
        self.others.push(process);
        eventually("namespaces have their service account", START, || {
            self.others.iter().for_each(Process::must_run);
            let ran = self.kubectl(&["get", "serviceaccount", "default"]);
            (ran.code == Some(0)).then_some(())
        });
        self
    }

    /// kube-scheduler, with a KubeSchedulerConfiguration or its defaults.
    #[must_use]
    pub fn with_scheduler(mut self, configuration: Option<&Value>) -> Cluster {
        let kubeconfig = self.kubeconfig_of("scheduler").display().to_string();
        let mut document = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 5000, "burst": 5000},
        });
        if let (Some(document), Some(more)) = (
            document.as_object_mut(),
            configuration.and_then(Value::as_object),
        ) {
            document.extend(more.clone());
        }
        let file = self.directory.path().join("scheduler.json");
        std::fs::write(&file, document.to_string()).expect("a configuration is written");
        let process = Process::part("kube-scheduler", self.directory.path())
            .flag("config", &file.display().to_string())
            .flag("secure-port", "0")
            .flag("feature-gates", &self.gates)
            .start();
        self.others.push(process);
        self
    }

    /// kwok, which marks the pods of every node object as running and keeps the nodes' leases.
    #[must_use]
    pub fn with_kwok(mut self) -> Cluster {
        let process = Process::part("kwok", self.directory.path())
            .flag("kubeconfig", &self.kubeconfig().display().to_string())
            .flag("manage-all-nodes", "true")
            .flag("node-lease-duration-seconds", "40")
            .start();
        self.others.push(process);
        self
    }

    /// Installs Muster's kinds, and its server's account with the packaged rights. Returns the
    /// output of `muster crds`.
    pub fn install_muster(&self) -> String {
        let mut crds = Command::new(crate::muster());
        let said = run(crds.arg("--kubeconfig").arg(self.kubeconfig()).arg("crds")).ok();
        self.apply_packaged(&["rbac.yaml", "admission.yaml"]);
        said
    }

    /// `muster server kubernetes` as its own account ([`Cluster::install_muster`]).
    #[must_use]
    pub fn with_muster(mut self) -> Cluster {
        let account = self.kubeconfig_of_account("muster-system", "muster-server");
        let listen = free_address();
        let mut command = Command::new(crate::muster());
        command.arg("--kubeconfig").arg(account);
        command.args(["server", "kubernetes", "--listen", &listen]);
        let process = Process::of("muster", command, self.directory.path()).start();
        self.others.push(process);
        self
    }

    /// The log of write requests of a cluster with [`Setup::audited`]: one JSON object per line.
    pub fn audit_log(&self) -> PathBuf {
        self.directory.path().join("audit.log")
    }

    /// The resources that one of the cluster's programs has used so far.
    #[track_caller]
    pub fn cost(&self, program: &str) -> Cost {
        let process = self.program(program);
        process.must_run();
        process.cost()
    }

    /// The start time of one of the cluster's programs.
    #[track_caller]
    pub fn started(&self, program: &str) -> Timestamp {
        self.program(program).started
    }

    #[track_caller]
    fn program(&self, name: &str) -> &Process {
        let all = [&self.apiserver, &self.etcd].into_iter();
        let found = all.chain(&self.others).find(|process| process.is(name));
        found.unwrap_or_else(|| panic!("{name} was not started"))
    }

    /// The API's URL.
    pub fn url(&self) -> String {
        format!("https://{}:{}", self.address, self.port)
    }

    /// The certificate authority that clients trust.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("certs/apiserver.crt")
    }

    /// A directory for the test, removed with the cluster.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of("admin")
    }

    fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.directory.path().join(format!("{user}.kubeconfig"))
    }

    /// A kubeconfig with this token, in a file of this name.
    pub fn write_kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        let authority = std::fs::read(self.authority()).expect("its certificate");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": "test", "cluster": {
                "server": self.url(), "certificate-authority-data": ByteString(authority)}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name}}],
        });
        let path = self.kubeconfig_of(name);
        std::fs::write(&path, config.to_string()).expect("a kubeconfig is written");
        path
    }

    /// A kubeconfig that acts as a service account, with what its roles allow.
    pub fn kubeconfig_of_account(&self, namespace: &str, account: &str) -> PathBuf {
        let token = self.kubectl(&["-n", namespace, "create", "token", account, "--duration=2h"]);
        self.write_kubeconfig(account, token.ok().trim())
    }

    /// Runs kubectl as an administrator.
    pub fn kubectl<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ran {
        let mut command = Command::new(kubectl());
        command
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.directory.path().join("kubectl-cache"))
            .env("HOME", self.directory.path());
        run(&mut command)
    }

    /// Applies documents given as text.
    #[track_caller]
    pub fn apply(&self, text: &str) -> String {
        let file = self.directory.path().join("apply.yaml");
        std::fs::write(&file, text).expect("a manifest can be written");
        let file = file.display().to_string();
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &file])
            .ok()
    }

    /// One object as JSON, or null.
    pub fn get(&self, arguments: &[&str]) -> Value {
        let all = [&["get", "-o", "json"], arguments].concat();
        serde_json::from_str(&self.kubectl(&all).out).unwrap_or_default()
    }

    /// The lines that a pod has logged before the line `end`.
    #[track_caller]
    pub fn said(&self, pod: &str, within: Duration) -> Vec<String> {
        let log = eventually(&format!("{pod} says what it sees"), within, || {
            let found = self.get(&["pod", pod]);
            assert_ne!(found["status"]["phase"], "Failed", "{}", found["status"]);
            let ran = self.kubectl(&["logs", pod]);
            (ran.code == Some(0) && ran.out.ends_with("end\n")).then_some(ran.out)
        });
        let lines = log.lines().filter(|line| *line != "end");
        lines.map(str::to_owned).collect()
    }

    /// A ready node without a kubelet, with this many CPUs and GPUs.
    pub fn plain_node(&self, name: &str, cpus: u32, gpus: u32, labels: &Value) {
        let room = json!({
            "cpu": cpus.to_string(), "memory": format!("{}Gi", cpus * 8), "pods": "250",
            "nvidia.com/gpu": gpus.to_string(),
        });
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        });
        self.apply(&node.to_string());
        let status = json!({"status": {
            "capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Described",
                "message": "no kubelet stands behind this node", "lastHeartbeatTime": null}],
        }});
        let patch = status.to_string();
        let arguments = [
            "patch",
            "node",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
        ];
        self.kubectl(&[&arguments[..], &[patch.as_str()]].concat())
            .ok();
        // Admission marks a new node as not ready; the controller that removes the mark would also
        // mark nodes without a kubelet, and is off.
        let untaint = ["taint", "node", name, "node.kubernetes.io/not-ready-"];
        self.kubectl(&untaint);
    }

    /// Resident memory of kube-apiserver and etcd, in MiB.
    pub fn resident_mib(&self) -> f64 {
        self.apiserver.resident_mib() + self.etcd.resident_mib()
    }
}
