//! RayCluster: KubeRay's checks, except for fields that KubeRay requires and users omit (see
//! [`crate::kinds::RayCluster`]).

use std::collections::BTreeSet;

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, of};
use super::meta::{self, NameRule};
use super::pod::{check_template, default_template};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;
use crate::numbers::GANG_MEMBERS_MAX;

pub(super) const MANAGERS: [&str; 2] = ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "desired workers",
        "integer",
        "Workers wanted.",
        Source::Field(&["status", "desiredWorkerReplicas"]),
    ),
    of(
        "available workers",
        "integer",
        "Workers running.",
        Source::Field(&["status", "availableWorkerReplicas"]),
    ),
    of(
        "status",
        "string",
        "The phase of the cluster.",
        Source::Field(&["status", "state"]),
    ),
    AGE,
];

/// What the registrations of Ray's kinds have in common.
pub(super) const RAY: Kind = Kind {
    group: "ray.io",
    categories: &["all"],
    status: true,
    generation: true,
    prepare: meta::without_status,
    ..Kind::BASE
};

pub(super) const KIND: Kind = Kind {
    kind: "RayCluster",
    plural: "rayclusters",
    singular: "raycluster",
    list_kind: "RayClusterList",
    definition: Some(kinds::RayCluster::crd),
    schema: "io.ray.v1.RayCluster",
    default: |cluster| {
        if let Some(spec) = json::child(cluster, "spec") {
            default_spec(spec);
        }
    },
    validate,
    columns: COLUMNS,
    ..RAY
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let before = old.map(|old| json::at(old, &["spec"]));
    check_spec(spec, before, &path, &mut errors);
    if let Some(before) = before {
        meta::immutable(spec, before, &["managedBy"], &path, &mut errors);
    }
    errors
}

/// The longest name of an object that has clusters of its own: the names of clusters, heads and Services are the object's
/// with more characters.
pub(super) const OWNER_NAME_MAX: usize = 47;

/// Checks the metadata of an object that has clusters of its own.
pub(super) fn check_owner(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    meta::check(new, old, true, NameRule::Dns1035, errors);
    if json::text(new, &["metadata", "name"]).len() > OWNER_NAME_MAX {
        errors.push(FieldError::too_long("metadata.name", OWNER_NAME_MAX));
    }
}

/// Sets what Ray's autoscaler reads of each group, if it is to run.
pub(super) fn default_spec(spec: &mut Value) {
    if !json::truth(spec, &["enableInTreeAutoscaling"]) {
        return;
    }
    for (i, group) in json::list(spec, "workerGroupSpecs").enumerate() {
        json::fill_text(group, "groupName", &format!("group{i}"));
        json::fill(group, "minReplicas", 0);
        let least = json::int(group, &["minReplicas"]).unwrap_or(0);
        json::fill(group, "replicas", least);
        json::fill(group, "maxReplicas", i32::MAX);
        json::fill(group, "numOfHosts", 1);
        // It replaces this member by a JSON patch, which needs one that exists.
        json::fill(group, "scaleStrategy", json!({}));
    }
}

/// Checks what Ray's autoscaler reads of a group: it ends at a group without it.
fn autoscaled(group: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let container = json::items(group, &["template", "spec", "containers"]).first();
    let asks = |kind: &str| {
        let amount = container.map(|one| json::at(one, &["resources", kind, "cpu"]));
        amount.is_some_and(|amount| !amount.is_null())
    };
    let given = |path: &[&str]| !json::at(group, path).is_null();
    let cpus = given(&["rayStartParams", "num-cpus"])
        || given(&["resources", "CPU"])
        || asks("limits")
        || asks("requests");
    if !cpus && given(&["template"]) {
        let field = path.child("rayStartParams");
        let detail = "with enableInTreeAutoscaling, give num-cpus here, or a CPU limit to the first container";
        errors.push(FieldError::required(&field, detail));
    }
}

/// Checks a cluster's spec, which a RayJob has, too.
pub(super) fn check_spec(
    spec: &Value,
    before: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let head = path.child("headGroupSpec");
    match json::at(spec, &["headGroupSpec"]) {
        Value::Null => errors.push(FieldError::required(&head, "a cluster has a head")),
        group => template(group, &head, errors),
    }
    let scales = json::truth(spec, &["enableInTreeAutoscaling"]);
    if scales {
        let group = json::at(spec, &["headGroupSpec"]);
        if json::at(group, &["template"]).is_null() && !group.is_null() {
            let detail = "Ray's autoscaler reads it: give the head's pod";
            errors.push(FieldError::required(&head.child("template"), detail));
        }
        autoscaled(group, &head, errors);
        autoscaler_options(spec, path, errors);
    }
    meta::one_of(spec, "managedBy", &MANAGERS, path, errors);
    let list = path.child("workerGroupSpecs");
    let mut seen = BTreeSet::new();
    let groups = json::items(spec, &["workerGroupSpecs"]);
    for (i, group) in groups.iter().enumerate() {
        let path = list.index(i);
        let name = json::text(group, &["groupName"]);
        if !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("groupName"), name));
        }
        numbers(group, &path, errors);
        if scales {
            autoscaled(group, &path, errors);
        }
        if json::at(group, &["template"]).is_null() {
            let detail = "the pod of a worker must be specified";
            errors.push(FieldError::required(&path.child("template"), detail));
        }
        template(group, &path, errors);
    }
    // A cluster that was stored with more pods can keep that many.
    let before = before.map_or(0, pods_of);
    let pods = pods_of(spec);
    if pods > before.max(GANG_MEMBERS_MAX) {
        let detail = format!(
            "all groups together must have at most {GANG_MEMBERS_MAX} pods: replicas times numOfHosts"
        );
        errors.push(FieldError::invalid(&list, pods, detail));
    }
}

fn autoscaler_options(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("autoscalerOptions");
    let options = json::at(spec, &["autoscalerOptions"]);
    meta::one_of(options, "version", &["v1", "v2"], &path, errors);
    let modes = ["Default", "Aggressive", "Conservative"];
    meta::one_of(options, "upscalingMode", &modes, &path, errors);
    meta::not_negative(options, "idleTimeoutSeconds", &path, errors);
}

/// The total number of workers of all groups.
fn pods_of(spec: &Value) -> i64 {
    let groups = json::items(spec, &["workerGroupSpecs"]).iter();
    let pods = groups.map(|group| {
        let number = |key: &str| json::int(group, &[key]).unwrap_or(0);
        let replicas = number("replicas").max(number("minReplicas")).max(0);
        replicas.saturating_mul(number("numOfHosts").max(1))
    });
    pods.fold(0, i64::saturating_add)
}

fn numbers(group: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["replicas", "minReplicas", "maxReplicas"] {
        meta::not_negative(group, key, path, errors);
    }
    let number = |key: &str| json::int(group, &[key]);
    if let (Some(min), Some(max)) = (number("minReplicas"), number("maxReplicas"))
        && min > max
    {
        let detail = format!("must be less than or equal to maxReplicas {max}");
        errors.push(FieldError::invalid(&path.child("minReplicas"), min, detail));
    }
    if let Some(hosts) = number("numOfHosts").filter(|hosts| *hosts < 1) {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(
            &path.child("numOfHosts"),
            hosts,
            detail,
        ));
    }
}

/// Checks a group's template in the form of the later pod, while the cluster stays as written.
fn template(group: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    check_later_pod(
        json::at(group, &["template"]),
        &path.child("template"),
        errors,
    );
}

/// Checks the template of a pod whose first container gets its command from the controller; an absent one is valid.
pub(super) fn check_later_pod(template: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut template = template.clone();
    if template.is_null() {
        return;
    }
    if json::items(&template, &["spec", "containers"]).is_empty() {
        let spec = path.child("spec");
        let detail = "the first container runs Ray";
        errors.push(FieldError::required(&spec.child("containers"), detail));
        return;
    }
    // The controller writes the command that starts Ray.
    let first = template.pointer_mut("/spec/containers/0");
    if let Some(first) =
        first.filter(|first| json::at(first, &["command"]).is_null() && first.is_object())
    {
        first["command"] = Value::from(vec!["ray"]);
    }
    default_template(&mut template);
    check_template(&template, path, errors);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_needs_a_head_and_groups_whose_numbers_can_be() {
        let of = |spec: Value| {
            let cluster = json!({"metadata": {"name": "c", "namespace": "team"}, "spec": spec});
            let errors = (KIND.validate)(&cluster, None);
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            texts
        };
        let pod = json!({"spec": {"containers": [{"name": "ray", "image": "x"}]}});
        let group = |more: Value| {
            let mut group = json!({"groupName": "g", "template": pod});
            for (key, value) in more.as_object().unwrap() {
                group[key] = value.clone();
            }
            json!({"headGroupSpec": {}, "workerGroupSpecs": [group]})
        };
        assert!(of(group(json!({"replicas": 2}))).is_empty());
        let bare = json!({"spec": {"containers": [{"name": "ray"}]}});
        assert!(
            of(group(json!({"template": bare}))).is_empty(),
            "the command is the controller's"
        );
        assert!(of(group(json!({"replicas": 10_000, "numOfHosts": 2}))).is_empty());
        let table = [
            (
                json!({}),
                "spec.headGroupSpec: Required value: a cluster has a head",
            ),
            (
                group(json!({"minReplicas": 3, "maxReplicas": 1})),
                "spec.workerGroupSpecs[0].minReplicas: Invalid value: 3: must be less than or equal to maxReplicas 1",
            ),
            (
                group(json!({"replicas": i64::MAX, "numOfHosts": 4})),
                "spec.workerGroupSpecs: Invalid value: 9223372036854775807: all groups together must have at most 20000 pods: replicas times numOfHosts",
            ),
            (
                group(json!({"replicas": 10_001, "numOfHosts": 2})),
                "spec.workerGroupSpecs: Invalid value: 20002: all groups together must have at most 20000 pods: replicas times numOfHosts",
            ),
            (
                group(json!({"template": null})),
                "spec.workerGroupSpecs[0].template: Required value: the pod of a worker must be specified",
            ),
            (
                json!({"headGroupSpec": {}, "managedBy": "me"}),
                "spec.managedBy: Unsupported value: \"me\": supported values: \"ray.io/kuberay-operator\", \"kueue.x-k8s.io/multikueue\"",
            ),
        ];
        for (spec, text) in table {
            assert_eq!(of(spec), [text]);
        }
    }

    #[test]
    fn an_autoscaled_cluster_has_what_rays_autoscaler_reads() {
        let pod = json!({"spec": {"containers": [{"name": "ray", "image": "x"}]}});
        let group = json!({"template": pod, "minReplicas": 1, "rayStartParams": {"num-cpus": 1}});
        let mut cluster = json!({"metadata": {"name": "c", "namespace": "team"}, "spec": {
            "enableInTreeAutoscaling": true, "workerGroupSpecs": [group],
            "headGroupSpec": {"template": pod, "rayStartParams": {"num-cpus": "0"}}}});
        (KIND.default)(&mut cluster);
        let stored = &cluster["spec"]["workerGroupSpecs"][0];
        assert_eq!(stored["scaleStrategy"], json!({}));
        let read = [
            "groupName",
            "replicas",
            "minReplicas",
            "maxReplicas",
            "numOfHosts",
        ];
        let read = read.map(|key| stored[key].clone());
        assert_eq!(json!(read), json!(["group0", 1, 1, 2_147_483_647, 1]));
        let texts = |cluster: &Value| -> Vec<String> {
            let errors = (KIND.validate)(cluster, None);
            errors.iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(&cluster), [""; 0]);
        let head = &mut cluster["spec"]["headGroupSpec"];
        head["rayStartParams"] = Value::Null;
        let want = "spec.headGroupSpec.rayStartParams: Required value: with enableInTreeAutoscaling, give num-cpus here, or a CPU limit to the first container";
        assert_eq!(texts(&cluster), [want]);
        cluster["spec"]["headGroupSpec"]["template"] = Value::Null;
        let want = "spec.headGroupSpec.template: Required value: Ray's autoscaler reads it: give the head's pod";
        assert_eq!(texts(&cluster), [want]);
        cluster["spec"]["enableInTreeAutoscaling"] = false.into();
        assert_eq!(texts(&cluster), [""; 0]);
    }
}
