//! Placement by the room that is left for future pods, as the whole scheduler does it by default:
//! where a pod goes, once something is known of future pods, and that the choice follows from the
//! state alone.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use scheduler::{Actions, Config, Event, Plan, Scheduler};
use serde_json::json;
use support::*;

/// What a pod asks for: thousandths of a GPU, or whole ones, and of which model.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asks {
    milli: i64,
    cpus: i64,
    model: Option<&'static str>,
}

const PLAIN: Asks = Asks {
    milli: 1000,
    cpus: 1,
    model: None,
};

const RARE: Asks = Asks {
    model: Some("rare"),
    ..PLAIN
};

fn asking(name: &str, asks: Asks) -> Pod {
    let whole = if asks.milli < 1000 {
        0
    } else {
        asks.milli / 1000
    };
    pod_object(name, None, whole, |pod| {
        if asks.milli < 1000 {
            let part = format!("0.{:03}", asks.milli);
            pod["metadata"]["annotations"]["muster.io/gpu-fraction"] = json!(part);
        }
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(asks.cpus.to_string());
        if let Some(model) = asks.model {
            pod["spec"]["nodeSelector"] = json!({"nvidia.com/gpu.product": model});
        }
    })
}

fn arrives(name: &str, asks: Asks) -> Event {
    Event::PodChanged(Box::new(asking(name, asks)))
}

fn node_of(name: &str, gpus: usize, model: &str) -> Event {
    let Event::NodeChanged(mut node) = described(name, gpus, |_| true) else {
        unreachable!()
    };
    let labels = node.metadata.labels.as_mut().unwrap();
    labels.insert("nvidia.com/gpu.product".into(), model.into());
    Event::NodeChanged(node)
}

fn expecting(expected: &[(Asks, u64)]) -> Scheduler {
    let pods = expected.iter().map(|(asks, n)| (asking("", *asks), *n));
    Scheduler::new(Config {
        expected: pods.collect(),
        ..Config::default()
    })
}

/// One node of a model that some pods must have, and three of another, roomier each.
fn rare_and_plain(s: &mut Scheduler) {
    s.apply(node_of("a-rare", 1, "rare"));
    for name in ["b", "c", "d"] {
        s.apply(node_of(name, 4, "plain"));
    }
}

/// Pods that are known and hold nothing here.
fn known(s: &mut Scheduler, count: usize, asks: Asks) {
    for i in 0..count {
        let mut pod = asking(&format!("old-{i}"), asks);
        pod.metadata.creation_timestamp =
            serde_json::from_value(json!("2025-01-01T00:00:00Z")).unwrap();
        pod.spec.as_mut().unwrap().node_name = Some("elsewhere".into());
        pod.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
        s.apply(Event::PodChanged(Box::new(pod)));
    }
}

#[test]
fn a_pod_for_any_gpu_leaves_the_model_that_expected_pods_need() {
    let mut s = expecting(&[(RARE, 1), (PLAIN, 1)]);
    rare_and_plain(&mut s);
    s.apply(arrives("p", PLAIN));
    assert_ne!(bound(&s.plan(now()))["p"], "a-rare");
    s.apply(arrives("q", RARE));
    assert_eq!(bound(&s.plan(now()))["q"], "a-rare");
}

#[test]
fn known_pods_predict_the_mix_once_there_are_fifty() {
    // One pod besides the known ones is the pod to place.
    for (count, packs) in [(48, true), (49, false)] {
        let mut s = scheduler();
        rare_and_plain(&mut s);
        known(&mut s, count, RARE);
        s.apply(arrives("p", PLAIN));
        let place = bound(&s.plan(now()))["p"].clone();
        assert_eq!(place == "a-rare", packs, "{count} are known: {place}");
    }
}

#[test]
fn a_pod_without_gpus_leaves_a_large_node_whole_for_pods_that_were_never_seen() {
    let mut s = scheduler();
    s.apply(node_of("a-whole", 8, "plain"));
    s.apply(node_of("begun", 8, "plain"));
    let mut begins = asking("x", PLAIN);
    begins.spec.as_mut().unwrap().node_name = Some("begun".into());
    begins.status = serde_json::from_value(json!({"phase": "Running"})).unwrap();
    s.apply(Event::PodChanged(Box::new(begins)));
    known(&mut s, 60, PLAIN);
    s.apply(Event::PodChanged(Box::new(pod_object(
        "p",
        None,
        0,
        |pod| {
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("8");
        },
    ))));
    assert_eq!(bound(&s.plan(now()))["p"], "begun");
}

#[test]
fn packing_can_still_be_configured() {
    let pods = [(asking("", RARE), 1), (asking("", PLAIN), 1)];
    let mut s = Scheduler::new(Config {
        expected: pods.to_vec(),
        placement: scheduler::PlacementStrategy::Pack,
        ..Config::default()
    });
    rare_and_plain(&mut s);
    s.apply(arrives("p", PLAIN));
    assert_eq!(bound(&s.plan(now()))["p"], "a-rare");
}

#[test]
fn a_share_goes_to_the_gpu_that_it_completes() {
    let share = |milli| Asks { milli, ..PLAIN };
    // 300 and 700 fill a GPU; on the fullest GPU 300 would leave 100 that no pod can use.
    let mut s = expecting(&[(share(300), 3), (share(700), 3)]);
    s.apply(node_of("n", 2, "plain"));
    for (name, milli, gpu) in [("x", 600, "n-0"), ("y", 700, "n-1")] {
        let mut pod = asking(name, share(milli));
        let devices = json!({"main": {"nvidia.com/gpu": [gpu]}}).to_string();
        let notes = pod.metadata.annotations.as_mut().unwrap();
        notes.insert("muster.io/devices".into(), devices);
        pod.spec.as_mut().unwrap().node_name = Some("n".into());
        s.apply(Event::PodChanged(Box::new(pod)));
    }
    s.apply(arrives("p", share(300)));
    let plan = s.plan(now());
    let ids: Vec<&String> = plan.binds[0]
        .devices
        .values()
        .flat_map(|by| by.values())
        .flatten()
        .collect();
    assert_eq!(ids, ["n-1"]);
}

#[test]
fn a_gang_that_fits_one_node_goes_to_the_node_with_the_best_remaining_room() {
    let two = |model| Asks {
        milli: 2000,
        model,
        ..PLAIN
    };
    let mut s = expecting(&[(two(Some("rare")), 1), (PLAIN, 1)]);
    s.apply(node_of("a-rare", 2, "rare"));
    s.apply(node_of("b", 4, "plain"));
    s.apply(node_of("c", 8, "plain"));
    gang(&mut s, "g", 2, 1);
    let plan = s.plan(now());
    let nodes = nodes_used(&plan, "g-");
    assert_eq!(nodes.len(), 1);
    assert_ne!(nodes, ["a-rare"]);
}

#[test]
fn a_trial_chooses_the_node_that_the_plan_would_choose() {
    let mut s = expecting(&[(RARE, 1), (PLAIN, 1)]);
    rare_and_plain(&mut s);
    let trial = s.what_if().would_place(None, &[asking("p", PLAIN)], now());
    s.apply(arrives("p", PLAIN));
    assert_eq!(trial.binds[0].node, bound(&s.plan(now()))["p"]);
}

/// A node and the GPUs of it.
type Seat = (String, Vec<String>);

/// The world as objects: nodes by name, pods by name with where they are.
#[derive(Clone, Debug, Default)]
struct World {
    nodes: BTreeMap<String, (usize, &'static str, bool)>,
    pods: BTreeMap<String, (Asks, Option<Seat>)>,
    births: usize,
}

#[derive(Clone, Debug)]
enum Op {
    Node(u8, usize, bool, bool),
    DropNode(u8),
    Pod(Asks),
    DropPod(usize),
    Plan,
}

fn asks() -> impl Strategy<Value = Asks> {
    let milli = prop_oneof![
        Just(0),
        prop_oneof![Just(300), Just(400), Just(700)],
        Just(1000),
        Just(2000),
        Just(4000)
    ];
    let model = prop_oneof![4 => Just(None), 1 => Just(Some("rare"))];
    (milli, 1..9i64, model).prop_map(|(milli, cpus, model)| Asks { milli, cpus, model })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..6u8, 1..9usize, any::<bool>(), proptest::bool::weighted(0.1))
            .prop_map(|(name, gpus, rare, cordoned)| Op::Node(name, gpus, rare, cordoned)),
        1 => (0..6u8).prop_map(Op::DropNode),
        9 => asks().prop_map(Op::Pod),
        3 => (0..60usize).prop_map(Op::DropPod),
        4 => Just(Op::Plan),
    ]
}

impl World {
    fn node_event(&self, name: &str) -> Event {
        let (gpus, model, cordoned) = self.nodes[name];
        let Event::NodeChanged(mut node) = node_of(name, gpus, model) else {
            unreachable!()
        };
        node.spec.as_mut().unwrap().unschedulable = Some(cordoned);
        Event::NodeChanged(node)
    }

    fn pod_event(&self, name: &str) -> Event {
        let (asks, place) = &self.pods[name];
        let mut pod = asking(name, *asks);
        if let Some((node, ids)) = place {
            pod.spec.as_mut().unwrap().node_name = Some(node.clone());
            if !ids.is_empty() {
                let devices = json!({"main": {"nvidia.com/gpu": ids}}).to_string();
                let notes = pod.metadata.annotations.as_mut().unwrap();
                notes.insert("muster.io/devices".into(), devices);
            }
        }
        Event::PodChanged(Box::new(pod))
    }

    fn act(&mut self, op: &Op) -> Vec<Event> {
        match op {
            Op::Node(name, gpus, rare, cordoned) => {
                let model = if *rare { "rare" } else { "plain" };
                self.nodes
                    .insert(format!("n{name}"), (*gpus, model, *cordoned));
                vec![self.node_event(&format!("n{name}"))]
            }
            Op::DropNode(name) => {
                self.nodes.remove(&format!("n{name}"));
                vec![Event::NodeGone(format!("n{name}"))]
            }
            Op::Pod(asks) => {
                self.births += 1;
                let name = format!("p{:03}", self.births);
                self.pods.insert(name.clone(), (*asks, None));
                vec![self.pod_event(&name)]
            }
            Op::DropPod(nth) => {
                let name = self.pods.keys().nth(nth % self.pods.len().max(1)).cloned();
                let Some(name) = name else { return Vec::new() };
                self.pods.remove(&name);
                vec![pod_gone(&name)]
            }
            Op::Plan => Vec::new(),
        }
    }

    fn bind(&mut self, plan: &Plan) -> Vec<Event> {
        for bind in &plan.binds {
            let lists = bind.devices.values().flat_map(|by| by.values());
            let ids = lists.flatten().cloned().collect();
            self.pods.get_mut(&bind.pod.name).unwrap().1 = Some((bind.node.clone(), ids));
        }
        let names = plan.binds.iter().map(|bind| &bind.pod.name);
        names.map(|name| self.pod_event(name)).collect()
    }

    fn every_event(&self) -> Vec<Event> {
        let nodes = self.nodes.keys().map(|name| self.node_event(name));
        let pods = self.pods.keys().map(|name| self.pod_event(name));
        nodes.chain(pods).collect()
    }
}

/// A scheduler that evicts no gang, with a declared mix or with the mix of the known pods.
fn of(declared: bool) -> Scheduler {
    let share = |milli| Asks { milli, ..PLAIN };
    let mix = [
        (RARE, 2),
        (share(300), 5),
        (share(700), 5),
        (share(4000), 1),
    ];
    let pods = mix.iter().map(|(asks, n)| (asking("", *asks), *n));
    Scheduler::new(Config {
        actions: Actions {
            preempt: false,
            reclaim: false,
            ..Actions::default()
        },
        expected: if declared { pods.collect() } else { Vec::new() },
        ..Config::default()
    })
}

fn run(ops: &[Op], declared: bool, seed: u64) -> Result<(), TestCaseError> {
    let mut world = World::default();
    let mut s = of(declared);
    for op in ops.iter().chain([&Op::Plan]) {
        for event in world.act(op) {
            s.apply(event);
        }
        if !matches!(op, Op::Plan) {
            continue;
        }
        let mut rebuilt = of(declared);
        for event in shuffled(world.every_event(), seed) {
            rebuilt.apply(event);
        }
        // A pod that arrives and leaves at once leaves no trace, but makes both plans consider
        // everything again.
        for s in [&mut s, &mut rebuilt] {
            s.apply(queue_with("nudge", |_| {}));
            s.apply(Event::QueueGone("nudge".into()));
        }
        let plan = s.plan(now());
        prop_assert_eq!(
            &rebuilt.plan(now()).binds,
            &plan.binds,
            "same state, same binds"
        );
        for event in world.bind(&plan) {
            s.apply(event);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn places_follow_from_the_state_alone_where_pods_are_declared(
        ops in prop::collection::vec(op(), 1..50), seed in any::<u64>(),
    ) {
        run(&ops, true, seed)?;
    }

    #[test]
    fn places_follow_from_the_state_alone_where_pods_are_learnt_from(
        early in prop::collection::vec(asks(), 45..60),
        ops in prop::collection::vec(op(), 1..50),
        seed in any::<u64>(),
    ) {
        let early = early.into_iter().map(Op::Pod);
        let ops: Vec<Op> = early.chain(ops).collect();
        run(&ops, false, seed)?;
    }
}
