//! RayService: KubeRay's checks, and refusals of what Muster does not run.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::columns::{AGE, NAME, of};
use super::meta;
use super::raycluster::{MANAGERS, RAY, check_owner, check_spec, default_spec};
use super::{Kind, Source, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::kinds;
use crate::serve_config;

const UPGRADES: [&str; 2] = ["NewCluster", "None"];
const INCREMENTAL: &str = "NewClusterWithIncrementalUpgrade";

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "service status",
        "string",
        "Running if the applications are reached.",
        Source::Field(&["status", "serviceStatus"]),
    ),
    of(
        "num serve endpoints",
        "string",
        "The pods that get requests.",
        Source::Field(&["status", "numServeEndpoints"]),
    ),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    kind: "RayService",
    plural: "rayservices",
    singular: "rayservice",
    list_kind: "RayServiceList",
    definition: Some(kinds::RayService::crd),
    schema: "io.ray.v1.RayService",
    default: |service| {
        if let Some(spec) = json::child(service, "spec")
            && let Some(cluster) = json::child(spec, "rayClusterConfig")
        {
            default_spec(cluster);
        }
    },
    validate,
    columns: COLUMNS,
    ..RAY
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_owner(new, old, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let before = old.map(|old| json::at(old, &["spec"]));
    meta::one_of(spec, "managedBy", &MANAGERS, &path, &mut errors);
    let delay = "rayClusterDeletionDelaySeconds";
    meta::not_negative(spec, delay, &path, &mut errors);
    let text = json::text(spec, &["serveConfigV2"]);
    if !text.is_empty()
        && let Err(refusal) = serve_config::parse(text)
    {
        let start: String = text.chars().take(100).collect();
        let field = path.child("serveConfigV2");
        errors.push(FieldError::invalid(&field, start, refusal.to_string()));
    }
    let cluster = path.child("rayClusterConfig");
    match json::at(spec, &["rayClusterConfig"]) {
        Value::Null => {
            let detail = "the cluster that runs the applications";
            errors.push(FieldError::required(&cluster, detail));
        }
        given => {
            let before = before.map(|before| json::at(before, &["rayClusterConfig"]));
            check_spec(given, before, &cluster, &mut errors);
            head_service(given, &cluster, &mut errors);
        }
    }
    upgrades(spec, &path, &mut errors);
    if let Some(before) = before {
        meta::immutable(spec, before, &["managedBy"], &path, &mut errors);
    }
    errors
}

fn head_service(cluster: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let name = json::text(
        cluster,
        &["headGroupSpec", "headService", "metadata", "name"],
    );
    if !name.is_empty() {
        let head = path.child("headGroupSpec");
        let service = head.child("headService");
        let metadata = service.child("metadata");
        let detail = "the head's Services have the names of the service and its clusters: leave this field out";
        errors.push(FieldError::forbidden(&metadata.child("name"), detail));
    }
}

fn upgrades(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let strategy = path.child("upgradeStrategy");
    let given = json::at(spec, &["upgradeStrategy"]);
    if json::text(given, &["type"]) == INCREMENTAL {
        let detail = "Muster has no Gateway to shift requests in steps: use NewCluster, which switches all requests once the new cluster serves, or None";
        let field = strategy.child("type");
        errors.push(FieldError::invalid(&field, INCREMENTAL, detail));
        return;
    }
    meta::one_of(given, "type", &UPGRADES, &strategy, errors);
    if !json::at(given, &["clusterUpgradeOptions"]).is_null() {
        let detail = "belongs to the type NewClusterWithIncrementalUpgrade, which Muster does not run: leave this field out";
        let field = strategy.child("clusterUpgradeOptions");
        errors.push(FieldError::forbidden(&field, detail));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::raycluster::OWNER_NAME_MAX;
    use super::*;

    fn errors_of(name: &str, more: Value) -> Vec<String> {
        let pod = json!({"spec": {"containers": [{"name": "ray", "image": "x"}]}});
        let mut spec = json!({"serveConfigV2": "applications:\n- import_path: a:app\n",
            "rayClusterConfig": {"headGroupSpec": {"template": pod}}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let mut service = json!({"metadata": {"name": name, "namespace": "team"}, "spec": spec});
        (KIND.default)(&mut service);
        let errors = (KIND.validate)(&service, None);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_service_has_a_cluster_and_a_configuration_that_can_be_read() {
        let accepted = [
            json!({}),
            json!({"serveConfigV2": null, "upgradeStrategy": {"type": "None"}, "suspend": true}),
            json!({"upgradeStrategy": {"type": "NewCluster"}, "rayClusterDeletionDelaySeconds": 0,
                "excludeHeadPodFromServeSvc": true, "serviceUnhealthySecondThreshold": 900,
                "serveService": {"metadata": {"name": "front"}, "spec": {"type": "NodePort"}}}),
        ];
        for more in accepted {
            assert_eq!(errors_of("s", more), [""; 0]);
        }
        let table = [
            (
                json!({"rayClusterConfig": null}),
                "spec.rayClusterConfig: Required value: the cluster that runs the applications",
            ),
            (
                json!({"rayClusterConfig": {}}),
                "spec.rayClusterConfig.headGroupSpec: Required value: a cluster has a head",
            ),
            (
                json!({"serveConfigV2": "a: b"}),
                "spec.serveConfigV2: Invalid value: \"a: b\": must be YAML of an object with the list `applications`, as `serve build` writes it",
            ),
            (
                json!({"rayClusterDeletionDelaySeconds": -1}),
                "spec.rayClusterDeletionDelaySeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"upgradeStrategy": {"type": "Later"}}),
                "spec.upgradeStrategy.type: Unsupported value: \"Later\": supported values: \"NewCluster\", \"None\"",
            ),
            (
                json!({"upgradeStrategy": {"type": INCREMENTAL, "clusterUpgradeOptions": {}}}),
                "spec.upgradeStrategy.type: Invalid value: \"NewClusterWithIncrementalUpgrade\": Muster has no Gateway to shift requests in steps: use NewCluster, which switches all requests once the new cluster serves, or None",
            ),
            (
                json!({"rayClusterConfig": {"headGroupSpec": {"headService": {"metadata": {"name": "h"}}}}}),
                "spec.rayClusterConfig.headGroupSpec.headService.metadata.name: Forbidden: the head's Services have the names of the service and its clusters: leave this field out",
            ),
        ];
        for (more, text) in table {
            assert_eq!(errors_of("s", more), [text]);
        }
        assert_eq!(errors_of(&"s".repeat(OWNER_NAME_MAX), json!({})), [""; 0]);
        assert_eq!(
            errors_of(&"s".repeat(OWNER_NAME_MAX + 1), json!({})).len(),
            1
        );
    }
}
