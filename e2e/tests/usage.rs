//! Usage and the server's metrics: what the account says was allocated is what the pods themselves say, whatever is killed meanwhile; and each
//! user sees the usage of the namespaces that it may see.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::time::Duration;

use e2e::{Platform, Prometheus, eventually};
use jiff::Timestamp;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
const KILLS: usize = 5;
const PODS: usize = 8;

/// A pod of half a core that runs for so many seconds.
fn pod(name: &str, namespace: &str, seconds: f64, exit: i32) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c",
            "command": ["/bin/sh", "-c", format!("sleep {seconds}; exit {exit}")],
            "resources": {"requests": {"cpu": "500m", "memory": "16Mi"}}}]},
    })
    .to_string()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// The time from a pod's binding to the end of its container, in seconds, by its own status.
fn held(pod: &Value) -> f64 {
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let bound = conditions
        .iter()
        .find(|one| one["type"] == "PodScheduled")
        .unwrap();
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    let held = time(&ended["finishedAt"]).duration_since(time(&bound["lastTransitionTime"]));
    held.as_secs_f64()
}

fn allocations(platform: &Platform) -> BTreeMap<String, Value> {
    let words = [
        "usage",
        "--allocations",
        "--since",
        "1h",
        "--limit",
        "1000",
        "-o",
        "json",
    ];
    let answer: Value = serde_json::from_str(&platform.cli(&words).ok()).unwrap();
    let items = answer["items"].as_array().unwrap().iter();
    items
        .map(|one| (one["pod"].as_str().unwrap().to_owned(), one.clone()))
        .collect()
}

#[test]
fn each_pods_time_is_counted_once_although_server_and_agent_are_killed() {
    let mut platform = Platform::server(&[]);
    let mut agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    for number in 0..PODS {
        let seconds = 0.7 * number as f64;
        platform.apply(&pod(
            &format!("p{number}"),
            "default",
            seconds,
            i32::from(number == 3),
        ));
        if number % 2 == 1 && number / 2 < KILLS {
            platform.kill();
            platform.restart();
        }
    }
    agent.kill();
    agent.restart();
    let own: BTreeMap<String, Value> = (0..PODS)
        .map(|number| {
            let name = format!("p{number}");
            eventually("it ended", SOON, || {
                ["Succeeded", "Failed"]
                    .contains(&platform.phase(&name).as_str())
                    .then_some(())
            });
            (name.clone(), platform.get("pod", &name))
        })
        .collect();
    let counted = eventually("all ends are accounted", SOON, || {
        let counted = allocations(&platform);
        let over = counted.values().filter(|one| one["ended"].is_object());
        (over.count() == PODS).then_some(counted)
    });
    assert_eq!(counted.len(), PODS, "{counted:#?}");
    for (name, pod) in &own {
        let one = &counted[name];
        let took = time(&one["ended"]["at"]).duration_since(time(&one["started"]));
        assert_eq!(took.as_secs_f64(), held(pod), "{one:#}");
        let code = &pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"];
        assert_eq!(&one["ended"]["exitCode"], code);
        assert_eq!(one["user"], "admin");
    }
    let words = [
        "usage",
        "--by",
        "namespace,user",
        "--since",
        "1d",
        "-o",
        "json",
    ];
    let answer: Value = serde_json::from_str(&platform.cli(&words).ok()).unwrap();
    let [row] = &answer["items"].as_array().unwrap()[..] else {
        panic!("{answer:#}")
    };
    assert_eq!(
        (&row["namespace"], &row["user"]),
        (&json!("default"), &json!("admin"))
    );
    let expected: f64 = own.values().map(held).sum::<f64>() * 0.5 / 3600.0;
    let hours = row["hours"]["cpu"].as_f64().unwrap();
    assert!((hours - expected).abs() < 1e-9, "{hours} is not {expected}");

    // A deleted pod ends at its deletion, and what was counted outlives it and the server.
    platform.apply(&pod("long", "default", 1000.0, 0));
    eventually("it runs", SOON, || {
        (platform.phase("long") == "Running").then_some(())
    });
    platform.cli(&["delete", "pod", "long"]).ok();
    platform.kill();
    platform.restart();
    eventually("the end is accounted", SOON, || {
        let counted = allocations(&platform);
        assert_eq!(counted.len(), PODS + 1);
        counted["long"]["ended"].is_object().then_some(())
    });
}

#[test]
fn usage_is_shown_of_the_namespaces_that_a_user_may_see() {
    let platform = Platform::up(&[]);
    let mut files = BTreeMap::new();
    for team in ["red", "blue"] {
        let member = format!("of-{team}");
        let new = ["user", "create", &member, "--no-namespaces"];
        platform.cli(&new).ok();
        platform
            .cli(&["team", "create", team, "--members", &member])
            .ok();
        let text = platform.cli(&["kubeconfig", "--user", &member]).ok();
        let file = platform.manifest(&format!("{member}.kubeconfig"), &text);
        files.insert(team, file.display().to_string());
        // It runs on: binding and end of a short pod may bear the same second, and no time counts then.
        platform.apply(&pod("p", team, 1000.0, 0));
    }
    eventually("both are accounted", SOON, || {
        let words = ["usage", "--by", "namespace", "-o", "csv"];
        let all = platform.cli(&words).ok();
        (all.contains("red,") && all.contains("blue,")).then_some(())
    });
    let by_red = |words: &[&str]| {
        let member = ["--kubeconfig", files["red"].as_str(), "usage"];
        platform.cli(&[&member, words].concat())
    };
    for words in [&["--allocations"][..], &["--by", "namespace,user"]] {
        let seen = by_red(words).ok();
        assert!(seen.contains("red") && !seen.contains("blue"), "{seen}");
    }
    let wrong = by_red(&["--by", "planet"]);
    assert_ne!(wrong.code, Some(0));
    assert!(
        wrong.err.contains("by: \"planet\" is none of team, queue"),
        "{}",
        wrong.err
    );
    let wrong = by_red(&["--since", "yesterday"]);
    assert!(
        wrong.err.contains("since: \"yesterday\" is no time"),
        "{}",
        wrong.err
    );
    let csv = platform
        .cli(&["usage", "--by", "namespace,day", "-o", "csv"])
        .ok();
    let heading =
        "DAY,NAMESPACE,GPU-HOURS,GPU-ACTIVE,GPU-IDLE,GPU-UNMEASURED,CPU-HOURS,GIB-HOURS\r\n";
    assert!(csv.starts_with(heading), "{csv}");
}

#[test]
fn a_real_prometheus_reads_the_servers_metrics_with_a_token_that_may() {
    let platform = Platform::up(&[]);
    let account = |name: &str| {
        platform.kubectl(&["create", "serviceaccount", name]).ok();
        let token = platform.kubectl(&["create", "token", name]).ok();
        token.trim().to_owned()
    };
    let (reader, stranger) = (account("prometheus"), account("stranger"));
    let role = [
        "create",
        "clusterrole",
        "metrics",
        "--verb=get",
        "--non-resource-url=/metrics",
    ];
    platform.kubectl(&role).ok();
    let binding = [
        "create",
        "clusterrolebinding",
        "metrics",
        "--clusterrole=metrics",
        "--serviceaccount=default:prometheus",
    ];
    platform.kubectl(&binding).ok();
    let refused = platform.kubectl_by(&stranger, &["get", "--raw", "/metrics"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.err.contains("Forbidden"), "{}", refused.err);
    platform.apply(&pod("counted", "default", 0.1, 0));
    platform.apply(&pod("held", "default", 1000.0, 0));
    eventually("one ended and one runs", SOON, || {
        let phases = [platform.phase("counted"), platform.phase("held")];
        (phases == ["Succeeded", "Running"]).then_some(())
    });

    let prometheus = Prometheus::scraping_by(&platform.listen, Some(&reader));
    let number = |query: &str| -> Option<f64> {
        let values = prometheus.query(query);
        values.first()?["value"][1].as_str()?.parse().ok()
    };
    for (query, expected) in [
        ("up{job=\"muster\"}", 1.0),
        ("muster_nodes{state=\"ready\"}", 1.0),
        ("muster_pod_wait_seconds_count{queue=\"default\"}", 2.0),
        ("muster_pending_gangs", 0.0),
        ("muster_queue_used{queue=\"default\",resource=\"cpu\"}", 0.5),
        ("muster_invariant_violations_total", 0.0),
    ] {
        let value = eventually(query, SOON, || number(query));
        assert_eq!(value, expected, "{query}");
    }
    for query in [
        "muster_binds_total",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "histogram_quantile(0.99, muster_http_request_duration_seconds_bucket{method=\"GET\",code=\"2xx\"})",
    ] {
        let value = eventually(query, SOON, || number(query));
        assert!(value > 0.0, "{query}: {value}");
    }
}
