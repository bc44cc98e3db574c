//! The manifests and the chart against a real kube-apiserver: it takes them, and server and agent work by them.

use std::fs::File;

use std::io::{Read, Write};
use std::net::TcpStream;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Cluster, Setup, eventually, free_address, muster};
use serde_json::{Value, json};

use super::{NAMESPACE, borrowed, helm, packaging, rendered, variants, words};

const SOON: Duration = Duration::from_secs(90);

#[test]
fn a_real_api_server_takes_the_manifests_and_server_and_agent_work_as_they_say() {
    let beta = Setup::default()
        .gates("MutatingAdmissionPolicy=true")
        .versions("admissionregistration.k8s.io/v1beta1=true");
    let cluster = beta.start();
    cluster.kubectl(&["create", "namespace", NAMESPACE]).ok();
    let try_out = |what: &str, path: &Path| {
        let path = path.display().to_string();
        let ran = cluster.kubectl(&[
            "apply",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &path,
        ]);
        assert_eq!(ran.code, Some(0), "{what}: {}{}", ran.out, ran.err);
        assert!(!ran.err.contains("unknown field"), "{what}: {}", ran.err);
    };
    try_out("the plain manifests", &packaging());
    let file = cluster.directory().join("rendered.yaml");
    for (what, mut values) in variants() {
        values.push("--include-crds".to_owned());
        std::fs::write(&file, rendered(&borrowed(&values))).unwrap();
        try_out(what, &file);
    }

    // The last variant stays installed.
    let chart = packaging().join("chart").display().to_string();
    let config = cluster.kubeconfig().display().to_string();
    let install = [
        "install",
        "muster",
        &chart,
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--kubeconfig",
        &config,
    ];
    let last = variants().pop().unwrap().1;
    helm(&[&install[..], &borrowed(&last)].concat()).ok();
    cluster.plain_node("box", 64, 8, &json!({}));
    let agent = Program::start(&cluster, "DaemonSet", "muster-agent", "agent");
    let described = || {
        let node = cluster.get(&["node", "box"]);
        let text = node["metadata"]["annotations"]["muster.io/inventory"].as_str()?;
        let inventory: Value = serde_json::from_str(text).ok()?;
        (inventory["gpus"].as_array()?.len() == 8).then_some(())
    };
    eventually("the node says what the description does", SOON, described);
    let first = Program::start(&cluster, "Deployment", "muster-server", "first");
    first.until_ready();
    let second = Program::start(&cluster, "Deployment", "muster-server", "second");
    second.until_ready();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"schedulerName": "muster", "containers": [{
            "name": "c", "image": "example.com/c:1", "resources": {"limits": {"nvidia.com/gpu": 2}},
        }]},
    });
    cluster.apply(&pod.to_string());
    let bound = || (cluster.get(&["pod", "p"])["spec"]["nodeName"] == "box").then_some(());
    eventually("a pod is bound", SOON, bound);
    let leading = [&first, &second].map(|server| {
        let page = server.ask("/metrics").unwrap();
        page.contains("\nmuster_binds_total 1\n")
    });
    assert_eq!(leading.iter().filter(|leads| **leads).count(), 1);
    for program in [&agent, &first, &second] {
        let log = program.logged();
        assert!(!log.contains("orbidden"), "the rights are enough: {log}");
    }
}

/// The program of a workload's only container, on this machine.
struct Program {
    child: Child,
    workload: Value,
    address: String,
    log: PathBuf,
}

impl Program {
    fn start(cluster: &Cluster, kind: &str, name: &str, log: &str) -> Program {
        let at = |name: &str| cluster.directory().join(name);
        let workload = cluster.get(&["-n", NAMESPACE, kind, name]);
        // The mounts are directories here.
        let mounted = at(&format!("{log}-mounted"));
        let kubelet = at(&format!("{log}-kubelet"));
        std::fs::create_dir_all(&mounted).unwrap();
        std::fs::create_dir_all(kubelet.join("device-plugins")).unwrap();
        let config = cluster.get(&["-n", NAMESPACE, "configmap", name]);
        for (key, text) in config["data"].as_object().unwrap() {
            std::fs::write(mounted.join(key), text.as_str().unwrap()).unwrap();
        }
        let address = free_address();
        let words = words(&workload).into_iter().map(|word| {
            word.replace("0.0.0.0:8080", &address)
                .replace("$(NODE_NAME)", "box")
                .replace("/etc/muster", &mounted.display().to_string())
                .replace("/var/lib/kubelet", &kubelet.display().to_string())
        });
        let account = workload["spec"]["template"]["spec"]["serviceAccountName"].as_str();
        let account = cluster.kubeconfig_of_account(NAMESPACE, account.unwrap());
        let log = at(&format!("{log}.log"));
        let output = File::create(&log).unwrap();
        let child = Command::new(muster())
            .arg("--kubeconfig")
            .arg(account)
            .args(words)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Program {
            child,
            workload,
            address,
            log,
        }
    }

    fn ask(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: muster\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Waits until the manifest's probes succeed.
    fn until_ready(&self) {
        let container = &self.workload["spec"]["template"]["spec"]["containers"][0];
        for probe in ["livenessProbe", "readinessProbe"] {
            let path = container[probe]["httpGet"]["path"].as_str().unwrap();
            eventually(path, SOON, || {
                self.ask(path).filter(|answer| answer.contains(" 200 "))
            });
        }
    }

    fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.log.display(), self.logged());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
