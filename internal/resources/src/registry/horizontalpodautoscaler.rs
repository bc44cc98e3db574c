//! HorizontalPodAutoscaler, `autoscaling/v2`: replicas that follow metrics.

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;

/// The default target for CPU utilisation, in percent of the request.
const CPU_PERCENT: i64 = 80;
/// The sources of a metric, with the member that holds the details of each.
const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];
const TARGETS: [(&str, &str); 3] = [
    ("Utilization", "averageUtilization"),
    ("Value", "value"),
    ("AverageValue", "averageValue"),
];

const COLUMNS: &[TableColumn] = &[
    NAME,
    column("Reference", "string", "What is scaled.", |scaler, _| {
        let target = json::at(scaler, &["spec", "scaleTargetRef"]);
        let (kind, name) = (json::text(target, &["kind"]), json::text(target, &["name"]));
        Value::from(format!("{kind}/{name}"))
    }),
    column(
        "Targets",
        "string",
        "What is measured, and aimed at.",
        targets,
    ),
    column(
        "MinPods",
        "string",
        "The fewest replicas.",
        |scaler, _| match json::int(scaler, &["spec", "minReplicas"]) {
            Some(min) => Value::from(min.to_string()),
            None => Value::from("<unset>"),
        },
    ),
    column("MaxPods", "integer", "The most replicas.", |scaler, _| {
        json::at(scaler, &["spec", "maxReplicas"]).clone()
    }),
    column("Replicas", "integer", "Replicas now.", |scaler, _| {
        Value::from(json::int(scaler, &["status", "currentReplicas"]).unwrap_or(0))
    }),
    AGE,
];

pub(super) const KIND: Kind = Kind {
    group: "autoscaling",
    version: "v2",
    kind: "HorizontalPodAutoscaler",
    plural: "horizontalpodautoscalers",
    singular: "horizontalpodautoscaler",
    list_kind: "HorizontalPodAutoscalerList",
    short_names: &["hpa"],
    categories: &["all"],
    schema: "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    status: true,
    generation: false,
    default,
    validate,
    prepare: |new, old| {
        meta::with_status(
            new,
            old,
            json!({"currentMetrics": null, "desiredReplicas": 0}),
        )
    },
    columns: COLUMNS,
    ..Kind::BASE
};

fn targets(scaler: &Value, _: jiff::Timestamp) -> Value {
    let metrics = json::items(scaler, &["spec", "metrics"]).iter();
    let shown: Vec<String> = metrics
        .map(|metric| {
            let member = source(json::text(metric, &["type"]));
            let source = member.map_or(&Value::Null, |(_, member)| json::at(metric, &[member]));
            let name = match json::text(source, &["name"]) {
                "" => json::text(source, &["metric", "name"]),
                name => name,
            };
            let by_percent = json::has(source, &["target", "averageUtilization"]);
            let now = member.and_then(|(_, member)| {
                let mut all = json::items(scaler, &["status", "currentMetrics"]).iter();
                let same = |one: &&Value| {
                    ["name", "container"]
                        .iter()
                        .all(|key| json::text(one, &[member, key]) == json::text(source, &[key]))
                        && json::has(one, &[member])
                };
                let found = json::at(all.find(same)?, &[member, "current"]);
                amount(found, by_percent)
            });
            let aim = amount(json::at(source, &["target"]), by_percent).unwrap_or_default();
            let now = now.unwrap_or_else(|| "<unknown>".to_owned());
            format!("{name}: {now}/{aim}")
        })
        .collect();
    Value::from(shown.join(", "))
}

/// What is measured or aimed at: a percentage, or an amount.
fn amount(of: &Value, by_percent: bool) -> Option<String> {
    if by_percent {
        return Some(format!("{}%", json::int(of, &["averageUtilization"])?));
    }
    let texts = ["value", "averageValue"].map(|key| json::text(of, &[key]));
    let text = texts.into_iter().find(|text| !text.is_empty())?;
    Some(text.to_owned())
}

fn source(type_: &str) -> Option<(&'static str, &'static str)> {
    SOURCES.into_iter().find(|(name, _)| *name == type_)
}

fn default(scaler: &mut Value) {
    let Some(spec) = json::object(scaler, "spec") else {
        return;
    };
    json::fill(spec, "minReplicas", 1);
    if json::items(spec, &["metrics"]).is_empty()
        && let Some(spec) = spec.as_object_mut()
    {
        let target = json!({"type": "Utilization", "averageUtilization": CPU_PERCENT});
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu", "target": target}});
        spec.insert("metrics".to_owned(), json!([cpu]));
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let target = path.child("scaleTargetRef");
    for key in ["kind", "name"] {
        if json::text(spec, &["scaleTargetRef", key]).is_empty() {
            errors.push(FieldError::required(&target.child(key), ""));
        }
    }
    let min = json::int(spec, &["minReplicas"]).unwrap_or(1);
    let max = json::int(spec, &["maxReplicas"]).unwrap_or(0);
    if min < 1 {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(&path.child("minReplicas"), min, detail));
    }
    if max < 1 {
        let detail = "must be greater than 0";
        errors.push(FieldError::invalid(&path.child("maxReplicas"), max, detail));
    } else if max < min {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.push(FieldError::invalid(&path.child("maxReplicas"), max, detail));
    }
    let list = path.child("metrics");
    for (i, metric) in json::items(spec, &["metrics"]).iter().enumerate() {
        check_metric(metric, &list.index(i), &mut errors);
    }
    errors
}

fn check_metric(metric: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let type_ = json::text(metric, &["type"]);
    if type_.is_empty() {
        let detail = "must specify a metric source type";
        errors.push(FieldError::required(&path.child("type"), detail));
        return;
    }
    let Some((_, member)) = source(type_) else {
        let names = SOURCES.map(|(name, _)| name);
        errors.push(FieldError::not_supported(
            &path.child("type"),
            type_,
            &names,
        ));
        return;
    };
    for (_, other) in SOURCES.iter().filter(|(_, other)| *other != member) {
        if json::has(metric, &[other]) {
            let detail = "must populate the given metric source only";
            errors.push(FieldError::forbidden(&path.child(other), detail));
        }
    }
    let path = path.child(member);
    if !json::has(metric, &[member]) {
        let detail = "must populate information for the given metric source";
        errors.push(FieldError::required(&path, detail));
        return;
    }
    let source = json::at(metric, &[member]);
    let resource = member.ends_with("esource");
    if resource && json::text(source, &["name"]).is_empty() {
        let detail = "must specify a resource name";
        errors.push(FieldError::required(&path.child("name"), detail));
    }
    if member == "containerResource" && json::text(source, &["container"]).is_empty() {
        errors.push(FieldError::required(
            &path.child("container"),
            "must specify a container",
        ));
    }
    if !resource && json::text(source, &["metric", "name"]).is_empty() {
        let metric = path.child("metric");
        let detail = "must specify a metric name";
        errors.push(FieldError::required(&metric.child("name"), detail));
    }
    check_target(json::at(source, &["target"]), &path.child("target"), errors);
}

fn check_target(target: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let type_ = json::text(target, &["type"]);
    if type_.is_empty() {
        let detail = "must specify a metric target type";
        errors.push(FieldError::required(&path.child("type"), detail));
    } else if !TARGETS.iter().any(|(name, _)| *name == type_) {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(&path.child("type"), type_, detail));
    }
    if let Some(percent) = json::int(target, &["averageUtilization"]).filter(|n| *n < 1) {
        errors.push(FieldError::invalid(
            &path.child("averageUtilization"),
            percent,
            "must be greater than 0",
        ));
    }
    for key in ["value", "averageValue"] {
        let value = json::at(target, &[key]);
        if let Some(quantity) = json::quantity_of(value)
            && quantity <= crate::quantity::Quantity::default()
        {
            let detail = "must be positive";
            errors.push(FieldError::invalid(&path.child(key), value.clone(), detail));
        }
    }
    if !TARGETS.iter().any(|(_, key)| json::has(target, &[key])) {
        let detail = "must set either a target raw value or a target utilization";
        let percent = path.child("averageUtilization");
        errors.push(FieldError::required(&percent, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(spec: &Value) -> (Value, Vec<String>) {
        let mut scaler = json!({
            "metadata": {"name": "s", "namespace": "team"},
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3},
        });
        for (key, value) in spec.as_object().unwrap() {
            scaler["spec"][key] = value.clone();
        }
        (KIND.default)(&mut scaler);
        let errors = (KIND.validate)(&scaler, None);
        (scaler, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_scaler_is_completed_and_refused_as_kubernetes_does() {
        let (made, errors) = scaler(&json!({}));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(made["spec"]["minReplicas"], 1);
        assert_eq!(
            targets(&made, jiff::Timestamp::UNIX_EPOCH),
            "cpu: <unknown>/80%"
        );
        let mut measured = made;
        measured["status"] = json!({"currentMetrics": [
            {"type": "Resource", "resource": {"name": "memory", "current": {"averageUtilization": 1}}},
            {"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 45, "averageValue": "450m"}}},
        ]});
        let shown = |scaler: &Value| targets(scaler, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(shown(&measured), "cpu: 45%/80%");
        measured["spec"]["metrics"][0]["resource"]["target"] =
            json!({"type": "AverageValue", "averageValue": "500m"});
        assert_eq!(shown(&measured), "cpu: 450m/500m");
        let table = [
            (
                json!({"maxReplicas": 0}),
                "spec.maxReplicas: Invalid value: 0: must be greater than 0",
            ),
            (
                json!({"minReplicas": 5}),
                "spec.maxReplicas: Invalid value: 3: must be greater than or equal to `minReplicas`",
            ),
            (
                json!({"metrics": [{"type": "Resource"}]}),
                "spec.metrics[0].resource: Required value: must populate information for the given metric source",
            ),
            (
                json!({"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]}),
                "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
            ),
            (
                json!({"metrics": [{"type": "GPU"}]}),
                "spec.metrics[0].type: Unsupported value: \"GPU\": supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"",
            ),
        ];
        for (spec, text) in table {
            assert_eq!(scaler(&spec).1, [text], "{spec}");
        }
    }
}
