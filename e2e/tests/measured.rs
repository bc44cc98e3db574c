//! What was measured over time: GPUs whose utilisation is known are found in the history, on the pages and in usage, also
//! after the server was killed; and members see the pods of their namespaces only.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::Duration;

use e2e::{Mounts, Platform, device_files, eventually, nvml_standin, send};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);

const GPU_FILES: &str = r#"for minor in 0 1; do
        rm -f "$DIR/dev/nvidia$minor"; mknod -m 666 "$DIR/dev/nvidia$minor" c 195 "$minor"
    done"#;

/// Two GPUs: the first works, the second does nothing.
const MACHINE: &str = r#"
[[gpu]]
model = "NVIDIA H100 80GB HBM3"
memory_mib = 81920
count = 2
[[state]]
gpu = 0
utilisation = 80
memory_used_mib = 40960
watts = 500
celsius = 60
[[state]]
gpu = 1
utilisation = 1
"#;

fn pod(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{"name": "c",
            "command": ["sh", "-c", "while :; do :; done"],
            "resources": {"requests": {"cpu": "100m"}, "limits": {"nvidia.com/gpu": "1"}}}]}})
    .to_string()
}

/// The points of each series.
fn history(platform: &Platform, series: &str) -> Vec<Vec<Value>> {
    let path = format!("/api/v1/history?series={series}&step=15s");
    let answer = platform.kubectl(&["get", "--raw", &path]).ok();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let items = answer["items"].as_array().unwrap().iter();
    items
        .map(|item| item["points"].as_array().unwrap().clone())
        .collect()
}

fn page(platform: &Platform, token: &str, path: &str) -> String {
    let bearer = format!("Authorization: Bearer {token}");
    let reply = send(platform, &format!("GET {path}"), &[bearer], "");
    assert_eq!(reply.code, 200, "{path}: {}", reply.whole);
    reply.whole
}

#[test]
fn known_utilisation_is_kept_shown_and_counted_although_the_server_is_killed() {
    e2e::require_root();
    let directory = tempfile::tempdir().unwrap();
    let mounts = Mounts::new(directory.path(), &device_files(GPU_FILES));
    let (library, machine) = (
        directory.path().join("library"),
        directory.path().join("machine.toml"),
    );
    nvml_standin(&library);
    std::fs::write(&machine, MACHINE).unwrap();
    let mut platform = Platform::server(&[]);
    let _agent = platform.agent_with_gpus("gpus", &mounts, &library, &machine);
    platform.await_nodes(1);
    for name in ["one", "two"] {
        platform.apply(&pod(name));
    }
    for name in ["one", "two"] {
        eventually("it runs", SOON, || {
            (platform.phase(name) == "Running").then_some(())
        });
    }
    let of_gpu = "gpu/gpus/0/utilisation,gpu/gpus/1/utilisation,gpu/gpus/0/memory,gpu/gpus/0/power,gpu/gpus/0/temperature";
    let before = eventually("two values of each", SOON, || {
        let points = history(&platform, of_gpu);
        points
            .iter()
            .all(|points| points.len() >= 2)
            .then_some(points)
    });
    let expected = [
        80.0,
        1.0,
        f64::from(40u32 << 10) * f64::from(1 << 20),
        500.0,
        60.0,
    ];
    for (points, expected) in before.iter().zip(expected) {
        for point in points {
            assert_eq!(point["mean"].as_f64(), Some(expected), "{points:?}");
            assert_eq!(point["max"].as_f64(), Some(expected));
        }
    }

    platform.kill();
    platform.restart();
    let after = eventually("values from before and after the kill", SOON, || {
        let points = history(&platform, of_gpu);
        points
            .iter()
            .zip(&before)
            .all(|(after, before)| after.len() >= before.len() + 2)
            .then_some(points)
    });
    for (after, before) in after.iter().zip(&before) {
        // What was read before the kill is there, once.
        assert!(
            before.iter().all(|point| after.contains(point)),
            "{before:?} {after:?}"
        );
        let times: BTreeSet<&str> = after
            .iter()
            .map(|point| point["at"].as_str().unwrap())
            .collect();
        assert_eq!(times.len(), after.len());
    }

    // One pod has the GPU that works, the other the one that does not; both use CPU time and memory.
    let of_pods = eventually("values of the pods", SOON, || {
        let series = "pod/default/one/gpu-utilisation,pod/default/two/gpu-utilisation,pod/default/one/cpu,pod/default/one/memory,\
                      node/gpus/cpu,node/gpus/memory,node/gpus/gpus-in-use,cluster/gpus-allocated,cluster/gpus,cluster/jobs-running";
        let points = history(&platform, series);
        let last: Option<Vec<f64>> = points
            .iter()
            .map(|points| points.last()?["mean"].as_f64())
            .collect();
        last
    });
    let mut utilisation = [of_pods[0], of_pods[1]];
    utilisation.sort_by(f64::total_cmp);
    assert_eq!(utilisation, [1.0, 80.0]);
    assert!(
        of_pods[2..6].iter().all(|value| *value > 0.0),
        "{of_pods:?}"
    );
    assert_eq!(of_pods[6..], [2.0, 2.0, 2.0, 2.0]);

    // Usage: one GPU active, one idle, the rest not measured; together what was allocated.
    let hours = || -> [f64; 4] {
        let words = ["usage", "--by", "namespace", "--since", "1d", "-o", "json"];
        let answer: Value = serde_json::from_str(&platform.cli(&words).ok()).unwrap();
        let of = &answer["items"][0]["gpuHours"];
        ["allocated", "active", "idle", "unmeasured"].map(|name| of[name].as_f64().unwrap())
    };
    let [allocated, active, idle, unmeasured] =
        eventually("half a minute of each is counted", SOON, || {
            let hours = hours();
            (hours[1] > 30.0 / 3600.0 && hours[2] > 30.0 / 3600.0).then_some(hours)
        });
    assert!((active + idle + unmeasured - allocated).abs() < 1e-9);
    assert!((active - idle).abs() < 16.0 / 3600.0, "{active} {idle}");
    assert!(unmeasured > 0.0 && unmeasured < allocated);
    let csv = platform
        .cli(&["usage", "--by", "namespace", "-o", "csv"])
        .ok();
    assert!(
        csv.starts_with("NAMESPACE,GPU-HOURS,GPU-ACTIVE,GPU-IDLE,GPU-UNMEASURED,"),
        "{csv}"
    );

    // The pages draw it, with the figures as text.
    let token = |user: &str| {
        let token = platform.cli(&["token", "create", "--user", user]).ok();
        token.trim().to_owned()
    };
    let admin = token("admin");
    let node = page(&platform, &admin, "/ui/nodes/gpus");
    for words in [
        "GPU utilisation",
        "<desc",
        "GPU 0: mean 80 %, at most 80 %",
        "<td class=\"number\">80 %</td>",
        "range=30d",
    ] {
        assert!(node.contains(words), "{words}: {node}");
    }
    assert!(!node.contains("<script>") && !node.contains("style=\""));
    let job = page(
        &platform,
        &admin,
        "/ui/jobs/default/pods/one?tab=metrics&range=1h",
    );
    assert!(
        job.contains("rank 0") && job.contains("class=\"line own0\""),
        "{job}"
    );
    let overview = page(&platform, &admin, "/ui/?range=1h");
    assert!(
        overview.contains("GPUs in use") && overview.contains("in use: mean"),
        "{overview}"
    );

    // A member sees its own namespaces' pods only; a wrong question is answered with the field and the way out.
    platform
        .cli(&["user", "create", "mia", "--no-namespaces"])
        .ok();
    platform
        .cli(&["team", "create", "red", "--members", "mia"])
        .ok();
    let mia = token("mia");
    let by_mia = |series: &str| {
        let path = format!("/api/v1/history?series={series}");
        platform.kubectl_by(&mia, &["get", "--raw", &path])
    };
    by_mia("pod/red/none/cpu").ok();
    let refused = by_mia("pod/default/one/cpu");
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.err.contains("may not see pods in namespace") || refused.err.contains("Forbidden"),
        "{}",
        refused.err
    );
    let wrong = by_mia("pod/red/none/power");
    assert_ne!(wrong.code, Some(0));
}
