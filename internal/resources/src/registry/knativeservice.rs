//! Knative's Service: the checks of its admission.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::columns::{NAME, of};
use super::meta::{self, NameRule};
use super::pod::{check_template, default_template};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;

/// Knative's default name for a container.
const CONTAINER: &str = "user-container";
/// Members of a revision's spec that a pod's spec lacks.
const OWN: [&str; 4] = [
    "containerConcurrency",
    "timeoutSeconds",
    "responseStartTimeoutSeconds",
    "idleTimeoutSeconds",
];

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "URL",
        "string",
        "Where it is reached.",
        Source::Field(&["status", "url"]),
    ),
    of(
        "Ready",
        "string",
        "Whether the service serves.",
        Source::Condition("Ready", "status"),
    ),
    of(
        "Reason",
        "string",
        "Why the service does not serve.",
        Source::Condition("Ready", "reason"),
    ),
];

pub(super) const KIND: Kind = Kind {
    group: "serving.knative.dev",
    kind: "Service",
    plural: "services",
    singular: "service",
    list_kind: "ServiceList",
    short_names: &["kservice", "ksvc"],
    categories: &["all", "knative", "serving"],
    definition: Some(kinds::KnativeService::crd),
    schema: "dev.knative.serving.v1.Service",
    status: true,
    generation: true,
    validate,
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    let path = Path::new("spec");
    let template_path = path.child("template");
    let mut template = json::at(new, &["spec", "template"]).clone();
    let spec_path = template_path.child("spec");
    let spec = json::at(&template, &["spec"]);
    for key in OWN {
        meta::not_negative(spec, key, &spec_path, &mut errors);
    }
    if json::items(spec, &["containers"]).is_empty() {
        errors.push(FieldError::required(
            &spec_path.child("containers"),
            "the container that serves",
        ));
        return errors;
    }
    // Checked in the form of the later pod, while the service stays as written.
    if let Some(spec) = json::child(&mut template, "spec") {
        for (i, container) in json::list(spec, "containers").enumerate() {
            let name = match i {
                0 => CONTAINER.to_owned(),
                i => format!("{CONTAINER}-{i}"),
            };
            json::fill_text(container, "name", &name);
        }
    }
    default_template(&mut template);
    check_template(&template, &template_path, &mut errors);
    errors
}
