//! LeaderWorkerSet as its controller, the checks, the CLI and the pages name it: its labels, its state in one word, its
//! progress, and the order and names of its pods. Source: leaderworkerset.x-k8s.io/v1.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json;

/// The API group.
pub const GROUP: &str = "leaderworkerset.x-k8s.io";
/// The kind.
pub const KIND: &str = "LeaderWorkerSet";

/// Label on pods: the set's name.
pub const NAME: &str = "leaderworkerset.sigs.k8s.io/name";
/// Label on pods: the number of their group.
pub const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// Label on pods: their number in the group; the leader's is 0.
pub const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// Label on pods: the SHA-1 of the leader's namespace and name.
pub const GROUP_KEY: &str = "leaderworkerset.sigs.k8s.io/group-key";
/// Label on pods and revisions: the hash of the templates that they have.
pub const REVISION: &str = "leaderworkerset.sigs.k8s.io/template-revision-hash";
/// Label on pods: the number of their subgroup.
pub const SUBGROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/subgroup-index";
/// Label on pods: the SHA-1 of the leader's name and their subgroup.
pub const SUBGROUP_KEY: &str = "leaderworkerset.sigs.k8s.io/subgroup-key";
/// Annotation on pods: the pods of their group.
pub const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
/// Annotation on workers: their leader's name.
pub const LEADER_NAME: &str = "leaderworkerset.sigs.k8s.io/leader-name";
/// Annotation on pods: the pods of a subgroup.
pub const SUBGROUP_SIZE: &str = "leaderworkerset.sigs.k8s.io/subgroup-size";
/// Annotation on pods: whether the leader belongs to a subgroup.
pub const SUBGROUP_POLICY: &str = "leaderworkerset.sigs.k8s.io/subgroup-policy-type";
/// Annotations on a set that ask for a topology domain for each group or subgroup. Muster does not follow them.
pub const EXCLUSIVE: [&str; 2] = [
    "leaderworkerset.sigs.k8s.io/exclusive-topology",
    "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology",
];

/// The variable with the leader's name in the network.
pub const LEADER_ADDRESS: &str = "LWS_LEADER_ADDRESS";
/// The variable with the pods of the group.
pub const GROUP_SIZE: &str = "LWS_GROUP_SIZE";
/// The variable with the pod's number in the group.
pub const WORKER_NUMBER: &str = "LWS_WORKER_INDEX";

/// A group is created anew if one of its pods is, or a container of one is started again.
pub const RECREATE_ON_RESTART: &str = "RecreateGroupOnPodRestart";
/// The same once all pods of the group have started.
pub const RECREATE_AFTER_START: &str = "RecreateGroupAfterStart";
/// Pods are replaced one by one.
pub const NO_RECREATION: &str = "None";
/// All restart policies; the last one is an old name of [`NO_RECREATION`].
pub const RESTART_POLICIES: [&str; 4] = [
    RECREATE_ON_RESTART,
    RECREATE_AFTER_START,
    NO_RECREATION,
    "Default",
];
/// Workers are created with their leader.
pub const LEADER_CREATED: &str = "LeaderCreated";
/// Workers are created once their leader is ready.
pub const LEADER_READY: &str = "LeaderReady";
/// All groups have the set's name as their subdomain.
pub const SHARED: &str = "Shared";
/// Each group has its leader's name as its subdomain.
pub const UNIQUE: &str = "UniquePerReplica";
/// The leader is in the first subgroup.
pub const LEADER_WORKER: &str = "LeaderWorker";
/// The leader is in no subgroup.
pub const LEADER_EXCLUDED: &str = "LeaderExcluded";

/// The role of a group's pod number 0.
pub const LEADER: &str = "leader";
/// The role of the other pods of a group.
pub const WORKER: &str = "worker";

/// What a set's spec says of its groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SetShape<'a> {
    /// The groups that should exist.
    pub groups: i64,
    /// The pods of a group, the leader among them.
    pub size: i64,
    /// The template of leaders.
    pub leader: &'a Value,
    /// The template of workers.
    pub worker: &'a Value,
}

/// The pods of one role in all groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleShape<'a> {
    /// [`LEADER`] or [`WORKER`].
    pub name: &'static str,
    /// The pods that should exist.
    pub pods: i64,
    /// Their template.
    pub template: &'a Value,
}

/// The groups of a set; none for an object of another kind.
#[must_use]
pub fn shape(set: &Value) -> Option<SetShape<'_>> {
    let template = json::at(set, &["spec", "leaderWorkerTemplate"]);
    if !template.is_object() {
        return None;
    }
    let worker = json::at(template, &["workerTemplate"]);
    let leader = json::at(template, &["leaderTemplate"]);
    Some(SetShape {
        groups: json::int(set, &["spec", "replicas"]).unwrap_or(1).max(0),
        size: json::int(template, &["size"]).unwrap_or(1).max(1),
        leader: if leader.is_null() { worker } else { leader },
        worker,
    })
}

impl<'a> SetShape<'a> {
    /// The leaders and the workers; groups of one pod have no workers.
    #[must_use]
    pub fn roles(&self) -> Vec<RoleShape<'a>> {
        let mut roles = vec![RoleShape {
            name: LEADER,
            pods: self.groups,
            template: self.leader,
        }];
        if self.size > 1 {
            roles.push(RoleShape {
                name: WORKER,
                pods: self.groups.saturating_mul(self.size - 1),
                template: self.worker,
            });
        }
        roles
    }

    /// The names of the pods of so many groups by rank, at most `most`: the leader of the first group has rank 0, and its
    /// workers follow.
    #[must_use]
    pub fn rank_names(&self, set: &str, groups: i64, most: usize) -> Vec<String> {
        let groups = 0..u32::try_from(groups).unwrap_or(u32::MAX);
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        groups
            .flat_map(|group| (0..size).map(move |worker| pod_name(set, group, worker)))
            .take(most)
            .collect()
    }
}

/// The name of a pod of a group; number 0 is the leader.
#[must_use]
pub fn pod_name(set: &str, group: u32, worker: u32) -> String {
    match worker {
        0 => format!("{set}-{group}"),
        worker => format!("{set}-{group}-{worker}"),
    }
}

/// The name of a group's PodGroup. It has the revision, because a group of another size is another gang.
#[must_use]
pub fn gang_name(set: &str, group: u32, revision: &str) -> String {
    format!("{}-{revision}", pod_name(set, group, 0))
}

/// The name of the PodGroup of a pod with these labels; none for pods of other kinds.
#[must_use]
pub fn gang_of(labels: Option<&BTreeMap<String, String>>) -> Option<String> {
    let (group, _) = place(labels)?;
    let labels = labels?;
    Some(gang_name(labels.get(NAME)?, group, labels.get(REVISION)?))
}

/// A pod's place among those of its set: its group, then its number in the group. Pods of other kinds have none.
#[must_use]
pub fn place(labels: Option<&BTreeMap<String, String>>) -> Option<(u32, u32)> {
    let number = |name: &str| labels?.get(name)?.parse().ok();
    Some((number(GROUP_INDEX)?, number(WORKER_INDEX)?))
}

/// True for a set that should have no groups.
#[must_use]
pub fn is_scaled_to_zero(set: &Value) -> bool {
    shape(set).is_some_and(|shape| shape.groups == 0)
}

fn holds(status: &Value, type_: &str) -> bool {
    let mut conditions = json::items(status, &["conditions"]).iter();
    conditions.any(|one| one["type"] == type_ && one["status"] == "True")
}

/// The state of a set in one word; none for the status of another kind. It runs once a group of it is ready.
#[must_use]
pub fn state(status: &Value) -> Option<&'static str> {
    // Only this kind's status has the field.
    status.get("hpaPodSelector")?.as_str()?;
    let ready = json::int(status, &["readyReplicas"]).unwrap_or(0);
    Some(match ready {
        // All of no groups are ready.
        ..=0 if holds(status, "Available") => "Suspended",
        ..=0 => "Pending",
        _ => "Running",
    })
}

/// How many groups of a set are ready, and how many it should have; none for an object of another kind.
#[must_use]
pub fn progress(set: &Value) -> Option<(i64, i64)> {
    let groups = shape(set)?.groups;
    Some((count(set, "readyReplicas", groups), groups))
}

/// A count in a set's status. A rollout may have more groups meanwhile.
fn count(set: &Value, field: &str, groups: i64) -> i64 {
    let count = json::int(set, &["status", field]).unwrap_or(0);
    count.clamp(0, groups)
}

/// How many groups are ready, as a clause.
#[must_use]
pub fn ready_clause(ready: i64, groups: i64) -> String {
    format!("{ready} of {groups} groups are ready")
}

/// What is said of a set of which a group waits: how the set is doing, and then why the group waits.
#[must_use]
pub fn waiting_sentence(set: &Value, of_group: &str) -> Option<String> {
    sentence(set).map(|groups| format!("{groups} {of_group}"))
}

/// How a set is doing, in one or two sentences: its ready groups, its rollout, and what keeps its controller from its
/// work. None for an object of another kind.
#[must_use]
pub fn sentence(set: &Value) -> Option<String> {
    let (ready, groups) = progress(set)?;
    if groups == 0 {
        return Some("The set has no groups: spec.replicas is 0.".to_owned());
    }
    let mut text = ready_clause(ready, groups);
    if holds(json::at(set, &["status"]), "UpdateInProgress") {
        let updated = count(set, "updatedReplicas", groups);
        text.push_str(&format!("; {updated} have the new template"));
    }
    text.push('.');
    let message = json::text(set, &["status", "message"]);
    if !message.is_empty() {
        text.push(' ');
        text.push_str(message);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(replicas: i64, status: &Value) -> Value {
        json!({"spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 3, "workerTemplate": {"of": "worker"}}},
            "status": status})
    }

    #[test]
    fn a_set_says_how_many_of_its_groups_are_ready() {
        let status = |ready: i64, type_: &str| {
            json!({"hpaPodSelector": "x", "readyReplicas": ready, "updatedReplicas": 1,
                "conditions": [{"type": type_, "status": "True"}]})
        };
        for (replicas, status, word, text) in [
            (
                2,
                status(0, "Progressing"),
                "Pending",
                "0 of 2 groups are ready.",
            ),
            (
                2,
                status(1, "Progressing"),
                "Running",
                "1 of 2 groups are ready.",
            ),
            (
                2,
                status(2, "Available"),
                "Running",
                "2 of 2 groups are ready.",
            ),
            // A rollout has a group more.
            (
                2,
                status(3, "UpdateInProgress"),
                "Running",
                "2 of 2 groups are ready; 1 have the new template.",
            ),
            (
                0,
                status(0, "Available"),
                "Suspended",
                "The set has no groups: spec.replicas is 0.",
            ),
        ] {
            assert_eq!(state(&status), Some(word), "{status}");
            let set = set(replicas, &status);
            assert_eq!(sentence(&set).as_deref(), Some(text), "{status}");
            assert_eq!(is_scaled_to_zero(&set), replicas == 0);
        }
        let held = set(1, &json!({"message": "The quota is used up."}));
        let text = "0 of 1 groups are ready. The quota is used up.";
        assert_eq!(sentence(&held).as_deref(), Some(text));
        assert_eq!(state(&json!({"readyReplicas": 1})), None);
        let other = json!({"spec": {"replicas": 0}});
        assert_eq!((sentence(&other), progress(&other)), (None, None));
        assert!(!is_scaled_to_zero(&other));
    }

    #[test]
    fn pods_are_counted_named_and_ordered_by_group_and_number() {
        let set = set(2, &Value::Null);
        let shape = shape(&set).unwrap();
        let roles: Vec<_> = shape
            .roles()
            .iter()
            .map(|role| (role.name, role.pods, role.template["of"].clone()))
            .collect();
        let template = json!("worker");
        assert_eq!(
            roles,
            [(LEADER, 2, template.clone()), (WORKER, 4, template)]
        );
        let names = ["m-0", "m-0-1", "m-0-2", "m-1", "m-1-1", "m-1-2"];
        assert_eq!(shape.rank_names("m", 2, 100), names);
        assert_eq!(shape.rank_names("m", 1_000_000, 4), names[..4]);
        assert!(shape.rank_names("m", 0, 4).is_empty());
        let labels = |number: &str| {
            BTreeMap::from([
                (NAME.to_owned(), "m".to_owned()),
                (GROUP_INDEX.to_owned(), "1".to_owned()),
                (WORKER_INDEX.to_owned(), number.to_owned()),
                (REVISION.to_owned(), "abc".to_owned()),
            ])
        };
        assert_eq!(place(Some(&labels("2"))), Some((1, 2)));
        assert_eq!(gang_of(Some(&labels("2"))).as_deref(), Some("m-1-abc"));
        assert_eq!(place(Some(&labels("x"))), None);
        assert_eq!((place(None), gang_of(None)), (None, None));
        let alone = json!({"spec": {"leaderWorkerTemplate": {"workerTemplate": {}, "leaderTemplate": {"of": "leader"}}}});
        let alone = super::shape(&alone).unwrap().roles();
        assert_eq!(alone.len(), 1);
        assert_eq!(alone[0].template["of"], "leader");
    }
}
