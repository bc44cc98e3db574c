//! LeaderWorkerSets on the embedded engine, with real programs: workers reach their leader by its name, a group is created
//! again as a whole, kubectl scales, and a new template rolls out; the commands for jobs and the pages know the kind; pods
//! have claims.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually, send};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
/// Says that it knows its leader, and ends when it is asked to.
const MEETS: &str = "until getent hosts $LWS_LEADER_ADDRESS; do sleep 0.1; done; \
                     echo $LWS_WORKER_INDEX of $LWS_GROUP_SIZE in round $ROUND; trap 'exit 143' TERM; sleep 1000 & wait";

/// The set; without a number of groups, it keeps the one that kubectl gave it.
fn set(round: &str, replicas: Option<u32>) -> String {
    let container = json!({"name": "c", "command": ["/bin/sh", "-c", MEETS],
        "env": [{"name": "ROUND", "value": round}],
        "resources": {"requests": {"cpu": "20m", "memory": "16Mi"}}});
    let mut set = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "model", "namespace": "default"},
        "spec": {"leaderWorkerTemplate": {"size": 2,
            "workerTemplate": {"spec": {"terminationGracePeriodSeconds": 2, "containers": [container]}}}}});
    if let Some(replicas) = replicas {
        set["spec"]["replicas"] = replicas.into();
    }
    set.to_string()
}

fn uid(platform: &Platform, pod: &str) -> Value {
    platform.get("pod", pod)["metadata"]["uid"].clone()
}

fn available(platform: &Platform, name: &str, groups: u64) {
    eventually(&format!("{groups} groups are available"), SOON, || {
        let status = platform.get("leaderworkersets", name)["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let holds = conditions
            .iter()
            .any(|one| one["type"] == "Available" && one["status"] == "True");
        let counts = [&status["readyReplicas"], &status["updatedReplicas"]];
        (holds && counts.into_iter().all(|count| *count == groups)).then_some(())
    });
}

fn log_has(platform: &Platform, pod: &str, words: &str) {
    eventually(&format!("{pod} says {words}"), SOON, || {
        let log = platform.cli(&["logs", pod]);
        log.out.contains(words).then_some(())
    });
}

/// The commands for jobs, the REST API and the pages show the set with its two groups.
fn shown_as_a_job(platform: &Platform) {
    let ready = "2 of 2 groups are ready.";
    for name in ["model", "lws/model"] {
        let explained = platform.cli(&["explain", name]).ok();
        assert!(
            explained.contains("Running") && explained.contains(ready),
            "{explained}"
        );
    }
    let described = platform.cli(&["describe", "lws", "model"]).ok();
    for words in [ready, "leader", "worker", "model-1-1"] {
        assert!(described.contains(words), "{words}: {described}");
    }
    log_has(platform, "model-1", "0 of 2 in round one");
    for (rank, words) in [("2", "0 of 2 in round one"), ("3", "1 of 2 in round one")] {
        let log = platform.cli(&["logs", "model", "--rank", rank]).ok();
        assert!(log.contains(words), "rank {rank}: {log}");
    }
    let beyond = platform.cli(&["logs", "model", "--rank", "4"]);
    assert!(beyond.err.contains("so no rank 4"), "{beyond:?}");
    platform
        .cli(&["wait", "lws/model", "--for", "condition=Available"])
        .ok();
    let refused = platform.cli(&["suspend", "model"]);
    assert!(refused.err.contains("cannot be suspended"), "{refused:?}");

    let raw = |path: &str| platform.kubectl(&["get", "--raw", path]).ok();
    eventually("REST lists the set", SOON, || {
        let jobs: Value = serde_json::from_str(&raw("/api/v1/jobs")).unwrap();
        let jobs = jobs["items"].as_array().cloned().unwrap_or_default();
        let set = jobs.into_iter().find(|job| job["name"] == "model")?;
        assert_eq!(set["plural"], "leaderworkersets");
        let counts = (&set["wanted"], &set["running"]);
        (counts == (&json!(4), &json!(4)) && set["state"] == "Running").then_some(())
    });
    assert!(raw("/ui/jobs").contains("/ui/jobs/default/leaderworkersets/model"));
    let page = "/ui/jobs/default/leaderworkersets/model";
    eventually("the page says how many groups are ready", SOON, || {
        raw(page).contains(ready).then_some(())
    });
    let replicas = raw(&format!("{page}?tab=replicas"));
    assert!(replicas.contains("model-1-1"), "{replicas}");
    let log = raw(&format!("{page}?tab=logs&rank=3"));
    assert!(log.contains("1 of 2 in round one"), "{log}");
}

/// Sends a form of a page as the administrator, and returns the answer.
fn post(platform: &Platform, path: &str) -> String {
    let token = platform.cli(&["token", "create", "--user", "admin"]).ok();
    let bearer = format!("Authorization: Bearer {}", token.trim());
    send(platform, &format!("POST {path}"), &[bearer], "").whole
}

#[test]
fn a_set_that_waits_is_explained_and_cancelled_by_its_page() {
    let platform = Platform::up(&[]);
    let large = set("one", Some(1)).replace("\"20m\"", "\"5000\"");
    platform.apply(&large);
    eventually("its group waits", SOON, || {
        let explained = platform.cli(&["explain", "model"]).out;
        let words = [
            "0 of 1 groups are ready. gang of 2",
            "requests cpu: 10k in all",
        ];
        words
            .iter()
            .all(|words| explained.contains(words))
            .then_some(())
    });
    let pod = platform.cli(&["explain", "pod/model-0"]).ok();
    assert!(pod.contains("gang of 2"), "{pod}");
    let page = "/ui/jobs/default/leaderworkersets/model";
    eventually("the page says why it waits", SOON, || {
        let page = platform.kubectl(&["get", "--raw", page]).out;
        page.contains("0 of 1 groups are ready.").then_some(())
    });

    let refused = post(&platform, &format!("{page}/suspend"));
    assert!(refused.starts_with("HTTP/1.1 409"), "{refused}");
    let done = post(&platform, &format!("{page}/cancel"));
    assert!(done.contains("flash=scaled-to-zero"), "{done}");
    assert_eq!(
        platform.get("leaderworkersets", "model")["spec"]["replicas"],
        0
    );
    eventually("its pods go", SOON, || {
        let pods = platform.kubectl(&["get", "pods", "-o", "name"]).ok();
        pods.is_empty().then_some(())
    });
    let explained = platform.cli(&["explain", "model"]).ok();
    assert!(
        explained.contains("Cancelled") && explained.contains("User admin cancelled"),
        "{explained}"
    );
    platform.cli(&["cancel", "model"]).ok();
    assert_eq!(platform.get("leaderworkersets", "model"), Value::Null);
}

#[test]
fn claims_outlive_their_pods_and_go_when_their_group_is_not_wanted_any_more() {
    let platform = Platform::up(&["--host-images"]);
    let container = json!({"name": "c", "image": "host", "command": ["sleep", "600"]});
    let set = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2,
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}],
            "workerTemplate": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}}}});
    platform.apply(&set.to_string());
    available(&platform, "kept", 2);
    let claims = || {
        let names = platform.kubectl(&["get", "pvc", "-o", "name"]).ok();
        let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
        names.sort();
        names.join(" ").replace("persistentvolumeclaim/data-", "")
    };
    assert_eq!(claims(), "kept-0 kept-0-1 kept-1 kept-1-1");
    platform
        .kubectl(&["scale", "lws/kept", "--replicas=1"])
        .ok();
    eventually("the claims of the second group go", SOON, || {
        (claims() == "kept-0 kept-0-1").then_some(())
    });
    platform.kubectl(&["delete", "lws", "kept"]).ok();
    eventually("its pods go", SOON, || {
        let pods = platform.kubectl(&["get", "pods", "-o", "name"]).ok();
        pods.is_empty().then_some(())
    });
    assert_eq!(claims(), "kept-0 kept-0-1", "claims are retained");
}

#[test]
fn groups_of_a_leader_and_workers_start_fail_scale_and_roll_out_together() {
    let platform = Platform::up(&[]);
    platform.apply(&set("one", Some(2)));
    available(&platform, "model", 2);
    log_has(&platform, "model-1-1", "1 of 2 in round one");
    let listed = platform.kubectl(&["get", "lws"]).ok();
    assert!(
        listed.contains("READY") && listed.contains("model"),
        "{listed}"
    );
    let gangs = platform.kubectl(&["get", "podgroups", "-o", "name"]).ok();
    assert_eq!(gangs.lines().count(), 2, "{gangs}");
    shown_as_a_job(&platform);

    // A worker that ends takes its whole group along, and no other one.
    let (leader, other) = (uid(&platform, "model-0"), uid(&platform, "model-1"));
    std::thread::sleep(Duration::from_secs(11));
    let kills = ["exec", "model-0-1", "--", "/bin/sh", "-c", "kill -9 -1"];
    platform.kubectl(&kills);
    eventually("group 0 is created again", SOON, || {
        let now = uid(&platform, "model-0");
        (now != leader && !now.is_null()).then_some(())
    });
    available(&platform, "model", 2);
    assert_eq!(uid(&platform, "model-1"), other);
    let events = platform.kubectl(&["get", "events"]).ok();
    assert!(events.contains("group 0 is created again"), "{events}");

    let scale = ["scale", "lws/model", "--replicas=3"];
    platform.kubectl(&scale).ok();
    available(&platform, "model", 3);
    platform.apply(&set("two", None));
    available(&platform, "model", 3);
    log_has(&platform, "model-0", "0 of 2 in round two");
    let pods = platform.kubectl(&["get", "pods", "-o", "name"]).ok();
    assert_eq!(pods.lines().count(), 6, "{pods}");

    platform.kubectl(&["delete", "lws", "model"]).ok();
    eventually("what it made is gone", SOON, || {
        let left = platform
            .kubectl(&[
                "get",
                "pods,podgroups,services,controllerrevisions",
                "-o",
                "name",
            ])
            .ok();
        (!left.contains("model")).then_some(())
    });
}
