//! Admission of the annotations about jobs that hang. What is stored already is not checked again, so that it never
//! blocks another change.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::hang::{HangPolicy, OnHang};
use crate::json;
use crate::names::{HANG_AFTER, ON_FAILURE, ON_HANG};
use crate::training;

/// The API groups of kinds whose hangs are not detected: their pods belong to objects of several kinds, or serve requests.
const NOT_DETECTED: [&str; 2] = ["ray.io", "leaderworkerset.x-k8s.io"];

fn given<'v>(object: &'v Value, name: &str) -> Option<&'v str> {
    json::at(object, &["metadata", "annotations", name]).as_str()
}

/// Checks what an object says about hangs.
pub(super) fn check(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let same = |old: &Value| {
        let mut all = [HANG_AFTER, ON_HANG, ON_FAILURE].into_iter();
        all.all(|name| given(old, name) == given(new, name))
    };
    if old.is_some_and(same) {
        return;
    }
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let policy = match HangPolicy::read(|name| given(new, name)) {
        Ok(policy) => policy,
        Err(invalid) => {
            let path = annotations.key(invalid.annotation);
            errors.push(FieldError::invalid(&path, invalid.value, invalid.valid));
            return;
        }
    };
    let Some(policy) = policy else { return };
    let version = json::text(new, &["apiVersion"]);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    if NOT_DETECTED.contains(&group) {
        let detail = "hangs of this kind are not detected; remove the annotation";
        errors.push(FieldError::forbidden(&annotations.key(HANG_AFTER), detail));
        return;
    }
    if policy.action != OnHang::Restart {
        return;
    }
    let path = annotations.key(ON_HANG);
    if training::find(group, json::text(new, &["kind"])).is_none() {
        let detail = "this kind does not follow restart; use report";
        errors.push(FieldError::forbidden(&path, detail));
    } else if given(new, ON_FAILURE).is_none() {
        let detail = format!(
            "restart needs {ON_FAILURE}, which says what follows; set that one too, such as default=restart-gang"
        );
        errors.push(FieldError::invalid(&path, "restart", detail));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, annotations: Value) -> Value {
        let group = match kind {
            "PyTorchJob" => "kubeflow.org/v1",
            "RayJob" => "ray.io/v1",
            _ => "batch/v1",
        };
        json!({"apiVersion": group, "kind": kind, "metadata": {"annotations": annotations}})
    }

    fn refusals(new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut errors = Vec::new();
        check(new, old, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_new_is_checked_and_what_is_stored_stays() {
        let wrong = object("PyTorchJob", json!({HANG_AFTER: "5s"}));
        let refused = refusals(&wrong, None);
        let words = "metadata.annotations[muster.io/hang-after]: Invalid value: \"5s\": must be a time from 1m to 7d";
        assert!(refused[0].starts_with(words), "{refused:?}");
        assert!(refusals(&wrong, Some(&wrong)).is_empty());
        let right = object("Job", json!({HANG_AFTER: "30m", ON_HANG: "report"}));
        assert!(refusals(&right, Some(&wrong)).is_empty());
        assert_eq!(refusals(&wrong, Some(&right)).len(), 1);
        assert!(refusals(&object("Job", json!(null)), None).is_empty());
        let unwatched = refusals(&object("RayJob", json!({HANG_AFTER: "30m"})), None);
        let words = "metadata.annotations[muster.io/hang-after]: Forbidden: hangs of this kind are not detected";
        assert!(unwatched[0].starts_with(words), "{unwatched:?}");
    }

    #[test]
    fn restart_needs_a_kind_and_a_policy_that_follow_it() {
        let restart = |more: Value| {
            let mut all = json!({HANG_AFTER: "30m", ON_HANG: "restart"});
            let more = more.as_object().unwrap().clone();
            all.as_object_mut().unwrap().extend(more);
            all
        };
        let on_failure = json!({ON_FAILURE: "default=restart-gang"});
        let followed = object("PyTorchJob", restart(on_failure.clone()));
        assert!(refusals(&followed, None).is_empty());
        assert_eq!(
            refusals(&object("Job", restart(on_failure)), None),
            [
                "metadata.annotations[muster.io/on-hang]: Forbidden: this kind does not follow restart; use report"
            ]
        );
        let without = object("PyTorchJob", restart(json!({})));
        let expected = "metadata.annotations[muster.io/on-hang]: Invalid value: \"restart\": restart needs \
             muster.io/on-failure, which says what follows; set that one too, such as default=restart-gang";
        assert_eq!(refusals(&without, None), [expected]);
        // The policy is taken away.
        assert_eq!(refusals(&without, Some(&followed)), [expected]);
    }
}
