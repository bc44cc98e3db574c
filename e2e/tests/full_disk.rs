//! A node whose disk is too full: a small memory file system is the agent's data directory. What is
//! removed and which pod is evicted, in which order, and the node's taint.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::time::Duration;

use e2e::{Agent, Platform, eventually, eventually_ok, free_kib, repository, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
/// The size of the file system in MiB; the agent keeps a fiftieth of it free.
const SIZE_MIB: u64 = 200;
/// What is left free in KiB when the test fills it: less than the reserve of 4 MiB, and enough for
/// the agent's own files.
const LEFT_KIB: u64 = 1024;
const TAINT: &str = "node.kubernetes.io/disk-pressure";

/// Renames a directory without a pause. 700 others are listed with it, so that between its listing
/// and its reading it always has another name.
const RENAME: &str = "cd /held; for i in $(seq 700); do mkdir s$i; done; mkdir d0; \
    head -c 20000000 /dev/zero > file; echo ready; \
    exec perl -e 'for ($i = 0; ; $i++) { rename(\"d$i\", \"d\" . ($i + 1)); select(undef, undef, undef, 0.0001); }'";

struct Ground {
    // Dropped first: the file system is unmounted with it.
    agent: Agent,
    platform: Platform,
    /// The file system of the agent's data.
    data: PathBuf,
}

impl Ground {
    fn new() -> Ground {
        e2e::require_root();
        let platform = Platform::server(&[]);
        let data = platform.data.with_file_name("n1");
        std::fs::create_dir(&data).unwrap();
        let size = format!("size={SIZE_MIB}m");
        let tmpfs = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        run(std::process::Command::new("mount").args(tmpfs).arg(&data)).ok();
        let machine = repository().join("packaging/examples/machines/4x-h100.toml");
        let agent = platform.agent("n1", None, &["--machine", &machine.display().to_string()]);
        platform.await_nodes(1);
        Ground {
            agent,
            platform,
            data,
        }
    }

    /// Starts a pod of a process with an emptyDir at /held, and waits until it has written.
    fn pod(&self, name: &str, script: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "volumes": [{"name": "held", "emptyDir": {}}],
                "containers": [{
                    "name": "main", "command": ["/bin/sh", "-c", script],
                    "volumeMounts": [{"name": "held", "mountPath": "/held"}],
                    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}});
        self.platform.apply(&pod.to_string());
        eventually(&format!("{name} has written"), SOON, || {
            let log = self.platform.cli(&["logs", name, "--tail", "1"]).out;
            log.ends_with("ready\n").then_some(())
        });
    }

    fn status(&self, pod: &str, field: &str) -> String {
        let pod = self.platform.get("pod", pod);
        pod["status"][field].as_str().unwrap_or_default().to_owned()
    }

    /// Fills the disk with a file that belongs to no pod.
    fn fill(&self, name: &str) {
        let free = free_kib(&self.data);
        let bytes = (free - LEFT_KIB) * 1024;
        std::fs::write(
            self.data.join(name),
            vec![0; usize::try_from(bytes).unwrap()],
        )
        .unwrap();
    }

    fn has_logs_of(&self, pod: &str) -> bool {
        let prefix = format!("default_{pod}_");
        let entries = std::fs::read_dir(self.data.join("agent/logs"))
            .unwrap()
            .flatten();
        let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.any(|name| name.starts_with(&prefix))
    }

    fn has_taint(&self) -> bool {
        let node = self.platform.get("node", "n1");
        let taints = node["spec"]["taints"].as_array().cloned();
        let is_ours = |taint: &Value| taint["key"] == TAINT && taint["effect"] == "NoSchedule";
        taints.unwrap_or_default().iter().any(is_ours)
    }
}

#[test]
fn logs_of_ended_pods_go_first_and_then_a_doubtful_pod_and_no_innocent_one() {
    let ground = Ground::new();
    let lines = "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 1000; echo; echo ready";
    ground.pod("ended", lines);
    // It uses the most, as far as the agent can count.
    ground.pod(
        "innocent",
        "head -c 60000000 /dev/zero > /held/file; echo ready; exec sleep 3600",
    );
    ground.pod("doubtful", RENAME);
    eventually("the pod has ended", SOON, || {
        (ground.status("ended", "phase") == "Succeeded").then_some(())
    });
    eventually_ok("the agent doubts its count", SOON, || {
        let log = ground.agent.logged();
        let doubts = log.contains("disk usage is doubtful");
        doubts.then_some(()).ok_or_else(|| log.clone())
    });
    assert!(ground.has_logs_of("ended") && !ground.has_taint());

    ground.fill("first");
    eventually("the ended pod's logs are removed", SOON, || {
        (!ground.has_logs_of("ended")).then_some(())
    });
    assert!(free_kib(&ground.data) > SIZE_MIB * 1024 / 50);
    eventually("the node has the taint", SOON, || {
        ground.has_taint().then_some(())
    });
    for running in ["innocent", "doubtful"] {
        assert_eq!(ground.status(running, "phase"), "Running", "{running}");
    }

    ground.fill("second");
    eventually("a pod is evicted", SOON, || {
        (ground.status("doubtful", "phase") == "Failed").then_some(())
    });
    assert_eq!(ground.status("doubtful", "reason"), "Evicted");
    let message = ground.status("doubtful", "message");
    assert!(
        message.contains("low on resource: ephemeral-storage"),
        "{message}"
    );
    assert!(message.contains("doubtful"), "{message}");
    eventually("its files are removed", SOON, || {
        (free_kib(&ground.data) > SIZE_MIB * 1024 / 50).then_some(())
    });

    // The node reports the full disk, and keeps the taint, for 300 more seconds, which the test does not wait for.
    assert_eq!(ground.status("innocent", "phase"), "Running");
}
