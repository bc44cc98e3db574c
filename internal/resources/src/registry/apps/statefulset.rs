//! StatefulSet, `apps/v1`: pods with lasting names and claims.

use serde_json::{Value, json};

use super::super::columns::{AGE, NAME};
use super::super::meta::{self, NameRule};
use super::super::{Kind, ScalePaths, TableColumn};
use super::{
    CONTAINERS, IMAGES, READY, REVISION_HISTORY, add_claim_volumes, check_amount,
    check_claim_templates, check_percentage, check_retention, check_spec, default_spec, zeros,
};
use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

const MANAGEMENT: [&str; 2] = ["OrderedReady", "Parallel"];
/// The fields of a spec that may change.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

const COLUMNS: &[TableColumn] = &[NAME, READY, AGE, CONTAINERS, IMAGES];

pub(in super::super) const KIND: Kind = Kind {
    group: "apps",
    kind: "StatefulSet",
    plural: "statefulsets",
    singular: "statefulset",
    list_kind: "StatefulSetList",
    short_names: &["sts"],
    categories: &["all"],
    schema: "io.k8s.api.apps.v1.StatefulSet",
    status: true,
    scale: Some(ScalePaths {
        spec_replicas: ".spec.replicas",
        status_replicas: ".status.replicas",
        label_selector: Some(".spec.selector"),
    }),
    generation: true,
    default,
    validate,
    validate_status: |new, _| meta::conditions(new),
    prepare: |new, old| meta::with_status(new, old, zeros(&["replicas", "availableReplicas"])),
    columns: COLUMNS,
    ..Kind::BASE
};

fn default(set: &mut Value) {
    let Some(spec) = json::object(set, "spec") else {
        return;
    };
    json::fill_text(spec, "podManagementPolicy", "OrderedReady");
    if let Some(strategy) = json::object(spec, "updateStrategy") {
        if json::text(strategy, &["type"]).is_empty() {
            json::fill_text(strategy, "type", "RollingUpdate");
            json::fill(strategy, "rollingUpdate", json!({}));
        }
        if json::text(strategy, &["type"]) == "RollingUpdate"
            && let Some(rolling) = json::child(strategy, "rollingUpdate")
        {
            json::fill(rolling, "partition", 0);
        }
    }
    if let Some(policy) = json::object(spec, "persistentVolumeClaimRetentionPolicy") {
        json::fill_text(policy, "whenDeleted", "Retain");
        json::fill_text(policy, "whenScaled", "Retain");
    }
    json::fill(spec, "replicas", 1);
    json::fill(spec, "revisionHistoryLimit", REVISION_HISTORY);
    default_spec(spec);
    for claim in json::list(spec, "volumeClaimTemplates") {
        json::fill_text(claim, "apiVersion", "v1");
        json::fill_text(claim, "kind", "PersistentVolumeClaim");
        if let Some(spec) = json::object(claim, "spec") {
            json::fill_text(spec, "volumeMode", "Filesystem");
        }
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let rule = match old {
        None => NameRule::Label,
        // A name cannot change; upstream once took every subdomain.
        Some(_) => NameRule::Subdomain,
    };
    meta::check(new, old, true, rule, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    meta::one_of(spec, "podManagementPolicy", &MANAGEMENT, &path, &mut errors);
    strategy(spec, &path, &mut errors);
    check_retention(spec, &path, &mut errors);
    let ordinals = path.child("ordinals");
    meta::not_negative(
        json::at(spec, &["ordinals"]),
        "start",
        &ordinals,
        &mut errors,
    );
    let service = json::text(spec, &["serviceName"]);
    if old.is_none() && !service.is_empty() {
        for fault in syntax::dns1123_label(service) {
            errors.push(FieldError::invalid(
                &path.child("serviceName"),
                service,
                fault,
            ));
        }
    }
    let claims = json::items(spec, &["volumeClaimTemplates"]);
    if old.is_none() {
        check_claim_templates(claims, &path, &mut errors);
    }
    check_spec(
        &with_claims(spec, claims),
        &path,
        "statefulset",
        "StatefulSet",
        &mut errors,
    );
    if let Some(old) = old {
        changes(spec, json::at(old, &["spec"]), &mut errors);
    }
    errors
}

/// The spec with the volumes that the controller adds for the claims, which the containers' mounts may name, and
/// without the host name and subdomain that it replaces.
fn with_claims(spec: &Value, claims: &[Value]) -> Value {
    let mut spec = spec.clone();
    let Some(pod) =
        json::child(&mut spec, "template").and_then(|template| json::child(template, "spec"))
    else {
        return spec;
    };
    if let Some(pod) = pod.as_object_mut() {
        pod.remove("hostname");
        pod.remove("subdomain");
    }
    add_claim_volumes(pod, claims);
    spec
}

fn strategy(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("updateStrategy");
    let strategy = json::at(spec, &["updateStrategy"]);
    let rolling = json::at(strategy, &["rollingUpdate"]);
    let rolling_path = path.child("rollingUpdate");
    match json::text(strategy, &["type"]) {
        "OnDelete" if !rolling.is_null() => errors.push(FieldError::invalid(
            &rolling_path,
            rolling.clone(),
            "only allowed for updateStrategy 'RollingUpdate'",
        )),
        "OnDelete" => {}
        "RollingUpdate" => {
            meta::not_negative(rolling, "partition", &rolling_path, errors);
            check_amount(rolling, "maxUnavailable", &rolling_path, errors);
            check_percentage(rolling, "maxUnavailable", &rolling_path, errors);
        }
        _ => errors.push(FieldError::invalid(
            &path,
            strategy.clone(),
            "must be 'RollingUpdate' or 'OnDelete'",
        )),
    }
}

fn changes(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let mut kept = old.clone();
    if let Some(kept) = kept.as_object_mut() {
        for key in CHANGEABLE {
            kept.insert(key.to_owned(), json::at(new, &[key]).clone());
        }
    }
    if !json::same(new, &kept) {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.push(FieldError::forbidden("spec", detail));
    }
}
