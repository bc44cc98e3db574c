//! Ray Serve itself in RayServices: applications behind the serve Service, a configuration that is changed in place, an
//! upgrade to another cluster under requests, a server that dies in the middle of one, and applications that fail.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually};
use serde_json::{Value, json};

/// Ray and Serve start in seconds, but several of them share two cores.
const RAY_STARTS: Duration = Duration::from_secs(300);

/// An application of two deployments: one greets with the word of its configuration and the edition of its cluster, the
/// other one writes in capitals.
const APPLICATION: &str = r#"
import os
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0})
class Capitals:
    def __call__(self, text):
        return text.upper()

@serve.deployment(ray_actor_options={"num_cpus": 0})
class Greeting:
    def __init__(self, capitals):
        self.capitals, self.word = capitals, "?"

    def reconfigure(self, settings):
        self.word = settings["word"]

    async def __call__(self, request):
        return await self.capitals.remote(f"{self.word} of {os.environ['EDITION']}")

app = Greeting.bind(Capitals.bind())
"#;

/// A service of this edition whose application greets with this word.
fn service(platform: &Platform, import_path: &str, word: &str, edition: &str) -> String {
    let code = platform.shared("code");
    std::fs::write(code.join("greet.py"), APPLICATION).unwrap();
    let path = format!("{}:/usr/bin:/bin", e2e::part("ray/bin").display());
    let template = json!({"spec": {"containers": [{
        "name": "ray", "command": ["true"], "workingDir": "/tmp",
        "env": [{"name": "PATH", "value": path}, {"name": "EDITION", "value": edition},
            {"name": "PYTHONPATH", "value": code}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "resources": {"requests": {"cpu": "100m"}},
    }]}});
    let config = json!({"applications": [{
        "name": "greet", "route_prefix": "/greet", "import_path": import_path,
        "deployments": [{"name": "Greeting", "user_config": {"word": word}}],
    }]});
    let parameters = json!({"num-cpus": 2, "object-store-memory": "100000000"});
    json!({
        "apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "hello"},
        "spec": {
            // JSON is YAML.
            "serveConfigV2": config.to_string(),
            "rayClusterDeletionDelaySeconds": 2,
            "rayClusterConfig": {"headGroupSpec": {"rayStartParams": parameters, "template": template}},
        },
    })
    .to_string()
}

const SERVICE: &str = "hello-serve-svc:serve";

fn asked(platform: &Platform) -> String {
    let path = format!("/api/v1/namespaces/default/services/{SERVICE}/proxy/greet");
    let asked = platform.kubectl(&["get", "--raw", &path]);
    format!("{}{}", asked.out, asked.err).trim().to_owned()
}

fn await_answer(platform: &Platform, answer: &str) {
    eventually(&format!("the answer is {answer}"), RAY_STARTS, || {
        (asked(platform) == answer).then_some(())
    });
}

fn status(platform: &Platform) -> Value {
    platform.get("rayservices", "hello")["status"].clone()
}

/// The cluster that serves.
fn active(platform: &Platform) -> String {
    let name = &status(platform)["activeServiceStatus"]["rayClusterName"];
    name.as_str().unwrap_or_default().to_owned()
}

/// Waits until no cluster is pending and this one alone is left.
fn await_alone(platform: &Platform) {
    eventually("one cluster is left, and serves", RAY_STARTS, || {
        let clusters = platform.kubectl(&["get", "rayclusters", "-o", "name"]).ok();
        let alone = format!("raycluster.ray.io/{}", active(platform));
        (clusters.trim() == alone).then_some(())
    });
}

#[test]
fn a_service_is_reconfigured_in_place_and_upgraded_without_a_failed_request() {
    let platform = Platform::up(&[]);
    platform.apply(&service(&platform, "greet:app", "hello", "one"));
    await_answer(&platform, "HELLO OF ONE");
    let first = active(&platform);
    let now = status(&platform);
    assert_eq!(now["serviceStatus"], "Running", "{now}");
    assert_eq!(now["numServeEndpoints"], 1, "{now}");
    let known = &now["activeServiceStatus"]["applicationStatuses"]["greet"];
    assert_eq!(known["status"], "RUNNING", "{now}");
    let deployments = known["serveDeploymentStatuses"].as_object().unwrap();
    assert_eq!(deployments.len(), 2, "{now}");
    let table = platform.kubectl(&["get", "rayservices"]).ok();
    assert!(
        table.contains("SERVICE STATUS") && table.contains("Running"),
        "{table}"
    );
    platform
        .cli(&["wait", "rayservice/hello", "--for", "condition=Ready"])
        .ok();
    let log = platform.cli(&["logs", "rayservice/hello"]).ok();
    assert!(!log.is_empty());

    let requests = platform.shared("requests");
    let (end, begun) = (requests.join("end"), requests.join("begun"));
    let client = e2e::repository().join("e2e/clients/serve_requests.py");
    let words = [
        client.display().to_string(),
        SERVICE.to_owned(),
        "greet".to_owned(),
        end.display().to_string(),
        begun.display().to_string(),
    ];
    let said = std::thread::scope(|scope| {
        let platform = &platform;
        let words = &words;
        let requests =
            scope.spawn(move || e2e::run(&mut platform.command(&e2e::python(), words)).ok());
        eventually("the client got its first answer", RAY_STARTS, || {
            begun.exists().then_some(())
        });
        // A changed configuration goes to the same cluster.
        platform.apply(&service(platform, "greet:app", "bye", "one"));
        await_answer(platform, "BYE OF ONE");
        assert_eq!(active(platform), first);
        // A changed cluster spec makes another one, which takes over; the first one is deleted.
        platform.apply(&service(platform, "greet:app", "bye", "two"));
        await_answer(platform, "BYE OF TWO");
        await_alone(platform);
        assert_ne!(active(platform), first);
        std::fs::write(&end, "").unwrap();
        requests.join().unwrap()
    });
    for answer in ["HELLO OF ONE", "BYE OF ONE", "BYE OF TWO"] {
        assert!(said.contains(answer), "{said}");
    }
    assert!(!said.contains("failed"), "{said}");
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn a_failed_application_is_explained_and_an_upgrade_survives_the_death_of_the_server() {
    let mut platform = Platform::up(&[]);
    platform.apply(&service(&platform, "greet:missing", "hello", "one"));
    let explained = eventually("the failure is explained", RAY_STARTS, || {
        let said = platform.cli(&["explain", "rayservice/hello"]).out;
        said.contains("Application greet failed to deploy")
            .then_some(said)
    });
    assert!(explained.contains("missing"), "{explained}");
    platform.apply(&service(&platform, "greet:app", "hello", "one"));
    await_answer(&platform, "HELLO OF ONE");
    let first = active(&platform);

    platform.apply(&service(&platform, "greet:app", "hello", "two"));
    let pending = eventually("the pending cluster exists", RAY_STARTS, || {
        let name = status(&platform)["pendingServiceStatus"]["rayClusterName"].clone();
        let name = name.as_str()?.to_owned();
        let cluster = platform.get("rayclusters", &name);
        cluster["metadata"]["uid"].is_string().then_some(name)
    });
    platform.kill();
    platform.restart();
    await_answer(&platform, "HELLO OF TWO");
    await_alone(&platform);
    assert_eq!(active(&platform), pending);
    assert_ne!(first, pending);

    // A suspension deletes clusters and Services, and the service comes back.
    platform.cli(&["suspend", "rayservice/hello"]).ok();
    eventually("nothing is left", RAY_STARTS, || {
        let left = platform
            .kubectl(&["get", "rayclusters,services", "-o", "name"])
            .ok();
        (!left.contains("hello")).then_some(())
    });
    platform.cli(&["cancel", "rayservice/hello"]).ok();
    eventually("the service is gone", RAY_STARTS, || {
        platform.get("rayservices", "hello").is_null().then_some(())
    });
}
