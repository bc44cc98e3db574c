//! A property: decisions come to rest whatever happens to the Jobs.

use proptest::prelude::*;
use resources::jobset as labels;
use serde_json::json;

use super::World;

#[derive(Clone, Debug)]
enum Happening {
    Ready(usize),
    Complete(usize),
    Fail(usize, bool),
    Lose(usize),
    Collect,
    Suspend(bool),
    Wait(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0_usize..3).prop_map(Happening::Ready),
        (0_usize..3).prop_map(Happening::Complete),
        ((0_usize..3), any::<bool>()).prop_map(|(job, pod)| Happening::Fail(job, pod)),
        (0_usize..3).prop_map(Happening::Lose),
        Just(Happening::Collect),
        any::<bool>().prop_map(Happening::Suspend),
        (1_i64..100).prop_map(Happening::Wait),
    ]
}

proptest! {
    #[test]
    fn decisions_come_to_rest_whatever_happens(
        happenings in proptest::collection::vec(happening(), 1..30),
        most in 0_i32..3,
        depends in any::<bool>(),
        alone in any::<bool>(),
    ) {
        let action = if alone { "RestartJob" } else { "RestartJobSet" };
        let mut world = World::two(json!({"failurePolicy": {"maxRestarts": most,
            "rules": [{"name": "r", "action": action}]}}));
        if depends {
            let dependency = json!([{"name": "leader", "status": "Ready"}]);
            world.job_set.spec.replicated_jobs[1].depends_on = serde_json::from_value(dependency).unwrap();
        }
        world.settle();
        for one in happenings {
            let names: Vec<String> = world.jobs.iter()
                .filter(|(_, job)| job.status.as_ref().is_none_or(|status| status.conditions.is_none()))
                .map(|(name, _)| name.clone())
                .collect();
            world.run_pods();
            let name = |at: usize| names.get(at).cloned();
            match one {
                Happening::Ready(job) => if let Some(job) = name(job) { world.ready(&job) },
                Happening::Complete(job) => if let Some(job) = name(job) { world.complete(&job) },
                Happening::Fail(job, pod) => if let Some(job) = name(job) {
                    if pod && world.jobs[&job].spec.as_ref().unwrap().suspend != Some(true) {
                        world.end_pod(&job, 0, json!({"code": 1}));
                    }
                    world.fail(&job, "BackoffLimitExceeded", "limit");
                },
                Happening::Lose(job) => if let Some(job) = name(job)
                    && world.jobs[&job].spec.as_ref().unwrap().suspend != Some(true)
                {
                    world.end_pod(&job, 1, json!({"reason": "NodeLost", "message": "lost"}));
                },
                Happening::Collect => world.collect(),
                Happening::Suspend(on) => world.job_set.spec.suspend = Some(on),
                Happening::Wait(seconds) => world.second += seconds,
            }
            world.settle();
            // Whatever happened, no Job of an earlier run is beside one of the present.
            let restarts = world.status().restarts.to_string();
            for job in world.jobs.values() {
                let own = &job.metadata.labels.as_ref().unwrap()[labels::RESTART_ATTEMPT];
                prop_assert_eq!(own, &restarts);
            }
            let counted = world.status().restarts_count_towards_max.unwrap_or(0);
            prop_assert!(counted <= most);
            if world.status().terminal_state.is_some() {
                prop_assert!(world.group.is_none());
                break;
            }
        }
    }
}
