//! Rights: the system's own fields, other users' names, and the audit of refusals.

use std::path::{Path, PathBuf};

use e2e::{eventually, eventually_async};
use serde_json::{Value, json};

use super::{
    CONFIG_MAPS, Ground, JSON, MEMBER, MERGE, PODS, SOON, SYSTEM_SECRETS, create, get, pod, post,
    refused_for, send,
};

/// A pod with one change.
fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = pod("odd", "true");
    change(&mut pod);
    pod
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_chooses_no_node_no_devices_no_critical_class_and_no_queue_of_others() {
    let ground = Ground::server().await;
    let queue = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "theirs"},
        "spec": {"weight": 1, "namespaceSelector": {"matchLabels": {"team": "theirs"}}},
    });
    let queues = "/apis/scheduling.volcano.sh/v1beta1/queues";
    create(&ground.admin, queues, &queue).await;
    let annotated = |key: &str, value: &str| {
        let annotations = json!({key: value});
        with(|pod| pod["metadata"]["annotations"] = annotations)
    };
    let in_the_spec = |key: &str, value: Value| with(|pod| pod["spec"][key] = value);
    let host = json!([{"name": "host", "hostPath": {"path": "/"}}]);
    let privileged = json!({"privileged": true});
    let table = [
        ("spec.nodeName", in_the_spec("nodeName", json!("n1"))),
        ("muster.io/devices", annotated("muster.io/devices", "{}")),
        (
            "system-node-critical",
            in_the_spec("priorityClassName", json!("system-node-critical")),
        ),
        (
            "theirs",
            annotated("scheduling.volcano.sh/queue-name", "theirs"),
        ),
        ("hostPath", in_the_spec("volumes", host)),
        ("hostPID", in_the_spec("hostPID", json!(true))),
        (
            "privileged",
            with(|pod| pod["spec"]["containers"][0]["securityContext"] = privileged),
        ),
    ];
    for (words, pod) in table {
        let answer = post(&ground.member, PODS, &pod).await;
        refused_for(&answer, 403, words);
    }
    let template = json!({"spec": in_the_spec("nodeName", json!("n1"))["spec"].clone()});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "odd"},
        "spec": {"template": template}});
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    refused_for(&post(&ground.member, jobs, &job).await, 403, "nodeName");

    // An update of an existing object is refused too.
    create(&ground.member, PODS, &with(|_| {})).await;
    let patch = json!({"metadata": {"annotations": {"muster.io/devices": "{}"}}}).to_string();
    let path = format!("{PODS}/odd");
    let answer = send(&ground.member, "PATCH", &path, MERGE, patch).await;
    refused_for(&answer, 403, "muster.io/devices");
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "odd"},
        "target": {"kind": "Node", "name": "n1"}});
    let answer = post(&ground.member, &format!("{path}/binding"), &binding).await;
    refused_for(&answer, 403, "pods/binding");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_a_list_of_namespaces_reaches_no_secret_of_the_systems() {
    let ground = Ground::server().await;
    let secret = format!("{SYSTEM_SECRETS}/user-admin");
    refused_for(&get(&ground.member, &secret).await, 403, "user-admin");
    refused_for(&get(&ground.member, SYSTEM_SECRETS).await, 403, "secrets");
    let all = get(&ground.member, "/api/v1/secrets").await;
    refused_for(&all, 403, "secrets");
    let volume = json!([{"name": "s", "secret": {"secretName": "user-admin"}}]);
    let mounts = with(|pod| pod["spec"]["volumes"] = volume);
    let pods = "/api/v1/namespaces/muster-system/pods";
    refused_for(&post(&ground.member, pods, &mounts).await, 403, "pods");
    assert_eq!(get(&ground.admin, &secret).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impersonation_is_an_administrators_and_carries_no_more_than_the_others_rights() {
    let ground = Ground::server().await;
    let admin = [("impersonate-user", "admin")];
    let masters = [
        ("impersonate-user", MEMBER),
        ("impersonate-group", "system:masters"),
    ];
    for headers in [&admin[..], &masters[..]] {
        let answer = ground.member.ask("GET", PODS, headers, "").await;
        let answer = answer.expect("the answer comes whole");
        refused_for(&answer, 403, "impersonate");
    }
    let as_member = [("impersonate-user", MEMBER)];
    for (path, code) in [(PODS, 200), (SYSTEM_SECRETS, 403)] {
        let answer = ground.admin.ask("GET", path, &as_member, "").await;
        let answer = answer.expect("the answer comes whole");
        assert_eq!(answer.status, code, "{path}: {}", answer.text());
    }
    let asked = ["--as", MEMBER, "-n", "muster-system", "get", "secrets"];
    let refused = ground.platform.kubectl(&asked);
    assert_ne!(refused.code, Some(0), "{}", refused.out);
    assert!(refused.err.contains("User \"ann\""), "{}", refused.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_whose_secret_is_deleted_is_refused_at_once() {
    let ground = Ground::server().await;
    let path = format!("{SYSTEM_SECRETS}/user-{MEMBER}");
    let answer = send(&ground.admin, "DELETE", &path, JSON, String::new()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    eventually_async("the member's token is refused", SOON, || async {
        (get(&ground.member, PODS).await.status == 401).then_some(())
    })
    .await;
}

/// The files of the audit log that have these words.
fn with_words(directory: &Path, words: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).expect("there is an audit log");
    let mut files: Vec<PathBuf> = files.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains(words)));
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_and_refusals_are_in_the_audit_log_which_tells_of_a_change_to_itself() {
    let mut ground = Ground::server().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}});
    create(&ground.member, CONFIG_MAPS, &map).await;
    let secret = format!("{SYSTEM_SECRETS}/user-admin");
    assert_eq!(get(&ground.member, &secret).await.status, 403);
    let log = ground.platform.data.join("audit");
    for (name, code) in [("audited", 201), ("user-admin", 403)] {
        eventually(&format!("{name} is in the audit log"), SOON, || {
            let of_the_member = |event: &Value| {
                event["user"]["username"] == MEMBER && event["responseStatus"]["code"] == code
            };
            let events = ground.platform.audited(name);
            events.iter().any(of_the_member).then_some(())
        });
    }
    let verified = ground.platform.cli(&["audit", "verify"]);
    assert!(verified.out.contains("the chain is whole"), "{verified:?}");
    verified.ok();

    ground.platform.stop();
    let file = with_words(&log, "user-admin").pop().expect("a file");
    let text = std::fs::read_to_string(&file).expect("the log is text");
    std::fs::write(&file, text.replace("user-admin", "user-other")).expect("it is ours");
    let broken = ground.platform.cli(&["audit", "verify"]);
    assert_eq!(broken.code, Some(1), "{broken:?}");
    assert!(broken.out.contains("the chain is broken"), "{broken:?}");
}
