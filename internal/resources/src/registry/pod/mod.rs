//! Pod: its registration, and the rules of pod templates for the kinds that make pods.

use serde_json::{Value, json};

use super::Kind;
use super::meta::{self, NameRule};
use crate::field::{FieldError, Path};
use crate::json;

mod containers;
mod defaults;
mod placement;
mod printing;
mod resources;
mod spec;
mod update;
mod volumes;

pub use printing::status_word;
pub(crate) use resources::{is_extended, is_overcommittable, quantity as check_quantity};
pub use resources::{qos_class, resource_list};

pub(super) const KIND: Kind = Kind {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    list_kind: "PodList",
    short_names: &["po"],
    categories: &["all"],
    schema: "io.k8s.api.core.v1.Pod",
    status: true,
    extra_subresources: &[
        "attach",
        "binding",
        "eviction",
        "exec",
        "log",
        "portforward",
        "proxy",
    ],
    graceful: true,
    generation: true,
    default: defaults::pod,
    validate,
    validate_status: update::check_status,
    prepare,
    columns: printing::COLUMNS,
    fields: &[
        ("spec.nodeName", |pod| {
            json::text(pod, &["spec", "nodeName"]).to_owned()
        }),
        ("spec.restartPolicy", |pod| {
            json::text(pod, &["spec", "restartPolicy"]).to_owned()
        }),
        ("spec.schedulerName", |pod| {
            json::text(pod, &["spec", "schedulerName"]).to_owned()
        }),
        ("spec.serviceAccountName", |pod| {
            json::text(pod, &["spec", "serviceAccountName"]).to_owned()
        }),
        ("spec.hostNetwork", |pod| {
            json::truth(pod, &["spec", "hostNetwork"]).to_string()
        }),
        ("status.phase", |pod| {
            json::text(pod, &["status", "phase"]).to_owned()
        }),
        ("status.podIP", |pod| {
            json::text(pod, &["status", "podIP"]).to_owned()
        }),
        ("status.nominatedNodeName", |pod| {
            json::text(pod, &["status", "nominatedNodeName"]).to_owned()
        }),
    ],
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    spec::check(json::at(new, &["spec"]), &path, &mut errors);
    if let Some(old) = old {
        update::check(
            json::at(new, &["spec"]),
            json::at(old, &["spec"]),
            &path,
            &mut errors,
        );
    }
    errors
}

fn prepare(new: &mut Value, old: Option<&Value>) {
    if old.is_some() {
        return;
    }
    let qos = qos_class(json::at(new, &["spec"]));
    let gated = !json::items(new, &["spec", "schedulingGates"]).is_empty();
    if let Some(pod) = new.as_object_mut() {
        let mut status = json!({ "phase": "Pending", "qosClass": qos });
        if gated {
            status["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates"
            }]);
        }
        pod.insert("status".to_owned(), status);
    }
}

/// Sets the defaults of a pod template as Kubernetes does: those of every pod spec, without those
/// of pods only.
pub fn default_template(template: &mut Value) {
    if let Some(spec) = json::object(template, "spec") {
        defaults::pod_spec(spec);
    }
}

/// Validates a pod template after defaulting.
pub fn check_template(template: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let meta_path = path.child("metadata");
    meta::labels(
        json::at(template, &["metadata", "labels"]),
        &meta_path.child("labels"),
        errors,
    );
    meta::annotations(
        json::at(template, &["metadata", "annotations"]),
        &meta_path.child("annotations"),
        errors,
    );
    spec::check(json::at(template, &["spec"]), &path.child("spec"), errors);
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
