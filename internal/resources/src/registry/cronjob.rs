//! CronJob, `batch/v1`: Jobs created on a schedule.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns::{AGE, NAME, column, or_none, since, wide};
use super::job;
use super::meta::{self, NameRule};
use super::pod::{check_template, default_template};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::schedule::Schedule;

/// A Job's name is the CronJob's with 11 more characters.
const NAME_MAX: usize = 52;
const POLICIES: [&str; 3] = ["Allow", "Forbid", "Replace"];
const LIMITS: [&str; 3] = [
    "startingDeadlineSeconds",
    "successfulJobsHistoryLimit",
    "failedJobsHistoryLimit",
];

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Schedule",
        "string",
        "The schedule of the Jobs.",
        |cron, _| Value::from(json::text(cron, &["spec", "schedule"])),
    ),
    column(
        "Timezone",
        "string",
        "The time zone of the schedule.",
        |cron, _| or_none(json::text(cron, &["spec", "timeZone"])),
    ),
    column(
        "Suspend",
        "boolean",
        "Whether the creation of Jobs is suspended.",
        |cron, _| match json::truth(cron, &["spec", "suspend"]) {
            true => Value::from("True"),
            false => Value::from("False"),
        },
    ),
    column("Active", "integer", "Jobs that run.", |cron, _| {
        Value::from(json::items(cron, &["status", "active"]).len())
    }),
    column(
        "Last Schedule",
        "string",
        "How long ago the last Job was made.",
        last,
    ),
    AGE,
    wide(
        "Containers",
        "string",
        "Names of each container in the template.",
        |cron, _| containers(cron, "name"),
    ),
    wide(
        "Images",
        "string",
        "Images referenced by each container in the template.",
        |cron, _| containers(cron, "image"),
    ),
];

pub(super) const KIND: Kind = Kind {
    group: "batch",
    kind: "CronJob",
    plural: "cronjobs",
    singular: "cronjob",
    list_kind: "CronJobList",
    short_names: &["cj"],
    categories: &["all"],
    schema: "io.k8s.api.batch.v1.CronJob",
    status: true,
    generation: true,
    default,
    validate,
    prepare: |new, old| meta::with_status(new, old, json!({})),
    columns: COLUMNS,
    ..Kind::BASE
};

fn last(cron: &Value, now: Timestamp) -> Value {
    match json::at(cron, &["status", "lastScheduleTime"]) {
        Value::Null => Value::from("<none>"),
        at => Value::from(since(at, now)),
    }
}

fn containers(cron: &Value, key: &str) -> Value {
    let path = [
        "spec",
        "jobTemplate",
        "spec",
        "template",
        "spec",
        "containers",
    ];
    let all = json::items(cron, &path).iter();
    let texts: Vec<&str> = all.map(|c| json::text(c, &[key])).collect();
    Value::from(texts.join(","))
}

fn default(cron: &mut Value) {
    let Some(spec) = json::object(cron, "spec") else {
        return;
    };
    json::fill_text(spec, "concurrencyPolicy", "Allow");
    json::fill(spec, "suspend", false);
    json::fill(spec, "successfulJobsHistoryLimit", 3);
    json::fill(spec, "failedJobsHistoryLimit", 1);
    let template = json::object(spec, "jobTemplate")
        .and_then(|template| json::object(template, "spec"))
        .and_then(|spec| json::object(spec, "template"));
    if let Some(template) = template {
        default_template(template);
    }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let name = json::text(new, &["metadata", "name"]);
    if old.is_none() && name.len() > NAME_MAX {
        let detail = format!("must be no more than {NAME_MAX} characters");
        errors.push(FieldError::invalid("metadata.name", name, detail));
    }
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let text = json::text(spec, &["schedule"]);
    if text.is_empty() {
        errors.push(FieldError::required(&path.child("schedule"), ""));
    } else if let Err(wrong) = Schedule::parse(text) {
        let detail = wrong.to_string();
        errors.push(FieldError::invalid(&path.child("schedule"), text, detail));
    }
    meta::one_of(spec, "concurrencyPolicy", &POLICIES, &path, &mut errors);
    for key in LIMITS {
        meta::not_negative(spec, key, &path, &mut errors);
    }
    if json::has(spec, &["timeZone"]) {
        time_zone(json::text(spec, &["timeZone"]), &path, &mut errors);
    }
    let outer = path.child("jobTemplate");
    let path = outer.child("spec");
    let spec = json::at(spec, &["jobTemplate", "spec"]);
    job::check_numbers(spec, &path, &mut errors);
    if json::truth(spec, &["manualSelector"]) {
        let detail = "`manualSelector` must not be true in a CronJob's template";
        errors.push(FieldError::forbidden(&path.child("manualSelector"), detail));
    }
    let template = path.child("template");
    check_template(json::at(spec, &["template"]), &template, &mut errors);
    job::check_restart_policy(spec, &template, &mut errors);
    errors
}

/// The controller that runs CronJobs knows the names of time zones; this function checks only their form.
fn time_zone(zone: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("timeZone");
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+');
    if zone.is_empty() || !zone.chars().all(fine) {
        let detail = "must be the name of a time zone, such as Europe/Berlin or Etc/UTC";
        errors.push(FieldError::invalid(&path, zone, detail));
    } else if zone.eq_ignore_ascii_case("local") {
        let detail =
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.push(FieldError::invalid(&path, zone, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(spec: &Value) -> (Value, Vec<String>) {
        let mut cron = json!({
            "metadata": {"name": "nightly", "namespace": "team"},
            "spec": {"schedule": "0 2 * * *", "jobTemplate": {"spec": {"template": {"spec": {
                "restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "x"}]}}}}},
        });
        for (key, value) in spec.as_object().unwrap() {
            cron["spec"][key] = value.clone();
        }
        (KIND.default)(&mut cron);
        let errors = (KIND.validate)(&cron, None);
        (cron, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_cron_job_is_completed_and_refused_as_kubernetes_does() {
        let (made, errors) = cron(&json!({}));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(
            (
                &made["spec"]["concurrencyPolicy"],
                &made["spec"]["failedJobsHistoryLimit"]
            ),
            (&json!("Allow"), &json!(1))
        );
        let no_end =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}});
        let table = [
            (
                json!({"schedule": "0 2 * *"}),
                "spec.schedule: Invalid value: \"0 2 * *\": expected exactly 5 fields, found 4: [0 2 * *]",
            ),
            (
                json!({"concurrencyPolicy": "Never"}),
                "spec.concurrencyPolicy: Unsupported value: \"Never\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
            ),
            (
                json!({"startingDeadlineSeconds": -1}),
                "spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                json!({"jobTemplate": no_end}),
                "spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
            ),
            (
                json!({"timeZone": "Mars Base"}),
                "spec.timeZone: Invalid value: \"Mars Base\": must be the name of a time zone, such as Europe/Berlin or Etc/UTC",
            ),
        ];
        for (spec, text) in table {
            assert_eq!(cron(&spec).1, [text], "{spec}");
        }
    }
}
