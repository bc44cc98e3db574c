//! Properties: a Job settles and never has more pods than it should, and texts of indexes are read as they were written.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::JobStatus;
use proptest::prelude::*;
use serde_json::json;

use super::super::indexes::Indexes;
use super::{World, at};

proptest! {
    #[test]
    fn index_texts_come_back_as_they_went(numbers in proptest::collection::btree_set(0..60u32, 0..40)) {
        let set: Indexes = numbers.iter().copied().collect();
        let text = set.to_string();
        prop_assert_eq!(Indexes::parse(&text), set);
        let model: BTreeSet<u32> = numbers;
        prop_assert_eq!(text.is_empty(), model.is_empty());
    }

    #[test]
    fn a_job_settles_and_never_overshoots(
        indexed in any::<bool>(),
        parallelism in 0..5i32,
        completions in 1..6i32,
        limit in 0..4i32,
        slow in any::<bool>(),
        happenings in proptest::collection::vec((0..6usize, 0..8u8, 0..700i64), 1..40),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let mut world = World::new(json!({
            "completionMode": mode, "parallelism": parallelism, "completions": completions,
            "backoffLimit": limit,
        }));
        world.slow_deletion = slow;
        let mut now = 0;
        let mut ended: Option<JobStatus> = None;
        for (nth, what, wait) in happenings {
            let live = world.live();
            if let Some(name) = live.get(nth) {
                match what {
                    0 | 1 => world.run(name),
                    2 | 3 => world.exit(name, 0, at(now)),
                    4 => world.exit(name, 1, at(now)),
                    5 => { world.pods.remove(name); }
                    _ => {}
                }
            }
            match what {
                6 => world.job.spec.as_mut().unwrap().suspend = Some(wait % 2 == 0),
                7 => world.pods.retain(|_, pod| pod.metadata.deletion_timestamp.is_none()),
                _ => now += wait,
            }
            let before = world.created;
            world.settle(at(now));
            let again = world.ask(at(now));
            prop_assert!(again.actions.is_empty() && again.annotations.is_empty() && again.events.is_empty());
            prop_assert_eq!(Some(&again.status), world.job.status.as_ref());
            prop_assert!(world.live().len() <= usize::try_from(parallelism).unwrap());
            let failed = world.status().failed.unwrap_or_default();
            if failed > limit {
                prop_assert!(world.holds("FailureTarget"));
            }
            let mut indexes = BTreeSet::new();
            for name in world.live() {
                if let Some(index) = super::super::index_of(&world.pods[&name]) {
                    prop_assert!(indexes.insert(index), "two live pods with index {}", index);
                }
            }
            if let Some(ended) = &ended {
                prop_assert_eq!(Some(ended), world.job.status.as_ref());
                prop_assert_eq!(before, world.created);
            } else if world.holds("Complete") || world.holds("Failed") {
                ended = world.job.status.clone();
            }
        }
    }
}
