//! The content of packaging/kubernetes: the chart as helm checks and renders it, the plain
//! manifests as rendered from it, and both against a real kube-apiserver. Server and agent run
//! with the arguments and the accounts' rights of the manifests, but on this machine and not in
//! containers. `MUSTER_BLESS=1 cargo test -p e2e --test packaging` renders the plain manifests
//! anew.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Cluster, Ran, Setup, eventually, free_address, muster, part, repository, run};
use serde::Deserialize;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
const NAMESPACE: &str = "muster-system";

/// A plain manifest, its template, and the values that it is rendered with.
const PLAIN: [(&str, &str, &str); 11] = [
    ("rbac", "rbac", "agent.enabled=false"),
    ("admission", "admission", "agent.enabled=false"),
    ("user-roles", "user-roles", "agent.enabled=false"),
    ("server", "server", "agent.enabled=false"),
    (
        "namespace-queues/admission",
        "namespace-queues",
        "agent.enabled=false,server.namespaceQueues=v1",
    ),
    ("mig/rbac", "rbac", "agent.enabled=false,server.mig=true"),
    ("agent-rbac", "agent-rbac", "server.enabled=false"),
    ("agent", "agent", "server.enabled=false"),
    (
        "dra/classes",
        "dra",
        "server.enabled=false,agent.devices=dra",
    ),
    (
        "dra/agent-rbac",
        "agent-rbac",
        "server.enabled=false,agent.devices=dra",
    ),
    (
        "dra/agent",
        "agent",
        "server.enabled=false,agent.devices=dra",
    ),
];

fn packaging() -> PathBuf {
    repository().join("packaging/kubernetes")
}

fn helm(arguments: &[&str]) -> Ran {
    // Without the user's helm settings: no repositories, no plugins, no cluster.
    let nowhere = tempfile::tempdir().unwrap();
    run(Command::new(part("helm"))
        .args(arguments)
        .env("HOME", nowhere.path())
        .env("KUBECONFIG", "/dev/null"))
}

/// The chart's text with these values.
fn rendered(more: &[&str]) -> String {
    let chart = packaging().join("chart").display().to_string();
    let all = ["template", "muster", &chart, "--namespace", NAMESPACE];
    helm(&[&all, more].concat()).ok()
}

fn documents(text: &str) -> Vec<Value> {
    let all = serde_norway::Deserializer::from_str(text);
    let all = all.map(|document| Value::deserialize(document).unwrap());
    all.filter(|document| !document.is_null()).collect()
}

#[track_caller]
fn one<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    let mut found = all.iter().filter(is);
    let first = found.next();
    assert!(found.next().is_none(), "{kind} {name} is there twice");
    first.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The arguments of the only container of a Deployment or DaemonSet.
fn words(workload: &Value) -> Vec<String> {
    let containers = &workload["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers.as_array().unwrap().len(), 1);
    assert_eq!(containers[0]["command"], json!(["muster"]));
    let words = containers[0]["args"].as_array().unwrap().iter();
    words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

/// Values other than the defaults, each with its purpose.
fn variants() -> Vec<(&'static str, Vec<String>)> {
    let of = |all: &[&str]| all.iter().map(|word| format!("--set={word}")).collect();
    let file = |value: &str, path: &str| {
        format!("--set-file={value}={}", repository().join(path).display())
    };
    vec![
        ("defaults", of(&[])),
        ("no agent", of(&["agent.enabled=false"])),
        ("no server", of(&["server.enabled=false"])),
        (
            "beside other operators",
            of(&[
                "server.kinds=null",
                "server.schedulerNames={muster,volcano}",
                "server.replicas=1",
            ]),
        ),
        (
            "a registry of one's own",
            of(&[
                "image.repository=registry.example.com/muster",
                "image.tag=2",
                "imagePullSecrets[0].name=registry",
                "agent.runtimeClassName=nvidia",
                "agent.kubeletDirectory=/data/kubelet",
                "agent.tolerations[0].operator=Exists",
                "server.nodeSelector.role=control",
                "createNamespace=true",
            ]),
        ),
        (
            "devices by CDI",
            vec![
                "--set=agent.cdi=true".to_owned(),
                file(
                    "agent.devicePlugin",
                    "packaging/examples/device-plugin.yaml",
                ),
            ],
        ),
        (
            "shared RDMA cards",
            vec![file("agent.rdma", "packaging/examples/rdma.yaml")],
        ),
        ("tests of RDMA between nodes", of(&["agent.pair=true"])),
        (
            "other vendors",
            vec![
                file("agent.vendors.amd", "packaging/examples/vendors/amd.yaml"),
                file(
                    "agent.vendors.gaudi",
                    "packaging/examples/vendors/gaudi.yaml",
                ),
            ],
        ),
        (
            "shared GPUs",
            vec![
                "--set=agent.mps=true,agent.gpuParts=true,agent.overShare=end".to_owned(),
                file(
                    "agent.devicePlugin",
                    "packaging/examples/device-plugin-mps.yaml",
                ),
            ],
        ),
        (
            "GPUs cut by the node's label",
            vec![
                "--set=agent.mig.manager=evict,server.mig=true".to_owned(),
                file(
                    "agent.mig.configurations",
                    "packaging/examples/mig-configurations.yaml",
                ),
            ],
        ),
        (
            "queues of namespaces",
            of(&["server.namespaceQueues=v1beta1"]),
        ),
        ("devices by claims", of(&["agent.devices=dra"])),
        (
            "GPUs cut for claims",
            of(&["agent.devices=dra", "agent.mig.partitions=true"]),
        ),
        (
            "a scheduler's configuration and a described machine",
            vec![
                file(
                    "server.schedulerConfig",
                    "packaging/examples/scheduler.yaml",
                ),
                file("agent.machine", "packaging/examples/machines/8x-h100.toml"),
            ],
        ),
    ]
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn the_plain_manifests_are_what_the_chart_renders_with_its_defaults() {
    let bless = std::env::var_os("MUSTER_BLESS").is_some_and(|v| v == "1");
    let head = "# Rendered from chart/; do not edit. To renew: MUSTER_BLESS=1 cargo test -p e2e --test packaging\n";
    for (name, template, without) in PLAIN {
        let template = format!("templates/{template}.yaml");
        let set = ["--set", "createNamespace=true", "--set", without];
        let text = rendered(&[&set[..], &["--show-only", &template]].concat());
        // The header names the template once.
        let origin = format!("# Source: muster/{template}\n");
        let text = text.trim_start_matches("---\n").replace(&origin, "");
        let text = format!("{head}{text}");
        let path = packaging().join(format!("{name}.yaml"));
        if bless {
            std::fs::write(&path, &text).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == text,
            "{} is out of date: run MUSTER_BLESS=1 cargo test -p e2e --test packaging",
            path.display()
        );
    }
    // `kubectl apply -f` reads the files of a directory, but not of its subdirectories.
    let mut files = Vec::new();
    for folder in ["", "dra/", "mig/", "namespace-queues/"] {
        let mut objects = BTreeMap::new();
        for entry in std::fs::read_dir(packaging().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            let name = path.file_stem().unwrap().to_string_lossy();
            files.push(format!("{folder}{name}"));
            for object in documents(&std::fs::read_to_string(&path).unwrap()) {
                let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
                let namespace = &object["metadata"]["namespace"];
                let key = format!("{kind} {namespace} {name}");
                let before = objects.insert(key, object.clone());
                let same = before.is_none_or(|before| before == object);
                assert!(same, "{folder:?} has two of {kind} {name}");
            }
        }
    }
    files.sort();
    let mut named = PLAIN.map(|(name, ..)| name.to_owned());
    named.sort();
    assert_eq!(files, named, "a manifest that no template renders");
}

#[test]
fn the_chart_passes_helms_checks_and_is_of_this_version() {
    let chart = packaging().join("chart").display().to_string();
    for (what, values) in variants() {
        let ran = helm(&[&["lint", "--strict", &chart][..], &borrowed(&values)].concat());
        assert_eq!(ran.code, Some(0), "{what}: {}{}", ran.out, ran.err);
    }
    let about = helm(&["show", "chart", &chart]).ok();
    let about = &documents(&about)[0];
    let version = run(Command::new(muster()).arg("--version")).ok();
    assert_eq!(
        version.split_whitespace().nth(1).unwrap(),
        about["appVersion"]
    );
}

#[test]
fn the_chart_installs_the_kinds_that_muster_crds_does_also_when_packed() {
    let by_name = |text: &str| -> BTreeMap<String, Value> {
        let all = documents(text).into_iter();
        let all = all.filter(|object| object["kind"] == "CustomResourceDefinition");
        all.map(|crd| (crd["metadata"]["name"].as_str().unwrap().to_owned(), crd))
            .collect()
    };
    let ours = by_name(&run(Command::new(muster()).args(["crds", "--print"])).ok());
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().display().to_string();
    let chart = packaging().join("chart").display().to_string();
    helm(&["package", &chart, "--destination", &to]).ok();
    let mut packed = std::fs::read_dir(directory.path()).unwrap();
    let packed = packed.next().unwrap().unwrap().path().display().to_string();
    for chart in [chart, packed] {
        let text = helm(&["template", "muster", &chart, "--include-crds"]).ok();
        let charts = by_name(&text);
        assert!(charts.keys().eq(ours.keys()), "{:?}", charts.keys());
        for (name, crd) in &charts {
            assert!(crd == &ours[name], "{chart}: {name} differs");
        }
    }
    assert!(!ours.is_empty());
}

#[test]
fn values_reach_what_they_are_for() {
    let all = |what: &str| {
        let found = variants().into_iter().find(|(name, _)| *name == what);
        documents(&rendered(&borrowed(&found.unwrap().1)))
    };
    let kinds = |all: &[Value], kind: &str| all.iter().filter(|o| o["kind"] == kind).count();

    let default = all("defaults");
    assert_eq!(kinds(&default, "Namespace"), 0, "helm makes it");
    let server = one(&default, "Deployment", "muster-server");
    assert_eq!(server["spec"]["replicas"], 2);
    let pod = &one(&default, "DaemonSet", "muster-agent")["spec"]["template"]["spec"];
    let security = &pod["containers"][0]["securityContext"];
    assert_eq!(security["privileged"], false);
    let paths = pod["volumes"].as_array().unwrap().iter();
    let paths: Vec<&Value> = paths.map(|volume| &volume["hostPath"]["path"]).collect();
    assert_eq!(
        paths,
        [
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/pod-resources",
            "/run/muster",
            "/var/run/cdi"
        ]
    );

    // helm's own list of a cluster's versions is older than the kind.
    let policy = "MutatingAdmissionPolicy";
    assert_eq!(kinds(&default, policy), 0);
    let chosen = all("queues of namespaces");
    let chosen = one(&chosen, policy, "muster-namespace-queues");
    assert_eq!(chosen["apiVersion"], "admissionregistration.k8s.io/v1beta1");
    for (served, version) in [
        (&["v1beta1"][..], "v1beta1"),
        (&["v1beta1", "v1"][..], "v1"),
    ] {
        let served = served.iter().map(|version| {
            format!("--api-versions=admissionregistration.k8s.io/{version}/{policy}")
        });
        let served: Vec<String> = served.collect();
        let found = documents(&rendered(&borrowed(&served)));
        let found = one(&found, policy, "muster-namespace-queues");
        assert_eq!(
            found["apiVersion"],
            format!("admissionregistration.k8s.io/{version}")
        );
    }
    let chart = packaging().join("chart").display().to_string();
    let wrong = helm(&[
        "template",
        "muster",
        &chart,
        "--set=server.namespaceQueues=v2",
    ]);
    let valid = "server.namespaceQueues: \"v2\": the valid values are auto, v1, v1beta1 and none";
    assert!(wrong.err.contains(valid), "{}", wrong.err);

    assert_eq!(kinds(&all("no agent"), "DaemonSet"), 0);
    assert_eq!(kinds(&all("no agent"), "ServiceAccount"), 1);
    assert_eq!(kinds(&all("no server"), "Deployment"), 0);
    assert_eq!(kinds(&all("no server"), "ServiceAccount"), 1);

    let beside = all("beside other operators");
    let said = words(one(&beside, "Deployment", "muster-server"));
    for word in [
        "--kinds=none",
        "--scheduler-name=muster",
        "--scheduler-name=volcano",
    ] {
        assert!(said.iter().any(|said| said == word), "{word}: {said:?}");
    }
    let jobs = beside
        .iter()
        .find(|o| o["metadata"]["name"] == "muster-trainingjobs");
    assert_eq!(jobs, None, "no right for what it does not do");

    let own = all("a registry of one's own");
    assert_eq!(kinds(&own, "Namespace"), 1);
    let pod = &one(&own, "DaemonSet", "muster-agent")["spec"]["template"]["spec"];
    assert_eq!(
        pod["containers"][0]["image"],
        "registry.example.com/muster:2"
    );
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(pod["runtimeClassName"], "nvidia");
    assert_eq!(
        pod["volumes"][0]["hostPath"]["path"],
        "/data/kubelet/device-plugins"
    );
    assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));

    let cdi = all("devices by CDI");
    let agent = one(&cdi, "DaemonSet", "muster-agent");
    let plugin = "--device-plugin-config=/etc/muster/device-plugin.yaml";
    assert!(words(agent).iter().any(|word| word == plugin));
    let volumes = &agent["spec"]["template"]["spec"]["volumes"];
    let path = |at: usize| &volumes[at]["hostPath"]["path"];
    assert_eq!((path(3), path(4)), (&json!("/var/run/cdi"), &json!("/")));
    let text = one(&cdi, "ConfigMap", "muster-agent")["data"]["device-plugin.yaml"].as_str();
    let plugin = &documents(text.unwrap())[0]["flags"]["plugin"];
    assert_eq!(plugin["containerDriverRoot"], "/driver-root");

    let rdma = all("shared RDMA cards");
    let said = words(one(&rdma, "DaemonSet", "muster-agent"));
    for word in ["--host-root=/host", "--rdma-config=/etc/muster/rdma.yaml"] {
        assert!(said.iter().any(|said| said == word), "{word}: {said:?}");
    }
    let text = one(&rdma, "ConfigMap", "muster-agent")["data"]["rdma.yaml"].as_str();
    let first = &documents(text.unwrap())[0]["configList"][0];
    assert_eq!(first["resourceName"], "hca_infiniband");

    let vendors = all("other vendors");
    let agent = one(&vendors, "DaemonSet", "muster-agent");
    let said = words(agent).into_iter();
    let said: Vec<String> = said.filter(|word| word.starts_with("--vendor=")).collect();
    let wanted = ["amd", "gaudi"].map(|name| format!("--vendor=/etc/muster/vendor-{name}.yaml"));
    assert_eq!(said, wanted);
    assert!(words(agent).iter().any(|word| word == "--host-root=/host"));
    let config = one(&vendors, "ConfigMap", "muster-agent");
    let text = config["data"]["vendor-amd.yaml"].as_str().unwrap();
    assert_eq!(documents(text)[0]["resource"], "amd.com/gpu");
    let shared = all("shared GPUs");
    let agent = one(&shared, "DaemonSet", "muster-agent");
    let pod = &agent["spec"]["template"]["spec"];
    assert_eq!(pod["hostPID"], true);
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], true);
    for word in ["--gpu-parts", "--over-share=end"] {
        assert!(words(agent).iter().any(|said| said == word), "{word}");
    }
    let evicts = |all: &[Value]| {
        let rules = one(all, "ClusterRole", "muster-agent")["rules"].to_string();
        rules.contains("pods/eviction")
    };
    assert!(evicts(&shared) && !evicts(&default));

    let cut = all("GPUs cut by the node's label");
    let agent = one(&cut, "DaemonSet", "muster-agent");
    for word in [
        "--mig-manager=evict",
        "--mig-config=/etc/muster/mig-configurations.yaml",
    ] {
        assert!(words(agent).iter().any(|said| said == word), "{word}");
    }
    let security = &agent["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    let capabilities = json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]});
    assert_eq!(security["capabilities"], capabilities);
    let text = one(&cut, "ConfigMap", "muster-agent")["data"]["mig-configurations.yaml"].as_str();
    assert_eq!(documents(text.unwrap())[0]["version"], "v1");
    let may = |all: &[Value], resource: &str| {
        let role = one(all, "ClusterRole", "muster-agent");
        let rules = role["rules"].as_array().unwrap().iter();
        let mut rules = rules.filter(|rule| rule["resources"] == json!([resource]));
        rules.next().map(|rule| rule["verbs"].clone())
    };
    let watched = json!(["get", "patch", "list", "watch"]);
    assert_eq!(may(&cut, "nodes"), Some(watched));
    assert_eq!(may(&cut, "pods/eviction"), Some(json!(["create"])));
    assert_eq!(may(&default, "nodes"), Some(json!(["get", "patch"])));
    assert_eq!(
        may(&default, "pods/eviction"),
        None,
        "no right for what it does not do"
    );

    let writes_nodes = |all: &[Value]| {
        let rules = one(all, "ClusterRole", "muster-scheduler")["rules"].clone();
        let rule = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]});
        rules.as_array().unwrap().contains(&rule)
    };
    assert!(writes_nodes(&cut) && !writes_nodes(&default));

    let paired = all("tests of RDMA between nodes");
    let agent = one(&paired, "DaemonSet", "muster-agent");
    assert!(words(agent).iter().any(|word| word == "--pair"));
    let pod = &agent["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], true);
    assert_eq!(may(&paired, "nodes"), may(&cut, "nodes"));
    assert_eq!(may(&paired, "pods/eviction"), None);

    let parted = all("GPUs cut for claims");
    let agent = one(&parted, "DaemonSet", "muster-agent");
    for word in ["--devices=dra", "--mig-partitions"] {
        assert!(words(agent).iter().any(|said| said == word), "{word}");
    }
    let security = &agent["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    assert_eq!(security["capabilities"], capabilities);
    // To evict pods with a failed GPU.
    assert_eq!(may(&parted, "pods/eviction"), Some(json!(["create"])));

    let claims = all("devices by claims");
    assert_eq!(kinds(&claims, "DeviceClass"), 3);
    let agent = one(&claims, "DaemonSet", "muster-agent");
    assert!(words(agent).iter().any(|word| word == "--devices=dra"));
    assert_eq!(kinds(&default, "DeviceClass"), 0);
    let rights = default
        .iter()
        .find(|o| o["metadata"]["name"] == "muster-agent-dra");
    assert_eq!(rights, None, "no right for what it does not do");
}

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
                self.ask(path).filter(|said| said.contains(" 200 "))
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
