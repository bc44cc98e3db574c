//! Ray itself in RayClusters and RayJobs: nodes that join, a task, two clusters on one machine, a lost head, a
//! suspension; programs that are submitted once; and Ray's own autoscaler under a queue's limit.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
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
fn rays_dashboard_is_reached_through_the_server() {
    let platform = Platform::up(&[]);
    platform.apply(&cluster("rays", 0));
    let rays = await_state(&platform, "rays", "ready");
    let (head, port) = (
        head_of(&rays),
        rays["status"]["endpoints"]["dashboard"].clone(),
    );
    let port = port.as_str().unwrap();
    let address = platform.cli(&["open", "rays", "--print"]).ok();
    assert!(
        address.ends_with(&format!("/proxy/default/pods/{head}/{port}/\n")),
        "{address}"
    );
    let base = format!("/api/v1/namespaces/default/pods/{head}:dashboard/proxy");
    let version = eventually("the dashboard answers", RAY_STARTS, || {
        let asked = platform.kubectl(&["get", "--raw", &format!("{base}/api/version")]);
        serde_json::from_str::<Value>(&asked.out).ok()
    });
    assert_eq!(version["ray_version"], "2.60.0", "{version}");
    let page = platform
        .kubectl(&["get", "--raw", &format!("{base}/")])
        .ok();
    assert!(page.contains("<title>Ray Dashboard</title>"), "{page}");
    let script = e2e::repository().join("e2e/clients/ray_dashboard.py");
    let (script, url) = (
        script.display().to_string(),
        format!("http://{}", platform.listen),
    );
    let words = [
        &script,
        &url,
        &platform.password(),
        "localhost",
        address.trim(),
    ];
    let out = e2e::run(&mut platform.command(&e2e::python(), &words)).ok();
    assert!(out.contains("Ray's dashboard done"), "{out}");
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

/// A pod of host processes that finds Ray, with these requests.
fn pod_template(cpu: &str) -> Value {
    let path = format!("{}:/usr/bin:/bin", e2e::part("ray/bin").display());
    json!({"spec": {"containers": [{
        "name": "ray", "command": ["true"], "workingDir": "/tmp",
        "env": [{"name": "PATH", "value": path}], "resources": {"requests": {"cpu": cpu}},
    }]}})
}

/// A job on a cluster of a head alone.
fn ray_job(name: &str, entrypoint: &str) -> String {
    let parameters = json!({"num-cpus": 1, "object-store-memory": "100000000"});
    let head = json!({"rayStartParams": parameters, "template": pod_template("100m")});
    json!({
        "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name},
        "spec": {"entrypoint": entrypoint, "shutdownAfterJobFinishes": true,
            "runtimeEnvYAML": "env_vars:\n  COLOUR: blue\n",
            "rayClusterSpec": {"headGroupSpec": head}},
    })
    .to_string()
}

#[test]
fn a_ray_jobs_program_runs_once_although_the_server_and_the_submitter_die() {
    let mut platform = Platform::up(&[]);
    let go = platform.shared("rayjob").join("go");
    // The head's pod has a /tmp of its own.
    let program = format!(
        "echo started >> /tmp/starts; until [ -e {} ]; do sleep 0.2; done; cat /tmp/starts; echo the colour is $COLOUR",
        go.display()
    );
    platform.apply(&ray_job("good", &program));
    eventually("the program runs", RAY_STARTS, || {
        let job = platform.get("rayjobs", "good");
        let cluster = job["status"]["rayClusterName"].as_str()?.to_owned();
        let head = format!("{cluster}-head");
        let begun = ["exec", &head, "-c", "ray", "--", "cat", "/tmp/starts"];
        let runs = job["status"]["jobStatus"] == "RUNNING";
        (runs && platform.kubectl(&begun).out.contains("started")).then_some(())
    });
    let submitter = || {
        let label = [
            "get",
            "pods",
            "-l",
            "batch.kubernetes.io/job-name=good",
            "-o",
            "json",
        ];
        let pods: Value = serde_json::from_str(&platform.kubectl(&label).ok()).unwrap();
        let pods = pods["items"].as_array().unwrap().clone();
        pods.into_iter()
            .find(|pod| pod["status"]["phase"] == "Running")
    };
    let first = submitter().expect("a submitter");
    let pod = first["metadata"]["name"].as_str().unwrap();
    platform
        .kubectl(&["delete", "pod", pod, "--wait=false"])
        .ok();
    eventually("another submitter runs", RAY_STARTS, || {
        submitter().filter(|pod| pod["metadata"]["uid"] != first["metadata"]["uid"])
    });
    platform.kill();
    platform.restart();
    std::fs::write(&go, "").unwrap();
    let seconds = RAY_STARTS.as_secs().to_string();
    let wait = ["wait", "rayjob/good", "--timeout", &seconds];
    platform.cli(&wait).ok();
    let job = platform.get("rayjobs", "good");
    let status = &job["status"];
    assert_eq!(status["jobStatus"], "SUCCEEDED", "{status}");
    assert_eq!(status["jobDeploymentStatus"], "Complete", "{status}");
    let log = platform.cli(&["logs", "rayjob/good"]).ok();
    assert!(log.contains("the colour is blue"), "{log}");
    let starts = log.lines().filter(|line| *line == "started").count();
    assert_eq!(starts, 1, "{log}");
    let cluster = status["rayClusterName"].as_str().unwrap().to_owned();
    eventually("the cluster is deleted", RAY_STARTS, || {
        let clusters = platform.kubectl(&["get", "rayclusters", "-o", "name"]).ok();
        (!clusters.contains(&cluster)).then_some(())
    });

    // A program that fails, and a held one that runs once it is resumed.
    platform.apply(&ray_job("bad", "echo wrong; exit 3"));
    let wait = ["wait", "rayjob/bad", "--timeout", &seconds];
    let waited = platform.cli(&wait);
    assert!(waited.code != Some(0), "{waited:?}");
    let job = platform.get("rayjobs", "bad");
    let want = "The program failed with exit code 3.";
    assert_eq!(job["status"]["message"], want, "{}", job["status"]);
    assert_eq!(job["status"]["reason"], "AppFailed");
    let said = platform.cli(&["explain", "rayjob/bad"]).ok();
    assert!(said.contains("exit") && said.contains('3'), "{said}");
    let log = platform.cli(&["logs", "rayjob/bad"]).ok();
    assert!(log.contains("wrong"), "{log}");
}

#[test]
fn rays_autoscaler_adds_and_removes_workers_under_a_queues_limit() {
    let platform = Platform::up(&[]);
    let queue = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "small"},
        "spec": {"weight": 1, "capability": {"cpu": "1"}},
    });
    platform.apply(&queue.to_string());
    let parameters = |cpus: u32| json!({"num-cpus": cpus, "object-store-memory": "80000000"});
    let notes = json!({"scheduling.volcano.sh/queue-name": "small"});
    // The head and three workers fill the queue.
    let cluster = json!({
        "apiVersion": "ray.io/v1", "kind": "RayCluster",
        "metadata": {"name": "grows", "annotations": notes},
        "spec": {
            "enableInTreeAutoscaling": true, "autoscalerOptions": {"idleTimeoutSeconds": 5},
            "headGroupSpec": {"rayStartParams": parameters(0), "template": pod_template("100m")},
            "workerGroupSpecs": [{"groupName": "small", "minReplicas": 1, "maxReplicas": 4,
                "rayStartParams": parameters(1), "template": pod_template("300m")}],
        },
    });
    platform.apply(&cluster.to_string());
    let head = head_of(&await_state(&platform, "grows", "ready"));
    let mut seen: BTreeMap<String, Value> = BTreeMap::new();
    let mut workers = || {
        let label = "ray.io/cluster=grows,ray.io/node-type=worker";
        let list = ["get", "pods", "-l", label, "-o", "json"];
        let pods: Value = serde_json::from_str(&platform.kubectl(&list).ok()).unwrap();
        let pods = pods["items"].as_array().unwrap().clone();
        for pod in &pods {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            let uid = &pod["metadata"]["uid"];
            assert_eq!(seen.entry(name).or_insert_with(|| uid.clone()), uid);
        }
        let has = |phase: &str| {
            let pods = pods.iter();
            pods.filter(|pod| pod["status"]["phase"] == phase).count()
        };
        (has("Running"), has("Pending"))
    };
    let go = platform.shared("autoscaler").join("go");
    // A task that is killed with its worker fails: none is tried again.
    let program = format!(
        "import os, ray, time; ray.init(); \
         work = lambda: [time.sleep(0.2) for _ in iter(lambda: os.path.exists('{}'), True)] and 1 or 1; \
         f = ray.remote(num_cpus=1, max_retries=0)(work); \
         print('done', sum(ray.get([f.remote() for _ in range(4)])))",
        go.display()
    );
    let said = std::thread::scope(|scope| {
        let platform = &platform;
        let head = &head;
        let ran = scope.spawn(move || within(platform, head, &["python3", "-c", &program]));
        let full = |found: (usize, usize)| (found == (3, 1)).then_some(());
        eventually("three workers run and one waits", RAY_STARTS, || {
            full(workers())
        });
        std::fs::write(&go, "").unwrap();
        ran.join().unwrap()
    });
    assert!(said.contains("done 4"), "{said}");
    eventually("one worker is left", RAY_STARTS, || {
        (workers() == (1, 0)).then_some(())
    });
    let cluster = platform.get("rayclusters", "grows");
    let group = &cluster["spec"]["workerGroupSpecs"][0];
    assert_eq!(group["replicas"], 1, "{group}");
}
