//! The chart as helm checks and renders it, and the plain manifests as rendered from it.

use std::collections::BTreeMap;

use std::process::Command;

use e2e::{muster, run};
use serde_json::{Value, json};

use super::{borrowed, documents, helm, one, packaging, rendered, variants, words};

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
    let arguments = words(one(&beside, "Deployment", "muster-server"));
    for word in [
        "--kinds=none",
        "--scheduler-name=muster",
        "--scheduler-name=volcano",
    ] {
        assert!(
            arguments.iter().any(|argument| argument == word),
            "{word}: {arguments:?}"
        );
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
    let arguments = words(one(&rdma, "DaemonSet", "muster-agent"));
    for word in ["--host-root=/host", "--rdma-config=/etc/muster/rdma.yaml"] {
        assert!(
            arguments.iter().any(|argument| argument == word),
            "{word}: {arguments:?}"
        );
    }
    let text = one(&rdma, "ConfigMap", "muster-agent")["data"]["rdma.yaml"].as_str();
    let first = &documents(text.unwrap())[0]["configList"][0];
    assert_eq!(first["resourceName"], "hca_infiniband");

    let vendors = all("other vendors");
    let agent = one(&vendors, "DaemonSet", "muster-agent");
    let arguments = words(agent).into_iter();
    let arguments: Vec<String> = arguments
        .filter(|word| word.starts_with("--vendor="))
        .collect();
    let wanted = ["amd", "gaudi"].map(|name| format!("--vendor=/etc/muster/vendor-{name}.yaml"));
    assert_eq!(arguments, wanted);
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
        assert!(
            words(agent).iter().any(|argument| argument == word),
            "{word}"
        );
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
        assert!(
            words(agent).iter().any(|argument| argument == word),
            "{word}"
        );
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
        assert!(
            words(agent).iter().any(|argument| argument == word),
            "{word}"
        );
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
