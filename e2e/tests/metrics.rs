//! The agent's metrics as a real Prometheus has them: scraped, named after the pods that have the
//! GPUs, judged by the alerts of packaging/monitoring, and drawn by its dashboard.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Agent, Platform, Prometheus, eventually, free_address, get, muster, repository, run};
use resources::alerts::AlertRule;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(120);

/// A busy, hot GPU, an idle one, and the values of both that come from no other counters.
const BUSY: &str = "[[state]]\ngpu = 0\nutilisation = 97\nmemory_utilisation = 50\nencoder = 0\ndecoder = 0\n\
    watts = 690\ncelsius = 88\nmemory_celsius = 90\nenergy_mj = 1000\nsm_mhz = 1980\nmemory_mhz = 2619\n\
    memory_used_mib = 79000\nnvlink_kib = 4096\ncorrected = 3\n\
    gpm = [{ metric = 1, value = 95.0 }, { metric = 5, value = 60.0 }, { metric = 10, value = 40.0 }, \
    { metric = 20, value = 10.0 }, { metric = 21, value = 20.0 }]\n\
    [[state]]\ngpu = 1\nutilisation = 3\nwatts = 80\ncelsius = 40\n";

/// A server and one node: the described HGX H100, in these states.
struct Ground {
    platform: Platform,
    _agent: Agent,
    address: String,
    description: PathBuf,
}

impl Ground {
    fn start() -> Ground {
        let platform = Platform::server(&[]);
        let description = platform.manifest("machine.toml", "");
        describe(&description, BUSY);
        let address = free_address();
        let machine = description.display().to_string();
        let arguments = ["--machine", &machine, "--metrics", &address];
        let agent = platform.agent("gpus", None, &arguments);
        platform.await_nodes(1);
        Ground {
            platform,
            _agent: agent,
            address,
            description,
        }
    }

    fn page(&self) -> String {
        let (status, page) = get(&self.address, "/metrics").unwrap();
        assert_eq!(status, 200, "{page}");
        page
    }

    /// Runs a pod and returns its process id once it runs.
    fn pod(&self, name: &str, metadata: &str, gpus: usize) -> u32 {
        let limits = match gpus {
            0 => String::new(),
            some => format!(", limits: {{nvidia.com/gpu: {some}}}"),
        };
        self.platform.apply(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{metadata}}}\nspec:\n  restartPolicy: Never\n  \
             containers:\n    - name: main\n      command: [sh, -c, 'echo runs; exec sleep 600']\n      \
             resources: {{requests: {{cpu: 50m}}{limits}}}\n"
        ));
        eventually(&format!("{name} runs"), SOON, || {
            let log = self.platform.cli(&["logs", name]).out;
            (log.trim() == "runs").then(|| self.platform.pod_process(name))?
        })
    }
}

/// The described HGX H100 in these states, replaced atomically.
fn describe(file: &Path, states: &str) {
    let machine = repository().join("packaging/examples/machines/hgx-h100.toml");
    let text = std::fs::read_to_string(machine).unwrap();
    let partial = file.with_extension("partial");
    std::fs::write(&partial, format!("{text}\n{states}")).unwrap();
    std::fs::rename(partial, file).unwrap();
}

/// The lines of a metric.
fn lines<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!("{name}{{");
    (page.lines())
        .filter(|line| line.starts_with(&begin))
        .collect()
}

fn monitoring(file: &str) -> PathBuf {
    repository().join("packaging/monitoring").join(file)
}

/// Every expression of the dashboard, with its variables set to match everything.
fn drawn() -> Vec<String> {
    let text = std::fs::read_to_string(monitoring("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let plain = |target: &Value| {
        let expression = target["expr"].as_str().unwrap();
        expression.replace("$node", ".*").replace("$gpu", ".*")
    };
    targets.map(plain).collect()
}

#[test]
fn a_real_prometheus_scrapes_what_the_alerts_judge_and_the_dashboard_draws() {
    let ground = Ground::start();
    ground.pod("trainer", "", 8);
    // Performance counters show what lies between two readings.
    ground.page();
    let prometheus = Prometheus::scraping(&ground.address);
    let targets = eventually("the target is scraped", SOON, || {
        let data = prometheus.api("/api/v1/targets");
        let target = data["activeTargets"][0].clone();
        (target["health"] == "up").then_some(target)
    });
    assert_eq!(targets["lastError"], "");
    let named = prometheus.query("count by (pod) (DCGM_FI_DEV_FB_USED{Hostname=\"gpus\"})");
    assert_eq!(named.len(), 1, "{named:?}");
    assert_eq!(named[0]["metric"]["pod"], "trainer");
    assert_eq!(named[0]["value"][1], "8");
    let types = prometheus.api("/api/v1/metadata?metric=DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION");
    assert_eq!(
        types["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"][0]["type"],
        "counter"
    );

    // Every panel has data, except those of processes that share a GPU and of RDMA cards, which
    // this machine lacks.
    for expression in drawn() {
        if ["muster_gpu_process_", "muster_rdma_"]
            .iter()
            .any(|it| expression.contains(it))
        {
            prometheus.query(&expression);
            continue;
        }
        eventually(&format!("{expression} has values"), SOON, || {
            (!prometheus.query(&expression).is_empty()).then_some(())
        });
    }

    // The busy GPU is hot, full and at its power limit; the idle one is allocated.
    let standing = eventually("four alerts stand", SOON, || {
        let alerts = prometheus.api("/api/v1/alerts")["alerts"].clone();
        let standing: BTreeSet<(String, String)> = (alerts.as_array()?.iter())
            .map(|alert| {
                let label = |name: &str| alert["labels"][name].as_str().unwrap().to_owned();
                (label("alertname"), label("gpu"))
            })
            .collect();
        (standing.len() >= 4).then_some(standing)
    });
    let expected = [
        ("GpuHot", "0"),
        ("GpuMemoryNearlyFull", "0"),
        ("GpuPowerNearLimit", "0"),
        ("GpuUnderused", "1"),
    ];
    let expected = expected.map(|(alert, gpu)| (alert.to_owned(), gpu.to_owned()));
    assert_eq!(standing, BTreeSet::from(expected));

    // Without Prometheus, the agent itself raises the alert: in its metrics, in the web UI, in the
    // command line, and as an event of the node.
    let alert = eventually("the agent's own alert stands", SOON, || {
        let asked = ["get", "--raw", "/api/v1/alerts"];
        let answer: Value = serde_json::from_str(&ground.platform.kubectl(&asked).ok()).ok()?;
        answer["items"].as_array()?.first().cloned()
    });
    assert_eq!(
        [&alert["node"], &alert["alert"], &alert["severity"]],
        ["gpus", "GpuHot", "warning"]
    );
    assert_eq!(alert["gpu"], 0);
    let message = alert["message"].as_str().unwrap();
    assert!(message.contains("over 85 °C (88 °C)"), "{message}");
    let nodes = ground.platform.cli(&["nodes", "-o", "wide"]).ok();
    assert!(nodes.contains(message), "{nodes}");
    let event = |reason: &str| {
        eventually(&format!("the node's event {reason}"), SOON, || {
            let field = format!("reason={reason},involvedObject.name=gpus");
            let asked = ["get", "events", "--field-selector", &field, "-o", "json"];
            let events = ground.platform.kubectl(&asked).ok();
            let events: Value = serde_json::from_str(&events).ok()?;
            events["items"].as_array()?.first().cloned()
        })
    };
    let begun = event("GpuHot");
    assert_eq!([&begun["type"], &begun["message"]], ["Warning", message]);
    describe(&ground.description, "");
    assert_eq!(event("GpuHotEnded")["type"], "Normal");
}

#[test]
fn the_alerts_that_agents_judge_are_those_that_prometheus_is_given() {
    let text = std::fs::read_to_string(monitoring("rules.yaml")).unwrap();
    let rules: Value = serde_norway::from_str(&text).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    let seconds = |text: &Value| match text.as_str() {
        None => 0,
        Some(text) => text.strip_suffix('m').unwrap().parse::<u64>().unwrap() * 60,
    };
    let given = rules.iter().map(|rule| {
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        (
            word(&rule["alert"]),
            word(&rule["expr"]),
            seconds(&rule["for"]),
            word(&rule["labels"]["severity"]),
        )
    });
    let judged = AlertRule::ALL.map(|rule| {
        let severity = if rule.warns() { "warning" } else { "info" };
        (
            rule.name().to_owned(),
            rule.promql(),
            rule.hold().as_secs(),
            severity.to_owned(),
        )
    });
    assert_eq!(given.collect::<Vec<_>>(), judged);
}

#[test]
fn gpus_are_named_after_their_pods_and_of_a_shared_one_each_process_is() {
    let ground = Ground::start();
    let half = ", annotations: {muster.io/gpu-fraction: \"0.5\"}";
    let left = ground.pod("left", half, 0);
    let right = ground.pod("right", half, 0);
    ground.pod("whole", "", 2);
    let page = ground.page();
    let held: Vec<&str> = lines(&page, "muster_gpu_holders");
    let counts: Vec<&str> = held
        .iter()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    let shared = counts
        .iter()
        .position(|count| *count == "2")
        .expect("a GPU that two have");
    assert_eq!(
        counts.iter().filter(|count| **count == "1").count(),
        2,
        "{counts:?}"
    );
    let whole: Vec<&str> = (lines(&page, "DCGM_FI_DEV_FB_FREE").into_iter())
        .filter(|line| line.contains("container=\"main\",namespace=\"default\",pod=\"whole\""))
        .collect();
    assert_eq!(whole.len(), 2, "{page}");

    // The driver reports process ids; the agent finds the pods by these.
    describe(
        &ground.description,
        &format!(
            "[[state]]\ngpu = {shared}\nutilisation = 90\nprocesses = [\
             {{ pid = {left}, memory_mib = 1024, utilisation = 60 }}, \
             {{ pid = {right}, memory_mib = 2048, utilisation = 30 }}, \
             {{ pid = {}, memory_mib = 1, utilisation = 0 }}]\n",
            std::process::id()
        ),
    );
    let page = eventually("processes are told apart", SOON, || {
        let page = ground.page();
        (lines(&page, "muster_gpu_process_memory_bytes").len() == 3).then_some(page)
    });
    for (pod, bytes, share) in [
        ("left", "1073741824", "0.6"),
        ("right", "2147483648", "0.3"),
    ] {
        for (metric, value) in [
            ("muster_gpu_process_memory_bytes", bytes),
            ("muster_gpu_process_utilization_ratio", share),
        ] {
            let of_it: Vec<&str> = (lines(&page, metric).into_iter())
                .filter(|line| line.contains(&format!("pod=\"{pod}\"")))
                .collect();
            assert_eq!(of_it.len(), 1, "{page}");
            assert!(of_it[0].ends_with(&format!(" {value}")), "{}", of_it[0]);
        }
    }
    let busy = format!("DCGM_FI_DEV_GPU_UTIL{{gpu=\"{shared}\"");
    let busy: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with(&busy))
        .collect();
    assert!(busy.len() == 1 && !busy[0].contains("pod="), "{busy:?}");

    // A pod that has ended has no GPU any more.
    ground.platform.cli(&["delete", "pod", "whole"]).ok();
    eventually("its GPUs are nobody's", SOON, || {
        (!ground.page().contains("pod=\"whole\"")).then_some(())
    });
}

#[test]
fn the_node_bears_feature_discoverys_labels_and_those_of_a_new_cut() {
    let ground = Ground::start();
    let label = |name: &str| {
        let node = ground.platform.get("node", "gpus");
        node["metadata"]["labels"][name].as_str().map(String::from)
    };
    for (name, value) in [
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("nvidia.com/gpu.count", "8"),
        ("nvidia.com/gpu.memory", "81559"),
        ("nvidia.com/gpu.family", "hopper"),
        ("nvidia.com/cuda.driver-version.full", "550.54.15"),
    ] {
        assert_eq!(label(name).as_deref(), Some(value), "{name}");
    }
    let count = "nvidia.com/mig-1g.10gb.count";
    describe(
        &ground.description,
        "[[state]]\ngpu = 0\nmig = [\"1g.10gb\", \"1g.10gb\"]\n",
    );
    eventually("the slices' labels come", SOON, || {
        (label(count)? == "2").then_some(())
    });
    assert_eq!(label("nvidia.com/gpu.count").as_deref(), Some("7"));
    describe(&ground.description, "");
    eventually("the slices' labels go", SOON, || {
        label(count).is_none().then_some(())
    });
    assert_eq!(label("nvidia.com/gpu.count").as_deref(), Some("8"));
}

#[test]
fn promtool_finds_nothing_wrong_but_what_dcgm_exporters_names_are() {
    let promtool = |arguments: &[&str]| {
        run(Command::new("promtool")
            .args(arguments)
            .current_dir(monitoring("")))
    };
    let checked = promtool(&["check", "rules", "rules.yaml"]).ok();
    assert!(checked.contains("5 rules found"), "{checked}");
    promtool(&["test", "rules", "rules_test.yaml"]).ok();
    let read = |file: &str| -> Value {
        serde_norway::from_str(&std::fs::read_to_string(monitoring(file)).unwrap()).unwrap()
    };
    assert_eq!(read("prometheusrule.yaml")["spec"], read("rules.yaml"));

    let ground = Ground::start();
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let page = ground.page();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(page.as_bytes())
        .unwrap();
    let said = check.wait_with_output().unwrap();
    let said = [said.stdout, said.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    // Names that begin with DCGM_FI_, and the label modelName, are exceptions.
    let odd: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("DCGM_FI_") && !line.contains("camelCase"))
        .collect();
    assert!(odd.is_empty(), "{odd:#?}");
    assert!(page.lines().count() > 100, "{page}");
}

#[test]
fn a_port_that_is_taken_ends_an_agent_that_was_told_to_use_it_and_no_other() {
    let ground = Ground::start();
    let refused = run(ground
        .platform
        .command(
            &muster(),
            &[
                "agent",
                "--server",
                "https://127.0.0.1:1",
                "--node-name",
                "late",
            ],
        )
        .args(["--metrics", &ground.address]));
    assert_ne!(refused.code, Some(0));
    for word in [
        "--metrics",
        &ground.address,
        "choose another address",
        "off",
    ] {
        assert!(refused.err.contains(word), "{}", refused.err);
    }
    let (status, _) = get(&ground.address, "/nothing").unwrap();
    assert_eq!(status, 404);
    // An unreadable description does not produce a page of zeros.
    std::fs::write(&ground.description, "[[gpu]]\nmodel = 7\n").unwrap();
    let why = eventually("the page is refused", SOON, || {
        let (status, why) = get(&ground.address, "/metrics").ok()?;
        (status == 503).then_some(why)
    });
    assert!(why.contains("machine.toml line 2"), "{why}");
}
