//! LeaderWorkerSet: the defaults and checks of its webhook, and refusals of what Muster does not do. Templates are checked
//! in the form of the later pods, while the set stays as written.

use k8s_openapi::api::apps::v1::StatefulSetPersistentVolumeClaimRetentionPolicy;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PodTemplateSpec};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::apps::{
    add_claim_volumes, check_amount, check_claim_templates, check_percentage, check_retention,
    is_zero,
};
use super::columns::{AGE, NAME, of};
use super::meta::{self, NameRule};
use super::pod::{check_template, default_template};
use super::{Kind, ScalePaths, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;
use crate::leader_worker_set::{
    EXCLUSIVE, GROUP, KIND as SET, LEADER_CREATED, LEADER_EXCLUDED, LEADER_READY, LEADER_WORKER,
    RECREATE_ON_RESTART, RESTART_POLICIES, SHARED, UNIQUE,
};
use crate::numbers::GANG_MEMBERS_MAX;

/// The most groups, as upstream.
const REPLICAS_MAX: i64 = 1_000_000;
/// The longest name: the longest pod has its group's and its own number after it, in a host name of 63 characters.
const NAME_MAX: usize = 49;

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "Ready",
        "integer",
        "Number of ready replicas",
        Source::Field(&["status", "readyReplicas"]),
    ),
    of(
        "Desired",
        "integer",
        "Number of desired replicas",
        Source::Field(&["spec", "replicas"]),
    ),
    of(
        "Up-to-date",
        "integer",
        "Number of up-to-date replicas",
        Source::Field(&["status", "updatedReplicas"]),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    version: "v1",
    kind: SET,
    plural: "leaderworkersets",
    singular: "leaderworkerset",
    list_kind: "LeaderWorkerSetList",
    short_names: &["lws"],
    definition: Some(kinds::LeaderWorkerSet::crd),
    schema: "io.x-k8s.leaderworkerset.v1.LeaderWorkerSet",
    status: true,
    scale: Some(ScalePaths {
        spec_replicas: ".spec.replicas",
        status_replicas: ".status.replicas",
        label_selector: Some(".status.hpaPodSelector"),
    }),
    generation: true,
    default: |set| {
        if let Some(spec) = json::object(set, "spec") {
            default_spec(spec);
        }
    },
    validate,
    validate_status: |new, _| meta::conditions(new),
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

/// The defaults of the definition and of the webhook.
fn default_spec(spec: &mut Value) {
    json::fill(spec, "replicas", 1);
    json::fill_text(spec, "startupPolicy", LEADER_CREATED);
    if let Some(template) = json::object(spec, "leaderWorkerTemplate") {
        json::fill(template, "size", 1);
        json::fill_text(template, "restartPolicy", RECREATE_ON_RESTART);
        if let Some(policy) = json::child(template, "subGroupPolicy") {
            json::fill_text(policy, "subGroupPolicyType", LEADER_WORKER);
        }
    }
    if let Some(strategy) = json::object(spec, "rolloutStrategy") {
        json::fill_text(strategy, "type", "RollingUpdate");
        if let Some(rolling) = json::object(strategy, "rollingUpdateConfiguration") {
            json::fill(rolling, "partition", 0);
            json::fill(rolling, "maxUnavailable", 1);
            json::fill(rolling, "maxSurge", 0);
        }
    }
    if let Some(network) = json::object(spec, "networkConfig") {
        json::fill_text(network, "subdomainPolicy", SHARED);
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Dns1035, &mut errors);
    if json::text(new, &["metadata", "name"]).len() > NAME_MAX {
        errors.push(FieldError::too_long("metadata.name", NAME_MAX));
    }
    refuse_exclusive(new, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    meta::one_of(
        spec,
        "startupPolicy",
        &[LEADER_CREATED, LEADER_READY],
        &path,
        &mut errors,
    );
    let network = path.child("networkConfig");
    meta::one_of(
        json::at(spec, &["networkConfig"]),
        "subdomainPolicy",
        &[SHARED, UNIQUE],
        &network,
        &mut errors,
    );
    numbers(spec, &path, &mut errors);
    rollout(spec, &path, &mut errors);
    let template_path = path.child("leaderWorkerTemplate");
    template(
        json::at(spec, &["leaderWorkerTemplate"]),
        &template_path,
        &mut errors,
    );
    if let Some(old) = old {
        let before = json::at(old, &["spec", "leaderWorkerTemplate"]);
        let now = json::at(spec, &["leaderWorkerTemplate"]);
        let claims = |template: &Value| json::at(template, &["volumeClaimTemplates"]).clone();
        if !json::same(&claims(before), &claims(now)) {
            let detail = "field is immutable; create another LeaderWorkerSet";
            let path = template_path.child("volumeClaimTemplates");
            errors.push(FieldError::invalid(&path, claims(now), detail));
        }
        let size =
            |template: &Value| json::at(template, &["subGroupPolicy", "subGroupSize"]).clone();
        if size(before) != size(now) {
            let policy = template_path.child("subGroupPolicy");
            let detail = "field is immutable; create another LeaderWorkerSet";
            errors.push(FieldError::invalid(
                &policy.child("subGroupSize"),
                size(now),
                detail,
            ));
        }
    }
    errors
}

fn refuse_exclusive(set: &Value, errors: &mut Vec<FieldError>) {
    for key in EXCLUSIVE {
        if !json::text(set, &["metadata", "annotations", key]).is_empty() {
            let path = Path::new("metadata");
            let path = path.child("annotations");
            let detail = "Muster does not give each group a topology domain to itself; leave it out, and use \
                          muster.io/topology to have a group's pods close together";
            errors.push(FieldError::forbidden(&path.key(key), detail));
        }
    }
}

fn numbers(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let replicas = json::int(spec, &["replicas"]).unwrap_or(1);
    if !(0..=REPLICAS_MAX).contains(&replicas) {
        let detail = format!("must be from 0 to {REPLICAS_MAX}");
        errors.push(FieldError::invalid(
            &path.child("replicas"),
            replicas,
            detail,
        ));
    }
    let size = json::int(spec, &["leaderWorkerTemplate", "size"]).unwrap_or(1);
    let of_template = path.child("leaderWorkerTemplate");
    let size_path = of_template.child("size");
    if !(1..=GANG_MEMBERS_MAX).contains(&size) {
        let detail = format!("must be from 1 to {GANG_MEMBERS_MAX}, the most members of a gang");
        errors.push(FieldError::invalid(&size_path, size, detail));
        return;
    }
    if replicas.saturating_mul(size) > i64::from(i32::MAX) {
        let detail = format!(
            "the product of replicas and size must not exceed {}",
            i32::MAX
        );
        errors.push(FieldError::invalid(
            &path.child("replicas"),
            replicas,
            detail,
        ));
    }
    let policy = json::at(spec, &["leaderWorkerTemplate", "subGroupPolicy"]);
    if policy.is_null() {
        return;
    }
    let policy_path = of_template.child("subGroupPolicy");
    meta::one_of(
        policy,
        "subGroupPolicyType",
        &[LEADER_WORKER, LEADER_EXCLUDED],
        &policy_path,
        errors,
    );
    let part = json::int(policy, &["subGroupSize"]);
    let excluded = json::text(policy, &["subGroupPolicyType"]) == LEADER_EXCLUDED;
    let fault = match part {
        None => Some("give the pods of a subgroup".to_owned()),
        Some(part) if part < 1 || part > size => Some(format!("must be from 1 to size, {size}")),
        Some(part) if (size - 1) % part == 0 || !excluded && size % part == 0 => None,
        Some(_) if excluded => Some(format!("size - 1, {}, must be divisible by it", size - 1)),
        Some(_) => Some(format!("size or size - 1, {size}, must be divisible by it")),
    };
    if let Some(detail) = fault {
        let given = json::at(policy, &["subGroupSize"]).clone();
        errors.push(FieldError::invalid(
            &policy_path.child("subGroupSize"),
            given,
            detail,
        ));
    }
}

fn rollout(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let strategy = json::at(spec, &["rolloutStrategy"]);
    let path = path.child("rolloutStrategy");
    meta::one_of(strategy, "type", &["RollingUpdate"], &path, errors);
    let rolling = json::at(strategy, &["rollingUpdateConfiguration"]);
    let path = path.child("rollingUpdateConfiguration");
    meta::not_negative(rolling, "partition", &path, errors);
    for key in ["maxUnavailable", "maxSurge"] {
        check_amount(rolling, key, &path, errors);
        check_percentage(rolling, key, &path, errors);
    }
    let zero =
        |key: &str| !json::at(rolling, &[key]).is_null() && is_zero(json::at(rolling, &[key]));
    if zero("maxUnavailable") && is_zero(json::at(rolling, &["maxSurge"])) {
        let given = json::at(rolling, &["maxUnavailable"]).clone();
        let detail = "must not be 0 when `maxSurge` is 0";
        errors.push(FieldError::invalid(
            &path.child("maxUnavailable"),
            given,
            detail,
        ));
    }
}

fn template(template: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    meta::one_of(template, "restartPolicy", &RESTART_POLICIES, path, errors);
    let claims = json::items(template, &["volumeClaimTemplates"]);
    check_claim_templates(claims, path, errors);
    check_retention(template, path, errors);
    check_form::<Vec<PersistentVolumeClaim>>(template, "volumeClaimTemplates", path, errors);
    check_form::<StatefulSetPersistentVolumeClaimRetentionPolicy>(
        template,
        "persistentVolumeClaimRetentionPolicy",
        path,
        errors,
    );
    for key in ["workerTemplate", "leaderTemplate"] {
        let pod = json::at(template, &[key]);
        if pod.is_null() && key == "leaderTemplate" {
            continue;
        }
        pod_template(pod, claims, &path.child(key), errors);
    }
}

/// Checks that the controller can read a field as this type.
fn check_form<T: serde::de::DeserializeOwned>(
    template: &Value,
    key: &str,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let given = json::at(template, &[key]);
    if given.is_null() {
        return;
    }
    if let Err(error) = serde_json::from_value::<T>(given.clone()) {
        let detail = format!("must have the form of a StatefulSet's field of this name: {error}");
        errors.push(FieldError::invalid(&path.child(key), json!(""), detail));
    }
}

fn pod_template(template: &Value, claims: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let spec_path = path.child("spec");
    if json::items(template, &["spec", "containers"]).is_empty() {
        let detail = "a pod has at least one container";
        errors.push(FieldError::required(&spec_path.child("containers"), detail));
        return;
    }
    if let Err(error) = serde_json::from_value::<PodTemplateSpec>(template.clone()) {
        let detail = format!("must be a pod's template: {error}");
        errors.push(FieldError::invalid(path, json!(""), detail));
        return;
    }
    let mut later = template.clone();
    default_template(&mut later);
    if let Some(pod) = json::child(&mut later, "spec") {
        add_claim_volumes(pod, claims);
    }
    check_template(&later, path, errors);
    let policy = json::text(&later, &["spec", "restartPolicy"]);
    if policy != "Always" {
        let path = spec_path.child("restartPolicy");
        errors.push(FieldError::not_supported(&path, policy, &["Always"]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(change: impl FnOnce(&mut Value)) -> Value {
        let pod = json!({"spec": {"containers": [{"name": "c", "image": "x"}]}});
        let mut set = json!({
            "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": SET,
            "metadata": {"name": "vllm", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod}},
        });
        change(&mut set);
        default_spec(&mut set["spec"]);
        set
    }

    fn fields(set: &Value, old: Option<&Value>) -> Vec<String> {
        let errors = validate(set, old);
        errors.iter().map(|error| error.path.clone()).collect()
    }

    #[test]
    fn defaults_are_those_of_the_definition_and_the_webhook() {
        let spec = set(|_| {})["spec"].clone();
        assert_eq!(spec["startupPolicy"], LEADER_CREATED);
        assert_eq!(
            spec["leaderWorkerTemplate"]["restartPolicy"],
            RECREATE_ON_RESTART
        );
        assert_eq!(
            spec["rolloutStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdateConfiguration":
                {"partition": 0, "maxUnavailable": 1, "maxSurge": 0}})
        );
        assert_eq!(spec["networkConfig"]["subdomainPolicy"], SHARED);
        let mut again = spec.clone();
        default_spec(&mut again);
        assert_eq!(again, spec);
    }

    #[test]
    fn each_field_is_checked() {
        type Change = fn(&mut Value);
        let table: [(Change, &[&str]); 16] = [
            (|_| {}, &[]),
            (
                |set| set["spec"]["replicas"] = json!(-1),
                &["spec.replicas"],
            ),
            (
                |set| set["spec"]["replicas"] = json!(1_000_001),
                &["spec.replicas"],
            ),
            (
                |set| set["spec"]["leaderWorkerTemplate"]["size"] = json!(0),
                &["spec.leaderWorkerTemplate.size"],
            ),
            (
                |set| {
                    set["spec"]["replicas"] = json!(1_000_000);
                    set["spec"]["leaderWorkerTemplate"]["size"] = json!(20_000);
                },
                &["spec.replicas"],
            ),
            (
                |set| set["spec"]["startupPolicy"] = json!("Soon"),
                &["spec.startupPolicy"],
            ),
            (
                |set| {
                    set["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] =
                        json!({"subGroupSize": 3})
                },
                &[],
            ),
            (
                |set| {
                    set["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] =
                        json!({"subGroupSize": 5})
                },
                &["spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"],
            ),
            (
                |set| {
                    set["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] =
                        json!({"subGroupSize": 2, "subGroupPolicyType": LEADER_EXCLUDED});
                },
                &["spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"],
            ),
            (
                |set| {
                    set["spec"]["rolloutStrategy"] =
                        json!({"rollingUpdateConfiguration": {"maxUnavailable": 0}});
                },
                &["spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailable"],
            ),
            (
                |set| {
                    set["spec"]["rolloutStrategy"] =
                        json!({"rollingUpdateConfiguration": {"maxSurge": "101%"}});
                },
                &["spec.rolloutStrategy.rollingUpdateConfiguration.maxSurge"],
            ),
            (
                |set| set["spec"]["leaderWorkerTemplate"]["volumeClaimTemplates"] = json!([{}]),
                &["spec.leaderWorkerTemplate.volumeClaimTemplates[0].metadata.name"],
            ),
            (
                |set| {
                    set["spec"]["leaderWorkerTemplate"]["volumeClaimTemplates"] =
                        json!([{"metadata": {"name": "data"}, "spec": {"accessModes": "all"}}]);
                },
                &["spec.leaderWorkerTemplate.volumeClaimTemplates"],
            ),
            (
                |set| {
                    set["spec"]["leaderWorkerTemplate"]["persistentVolumeClaimRetentionPolicy"] =
                        json!({"whenScaled": "Keep"});
                },
                &["spec.leaderWorkerTemplate.persistentVolumeClaimRetentionPolicy.whenScaled"],
            ),
            (
                |set| {
                    set["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["restartPolicy"] =
                        json!("Never");
                },
                &["spec.leaderWorkerTemplate.workerTemplate.spec.restartPolicy"],
            ),
            (
                |set| set["metadata"]["annotations"] = json!({EXCLUSIVE[0]: "rack"}),
                &["metadata.annotations[leaderworkerset.sigs.k8s.io/exclusive-topology]"],
            ),
        ];
        for (change, want) in table {
            let object = set(change);
            assert_eq!(fields(&object, None), want, "{object}");
        }
        let mounts = |claims: Value| {
            set(|set| {
                let template = &mut set["spec"]["leaderWorkerTemplate"];
                template["volumeClaimTemplates"] = claims;
                template["workerTemplate"]["spec"]["containers"][0]["volumeMounts"] =
                    json!([{"name": "data", "mountPath": "/data"}]);
            })
        };
        let with = mounts(json!([{"metadata": {"name": "data"}}]));
        assert_eq!(fields(&with, None), Vec::<String>::new());
        assert_eq!(fields(&mounts(json!([])), None).len(), 1);
        let other = mounts(json!([{"metadata": {"name": "data"}, "spec": {"volumeName": "v"}}]));
        assert_eq!(
            fields(&other, Some(&with)),
            ["spec.leaderWorkerTemplate.volumeClaimTemplates"]
        );
        let parts = |size: i64| {
            set(|set| {
                set["spec"]["leaderWorkerTemplate"]["subGroupPolicy"] =
                    json!({"subGroupSize": size})
            })
        };
        let changed = fields(&parts(1), Some(&parts(3)));
        assert_eq!(
            changed,
            ["spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize"]
        );
    }
}
