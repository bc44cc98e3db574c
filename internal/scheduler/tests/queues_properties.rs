//! What holds for any tree of queues: no queue is entitled to more than there is, guarantees are
//! honoured, nothing idle that a queue may use stays unused, ceilings hold on every level, and
//! neither the order of events nor the way the state came about makes a difference. Judged from
//! the views and a plain model, without the queues' own arithmetic.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use scheduler::{ClusterView, Event, Scheduler};
use serde_json::json;
use support::*;

const GPU: &str = "nvidia.com/gpu";
const QUEUES: usize = 7;

#[derive(Clone, Debug)]
struct QueueModel {
    parent: Option<usize>,
    weight: i64,
    surplus: Option<i64>,
    priority: i32,
    capability: Option<i64>,
    guarantee: i64,
    deserved: Option<i64>,
    lending: Option<i64>,
    borrowing: Option<i64>,
    policy: &'static str,
}

#[derive(Clone, Debug)]
struct GangModel {
    queue: usize,
    members: usize,
    min: usize,
    gpus: i64,
    fixed: bool,
    user: u8,
    age: i64,
}

#[derive(Clone, Debug)]
struct World {
    nodes: Vec<i64>,
    queues: Vec<QueueModel>,
    gangs: Vec<GangModel>,
}

fn queue_model(at: usize) -> impl Strategy<Value = QueueModel> {
    let parent = if at == 0 {
        Just(None).boxed()
    } else {
        proptest::option::weighted(0.7, 0..at).boxed()
    };
    let policies = prop_oneof![
        4 => Just("priority"), 1 => Just("fifo"), 1 => Just("sjf"),
        1 => Just("round-robin"), 1 => Just("fair"),
    ];
    (
        (
            parent,
            1..4i64,
            proptest::option::weighted(0.3, 0..3i64),
            0..2i32,
        ),
        proptest::option::weighted(0.3, 0..12i64),
        prop_oneof![3 => Just(0i64), 1 => 0..3i64],
        proptest::option::weighted(0.5, 0..6i64),
        proptest::option::weighted(0.2, 0..4i64),
        proptest::option::weighted(0.2, 0..4i64),
        policies,
    )
        .prop_map(
            |(
                (parent, weight, surplus, priority),
                capability,
                guarantee,
                deserved,
                lending,
                borrowing,
                policy,
            )| {
                QueueModel {
                    parent,
                    weight,
                    surplus,
                    priority,
                    capability,
                    guarantee,
                    deserved,
                    lending,
                    borrowing,
                    policy,
                }
            },
        )
}

fn gang_model() -> impl Strategy<Value = GangModel> {
    (
        0..QUEUES,
        1..5usize,
        1..5usize,
        1..4i64,
        proptest::bool::weighted(0.25),
        0..3u8,
        0..1000i64,
    )
        .prop_map(|(queue, members, min, gpus, fixed, user, age)| GangModel {
            queue,
            members,
            min: min.min(members),
            gpus,
            fixed,
            user,
            age,
        })
}

fn world() -> impl Strategy<Value = World> {
    let queues: Vec<_> = (0..QUEUES).map(queue_model).collect();
    (
        proptest::collection::vec(0..9i64, 1..5),
        queues,
        proptest::collection::vec(gang_model(), 0..16),
    )
        .prop_map(|(nodes, queues, gangs)| World {
            nodes,
            queues,
            gangs,
        })
}

fn gpus(n: i64) -> serde_json::Value {
    json!({GPU: n.to_string()})
}

impl World {
    fn queue_event(&self, at: usize) -> Event {
        let model = &self.queues[at];
        queue_with(&format!("q{at}"), |queue| {
            let spec = &mut queue["spec"];
            spec["weight"] = json!(model.weight);
            spec["priority"] = json!(model.priority);
            spec["parent"] = json!(model.parent.map(|parent| format!("q{parent}")));
            spec["capability"] = json!(model.capability.map(gpus));
            spec["deserved"] = json!(model.deserved.map(gpus));
            spec["guarantee"] = json!({"resource": gpus(model.guarantee)});
            let mut notes = json!({"muster.io/policy": model.policy});
            let limits = [
                ("muster.io/lending-limit", model.lending),
                ("muster.io/borrowing-limit", model.borrowing),
            ];
            for (name, limit) in limits {
                if let Some(limit) = limit {
                    notes[name] = json!(gpus(limit).to_string());
                }
            }
            if let Some(weight) = model.surplus {
                notes["muster.io/surplus-weight"] = json!(weight.to_string());
            }
            queue["metadata"]["annotations"] = notes;
        })
    }

    fn gang_events(&self, at: usize) -> Vec<Event> {
        let gang = &self.gangs[at];
        let name = format!("g{at}");
        let created = (now() - jiff::SignedDuration::from_secs(gang.age)).to_string();
        let mut events = vec![group_with(&name, gang.min as i32, |group| {
            group["spec"]["queue"] = json!(format!("q{}", gang.queue));
            group["metadata"]["creationTimestamp"] = json!(created);
            group["metadata"]["annotations"] = json!({
                "muster.io/preemptible": (!gang.fixed).to_string(),
                "muster.io/user": format!("u{}", gang.user),
            });
        })];
        events.extend((0..gang.members).map(|i| pod(&format!("{name}-{i}"), &name, gang.gpus)));
        events
    }

    fn events(&self) -> Vec<Event> {
        let nodes = self.nodes.iter().enumerate();
        let mut events: Vec<Event> = nodes
            .map(|(at, gpus)| node(&format!("n{at}"), *gpus))
            .collect();
        events.extend((0..QUEUES).map(|at| self.queue_event(at)));
        events.extend((0..self.gangs.len()).flat_map(|at| self.gang_events(at)));
        events
    }

    fn total(&self) -> i64 {
        self.nodes.iter().sum()
    }

    fn path(&self, from: usize) -> Vec<usize> {
        std::iter::successors(Some(from), |at| self.queues[*at].parent).collect()
    }

    fn children(&self, of: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        (0..QUEUES).filter(move |at| self.queues[*at].parent == of)
    }

    fn reserved(&self, at: usize) -> i64 {
        let queue = &self.queues[at];
        let unlent = match (queue.deserved, queue.lending) {
            (Some(deserved), Some(lent)) => deserved - lent,
            _ => 0,
        };
        queue.guarantee.max(unlent)
    }

    /// What nobody outside the queue may touch, counted afresh.
    fn kept(&self, at: usize, view: &ClusterView) -> i64 {
        let below: i64 = self
            .children(Some(at))
            .map(|child| self.kept(child, view))
            .sum();
        let held = held(view, at);
        (self.reserved(at) - held).max(below).max(0)
    }

    fn ceiling(&self, at: usize) -> i64 {
        let queue = &self.queues[at];
        let deserved = queue.deserved.unwrap_or(0).max(queue.guarantee);
        let borrowed = queue.borrowing.map(|limit| deserved + limit);
        let all = [queue.capability, borrowed];
        all.into_iter().flatten().min().unwrap_or(i64::MAX)
    }

    /// How many GPUs more a queue may take by every rule, counted afresh from the view.
    fn may_take(&self, from: usize, fixed: bool, view: &ClusterView) -> i64 {
        let path = self.path(from);
        let mut kept: i64 = self.children(Some(from)).map(|c| self.kept(c, view)).sum();
        let mut least = i64::MAX;
        for at in path {
            least = least.min(self.ceiling(at) - held(view, at) - kept);
            if let (true, Some(deserved)) = (fixed, self.queues[at].deserved) {
                let queue = &view.queues[&format!("q{at}")];
                least = least.min(deserved - queue.fixed.get(GPU));
            }
            let siblings = self.children(self.queues[at].parent).filter(|s| *s != at);
            kept += siblings
                .map(|sibling| self.kept(sibling, view))
                .sum::<i64>();
        }
        if kept > 0 {
            let used: i64 = view.nodes.values().map(|node| node.used.get(GPU)).sum();
            least = least.min(self.total() - used - kept);
        }
        least
    }
}

fn held(view: &ClusterView, at: usize) -> i64 {
    view.queues[&format!("q{at}")].allocated.get(GPU)
}

fn told(events: Vec<Event>) -> Scheduler {
    let mut scheduler = scheduler();
    events.into_iter().for_each(|event| scheduler.apply(event));
    scheduler
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn nobody_is_entitled_to_more_than_there_is_and_guarantees_are_honoured(world in world()) {
        let mut s = told(world.events());
        s.plan(now());
        let view = s.view();
        let entitled = |at: usize| view.queues[&format!("q{at}")].entitled.get(GPU);
        let requested = |at: usize| view.queues[&format!("q{at}")].requested.get(GPU);
        let parents = std::iter::once(None).chain((0..QUEUES).map(Some));
        for parent in parents {
            let pool = parent.map_or(world.total(), entitled);
            let children: Vec<usize> = world.children(parent).collect();
            let sum: i64 = children.iter().map(|at| entitled(*at)).sum();
            prop_assert!(sum <= pool, "{sum} of {pool} below {parent:?}");
            let mut asked: i64 = children.iter().map(|at| world.reserved(*at)).sum();
            asked += children.iter().flat_map(|at| world.children(Some(*at))).map(|at| world.reserved(at)).sum::<i64>();
            for at in children {
                let most = requested(at).min(world.ceiling(at));
                prop_assert!(entitled(at) <= most, "q{at} is entitled to more than it may use");
                // Only where nothing is promised twice, at this level or below.
                let deeper = (0..QUEUES).filter(|q| world.path(*q).len() > world.path(at).len() + 1);
                let deeper: i64 = deeper.map(|q| world.reserved(q)).sum();
                if asked + deeper <= pool && world.children(Some(at)).next().is_none() {
                    let promised = world.reserved(at).min(most);
                    prop_assert!(entitled(at) >= promised, "q{at}: {} of {promised}", entitled(at));
                }
            }
        }
    }

    #[test]
    fn everything_is_divided_while_somebody_asks(mut world in world()) {
        for queue in &mut world.queues {
            (queue.guarantee, queue.lending, queue.surplus) = (0, None, None);
        }
        let mut s = told(world.events());
        s.plan(now());
        let view = s.view();
        let entitled = |at: usize| view.queues[&format!("q{at}")].entitled.get(GPU);
        let given: i64 = world.children(None).map(entitled).sum();
        let most = |at: usize| view.queues[&format!("q{at}")].requested.get(GPU);
        // What all may use, from the leaves up.
        fn useful(world: &World, at: usize, most: &dyn Fn(usize) -> i64) -> i64 {
            let below: i64 = world.children(Some(at)).map(most).sum();
            let own = most(at) - below;
            let below: i64 = world.children(Some(at)).map(|child| useful(world, child, most)).sum();
            (own + below).min(world.ceiling(at))
        }
        let useful: i64 = world.children(None).map(|at| useful(&world, at, &most)).sum();
        prop_assert_eq!(given, useful.min(world.total()));
    }

    #[test]
    fn no_rule_is_broken_and_nothing_that_fits_waits(world in world()) {
        let mut s = told(world.events());
        let plan = s.plan(now());
        let view = s.view();
        for at in 0..QUEUES {
            prop_assert!(held(&view, at) <= world.ceiling(at), "q{} is above its ceiling", at);
            if let Some(deserved) = world.queues[at].deserved {
                let fixed = view.queues[&format!("q{at}")].fixed.get(GPU);
                prop_assert!(fixed <= deserved, "q{} holds {} that cannot be won back", at, fixed);
            }
        }
        let used: i64 = view.nodes.values().map(|node| node.used.get(GPU)).sum();
        let promised: i64 = (0..QUEUES).map(|at| world.reserved(at)).sum();
        if promised <= world.total() {
            // What is kept can still be had by those that it is kept for.
            let kept: i64 = world.children(None).map(|at| world.kept(at, &view)).sum();
            prop_assert!(world.total() - used >= kept, "{} free, {} kept", world.total() - used, kept);
        }
        for (at, gang) in world.gangs.iter().enumerate() {
            let name = format!("g{at}");
            let bound = plan.binds.iter().filter(|bind| bind.group.name == name).count();
            prop_assert!(bound == 0 || bound >= gang.min, "half of {} is bound", name);
            // A single member that waits finds no room, by the rules or on the nodes.
            let alone = bound >= gang.min || gang.min == 1;
            if bound == gang.members || !alone {
                continue;
            }
            let allowed = world.may_take(gang.queue, gang.fixed, &view) >= gang.gpus;
            let room = view.nodes.values().any(|node| {
                node.allocatable.get(GPU) - node.used.get(GPU) >= gang.gpus
            });
            prop_assert!(!allowed || !room, "a member of {} waits in vain", name);
        }
    }

    #[test]
    fn the_order_of_events_makes_no_difference(world in world(), seed in any::<u64>()) {
        let mut a = told(world.events());
        let mut b = told(shuffled(world.events(), seed));
        let (plan, other) = (a.plan(now()), b.plan(now()));
        prop_assert_eq!(plan.binds, other.binds);
        prop_assert_eq!(plan.reports, other.reports);
        prop_assert_eq!(a.view(), b.view());
    }

    #[test]
    fn sums_kept_along_the_way_are_those_counted_from_the_pods(
        first in world(),
        second in world(),
        ends in proptest::collection::vec(0..60usize, 0..20),
        seed in any::<u64>(),
    ) {
        // Through one world into another: queues change their rules and parents with gangs in them.
        let mut s = told(first.events());
        s.plan(now());
        for nth in ends {
            let view = s.view();
            let Some((namespace, name)) = view.pods.keys().nth(nth % view.pods.len().max(1)).cloned() else {
                continue;
            };
            s.apply(Event::PodGone(namespace, name));
        }
        let world = World { queues: second.queues.clone(), ..first.clone() };
        for event in shuffled((0..QUEUES).map(|at| world.queue_event(at)).collect(), seed) {
            s.apply(event);
        }
        let check = |s: &Scheduler| -> Result<(), TestCaseError> {
            let view = s.view();
            let mut sums: BTreeMap<usize, (i64, i64, i64)> = BTreeMap::new();
            for pod in view.pods.values() {
                let gang = &world.gangs[pod.group[1..].parse::<usize>().unwrap()];
                let gpus = pod.requests.get(GPU);
                let held = if pod.node.is_some() { gpus } else { 0 };
                for at in world.path(gang.queue) {
                    let sum = sums.entry(at).or_default();
                    sum.0 += held;
                    sum.1 += if gang.fixed { held } else { 0 };
                    sum.2 += gpus;
                }
            }
            for at in 0..QUEUES {
                let queue = &view.queues[&format!("q{at}")];
                let told = (queue.allocated.get(GPU), queue.fixed.get(GPU), queue.requested.get(GPU));
                prop_assert_eq!(told, sums.get(&at).copied().unwrap_or_default(), "q{}", at);
                prop_assert_eq!(queue.kept.get(GPU), world.kept(at, &view), "kept of q{}", at);
            }
            Ok(())
        };
        check(&s)?;
        s.plan(now());
        check(&s)?;
    }

    #[test]
    fn planning_twice_changes_nothing(world in world()) {
        let mut s = told(world.events());
        s.plan(now());
        let before = s.view();
        s.apply(priority_class("news", 1));
        let again = s.plan(now());
        prop_assert!(again.binds.is_empty(), "{:?}", again.binds);
        prop_assert_eq!(&before.queues, &s.view().queues);
    }
}
