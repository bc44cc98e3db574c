//! Owns the paths of each kind's pod templates, so that the rules for pods apply to them before a controller creates
//! pods from them. Does not judge a template.

use serde_json::Value;

use crate::json;
use crate::registry::Kind;

/// One step of the path to a template.
#[derive(Clone, Copy)]
enum TemplateStep {
    Member(&'static str),
    /// Every item of a list, or every member of an object.
    Each,
}

use TemplateStep::{Each, Member};

/// Group, kind, and the path from the object's root to a template.
const TEMPLATES: [(&str, &str, &[TemplateStep]); 20] = [
    ("apps", "DaemonSet", &[Member("spec"), Member("template")]),
    ("apps", "Deployment", &[Member("spec"), Member("template")]),
    ("apps", "ReplicaSet", &[Member("spec"), Member("template")]),
    ("apps", "StatefulSet", &[Member("spec"), Member("template")]),
    ("batch", "Job", &[Member("spec"), Member("template")]),
    (
        "batch",
        "CronJob",
        &[
            Member("spec"),
            Member("jobTemplate"),
            Member("spec"),
            Member("template"),
        ],
    ),
    (
        "batch.volcano.sh",
        "Job",
        &[Member("spec"), Member("tasks"), Each, Member("template")],
    ),
    (
        "ray.io",
        "RayCluster",
        &[Member("spec"), Member("headGroupSpec"), Member("template")],
    ),
    (
        "ray.io",
        "RayCluster",
        &[
            Member("spec"),
            Member("workerGroupSpecs"),
            Each,
            Member("template"),
        ],
    ),
    (
        "ray.io",
        "RayJob",
        &[
            Member("spec"),
            Member("rayClusterSpec"),
            Member("headGroupSpec"),
            Member("template"),
        ],
    ),
    (
        "ray.io",
        "RayJob",
        &[
            Member("spec"),
            Member("rayClusterSpec"),
            Member("workerGroupSpecs"),
            Each,
            Member("template"),
        ],
    ),
    (
        "ray.io",
        "RayJob",
        &[Member("spec"), Member("submitterPodTemplate")],
    ),
    (
        "ray.io",
        "RayService",
        &[
            Member("spec"),
            Member("rayClusterConfig"),
            Member("headGroupSpec"),
            Member("template"),
        ],
    ),
    (
        "ray.io",
        "RayService",
        &[
            Member("spec"),
            Member("rayClusterConfig"),
            Member("workerGroupSpecs"),
            Each,
            Member("template"),
        ],
    ),
    (
        "jobset.x-k8s.io",
        "JobSet",
        &[
            Member("spec"),
            Member("replicatedJobs"),
            Each,
            Member("template"),
            Member("spec"),
            Member("template"),
        ],
    ),
    (
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        &[
            Member("spec"),
            Member("leaderWorkerTemplate"),
            Member("leaderTemplate"),
        ],
    ),
    (
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        &[
            Member("spec"),
            Member("leaderWorkerTemplate"),
            Member("workerTemplate"),
        ],
    ),
    (
        "trainer.kubeflow.org",
        "TrainingRuntime",
        &[
            Member("spec"),
            Member("template"),
            Member("spec"),
            Member("replicatedJobs"),
            Each,
            Member("template"),
            Member("spec"),
            Member("template"),
        ],
    ),
    (
        "trainer.kubeflow.org",
        "TrainJob",
        &[
            Member("spec"),
            Member("runtimePatches"),
            Each,
            Member("trainingRuntimeSpec"),
            Member("template"),
            Member("spec"),
            Member("replicatedJobs"),
            Each,
            Member("template"),
            Member("spec"),
            Member("template"),
        ],
    ),
    (
        "serving.knative.dev",
        "Service",
        &[Member("spec"), Member("template")],
    ),
];

/// An object's pod templates, each with its field path.
pub(super) fn templates<'a>(kind: &Kind, object: &'a Value) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    for (group, name, way) in TEMPLATES {
        if (group, name) == (kind.group, kind.kind) {
            follow(object, way, String::new(), &mut found);
        }
    }
    if let Some(training) = kind.training() {
        let way = [
            Member("spec"),
            Member(training.replicas_field),
            Each,
            Member("template"),
        ];
        follow(object, &way, String::new(), &mut found);
    }
    found
}

fn follow<'a>(
    at: &'a Value,
    way: &[TemplateStep],
    path: String,
    found: &mut Vec<(String, &'a Value)>,
) {
    let Some((step, rest)) = way.split_first() else {
        if at.is_object() {
            found.push((path, at));
        }
        return;
    };
    match step {
        Member(key) => {
            let dot = if path.is_empty() { "" } else { "." };
            let path = format!("{path}{dot}{key}");
            follow(json::at(at, &[*key]), rest, path, found);
        }
        Each => {
            for (i, item) in json::items(at, &[]).iter().enumerate() {
                follow(item, rest, format!("{path}[{i}]"), found);
            }
            for (key, member) in json::members(at, &[]) {
                follow(member, rest, format!("{path}[{key}]"), found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    #[test]
    fn each_kind_with_templates_is_followed_to_all_of_them() {
        let table = [
            (
                ("apps", "v1", "DaemonSet"),
                json!({"spec": {"template": {}}}),
                vec!["spec.template"],
            ),
            (
                ("apps", "v1", "Deployment"),
                json!({"spec": {"template": {}}}),
                vec!["spec.template"],
            ),
            (
                ("apps", "v1", "ReplicaSet"),
                json!({"spec": {"template": {}}}),
                vec!["spec.template"],
            ),
            (
                ("apps", "v1", "StatefulSet"),
                json!({"spec": {"template": {}}}),
                vec!["spec.template"],
            ),
            (
                ("batch", "v1", "Job"),
                json!({"spec": {"template": {}}}),
                vec!["spec.template"],
            ),
            (
                ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
                json!({"spec": {"leaderWorkerTemplate": {"leaderTemplate": {}, "workerTemplate": {}}}}),
                vec![
                    "spec.leaderWorkerTemplate.leaderTemplate",
                    "spec.leaderWorkerTemplate.workerTemplate",
                ],
            ),
            (
                ("batch", "v1", "CronJob"),
                json!({"spec": {"jobTemplate": {"spec": {"template": {}}}}}),
                vec!["spec.jobTemplate.spec.template"],
            ),
            (
                ("kubeflow.org", "v1", "PyTorchJob"),
                json!({"spec": {"pytorchReplicaSpecs":
                    {"Master": {"template": {}}, "Worker": {"template": {}}}}}),
                vec![
                    "spec.pytorchReplicaSpecs[Master].template",
                    "spec.pytorchReplicaSpecs[Worker].template",
                ],
            ),
            (
                ("batch.volcano.sh", "v1alpha1", "Job"),
                json!({"spec": {"tasks": [{"template": {}}, {"template": 3}, {"template": {}}]}}),
                vec!["spec.tasks[0].template", "spec.tasks[2].template"],
            ),
            (
                ("ray.io", "v1", "RayCluster"),
                json!({"spec": {"headGroupSpec": {"template": {}},
                    "workerGroupSpecs": [{"template": {}}]}}),
                vec![
                    "spec.headGroupSpec.template",
                    "spec.workerGroupSpecs[0].template",
                ],
            ),
            (
                ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
                json!({"spec": {"replicatedJobs": [{"template": {"spec": {"template": {}}}}, {"name": "b"}]}}),
                vec!["spec.replicatedJobs[0].template.spec.template"],
            ),
            (
                ("trainer.kubeflow.org", "v1alpha1", "TrainingRuntime"),
                json!({"spec": {"template": {"spec": {"replicatedJobs": [{"template": {"spec": {"template": {}}}}]}}}}),
                vec!["spec.template.spec.replicatedJobs[0].template.spec.template"],
            ),
            (
                ("trainer.kubeflow.org", "v1alpha1", "TrainJob"),
                json!({"spec": {"runtimePatches": [{"trainingRuntimeSpec": {"template": {"spec": {
                    "replicatedJobs": [{"template": {"spec": {"template": {}}}}]}}}}]}}),
                vec![
                    "spec.runtimePatches[0].trainingRuntimeSpec.template.spec.replicatedJobs[0].template.spec.template",
                ],
            ),
            (
                ("serving.knative.dev", "v1", "Service"),
                json!({"spec": {"template": {}}}),
                vec!["spec.template"],
            ),
            (
                ("", "v1", "Service"),
                json!({"spec": {"template": {}}}),
                vec![],
            ),
        ];
        for ((group, version, name), object, want) in table {
            let kind = registry::by_kind(group, version, name).unwrap();
            let found = templates(kind, &object);
            let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
            assert_eq!(paths, want, "{group} {name}");
        }
    }
}
