//! Properties over random life cycles of a job.

use proptest::prelude::*;
use resources::kinds::JobConditionType;
use serde_json::json;

use super::world::{World, at, master_and_workers, replica};
use crate::training::Network;

/// An event between two reconciliations of a job.
#[derive(Clone, Debug)]
enum Happening {
    Start(usize),
    Exit(usize, i32),
    Restart(usize),
    Lose(usize),
    Vanish(usize),
    Suspend(bool),
    Scale(i32),
    FinishDeletions,
    Wait(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => (0..6usize).prop_map(Happening::Start),
        3 => (0..6usize, prop_oneof![Just(0), Just(1), Just(137), Just(255)])
            .prop_map(|(pod, code)| Happening::Exit(pod, code)),
        1 => (0..6usize).prop_map(Happening::Restart),
        1 => (0..6usize).prop_map(Happening::Lose),
        1 => (0..6usize).prop_map(Happening::Vanish),
        1 => any::<bool>().prop_map(Happening::Suspend),
        1 => (0..6i32).prop_map(Happening::Scale),
        2 => Just(Happening::FinishDeletions),
        2 => (1..400i64).prop_map(Happening::Wait),
    ]
}

#[derive(Clone, Debug)]
struct Setup {
    spec: serde_json::Value,
    shared: bool,
    slow: bool,
    limit: Option<i32>,
    /// The annotation `muster.io/on-failure`.
    on_failure: Option<&'static str>,
}

fn setup() -> impl Strategy<Value = Setup> {
    let policy = prop_oneof![
        Just("Always"),
        Just("OnFailure"),
        Just("Never"),
        Just("ExitCode")
    ];
    let clean = prop_oneof![Just("None"), Just("Running"), Just("All")];
    let limit = prop_oneof![Just(None), (0..4i32).prop_map(Some)];
    let on_failure = prop_oneof![
        2 => Just(None),
        1 => Just(Some("default=restart-gang")),
        1 => Just(Some("default=restart-rank,signal=restart-gang+exclude-node,node-lost=restart-gang")),
    ];
    (
        policy,
        clean,
        limit,
        0..3u8,
        any::<bool>(),
        any::<bool>(),
        proptest::option::of(1..900i64),
        on_failure,
    )
        .prop_map(
            |(policy, clean, limit, shape, shared, slow, deadline, on_failure)| {
                let mut spec = match shape {
                    0 => master_and_workers(2, policy),
                    1 => json!({"pytorchReplicaSpecs": {"Worker": replica(3, policy)}}),
                    _ => json!({
                        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
                        "pytorchReplicaSpecs": {"Worker": replica(2, policy)},
                    }),
                };
                spec["runPolicy"] = json!({"cleanPodPolicy": clean});
                if let Some(limit) = limit {
                    spec["runPolicy"]["backoffLimit"] = json!(limit);
                }
                if let Some(deadline) = deadline {
                    spec["runPolicy"]["activeDeadlineSeconds"] = json!(deadline);
                }
                Setup {
                    spec,
                    shared,
                    slow,
                    limit,
                    on_failure,
                }
            },
        )
}

fn pick(world: &World, at: usize) -> Option<String> {
    world.pods.keys().nth(at).cloned()
}

fn live(world: &World, pod: &str) -> bool {
    let phase = world.pods[pod]
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Pending" | "Running"))
}

fn happen(world: &mut World, happening: &Happening, now: &mut i64) {
    let target = |world: &World, nth: usize| pick(world, nth).filter(|pod| live(world, pod));
    match *happening {
        Happening::Start(nth) => {
            if let Some(pod) = target(world, nth) {
                world.phase(&pod, "Running");
            }
        }
        Happening::Exit(nth, code) => {
            if let Some(pod) = target(world, nth) {
                world.exit(&pod, code, at(*now));
            }
        }
        Happening::Restart(nth) => {
            if let Some(pod) = target(world, nth) {
                let status = world.pods[&pod].status.as_ref().unwrap();
                let known = status
                    .container_statuses
                    .as_ref()
                    .map_or(0, |list| list[0].restart_count);
                world.restarted(&pod, known + 1);
            }
        }
        Happening::Lose(nth) => {
            if let Some(pod) = target(world, nth) {
                world.lose(&pod);
            }
        }
        Happening::Vanish(nth) => {
            if let Some(pod) = pick(world, nth) {
                world.pods.remove(&pod);
            }
        }
        Happening::Suspend(held) => world.job.spec.run_policy.suspend = Some(held),
        Happening::Scale(count) => {
            if let Some(worker) = world.job.spec.pytorch_replica_specs.get_mut("Worker") {
                worker.replicas = Some(count);
            }
        }
        Happening::FinishDeletions => world.finish_deletions(),
        Happening::Wait(seconds) => *now += seconds,
    }
}

fn wanted_at_most(world: &World) -> usize {
    let specs = &world.job.spec.pytorch_replica_specs;
    let count = |role: &str| specs.get(role).map_or(0, |spec| spec.replicas.unwrap_or(1));
    let workers = match &world.job.spec.elastic_policy {
        Some(policy) => {
            count("Worker").clamp(policy.min_replicas.unwrap(), policy.max_replicas.unwrap())
        }
        None => count("Worker"),
    };
    usize::try_from(count("Master") + workers).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_job_settles_keeps_its_budget_and_ends_once(
        setup in setup(),
        happenings in proptest::collection::vec(happening(), 1..40),
    ) {
        let mut world = World::new(setup.spec.clone());
        if setup.shared {
            world.network = Network::HostShared { ports: 20_000..=20_003 };
        }
        world.slow_deletion = setup.slow;
        if let Some(policy) = setup.on_failure {
            let annotations = world.job.metadata.annotations.get_or_insert_default();
            annotations.insert("muster.io/on-failure".to_owned(), policy.to_owned());
        }
        let mut now = 0;
        let mut ended = None;
        let mut seen_failures = std::collections::BTreeSet::new();
        for happening in &happenings {
            // A replica that fails while it is scaled away gets no new pod.
            if setup.limit.is_some() && matches!(happening, Happening::Scale(_)) {
                continue;
            }
            happen(&mut world, happening, &mut now);
            for pod in world.pods.values() {
                let status = pod.status.as_ref().unwrap();
                // What the platform did is charged to no job.
                let own = status.phase.as_deref() == Some("Failed") && status.reason.is_none();
                if own && pod.metadata.deletion_timestamp.is_none() {
                    seen_failures.insert(pod.metadata.uid.clone());
                }
            }
            let before = world.created.len();
            world.settle(at(now));
            // The state is stable: another reconciliation changes nothing.
            let again = world.ask(at(now));
            prop_assert!(again.actions.is_empty());
            prop_assert!(again.annotations.is_empty());
            prop_assert!(again.events.is_empty() || again.events.iter().all(|event| event.reason == "NoRendezvousPort"));
            prop_assert_eq!(Some(&again.status), world.job.status.as_ref());
            prop_assert!(again.requeue_at.is_none_or(|time| time > at(now)));
            // There are never more pods than replicas, terminating ones aside.
            let present = world.pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
            if ended.is_none() && !world.holds(JobConditionType::Succeeded) && !world.holds(JobConditionType::Failed) {
                prop_assert!(present <= wanted_at_most(&world));
            }
            // Failed pods are replaced only within the backoff limit.
            if let Some(limit) = setup.limit.filter(|_| setup.on_failure.is_none()) {
                let failures = seen_failures.len();
                if failures > usize::try_from(limit).unwrap() && !world.holds(JobConditionType::Succeeded)
                    && !world.holds(JobConditionType::Suspended) {
                    prop_assert!(world.holds(JobConditionType::Failed), "{failures} failures of {limit}");
                }
            }
            // No pod of an attempt exists beside one of another.
            let attempt = |pod: &k8s_openapi::api::core::v1::Pod| {
                pod.metadata.labels.as_ref().and_then(|labels| labels.get("muster.io/attempt").cloned())
            };
            let attempts: std::collections::BTreeSet<_> = world.pods.values().map(attempt).collect();
            prop_assert!(attempts.len() <= 1, "{attempts:?}");
            // A terminal phase is final, and no pod starts after it.
            if let Some(ended) = &ended {
                prop_assert_eq!(Some(ended), world.job.status.as_ref());
                prop_assert_eq!(before, world.created.len());
            } else if world.holds(JobConditionType::Succeeded) || world.holds(JobConditionType::Failed) {
                ended = world.job.status.clone();
            }
            let both = world.holds(JobConditionType::Running) && world.holds(JobConditionType::Restarting);
            prop_assert!(!both);
        }
    }
}
