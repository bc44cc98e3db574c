//! RayJobs that no Job submits, on real Ray: the server does by Ray's REST API (HTTPMode), or a container of the head
//! (SidecarMode). Each program is submitted once, although the server dies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually};
use serde_json::{Value, json};

/// Ray's programs start in seconds, but several of them share two cores.
const RAY_STARTS: Duration = Duration::from_secs(240);

/// A job on a cluster of a head alone, of host processes that find Ray.
fn ray_job(name: &str, mode: &str, entrypoint: &str) -> String {
    let path = format!("{}:/usr/bin:/bin", e2e::part("ray/bin").display());
    let template = json!({"spec": {"containers": [{
        "name": "ray", "command": ["true"], "workingDir": "/tmp",
        "env": [{"name": "PATH", "value": path}], "resources": {"requests": {"cpu": "100m"}},
    }]}});
    let parameters = json!({"num-cpus": 1, "object-store-memory": "100000000"});
    json!({
        "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name},
        "spec": {"entrypoint": entrypoint, "submissionMode": mode, "metadata": {"team": "vision"},
            "runtimeEnvYAML": "env_vars:\n  COLOUR: blue\n",
            "rayClusterSpec": {"headGroupSpec": {"rayStartParams": parameters, "template": template}}},
    })
    .to_string()
}

/// How often the program has started, as it counts in a file of the head.
fn starts(platform: &Platform, head: &str) -> usize {
    let read = ["exec", head, "-c", "ray", "--", "cat", "/tmp/starts"];
    let text = platform.kubectl(&read).out;
    text.lines().filter(|line| *line == "started").count()
}

/// An answer of Ray's REST API about programs.
fn asked(platform: &Platform, head: &str, path: &str) -> Value {
    let path = format!("/api/v1/namespaces/default/pods/{head}:dashboard/proxy/api/jobs/{path}");
    let answer = platform.kubectl(&["get", "--raw", &path]).ok();
    serde_json::from_str(&answer).unwrap()
}

fn await_end(platform: &Platform, name: &str) -> (bool, Value) {
    let (job, seconds) = (format!("rayjob/{name}"), RAY_STARTS.as_secs().to_string());
    let waited = platform.cli(&["wait", &job, "--timeout", &seconds]);
    let status = platform.get("rayjobs", name)["status"].clone();
    (waited.code == Some(0), status)
}

/// Runs a program that ends well although the server dies, and one that fails.
fn runs_to_its_end(mode: &str) {
    let mut platform = Platform::up(&[]);
    let go = platform.shared("rayjob").join("go");
    // The head's pod has a /tmp of its own.
    let program = format!(
        "echo started >> /tmp/starts; until [ -e {} ]; do sleep 0.2; done; echo the colour is $COLOUR",
        go.display()
    );
    platform.apply(&ray_job("once", mode, &program));
    let head = eventually("the program runs", RAY_STARTS, || {
        let status = platform.get("rayjobs", "once")["status"].clone();
        let head = format!("{}-head", status["rayClusterName"].as_str()?);
        let runs = status["jobStatus"] == "RUNNING" && starts(&platform, &head) > 0;
        runs.then_some(head)
    });
    platform.kill();
    platform.restart();
    std::fs::write(&go, "").unwrap();
    let (well, status) = await_end(&platform, "once");
    assert!(well, "{status}");
    assert_eq!(status["jobStatus"], "SUCCEEDED", "{status}");
    assert_eq!(status["jobDeploymentStatus"], "Complete", "{status}");
    let id = status["jobId"].as_str().unwrap();
    let all = asked(&platform, &head, "");
    let all = all.as_array().unwrap().iter();
    let submitted: Vec<&Value> = all.filter(|one| one["type"] == "SUBMISSION").collect();
    assert_eq!(submitted.len(), 1, "{submitted:?}");
    assert_eq!(submitted[0]["submission_id"], id);
    assert_eq!(submitted[0]["metadata"]["team"], "vision");
    assert_eq!(starts(&platform, &head), 1);
    let logs = asked(&platform, &head, &format!("{id}/logs"));
    let log = logs["logs"].as_str().unwrap();
    assert!(log.contains("the colour is blue"), "{log}");
    if mode == "SidecarMode" {
        let read = ["logs", &head, "-c", "ray-job-submitter"];
        let log = platform.kubectl(&read).ok();
        assert!(log.contains("the colour is blue"), "{log}");
    }
    let jobs = platform.kubectl(&["get", "jobs", "-o", "name"]).ok();
    assert_eq!(jobs.trim(), "", "no Job submits");
    platform.kubectl(&["delete", "rayjob", "once"]).ok();

    platform.apply(&ray_job("bad", mode, "echo wrong; exit 3"));
    let (well, status) = await_end(&platform, "bad");
    assert!(!well, "{status}");
    assert_eq!(status["reason"], "AppFailed", "{status}");
    let want = "The program failed with exit code 3.";
    assert_eq!(status["message"], want, "{status}");
}

#[test]
fn the_server_submits_a_program_once_by_http() {
    runs_to_its_end("HTTPMode");
}

#[test]
fn a_container_of_the_head_submits_a_program_once() {
    runs_to_its_end("SidecarMode");
}
