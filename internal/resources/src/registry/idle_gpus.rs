//! Admission of the annotations about idle GPUs: a namespace's policy, and the limit that any other object sets for
//! itself. What is stored already is not checked again, so that it never blocks another change.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::idle_gpus::{IdleGpuPolicy, limit};
use crate::json;
use crate::names::{IDLE_GPU_ACTION, IDLE_GPU_EXEMPT_JOBS, IDLE_GPU_EXEMPT_USERS, IDLE_GPU_LIMIT};

fn error(annotation: &str, value: &str, detail: String) -> FieldError {
    let metadata = Path::new("metadata");
    let path = metadata.child("annotations");
    FieldError::invalid(&path.key(annotation), value, detail)
}

/// Checks the policy in a namespace's annotations.
pub(super) fn check_policy(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let set = |object: &Value| -> BTreeMap<String, String> {
        let of = |name: &str| {
            let value = json::at(object, &["metadata", "annotations", name]).as_str()?;
            Some((name.to_owned(), value.to_owned()))
        };
        let all = [
            IDLE_GPU_LIMIT,
            IDLE_GPU_ACTION,
            IDLE_GPU_EXEMPT_USERS,
            IDLE_GPU_EXEMPT_JOBS,
        ];
        all.into_iter().filter_map(of).collect()
    };
    let policy = set(new);
    if old.is_some_and(|old| set(old) == policy) {
        return;
    }
    if let Err(invalid) = IdleGpuPolicy::of(&policy) {
        errors.push(error(invalid.annotation, &invalid.value, invalid.valid));
    }
}

/// Checks the limit that an object sets for itself.
pub(super) fn check_own(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let set = |object| json::at(object, &["metadata", "annotations", IDLE_GPU_LIMIT]);
    let own = set(new);
    let Some(text) = own.as_str() else { return };
    if old.is_some_and(|old| set(old) == own) {
        return;
    }
    if let Err(invalid) = limit(text) {
        errors.push(error(invalid.annotation, text, invalid.valid));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(annotations: Value) -> Value {
        json!({"metadata": {"annotations": annotations}})
    }

    #[test]
    fn what_is_new_is_checked_and_what_is_stored_stays() {
        let mut errors = Vec::new();
        let wrong = object(json!({IDLE_GPU_LIMIT: "soon"}));
        check_policy(&wrong, Some(&wrong), &mut errors);
        check_own(&wrong, Some(&wrong), &mut errors);
        let right = object(json!({IDLE_GPU_LIMIT: "2h", IDLE_GPU_ACTION: "cancel"}));
        check_policy(&right, Some(&wrong), &mut errors);
        check_own(&right, None, &mut errors);
        check_own(&object(json!(null)), None, &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        check_policy(&wrong, None, &mut errors);
        check_own(&wrong, Some(&right), &mut errors);
        check_policy(&object(json!({IDLE_GPU_ACTION: "warn"})), None, &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let limit = "metadata.annotations[muster.io/idle-gpu-limit]: Invalid value: \"soon\": must be a time from 1m to 90d";
        assert!(
            texts[0].starts_with(limit) && texts[1].starts_with(limit),
            "{texts:?}"
        );
        assert!(
            texts[2].starts_with(
                "metadata.annotations[muster.io/idle-gpu-action]: Invalid value: \"warn\": has no effect without"
            ),
            "{texts:?}"
        );
        assert_eq!(texts.len(), 3);
    }
}
