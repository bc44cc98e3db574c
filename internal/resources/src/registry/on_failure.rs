//! Admission of the annotation `muster.io/on-failure`: read where a controller follows it, refused where none does.

use serde_json::Value;

use crate::failure::OnFailure;
use crate::field::{FieldError, Path};
use crate::json;
use crate::names::ON_FAILURE;

fn given(object: &Value) -> Option<&str> {
    json::at(object, &["metadata", "annotations", ON_FAILURE]).as_str()
}

/// Checks the annotation of a training job.
pub(super) fn check(job: &Value, errors: &mut Vec<FieldError>) {
    let Some(text) = given(job) else { return };
    if let Err(error) = OnFailure::parse(text) {
        let (metadata, annotations) = (Path::new("metadata"), "annotations");
        let path = metadata.child(annotations);
        errors.push(FieldError::invalid(
            &path.key(ON_FAILURE),
            text,
            error.to_string(),
        ));
    }
}

/// Refuses the annotation on a kind that has a field of its own for it, unless it is there already.
pub(super) fn refuse(
    new: &Value,
    old: Option<&Value>,
    instead: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(text) = given(new) else { return };
    if old.and_then(given) == Some(text) {
        return;
    }
    let (metadata, annotations) = (Path::new("metadata"), "annotations");
    let path = metadata.child(annotations);
    let detail = format!("this kind does not follow it; use {instead}");
    errors.push(FieldError::forbidden(&path.key(ON_FAILURE), detail));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_policy_is_refused_with_what_is_wrong_and_one_nobody_follows_with_what_to_use() {
        let job = |text: &str| json!({"metadata": {"annotations": {ON_FAILURE: text}}});
        let mut errors = Vec::new();
        check(&job("signal=restart-rank"), &mut errors);
        check(&json!({"metadata": {}}), &mut errors);
        refuse(&job("x"), Some(&job("x")), "a field", &mut errors);
        assert!(errors.is_empty());
        check(&job("oom"), &mut errors);
        refuse(&job("x"), None, "spec.policies", &mut errors);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "metadata.annotations[muster.io/on-failure]: Invalid value: \"oom\": \"oom\" is not CLASS=ACTION; write \
                 a list such as \"python-error=fail,default=restart-gang\"",
                "metadata.annotations[muster.io/on-failure]: Forbidden: this kind does not follow it; use spec.policies",
            ]
        );
    }
}
