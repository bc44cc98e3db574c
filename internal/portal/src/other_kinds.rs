//! RayClusters, RayJobs, RayServices, Volcano Jobs, JobSets, TrainJobs and LeaderWorkerSets as the pages show them. Pure: an
//! object of the API in, its parts out.
//!
//! The plural of Volcano's kind is that of `batch`'s Job, so addresses of its pages have Volcano's short name, `vcjobs`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::jobset;
use resources::leader_worker_set::{self as sets, SetShape};
use resources::names;
use resources::registry::{self, Kind};
use resources::trainer;
use resources::volcano;
use serde::Serialize;
use serde_json::{Value, json};

use crate::ray_service;

/// A kind of jobs that is neither a training kind nor one of `batch`.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherKind {
    pub group: &'static str,
    pub version: &'static str,
    /// The kind in the API.
    pub kind: &'static str,
    /// The plural in the API, as in roles.
    pub resource: &'static str,
    /// The plural in the addresses of pages.
    pub plural: &'static str,
    /// The kind's name in lists.
    pub shown: &'static str,
    /// The label of its pods with its name.
    pub label: &'static str,
}

/// RayCluster.
pub static RAY_CLUSTER: OtherKind = OtherKind {
    group: "ray.io",
    version: "v1",
    kind: "RayCluster",
    resource: "rayclusters",
    plural: "rayclusters",
    shown: "RayCluster",
    label: names::RAY_CLUSTER,
};

/// Volcano's Job.
pub static VOLCANO_JOB: OtherKind = OtherKind {
    group: volcano::GROUP,
    version: "v1alpha1",
    kind: "Job",
    resource: "jobs",
    plural: volcano::PLURAL,
    shown: "Volcano Job",
    label: volcano::JOB_NAME,
};

/// RayJob.
pub static RAY_JOB: OtherKind = OtherKind {
    group: "ray.io",
    version: "v1",
    kind: "RayJob",
    resource: "rayjobs",
    plural: "rayjobs",
    shown: "RayJob",
    label: names::RAY_ORIGIN_NAME,
};

/// RayService.
pub static RAY_SERVICE: OtherKind = OtherKind {
    group: "ray.io",
    version: "v1",
    kind: "RayService",
    resource: "rayservices",
    plural: "rayservices",
    shown: "RayService",
    label: names::RAY_ORIGIN_NAME,
};

/// JobSet.
pub static JOB_SET: OtherKind = OtherKind {
    group: jobset::GROUP,
    version: "v1alpha2",
    kind: jobset::KIND,
    resource: "jobsets",
    plural: "jobsets",
    shown: "JobSet",
    label: jobset::NAME,
};

/// TrainJob, whose pods have the labels of the JobSet that it runs as.
pub static TRAIN_JOB: OtherKind = OtherKind {
    group: trainer::GROUP,
    version: "v1alpha1",
    kind: trainer::KIND,
    resource: "trainjobs",
    plural: "trainjobs",
    shown: "TrainJob",
    label: jobset::NAME,
};

/// LeaderWorkerSet.
pub static LEADER_WORKER_SET: OtherKind = OtherKind {
    group: sets::GROUP,
    version: "v1",
    kind: sets::KIND,
    resource: SETS,
    plural: SETS,
    shown: sets::KIND,
    label: sets::NAME,
};

/// The plural of LeaderWorkerSets.
pub const SETS: &str = "leaderworkersets";

/// All of them.
pub static ALL: [&OtherKind; 7] = [
    &RAY_CLUSTER,
    &RAY_JOB,
    &RAY_SERVICE,
    &VOLCANO_JOB,
    &JOB_SET,
    &TRAIN_JOB,
    &LEADER_WORKER_SET,
];

/// Whether an object is a part of a JobSet or TrainJob that is shown in its place: one of its Jobs, or its JobSet.
pub fn is_part(meta: &ObjectMeta) -> bool {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().any(|owner| {
        let whole = [jobset::KIND, trainer::KIND].contains(&owner.kind.as_str());
        owner.controller == Some(true) && whole
    })
}

impl OtherKind {
    /// The kind with this plural in addresses.
    pub fn by_plural(plural: &str) -> Option<&'static OtherKind> {
        ALL.into_iter().find(|kind| kind.plural == plural)
    }

    /// The kind with this name in lists.
    pub fn by_shown(shown: &str) -> Option<&'static OtherKind> {
        ALL.into_iter().find(|kind| kind.shown == shown)
    }

    /// The kind that the API knows by this group and name.
    pub fn of(kind: &Kind) -> Option<&'static OtherKind> {
        ALL.into_iter()
            .find(|other| (other.group, other.kind) == (kind.group, kind.kind))
    }

    /// The API's description of the kind.
    pub fn registered(&self) -> Option<&'static Kind> {
        registry::find(self.group, self.version, self.resource)
    }
}

/// A group of a RayCluster or LeaderWorkerSet, a task of a Volcano Job or a job of a JobSet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its name; `head` for a RayCluster's head.
    pub name: String,
    /// The value of its pods' label.
    #[serde(skip)]
    pub label: String,
    /// The pods that should exist.
    pub wanted: i64,
    /// The least and the most pods, if its number may change.
    pub range: Option<(i64, i64)>,
    /// The GPUs of one pod; of a group of a LeaderWorkerSet those of all its pods.
    pub gpus: i64,
    /// How many of its pods run.
    pub running: usize,
}

/// A group whose number of pods does not change.
fn fixed_group(name: &str, wanted: i64, gpus: i64) -> Group {
    Group {
        name: name.to_owned(),
        label: name.to_owned(),
        wanted,
        range: None,
        gpus,
        running: 0,
    }
}

/// The most groups of a LeaderWorkerSet that a page lists.
const SET_GROUPS_MAX: i64 = 100;
/// The name of the head's group in its pod's label.
const HEAD_GROUP: &str = "headgroup";

/// The groups of an object, the head first; empty for other kinds.
pub fn groups(shown: &str, object: &Value, gpus: impl Fn(&Value) -> i64) -> Vec<Group> {
    let spec = &object["spec"];
    let list = |field: &str| spec[field].as_array().cloned().unwrap_or_default();
    if shown == VOLCANO_JOB.shown {
        let task = |(at, task): (usize, Value)| {
            let name = volcano::task_name(at, &task);
            Group {
                label: name.clone(),
                name,
                wanted: task["replicas"].as_i64().unwrap_or(1),
                range: None,
                gpus: gpus(&task["template"]),
                running: 0,
            }
        };
        return list("tasks").into_iter().enumerate().map(task).collect();
    }
    if shown == JOB_SET.shown {
        let jobs = jobset::replicated_jobs(object).into_iter();
        return jobs
            .map(|job| fixed_group(job.name, job.pods, gpus(job.template)))
            .collect();
    }
    if shown == TRAIN_JOB.shown {
        // The pods of a runtime are not known here; a TrainJob says how many of them train.
        let trainer = &spec["trainer"];
        let nodes = trainer["numNodes"].as_i64().unwrap_or(1);
        let template =
            json!({"spec": {"containers": [{"resources": trainer["resourcesPerNode"]}]}});
        return vec![fixed_group(trainer::NODE, nodes, gpus(&template))];
    }
    if shown == LEADER_WORKER_SET.shown {
        return sets::shape(object).map_or_else(Vec::new, |shape| set_groups(&shape, gpus));
    }
    if shown != RAY_CLUSTER.shown {
        return Vec::new();
    }
    let head = Group {
        name: "head".to_owned(),
        label: HEAD_GROUP.to_owned(),
        wanted: 1,
        range: None,
        gpus: gpus(&spec["headGroupSpec"]["template"]),
        running: 0,
    };
    let worker = |group: Value| {
        let number = |field: &str| group[field].as_i64();
        let hosts = number("numOfHosts").unwrap_or(1);
        let least = number("minReplicas").unwrap_or(0);
        let replicas = number("replicas").unwrap_or(least);
        let suspended = group["suspend"].as_bool().unwrap_or(false);
        let wanted = if suspended { 0 } else { replicas };
        let name = group["groupName"].as_str().unwrap_or_default().to_owned();
        let most = number("maxReplicas").filter(|most| *most != least);
        Group {
            label: name.clone(),
            name,
            wanted: wanted.saturating_mul(hosts),
            range: most.map(|most| (least.saturating_mul(hosts), most.saturating_mul(hosts))),
            gpus: gpus(&group["template"]),
            running: 0,
        }
    };
    let workers = list("workerGroupSpecs").into_iter().map(worker);
    [head].into_iter().chain(workers).collect()
}

/// The first groups of a LeaderWorkerSet.
fn set_groups(shape: &SetShape<'_>, gpus: impl Fn(&Value) -> i64) -> Vec<Group> {
    let of_workers = gpus(shape.worker).saturating_mul(shape.size - 1);
    let of_group = gpus(shape.leader).saturating_add(of_workers);
    let groups = 0..shape.groups.min(SET_GROUPS_MAX);
    groups
        .map(|index| {
            let index = index.to_string();
            fixed_group(&index, shape.size, of_group)
        })
        .collect()
}

/// The pods that an object should have, each with the GPUs that it requests: their number, then the GPUs of one.
pub fn parts(shown: &str, object: &Value, gpus: impl Fn(&Value) -> i64) -> Vec<(i64, i64)> {
    // A set may have more groups than are listed.
    if let Some(shape) = sets::shape(object).filter(|_| shown == LEADER_WORKER_SET.shown) {
        let roles = shape.roles().into_iter();
        return roles.map(|role| (role.pods, gpus(role.template))).collect();
    }
    let groups = groups(shown, object, gpus).into_iter();
    groups.map(|group| (group.wanted, group.gpus)).collect()
}

/// Where a RayCluster's head is: terms with their values.
pub fn head(shown: &str, object: &Value) -> Vec<(&'static str, String)> {
    let status = &object["status"];
    if shown != RAY_CLUSTER.shown || status["head"].is_null() {
        return Vec::new();
    }
    let text = |field: &str| {
        status["head"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let ports = status["endpoints"].as_object().into_iter().flatten();
    let ports = ports.map(|(name, port)| format!("{name} {}", port.as_str().unwrap_or_default()));
    let version = object["spec"]["rayVersion"].as_str().unwrap_or_default();
    let all = [
        ("Head pod", text("podName")),
        ("Head address", text("podIP")),
        ("Head service", text("serviceName")),
        ("Ports", ports.collect::<Vec<_>>().join(", ")),
        ("Ray", version.to_owned()),
    ];
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// Since when an object is in a phase or condition: a condition of Volcano is a phase, one of Ray a type that holds.
fn since(object: &Value, named: &str) -> Option<Timestamp> {
    let conditions = object["status"]["conditions"].as_array();
    let holds =
        |one: &&Value| one["status"] == named || (one["type"] == named && one["status"] == "True");
    let found = conditions.into_iter().flatten().rfind(holds)?;
    found["lastTransitionTime"].as_str()?.parse().ok()
}

/// When the object began to run.
pub fn started(shown: &str, object: &Value) -> Option<Timestamp> {
    match OtherKind::by_shown(shown)?.kind {
        "RayCluster" => since(object, "HeadPodReady"),
        "RayJob" => object["status"]["startTime"].as_str()?.parse().ok(),
        "RayService" => since(object, "Ready"),
        sets::KIND => since(object, "Available"),
        _ => since(object, "Running"),
    }
}

/// When the object entered its present phase, or ended: for an object that is over, its end.
pub fn ended(shown: &str, object: &Value) -> Option<Timestamp> {
    if shown == RAY_JOB.shown {
        return object["status"]["endTime"].as_str()?.parse().ok();
    }
    if let Some(state) = jobset::state(&object["status"]) {
        return since(object, state);
    }
    let last = object["status"]["state"]["lastTransitionTime"].as_str();
    last.filter(|_| shown == VOLCANO_JOB.shown)?.parse().ok()
}

/// What the object's controller says of it; empty if it says nothing.
pub fn message(shown: &str, object: &Value) -> String {
    let status = &object["status"];
    if shown == VOLCANO_JOB.shown {
        let message = status["state"]["message"].as_str();
        return message.unwrap_or_default().to_owned();
    }
    if shown == RAY_JOB.shown {
        return status["message"].as_str().unwrap_or_default().to_owned();
    }
    if let Some(sentence) = ray_service::sentence(status) {
        return sentence;
    }
    if shown == LEADER_WORKER_SET.shown {
        return sets::sentence(object).unwrap_or_default();
    }
    if let Some(state) = jobset::state(status) {
        return jobset::message(status, state).to_owned();
    }
    if shown != RAY_CLUSTER.shown {
        return String::new();
    }
    let of = |type_: &str| {
        let conditions = status["conditions"].as_array();
        let mut all = conditions.into_iter().flatten();
        all.find(|one| one["type"] == type_).cloned()
    };
    let text = |condition: &Value| condition["message"].as_str().unwrap_or_default().to_owned();
    let ended = of("HeadPodReady").filter(|one| one["reason"] == "HeadPodEnded");
    ended
        .or_else(|| of("RayClusterProvisioned"))
        .map(|condition| text(&condition))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(_: &Value) -> i64 {
        1
    }

    #[test]
    fn every_kind_is_one_of_the_api_and_has_an_address_of_its_own() {
        for kind in ALL {
            let known = kind.registered().unwrap();
            assert_eq!(OtherKind::of(known), Some(kind));
            assert_eq!(OtherKind::by_plural(kind.plural), Some(kind));
        }
        assert_eq!(OtherKind::by_plural("jobs"), None);
    }

    #[test]
    fn a_ray_cluster_has_a_head_and_groups_with_their_hosts() {
        let cluster = json!({
            "spec": {"rayVersion": "2.60", "headGroupSpec": {}, "workerGroupSpecs": [
                {"groupName": "small", "replicas": 2, "minReplicas": 1, "maxReplicas": 4, "numOfHosts": 2},
                {"groupName": "held", "replicas": 3, "suspend": true},
                {"groupName": "least", "minReplicas": 2},
            ]},
            "status": {"head": {"podName": "c-head", "podIP": "10.0.0.1"}, "endpoints": {"client": "14001"}},
        });
        let groups = groups("RayCluster", &cluster, one);
        let shown: Vec<_> = groups
            .iter()
            .map(|group| (group.name.as_str(), group.wanted, group.range))
            .collect();
        assert_eq!(
            shown,
            [
                ("head", 1, None),
                ("small", 4, Some((2, 8))),
                ("held", 0, None),
                ("least", 2, None)
            ]
        );
        let head = head("RayCluster", &cluster);
        assert!(
            head.contains(&("Ports", "client 14001".to_owned())),
            "{head:?}"
        );
        assert!(head.contains(&("Ray", "2.60".to_owned())));
        assert!(super::head("Job", &cluster).is_empty());
    }

    #[test]
    fn a_volcano_job_has_its_tasks_and_times() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let job = json!({
            "spec": {"tasks": [{"name": "ps", "replicas": 2}, {"template": {}}]},
            "status": {
                "state": {"phase": "Failed", "message": "task ps-0 failed", "lastTransitionTime": at(9)},
                "conditions": [
                    {"status": "Pending", "lastTransitionTime": at(1)},
                    {"status": "Running", "lastTransitionTime": at(2)},
                    {"status": "Failed", "lastTransitionTime": at(9)},
                ],
            },
        });
        let groups = groups("Volcano Job", &job, one);
        let shown: Vec<_> = groups
            .iter()
            .map(|one| (one.name.as_str(), one.wanted))
            .collect();
        assert_eq!(shown, [("ps", 2), ("default1", 1)]);
        assert_eq!(started("Volcano Job", &job), Some(at(2)));
        assert_eq!(ended("Volcano Job", &job), Some(at(9)));
        assert_eq!(message("Volcano Job", &job), "task ps-0 failed");
    }

    #[test]
    fn a_job_set_and_a_train_job_have_their_jobs_times_and_messages() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let status = |counts: &str| {
            json!({counts: [{"name": "node"}], "conditions": [
                {"type": "Failed", "status": "True", "message": "why", "lastTransitionTime": at(9)}]})
        };
        let set = json!({"spec": {"replicatedJobs": [
            {"name": "node", "replicas": 2, "template": {"spec": {"parallelism": 3, "template": {}}}}]},
            "status": status("replicatedJobsStatus")});
        let groups_of = |shown: &str, object: &Value| {
            groups(shown, object, one)
                .first()
                .map(|group| (group.name.clone(), group.wanted))
        };
        assert_eq!(groups_of("JobSet", &set), Some(("node".to_owned(), 6)));
        let job = json!({"spec": {"trainer": {"numNodes": 4}}, "status": status("jobsStatus")});
        assert_eq!(groups_of("TrainJob", &job), Some(("node".to_owned(), 4)));
        for (shown, object) in [("JobSet", &set), ("TrainJob", &job)] {
            assert_eq!(ended(shown, object), Some(at(9)));
            assert_eq!(message(shown, object), "why");
        }
        let meta = |kind: &str| -> ObjectMeta {
            serde_json::from_value(json!({"ownerReferences": [
                {"apiVersion": "x/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]}))
            .unwrap()
        };
        assert!(
            is_part(&meta("JobSet")) && is_part(&meta("TrainJob")) && !is_part(&meta("CronJob"))
        );
    }

    #[test]
    fn a_leader_worker_set_has_its_groups_and_says_how_many_are_ready() {
        let set = |replicas: i64| {
            json!({"spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 3, "workerTemplate": {}}},
                "status": {"hpaPodSelector": "x", "readyReplicas": 1}})
        };
        let listed = groups("LeaderWorkerSet", &set(2), one);
        let listed: Vec<_> = listed
            .iter()
            .map(|group| (group.name.as_str(), group.wanted, group.gpus))
            .collect();
        assert_eq!(listed, [("0", 3, 3), ("1", 3, 3)]);
        let many = set(1_000_000);
        assert_eq!(groups("LeaderWorkerSet", &many, one).len(), 100);
        let all = [(1_000_000, 1), (2_000_000, 1)];
        assert_eq!(parts("LeaderWorkerSet", &many, one), all);
        let text = "1 of 2 groups are ready.";
        assert_eq!(message("LeaderWorkerSet", &set(2)), text);
    }

    #[test]
    fn a_ray_cluster_says_what_its_head_does() {
        let with = |reason: &str| {
            json!({"status": {"conditions": [
                {"type": "HeadPodReady", "status": "False", "reason": reason, "message": "c-head exited with code 1"},
                {"type": "RayClusterProvisioned", "status": "False", "message": "0 of 1 workers are ready"},
            ]}})
        };
        let message_for = |reason: &str| message("RayCluster", &with(reason));
        assert_eq!(message_for("HeadPodEnded"), "c-head exited with code 1");
        assert_eq!(
            message_for("ContainersNotReady"),
            "0 of 1 workers are ready"
        );
        assert_eq!(message("RayCluster", &json!({})), "");
    }
}
