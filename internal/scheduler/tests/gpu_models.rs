//! Queues' amounts by GPU model: capability, guarantee, deserved, user limit of
//! `nvidia.com/gpu.MODEL`, for pods that name a model and for those that take any.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use resources::report::WaitReason;
use scheduler::{Event, Scheduler};
use serde_json::{Value, json};
use support::*;

const A100: &str = "nvidia.com/gpu.A100";
const H100: &str = "nvidia.com/gpu.H100";

fn machine(name: &str, product: &str, gpus: i64) -> Event {
    node_with(name, gpus, |node| {
        node["metadata"]["labels"]["nvidia.com/gpu.product"] = json!(product);
    })
}

/// A pod by itself that wants a model, or any.
fn wants(name: &str, queue: &str, model: &str, gpus: i64) -> Event {
    pod_with(name, None, gpus, |pod| {
        let notes = &mut pod["metadata"]["annotations"];
        notes["scheduling.volcano.sh/queue-name"] = json!(queue);
        if !model.is_empty() {
            notes["muster.io/gpu-model"] = json!(model);
        }
    })
}

fn queue(name: &str, spec: Value) -> Event {
    queue_with(name, |queue| {
        for (key, value) in spec.as_object().unwrap() {
            queue["spec"][key] = value.clone();
        }
    })
}

fn tell(events: impl IntoIterator<Item = Event>) -> Scheduler {
    let mut s = scheduler();
    events.into_iter().for_each(|event| s.apply(event));
    s
}

fn two_machines() -> [Event; 2] {
    [
        machine("a", "NVIDIA-A100-SXM4-40GB", 8),
        machine("h", "NVIDIA-H100-80GB-HBM3", 8),
    ]
}

fn on(plan: &scheduler::Plan, node: &str) -> usize {
    bound(plan).values().filter(|at| *at == node).count()
}

#[test]
fn a_queue_holds_no_more_of_a_model_than_it_may() {
    let mut s = tell(two_machines());
    s.apply(queue("q", json!({"capability": {A100: "3"}})));
    for i in 0..4 {
        s.apply(wants(&format!("p{i}"), "q", "A100", 1));
    }
    let plan = s.plan(now());
    assert_eq!(on(&plan, "a"), 3);
    let why = report(&plan, "p3");
    assert_eq!(why.verdict, WaitReason::QuotaExceeded);
    assert_eq!(
        why.binding,
        "queue q holds 3 of the 3 nvidia.com/gpu.A100 it may use, and 1 more are needed"
    );
    let view = s.view().queues["q"].clone();
    assert_eq!(view.allocated.get(A100), 3);
    assert_eq!(view.allocated.get("nvidia.com/gpu"), 3);
    assert_eq!(view.ceiling.get(A100), 3);
}

#[test]
fn who_takes_any_model_goes_where_the_queue_may() {
    let mut s = tell(two_machines());
    s.apply(queue("q", json!({"capability": {A100: "2", H100: "1"}})));
    for i in 0..4 {
        s.apply(wants(&format!("p{i}"), "q", "", 1));
    }
    let plan = s.plan(now());
    assert_eq!((on(&plan, "a"), on(&plan, "h")), (2, 1));
    let waits: Vec<_> = plan.reports.iter().map(|report| report.verdict).collect();
    assert_eq!(waits, [WaitReason::QuotaExceeded]);
    s.apply(queue("q", json!({"capability": {A100: "2", H100: "2"}})));
    assert_eq!(on(&s.plan(now()), "h"), 1);
}

#[test]
fn a_selector_or_an_affinity_names_a_model_too() {
    let product = "NVIDIA-H100-80GB-HBM3";
    let mut s = tell(two_machines());
    s.apply(queue("default", json!({"capability": {H100: "2"}})));
    s.apply(pod_with("selects", None, 1, |pod| {
        pod["spec"]["nodeSelector"] = json!({"nvidia.com/gpu.product": product});
    }));
    let affinity = |name: &str| {
        pod_with(name, None, 1, |pod| {
            let rule =
                json!({"key": "nvidia.com/gpu.product", "operator": "In", "values": [product]});
            pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                json!({"nodeSelectorTerms": [{"matchExpressions": [rule]}]});
        })
    };
    s.apply(affinity("b"));
    s.apply(affinity("c"));
    let plan = s.plan(now());
    assert_eq!(on(&plan, "h"), 2);
    assert_eq!(s.view().queues["default"].requested.get(H100), 3);
}

#[test]
fn a_gang_is_on_one_model_and_what_is_beyond_its_minimum_on_any() {
    let mut s = tell(two_machines());
    s.apply(queue("q", json!({"capability": {A100: "3", H100: "5"}})));
    gang_in(&mut s, "g", 4, 1, "q", 100);
    let plan = s.plan(now());
    assert_eq!((on(&plan, "a"), on(&plan, "h")), (0, 4));
    for i in 0..4 {
        s.apply(pod_gone(&format!("g-{i}")));
    }
    s.apply(Event::PodGroupGone("ns".into(), "g".into()));
    s.apply(group_with("e", 4, |group| {
        group["spec"]["queue"] = json!("q")
    }));
    for i in 0..9 {
        s.apply(pod(&format!("e-{i}"), "e", 1));
    }
    let mut placed: Vec<String> = Vec::new();
    for _ in 0..3 {
        placed.extend(bound(&s.plan(now())).into_values());
    }
    let count = |node: &str| placed.iter().filter(|at| *at == node).count();
    assert_eq!((count("a"), count("h")), (3, 5));
}

#[test]
fn a_gang_that_no_model_holds_whole_waits() {
    let mut s = tell(two_machines());
    s.apply(queue("q", json!({"capability": {A100: "3", H100: "5"}})));
    gang_in(&mut s, "g", 6, 1, "q", 100);
    let plan = s.plan(now());
    assert!(bound(&plan).is_empty());
    assert_eq!(report(&plan, "g").verdict, WaitReason::QuotaExceeded);
    s.apply(queue("q", json!({"capability": {A100: "3", H100: "6"}})));
    assert_eq!(on(&s.plan(now()), "h"), 6);
}

#[test]
fn what_is_guaranteed_of_a_model_is_left_for_its_queue() {
    let mut s = tell(two_machines());
    s.apply(queue(
        "owner",
        json!({"guarantee": {"resource": {H100: "6"}}}),
    ));
    s.apply(queue("other", json!({})));
    for i in 0..3 {
        s.apply(wants(&format!("h{i}"), "other", "H100", 1));
        s.apply(wants(&format!("x{i}"), "other", "", 3));
    }
    let plan = s.plan(now());
    assert_eq!(on(&plan, "h"), 2);
    assert_eq!(on(&plan, "a"), 2);
    s.apply(wants("own", "owner", "H100", 6));
    assert_eq!(bound(&s.plan(now()))["own"], "h");
}

#[test]
fn parts_of_gpus_count_by_model_as_parts() {
    let mut s = tell(two_machines());
    s.apply(queue(
        "default",
        json!({"capability": {A100: "1", H100: "500m"}}),
    ));
    for i in 0..4 {
        s.apply(pod_with(&format!("p{i}"), None, 0, |pod| {
            pod["metadata"]["annotations"]["muster.io/gpu-fraction"] = json!("0.5");
        }));
    }
    let plan = s.plan(now());
    assert_eq!((on(&plan, "a"), on(&plan, "h")), (2, 1));
}

#[test]
fn a_user_limit_may_be_of_a_model() {
    let mut s = tell(two_machines());
    s.apply(queue_with("q", |queue| {
        queue["metadata"]["annotations"] =
            json!({"muster.io/user-limit": json!({H100: "1"}).to_string()});
    }));
    for user in ["ann", "bob"] {
        for i in 0..2 {
            s.apply(pod_with(&format!("{user}-{i}"), None, 1, |pod| {
                let notes = &mut pod["metadata"]["annotations"];
                notes["scheduling.volcano.sh/queue-name"] = json!("q");
                notes["muster.io/gpu-model"] = json!("H100");
                notes["muster.io/user"] = json!(user);
            }));
        }
    }
    let plan = s.plan(now());
    let mut users: Vec<String> = bound(&plan)
        .into_keys()
        .map(|pod| pod[..3].to_owned())
        .collect();
    users.sort();
    assert_eq!(users, ["ann", "bob"]);
}

#[test]
fn what_a_queue_deserves_of_a_model_is_won_back() {
    let mut s = tell(two_machines());
    for name in ["own", "other"] {
        s.apply(queue(
            name,
            json!({"deserved": {H100: "4", A100: "4", "nvidia.com/gpu": "8"}}),
        ));
    }
    for i in 0..8 {
        s.apply(wants(&format!("p{i}"), "other", "H100", 1));
    }
    assert_eq!(on(&s.plan(now()), "h"), 8);
    for i in 0..8 {
        s.apply(pod_with(&format!("p{i}"), None, 1, |pod| {
            let notes = &mut pod["metadata"]["annotations"];
            notes["scheduling.volcano.sh/queue-name"] = json!("other");
            notes["muster.io/gpu-model"] = json!("H100");
            pod["spec"]["nodeName"] = json!("h");
            pod["status"] = json!({"phase": "Running"});
        }));
    }
    s.apply(wants("mine", "own", "H100", 3));
    let plan = s.plan(now());
    assert_eq!(plan.evictions.len(), 3, "{:?}", plan.reports);
    // Other models do not help who wants this one, and are nobody's loss.
    s.apply(wants("any", "own", "A100", 4));
    let plan = s.plan(now());
    assert_eq!(bound(&plan)["any"], "a");
    assert!(plan.evictions.is_empty());
}

#[test]
fn a_name_that_comes_up_late_counts_what_runs_already() {
    let running = |name: &str, node: &str| {
        pod_with(name, None, 2, |pod| {
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running"});
        })
    };
    let late = || queue("default", json!({"capability": {A100: "3"}}));
    let mut s = tell(two_machines());
    s.apply(running("x", "a"));
    s.apply(running("y", "h"));
    s.apply(wants("z", "default", "A100", 2));
    s.apply(late());
    let held = |s: &Scheduler| s.view().queues["default"].allocated.get(A100);
    assert_eq!(held(&s), 2);
    assert!(bound(&s.plan(now())).is_empty());
    // The machine turns out to be another one.
    s.apply(machine("a", "NVIDIA-H100-PCIe", 8));
    assert_eq!(held(&s), 0);
    s.apply(Event::NodeGone("a".into()));
    s.apply(two_machines()[0].clone());
    let fresh = tell([
        late(),
        wants("z", "default", "A100", 2),
        running("y", "h"),
        running("x", "a"),
    ]);
    let mut fresh = fresh;
    two_machines()
        .into_iter()
        .for_each(|event| fresh.apply(event));
    assert_eq!(s.view(), fresh.view());
}

#[test]
fn a_model_is_counted_under_every_name_that_it_goes_by() {
    let mut s = tell([
        machine("small", "NVIDIA-A100-SXM4-40GB", 4),
        machine("large", "NVIDIA-A100-SXM4-80GB", 4),
    ]);
    s.apply(queue(
        "default",
        json!({"capability": {A100: "5", "nvidia.com/gpu.A100-80GB": "2"}}),
    ));
    for i in 0..8 {
        s.apply(wants(&format!("p{i}"), "default", "A100", 1));
    }
    let plan = s.plan(now());
    assert!(on(&plan, "large") <= 2);
    assert_eq!(bound(&plan).len(), 5);
}

#[derive(Clone, Debug)]
enum Op {
    Machine(usize, usize, i64),
    Drop(usize),
    Queue(usize, Vec<Option<i64>>),
    Pod(usize, usize, usize, i64),
    Part(usize, usize, i64),
    Gone(usize),
    Plan,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..4_usize, 0..3_usize, 1..6_i64).prop_map(|(n, model, gpus)| Op::Machine(n, model, gpus)),
        1 => (0..4_usize).prop_map(Op::Drop),
        2 => (0..2_usize, prop::collection::vec(prop::option::of(0..6_i64), 3)).prop_map(|(q, caps)| Op::Queue(q, caps)),
        6 => (0..12_usize, 0..2_usize, 0..4_usize, 1..3_i64).prop_map(|(p, q, model, n)| Op::Pod(p, q, model, n)),
        2 => (0..12_usize, 0..2_usize, 1..10_i64).prop_map(|(p, q, tenths)| Op::Part(p, q, tenths * 100)),
        2 => (0..12_usize).prop_map(Op::Gone),
        3 => Just(Op::Plan),
    ]
}

const MODELS: [&str; 3] = ["A100", "H100", "L40S"];

struct Model {
    queue: usize,
    wants: Option<usize>,
    milli: i64,
    node: Option<(String, String)>,
}

#[derive(Default)]
struct World {
    machines: BTreeMap<usize, (usize, i64)>,
    caps: BTreeMap<usize, Vec<Option<i64>>>,
    pods: BTreeMap<usize, Model>,
    /// Models that some queue had an amount of.
    seen: BTreeSet<usize>,
}

impl World {
    fn pod(&self, at: usize) -> Event {
        let pod = &self.pods[&at];
        let whole = pod.milli % 1000 == 0;
        let gpus = if whole { pod.milli / 1000 } else { 0 };
        pod_with(&format!("p{at}"), None, gpus, |object| {
            let notes = &mut object["metadata"]["annotations"];
            notes["scheduling.volcano.sh/queue-name"] = json!(format!("q{}", pod.queue));
            if let Some(model) = pod.wants {
                notes["muster.io/gpu-model"] = json!(MODELS[model]);
            }
            if !whole {
                notes["muster.io/gpu-fraction"] = json!(format!("{}m", pod.milli));
            }
            if let Some((node, devices)) = &pod.node {
                notes["muster.io/devices"] = json!(devices);
                object["spec"]["nodeName"] = json!(node);
                object["status"] = json!({"phase": "Running"});
            }
        })
    }

    fn machine(&self, at: usize) -> Event {
        let (model, gpus) = self.machines[&at];
        machine(
            &format!("n{at}"),
            &format!("NVIDIA-{}-X", MODELS[model]),
            gpus,
        )
    }

    fn queue(&self, at: usize) -> Event {
        let caps = self.caps[&at].iter().enumerate();
        let caps: BTreeMap<String, String> = caps
            .filter_map(|(i, cap)| {
                Some((format!("nvidia.com/gpu.{}", MODELS[i]), (*cap)?.to_string()))
            })
            .collect();
        queue(
            &format!("q{at}"),
            json!({"capability": caps, "reclaimable": false}),
        )
    }

    /// Thousandths of a model that a queue holds.
    fn held(&self, queue: usize, model: usize) -> i64 {
        let pods = self.pods.values().filter(|pod| pod.queue == queue);
        pods.filter(|pod| {
            let node = pod
                .node
                .as_ref()
                .map(|(node, _)| node[1..].parse().unwrap());
            node.is_some_and(|at: usize| self.machines.get(&at).is_some_and(|m| m.0 == model))
        })
        .map(|pod| pod.milli)
        .sum()
    }

    /// What queues held of models beyond what they may before a plan stays: bounds may be lowered.
    fn check(&self, before: &BTreeMap<(usize, usize), i64>) -> Result<(), TestCaseError> {
        for (queue, caps) in &self.caps {
            for (model, cap) in caps.iter().enumerate() {
                let held = self.held(*queue, model);
                let Some(cap) = cap else { continue };
                let was = before.get(&(*queue, model)).copied().unwrap_or(0);
                prop_assert!(
                    held <= was.max(cap * 1000),
                    "q{} {} holds {}",
                    queue,
                    MODELS[model],
                    held
                );
            }
        }
        Ok(())
    }

    /// Does somebody wait although a node has whole GPUs for him and his queue may have them?
    fn nobody_waits_in_vain(&self) -> Result<(), TestCaseError> {
        for (name, pod) in self.pods.iter().filter(|(_, pod)| pod.node.is_none()) {
            let Some(caps) = self.caps.get(&pod.queue) else {
                continue;
            };
            for (at, (model, gpus)) in &self.machines {
                if pod.wants.is_some_and(|wants| wants != *model) {
                    continue;
                }
                let node = format!("n{at}");
                let here = self.pods.values();
                let used: i64 = here
                    .filter(|pod| pod.node.as_ref().is_some_and(|(on, _)| *on == node))
                    .map(|pod| (pod.milli + 999) / 1000)
                    .sum();
                let allowed = caps[*model]
                    .is_none_or(|cap| self.held(pod.queue, *model) + pod.milli <= cap * 1000);
                let room = gpus - used >= (pod.milli + 999) / 1000;
                prop_assert!(!(allowed && room), "p{} waits beside {}", name, node);
            }
        }
        Ok(())
    }
}

fn run(ops: &[Op]) -> Result<(), TestCaseError> {
    let mut world = World::default();
    let mut s = scheduler();
    for op in ops.iter().chain([&Op::Plan]) {
        match op {
            Op::Machine(at, model, gpus) => {
                world.machines.insert(*at, (*model, *gpus));
                s.apply(world.machine(*at));
            }
            Op::Drop(at) => {
                world.machines.remove(at);
                s.apply(Event::NodeGone(format!("n{at}")));
            }
            Op::Queue(at, caps) => {
                let said = caps.iter().enumerate().filter(|(_, cap)| cap.is_some());
                world.seen.extend(said.map(|(model, _)| model));
                world.caps.insert(*at, caps.clone());
                s.apply(world.queue(*at));
            }
            Op::Pod(at, queue, model, gpus) if !world.pods.contains_key(at) => {
                let wants = Some(*model).filter(|model| *model < 3);
                let milli = gpus * 1000;
                let pod = Model {
                    queue: *queue,
                    wants,
                    milli,
                    node: None,
                };
                world.pods.insert(*at, pod);
                s.apply(world.pod(*at));
            }
            Op::Part(at, queue, milli) if !world.pods.contains_key(at) => {
                let pod = Model {
                    queue: *queue,
                    wants: None,
                    milli: *milli,
                    node: None,
                };
                world.pods.insert(*at, pod);
                s.apply(world.pod(*at));
            }
            Op::Pod(..) | Op::Part(..) => {}
            Op::Gone(at) => {
                if world.pods.remove(at).is_some() {
                    s.apply(pod_gone(&format!("p{at}")));
                }
            }
            Op::Plan => {
                let mut before = BTreeMap::new();
                for queue in 0..2 {
                    for model in 0..3 {
                        before.insert((queue, model), world.held(queue, model));
                    }
                }
                let plan = s.plan(now());
                for bind in &plan.binds {
                    let at: usize = bind.pod.name[1..].parse().unwrap();
                    let devices = serde_json::to_string(&bind.devices).unwrap();
                    world.pods.get_mut(&at).unwrap().node = Some((bind.node.clone(), devices));
                    s.apply(world.pod(at));
                }
                world.check(&before)?;
                prop_assert!(plan.evictions.is_empty());
                world.nobody_waits_in_vain()?;
                let mut fresh = scheduler();
                // A name that came up once stays known.
                let names = world
                    .seen
                    .iter()
                    .map(|at| format!("nvidia.com/gpu.{}", MODELS[*at]));
                let names: BTreeMap<String, &str> = names.map(|name| (name, "1")).collect();
                fresh.apply(queue("past", json!({"capability": names})));
                fresh.apply(Event::QueueGone("past".into()));
                let pods = world.pods.keys().map(|at| world.pod(*at));
                let queues = world.caps.keys().map(|at| world.queue(*at));
                let machines = world.machines.keys().map(|at| world.machine(*at));
                pods.chain(queues)
                    .chain(machines)
                    .for_each(|event| fresh.apply(event));
                prop_assert_eq!(fresh.view().pods, s.view().pods);
                let queues = |s: &Scheduler| -> BTreeMap<String, _> {
                    let all = s.view().queues.into_iter();
                    all.map(|(name, q)| (name, (q.allocated, q.requested, q.gpu_milli)))
                        .collect()
                };
                prop_assert_eq!(queues(&fresh), queues(&s));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(200))]

    /// Machines come, go and turn out to be others; queues' amounts by model come up late and
    /// change. No queue gets more than it may, nobody waits beside what his queue may have, and
    /// the accounts are those of a scheduler that is told all at once.
    #[test]
    fn accounts_by_model_hold_whatever_happens(ops in prop::collection::vec(op(), 1..50)) {
        run(&ops)?;
    }
}
