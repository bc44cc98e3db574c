//! Plans that try only the new gangs: their decisions and reports equal those of plans that try all gangs.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use proptest::prelude::*;
use scheduler::{Event, Plan, Scheduler};
use serde_json::json;
use support::*;

/// What happens between two plans.
#[derive(Clone, Debug)]
enum Step {
    /// A gang comes: its queue, priority, minimum, members beyond, GPUs each, and age.
    Comes(usize, usize, usize, usize, i64, i64),
    /// A pod by itself.
    Alone(usize, i64, i64),
    /// A gang that waits or runs goes with its pods.
    Goes(usize),
    /// A member that waits is deleted.
    Loses(usize),
}

const QUEUES: [&str; 3] = ["a", "b", "c"];
const CLASSES: [&str; 3] = ["low", "middle", "high"];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3usize, 0..3usize, 1..4usize, 0..2usize, 1..4i64, 0..50i64)
            .prop_map(|(queue, class, min, more, gpus, age)| Step::Comes(queue, class, min, more, gpus, age)),
        4 => (0..3usize, 1..4i64, 0..50i64).prop_map(|(queue, gpus, age)| Step::Alone(queue, gpus, age)),
        2 => (0..40usize).prop_map(Step::Goes),
        1 => (0..40usize).prop_map(Step::Loses),
    ]
}

fn events(step: &Step, nth: usize) -> Vec<Event> {
    match step {
        Step::Comes(queue, class, min, more, gpus, age) => {
            let name = format!("g{nth}");
            let mut events = vec![group_with(&name, *min as i32, |group| {
                group["spec"]["queue"] = json!(QUEUES[*queue]);
                group["spec"]["priorityClassName"] = json!(CLASSES[*class]);
                group["metadata"]["creationTimestamp"] =
                    json!((now() - jiff::SignedDuration::from_secs(*age)).to_string());
            })];
            events.extend((0..min + more).map(|i| pod(&format!("{name}-{i}"), &name, *gpus)));
            events
        }
        Step::Alone(queue, gpus, age) => vec![pod_with(&format!("l{nth}"), None, *gpus, |pod| {
            pod["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] =
                json!(QUEUES[*queue]);
            pod["metadata"]["creationTimestamp"] =
                json!((now() - jiff::SignedDuration::from_secs(*age)).to_string());
        })],
        Step::Goes(at) => {
            let mut events = vec![Event::PodGroupGone("ns".into(), format!("g{at}"))];
            events.extend((0..5).map(|i| pod_gone(&format!("g{at}-{i}"))));
            events.push(pod_gone(&format!("l{at}")));
            events
        }
        Step::Loses(at) => vec![pod_gone(&format!("g{at}-0"))],
    }
}

/// Makes the next plan ask everybody, without changing anything.
fn nudge(scheduler: &mut Scheduler) {
    scheduler.apply(queue_with("nudge", |_| {}));
    scheduler.apply(Event::QueueGone("nudge".into()));
}

fn cluster(nodes: &[i64], evictions: bool) -> Scheduler {
    let mut config = scheduler::Config::default();
    config.actions.preempt = evictions;
    config.actions.reclaim = evictions;
    let mut s = Scheduler::new(config);
    for (at, gpus) in nodes.iter().enumerate() {
        s.apply(node(&format!("n{at}"), *gpus));
    }
    for name in QUEUES {
        s.apply(queue_with(name, |_| {}));
    }
    for (at, name) in CLASSES.iter().enumerate() {
        s.apply(priority_class(name, at as i32 * 10));
    }
    s
}

fn reports(plan: &Plan) -> Vec<String> {
    let reports = plan.reports.iter();
    reports
        .map(|report| serde_json::to_string(report).unwrap())
        .collect()
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn who_is_asked_alone_is_told_what_all_are_told_when_everybody_is_asked(
        nodes in proptest::collection::vec(0..5i64, 1..4),
        steps in proptest::collection::vec(proptest::collection::vec(step(), 1..3), 1..24),
    ) {
        let (mut quick, mut thorough) = (cluster(&nodes, false), cluster(&nodes, false));
        let mut nth = 0;
        for steps in steps {
            for step in &steps {
                for event in events(step, nth) {
                    quick.apply(event.clone());
                    thorough.apply(event);
                }
                nth += 1;
            }
            nudge(&mut thorough);
            let (a, b) = (quick.plan(now()), thorough.plan(now()));
            prop_assert_eq!(&a.binds, &b.binds, "after {:?}", &steps);
            if !a.unchanged {
                prop_assert_eq!(reports(&a), reports(&b), "after {:?}", &steps);
                let by_name = |plan: &Plan| {
                    let (mut groups, mut pods) = (plan.groups.clone(), plan.unscheduled.clone());
                    groups.sort_by(|a, b| a.group.cmp(&b.group));
                    pods.sort_by(|a, b| a.group.cmp(&b.group));
                    (groups, pods)
                };
                prop_assert_eq!(by_name(&a), by_name(&b));
            }
            prop_assert_eq!(quick.view(), thorough.view());
        }
    }

    #[test]
    fn who_comes_alone_evicts_no_fewer(
        nodes in proptest::collection::vec(1..5i64, 1..4),
        first in proptest::collection::vec(step(), 1..12),
        last in step(),
    ) {
        let (mut quick, mut thorough) = (cluster(&nodes, true), cluster(&nodes, true));
        for (nth, step) in first.iter().enumerate() {
            for event in events(step, nth) {
                quick.apply(event.clone());
                thorough.apply(event);
            }
        }
        for _ in 0..4 {
            prop_assert_eq!(quick.plan(now()), thorough.plan(now()));
        }
        for event in events(&last, first.len()) {
            quick.apply(event.clone());
            thorough.apply(event);
        }
        nudge(&mut thorough);
        let (a, b) = (quick.plan(now()), thorough.plan(now()));
        prop_assert_eq!(a.evictions, b.evictions);
        prop_assert_eq!(a.binds, b.binds);
        prop_assert_eq!(quick.view(), thorough.view());
    }
}

#[test]
fn a_report_that_stays_the_same_is_shared_by_the_plans_that_tell_it() {
    let mut s = cluster(&[1], false);
    for name in ["l0", "l1", "l2"] {
        s.apply(lone(name, 1));
    }
    let first = s.plan(now());
    assert_eq!((first.binds.len(), first.reports.len()), (1, 2));
    s.apply(lone("l3", 1));
    let second = s.plan(now());
    let ahead: Vec<_> = second.reports.iter().map(|report| report.ahead).collect();
    assert_eq!(ahead, [0, 1, 2]);
    let pairs = first.reports.shared().zip(second.reports.shared());
    assert!(pairs.into_iter().all(|(a, b)| std::sync::Arc::ptr_eq(a, b)));
}

#[test]
fn a_report_says_what_is_free_now_even_if_what_was_taken_was_of_no_use_to_its_gang() {
    let mut s = cluster(&[4], false);
    s.apply(lone("l0", 3));
    s.apply(lone("l1", 2));
    let words = |plan: &Plan| {
        let reports = plan.reports.iter();
        let words = reports.map(|report| format!("{}: {}", report.group, report.binding));
        words.collect::<Vec<_>>()
    };
    let first = s.plan(now());
    assert_eq!(
        words(&first),
        ["l1: 1 of 4 nvidia.com/gpu are free, and 2 more are needed"]
    );
    s.apply(lone("l2", 1));
    let second = s.plan(now());
    assert_eq!(second.binds.len(), 1);
    let said = words(&second);
    assert!(
        said[0].starts_with("l1: 0 of 4 nvidia.com/gpu are free, and 2 more are needed"),
        "{said:?}"
    );
}

#[test]
fn who_comes_with_members_beyond_its_minimum_is_counted_whole_in_what_others_are_told() {
    let (mut quick, mut thorough) = (cluster(&[4, 2, 4], false), cluster(&[4, 2, 4], false));
    for (nth, step) in [Step::Comes(2, 0, 3, 1, 3, 3), Step::Comes(2, 0, 1, 1, 2, 0)]
        .iter()
        .enumerate()
    {
        for event in events(step, nth) {
            quick.apply(event.clone());
            thorough.apply(event);
        }
        nudge(&mut thorough);
        let (a, b) = (quick.plan(now()), thorough.plan(now()));
        assert_eq!(reports(&a), reports(&b));
        let free = ["10 of 10", "6 of 10"][nth];
        assert!(
            a.reports[0].binding.starts_with(free),
            "{}",
            a.reports[0].binding
        );
    }
}
