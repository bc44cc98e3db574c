//! LeaderWorkerSets on the embedded engine, with real programs: workers reach their leader by its name, a group is created
//! again as a whole, kubectl scales, and a new template rolls out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually};
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

fn available(platform: &Platform, groups: u64) {
    eventually(&format!("{groups} groups are available"), SOON, || {
        let status = platform.get("leaderworkersets", "model")["status"].clone();
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

#[test]
fn groups_of_a_leader_and_workers_start_fail_scale_and_roll_out_together() {
    let platform = Platform::up(&[]);
    platform.apply(&set("one", Some(2)));
    available(&platform, 2);
    log_has(&platform, "model-1-1", "1 of 2 in round one");
    let listed = platform.kubectl(&["get", "lws"]).ok();
    assert!(
        listed.contains("READY") && listed.contains("model"),
        "{listed}"
    );
    let gangs = platform.kubectl(&["get", "podgroups", "-o", "name"]).ok();
    assert_eq!(gangs.lines().count(), 2, "{gangs}");

    // A worker that ends takes its whole group along, and no other one.
    let (leader, other) = (uid(&platform, "model-0"), uid(&platform, "model-1"));
    std::thread::sleep(Duration::from_secs(11));
    let kills = ["exec", "model-0-1", "--", "/bin/sh", "-c", "kill -9 -1"];
    platform.kubectl(&kills);
    eventually("group 0 is created again", SOON, || {
        let now = uid(&platform, "model-0");
        (now != leader && !now.is_null()).then_some(())
    });
    available(&platform, 2);
    assert_eq!(uid(&platform, "model-1"), other);
    let events = platform.kubectl(&["get", "events"]).ok();
    assert!(events.contains("group 0 is created again"), "{events}");

    let scale = ["scale", "lws/model", "--replicas=3"];
    platform.kubectl(&scale).ok();
    available(&platform, 3);
    platform.apply(&set("two", None));
    available(&platform, 3);
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
