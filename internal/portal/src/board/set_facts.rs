//! What only a LeaderWorkerSet has among the jobs: groups that a page may leave out, ready groups as its progress, and
//! ranks that go through its groups.

use std::sync::Arc;

use resources::leader_worker_set;
use resources::numbers::GANG_MEMBERS_MAX;
use resources::training_progress;

use super::job_entry::JobFacts;
use super::pods::PodRow;
use crate::verdict;

impl JobFacts {
    /// The groups of a LeaderWorkerSet that the list of groups leaves out.
    pub fn more_groups(&self, listed: usize) -> i64 {
        let listed = i64::try_from(listed).unwrap_or(i64::MAX);
        let shape = leader_worker_set::shape(&self.object);
        shape.map_or(0, |shape| shape.groups.saturating_sub(listed).max(0))
    }

    /// The progress of a TrainJob as its program reported it, or the ready groups of a LeaderWorkerSet: in words, and as
    /// a percentage.
    pub fn progress(&self) -> (Option<String>, Option<u8>) {
        let status = &self.object["status"];
        match leader_worker_set::progress(&self.object) {
            Some((ready, groups)) if groups > 0 => {
                let percentage = ready.saturating_mul(100) / groups;
                (
                    Some(format!(
                        "{}.",
                        leader_worker_set::ready_clause(ready, groups)
                    )),
                    u8::try_from(percentage).ok(),
                )
            }
            _ => (
                training_progress::sentence(status),
                training_progress::percentage(status),
            ),
        }
    }

    /// The names of its pods by rank; empty for a kind whose pods have generated names.
    pub fn rank_names(&self, pods: &[Arc<PodRow>]) -> Vec<String> {
        let Some(shape) = leader_worker_set::shape(&self.object) else {
            return verdict::rank_names(self.training(), &self.object);
        };
        // A rollout may have more groups meanwhile.
        let groups = pods.iter().filter_map(|pod| pod.place_in_set());
        let last = groups.map(|(group, _)| i64::from(group) + 1).max();
        let groups = shape.groups.max(last.unwrap_or(0));
        let name = self.object["metadata"]["name"].as_str();
        let name = name.unwrap_or_default();
        let most = usize::try_from(GANG_MEMBERS_MAX).unwrap_or(usize::MAX);
        shape.rank_names(name, groups, most)
    }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use resources::names;
    use serde_json::{Value, json};

    use super::super::job_entry::{JobEntry, Source};
    use super::*;
    use crate::other_kinds::LEADER_WORKER_SET;

    /// The row's state, and the facts.
    fn set(replicas: i64, annotations: Value) -> (String, JobFacts) {
        let set = json!({"metadata": {"name": "m", "annotations": annotations},
            "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {}}},
            "status": {"hpaPodSelector": "x", "readyReplicas": replicas / 2}});
        let object: DynamicObject = serde_json::from_value(set.clone()).unwrap();
        let source = Source::Other(&LEADER_WORKER_SET, Arc::new(object));
        let entry = JobEntry::read(source, Vec::new());
        let facts = JobFacts::new(&entry, set);
        (entry.base().state.clone(), facts)
    }

    #[test]
    fn a_set_shows_its_ready_groups_and_one_without_groups_is_suspended() {
        let (state, served) = set(4, json!({}));
        let text = "2 of 4 groups are ready.";
        assert_eq!(
            (state.as_str(), served.sentence(&[])),
            ("Running", text.to_owned())
        );
        assert_eq!(served.progress(), (Some(text.to_owned()), Some(50)));
        assert_eq!(served.rank_names(&[])[..3], ["m-0", "m-0-1", "m-1"]);
        assert_eq!(served.more_groups(3), 1);
        assert_eq!(set(1, json!({})).0, "Pending");
        let (state, empty) = set(0, json!({}));
        assert_eq!(state, "Suspended");
        assert!(empty.sentence(&[]).contains("spec.replicas is 0"));
        assert_eq!(empty.progress(), (None, None));
        assert_eq!(set(0, json!({names::CANCELLED_BY: "ann"})).0, "Cancelled");
    }

    #[test]
    fn a_group_beyond_the_wanted_ones_has_ranks_while_it_exists() {
        let labels =
            json!({leader_worker_set::GROUP_INDEX: "4", leader_worker_set::WORKER_INDEX: "0"});
        let pod = json!({"metadata": {"name": "m-4", "labels": labels}});
        let pod: PodRow = serde_json::from_value(pod).unwrap();
        let names = set(4, json!({})).1.rank_names(&[Arc::new(pod)]);
        assert_eq!(names.last().map(String::as_str), Some("m-4-1"));
    }
}
