//! The priority of a pod: that of its class, of the default class, or zero.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::Value;

use crate::json;
pub use crate::registry::{HIGHEST_USER_PRIORITY, SYSTEM_CLASSES};

const DEFAULT_POLICY: &str = "PreemptLowerPriority";

/// Why a pod's priority cannot be resolved; worded like Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// The class does not exist.
    #[error("no PriorityClass with name {0} was found")]
    NotFound(String),
    /// The pod sets another priority than its class has.
    #[error(
        "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {computed} from the given PriorityClass name"
    )]
    Contradiction {
        /// The pod's own value.
        given: i64,
        /// The value of its class.
        computed: i64,
    },
}

/// Sets `spec.priority`, `spec.priorityClassName` and `spec.preemptionPolicy` of a new pod.
///
/// # Errors
/// When the class does not exist, or the pod sets another priority than its class has.
pub fn priority(pod: &mut Value, classes: &[PriorityClass]) -> Result<(), PriorityError> {
    let Some(spec) = json::object(pod, "spec") else {
        return Ok(());
    };
    let name = json::text(spec, &["priorityClassName"]).to_owned();
    let known = |name: &str| {
        classes
            .iter()
            .find(|class| class.metadata.name.as_deref() == Some(name))
    };
    let (name, value, policy) = if name.is_empty() {
        // If there are several default classes, the lowest one applies, as in Kubernetes.
        let default = classes
            .iter()
            .filter(|class| class.global_default == Some(true))
            .min_by_key(|class| class.value);
        match default {
            Some(class) => (
                class.metadata.name.clone(),
                i64::from(class.value),
                class.preemption_policy.clone(),
            ),
            None => (None, 0, None),
        }
    } else if let Some(class) = known(&name) {
        (
            Some(name),
            i64::from(class.value),
            class.preemption_policy.clone(),
        )
    } else if let Some((_, value)) = SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
        (Some(name), *value, None)
    } else {
        return Err(PriorityError::NotFound(name));
    };
    if let Some(given) = json::int(spec, &["priority"])
        && given != value
    {
        return Err(PriorityError::Contradiction {
            given,
            computed: value,
        });
    }
    spec["priority"] = Value::from(value);
    if let Some(name) = name {
        spec["priorityClassName"] = Value::from(name);
    }
    json::fill_text(
        spec,
        "preemptionPolicy",
        policy.as_deref().unwrap_or(DEFAULT_POLICY),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str, value: i32, default: bool) -> PriorityClass {
        let mut class = PriorityClass {
            value,
            global_default: Some(default),
            ..PriorityClass::default()
        };
        class.metadata.name = Some(name.to_owned());
        class
    }

    #[test]
    fn a_pod_gets_its_classes_priority() {
        let classes = [class("high", 1000, false), class("low", 100, true)];
        let table = [
            (json!({"spec": {"priorityClassName": "high"}}), 1000, "high"),
            (json!({"spec": {}}), 100, "low"),
            (json!({}), 100, "low"),
            (
                json!({"spec": {"priorityClassName": "system-node-critical"}}),
                2_000_001_000,
                "system-node-critical",
            ),
        ];
        for (mut pod, value, name) in table {
            priority(&mut pod, &classes).unwrap();
            assert_eq!(pod["spec"]["priority"], value);
            assert_eq!(pod["spec"]["priorityClassName"], name);
            assert_eq!(pod["spec"]["preemptionPolicy"], "PreemptLowerPriority");
        }
    }

    #[test]
    fn without_any_class_the_priority_is_zero() {
        let mut pod = json!({"spec": {}});
        priority(&mut pod, &[]).unwrap();
        assert_eq!(
            pod["spec"],
            json!({"priority": 0, "preemptionPolicy": "PreemptLowerPriority"})
        );
    }

    #[test]
    fn an_unknown_class_and_a_contradiction_are_refused_in_kubernetes_words() {
        let mut pod = json!({"spec": {"priorityClassName": "nope"}});
        let error = priority(&mut pod, &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no PriorityClass with name nope was found"
        );
        let mut pod = json!({"spec": {"priorityClassName": "high", "priority": 5}});
        let error = priority(&mut pod, &[class("high", 10, false)]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the integer value of priority (5) must not be provided")
        );
    }
}
