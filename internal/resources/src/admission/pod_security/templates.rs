//! Owns the paths of the pod templates in objects of each kind.

use serde_json::Value;

use crate::json;
use crate::registry::Kind;

/// The most templates of one object that are checked, which bounds the cost and the answer of one write. The pods of
/// the others are checked at creation, as all pods are.
pub(super) const MAX_TEMPLATES: usize = 32;

/// The path of a kind's templates.
enum TemplatePath {
    /// One template, at a path.
    At(&'static [&'static str]),
    /// One template in each item of the list (or member of the object) at the first path, at the second path.
    Each(&'static [&'static str], &'static [&'static str]),
}

fn places(kind: &Kind) -> &'static [TemplatePath] {
    match (kind.group, kind.kind) {
        ("apps", "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet") | ("batch", "Job") => {
            &[TemplatePath::At(&["spec", "template"])]
        }
        ("batch", "CronJob") => &[TemplatePath::At(&[
            "spec",
            "jobTemplate",
            "spec",
            "template",
        ])],
        ("batch.volcano.sh", "Job") => &[TemplatePath::Each(&["spec", "tasks"], &["template"])],
        ("ray.io", "RayCluster") => &[
            TemplatePath::At(&["spec", "headGroupSpec", "template"]),
            TemplatePath::Each(&["spec", "workerGroupSpecs"], &["template"]),
        ],
        ("ray.io", "RayJob") => &[
            TemplatePath::At(&["spec", "rayClusterSpec", "headGroupSpec", "template"]),
            TemplatePath::Each(
                &["spec", "rayClusterSpec", "workerGroupSpecs"],
                &["template"],
            ),
            TemplatePath::At(&["spec", "submitterPodTemplate"]),
        ],
        ("ray.io", "RayService") => &[
            TemplatePath::At(&["spec", "rayClusterConfig", "headGroupSpec", "template"]),
            TemplatePath::Each(
                &["spec", "rayClusterConfig", "workerGroupSpecs"],
                &["template"],
            ),
        ],
        ("jobset.x-k8s.io", "JobSet") => &[TemplatePath::Each(
            &["spec", "replicatedJobs"],
            &["template", "spec", "template"],
        )],
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => &[
            TemplatePath::At(&["spec", "leaderWorkerTemplate", "leaderTemplate"]),
            TemplatePath::At(&["spec", "leaderWorkerTemplate", "workerTemplate"]),
        ],
        ("trainer.kubeflow.org", "TrainingRuntime") => &[TemplatePath::Each(
            &["spec", "template", "spec", "replicatedJobs"],
            &["template", "spec", "template"],
        )],
        ("serving.knative.dev", "Service") => &[TemplatePath::At(&["spec", "template"])],
        _ => &[],
    }
}

/// Whether objects of a kind have templates.
pub(super) fn known(kind: &Kind) -> bool {
    !places(kind).is_empty() || kind.training().is_some()
}

/// An object's templates, at most [`MAX_TEMPLATES`] of them.
pub(super) fn of<'a>(kind: &Kind, object: &'a Value) -> Vec<&'a Value> {
    let mut all = Vec::new();
    for place in places(kind) {
        match place {
            TemplatePath::At(path) => all.push(json::at(object, path)),
            TemplatePath::Each(list, path) => {
                let items = json::items(object, list).iter();
                let members = json::members(object, list).map(|(_, member)| member);
                all.extend(items.chain(members).map(|one| json::at(one, path)));
            }
        }
    }
    if let Some(training) = kind.training() {
        let specs = training.replica_specs(object);
        all.extend(specs.map(|(_, replica)| json::at(replica, &["template"])));
    }
    all.retain(|template| template.is_object());
    all.truncate(MAX_TEMPLATES);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;
    use crate::training;

    #[test]
    fn every_kind_that_has_pods_made_has_its_templates_found() {
        let t = |name: &str| json!({"spec": {"containers": [{"name": name}]}});
        let table = [
            ("apps", "v1", "DaemonSet", json!({"template": t("a")}), 1),
            ("apps", "v1", "Deployment", json!({"template": t("a")}), 1),
            ("apps", "v1", "ReplicaSet", json!({"template": t("a")}), 1),
            ("apps", "v1", "StatefulSet", json!({"template": t("a")}), 1),
            ("batch", "v1", "Job", json!({"template": t("a")}), 1),
            (
                "batch",
                "v1",
                "CronJob",
                json!({"jobTemplate": {"spec": {"template": t("a")}}}),
                1,
            ),
            (
                "kubeflow.org",
                "v1",
                "PyTorchJob",
                json!({"pytorchReplicaSpecs": {"Master": {"template": t("a")}, "Worker": {"template": t("b")}}}),
                2,
            ),
            (
                "batch.volcano.sh",
                "v1alpha1",
                "Job",
                json!({"tasks": [{"template": t("a")}, {"name": "none"}, {"template": t("b")}]}),
                2,
            ),
            (
                "batch.volcano.sh",
                "v1beta1",
                "Job",
                json!({"tasks": [{"template": t("a")}]}),
                1,
            ),
            (
                "jobset.x-k8s.io",
                "v1alpha2",
                "JobSet",
                json!({"replicatedJobs": [{"template": {"spec": {"template": t("a")}}}, {"name": "none"}]}),
                1,
            ),
            (
                "leaderworkerset.x-k8s.io",
                "v1",
                "LeaderWorkerSet",
                json!({"leaderWorkerTemplate": {"leaderTemplate": t("a"), "workerTemplate": t("b")}}),
                2,
            ),
            (
                "ray.io",
                "v1",
                "RayCluster",
                json!({"headGroupSpec": {"template": t("a")}, "workerGroupSpecs": [{"template": t("b")}]}),
                2,
            ),
            (
                "ray.io",
                "v1",
                "RayJob",
                json!({"submitterPodTemplate": t("c"), "rayClusterSpec": {
                    "headGroupSpec": {"template": t("a")}, "workerGroupSpecs": [{"template": t("b")}]}}),
                3,
            ),
            (
                "ray.io",
                "v1",
                "RayService",
                json!({"rayClusterConfig": {
                    "headGroupSpec": {"template": t("a")}, "workerGroupSpecs": [{"template": t("b")}]}}),
                2,
            ),
            (
                "serving.knative.dev",
                "v1",
                "Service",
                json!({"template": t("a")}),
                1,
            ),
            ("", "v1", "ConfigMap", json!({"template": t("a")}), 0),
        ];
        for (group, version, name, spec, count) in table {
            let kind = registry::by_kind(group, version, name).unwrap();
            let object = json!({"spec": spec});
            let found = of(kind, &object);
            assert_eq!(found.len(), count, "{name}");
            assert_eq!(known(kind), count > 0, "{name}");
            let first = found
                .first()
                .map(|template| &template["spec"]["containers"][0]["name"]);
            assert_eq!(first.is_some_and(|name| name == "a"), count > 0, "{name}");
        }
    }

    /// A kind whose definition has a pod template must be known here.
    #[test]
    fn no_kind_with_a_pod_template_is_forgotten() {
        let text = |kind: &Kind| {
            // A template that no kind accepts is refused with its path by each kind that checks one.
            let bad = json!({"spec": {"containers": [{"name": "A b"}], "restartPolicy": "x"}});
            let jobs = json!([{"name": "j", "template": {"spec": {"template": bad}}}]);
            // A runtime's template is a JobSet.
            let mut template = bad.clone();
            template["spec"]["replicatedJobs"] = jobs.clone();
            let mut spec = json!({
                "template": template, "replicatedJobs": jobs, "jobTemplate": {"spec": {"template": bad}}, "schedule": "* * * * *",
                "tasks": [{"name": "t", "template": bad}],
                "leaderWorkerTemplate": {"leaderTemplate": bad, "workerTemplate": bad},
                "headGroupSpec": {"template": bad}, "workerGroupSpecs": [{"template": bad}],
                "rayClusterSpec": {"headGroupSpec": {"template": bad}},
                "rayClusterConfig": {"headGroupSpec": {"template": bad}},
            });
            for training in training::ALL {
                spec[training.replicas_field] = json!({"Worker": {"template": bad}});
            }
            let object = json!({"metadata": {"name": "x", "namespace": "n"}, "spec": spec});
            (kind.validate)(&object, None)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("\n")
        };
        // A standard is a namespace's: pods made from a template of no namespace are checked in theirs.
        for kind in registry::all().iter().filter(|kind| kind.namespaced) {
            // "template.spec", or "workerTemplate.spec" of a LeaderWorkerSet.
            let checks_templates = text(kind).contains("emplate.spec");
            assert_eq!(known(kind), checks_templates, "{kind:?}");
        }
    }

    #[test]
    fn a_bounded_number_of_templates_is_looked_at() {
        let kind = registry::by_kind("batch.volcano.sh", "v1alpha1", "Job").unwrap();
        for count in [MAX_TEMPLATES, MAX_TEMPLATES + 1] {
            let tasks = vec![json!({"template": {"spec": {}}}); count];
            let found = of(kind, &json!({"spec": {"tasks": tasks}})).len();
            assert_eq!(found, MAX_TEMPLATES);
        }
    }
}
