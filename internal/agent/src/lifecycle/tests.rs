//! The lifecycle of pods by table and by property: a small runtime in memory does the machine's
//! actions, in simulated time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::machine::{Gates, PodLifecycle, ProbeVerdict, StartBlock, StopCause, WorkerAction};
use super::plan::PodPlan;
use super::record::{RunEnd, RunObservation};
use super::status::{Addresses, status};

/// A pod on a node in simulated time.
struct Stage {
    plan: PodPlan,
    machine: PodLifecycle,
    gates: Gates,
    now: Timestamp,
    /// The requested actions in short form: `+main/0`, `-main/0 30`.
    log: Vec<String>,
    wake: Option<Timestamp>,
}

fn container(name: &str) -> Value {
    json!({"name": name, "command": ["x"]})
}

fn end(code: i32, at: Timestamp) -> RunEnd {
    RunEnd {
        code,
        signal: None,
        reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
        message: String::new(),
        started_at: None,
        finished_at: at,
    }
}

impl Stage {
    fn new(spec: Value) -> Stage {
        let pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u"}, "spec": spec}))
        .unwrap();
        let mut stage = Stage {
            plan: PodPlan::of(&pod),
            machine: PodLifecycle::default(),
            gates: Gates::default(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            log: Vec::new(),
            wake: None,
        };
        stage.step();
        stage
    }

    fn step(&mut self) {
        let step = self.machine.step(&self.plan, &self.gates, self.now);
        self.wake = step.wake;
        for action in step.actions {
            self.log.push(match action {
                WorkerAction::Start { container, attempt } => format!("+{container}/{attempt}"),
                WorkerAction::Kill {
                    container,
                    attempt,
                    grace,
                    ..
                } => format!("-{container}/{attempt} {grace}"),
                WorkerAction::BackOff { container } => format!("~{container}"),
            });
        }
    }

    fn asked(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    fn later(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        self.step();
    }

    fn attempt(&self, container: &str) -> u32 {
        self.machine.containers[container].attempt
    }

    fn runs(&mut self, container: &str) {
        let since = self.now;
        let attempt = self.attempt(container);
        self.machine.observe(
            &self.plan,
            container,
            attempt,
            RunObservation::Running { since },
        );
        self.step();
    }

    fn ends(&mut self, container: &str, code: i32) {
        let attempt = self.attempt(container);
        let seen = RunObservation::Ended(end(code, self.now));
        self.machine.observe(&self.plan, container, attempt, seen);
        self.step();
    }

    fn probed(&mut self, container: &str, verdict: ProbeVerdict) {
        let attempt = self.attempt(container);
        self.machine.probed(container, attempt, verdict);
        self.step();
    }

    fn status(&self) -> Value {
        let addresses = Addresses {
            host: "10.0.0.1".to_owned(),
            pod: "10.0.0.1".to_owned(),
        };
        serde_json::to_value(status(
            &self.machine,
            &self.plan,
            &self.gates,
            &addresses,
            self.now,
        ))
        .unwrap()
    }

    fn phase(&self) -> String {
        self.status()["phase"].as_str().unwrap().to_owned()
    }

    fn condition(&self, kind: &str) -> Value {
        let status = self.status();
        let all = status["conditions"].as_array().unwrap();
        all.iter().find(|c| c["type"] == kind).unwrap().clone()
    }
}

fn simple(policy: &str) -> Stage {
    Stage::new(json!({"restartPolicy": policy, "containers": [container("main")]}))
}

#[test]
fn a_pod_runs_and_its_exit_code_and_policy_decide_its_phase() {
    for (policy, code, phase) in [
        ("Never", 0, "Succeeded"),
        ("Never", 3, "Failed"),
        ("OnFailure", 0, "Succeeded"),
        ("OnFailure", 3, "Running"),
        ("Always", 0, "Running"),
    ] {
        let mut stage = simple(policy);
        assert_eq!(stage.asked(), ["+main/0"]);
        assert_eq!(stage.phase(), "Pending");
        stage.runs("main");
        assert_eq!(stage.phase(), "Running");
        assert_eq!(stage.condition("Ready")["status"], "True");
        stage.ends("main", code);
        assert_eq!(stage.phase(), phase, "{policy} {code}");
        assert_eq!(stage.condition("Ready")["status"], "False");
    }
}

#[test]
fn a_container_that_the_node_cannot_start_fails_the_pod_and_ends_the_others() {
    for policy in ["Never", "OnFailure", "Always"] {
        let containers = [container("main"), container("other")];
        let mut stage = Stage::new(json!({"restartPolicy": policy, "containers": containers}));
        stage.runs("other");
        let mut unfit = end(128, stage.now);
        unfit.reason = "NodeUnfit".to_owned();
        unfit.message = "no mounts".to_owned();
        stage
            .machine
            .observe(&stage.plan, "main", 0, RunObservation::Ended(unfit));
        stage.asked();
        stage.step();
        assert_eq!(stage.asked(), ["-other/0 30"], "{policy}");
        stage.ends("other", 143);
        assert_eq!(stage.phase(), "Failed", "{policy}");
        let status = stage.status();
        assert_eq!(status["reason"], "NodeUnfit");
        assert!(status["message"].as_str().unwrap().contains("no mounts"));
        stage.later(1000);
        assert!(stage.asked().is_empty(), "nothing is started again");
    }
}

#[test]
fn restarts_wait_longer_each_time_and_begin_anew_after_ten_quiet_minutes() {
    let mut stage = simple("Always");
    let mut waits = Vec::new();
    for _ in 0..8 {
        stage.runs("main");
        stage.ends("main", 1);
        let waited = stage
            .wake
            .map_or(0, |wake| wake.duration_since(stage.now).as_secs());
        waits.push(waited);
        if waited > 0 {
            let state = stage.status()["containerStatuses"][0].clone();
            assert_eq!(state["state"]["waiting"]["reason"], "CrashLoopBackOff");
            assert_eq!(state["lastState"]["terminated"]["exitCode"], 1);
            stage.later(waited);
        }
    }
    assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(stage.attempt("main"), 8);
    assert_eq!(stage.status()["containerStatuses"][0]["restartCount"], 8);
    stage.runs("main");
    stage.later(601);
    stage.ends("main", 1);
    assert_eq!(stage.attempt("main"), 9, "restarted at once");
}

#[test]
fn the_back_off_is_worded_as_kubernetes_does() {
    let mut stage = simple("Always");
    stage.ends("main", 1);
    stage.ends("main", 1);
    assert_eq!(
        stage.status()["containerStatuses"][0]["state"]["waiting"]["message"],
        "back-off 10s restarting failed container=main pod=p_ns(u)"
    );
    assert_eq!(stage.asked(), ["+main/0", "+main/1", "~main"]);
}

#[test]
fn init_containers_run_in_order_and_the_others_wait_for_them() {
    let mut stage = Stage::new(json!({
        "restartPolicy": "OnFailure",
        "initContainers": [container("one"), container("two")],
        "containers": [container("main")],
    }));
    assert_eq!(stage.asked(), ["+one/0"]);
    stage.runs("one");
    assert_eq!(
        stage.condition("Initialized")["message"],
        "containers with incomplete status: [one two]"
    );
    stage.ends("one", 0);
    assert_eq!(stage.asked(), ["+two/0"]);
    stage.ends("two", 1);
    assert_eq!(stage.asked(), ["+two/1"]);
    stage.ends("two", 0);
    assert_eq!(stage.asked(), ["+main/0"]);
    assert_eq!(stage.condition("Initialized")["status"], "True");
    let status = stage.status();
    assert_eq!(status["initContainerStatuses"][0]["ready"], true);
}

#[test]
fn an_init_container_that_fails_for_good_fails_the_pod() {
    let mut stage = Stage::new(json!({
        "restartPolicy": "Never",
        "initContainers": [container("one")],
        "containers": [container("main")],
    }));
    stage.ends("one", 1);
    assert_eq!(stage.phase(), "Failed");
    assert_eq!(stage.asked(), ["+one/0"]);
    assert!(stage.machine.is_over());
}

#[test]
fn a_sidecar_runs_beside_the_others_and_is_ended_after_them() {
    let mut sidecar = container("proxy");
    sidecar["restartPolicy"] = json!("Always");
    let mut stage = Stage::new(json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 7,
        "initContainers": [sidecar, container("setup")],
        "containers": [container("main")],
    }));
    assert_eq!(stage.asked(), ["+proxy/0"]);
    stage.runs("proxy");
    stage.ends("setup", 0);
    assert_eq!(stage.asked(), ["+setup/0", "+main/0"]);
    stage.runs("main");
    stage.ends("proxy", 1);
    assert_eq!(stage.asked(), ["+proxy/1"]);
    stage.runs("proxy");
    stage.ends("main", 0);
    assert_eq!(stage.asked(), ["-proxy/1 7"]);
    assert_eq!(stage.phase(), "Running");
    stage.ends("proxy", 143);
    assert_eq!(stage.phase(), "Succeeded");
    assert!(stage.asked().is_empty());
}

#[test]
fn a_stop_ends_what_runs_and_starts_nothing_more() {
    let mut stage = simple("Always");
    stage.runs("main");
    stage.asked();
    stage.machine.stop(30, "deleted", stage.now);
    stage.step();
    assert_eq!(stage.asked(), ["-main/0 30"]);
    stage.step();
    assert!(stage.asked().is_empty());
    stage.machine.stop(1, "deleted", stage.now);
    stage.step();
    assert_eq!(stage.asked(), ["-main/0 1"]);
    stage.ends("main", 143);
    assert!(stage.asked().is_empty());
    assert!(stage.machine.is_over());
    assert_eq!(stage.phase(), "Failed");
}

#[test]
fn an_evicted_pod_fails_at_once_with_the_reason_under_any_restart_policy() {
    for (by_node, conditions) in [(false, 4), (true, 5)] {
        let mut stage = simple("Always");
        stage.runs("main");
        stage.asked();
        assert!(stage.machine.evict("too much. ", by_node, stage.now));
        assert!(!stage.machine.evict("again", by_node, stage.now));
        stage.step();
        assert_eq!(stage.asked(), ["-main/0 1"]);
        stage.ends("main", 137);
        assert!(stage.machine.is_over() && stage.asked().is_empty());
        let now = status(
            &stage.machine,
            &stage.plan,
            &stage.gates,
            &Addresses::default(),
            stage.now,
        );
        assert_eq!(now.phase.as_deref(), Some("Failed"));
        assert_eq!(now.reason.as_deref(), Some("Evicted"));
        assert_eq!(now.message.as_deref(), Some("too much. "));
        assert_eq!(now.conditions.map(|all| all.len()), Some(conditions));
    }
    // A deleted pod ends sooner, and with the requested reason.
    let mut stage = simple("Always");
    stage.runs("main");
    stage.asked();
    stage.machine.stop(30, "deleted", stage.now);
    assert!(!stage.machine.evict("too much. ", true, stage.now));
    stage.step();
    assert_eq!(stage.asked(), ["-main/0 1"]);
}

#[test]
fn a_stop_before_anything_began_ends_the_pod_at_once() {
    let mut stage = simple("Always");
    stage.machine = PodLifecycle::default();
    stage.gates.pod = Some(StartBlock {
        reason: "ContainerCreating".to_owned(),
        message: "later".to_owned(),
    });
    stage.asked();
    stage.step();
    assert!(stage.asked().is_empty());
    stage.machine.stop(30, "deleted", stage.now);
    stage.step();
    assert!(stage.machine.is_over());
}

#[test]
fn a_stop_ends_the_containers_first_and_then_the_sidecars_in_reverse() {
    let sidecar = |name| {
        let mut sidecar = container(name);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let mut stage = Stage::new(json!({
        "initContainers": [sidecar("a"), sidecar("b")],
        "containers": [container("main")],
    }));
    for name in ["a", "b", "main"] {
        stage.runs(name);
    }
    stage.asked();
    stage.machine.stop(30, "deleted", stage.now);
    stage.step();
    assert_eq!(stage.asked(), ["-main/0 30"]);
    stage.now += SignedDuration::from_secs(10);
    stage.ends("main", 0);
    assert_eq!(stage.asked(), ["-b/0 20"]);
    stage.later(1);
    assert!(stage.asked().is_empty());
    stage.ends("b", 0);
    assert_eq!(stage.asked(), ["-a/0 19"]);
    stage.ends("a", 0);
    assert!(stage.machine.is_over());
}

#[test]
fn a_deadline_fails_the_pod_with_its_reason() {
    let mut stage = Stage::new(json!({
        "activeDeadlineSeconds": 60,
        "containers": [container("main")],
    }));
    stage.runs("main");
    assert!(stage.wake.is_some());
    stage.asked();
    stage.later(60);
    assert_eq!(stage.asked(), ["-main/0 30"]);
    stage.ends("main", 143);
    assert_eq!(stage.phase(), "Failed");
    assert_eq!(stage.status()["reason"], "DeadlineExceeded");
}

#[test]
fn probes_decide_about_started_ready_and_the_container_itself() {
    let mut probed = container("main");
    probed["startupProbe"] = json!({"exec": {"command": ["x"]}});
    probed["readinessProbe"] = json!({"exec": {"command": ["x"]}});
    probed["livenessProbe"] =
        json!({"exec": {"command": ["x"]}, "terminationGracePeriodSeconds": 4});
    let mut stage = Stage::new(json!({"containers": [probed]}));
    stage.runs("main");
    let of = |stage: &Stage| {
        let status = stage.status()["containerStatuses"][0].clone();
        (status["started"].clone(), status["ready"].clone())
    };
    assert_eq!(of(&stage), (json!(false), json!(false)));
    stage.probed("main", ProbeVerdict::Ready(true));
    assert_eq!(
        of(&stage),
        (json!(false), json!(false)),
        "not before it has started"
    );
    stage.probed("main", ProbeVerdict::Started);
    assert_eq!(of(&stage), (json!(true), json!(false)));
    stage.probed("main", ProbeVerdict::Ready(true));
    assert_eq!(of(&stage), (json!(true), json!(true)));
    stage.asked();
    stage.probed(
        "main",
        ProbeVerdict::Condemned("Liveness probe failed".to_owned()),
    );
    assert_eq!(stage.asked(), ["-main/0 4"]);
    stage.ends("main", 137);
    assert_eq!(stage.asked(), ["+main/1"]);
}

#[test]
fn a_startup_probe_alone_makes_its_container_ready() {
    let mut probed = container("main");
    probed["startupProbe"] = json!({"exec": {"command": ["x"]}});
    let mut stage = Stage::new(json!({"containers": [probed]}));
    stage.runs("main");
    assert_eq!(stage.condition("Ready")["status"], "False");
    stage.probed("main", ProbeVerdict::Started);
    assert_eq!(stage.condition("Ready")["status"], "True");
}

#[test]
fn a_held_container_waits_with_its_reason_and_starts_when_let_go() {
    let mut stage = simple("Never");
    stage.machine = PodLifecycle::default();
    stage.asked();
    stage.gates.containers.insert(
        "main".to_owned(),
        StartBlock {
            reason: "CreateContainerConfigError".to_owned(),
            message: "configmap \"c\" not found".to_owned(),
        },
    );
    stage.step();
    let waiting = stage.status()["containerStatuses"][0]["state"]["waiting"].clone();
    assert_eq!(waiting["reason"], "CreateContainerConfigError");
    assert_eq!(waiting["message"], "configmap \"c\" not found");
    stage.gates = Gates::default();
    stage.step();
    assert_eq!(stage.asked(), ["+main/0"]);
}

#[test]
fn a_run_lost_by_the_runtime_ended_unobserved_or_never_started() {
    let mut stage = simple("Never");
    stage.asked();
    stage.machine.mark_unobserved("main", stage.now);
    stage.step();
    assert_eq!(stage.asked(), ["+main/0"], "it was only asked for");
    stage.runs("main");
    stage.machine.mark_unobserved("main", stage.now);
    stage.step();
    let state = stage.status()["containerStatuses"][0]["state"].clone();
    assert_eq!(state["terminated"]["exitCode"], 137);
    assert_eq!(state["terminated"]["reason"], "ContainerStatusUnknown");
    assert_eq!(stage.phase(), "Failed");
}

#[test]
fn news_of_an_earlier_run_is_no_news() {
    let mut stage = simple("Always");
    stage.ends("main", 1);
    let now = stage.now;
    assert!(!stage.machine.observe(
        &stage.plan,
        "main",
        0,
        RunObservation::Running { since: now }
    ));
    assert_eq!(stage.attempt("main"), 1);
    assert!(stage.machine.containers["main"].is_alive());
}

#[test]
fn the_state_survives_its_json() {
    let mut stage = simple("Always");
    stage.runs("main");
    stage.ends("main", 1);
    stage.ends("main", 1);
    let text = serde_json::to_string(&stage.machine).unwrap();
    assert_eq!(
        serde_json::from_str::<PodLifecycle>(&text).unwrap(),
        stage.machine
    );
}

#[test]
fn a_cause_is_kept_on_disk_by_the_name_that_earlier_agents_gave_it() {
    let cause = StopCause::NodeFault {
        message: "no mounts".to_owned(),
    };
    let kept = json!({"unfit": {"message": "no mounts"}});
    assert_eq!(serde_json::to_value(&cause).unwrap(), kept);
    assert_eq!(serde_json::from_value::<StopCause>(kept).unwrap(), cause);
}

#[derive(Clone, Debug)]
enum Doing {
    Runs(usize),
    Ends(usize, i32),
    Later(i64),
    Condemn(usize),
    Stop(u32),
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        (0..3_usize).prop_map(Doing::Runs),
        (0..3_usize, prop_oneof![Just(0), Just(1), Just(137)]).prop_map(|(c, e)| Doing::Ends(c, e)),
        (1..400_i64).prop_map(Doing::Later),
        (0..3_usize).prop_map(Doing::Condemn),
        (0..40_u32).prop_map(Doing::Stop),
    ]
}

proptest! {
    /// For any sequence of events: no run starts while one of the same container is alive, nothing
    /// starts after a stop or a result, a step without new observations does nothing, and a pod
    /// that is stopped and whose containers end is over.
    #[test]
    fn no_container_runs_twice_and_a_stopped_pod_ends(
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        doings in prop::collection::vec(doing(), 0..60),
    ) {
        let mut sidecar = container("side");
        sidecar["restartPolicy"] = json!("Always");
        let mut stage = Stage::new(json!({
            "restartPolicy": policy,
            "initContainers": [sidecar, container("setup")],
            "containers": [container("main")],
        }));
        let names = ["side", "setup", "main"];
        let mut alive: BTreeMap<String, bool> = BTreeMap::new();
        let mut stopped = false;
        let note = |stage: &mut Stage, alive: &mut BTreeMap<String, bool>, stopped: bool| {
            for asked in stage.asked() {
                if let Some(started) = asked.strip_prefix('+') {
                    let name = started.split('/').next().unwrap().to_owned();
                    prop_assert!(!stopped, "{} after the stop", started);
                    let before = alive.insert(name, true);
                    prop_assert!(before != Some(true), "{} while it was alive", started);
                }
            }
            Ok(())
        };
        note(&mut stage, &mut alive, stopped)?;
        for doing in doings {
            match doing {
                Doing::Runs(c) if stage.machine.containers[names[c]].is_alive() => stage.runs(names[c]),
                Doing::Ends(c, code) if stage.machine.containers[names[c]].is_alive() => {
                    alive.insert(names[c].to_owned(), false);
                    stage.ends(names[c], code);
                }
                Doing::Later(seconds) => stage.later(seconds),
                Doing::Condemn(c) => stage.probed(names[c], ProbeVerdict::Condemned("x".to_owned())),
                Doing::Stop(grace) => {
                    stopped = true;
                    stage.machine.stop(grace, "x", stage.now);
                    // A requested kill was done by its requester; the runs end below.
                    stage.step();
                }
                _ => continue,
            }
            note(&mut stage, &mut alive, stopped)?;
            stage.step();
            prop_assert!(stage.asked().is_empty(), "a step without news asked for something");
        }
        stage.machine.stop(0, "end", stage.now);
        stage.step();
        for _ in 0..4 {
            for name in names {
                if stage.machine.containers[name].is_alive() {
                    stage.ends(name, 137);
                }
            }
        }
        prop_assert!(stage.machine.is_over());
    }
}

#[test]
fn a_run_without_its_image_is_retried_under_any_restart_policy() {
    let mut stage = Stage::new(json!({"restartPolicy": "Never", "containers": [container("a")]}));
    assert_eq!(stage.asked(), ["+a/0"]);
    let why = StartBlock {
        reason: "ErrImagePull".to_owned(),
        message: "no registry".to_owned(),
    };
    let waiting = |stage: &Stage| {
        let now = status(
            &stage.machine,
            &stage.plan,
            &stage.gates,
            &Addresses::default(),
            stage.now,
        );
        let state = now.container_statuses.unwrap().remove(0).state.unwrap();
        (now.phase.unwrap(), state.waiting.and_then(|w| w.reason))
    };
    let pulling = ("Pending".to_owned(), Some("ErrImagePull".to_owned()));
    for wait in [10, 20, 40, 80, 160, 300, 300] {
        let at = stage.now;
        assert!(stage.machine.not_made("a", 0, why.clone(), at));
        assert!(!stage.machine.not_made("a", 0, why.clone(), at));
        stage.step();
        assert_eq!(stage.asked(), Vec::<String>::new());
        assert_eq!(stage.wake, Some(at + SignedDuration::from_secs(wait)));
        assert_eq!(waiting(&stage), pulling);
        stage.now = at + SignedDuration::from_secs(wait);
        stage.step();
        assert_eq!(stage.asked(), ["+a/0"]);
        assert_eq!(waiting(&stage), pulling);
    }
    let since = stage.now;
    stage
        .machine
        .observe(&stage.plan, "a", 0, RunObservation::Running { since });
    assert_eq!(waiting(&stage), ("Running".to_owned(), None));
}

#[test]
fn a_run_that_waits_for_its_image_ends_at_once_when_it_is_told_to() {
    let mut stage = Stage::new(json!({"restartPolicy": "Always", "containers": [container("a")]}));
    let why = StartBlock {
        reason: "ErrImagePull".to_owned(),
        message: "no registry".to_owned(),
    };
    stage.machine.not_made("a", 0, why, stage.now);
    stage.machine.stop(30, "deleted", stage.now);
    stage.step();
    assert!(stage.machine.is_over());
}
