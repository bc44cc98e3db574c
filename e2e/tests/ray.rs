//! Ray itself in RayClusters: nodes that join, a task, two clusters on one machine, a lost head, a suspension.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually};
use serde_json::{Value, json};

/// Ray's programs start in seconds, but several of them share two cores.
const RAY_STARTS: Duration = Duration::from_secs(240);

/// A cluster of host processes with small object stores. Ray starts after the container's own command.
fn cluster(name: &str, workers: u32) -> String {
    let path = format!("{}:/usr/bin:/bin", e2e::part("ray/bin").display());
    let template = json!({"spec": {"containers": [{
        "name": "ray", "command": ["true"], "workingDir": "/tmp", "env": [{"name": "PATH", "value": path}],
    }]}});
    // Numbers and texts, as users write them.
    let parameters = json!({"num-cpus": 1, "object-store-memory": "100000000"});
    let spec = json!({
        "headGroupSpec": {"rayStartParams": parameters, "template": template},
        "workerGroupSpecs": [{"groupName": "small", "replicas": workers,
            "rayStartParams": parameters, "template": template}],
    });
    let metadata = json!({"name": name});
    json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec})
        .to_string()
}

fn await_state(platform: &Platform, name: &str, state: &str) -> Value {
    let what = format!("{name} is {state}");
    eventually(&what, RAY_STARTS, || {
        let cluster = platform.get("rayclusters", name);
        (cluster["status"]["state"] == state).then_some(cluster)
    })
}

fn head_of(cluster: &Value) -> String {
    let name = &cluster["status"]["head"]["podName"];
    name.as_str().expect("a head").to_owned()
}

/// Runs a command in a pod.
fn within(platform: &Platform, pod: &str, command: &[&str]) -> String {
    let arguments = [&["exec", pod, "-c", "ray", "--"], command].concat();
    platform.kubectl(&arguments).ok()
}

/// The nodes that `ray status` lists as active: a line for each group, which begins with a number.
fn nodes(platform: &Platform, head: &str) -> u32 {
    let arguments = ["exec", head, "-c", "ray", "--", "ray", "status"];
    let status = platform.kubectl(&arguments).out;
    let active = status.lines().skip_while(|line| *line != "Active:");
    let groups = active.skip(1).take_while(|line| *line != "Pending:");
    let numbers = groups.filter_map(|line| line.trim().split(' ').next()?.parse::<u32>().ok());
    numbers.sum()
}

#[test]
fn ray_clusters_run_tasks_side_by_side_on_one_machine() {
    let platform = Platform::up(&[]);
    platform.apply(&cluster("one", 2));
    platform.apply(&cluster("two", 1));
    let one = await_state(&platform, "one", "ready");
    let two = await_state(&platform, "two", "ready");
    let ports = |cluster: &Value| cluster["status"]["endpoints"]["gcs-server"].clone();
    assert_ne!(ports(&one), ports(&two));
    let head = head_of(&one);
    eventually("both clusters have all their nodes", RAY_STARTS, || {
        let all = (nodes(&platform, &head), nodes(&platform, &head_of(&two)));
        (all == (3, 2)).then_some(())
    });
    // Each task holds a CPU until the others hold theirs, so that the tasks need all three nodes.
    let program = "import ray, time; ray.init(); \
        f = ray.remote(lambda i: (time.sleep(3), ray.get_runtime_context().get_node_id())[1]); \
        print('on', len(set(ray.get([f.remote(i) for i in range(3)]))), 'nodes')";
    let said = within(&platform, &head, &["python3", "-c", program]);
    assert!(said.contains("on 3 nodes"), "{said}");

    // A head and a worker that are deleted are replaced, and the cluster is ready again.
    let label = "ray.io/cluster=one,ray.io/node-type=worker";
    let path = "jsonpath={.items[*].metadata.name}";
    let workers = || {
        platform
            .kubectl(&["get", "pods", "-l", label, "-o", path])
            .ok()
    };
    let uid = |pod: &str| platform.get("pods", pod)["metadata"]["uid"].clone();
    let all = workers();
    let lost = all.split(' ').next().unwrap();
    let before = [uid(&head), uid(lost)];
    platform.kubectl(&["delete", "pod", lost, &head]).ok();
    let head = eventually("the head and the worker are replaced", RAY_STARTS, || {
        let cluster = platform.get("rayclusters", "one");
        let pods = platform
            .kubectl(&["get", "pods", "-l", "ray.io/cluster=one", "-o", "json"])
            .ok();
        let pods: Value = serde_json::from_str(&pods).unwrap();
        let pods = pods["items"].as_array().unwrap();
        let gone = pods
            .iter()
            .all(|pod| !before.contains(&pod["metadata"]["uid"]));
        (gone && pods.len() == 3 && cluster["status"]["state"] == "ready")
            .then(|| head_of(&cluster))
    });
    eventually("all nodes are there again", RAY_STARTS, || {
        (nodes(&platform, &head) == 3).then_some(())
    });

    let suspend = |held: bool| {
        let patch = json!({"spec": {"suspend": held}}).to_string();
        let change = ["patch", "raycluster", "one", "--type=merge", "-p", &patch];
        platform.kubectl(&change).ok();
    };
    suspend(true);
    await_state(&platform, "one", "suspended");
    assert_eq!(workers(), "");
    suspend(false);
    await_state(&platform, "one", "ready");
}
