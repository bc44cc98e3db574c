//! `muster agent --devices dra` beside a real kubelet: kube-scheduler allocates the devices of its
//! ResourceSlices to claims, and containers get them by CDI. GPUs and network cards are described in
//! a file; their device files are those of /dev/null and its like under other names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{
    Cluster, IMAGE, Kubelet, Network, Setup, eventually, free_address, get, make_device, muster,
    repository, run,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const GPU: &str = "gpu.muster.io";
const ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// Each device file with its number in a container: its minor, of major 1.
const FILES: [(&str, u32); 6] = [
    ("nvidia0", 3),
    ("nvidia1", 5),
    ("nvidia2", 7),
    ("nvidia3", 8),
    ("nvidiactl", 9),
    ("infiniband/rdma_cm", 11),
];

/// One node with four GPUs, each under its own PCIe root, and two network cards: next to the
/// second GPU and next to the last.
struct Ground {
    agent: Option<Child>,
    /// The address of its metrics.
    metrics: String,
    kubelet: Kubelet,
    cluster: Cluster,
    _network: Network,
}

impl Ground {
    fn start() -> Ground {
        let network = Network::new(0);
        let address = network.host().parse().unwrap();
        let cluster = Setup::default().at(address).kubelet("box").start();
        let cluster = cluster.with_controller_manager().with_scheduler(None);
        cluster.apply_packaged(&["agent-rbac.yaml", "dra/classes.yaml"]);
        cluster.apply_chart("agent-rbac.yaml", "agent.pair=true,agent.devices=dra");
        let kubelet = cluster.kubelet_with_cdi("box", &cluster.directory().join("cdi"));
        let ground = Ground {
            agent: None,
            metrics: free_address(),
            kubelet,
            cluster,
            _network: network,
        };
        for (name, minor) in FILES {
            make_device(&ground.at("root/dev").join(name), minor);
        }
        let roots = format!(
            "version: v1\nflags: {{nvidiaDriverRoot: {}}}\n",
            ground.at("root").display()
        );
        std::fs::write(ground.at("plugin.yaml"), roots).unwrap();
        ground.describe(&[]);
        ground
    }

    fn at(&self, name: &str) -> PathBuf {
        self.cluster.directory().join(name)
    }

    /// Describes the machine with these GPUs unhealthy.
    fn describe(&self, ill: &[usize]) {
        let gpu = |at: usize| {
            format!(
                "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"GPU-{at}\"]\n\
                 minor = [{at}]\ncompute_capability = \"9.0\"\nunder = [\"pci0000:{at}0\"]\nhealthy = {}\n",
                !ill.contains(&at)
            )
        };
        let nic = |name: &str, at: usize| {
            format!(
                "[[nic]]\nname = \"{name}\"\nunder = \"pci0000:{at}0\"\n\
                 ports = [{{ gbits = 400, layer = \"InfiniBand\" }}]\n"
            )
        };
        let gpus: String = (0..4).map(gpu).collect();
        let text = gpus + &nic("mlx5_0", 1) + &nic("mlx5_1", 3);
        self.describe_as(&text);
    }

    /// Describes the machine with one GPU lost.
    fn lose(&self, gpu: usize) {
        self.describe(&[]);
        let text = std::fs::read_to_string(self.at("machine.toml")).unwrap();
        self.describe_as(&format!("{text}[[state]]\ngpu = {gpu}\nlost = true\n"));
    }

    fn describe_as(&self, text: &str) {
        std::fs::write(self.at("machine.partial"), text).unwrap();
        std::fs::rename(self.at("machine.partial"), self.at("machine.toml")).unwrap();
    }

    /// The agent with this way of allocating devices.
    fn command(&self, devices: &str) -> Command {
        let account = self
            .cluster
            .kubeconfig_of_account("muster-system", "muster-agent");
        let mut command = self.kubelet.inside(std::path::Path::new("setpriv"));
        // As in the DaemonSet: root, without capabilities.
        command.args(["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]);
        command.arg(muster()).arg("--kubeconfig").arg(account);
        command.arg("--data").arg(self.at("agent-data"));
        command.args(["agent", "kubernetes", "--node-name", "box"]);
        command.args(["--devices", devices, "--metrics", &self.metrics]);
        command.arg("--pair");
        command.arg("--machine").arg(self.at("machine.toml"));
        command.arg("--cdi-dir").arg(self.at("cdi"));
        command
            .arg("--device-plugin-config")
            .arg(self.at("plugin.yaml"));
        command
    }

    fn agent(&mut self, devices: &str) {
        self.end_agent();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.at("agent.log"));
        let mut command = self.command(devices);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.agent = Some(command.stderr(log.unwrap()).spawn().unwrap());
    }

    fn end_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    /// The node's slices.
    fn slices(&self) -> Vec<Value> {
        let all = self.cluster.get(&["resourceslices"]);
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let ours = |slice: &Value| slice["spec"]["driver"] == GPU;
        all.into_iter().filter(ours).collect()
    }

    /// Waits until the node's one slice lists exactly these devices, and returns the slice.
    fn until_offered(&self, devices: &[&str]) -> Value {
        let wanted: BTreeSet<&str> = devices.iter().copied().collect();
        let mut seen = String::new();
        eventually(&format!("{wanted:?} are offered"), SOON, || {
            let slices = self.slices();
            let said = format!("{slices:?}");
            if said != seen {
                eprintln!("slices: {said}");
                seen = said;
            }
            let [slice] = &slices[..] else { return None };
            let all = slice["spec"]["devices"].as_array()?.iter();
            let names: BTreeSet<&str> = all.filter_map(|it| it["name"].as_str()).collect();
            (names == wanted).then(|| slice.clone())
        })
    }

    /// A pod with these claims that prints its devices and keeps running.
    fn pod(&self, name: &str, claims: &Value, limits: &Value) {
        let script = "env | grep '^MUSTER_'; echo told $NVIDIA_VISIBLE_DEVICES; \
            for file in $(busybox find /dev -name 'nvidia*' -o -name rdma_cm | busybox sort); do \
            busybox stat -c '%n %t:%T' $file; done; echo end; \
            trap 'exit 0' TERM; while :; do sleep 1; done";
        let names = claims.as_array().unwrap().iter();
        let names: Vec<Value> = names.map(|claim| json!({"name": claim["name"]})).collect();
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"restartPolicy": "Never", "resourceClaims": claims,
                "terminationGracePeriodSeconds": 2,
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", script],
                    "resources": {"claims": names, "limits": limits}}]}});
        self.cluster.apply(&pod.to_string());
    }

    /// The devices that a pod sees, once it runs.
    fn seen(&self, pod: &str) -> Vec<String> {
        let mut lines = self.cluster.said(pod, SOON);
        lines.sort();
        lines
    }

    /// Creates a claim with these requests, and the attributes that must match among their
    /// devices.
    fn claim(&self, name: &str, kind: &str, requests: &[(&str, &str, &str)], matching: &[&str]) {
        let requests = requests.iter().map(|(name, class, expression)| {
            let selectors = match *expression {
                "" => json!([]),
                expression => json!([{"cel": {"expression": expression}}]),
            };
            json!({"name": name, "exactly": {"deviceClassName": class, "selectors": selectors}})
        });
        let constraints = matching
            .iter()
            .map(|attribute| json!({"matchAttribute": attribute}));
        let devices = json!({"requests": requests.collect::<Vec<_>>(),
            "constraints": constraints.collect::<Vec<_>>()});
        let spec = match kind {
            "ResourceClaim" => json!({"devices": devices}),
            _ => json!({"spec": {"devices": devices}}),
        };
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        self.cluster.apply(&claim.to_string());
    }

    fn delete(&self, pod: &str) {
        let gone = self
            .cluster
            .kubectl(&["delete", "pod", pod, "--wait", "--grace-period=1"]);
        gone.ok();
    }

    /// The CDI specs of claims.
    fn specs(&self) -> usize {
        let entries = std::fs::read_dir(self.at("cdi")).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains("claim")).count()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.end_agent();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.at("agent.log")).unwrap_or_default();
            eprintln!("--- the agent's log:\n{log}");
            let events = self.cluster.kubectl(&["get", "events", "-A"]);
            eprintln!("--- events:\n{}", events.out);
        }
    }
}

const ALL: [&str; 6] = [
    "gpu-0",
    "gpu-1",
    "gpu-2",
    "gpu-3",
    "nic-mlx5-0",
    "nic-mlx5-1",
];

/// The devices that a container with this GPU sees.
fn alone(index: usize) -> Vec<String> {
    let number = FILES[index].1;
    vec![
        format!("/dev/nvidia{index} 1:{number}"),
        "/dev/nvidiactl 1:9".to_owned(),
        format!("MUSTER_GPU_{index}=GPU-{index}"),
        "told void".to_owned(),
    ]
}

fn own(name: &str, claim: &str) -> Value {
    json!([{"name": name, "resourceClaimName": claim}])
}

#[test]
fn containers_have_what_kube_scheduler_allocated_to_their_claims() {
    let mut ground = Ground::start();
    ground.agent("dra");
    let slice = ground.until_offered(&ALL);
    assert_eq!(slice["spec"]["nodeName"], "box");
    assert_eq!(slice["metadata"]["ownerReferences"][0]["name"], "box");
    // The kubelet counts no GPUs, so that the device plugin cannot allocate claimed ones as well.
    let node = ground.cluster.get(&["node", "box"]);
    let counted = &node["status"]["allocatable"]["nvidia.com/gpu"];
    assert!(counted.is_null(), "{counted}");

    // The API accepts the examples.
    let example = repository().join("packaging/examples/claims.yaml");
    let example = example.display().to_string();
    let strictly = ["apply", "--dry-run=server", "--validate=strict", "-f"];
    (ground
        .cluster
        .kubectl(&[&strictly[..], &[&example]].concat()))
    .ok();

    // A claim chooses by an expression.
    let third = "device.attributes['gpu.muster.io'].index == 2 && \
        device.attributes['gpu.muster.io'].cudaComputeCapability.compareTo(semver('9.0.0')) >= 0 && \
        device.capacity['gpu.muster.io'].memory.compareTo(quantity('64Gi')) > 0";
    ground.claim("third", "ResourceClaim", &[("gpu", GPU, third)], &[]);
    ground.pod("by-claim", &own("gpu", "third"), &json!({}));
    assert_eq!(ground.seen("by-claim"), alone(2));
    let (_, page) = get(&ground.metrics, "/metrics").unwrap();
    let its = |line: &&str| line.contains("UUID=\"GPU-2\"") && line.contains("pod=\"by-claim\"");
    let lines = page.lines().filter(its);
    assert!(lines.count() > 0, "{page}");

    // A test of RDMA would use a part of its bandwidth.
    let question = json!({"id": "a", "asked": 0, "ask": "examine"});
    let note = format!("muster.io/rdma-ask={question}");
    (ground.cluster.kubectl(&["annotate", "node", "box", &note])).ok();
    let reply = eventually("the agent says who has GPUs", SOON, || {
        let node = ground.cluster.get(&["node", "box"]);
        let text = node["metadata"]["annotations"]["muster.io/rdma-answer"].as_str()?;
        serde_json::from_str::<Value>(text).ok()
    });
    let end = &reply["answer"]["Ok"]["end"];
    assert_eq!(end["pods"], json!(["default/by-claim"]), "{reply}");

    // A GPU and a card under one PCIe root: two of the four GPUs have one.
    let both = [("gpu", GPU, ""), ("nic", "nic.muster.io", "")];
    ground.claim("pair", "ResourceClaimTemplate", &both, &[ROOT]);
    let pair = json!([{"name": "pair", "resourceClaimTemplateName": "pair"}]);
    let pairs = ["pair-a", "pair-b"];
    for pod in pairs {
        ground.pod(pod, &pair, &json!({}));
    }
    let mut given = BTreeSet::new();
    for pod in pairs {
        let seen = ground.seen(pod);
        let matching = [
            (1, "MUSTER_NIC_MLX5_0=mlx5_0"),
            (3, "MUSTER_NIC_MLX5_1=mlx5_1"),
        ];
        let (index, nic) = *(matching.iter())
            .find(|(index, _)| seen.contains(&alone(*index)[0]))
            .unwrap_or_else(|| panic!("{seen:?}"));
        let mut wanted = alone(index);
        wanted.extend([nic.to_owned(), "/dev/infiniband/rdma_cm 1:b".to_owned()]);
        wanted.sort();
        assert_eq!(seen, wanted);
        given.insert(index);
    }
    assert_eq!(given, BTreeSet::from([1, 3]));

    // Of two more pods one gets the last GPU, and the other waits until one is free.
    let one = json!([{"name": "gpu", "resourceClaimTemplateName": "one"}]);
    ground.claim("one", "ResourceClaimTemplate", &[("gpu", GPU, "")], &[]);
    ground.pod("fourth", &one, &json!({}));
    assert_eq!(ground.seen("fourth"), alone(0));
    ground.pod("fifth", &one, &json!({}));
    eventually("it waits", SOON, || {
        let pod = ground.cluster.get(&["pod", "fifth"]);
        let conditions = pod["status"]["conditions"].as_array()?;
        let message = conditions[0]["message"].as_str()?;
        message.contains("cannot allocate all claims").then_some(())
    });
    ground.delete("fourth");
    assert_eq!(ground.seen("fifth"), alone(0));
    eventually("four claims are prepared", SOON, || {
        (ground.specs() == 4).then_some(())
    });
}

#[test]
fn what_is_given_outlives_the_agent_and_a_failed_gpu_leaves_the_slices() {
    let mut ground = Ground::start();
    // A GPU that a pod has from the device plugin is offered to no claim.
    ground.agent("plugin");
    eventually("the GPUs are counted", SOON, || {
        let node = ground.cluster.get(&["node", "box"]);
        (node["status"]["allocatable"]["nvidia.com/gpu"] == "4").then_some(())
    });
    ground.pod("by-number", &json!([]), &json!({"nvidia.com/gpu": "1"}));
    let told = ground.seen("by-number").pop().unwrap();
    let held = told.strip_prefix("told GPU-").unwrap();
    let held = format!("gpu-{held}");
    ground.agent("dra");
    let rest: Vec<&str> = ALL.into_iter().filter(|name| *name != held).collect();
    ground.until_offered(&rest);
    ground.delete("by-number");
    ground.until_offered(&ALL);

    ground.claim("one", "ResourceClaimTemplate", &[("gpu", GPU, "")], &[]);
    let one = json!([{"name": "gpu", "resourceClaimTemplateName": "one"}]);
    ground.pod("first", &one, &json!({}));
    let first = ground.seen("first");
    assert_eq!(ground.specs(), 1);

    // While a claim is allocated, the agent refuses to run the device plugin.
    ground.end_agent();
    let refused = run(&mut ground.command("plugin"));
    assert_ne!(refused.code, Some(0));
    let words = ["--devices plugin", "default/first-gpu-", "--devices dra"];
    assert!(
        words.iter().all(|word| refused.err.contains(word)),
        "{}",
        refused.err
    );

    // A pod that arrives without an agent waits for the next agent, which knows the first pod's
    // devices.
    ground.pod("second", &one, &json!({}));
    ground.agent("dra");
    let second = ground.seen("second");
    assert_ne!(first, second);
    assert_eq!(ground.seen("first"), first);

    // A restarted kubelet removes the node's slices; they come back, and the kubelet prepares its
    // claims again.
    ground.kubelet.stop();
    ground.kubelet.restart();
    ground.until_offered(&ALL);
    ground.pod("third", &one, &json!({}));
    let third = ground.seen("third");
    let mut all = [&first, &second, &third];
    all.sort();
    let mut distinct = all.to_vec();
    distinct.dedup();
    assert_eq!(distinct.len(), 3, "{all:?}");

    // The free GPU fails: it leaves within the slice's generation, and comes back.
    let free = (0..4).find(|index| {
        let sees = alone(*index);
        all.iter().all(|seen| **seen != sees)
    });
    let free = free.unwrap();
    let before = ground.until_offered(&ALL);
    ground.describe(&[free]);
    let name = format!("gpu-{free}");
    let rest: Vec<&str> = ALL.into_iter().filter(|it| *it != name).collect();
    let after = ground.until_offered(&rest);
    let generation = |slice: &Value| slice["spec"]["pool"]["generation"].clone();
    assert_eq!(generation(&before), generation(&after));
    ground.pod("late", &one, &json!({}));
    eventually("it waits", SOON, || {
        let pod = ground.cluster.get(&["pod", "late"]);
        let message = pod["status"]["conditions"][0]["message"].as_str()?;
        message.contains("cannot allocate all claims").then_some(())
    });
    ground.describe(&[]);
    ground.until_offered(&ALL);
    assert_eq!(ground.seen("late"), alone(free));

    // A lost GPU takes its pod with it: the pod is evicted, and the others are not.
    let lost = (0..4).find(|index| alone(*index) == first).unwrap();
    ground.lose(lost);
    eventually("who has it is evicted", SOON, || {
        ground
            .cluster
            .get(&["pod", "first"])
            .is_null()
            .then_some(())
    });
    let events = ["get", "events", "--field-selector", "reason=FailedDevice"];
    let events = ground
        .cluster
        .kubectl(&[&events[..], &["-o", "name"]].concat());
    assert_eq!(events.out.lines().count(), 1, "{}", events.out);
    let name = format!("gpu-{lost}");
    let rest: Vec<&str> = ALL.into_iter().filter(|it| *it != name).collect();
    ground.until_offered(&rest);

    // A pod's end frees its devices.
    for pod in ["second", "third", "late"] {
        ground.delete(pod);
    }
    eventually("nothing is prepared any more", SOON, || {
        (ground.specs() == 0).then_some(())
    });
}
