//! The setup of the tests of `muster server kubernetes`: a cluster with Muster's kinds
//! and rights, servers, and test objects.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Cluster, eventually, free_address, muster, run};
use serde_json::{Value, json};

pub const SOON: Duration = Duration::from_secs(90);

/// A cluster with Muster's kinds and rights.
pub struct Ground {
    pub cluster: Cluster,
    account: PathBuf,
    /// The output of `muster crds`.
    pub installed: String,
}

impl Ground {
    pub fn start() -> Ground {
        let ground = Ground::on(Cluster::start());
        assert_eq!(ground.installed.matches(" applied\n").count(), 20);
        ground
    }

    pub fn on(cluster: Cluster) -> Ground {
        let installed = cluster.install_muster();
        let account = cluster.kubeconfig_of_account("muster-system", "muster-server");
        Ground {
            cluster,
            account,
            installed,
        }
    }

    /// A node with GPUs and an agent's description of them.
    pub fn node(&self, name: &str, gpus: u32) {
        self.cluster.plain_node(name, 64, gpus, &json!({}));
        let list: Vec<Value> = (0..gpus)
            .map(|i| json!({"id": format!("{name}-{i}"), "index": i, "numa": 0, "healthy": true}))
            .collect();
        let inventory = format!("muster.io/inventory={}", json!({ "gpus": list }));
        self.cluster
            .kubectl(&["annotate", "node", name, &inventory])
            .ok();
    }

    pub fn server(&self, name: &str, arguments: &[&str]) -> Server {
        let address = free_address();
        let log = self.cluster.directory().join(format!("{name}.log"));
        let output = File::create(&log).unwrap();
        let child = Command::new(muster())
            .arg("--kubeconfig")
            .arg(&self.account)
            .args(["server", "kubernetes", "--listen", &address])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Server {
            child,
            address,
            log,
        }
    }

    pub fn items(&self, arguments: &[&str]) -> Vec<Value> {
        let list = self.cluster.get(arguments);
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub fn pods_of(&self, job: &str) -> Vec<Value> {
        self.items(&[
            "pods",
            "-l",
            &format!("training.kubeflow.org/job-name={job}"),
        ])
    }

    /// All pods of the job, once all are bound.
    pub fn until_bound(&self, job: &str, count: usize) -> Vec<Value> {
        eventually(&format!("{job} is bound whole"), SOON, || {
            let pods = self.pods_of(job);
            let bound = pods.iter().filter(|pod| node_of(pod).is_some()).count();
            (bound == count).then_some(pods)
        })
    }

    pub fn holder(&self) -> String {
        let lease = self
            .cluster
            .get(&["lease", "-n", "muster-system", "muster-server"]);
        let holder = lease["spec"]["holderIdentity"].as_str();
        holder.unwrap_or_default().to_owned()
    }
}

pub fn node_of(pod: &Value) -> Option<&str> {
    pod["spec"]["nodeName"].as_str()
}

/// The devices that the scheduler chose, named by node.
pub fn devices_of(pod: &Value) -> Vec<String> {
    let text = pod["metadata"]["annotations"]["muster.io/devices"].as_str();
    let chosen: Value = serde_json::from_str(text.unwrap_or("{}")).unwrap();
    let list = chosen["pytorch"]["nvidia.com/gpu"].as_array().cloned();
    let ids = list.unwrap_or_default().into_iter();
    ids.map(|id| id.as_str().unwrap().to_owned()).collect()
}

/// A master and workers with one GPU each.
pub fn job(name: &str, workers: usize) -> String {
    let replica = |count: usize| {
        json!({"replicas": count, "template": {"spec": {"containers": [{
            "name": "pytorch", "image": "example.com/train:1",
            "resources": {"limits": {"nvidia.com/gpu": 1}},
        }]}}})
    };
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica(1), "Worker": replica(workers)}},
    })
    .to_string()
}

/// A server under test; ended when dropped.
pub struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    /// The address of health and metrics.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: muster\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    pub fn leads(&self) -> bool {
        self.ask("/readyz")
            .is_some_and(|said| said.ends_with("\r\n\r\nleading\n"))
    }

    pub fn until_ready(&self) {
        let ready = || self.ask("/readyz").filter(|said| said.contains(" 200 "));
        eventually("the server is ready", SOON, ready);
    }

    pub fn until_leading(&self) {
        eventually("the server leads", SOON, || self.leads().then_some(()));
    }

    pub fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops it and returns its exit status.
    pub fn stop(mut self) -> Option<i32> {
        run(Command::new("kill").arg(self.child.id().to_string())).ok();
        self.child.wait().unwrap().code()
    }

    /// Pauses it: it keeps its connections and does nothing.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        run(Command::new("kill").args([format!("-{name}"), self.child.id().to_string()])).ok();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- a server's log:\n{}", self.logged());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
