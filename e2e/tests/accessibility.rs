//! Every page of the web UI, read as an administrator, as a member and signed out, in both themes and two widths, in a
//! real Chromium: axe-core finds no violation. The routes are those of the portal; one without a row fails by its path.
//! And work with the keyboard alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::time::Duration;

use e2e::{Agent, Platform, eventually, part, python, repository, run, send};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(150);

/// What answers a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    /// No page: a redirect, a file or a stream.
    Nothing,
    /// A page for readers that are signed out.
    Open(&'static [&'static str]),
    /// A page for readers that are signed in.
    Signed(&'static [&'static str]),
}
use Shows::{Nothing, Open, Signed};

/// A route that browsers open, and the pages on it that are checked.
const PAGES: [(&str, Shows); 26] = [
    ("/", Nothing),
    ("/ui", Nothing),
    ("/ui/", Signed(&["/ui/", "/ui/?map=load"])),
    ("/ui/sign-in", Open(&["/ui/sign-in"])),
    // Without an identity provider it answers no page.
    ("/ui/oidc/callback", Nothing),
    ("/ui/account", Signed(&["/ui/account"])),
    (
        "/ui/device",
        Signed(&[
            "/ui/device",
            "/ui/device?user_code=none",
            "/ui/device?user_code=CODE",
        ]),
    ),
    (
        "/ui/reset/{link}",
        Open(&["/ui/reset/none", "/ui/reset/LINK"]),
    ),
    ("/ui/users", Signed(&["/ui/users"])),
    ("/ui/jobs", Signed(&["/ui/jobs", "/ui/jobs?q=none"])),
    (
        "/ui/jobs/{namespace}/{kind}/{name}",
        Signed(&[
            "/ui/jobs/vision/pytorchjobs/train-runs",
            "/ui/jobs/vision/pytorchjobs/train-runs?tab=metrics",
            "/ui/jobs/vision/pytorchjobs/train-waits",
            "/ui/jobs/vision/pytorchjobs/train-fails",
            "/ui/jobs/vision/pytorchjobs/train-fails?tab=replicas",
            "/ui/jobs/vision/pytorchjobs/train-fails?tab=logs",
            "/ui/jobs/vision/pytorchjobs/train-fails?tab=events",
            "/ui/jobs/vision/pytorchjobs/train-fails?tab=manifest",
            "/ui/jobs/vision/pytorchjobs/train-fails?tab=delete",
            "/ui/jobs/vision/vcjobs/tasks",
            "/ui/jobs/vision/trainjobs/reports",
            "/ui/jobs/vision/leaderworkersets/model",
            "/ui/jobs/vision/leaderworkersets/model?tab=replicas",
            "/ui/jobs/vision/pods/restarts?tab=logs",
            "/ui/jobs/vision/pods/none",
        ]),
    ),
    ("/ui/nodes", Signed(&["/ui/nodes"])),
    (
        "/ui/nodes/{name}",
        Signed(&["/ui/nodes/gpu-1", "/ui/nodes/away"]),
    ),
    ("/ui/nodes/{name}/drain", Signed(&["/ui/nodes/gpu-1/drain"])),
    ("/ui/teams", Signed(&["/ui/teams"])),
    ("/ui/teams/{name}", Signed(&["/ui/teams/vision"])),
    ("/ui/queues", Signed(&["/ui/queues"])),
    ("/ui/queues/{name}", Signed(&["/ui/queues/vision"])),
    ("/ui/usage", Signed(&["/ui/usage"])),
    ("/ui/idle", Signed(&["/ui/idle", "/ui/idle?team=vision"])),
    ("/ui/alerts", Signed(&["/ui/alerts"])),
    ("/ui/submit", Signed(&["/ui/submit"])),
    ("/ui/find", Signed(&["/ui/find?q=train"])),
    ("/ui/design", Signed(&["/ui/design"])),
    ("/ui/live", Nothing),
    ("/ui/assets/{file}", Nothing),
];
const OTHERS: &str = "/ui/{*path}";

/// A program that ends when it is asked to.
const SLEEPS: &str = "trap 'exit 143' TERM; sleep 600 & wait";

const PASSWORD: &str = "correct horse battery";

const RECEIVERS: &str =
    "[[receiver]]\nname = \"chat\"\nkind = \"slack\"\nurl = \"http://127.0.0.1:9/\"\n";

/// Jobs of the team that run, wait, fail and succeed; one that reports its progress; a LeaderWorkerSet; a pod that starts
/// again and again; a CronJob.
fn jobs() -> String {
    let training = |name: &str, gpus: u32, master: &str, worker: &str| {
        let replica = |command: &str| {
            json!({"restartPolicy": "Never", "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "pytorch", "command": ["sh", "-c", command],
                "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"nvidia.com/gpu": gpus.to_string()}}}]}}})
        };
        json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "namespace": "vision"},
            "spec": {"runPolicy": {"backoffLimit": 0, "schedulingPolicy": {"queue": "vision"}},
                "pytorchReplicaSpecs": {"Master": replica(master), "Worker": replica(worker)}}})
    };
    let container = |command: &str| json!([{"name": "main", "command": ["sh", "-c", command], "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}}}]);
    let error = "printf '10%%\\r20%%\\r\\033[31mValueError: bad shard 17\\033[0m\\n'; exit 3";
    let all = [
        training("train-fails", 0, "sleep 600", error),
        training("train-runs", 1, "echo begins; sleep 600", "sleep 600"),
        training("train-waits", 2, "sleep 600", "sleep 600"),
        json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "tasks", "namespace": "vision"},
            "spec": {"minAvailable": 1, "queue": "vision", "tasks": [{"name": "first", "replicas": 1,
                "template": {"spec": {"restartPolicy": "Never", "containers": container("echo done")}}}]}}),
        json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "reports", "namespace": "vision"},
            "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 1, "command": ["sh", "-c", SLEEPS],
                "resourcesPerNode": {"requests": {"cpu": "50m", "memory": "32Mi"}}}}}),
        json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "model", "namespace": "vision"},
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": {"containers": container(SLEEPS)}}}}}),
        json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "namespace": "vision"},
            "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never",
                "containers": container("true")}}}}}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "restarts", "namespace": "vision"},
            "spec": {"containers": container("echo it runs; sleep 1; exit 1")}}),
    ];
    all.map(|object| object.to_string()).join("\n---\n")
}

/// A server with a node that is away, a team with a member, and the team's jobs.
struct Ground {
    /// Ended first: it keeps its files in the platform's directory.
    _node: Agent,
    platform: Platform,
    directory: tempfile::TempDir,
    /// The page on which a new user sets its password.
    link: String,
    /// The code of a program that waits.
    code: String,
}

impl Ground {
    fn new() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        let described = repository().join("packaging/examples/machines/4x-h100.toml");
        let described = std::fs::read_to_string(described).unwrap();
        let doing = "[[gpu]]\ncelsius = 45\nwatts = 120\nwatts_limit = 700\nutilisation = 60";
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let machine = file("machine.toml", &described.replace("[[gpu]]", doing));
        let receivers = file("receivers.toml", RECEIVERS);
        let platform = Platform::server(&["--alert-receivers", &receivers, "--node-grace", "10"]);
        let node = platform.agent("gpu-1", None, &["--machine", &machine]);
        let away = platform.agent("away", None, &["--machine", &machine]);
        platform.await_nodes(2);
        drop(away);
        eventually("no job gets the node that is away", SOON, || {
            let nodes = platform.cli(&["get", "nodes"]).out;
            (nodes.matches(" Ready").count() == 1).then_some(())
        });
        let cli = |arguments: &[&str]| platform.cli(arguments).ok();
        let user = ["user", "create", "--no-namespaces"];
        let set = cli(&[&user[..], &["mo", "--display-name", "Mo Example"]].concat());
        set_password(&platform, &path_of(&set));
        // This one sets up a second factor.
        let careful = cli(&[&user[..], &["careful"]].concat());
        set_password(&platform, &path_of(&careful));
        let link = path_of(&cli(&[&user[..], &["newcomer"]].concat()));
        cli(&["team", "create", "vision", "--members", "mo"]);
        cli(&["team", "set-quota", "vision", "pods=100"]);
        cli(&[
            "alerts",
            "silence",
            "--on",
            "none",
            "--for",
            "2h",
            "--comment",
            "a fan",
        ]);
        platform.apply(&jobs());
        report_progress(&platform);
        let code = code_of_a_program(&platform);
        Ground {
            _node: node,
            platform,
            directory,
            link,
            code,
        }
    }

    /// Runs a script that drives a browser, and returns what it says.
    fn client(&self, script: &str, arguments: &[&str]) -> String {
        let script = repository().join("e2e/clients").join(script);
        let script = script.display().to_string();
        let all = [&[script.as_str()], arguments].concat();
        let out = run(&mut self.platform.command(&python(), &all)).ok();
        println!("{out}");
        out
    }

    /// Waits until every kind of job and of node is there.
    fn settle(&self) {
        let holds = |name: &str, condition: &str| {
            let job = ["get", "pytorchjob", name, "-n", "vision", "-o", "json"];
            let job = self.platform.cli(&job).out;
            let job: Value = serde_json::from_str(&job).unwrap_or_default();
            let conditions = job["status"]["conditions"].as_array().cloned();
            let mut conditions = conditions.unwrap_or_default().into_iter();
            conditions.any(|one| one["type"] == condition && one["status"] == "True")
        };
        eventually("a job runs, and one has failed", SOON, || {
            (holds("train-runs", "Running") && holds("train-fails", "Failed")).then_some(())
        });
        eventually("a group of the set is ready", SOON, || {
            let set = ["get", "lws", "model", "-n", "vision", "-o", "json"];
            let set = self.platform.cli(&set).out;
            let set: Value = serde_json::from_str(&set).unwrap_or_default();
            (set["status"]["readyReplicas"].as_u64() > Some(0)).then_some(())
        });
        eventually("an alert fires", SOON, || {
            let alerts = self.platform.cli(&["alerts"]).out;
            alerts.contains("NodeLost").then_some(())
        });
    }
}

/// What a training program would report of its progress.
fn report_progress(platform: &Platform) {
    let report = json!({"status": {"trainerStatus": {"progressPercentage": 45, "estimatedRemainingSeconds": 90,
        "metrics": [{"name": "loss", "value": "0.25"}], "lastUpdatedTime": "2026-01-01T00:00:00Z"}}});
    let patch = report.to_string();
    let patch = [
        "patch",
        "trainjobs.trainer.kubeflow.org",
        "reports",
        "-n",
        "vision",
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    platform.kubectl(&patch).ok();
}

/// The path of a printed link.
fn path_of(link: &str) -> String {
    let secret = link.trim().split("/ui/reset/").nth(1).unwrap();
    format!("/ui/reset/{secret}")
}

fn set_password(platform: &Platform, page: &str) {
    let link = page.rsplit('/').next().unwrap();
    let password = PASSWORD.replace(' ', "+");
    let body = format!("link={link}&new={password}&again={password}");
    post(platform, "/ui/reset", &body);
}

/// The code of a program that asks to be signed in.
fn code_of_a_program(platform: &Platform) -> String {
    let body = "client_id=muster-cli&client_name=mo%40laptop";
    let answer = post(platform, "/oauth2/device_authorization", body);
    let json = answer.split("\r\n\r\n").nth(1).unwrap();
    let codes: Value = serde_json::from_str(json).unwrap();
    codes["user_code"].as_str().unwrap().to_owned()
}

/// Sends a form, and returns the answer.
fn post(platform: &Platform, path: &str, body: &str) -> String {
    let reply = send(platform, &format!("POST {path}"), &[], body);
    assert_eq!(reply.code, 200, "{}", reply.whole);
    reply.whole
}

#[test]
fn every_route_of_a_page_has_a_row() {
    let routes = portal::routes().into_iter();
    let pages = routes.filter(|(method, path)| {
        *method == http::Method::GET && (*path == "/" || path.starts_with("/ui"))
    });
    let routes: BTreeSet<&str> = pages.map(|(_, path)| path).collect();
    let rows = PAGES.iter().map(|(path, _)| *path).chain([OTHERS]);
    let rows: BTreeSet<&str> = rows.collect();
    let missing: Vec<_> = routes.difference(&rows).collect();
    assert!(missing.is_empty(), "these pages have no row: {missing:?}");
    let left: Vec<_> = rows.difference(&routes).collect();
    assert!(left.is_empty(), "these rows have no page: {left:?}");
}

#[test]
fn axe_finds_no_violation_on_any_page_in_a_browser() {
    let ground = Ground::new();
    ground.settle();
    let screens = repository().join("target/screens");
    std::fs::create_dir_all(&screens).unwrap();
    let paths = |open: bool| -> Vec<String> {
        let all = PAGES.iter().flat_map(|(_, shows)| match shows {
            Open(paths) if open => *paths,
            Signed(paths) if !open => *paths,
            _ => &[],
        });
        let all = all.map(|path| path.replace("/ui/reset/LINK", &ground.link));
        all.map(|path| path.replace("user_code=CODE", &format!("user_code={}", ground.code)))
            .collect()
    };
    let mut signed = paths(false);
    signed.push("/ui/none".to_owned());
    let plan = json!({
        "url": format!("http://{}", ground.platform.listen),
        "axe": part("axe/axe.min.js"), "screens": screens, "open": paths(true), "pages": signed,
        "factor": {"user": "careful", "password": PASSWORD,
            "rounds": [["light", 1400], ["dark", 390], ["dark", 1400], ["light", 390]]},
        "readers": [
            {"user": "admin", "password": ground.platform.password(), "rounds": [["light", 1400], ["dark", 390]]},
            {"user": "mo", "password": PASSWORD, "rounds": [["dark", 1400], ["light", 390]]},
        ],
    });
    let file = ground.directory.path().join("plan.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    let out = ground.client("accessibility.py", &[&file.display().to_string()]);
    assert!(out.contains("accessibility walk done"), "{out}");
}

#[test]
fn a_job_is_submitted_read_and_cancelled_and_a_node_drained_by_keys_in_a_browser() {
    let ground = Ground::new();
    let url = format!("http://{}", ground.platform.listen);
    let password = ground.platform.password();
    let out = ground.client("keyboard.py", &[&url, "mo", PASSWORD, &password, "gpu-1"]);
    assert!(out.contains("keyboard walk done"), "{out}");
}
