//! Nodes as administrators handle them: cordon, drain with its preview and with budgets, and taints that end pods.

use std::time::Duration;

use e2e::{Platform, eventually};

const SOON: Duration = Duration::from_secs(60);

fn deployment(platform: &Platform, name: &str) {
    let create = [
        "create",
        "deployment",
        name,
        "--image=host",
        "--",
        "sleep",
        "600",
    ];
    platform.kubectl(&create).ok();
    let path = format!("deployment/{name}");
    platform
        .kubectl(&["rollout", "status", &path, "--timeout=60s"])
        .ok();
}

#[test]
fn a_drain_shows_its_cost_respects_budgets_and_empties_the_node() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let node = k(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let unschedulable = "jsonpath={.items[0].spec.unschedulable}";

    let said = platform.cli(&["node", "cordon", &node]).ok();
    assert_eq!(said, format!("node {node:?} cordoned\n"));
    assert_eq!(k(&["get", "nodes", "-o", unschedulable]), "true");
    let again = platform.cli(&["node", "cordon", &node]).ok();
    assert_eq!(again, format!("node {node:?} already cordoned\n"));
    platform.cli(&["node", "uncordon", &node]).ok();
    assert_eq!(k(&["get", "nodes", "-o", unschedulable]), "");
    assert_eq!(
        platform.cli(&["node", "drain", "no-such-node"]).code,
        Some(3)
    );

    deployment(&platform, "web");
    k(&[
        "create",
        "pdb",
        "keep",
        "--selector=app=web",
        "--min-available=1",
    ]);
    let run = [
        "run",
        "alone",
        "--image=host",
        "--restart=Never",
        "--command",
        "--",
        "sleep",
        "600",
    ];
    k(&run);
    k(&[
        "wait",
        "--for=condition=Ready",
        "pod/alone",
        "--timeout=60s",
    ]);
    let allowed = "jsonpath={.status.expectedPods}";
    eventually("the budget counts its pod", SOON, || {
        (k(&["get", "pdb", "keep", "-o", allowed]) == "1").then_some(())
    });
    let shown = platform.cli(&["node", "drain", &node, "--dry-run"]);
    assert_eq!(shown.code, Some(1), "{}", shown.out);
    for part in [
        "evict later",
        "PodDisruptionBudget keep",
        "cannot move",
        "of work",
        "nothing was changed",
    ] {
        assert!(
            shown.out.contains(part),
            "{part} is missing in\n{}",
            shown.out
        );
    }
    let refused = platform.cli(&["node", "drain", &node]);
    assert_eq!(refused.code, Some(2), "{}", refused.err);
    assert!(refused.err.contains("default/alone"), "{}", refused.err);
    assert_eq!(
        k(&["get", "nodes", "-o", unschedulable]),
        "",
        "a refused drain changes nothing"
    );

    // The budget allows no eviction, so the pod is still there at the timeout.
    let drain = [
        "node",
        "drain",
        &node,
        "--force",
        "--grace-period=1",
        "--timeout=8",
    ];
    let held = platform.cli(&drain);
    assert_eq!(held.code, Some(124), "{}\n{}", held.out, held.err);
    assert!(
        held.out.contains("pod default/alone evicted"),
        "{}",
        held.out
    );
    assert!(held.err.contains("default/web-"), "{}", held.err);
    k(&["delete", "pdb", "keep"]);
    let drain = ["node", "drain", &node, "--grace-period=1", "--timeout=60"];
    let done = platform.cli(&drain).ok();
    assert!(
        done.ends_with(&format!("node {node:?} drained\n")),
        "{done}"
    );
    // kubectl agrees that nothing is left to drain.
    let told = k(&["drain", &node, "--ignore-daemonsets"]);
    assert!(told.contains("drained"), "{told}");
}

#[test]
fn a_taint_ends_pods_at_once_or_after_their_time() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let node = k(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    for (name, toleration) in [
        ("plain", ""),
        (
            "patient",
            r#"{"key":"work","operator":"Exists","effect":"NoExecute","tolerationSeconds":8}"#,
        ),
        (
            "lasting",
            r#"{"key":"work","operator":"Exists","effect":"NoExecute"}"#,
        ),
    ] {
        let overrides = format!(
            r#"{{"spec":{{"terminationGracePeriodSeconds":1,"tolerations":[{toleration}]}}}}"#
        );
        let overrides = format!("--overrides={overrides}");
        let run = [
            "run",
            name,
            "--image=host",
            "--restart=Never",
            &overrides,
            "--command",
            "--",
            "sleep",
            "600",
        ];
        k(&run);
        let pod = format!("pod/{name}");
        k(&["wait", "--for=condition=Ready", &pod, "--timeout=60s"]);
    }
    k(&["taint", "node", &node, "work=now:NoExecute"]);
    let names = || k(&["get", "pods", "-o", "name", "--sort-by=.metadata.name"]);
    eventually("the pod without a toleration goes first", SOON, || {
        (names() == "pod/lasting\npod/patient\n").then_some(())
    });
    eventually("the other goes after its time", SOON, || {
        (names() == "pod/lasting\n").then_some(())
    });
    let events = k(&["get", "events", "-o", "jsonpath={.items[*].reason}"]);
    assert!(events.contains("TaintManagerEviction"), "{events}");
    k(&["taint", "node", &node, "work-"]);
    k(&["delete", "pod", "lasting"]);
}

#[test]
fn a_node_offers_what_its_agent_reserves_no_more_and_as_many_pods_as_it_says() {
    let reserved = [
        "--kube-reserved",
        "cpu=100m,memory=64Mi",
        "--system-reserved",
        "memory=32Mi",
    ];
    let arguments = [&["--host-images", "--max-pods", "1"][..], &reserved[..]].concat();
    let platform = Platform::up(&arguments);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let number = |path: &str| -> u64 {
        let path = format!("jsonpath={{.items[0].status.{path}}}");
        let text = k(&["get", "nodes", "-o", &path]);
        let millis = text.strip_suffix('m').map(str::to_owned);
        millis
            .unwrap_or_else(|| format!("{text}000"))
            .parse()
            .unwrap()
    };
    assert_eq!(number("allocatable.pods"), 1000);
    assert_eq!(number("capacity.cpu") - number("allocatable.cpu"), 100);
    assert_eq!(
        number("capacity.memory") - number("allocatable.memory"),
        (96 << 20) * 1000
    );
    let create = [
        "create",
        "deployment",
        "web",
        "--image=host",
        "--replicas=2",
        "--",
        "sleep",
        "600",
    ];
    k(&create);
    eventually("one pod runs and one waits", SOON, || {
        let phases = k(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"]);
        let mut phases: Vec<&str> = phases.split_whitespace().collect();
        phases.sort_unstable();
        (phases == ["Pending", "Running"]).then_some(())
    });
}
