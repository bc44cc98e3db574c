//! What work on the embedded engine is given of its node's devices. Machines are described in files; no
//! machine of the tests has a GPU.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually, repository};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);

/// What a pod prints, whose one container runs this script with these fields beside it.
fn said(platform: &Platform, name: &str, script: &str, container: &Value, spec: &Value) -> String {
    let script = format!("{script}; echo end; exec sleep 600");
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "command": ["sh", "-c", script]}]}});
    let fields = |value: &Value| value.as_object().unwrap().clone();
    let of_pod = pod["spec"].as_object_mut().unwrap();
    of_pod.extend(fields(spec));
    let of_container = pod["spec"]["containers"][0].as_object_mut().unwrap();
    of_container.extend(fields(container));
    platform.apply(&pod.to_string());
    eventually(&format!("{name} says what it has"), SOON, || {
        let found = platform.get("pod", name);
        assert_ne!(found["status"]["phase"], "Failed", "{}", found["status"]);
        let log = platform.cli(&["logs", name]).out;
        log.strip_suffix("end\n").map(str::to_owned)
    })
}

#[test]
fn nccl_is_told_the_tree_of_a_machine_that_hides_it_unless_the_author_says_one() {
    let machine = repository().join("packaging/examples/machines/hgx-h100.toml");
    let machine = machine.display().to_string();
    let platform = Platform::server(&[]);
    let _told = platform.agent("told", None, &["--machine", &machine, "--metrics", "off"]);
    platform.await_nodes(1);
    // As another user than the agent's, whose directories nobody else may look into.
    let gpu = json!({"resources": {"limits": {"nvidia.com/gpu": "2"}}});
    let nobody = json!({"securityContext": {"runAsUser": 65534}});
    let script = "echo $NCCL_TOPO_FILE; cat $NCCL_TOPO_FILE";
    let log = said(&platform, "told", script, &gpu, &nobody);
    let kept = include_str!("../../internal/hardware/tests/nccl/hgx-h100.xml");
    assert_eq!(log, format!("/dev/nccl-topology.xml\n{kept}"));

    let mut own = gpu.clone();
    own["env"] = json!([{"name": "NCCL_TOPO_FILE", "value": "/mine.xml"}]);
    let script = "echo $NCCL_TOPO_FILE; test -e /dev/nccl-topology.xml || echo and no other";
    let log = said(&platform, "own", script, &own, &json!({}));
    assert_eq!(log, "/mine.xml\nand no other\n");
    let script = "echo \"told ${NCCL_TOPO_FILE-nothing}\"";
    let plain = json!({"resources": {"requests": {"cpu": "10m"}}});
    let log = said(&platform, "plain", script, &plain, &json!({}));
    assert_eq!(log, "told nothing\n");

    // Where the administrator wants none, a GPU changes nothing.
    let more = [
        "--machine",
        &machine,
        "--metrics",
        "off",
        "--nccl-topology",
        "never",
        "--label",
        "quiet=yes",
    ];
    let _quiet = platform.agent("quiet", None, &more);
    platform.await_nodes(2);
    let there = json!({"nodeSelector": {"quiet": "yes"}});
    assert_eq!(
        said(&platform, "quiet", script, &gpu, &there),
        "told nothing\n"
    );
}
