//! `muster agent kubernetes` next to a real kubelet, with the packaged rights in the
//! cluster and on the node. The GPUs are described in a file, because the test machines have none:
//! containers print the GPUs that they got.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{
    Cluster, IMAGE, Kubelet, Network, Setup, eventually, free_address, get, muster, repository, run,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const GPU: &str = "nvidia.com/gpu";

/// One node with 8 described GPUs.
struct Ground {
    agent: Child,
    kubelet: Kubelet,
    cluster: Cluster,
    _network: Network,
}

impl Ground {
    fn start() -> Ground {
        let network = Network::new(0);
        let address = network.host().parse().expect("an address");
        let cluster = Setup::default().at(address).kubelet("box").start();
        let cluster = cluster.with_controller_manager();
        cluster.apply_packaged(&["agent-rbac.yaml"]);
        let kubelet = cluster.kubelet("box");
        describe(&cluster, &[]);
        let agent = agent(&cluster, &kubelet);
        let ground = Ground {
            agent,
            kubelet,
            cluster,
            _network: network,
        };
        ground.until_allocatable(8);
        let status = std::fs::read_to_string(format!("/proc/{}/status", ground.agent.id()));
        let status = status.expect("the agent runs");
        assert!(status.starts_with("Name:\tmuster\n"), "{status}");
        assert!(status.contains("\nCapEff:\t0000000000000000\n"), "{status}");
        ground
    }

    fn until_allocatable(&self, count: u32) {
        self.until_allocatable_of(GPU, count);
    }

    fn until_allocatable_of(&self, resource: &str, count: u32) {
        let what = format!("{count} of {resource} are allocatable");
        eventually(&what, SOON, || {
            let node = self.cluster.get(&["node", "box"]);
            (node["status"]["allocatable"][resource] == count.to_string().as_str()).then_some(())
        });
    }

    /// Waits until the node's condition on its MIG strategy has this status; returns its message.
    fn strategy_told(&self, status: &str) -> String {
        self.told("muster.io/mig-not-uniform", status)
    }

    /// Waits until a condition of the node has this status; returns its message.
    fn told(&self, condition: &str, status: &str) -> String {
        let what = format!("{condition} is {status}");
        eventually(&what, SOON, || {
            let node = self.cluster.get(&["node", "box"]);
            let conditions = node["status"]["conditions"].as_array()?;
            let ours = (conditions.iter()).find(|found| found["type"] == condition)?;
            let message = ours["message"].as_str()?.to_string();
            (ours["status"] == status).then_some(message)
        })
    }

    /// The GPUs' ids, as the agent wrote them on the node.
    fn ids(&self) -> Vec<String> {
        let inventory = eventually("the node has its inventory", SOON, || {
            let node = self.cluster.get(&["node", "box"]);
            let text = node["metadata"]["annotations"]["muster.io/inventory"].as_str()?;
            serde_json::from_str::<Value>(text).ok()
        });
        let gpus = inventory["gpus"].as_array().expect("GPUs");
        let id = |gpu: &Value| gpu["id"].as_str().expect("an id").to_string();
        gpus.iter().map(id).collect()
    }

    /// Creates pods as a binder leaves them, all in one request: on the node, with their devices.
    fn place(&self, pods: &[(&str, &[&str])]) {
        self.place_of(GPU, pods);
    }

    /// Like `place`, with devices of another resource.
    fn place_of(&self, resource: &str, pods: &[(&str, &[&str])]) {
        let pods = pods.iter().map(|(name, devices)| {
            let chosen = json!({"c": {resource: devices}}).to_string();
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": "default",
                    "annotations": {"muster.io/devices": chosen}},
                "spec": {"nodeName": "box", "restartPolicy": "Never",
                    "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                        "command": ["sh", "-c",
                            "trap 'exit 0' TERM; echo $NVIDIA_VISIBLE_DEVICES; while :; do sleep 1; done"],
                        "resources": {"limits": {resource: devices.len().to_string()}}}]}})
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods.collect::<Vec<_>>()});
        self.cluster.apply(&list.to_string());
    }

    /// The devices that a pod got, once it runs.
    fn given(&self, pod: &str) -> Vec<String> {
        let log = eventually(&format!("{pod} says what it has"), SOON, || {
            let ran = self.cluster.kubectl(&["logs", pod]);
            (ran.code == Some(0) && !ran.out.is_empty()).then_some(ran.out)
        });
        log.trim().split(',').map(String::from).collect()
    }

    fn delete(&self, pod: &str) {
        let ran = self
            .cluster
            .kubectl(&["delete", "pod", pod, "--wait", "--grace-period=2"]);
        ran.ok();
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.cluster.directory().join("agent.log"));
            eprintln!("--- the agent's log:\n{}", log.unwrap_or_default());
        }
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

fn description(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("machine.toml")
}

/// Replaces the description atomically: the agent reads it every other second.
fn replace(cluster: &Cluster, text: &str) {
    let partial = cluster.directory().join("machine.partial");
    std::fs::write(&partial, text).expect("a description is written");
    std::fs::rename(partial, description(cluster)).expect("a description is put in place");
}

/// Describes 8 GPUs, of which these are unhealthy.
fn describe(cluster: &Cluster, ill: &[usize]) {
    describe_with(cluster, ill, "");
}

/// Like `describe`, with these states.
fn describe_with(cluster: &Cluster, ill: &[usize], states: &str) {
    let gpu = |at: usize| {
        format!(
            "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nnvlinks = 18\nnvswitch = true\nhealthy = {}\n",
            !ill.contains(&at)
        )
    };
    let text = format!(
        "[machine]\nhostname = \"box\"\n{}{states}",
        (0..8).map(gpu).collect::<String>()
    );
    replace(cluster, &text);
}

fn agent(cluster: &Cluster, kubelet: &Kubelet) -> Child {
    agent_with(cluster, kubelet, &[])
}

/// The agent with these additional arguments.
fn agent_with(cluster: &Cluster, kubelet: &Kubelet, more: &[&str]) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(cluster.directory().join("agent.log"))
        .expect("a log");
    let account = cluster.kubeconfig_of_account("muster-system", "muster-agent");
    // As in the DaemonSet: root, without capabilities.
    kubelet
        .inside(Path::new("setpriv"))
        .args(["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"])
        .arg(muster())
        .arg("--kubeconfig")
        .arg(account)
        .arg("--data")
        .arg(cluster.directory().join("agent-data"))
        .args(["agent", "kubernetes", "--node-name", "box", "--machine"])
        .arg(description(cluster))
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the agent starts")
}

#[test]
fn pods_that_start_at_once_each_get_the_devices_chosen_for_them_and_metrics_name_them() {
    let mut ground = Ground::start();
    ground.agent.kill().expect("the agent can be killed");
    ground.agent.wait().expect("the agent ends");
    let address = free_address();
    ground.agent = agent_with(&ground.cluster, &ground.kubelet, &["--metrics", &address]);
    let ids = ground.ids();
    let id = |at: usize| ids[at].as_str();
    // Each choice differs from that of a plugin that doesn't know the pod, and pods of the same
    // size start together.
    let pairs = [[id(5), id(2)], [id(7), id(0)]];
    let singles = [[id(6)], [id(1)], [id(4)], [id(3)]];
    ground.place(&[
        ("pair-a", &pairs[0]),
        ("pair-b", &pairs[1]),
        ("one-a", &singles[0]),
        ("one-b", &singles[1]),
        ("one-c", &singles[2]),
        ("one-d", &singles[3]),
    ]);
    let sorted = |mut devices: Vec<String>| {
        devices.sort();
        devices
    };
    for (pod, wanted) in [("pair-a", pairs[0]), ("pair-b", pairs[1])] {
        let wanted = wanted.map(String::from).to_vec();
        assert_eq!(sorted(ground.given(pod)), sorted(wanted), "{pod}");
    }
    for (pod, wanted) in ["one-a", "one-b", "one-c", "one-d"]
        .into_iter()
        .zip(singles)
    {
        assert_eq!(ground.given(pod), wanted, "{pod}");
    }

    // As a user sees it.
    let shown = |words: &[&str]| println!("{}", ground.cluster.kubectl(words).ok());
    shown(&["get", "pods", "-o", "wide"]);
    shown(&["exec", "pair-a", "--", "env"]);

    // The kubelet reports the pod of each device.
    let (status, page) = get(&address, "/metrics").expect("the agent has metrics");
    assert_eq!(status, 200, "{page}");
    let free: Vec<&str> = (page.lines())
        .filter(|line| line.starts_with("DCGM_FI_DEV_FB_FREE{"))
        .collect();
    assert_eq!(free.len(), 8, "{page}");
    for (pod, devices) in [
        ("pair-a", &pairs[0][..]),
        ("pair-b", &pairs[1][..]),
        ("one-d", &singles[3][..]),
    ] {
        let named = format!("container=\"c\",namespace=\"default\",pod=\"{pod}\"");
        let theirs: Vec<&&str> = free.iter().filter(|line| line.contains(&named)).collect();
        assert_eq!(theirs.len(), devices.len(), "{pod}: {free:#?}");
        for device in devices {
            let uuid = format!("UUID=\"{device}\"");
            assert!(
                theirs.iter().any(|line| line.contains(&uuid)),
                "{pod}: {free:#?}"
            );
        }
    }
    // And the node has feature discovery's labels.
    let node = ground.cluster.get(&["node", "box"]);
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["nvidia.com/gpu.count"], "8", "{labels}");
    assert_eq!(labels["nvidia.com/gpu.product"], "NVIDIA-H100-80GB-HBM3");
}

#[test]
fn devices_outlive_the_agent_and_the_kubelet_and_an_ill_one_leaves_until_it_is_well() {
    let mut ground = Ground::start();
    let ids = ground.ids();
    let id = |at: usize| ids[at].as_str();
    ground.place(&[("first", &[id(3), id(4)])]);
    assert_eq!(ground.given("first").len(), 2);

    // The agent dies and another one starts: allocations are kept.
    ground.agent.kill().expect("the agent can be killed");
    ground.agent.wait().expect("the agent ends");
    ground.agent = agent(&ground.cluster, &ground.kubelet);
    ground.until_allocatable(8);
    ground.place(&[("second", &[id(7)])]);
    assert_eq!(ground.given("second"), [id(7)]);

    // A restarted kubelet finds the plugin again.
    ground.kubelet.stop();
    ground.kubelet.restart();
    ground.until_allocatable(8);
    ground.delete("second");
    ground.place(&[("third", &[id(0), id(7)])]);
    assert_eq!(ground.given("third").len(), 2);

    // An unhealthy GPU is not allocated until it is healthy again.
    describe(&ground.cluster, &[6]);
    ground.until_allocatable(7);
    describe(&ground.cluster, &[]);
    ground.until_allocatable(8);

    // A GPU with a pending reset is withdrawn alone, with a condition of the node, and comes back.
    describe_with(&ground.cluster, &[], "[[state]]\ngpu = 6\nrecovery = 1\n");
    ground.until_allocatable(7);
    let why = ground.told("muster.io/suspect", "True");
    assert!(
        why.contains("GPU 6") && why.contains("--gpu-reset"),
        "{why}"
    );
    describe(&ground.cluster, &[]);
    ground.until_allocatable(8);
    ground.told("muster.io/suspect", "False");

    // A link that goes down is reported on the node, and withdraws no GPU.
    let card = |state: &str| {
        format!(
            "[[nic]]\nname = \"mlx5_0\"\nports = [{{ gbits = 400, layer = \"InfiniBand\", state = \"{state}\" }}]\n"
        )
    };
    describe_with(&ground.cluster, &[6], &card("ACTIVE"));
    ground.until_allocatable(7);
    describe_with(&ground.cluster, &[], &card("DOWN"));
    let why = ground.told("muster.io/fabric-failed", "True");
    assert!(why.starts_with("mlx5_0/1: port state: DOWN"), "{why}");
    ground.until_allocatable(8);
    describe_with(&ground.cluster, &[], &card("ACTIVE"));
    ground.told("muster.io/fabric-failed", "False");

    // An application's error withdraws no GPU; a GPU's own error does until the GPU is quiet.
    describe_with(
        &ground.cluster,
        &[],
        "[[state]]\ngpu = 5\nxids = [31]\n[[state]]\ngpu = 6\nxids = [48]\n",
    );
    ground.until_allocatable(7);
    let why = ground.told("muster.io/suspect", "True");
    assert!(why.contains("GPU 6") && why.contains("XID 48"), "{why}");
    ground.until_allocatable(8);
    let about = "involvedObject.kind=Node,involvedObject.name=box,reason=AgentSuspects";
    let events = ground
        .cluster
        .kubectl(&["get", "events", "--field-selector", about, "-o", "json"])
        .ok();
    assert!(events.contains("XID 48"), "{events}");

    // If the driver does not report recovery, another agent still knows that the GPU is unhealthy:
    // it has to disappear and come back.
    let old = |state: &str| format!("[[state]]\ngpu = 6\nold_driver = true\n{state}\n");
    describe_with(&ground.cluster, &[], &old("xids = [48, 79]"));
    ground.until_allocatable(7);
    ground.agent.kill().expect("the agent can be killed");
    ground.agent.wait().expect("the agent ends");
    let log = ground.cluster.directory().join("agent.log");
    let log = || std::fs::read_to_string(&log).expect("a log");
    let before = log().len();
    ground.agent = agent(&ground.cluster, &ground.kubelet);
    eventually("the new agent is the kubelet's plugin", SOON, || {
        (log()[before..].contains("registered with the kubelet")).then_some(())
    });
    let why = ground.told("muster.io/suspect", "True");
    assert!(why.contains("GPU 6") && why.contains("XID 79"), "{why}");
    ground.until_allocatable(7);
    describe_with(&ground.cluster, &[], &old("lost = true"));
    eventually("it is seen to be gone", SOON, || {
        let why = ground.told("muster.io/suspect", "True");
        why.contains("lost").then_some(())
    });
    describe_with(&ground.cluster, &[], &old(""));
    ground.until_allocatable(8);
    ground.told("muster.io/suspect", "False");
    assert!(log()[before..].contains("healthy again"), "it knew");

    // Devices of another pod are not allocated again.
    ground.place(&[("late", &[id(3)])]);
    let why = eventually("the pod is refused", SOON, || {
        let pod = ground.cluster.get(&["pod", "late"]);
        let message = pod["status"]["message"].as_str()?.to_string();
        (pod["status"]["phase"] == "Failed").then_some(message)
    });
    assert!(
        why.contains("delete the pod so that it is scheduled again"),
        "{why}"
    );
    assert_eq!(ground.given("first").len(), 2);
}

#[test]
fn slices_are_resources_by_their_profile_or_gpus_as_the_strategy_says_and_follow_a_new_cut() {
    let ground = Ground::start();
    let cut = |strategy: &str, slices: &str| {
        let text = format!(
            "[machine]\nhostname = \"box\"\nmig_strategy = \"{strategy}\"\n\
             [[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"GPU-whole\"]\n\
             [[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"GPU-cut\"]\nmig = {slices}\n"
        );
        replace(&ground.cluster, &text);
    };
    let (small, media) = ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me");
    cut("mixed", r#"["1g.10gb", "1g.10gb", "1g.10gb+me"]"#);
    ground.until_allocatable_of(small, 2);
    ground.until_allocatable_of(media, 1);
    ground.until_allocatable(1);

    // Each pod gets the slice that was chosen for it, of its own resource.
    let node = ground.cluster.get(&["node", "box"]);
    let inventory = node["metadata"]["annotations"]["muster.io/inventory"].as_str();
    let inventory: Value =
        serde_json::from_str(inventory.expect("an inventory")).expect("an inventory is JSON");
    let slices = inventory["gpus"][1]["slices"].as_array().expect("slices");
    let id = |at: usize| slices[at]["id"].as_str().expect("an id");
    ground.place_of(small, &[("second", &[id(1)]), ("first", &[id(0)])]);
    ground.place_of(media, &[("media", &[id(2)])]);
    for (pod, slice) in [("first", id(0)), ("second", id(1)), ("media", id(2))] {
        assert_eq!(ground.given(pod), [slice], "{pod}");
        ground.delete(pod);
    }

    // With the strategy `single` there must be one profile only, which the node's condition says.
    cut("single", r#"["1g.10gb", "1g.10gb+me"]"#);
    let why = ground.strategy_told("True");
    assert!(why.contains("1g.10gb, 1g.10gb+me"), "{why}");
    ground.until_allocatable_of(small, 1);
    cut("single", r#"["1g.10gb", "1g.10gb", "1g.10gb"]"#);
    ground.strategy_told("False");
    ground.until_allocatable(4);
    ground.until_allocatable_of(small, 0);
    ground.until_allocatable_of(media, 0);

    // Slices are ignored: both GPUs are whole.
    cut("none", r#"["1g.10gb"]"#);
    ground.until_allocatable(2);
}

#[test]
fn shared_gpus_are_given_to_several_pods_under_their_own_name_and_the_others_as_before() {
    let mut ground = Ground::start();
    let ids = ground.ids();
    let file = ground.cluster.directory().join("plugin.yaml");
    let configuration = "version: v1\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:\n      - name: nvidia.com/gpu\n        replicas: 3\n        devices: [6, 7]\n";
    std::fs::write(&file, configuration).expect("a configuration is written");
    ground.agent.kill().expect("the agent can be killed");
    ground.agent.wait().expect("the agent ends");
    let file = file.display().to_string();
    let more = ["--device-plugin-config", file.as_str()];
    ground.agent = agent_with(&ground.cluster, &ground.kubelet, &more);
    let shared = "nvidia.com/gpu.shared";
    ground.until_allocatable_of(shared, 6);
    ground.until_allocatable(6);
    eventually("schedulers are told of what one gets one", SOON, || {
        let node = ground.cluster.get(&["node", "box"]);
        let said = node["metadata"]["annotations"]["muster.io/inventory"].as_str()?;
        let inventory: Value = serde_json::from_str(said).ok()?;
        let alone: Vec<&Value> = (inventory["gpus"].as_array()?.iter())
            .filter(|gpu| gpu["alone"] == true)
            .map(|gpu| &gpu["id"])
            .collect();
        (inventory["oneAtMost"] == json!([shared]) && alone == [&ids[6], &ids[7]]).then_some(())
    });

    // One after another, because the test reads the processes of each pod.
    let pod = |name: &str, count: usize| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "box", "restartPolicy": "Never",
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c",
                        "trap 'exit 0' TERM; echo $NVIDIA_VISIBLE_DEVICES; while :; do sleep 1; done"],
                    "resources": {"limits": {shared: count.to_string()}}}]}})
        .to_string()
    };
    let mut given = Vec::new();
    for name in ["one", "two", "three", "four"] {
        ground.cluster.apply(&pod(name, 1));
        given.extend(ground.given(name));
    }
    given.sort();
    let mut wanted = vec![
        ids[6].clone(),
        ids[6].clone(),
        ids[7].clone(),
        ids[7].clone(),
    ];
    wanted.sort();
    assert_eq!(given, wanted, "each of the two GPUs has two pods");
    ground.place(&[("whole", &[&ids[2]])]);
    assert_eq!(ground.given("whole"), [ids[2].clone()]);

    // Several replicas do not enlarge the share of a GPU.
    ground.cluster.apply(&pod("greedy", 2));
    let why = eventually("the pod is refused", SOON, || {
        let pod = ground.cluster.get(&["pod", "greedy"]);
        let message = pod["status"]["message"].as_str()?.to_string();
        (pod["status"]["phase"] == "Failed").then_some(message)
    });
    assert!(why.contains("failRequestsGreaterThanOne"), "{why}");
}

/// The process of the pod's only container, by the node's process id.
fn process_of(cluster: &Cluster, pod: &str) -> u32 {
    eventually(&format!("{pod} has a process"), SOON, || {
        let found = cluster.get(&["pod", pod]);
        let id = found["status"]["containerStatuses"][0]["containerID"].as_str()?;
        let id = id.strip_prefix("containerd://")?.to_string();
        let entries = std::fs::read_dir("/proc").ok()?.flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let of_it = |number: &u32| {
            let groups = std::fs::read_to_string(format!("/proc/{number}/cgroup"));
            groups.is_ok_and(|groups| groups.contains(&id))
        };
        numbers.filter(of_it).min()
    })
}

#[test]
fn parts_of_a_gpu_are_of_the_chosen_one_within_mps_limits_and_who_takes_more_is_evicted() {
    let mut ground = Ground::start();
    let ids = ground.ids();
    (ground.cluster).apply_chart("agent-rbac.yaml", "agent.overShare=end");
    let file = |name: &str| ground.cluster.directory().join(name).display().to_string();
    let (configuration, daemons) = (file("plugin.yaml"), file("mps"));
    let text = "version: v1\nsharing:\n  mps:\n    resources:\n      - name: nvidia.com/gpu\n        \
         replicas: 1\n        devices: [6, 7]\n";
    std::fs::write(&configuration, text).expect("a configuration is written");
    let standin = repository().join("internal/devices/testing/mps-control-standin");
    let (standin, address) = (standin.display().to_string(), free_address());
    ground.agent.kill().expect("the agent can be killed");
    ground.agent.wait().expect("the agent ends");
    let more = [
        "--device-plugin-config",
        &configuration,
        "--gpu-parts",
        "--mps-control",
        &standin,
        "--mps-dir",
        &daemons,
        "--over-share",
        "end",
        "--metrics",
        &address,
    ];
    ground.agent = agent_with(&ground.cluster, &ground.kubelet, &more);
    let (memory, time) = ("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage");
    ground.until_allocatable_of(memory, 8 * 79);
    ground.until_allocatable_of(time, 8 * 100);
    ground.until_allocatable(8);

    let pod = |name: &str, resource: &str, amount: &str, chosen: Option<&str>| {
        let devices = chosen.map(|id| json!({"c": {GPU: [id]}}).to_string());
        let devices = devices.unwrap_or_default();
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default",
                "annotations": {"muster.io/devices": devices}},
            "spec": {"nodeName": "box", "restartPolicy": "Never",
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", concat!(
                        "trap 'exit 0' TERM; ",
                        "echo $(ls -d $CUDA_MPS_PIPE_DIRECTORY),$NVIDIA_VISIBLE_DEVICES,",
                        "$CUDA_VISIBLE_DEVICES,$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,",
                        "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; while :; do sleep 1; done")],
                    "resources": {"limits": {resource: amount}}}]}})
        .to_string()
    };
    let place = |name: &str, resource: &str, amount: &str, id: &str| {
        ground.cluster.apply(&pod(name, resource, amount, Some(id)));
        ground.given(name).join(",")
    };
    // Two of one GPU, and one of another: the chosen GPUs, though others are free.
    let (sixth, seventh) = (&ids[6], &ids[7]);
    let pipe = |id: &str| format!("{daemons}/{id}/pipe");
    let tens = format!("{},{sixth},{sixth},0=10240M,", pipe(sixth));
    assert_eq!(place("greedy", memory, "10", sixth), tens);
    assert_eq!(place("modest", memory, "10", sixth), tens);
    let quarter = format!("{},{seventh},{seventh},0=20389M,25", pipe(seventh));
    assert_eq!(place("quarter", time, "25", seventh), quarter);

    // Only Muster's scheduler keeps shares apart.
    ground.cluster.apply(&pod("stray", memory, "1", None));
    let why = eventually("the pod is refused", SOON, || {
        let pod = ground.cluster.get(&["pod", "stray"]);
        let message = pod["status"]["message"].as_str()?.to_string();
        (pod["status"]["phase"] == "Failed").then_some(message)
    });
    assert!(why.contains("no scheduler chose a GPU"), "{why}");

    // One pod takes more than its share.
    let [greedy, modest] = ["greedy", "modest"].map(|name| process_of(&ground.cluster, name));
    describe_with(
        &ground.cluster,
        &[],
        &format!(
            "[[state]]\ngpu = 6\nprocesses = [\n{{ pid = {greedy}, memory_mib = 12000, mps = true }},\n\
             {{ pid = {modest}, memory_mib = 9000, mps = true }},\n]\n"
        ),
    );
    eventually("the pod that takes more is gone", SOON, || {
        let ran = ground.cluster.kubectl(&["get", "pod", "greedy"]);
        ran.err.contains("NotFound").then_some(())
    });
    let about = "involvedObject.name=greedy,reason=OverGpuShare";
    let events = ground
        .cluster
        .kubectl(&["get", "events", "--field-selector", about, "-o", "json"])
        .ok();
    let wanted = "container c has 12000 MiB of the memory of GPU";
    assert!(events.contains(wanted), "{events}");
    let modest = ground.cluster.get(&["pod", "modest"]);
    assert_eq!(modest["status"]["phase"], "Running");
    let (_, page) = get(&address, "/metrics").expect("the agent has metrics");
    let used = page.lines().find(|line| {
        line.starts_with("muster_gpu_share_used_bytes{") && line.contains("pod=\"modest\"")
    });
    let used = used.unwrap_or_else(|| panic!("no share of modest: {page}"));
    assert!(used.ends_with(&format!(" {}", 9000u64 << 20)), "{used}");

    // The unused daemons end with the agent.
    let pid = std::fs::read_to_string(format!("{}/nvidia-cuda-mps-control.pid", pipe(sixth)));
    let daemon = PathBuf::from(format!("/proc/{}", pid.expect("a daemon").trim()));
    assert!(daemon.exists(), "it runs");
    run(Command::new("kill").arg(ground.agent.id().to_string())).ok();
    ground.agent.wait().expect("the agent ends");
    eventually("the daemon ends", SOON, || (!daemon.exists()).then_some(()));
}
