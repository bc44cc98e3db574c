//! Other vendors' devices, which a node's inventory lists one by one: by table, and by property after
//! any events. The world is kept here as plain data, and judged without the scheduler's help.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scheduler::{Bind, Event, Scheduler};
use serde_json::{Value, json};
use support::*;

const GPU: &str = "amd.com/gpu";
const CARD: &str = "example.com/card";

/// A device: whether it is well, and its NUMA node.
type Device = (bool, Option<u32>);

/// A node with these devices of each resource, which are called `/dev/RESOURCE/INDEX`.
fn described(name: &str, devices: &BTreeMap<&'static str, Vec<Device>>) -> Event {
    node_with(name, 0, |node| {
        let mut all = serde_json::Map::new();
        for (resource, list) in devices {
            let device = |(index, (healthy, numa)): (usize, &Device)| json!({"id": format!("/dev/{resource}/{index}"), "healthy": healthy, "numa": numa});
            let well = list.iter().filter(|(healthy, _)| *healthy).count();
            node["status"]["allocatable"][resource] = json!(well.to_string());
            let list: Vec<Value> = list.iter().enumerate().map(device).collect();
            all.insert((*resource).to_owned(), json!(list));
        }
        let inventory = json!({"described": all}).to_string();
        node["metadata"]["annotations"]["muster.io/inventory"] = json!(inventory);
    })
}

fn asking(name: &str, resource: &str, count: usize, more: impl FnOnce(&mut Value)) -> Event {
    pod_with(name, None, 0, |pod: &mut Value| {
        let list = &mut pod["spec"]["containers"][0]["resources"];
        list["requests"][resource] = json!(count.to_string());
        list["limits"][resource] = json!(count.to_string());
        more(pod);
    })
}

/// The numbers of the devices that a pod's container gets.
fn numbers(bind: &Bind, container: &str, resource: &str) -> Vec<usize> {
    let of = bind.devices.get(container).and_then(|of| of.get(resource));
    let number = |id: &String| id.rsplit('/').next().unwrap().parse().unwrap();
    of.into_iter().flatten().map(number).collect()
}

#[test]
fn devices_come_from_one_numa_node_where_they_suffice_and_never_twice() {
    let well = |numa: u32| (true, Some(numa));
    let mut sick = well(1);
    sick.0 = false;
    let all = vec![well(0), well(0), well(0), well(1), well(1), sick];
    let mut s = scheduler();
    s.apply(described("n", &[(GPU, all)].into()));
    // Each with what it gets; the tightest NUMA node that holds it.
    for (pod, count, gets) in [
        ("a", 2, &[3, 4][..]),
        ("b", 2, &[0, 1]),
        ("c", 2, &[]),
        ("d", 1, &[2]),
    ] {
        s.apply(asking(pod, GPU, count, |_| {}));
        let plan = s.plan(now());
        let got = plan.binds.iter().find(|bind| bind.pod.name == pod);
        let got = got.map(|bind| numbers(bind, "main", GPU));
        assert_eq!(got.unwrap_or_default(), gets, "{pod}");
        if gets.is_empty() {
            s.apply(pod_gone(pod));
        }
    }
}

#[test]
fn an_init_container_has_what_the_others_will_have_and_a_resource_that_is_only_counted_no_ids() {
    let mut s = scheduler();
    s.apply(described("n", &[(GPU, vec![(true, None); 3])].into()));
    s.apply(node_with("m", 0, |node| {
        node["status"]["allocatable"][CARD] = json!("1");
    }));
    s.apply(asking("a", GPU, 1, |pod| {
        let asks = |count: &str| json!({"requests": {GPU: count}, "limits": {GPU: count}});
        pod["spec"]["initContainers"] = json!([{"name": "init", "resources": asks("2")}]);
        let second = json!({"name": "second", "resources": asks("2")});
        pod["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(second);
    }));
    s.apply(asking("b", CARD, 1, |_| {}));
    let plan = s.plan(now());
    let bind = |pod: &str| plan.binds.iter().find(|bind| bind.pod.name == pod).unwrap();
    let of = |container: &str| numbers(bind("a"), container, GPU);
    assert_eq!(of("init"), [0, 1]);
    assert_eq!((of("main"), of("second")), (vec![0], vec![1, 2]));
    assert!(bind("b").devices.is_empty());
}

/// A pod of the world: what it asks for, and where it is with what, once it is bound.
#[derive(Clone, Debug)]
struct Model {
    resource: &'static str,
    count: usize,
    at: Option<(String, BTreeSet<String>, String)>,
}

impl Model {
    fn event(&self, name: &str) -> Event {
        asking(name, self.resource, self.count, |pod| {
            if let Some((node, _, chosen)) = &self.at {
                pod["spec"]["nodeName"] = json!(node);
                pod["metadata"]["annotations"]["muster.io/devices"] = json!(chosen);
            }
        })
    }
}

#[derive(Clone, Debug)]
enum Op {
    Pod(bool, usize),
    Gone(usize),
    /// A device of a node goes bad, or comes back.
    Turn(usize, bool, usize),
    /// The server starts anew, and is told how the world is.
    Restart,
    /// The plan's bindings, of which every so-manieth can't be written.
    Plan(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<bool>(), 1..4usize).prop_map(|(first, count)| Op::Pod(first, count)),
        2 => any::<usize>().prop_map(Op::Gone),
        2 => (0..2usize, any::<bool>(), 0..4usize).prop_map(|(at, first, index)| Op::Turn(at, first, index)),
        1 => Just(Op::Restart),
        4 => (1..5usize).prop_map(Op::Plan),
    ]
}

#[derive(Default)]
struct World {
    nodes: BTreeMap<String, BTreeMap<&'static str, Vec<Device>>>,
    pods: BTreeMap<String, Model>,
}

impl World {
    fn notify(&self) -> Scheduler {
        let mut s = scheduler();
        for (name, devices) in &self.nodes {
            s.apply(described(name, devices));
        }
        for (name, pod) in &self.pods {
            s.apply(pod.event(name));
        }
        s
    }

    /// Holds a binding against the world, and takes it in.
    fn take(&mut self, bind: &Bind) {
        let asks = self.pods[&bind.pod.name].clone();
        let chosen = &bind.devices["main"];
        assert_eq!(Vec::from_iter(chosen.keys()), [asks.resource]);
        let ids: BTreeSet<String> = chosen[asks.resource].iter().cloned().collect();
        assert_eq!(ids.len(), asks.count, "{bind:?}");
        let held = self.pods.values().filter_map(|pod| pod.at.as_ref());
        let mut held = held.filter(|(node, ..)| *node == bind.node);
        assert!(
            !held.any(|(_, others, _)| !others.is_disjoint(&ids)),
            "twice: {bind:?}"
        );
        for number in numbers(bind, "main", asks.resource) {
            let (well, _) = self.nodes[&bind.node][asks.resource][number];
            assert!(well, "sick: {bind:?}");
        }
        let words = serde_json::to_string(&bind.devices).unwrap();
        self.pods.get_mut(&bind.pod.name).unwrap().at = Some((bind.node.clone(), ids, words));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_device_is_given_twice_or_sick_and_a_server_that_starts_anew_knows_who_has_which(
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let mut world = World::default();
        for (at, numa) in [("n0", Some(0)), ("n1", None)] {
            let list = vec![(true, numa), (true, numa), (true, numa.map(|_| 1)), (true, None)];
            world.nodes.insert(at.to_owned(), [(GPU, list.clone()), (CARD, list)].into());
        }
        let mut s = world.notify();
        for (generation, op) in ops.into_iter().enumerate() {
            match op {
                Op::Pod(first, count) => {
                    let resource = if first { GPU } else { CARD };
                    let pod = Model { resource, count, at: None };
                    s.apply(pod.event(&format!("p{generation}")));
                    world.pods.insert(format!("p{generation}"), pod);
                }
                Op::Gone(which) => {
                    let names: Vec<String> = world.pods.keys().cloned().collect();
                    if let Some(name) = names.get(which % names.len().max(1)) {
                        world.pods.remove(name);
                        s.apply(pod_gone(name));
                    }
                }
                Op::Turn(at, first, index) => {
                    let name = format!("n{at}");
                    let devices = world.nodes.get_mut(&name).unwrap();
                    let list = devices.get_mut(if first { GPU } else { CARD }).unwrap();
                    list[index].0 = !list[index].0;
                    s.apply(described(&name, devices));
                }
                Op::Restart => s = world.notify(),
                Op::Plan(fails) => {
                    let plan = s.plan(now());
                    for (place, bind) in plan.binds.iter().enumerate() {
                        if place % fails == fails - 1 {
                            s.forget(&bind.pod);
                            continue;
                        }
                        world.take(bind);
                        s.apply(world.pods[&bind.pod.name].event(&bind.pod.name));
                    }
                }
            }
        }
        // Where nobody has any and all are well, the next gets what it asks for.
        for name in Vec::from_iter(world.pods.keys()) {
            s.apply(pod_gone(name));
        }
        world.pods.clear();
        let last = Model { resource: GPU, count: 3, at: None };
        s.apply(last.event("last"));
        world.pods.insert("last".to_owned(), last);
        for (name, devices) in &mut world.nodes {
            devices.values_mut().flatten().for_each(|device| device.0 = true);
            s.apply(described(name, devices));
        }
        let plan = s.plan(now());
        prop_assert_eq!(plan.binds.len(), 1);
        world.take(&plan.binds[0]);
    }
}
