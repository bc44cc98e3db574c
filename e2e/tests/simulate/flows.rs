//! Whole runs as a user makes them.

use std::path::Path;

use e2e::{muster, repository, run};
use serde_json::{Value, json};

use super::piped;

/// What `kubectl get nodes,queues,podgroups,pods -A -o yaml` prints of a small cluster: one gang
/// runs on a node of two, one waits.
fn live() -> String {
    let node = |name: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "uid": name, "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"kubernetes.io/hostname": name},
            },
            "spec": {},
            "status": {
                "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    };
    let group = |name: &str, min: u32, created: &str| {
        json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {
                "name": name, "namespace": "team", "uid": name,
                "creationTimestamp": created,
                "annotations": {"muster.io/duration": "1h"},
            },
            "spec": {"minMember": min, "queue": "research"},
        })
    };
    let pod = |name: &str, group: &str, node: Option<&str>| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "team", "uid": name,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"scheduling.k8s.io/group-name": group},
            },
            "spec": {
                "schedulerName": "muster",
                "containers": [{
                    "name": "main", "image": "train:1",
                    "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "8", "nvidia.com/gpu": "8"}},
                }],
            },
            "status": {"phase": "Pending"},
        });
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running", "startTime": "2026-01-01T00:30:00Z"});
        }
        pod
    };
    let list = json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""},
        "items": [
            node("n1"), node("n2"),
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
                "metadata": {"name": "research"}, "spec": {"weight": 1}, "status": {"state": "Open"},
            },
            group("runs", 1, "2026-01-01T00:00:00Z"), group("waits", 2, "2026-01-01T01:00:00Z"),
            pod("runs-0", "runs", Some("n1")),
            pod("waits-0", "waits", None), pod("waits-1", "waits", None),
        ],
    });
    serde_norway::to_string(&list).unwrap()
}

fn decisions(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[test]
fn a_live_clusters_list_is_simulated_with_decisions_summary_and_page() {
    let folder = tempfile::tempdir().unwrap();
    let (page, lines) = (
        folder.path().join("report.html"),
        folder.path().join("lines"),
    );
    let (out, err, code) = piped(
        &live(),
        &[
            "-",
            "--what-if",
            "add-nodes=1xn2",
            "--decisions",
            &lines.display().to_string(),
            "--html",
            &page.display().to_string(),
        ],
    );
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("muster if add-nodes=1xn2"), "{out}");
    let started = |policy: &str| {
        let mut all = decisions(&lines).into_iter().filter(|line| {
            line["policy"] == policy && line["decision"] == "started" && line["group"] == "waits"
        });
        all.next().map(|line| line["second"].clone())
    };
    // A running job counts as starting its hour now; with a third node no job waits for it.
    assert_eq!(started("muster"), Some(json!(3600)));
    assert_eq!(started("muster if add-nodes=1xn2"), Some(json!(0)));
    let pending = decisions(&lines)
        .into_iter()
        .find(|line| line["decision"] == "pending");
    let pending = pending.expect("a gang waits and says why");
    assert_eq!(pending["group"], "waits");
    assert_eq!(pending["report"]["verdict"], "InsufficientResources");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for word in [
        "http:", "https:", "<script", "src=", "url(", "@import", "NaN",
    ] {
        assert!(!page.contains(word), "the page has {word}");
    }
    assert!(page.matches("<svg").count() >= 3, "charts are in the page");
}

#[test]
fn a_trace_is_simulated_under_several_policies() {
    let trace = "job,submit_time,duration,gpus,queue\n\
        a,0,3600,8,x\nb,10,600,16,y\nc,20,60,1,x\nd,30,60,1,y\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    std::fs::write(&file, trace).unwrap();
    let mut command = std::process::Command::new(muster());
    command.arg("simulate").arg(&file);
    command.args([
        "--cluster",
        "2xhgx-h100",
        "--policy",
        "muster,fifo,sjf",
        "-o",
        "json",
    ]);
    let summaries: Vec<Value> = serde_json::from_str(&run(&mut command).ok()).unwrap();
    let names: Vec<&str> = summaries
        .iter()
        .filter_map(|s| s["policy"].as_str())
        .collect();
    assert_eq!(names, ["muster", "fifo", "sjf"]);
    for summary in &summaries {
        assert_eq!(summary["ended"], 4, "{summary}");
        assert!(
            summary["makespanSeconds"].as_i64().unwrap() >= 4200,
            "{summary}"
        );
    }
}

#[test]
fn the_scheduler_is_set_up_by_a_document_and_by_options_that_go_before_it() {
    let config =
        "apiVersion: muster.io/v1alpha1\nkind: SchedulerConfig\nspec: {actions: [reclaim]}\n";
    let text = format!(
        "{}---\n{config}",
        live().replace("minMember: 2", "minMember: 1")
    );
    let bound = |more: &[&str]| {
        let mut arguments = vec!["-", "--until", "0", "--decisions", "-", "--output", "none"];
        arguments.extend(more);
        let (out, err, code) = piped(&text, &arguments);
        assert_eq!(code, Some(0), "{err}");
        out.lines()
            .filter(|line| line.contains("\"bound\""))
            .count()
    };
    assert_eq!(bound(&[]), 0);
    assert_eq!(bound(&["--actions", "allocate"]), 1);
}

#[test]
fn configurations_that_users_bring_from_other_schedulers_are_read_and_what_has_no_counterpart_is_named()
 {
    let directory = repository().join("../shared/seed-manifests");
    let table: [(&str, bool, &[&str]); 4] = [
        (
            "001-volcano-scheduler-config",
            false,
            &["tiers[0].plugins[2]: Muster has no counterpart of conformance"],
        ),
        (
            "001-volcano-gpu-aware-nodeorder",
            false,
            &["volcano-scheduler.conf: nodeorder: Muster has no counterpart"],
        ),
        (
            "004-volcano-scheduler-configmap",
            false,
            &["tiers[0].plugins[2]: Muster has no counterpart of conformance"],
        ),
        (
            "002-kubescheduler-configuration",
            true,
            &[
                "enabled[0].weight: Muster does not weight NodeResourcesFit",
                "enabled[1]: Muster has no counterpart of the plugin GPUAffinity",
            ],
        ),
    ];
    for (name, answers, notes) in table {
        let Ok(config) = std::fs::read_to_string(directory.join(format!("{name}.yaml"))) else {
            println!("skipped: {name} is not in {}", directory.display());
            continue;
        };
        let text = live().replace("schedulerName: muster", "schedulerName: ai-scheduler");
        let text = format!("{text}---\n{config}");
        let said = |arguments: &[&str]| {
            let (out, err, code) = piped(&text, arguments);
            assert_eq!(code, Some(0), "{name}: {err}");
            out
        };
        // Only the KubeSchedulerConfiguration makes the scheduler answer to that name.
        let decided = said(&["-", "--decisions", "-", "--output", "none"]);
        assert_eq!(decided.contains("\"bound\""), answers, "{name}: {decided}");
        let shown = said(&["-"]);
        for note in notes {
            assert!(shown.contains(note), "{name}: {note:?} is not in: {shown}");
        }
    }
}

#[test]
fn what_cannot_be_simulated_is_refused_with_what_would_be_right() {
    let table: [(&str, &[&str], &[&str]); 5] = [
        (
            "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: lots}}\n",
            &["-"],
            &["document 1", "status.allocatable.cpu", "\"lots\"", "500m"],
        ),
        (
            "apiVersion: muster.io/v1alpha1\nkind: SchedulerConfig\nspec: {placement: tight}\n",
            &["-"],
            &["document 1", "spec.placement", "\"tight\"", "pack, spread"],
        ),
        (
            &live(),
            &["-", "--actions", "allot"],
            &["--actions", "\"allot\"", "allocate"],
        ),
        (
            &live(),
            &["-", "--what-if", "add-nodes=1xabacus"],
            &["add-nodes", "abacus"],
        ),
        ("", &["-"], &["the input has no work"]),
    ];
    for (text, arguments, words) in table {
        let (_, err, code) = piped(text, arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{word:?} is not in: {err}");
        }
    }
}
