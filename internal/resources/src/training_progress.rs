//! What a training program reports of its progress: the checks of `status.trainerStatus` of a TrainJob, the audience of
//! the token that a report carries, and the progress in words. Source: trainer.kubeflow.org/v1alpha1 of Kubeflow
//! Trainer 2.3, `TrainerStatus` and `pkg/statusserver`.

use serde_json::{Map, Value, json};

use crate::field::{FieldError, Path};
use crate::span::human_duration;
use crate::times;

/// The variable with the address to which a program reports.
pub const URL_VARIABLE: &str = "KUBEFLOW_TRAINER_SERVER_URL";
/// The variable with the path of the file by which the program knows the server.
pub const CA_VARIABLE: &str = "KUBEFLOW_TRAINER_SERVER_CA_CERT";
/// The variable with the path of the program's token.
pub const TOKEN_VARIABLE: &str = "KUBEFLOW_TRAINER_SERVER_TOKEN";
/// The directory of both files.
pub const DIRECTORY: &str = "/var/run/secrets/kubeflow/trainer";
/// The most metrics of a report.
pub const METRICS_MAX: usize = 256;
/// The most characters of a metric's name, and of its value.
pub const METRIC_TEXT_MAX: usize = 64;
/// The metrics that a sentence has; the object has all.
const METRICS_SHOWN: usize = 4;
/// The fields of a report.
const FIELDS: [&str; 4] = [
    "progressPercentage",
    "estimatedRemainingSeconds",
    "metrics",
    "lastUpdatedTime",
];

/// The audience of the token for a TrainJob's reports. The path of the reports is this below `/apis/`.
#[must_use]
pub fn audience(namespace: &str, name: &str) -> String {
    format!("trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status")
}

/// The merge patch of a TrainJob that a report stands for; `None` if it reports nothing. A report replaces the one
/// before, so that fields that it leaves out are removed.
#[must_use]
pub fn patch(report: &Value) -> Option<Value> {
    let new = report.get("trainerStatus").filter(|new| !new.is_null())?;
    let Some(given) = new.as_object() else {
        // The checks refuse it with its field.
        return Some(json!({"status": {"trainerStatus": new}}));
    };
    let mut fields: Map<String, Value> = given.clone();
    for field in FIELDS {
        fields.entry(field).or_insert(Value::Null);
    }
    Some(json!({"status": {"trainerStatus": fields}}))
}

/// Checks `status.trainerStatus`.
pub(crate) fn validate(status: &Value, errors: &mut Vec<FieldError>) {
    let new = &status["trainerStatus"];
    if new.is_null() {
        return;
    }
    let status = Path::new("status");
    let path = status.child("trainerStatus");
    let Some(fields) = new.as_object() else {
        errors.push(FieldError::type_invalid(
            path.to_string(),
            new.clone(),
            "must be an object",
        ));
        return;
    };
    let whole = |field: &str, most: i64, errors: &mut Vec<FieldError>| {
        let Some(value) = fields.get(field).filter(|value| !value.is_null()) else {
            return;
        };
        if !value
            .as_i64()
            .is_some_and(|number| (0..=most).contains(&number))
        {
            let why = format!("must be a whole number from 0 to {most}");
            errors.push(FieldError::invalid(
                path.child(field).to_string(),
                value.clone(),
                why,
            ));
        }
    };
    whole("progressPercentage", 100, errors);
    whole("estimatedRemainingSeconds", i64::from(i32::MAX), errors);
    metrics(fields.get("metrics"), &path, errors);
    let time = fields.get("lastUpdatedTime").and_then(Value::as_str);
    if time.is_none_or(|text| text.parse::<jiff::Timestamp>().is_err()) {
        let given = fields.get("lastUpdatedTime").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            path.child("lastUpdatedTime").to_string(),
            given,
            "must be the time of the report, such as 2026-01-02T15:04:05Z",
        ));
    }
}

fn metrics(given: Option<&Value>, path: &Path, errors: &mut Vec<FieldError>) {
    let path = path.child("metrics");
    let Some(given) = given.filter(|given| !given.is_null()) else {
        return;
    };
    let Some(list) = given.as_array() else {
        errors.push(FieldError::type_invalid(
            path.to_string(),
            given.clone(),
            "must be a list of {name, value}",
        ));
        return;
    };
    if list.len() > METRICS_MAX {
        errors.push(FieldError::too_many(
            path.to_string(),
            list.len(),
            METRICS_MAX,
        ));
        return;
    }
    for (at, metric) in list.iter().enumerate() {
        for field in ["name", "value"] {
            let text = metric[field].as_str().unwrap_or_default();
            if text.is_empty() || text.chars().count() > METRIC_TEXT_MAX {
                let why = format!("must be a text of 1 to {METRIC_TEXT_MAX} characters");
                errors.push(FieldError::invalid(
                    path.index(at).child(field).to_string(),
                    metric[field].clone(),
                    why,
                ));
            }
        }
    }
}

/// The percentage that a TrainJob's program reported last.
#[must_use]
pub fn percentage(status: &Value) -> Option<u8> {
    let number = status["trainerStatus"]["progressPercentage"].as_u64()?;
    u8::try_from(number.min(100)).ok()
}

/// What a TrainJob's program reported last, in one sentence: `45 % done, about 3m20s left; loss 0.31, accuracy 0.87;
/// reported at 2026-01-02T15:04:05Z`.
#[must_use]
pub fn sentence(status: &Value) -> Option<String> {
    let report = status["trainerStatus"].as_object()?;
    let mut parts = Vec::new();
    if let Some(percent) = percentage(status) {
        parts.push(format!("{percent} % done"));
    }
    let left = report
        .get("estimatedRemainingSeconds")
        .and_then(Value::as_i64);
    if let Some(seconds) = left {
        parts.push(format!("about {} left", human_duration(seconds)));
    }
    let mut sentences = vec![parts.join(", ")];
    let metrics = report.get("metrics").and_then(Value::as_array);
    let metrics = metrics.map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut shown: Vec<String> = metrics
        .iter()
        .take(METRICS_SHOWN)
        .map(|metric| format!("{} {}", text(&metric["name"]), text(&metric["value"])))
        .collect();
    if metrics.len() > METRICS_SHOWN {
        shown.push(format!("{} more metrics", metrics.len() - METRICS_SHOWN));
    }
    sentences.push(shown.join(", "));
    let time = report.get("lastUpdatedTime").and_then(Value::as_str);
    let time = time.and_then(|time| time.parse().ok());
    sentences.extend(time.map(|time| format!("reported at {}", times::seconds(time))));
    sentences.retain(|part| !part.is_empty());
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(report: Value) -> Vec<String> {
        let mut errors = Vec::new();
        validate(&json!({"trainerStatus": report}), &mut errors);
        errors.iter().map(|error| error.path.to_string()).collect()
    }

    #[test]
    fn reports_are_checked_field_by_field() {
        let time = "2026-01-02T15:04:05Z";
        let many: Vec<Value> = (0..=METRICS_MAX)
            .map(|at| json!({"name": at.to_string(), "value": "1"}))
            .collect();
        let table = [
            (json!({"lastUpdatedTime": time}), vec![]),
            (
                json!({"lastUpdatedTime": time, "progressPercentage": 100, "estimatedRemainingSeconds": 0,
                    "metrics": [{"name": "loss", "value": "0.5"}]}),
                vec![],
            ),
            (json!({}), vec!["lastUpdatedTime"]),
            (json!({"lastUpdatedTime": "soon"}), vec!["lastUpdatedTime"]),
            (
                json!({"lastUpdatedTime": time, "progressPercentage": 101, "estimatedRemainingSeconds": -1}),
                vec!["progressPercentage", "estimatedRemainingSeconds"],
            ),
            (
                json!({"lastUpdatedTime": time, "progressPercentage": "half"}),
                vec!["progressPercentage"],
            ),
            (
                json!({"lastUpdatedTime": time, "metrics": [{"name": "", "value": "x".repeat(65)}]}),
                vec!["metrics[0].name", "metrics[0].value"],
            ),
            (
                json!({"lastUpdatedTime": time, "metrics": many}),
                vec!["metrics"],
            ),
            (
                json!({"lastUpdatedTime": time, "metrics": {}}),
                vec!["metrics"],
            ),
        ];
        for (report, want) in table {
            let want: Vec<String> = want
                .iter()
                .map(|field| format!("status.trainerStatus.{field}"))
                .collect();
            assert_eq!(errors(report.clone()), want, "{report}");
        }
        assert_eq!(errors(json!("half")), ["status.trainerStatus"]);
    }

    #[test]
    fn a_report_replaces_the_one_before() {
        let report = json!({"trainerStatus": {"progressPercentage": 5, "lastUpdatedTime": "t"}});
        let patch = patch(&report).unwrap();
        assert_eq!(
            patch["status"]["trainerStatus"],
            json!({"progressPercentage": 5, "estimatedRemainingSeconds": null, "metrics": null, "lastUpdatedTime": "t"})
        );
        assert_eq!(super::patch(&json!({})), None);
        assert_eq!(super::patch(&json!({"trainerStatus": null})), None);
    }

    #[test]
    fn progress_is_told_in_one_sentence() {
        let metric = |name: &str| json!({"name": name, "value": "0.5"});
        let many = ["a", "b", "c", "d", "e", "f"].map(metric);
        let table = [
            (json!({}), None),
            (
                json!({"progressPercentage": 45, "estimatedRemainingSeconds": 200,
                    "metrics": [metric("loss")], "lastUpdatedTime": "2026-01-02T15:04:05.25Z"}),
                Some("45 % done, about 3m20s left; loss 0.5; reported at 2026-01-02T15:04:05Z"),
            ),
            (
                json!({"metrics": many}),
                Some("a 0.5, b 0.5, c 0.5, d 0.5, 2 more metrics"),
            ),
            (json!({"progressPercentage": 900}), Some("100 % done")),
        ];
        for (report, want) in table {
            let status = json!({"trainerStatus": report});
            assert_eq!(sentence(&status).as_deref(), want, "{report}");
        }
        assert_eq!(sentence(&json!({})), None);
    }
}
