//! One request: parsing, patches, answers, and their limits.

use std::io::{Read, Write};

use e2e::{Platform, eventually_async};
use serde_json::{Map, Value, json};

use super::machine::ready_since;
use super::{
    CONFIG_MAPS, Ground, JSON, PODS, SOON, create, get, pod, post, refused, refused_for, send,
};

const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const YAML: &str = "application/yaml";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The most Warning headers of an answer: `apiserver::limits::MOST_WARNINGS`.
const WARNINGS_MAX: usize = 32;

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

/// Sixteen copies of `/data`, each to the deepest place within itself: after them it has 65,535 levels.
fn nested_copies() -> String {
    let copies = (0..16).map(|at: u32| {
        let path = format!("/data{}", "/x".repeat(1 << at));
        json!({"op": "copy", "from": "/data", "path": path})
    });
    copies.collect::<Value>().to_string()
}

/// Twenty copies of `/data` into itself: each doubles it.
fn doubling_copies() -> String {
    let copies =
        (0..20).map(|at| json!({"op": "copy", "from": "/data", "path": format!("/data/k{at}")}));
    copies.collect::<Value>().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_a_json_patch_that_nest_or_double_are_refused_and_cost_little() {
    let ground = Ground::server().await;
    let mut map = config_map("a");
    map["data"]["a"] = "x".repeat(600).into();
    create(&ground.member, CONFIG_MAPS, &map).await;
    let patch = nested_copies();
    assert!((130_000..133_000).contains(&patch.len()), "{}", patch.len());
    let before = ground.memory();
    for patch in [patch, doubling_copies()] {
        for path in ["a", "a?dryRun=All"] {
            let path = format!("{CONFIG_MAPS}/{path}");
            let answer = send(&ground.member, "PATCH", &path, JSON_PATCH, patch.clone()).await;
            refused(&answer);
            ground.healthy().await;
        }
    }
    ground.has_not_grown(before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn yaml_that_nests_without_end_is_refused_and_others_are_answered_meanwhile() {
    let ground = Ground::server().await;
    let before = ground.memory();
    for opening in ["{a: ", "[", "- "] {
        let body = opening.repeat(150_000);
        let answer = ground
            .beside_others(&ground.member, "POST", REVIEWS, YAML, body)
            .await;
        refused_for(&answer, 400, "nested deeper than");
    }
    ground.has_not_grown(before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_yaml_from_many_clients_loses_no_node_and_ends_no_pod() {
    let ground = Ground::of(Platform::server(&["--node-grace", "10"])).await;
    let _agent = ground.platform.agent("n1", None, &[]);
    ground.platform.await_nodes(1);
    create(&ground.member, PODS, &pod("steady", "sleep 600")).await;
    let path = format!("{PODS}/steady");
    let running = || async {
        let pod = get(&ground.admin, &path).await.json();
        (pod["status"]["phase"] == "Running").then(|| pod["status"]["containerStatuses"][0].clone())
    };
    let before = eventually_async("the pod runs", SOON, running).await;
    let since = ready_since(&ground.platform, "n1");
    assert!(since.is_some(), "the node is ready");
    let attackers = (0..16).map(|_| {
        let member = ground.member.clone();
        tokio::spawn(async move {
            for _ in 0..8 {
                let body = "{a: ".repeat(150_000);
                let answer = send(&member, "POST", REVIEWS, YAML, body).await;
                // One that finds all places of large requests taken is told to come back.
                assert!([400, 429].contains(&answer.status), "{}", answer.text());
            }
        })
    });
    let attackers: Vec<_> = attackers.collect();
    for attacker in attackers {
        while !attacker.is_finished() {
            ground.healthy().await;
        }
        attacker.await.expect("every request is answered");
    }
    assert_eq!(running().await, Some(before));
    assert_eq!(ready_since(&ground.platform, "n1"), since);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_keys_below_a_long_key_and_aliases_cost_little_and_answers_stay_short() {
    let ground = Ground::server().await;
    let before = ground.memory();
    let long = "k".repeat(1_000_000);
    let twice = [r#""a":1"#; 500].join(",");
    let head = r#""apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"twice"}"#;
    let body = format!(r#"{{{head},"{long}":{{{twice}}}}}"#);
    let strict = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let answer = send(&ground.member, "POST", &strict, JSON, body.clone()).await;
    refused_for(&answer, 400, "duplicate field");
    refused(&answer);
    let answer = send(&ground.member, "POST", CONFIG_MAPS, JSON, body).await;
    assert!(answer.status < 500 && answer.body.len() < 64 * 1024);
    let warnings = answer.headers.get_all("warning").iter().count();
    assert!(warnings <= WARNINGS_MAX, "{warnings} warnings");

    let aliases = "*a,".repeat(13_000);
    let body = format!("spec:\n  a: &a {}\n  b: [{aliases}]\n", "x".repeat(1_600));
    let answer = ground
        .beside_others(&ground.member, "POST", REVIEWS, YAML, body)
        .await;
    refused(&answer);
    ground.has_not_grown(before);
}

/// The variables of a container: this many, each with this value.
fn variables(count: usize, value: &str) -> Value {
    let one = |at: usize| json!({"name": format!("V{at}"), "value": value});
    (0..count).map(one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strategic_merge_of_eight_thousand_variables_is_done_and_others_are_answered_meanwhile() {
    const ALL: usize = 8_000;
    let ground = Ground::server().await;
    let cron_jobs = "/apis/batch/v1/namespaces/default/cronjobs";
    let container = |value: &str| json!({"name": "c", "env": variables(ALL, value)});
    let pod = |container: Value| json!({"spec": {"containers": [container]}});
    let job = |template: Value| json!({"spec": {"jobTemplate": {"spec": {"template": template}}}});
    let mut made = job(pod(container("before")));
    made["apiVersion"] = "batch/v1".into();
    made["kind"] = "CronJob".into();
    made["metadata"] = json!({"name": "many"});
    made["spec"]["schedule"] = "0 0 1 1 *".into();
    made["spec"]["suspend"] = true.into();
    let template = &mut made["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    template["restartPolicy"] = "Never".into();
    template["containers"][0]["command"] = json!(["true"]);
    create(&ground.member, cron_jobs, &made).await;
    let patch = job(pod(container("after"))).to_string();
    let path = "/apis/batch/v1/namespaces/default/cronjobs/many";
    let answer = ground
        .beside_others(&ground.member, "PATCH", path, STRATEGIC, patch)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let merged = answer.json();
    let template = &merged["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let merged = template["containers"][0]["env"].as_array();
    let merged = merged.expect("variables");
    let after = |variable: &&Value| variable["value"] == "after";
    assert_eq!(
        (merged.len(), merged.iter().filter(after).count()),
        (ALL, ALL)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_reaches_a_client_that_still_sends_its_megabyte() {
    let ground = Ground::server().await;
    let nobody = ground.admin.with_token("");
    let big = "x".repeat(1_000_000);
    for _ in 0..8 {
        for (target, path, media, codes) in [
            (&nobody, CONFIG_MAPS, JSON, [401, 403]),
            (&ground.member, CONFIG_MAPS, "text/plain", [415, 415]),
            (&ground.member, "/api/v1/nodes", JSON, [403, 403]),
            (&ground.member, "/apis/none/v1/things", JSON, [403, 404]),
            (&ground.member, CONFIG_MAPS, JSON, [400, 400]),
        ] {
            // A broken connection fails in here.
            let answer = send(target, "POST", path, media, big.clone()).await;
            assert!(codes.contains(&answer.status), "{path}: {answer:?}");
        }
    }
    let above = "x".repeat(3 * 1024 * 1024 + 1);
    let answer = send(&ground.member, "POST", CONFIG_MAPS, JSON, above).await;
    refused_for(&answer, 413, "RequestEntityTooLarge");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_fields_make_few_warnings_and_no_server_error() {
    let ground = Ground::server().await;
    let mut object = config_map("odd");
    let odd: Map<String, Value> = (0..150).map(|at| (format!("odd{at}"), json!(1))).collect();
    let fields = object.as_object_mut().expect("an object");
    fields.extend(odd);
    let answer = post(&ground.member, CONFIG_MAPS, &object).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let warnings = answer.headers.get_all("warning").iter().count();
    assert!(
        (1..=WARNINGS_MAX).contains(&warnings),
        "{warnings} warnings"
    );
    let apply = format!("{CONFIG_MAPS}/odd?fieldManager=m&force=true");
    let media = "application/apply-patch+yaml";
    let answer = send(&ground.member, "PATCH", &apply, media, object.to_string()).await;
    assert!(answer.status < 500, "{}", answer.text());
    let answer = get(&ground.member, &format!("{CONFIG_MAPS}/none")).await;
    let details = &answer.json()["details"];
    assert_eq!((answer.status, &details["name"]), (404, &json!("none")));
    assert_eq!(details["kind"], "configmaps");
}

/// Sends one request over plain HTTP, as a browser on the server's machine does; returns the whole answer.
fn plain(listen: &str, host: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(listen).expect("it listens");
    stream
        .set_read_timeout(Some(SOON))
        .expect("a time that is not zero");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("it answers");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_http_refuses_other_hosts_and_every_answer_forbids_sniffing() {
    let ground = Ground::server().await;
    let listen = &ground.platform.listen;
    for (host, code) in [
        (listen.as_str(), "200"),
        ("localhost", "200"),
        ("attacker.example", "421"),
        ("attacker.example:80", "421"),
    ] {
        let answer = plain(listen, host, "/healthz");
        let first = answer.lines().next().unwrap_or_default();
        assert!(
            first.starts_with(&format!("HTTP/1.1 {code}")),
            "{host}: {answer}"
        );
    }
    let nobody = ground.admin.with_token("");
    for path in [
        "/healthz",
        "/version",
        "/ui/sign-in",
        "/ui/",
        "/api/v1/nodes",
        "/none",
    ] {
        for target in [&nobody, &ground.admin] {
            let answer = get(target, path).await;
            let kind = answer.headers.get("x-content-type-options");
            assert!(
                kind.is_some_and(|kind| kind == "nosniff"),
                "{path}: {answer:?}"
            );
            assert!(
                answer.headers.contains_key("content-security-policy"),
                "{path}"
            );
        }
        let answer = plain(listen, listen, path).to_lowercase();
        assert!(
            answer.contains("x-content-type-options: nosniff"),
            "{path}: {answer}"
        );
    }
}
