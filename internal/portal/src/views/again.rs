//! The manifest of a job that is to run again: without what the API and the controllers added, and under a free name.

use axum::http::StatusCode;
use resources::access::Caller;
use resources::leader_worker_set;
use serde_json::Value;

use super::job::page_kind;
use crate::problem::Problem;
use crate::rest::explain::api_of;
use crate::state::Portal;

/// The longest name of a job, so that its pods' names stay valid host names.
const NAME_MAX: usize = 50;
/// The most names that are tried.
const TRIES: u32 = 100;

/// The manifest as YAML. `from` is `NAMESPACE/PLURAL/NAME`.
pub async fn manifest(portal: &Portal, caller: &Caller, from: &str) -> Result<String, Problem> {
    let parts: Vec<&str> = from.split('/').collect();
    let [namespace, plural, name] = parts[..] else {
        let detail = format!("from: Invalid value: {from:?}: write NAMESPACE/KIND/NAME");
        return Err(Problem::new(StatusCode::BAD_REQUEST, "invalid", detail));
    };
    let kind = page_kind(plural)?;
    let api = api_of(portal.client(caller), namespace, kind);
    let job = serde_json::to_value(api.get(name).await?).unwrap_or_default();
    let mut next = format!("{name}-again");
    for number in 2..TRIES {
        next = numbered(name, number);
        if api.get_metadata_opt(&next).await?.is_none() {
            break;
        }
    }
    let mut job = clean(job, &next);
    job["apiVersion"] = match kind.group {
        "" => kind.version.into(),
        group => format!("{group}/{}", kind.version).into(),
    };
    job["kind"] = kind.kind.into();
    Ok(serde_norway::to_string(&job).unwrap_or_default())
}

/// A name with a number; a number that the name ends with is replaced.
fn numbered(name: &str, number: u32) -> String {
    let stem = match name.rsplit_once('-') {
        Some((stem, end)) if end.len() <= 3 && end.parse::<u32>().is_ok() => stem,
        _ => name,
    };
    let stem: String = stem.chars().take(NAME_MAX).collect();
    format!("{}-{number}", stem.trim_end_matches(['-', '.']))
}

/// Leaves what a user wrote.
fn clean(mut job: Value, name: &str) -> Value {
    let kept = |text: &str| {
        !(text.starts_with("muster.io/user")
            || text.starts_with("muster.io/restarts")
            || text.starts_with("muster.io/attempts")
            || text.starts_with("muster.io/rendezvous-port")
            || ["muster.io/failure", "muster.io/recovery"].contains(&text)
            || text.starts_with("muster.io/cancelled-by")
            || text.starts_with("batch.kubernetes.io/")
            || text.starts_with("kubectl.kubernetes.io/")
            || ["controller-uid", "job-name"].contains(&text))
    };
    let strip = |map: &Value| -> Value {
        let entries = map.as_object().into_iter().flatten();
        let entries = entries.filter(|(key, _)| kept(key));
        entries
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let mut metadata = serde_json::json!({"name": name, "namespace": job["metadata"]["namespace"]});
    for field in ["labels", "annotations"] {
        let map = strip(&job["metadata"][field]);
        if map.as_object().is_some_and(|map| !map.is_empty()) {
            metadata[field] = map;
        }
    }
    job["metadata"] = metadata;
    // A cancelled set has no groups; without a number it has one.
    let scaled_to_zero = leader_worker_set::is_scaled_to_zero(&job);
    let spec = &mut job["spec"];
    // A Job's controller chooses its selector; a copy of it would be refused.
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("selector");
        if scaled_to_zero {
            spec.remove("replicas");
        }
        if spec.get("suspend").is_some() {
            spec.remove("suspend");
        }
        if let Some(policy) = spec.get_mut("runPolicy").and_then(Value::as_object_mut) {
            policy.remove("suspend");
        }
        let template = spec.get_mut("template");
        if let Some(metadata) = template.and_then(|template| template.get_mut("metadata")) {
            for field in ["labels", "annotations"] {
                metadata[field] = strip(&metadata[field]);
            }
        }
        spec.remove("nodeName");
    }
    if let Some(job) = job.as_object_mut() {
        job.remove("status");
    }
    job
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_that_runs_again_has_what_its_author_wrote_and_a_new_name() {
        let job = json!({
            "metadata": {"name": "j", "namespace": "a", "uid": "u", "resourceVersion": "7",
                "labels": {"team": "x"}, "annotations": {"muster.io/restarts": "{}", "muster.io/walltime": "1h"}},
            "spec": {"suspend": true, "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
                "template": {"metadata": {"labels": {"job-name": "j", "app": "x"}}, "spec": {}}},
            "status": {"failed": 1},
        });
        let again = clean(job, "j-2");
        assert_eq!(
            again["metadata"],
            json!({"name": "j-2", "namespace": "a", "labels": {"team": "x"},
            "annotations": {"muster.io/walltime": "1h"}})
        );
        assert_eq!(
            again["spec"]["template"]["metadata"]["labels"],
            json!({"app": "x"})
        );
        assert!(again["status"].is_null() && again["spec"]["selector"].is_null());
        assert!(again["spec"]["suspend"].is_null());
        let set = |replicas: i64| {
            json!({"metadata": {"name": "m"},
            "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 2}}})
        };
        assert!(clean(set(0), "m-2")["spec"]["replicas"].is_null());
        assert_eq!(clean(set(3), "m-2")["spec"]["replicas"], 3);
    }

    #[test]
    fn a_name_is_numbered_on() {
        for (name, next) in [
            ("j", "j-4"),
            ("j-3", "j-4"),
            ("a-2024", "a-2024-4"),
            ("a--1", "a-4"),
        ] {
            assert_eq!(numbered(name, 4), next);
        }
        assert!(numbered(&"x".repeat(200), 9).len() <= NAME_MAX + 2);
    }
}
