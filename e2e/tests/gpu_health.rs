//! GPUs that fail under a gang: each is withdrawn alone with a condition of its node, its pod
//! starts again on another GPU, and it comes back once it is healthy. The GPUs are described in a
//! file.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Agent, Platform, eventually, free_address, get, muster, run};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(120);
/// A gang of two that runs until it is deleted.
const GANG: &str = "apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              command: [sleep, '600']
              resources: {requests: {cpu: 50m}, limits: {nvidia.com/gpu: 1}}
    Worker: *replica
";

/// A server and one node of four GPUs.
struct Ground {
    platform: Platform,
    _agent: Agent,
    address: String,
    description: PathBuf,
    kmsg: PathBuf,
}

impl Ground {
    fn start() -> Ground {
        let platform = Platform::server(&[]);
        let description = platform.manifest("machine.toml", "");
        describe(&description, "");
        let kmsg = platform.manifest(
            "kmsg",
            "4,1,2,-;NVRM: Xid (PCI:0000:10:00): 79, of long ago\n",
        );
        let policy = platform.manifest("xids.yaml", "quietSeconds: 20\n");
        let address = free_address();
        let [machine, log, policy] =
            [&description, &kmsg, &policy].map(|file| file.display().to_string());
        let arguments = [
            "--machine",
            &machine,
            "--kmsg",
            &log,
            "--xid-policy",
            &policy,
        ];
        let agent = platform.agent(
            "gpus",
            None,
            &[&arguments[..], &["--metrics", &address]].concat(),
        );
        platform.await_nodes(1);
        Ground {
            platform,
            _agent: agent,
            address,
            description,
            kmsg,
        }
    }

    fn until_allocatable(&self, count: u32) {
        eventually(&format!("{count} GPUs are allocatable"), SOON, || {
            let node = self.platform.get("node", "gpus");
            (node["status"]["allocatable"]["nvidia.com/gpu"] == count.to_string().as_str())
                .then_some(())
        });
    }

    /// Waits until the node's condition `suspect` has this status and a message with this text.
    fn until_suspect(&self, status: &str, words: &str) {
        self.until_condition("muster.io/suspect", status, words);
    }

    fn until_condition(&self, name: &str, status: &str, words: &str) {
        eventually(&format!("{name} is {status}: {words}"), SOON, || {
            let node = self.platform.get("node", "gpus");
            let conditions = node["status"]["conditions"].as_array()?;
            let ours = conditions.iter().find(|it| it["type"] == name)?;
            let said = ours["message"].as_str()?.contains(words);
            (ours["status"] == status && said).then_some(())
        });
    }

    /// A running pod's uid and its GPU's index, other than the pod's of this uid.
    fn running(&self, pod: &str, not: &str) -> (String, usize) {
        eventually(&format!("{pod} runs"), SOON, || {
            let ran = self.platform.cli(&["get", "pod", pod, "-o", "json"]);
            let pod: Value = serde_json::from_str(&ran.out).ok()?;
            let uid = pod["metadata"]["uid"].as_str()?.to_owned();
            let chosen = pod["metadata"]["annotations"]["muster.io/devices"].as_str()?;
            let chosen: Value = serde_json::from_str(chosen).ok()?;
            let id = chosen["pytorch"]["nvidia.com/gpu"][0].as_str()?.to_owned();
            let runs = pod["status"]["phase"] == "Running" && uid != not;
            runs.then(|| (uid, self.index(&id)))
        })
    }

    fn index(&self, id: &str) -> usize {
        let node = self.platform.get("node", "gpus");
        let text = node["metadata"]["annotations"]["muster.io/inventory"]
            .as_str()
            .unwrap();
        let inventory: Value = serde_json::from_str(text).unwrap();
        let gpus = inventory["gpus"].as_array().unwrap();
        gpus.iter().position(|gpu| gpu["id"] == id).unwrap()
    }

    fn page(&self) -> String {
        let (status, page) = get(&self.address, "/metrics").unwrap();
        assert_eq!(status, 200, "{page}");
        page
    }
}

/// Four GPUs in these states, replaced atomically.
fn describe(file: &Path, states: &str) {
    let gpus = "[machine]\ndriver = \"570.124.06\"\n[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\n\
        memory_mib = 81559\ncount = 4\necc = true\npcie_generation = 5\npcie_width = 16\n";
    let partial = file.with_extension("partial");
    std::fs::write(&partial, format!("{gpus}{states}")).unwrap();
    std::fs::rename(partial, file).unwrap();
}

#[test]
fn a_gpu_that_fails_leaves_alone_its_pod_starts_anew_elsewhere_and_it_comes_back() {
    let ground = Ground::start();
    ground.until_allocatable(4);
    ground.platform.apply(GANG);
    let (master, sick) = ground.running("train-master-0", "");
    let (worker, other) = ground.running("train-worker-0", "");

    // The kernel's log has the XID with the GPU's address.
    let mut log = std::fs::File::options()
        .append(true)
        .open(&ground.kmsg)
        .unwrap();
    let bus = 0x10 + sick;
    writeln!(log, "4,3,4,-;NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid=7, name=python, GPU has fallen off the bus.").unwrap();
    ground.until_allocatable(3);
    ground.until_suspect(
        "True",
        &format!("GPU {sick} is unhealthy: the driver reported XID 79"),
    );
    let (again, elsewhere) = ground.running("train-master-0", &master);
    assert!(elsewhere != sick && elsewhere != other);
    assert_eq!(
        ground.running("train-worker-0", "").0,
        worker,
        "the other goes on"
    );
    let job = ground.platform.get("pytorchjob", "train");
    assert!(!job["status"].to_string().contains("\"Failed\""), "{job:#}");
    let explained = ground.platform.cli(&["explain", "train"]).ok();
    let words = "Rank 0 (train-master-0) uses a GPU that failed, and cannot continue on it";
    assert!(
        explained.contains(words) && explained.contains("gpu-error"),
        "{explained}"
    );
    let page = ground.page();
    let gpu = format!("gpu=\"{sick}\"");
    for (name, labels, value) in [
        (
            "DCGM_FI_DEV_XID_ERRORS{",
            "modelName=\"NVIDIA H100 80GB HBM3\"",
            " 79",
        ),
        ("muster_gpu_xids_total{", "xid=\"79\"", " 1"),
        ("muster_gpu_healthy{", "UUID=", " 0"),
    ] {
        let mut ours = page
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(&gpu));
        let line = ours.next().unwrap_or_else(|| panic!("{name} {page}"));
        assert!(line.contains(labels) && line.ends_with(value), "{line}");
    }
    // The GPU is quiet, and the driver requests no recovery.
    ground.until_allocatable(4);
    ground.until_suspect("False", "");
    let events = ground.platform.cli(&["describe", "node", "gpus"]).ok();
    assert!(
        events.contains("AgentSuspects") && events.contains("NothingFound"),
        "{events}"
    );

    // GPUs with a pending reset, and lost ones.
    describe(
        &ground.description,
        &format!("[[state]]\ngpu = {elsewhere}\nrecovery = 1\n"),
    );
    ground.until_suspect("True", "--gpu-reset");
    let (third, on) = ground.running("train-master-0", &again);
    assert_ne!(on, elsewhere);
    describe(
        &ground.description,
        &format!("[[state]]\ngpu = {on}\nlost = true\n"),
    );
    ground.until_suspect("True", &format!("GPU {on} is unhealthy"));
    let (fourth, on) = ground.running("train-master-0", &third);
    describe(&ground.description, "");
    ground.until_allocatable(4);
    ground.until_suspect("False", "");

    // A warning that may become worse is reported, and withdraws no GPU.
    let grows = format!("[[state]]\ngpu = {on}\nuncorrected = 2\npcie_width = 8\n");
    describe(&ground.description, &grows);
    ground.until_suspect("True", "8 of 16 lanes");
    ground.until_suspect("True", "(and 1 more)");
    ground.until_allocatable(4);
    assert_eq!(ground.running("train-master-0", "").0, fourth);
}

#[test]
fn the_policy_that_is_printed_is_read_and_what_is_wrong_in_one_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("xids.yaml");
    let xids = |arguments: &[&str]| run(Command::new(muster()).arg("xids").args(arguments));
    let text = xids(&[]).ok();
    assert!(
        text.contains("  79: reboot # the GPU has fallen off the bus"),
        "{text}"
    );
    std::fs::write(&file, &text).unwrap();
    let given = ["--xid-policy", file.to_str().unwrap()];
    assert_eq!(xids(&given).ok(), text);
    std::fs::write(&file, "xids:\n  74: drain\n  79: burn\n").unwrap();
    let refused = xids(&given);
    assert_ne!(refused.code, Some(0));
    for words in [
        "--xid-policy",
        "xids.79: \"burn\"",
        "ignore, restart-app, reset, reboot, drain",
    ] {
        assert!(refused.err.contains(words), "{}", refused.err);
    }
}

/// Two network cards, the first with its port in this state.
fn cards(state: &str) -> String {
    let card = |at: u32, state: &str| {
        format!(
            "[[nic]]\nname = \"mlx5_{at}\"\nfirmware = \"1\"\n\
             ports = [{{ gbits = 400, layer = \"InfiniBand\", state = \"{state}\" }}]\n"
        )
    };
    format!("{}{}", card(0, state), card(1, "ACTIVE"))
}

#[test]
fn a_gang_keeps_off_a_node_whose_rdma_fails_until_it_works_again() {
    let fabric = "muster.io/fabric-failed";
    let ground = Ground::start();
    describe(&ground.description, &cards("ACTIVE"));
    ground.until_allocatable(4);
    // The link was seen up once a GPU that fails with it has left.
    describe(
        &ground.description,
        &format!("{}[[state]]\ngpu = 0\nlost = true\n", cards("ACTIVE")),
    );
    ground.until_allocatable(3);
    describe(&ground.description, &cards("DOWN"));
    ground.until_condition(fabric, "True", "mlx5_0/1: port state: DOWN, LinkUp");
    ground.platform.apply(GANG);
    eventually("the gang says why it waits", SOON, || {
        let said = ground.platform.cli(&["explain", "train"]).out;
        said.contains("had failed RDMA").then_some(())
    });
    describe(&ground.description, &cards("ACTIVE"));
    ground.until_condition(fabric, "False", "");
    ground.running("train-master-0", "");
    ground.running("train-worker-0", "");
    let events = ground.platform.cli(&["describe", "node", "gpus"]).ok();
    assert!(
        events.contains("RdmaFails") && events.contains("RdmaWorks"),
        "{events}"
    );
}
