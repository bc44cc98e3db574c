//! Checks that the types of a manifest's kind do not make: fields with a fixed set of values, and
//! unknown fields. An invalid value is refused with the accepted ones. An unknown field is noted
//! only, because live clusters may be newer than these types.

use resources::invalid_value::InvalidValue;
use serde_json::Value;

/// A field, its parent object or list (any if empty), and its accepted values.
type FieldValues = (&'static str, &'static str, &'static [&'static str]);

const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
const OPERATORS: &[&str] = &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
const HONOUR: &[&str] = &["Honor", "Ignore"];

const CHOICES: [FieldValues; 13] = [
    ("effect", "taints", EFFECTS),
    ("effect", "tolerations", EFFECTS),
    ("operator", "tolerations", &["Exists", "Equal", "Lt", "Gt"]),
    ("operator", "matchExpressions", OPERATORS),
    ("operator", "matchFields", OPERATORS),
    (
        "whenUnsatisfiable",
        "topologySpreadConstraints",
        &["DoNotSchedule", "ScheduleAnyway"],
    ),
    ("nodeAffinityPolicy", "topologySpreadConstraints", HONOUR),
    ("nodeTaintsPolicy", "topologySpreadConstraints", HONOUR),
    ("preemptionPolicy", "", &["Never", "PreemptLowerPriority"]),
    (
        "phase",
        "status of Pod",
        &["Pending", "Running", "Succeeded", "Failed", "Unknown"],
    ),
    ("status", "conditions", &["True", "False", "Unknown"]),
    (
        "volumeBindingMode",
        "",
        &["Immediate", "WaitForFirstConsumer"],
    ),
    (
        "restartPolicy",
        "",
        &["Always", "OnFailure", "Never", "ExitCode"],
    ),
];

/// The first invalid value of an object.
pub(super) fn odd(kind: &str, object: &Value) -> Option<InvalidValue> {
    let fields = object.as_object().into_iter().flatten();
    let mut found = fields
        .filter(|(name, _)| *name != "metadata")
        .filter_map(|(name, value)| {
            let within = if name == "status" {
                format!("status of {kind}")
            } else {
                name.clone()
            };
            word(name, "", value, name).or_else(|| below(value, &within, name))
        });
    found.next()
}

fn below(value: &Value, within: &str, path: &str) -> Option<InvalidValue> {
    match value {
        Value::Object(map) => map.iter().find_map(|(name, inner)| {
            let path = format!("{path}.{name}");
            word(name, within, inner, &path).or_else(|| below(inner, name, &path))
        }),
        Value::Array(list) => {
            let mut list = list.iter().enumerate();
            list.find_map(|(at, inner)| below(inner, within, &format!("{path}[{at}]")))
        }
        _ => None,
    }
}

fn word(name: &str, within: &str, value: &Value, path: &str) -> Option<InvalidValue> {
    let text = value.as_str().filter(|text| !text.is_empty())?;
    let (_, _, words) = CHOICES
        .iter()
        .find(|(field, place, _)| *field == name && (place.is_empty() || *place == within))?;
    let valid = || format!("one of {}", words.join(", "));
    (!words.contains(&text)).then(|| InvalidValue::new(path, text, valid()))
}

/// Fields of the input that were not kept, without the numbers of list items. Metadata and status
/// are not checked.
pub(super) fn lost(written: &Value, kept: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in written.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()) {
            compare(value, kept.get(name), name, &mut found);
        }
    }
    found.sort();
    found.dedup();
    found
}

fn compare(written: &Value, kept: Option<&Value>, path: &str, found: &mut Vec<String>) {
    let empty = match written {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let Some(kept) = kept else {
        if !empty {
            found.push(path.to_owned());
        }
        return;
    };
    match (written, kept) {
        (Value::Object(map), Value::Object(_)) => {
            for (name, value) in map {
                compare(value, kept.get(name), &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(list), Value::Array(others)) => {
            for (value, other) in list.iter().zip(others) {
                compare(value, Some(other), &format!("{path}[]"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_word_that_its_field_does_not_take_is_found_with_its_path() {
        let node = json!({"spec": {"taints": [
            {"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoShedule"},
        ]}});
        let found = odd("Node", &node).unwrap();
        assert_eq!(
            (found.field(), found.value()),
            ("spec.taints[1].effect", "NoShedule")
        );
        assert!(found.valid().contains("NoExecute"));
        let table = [
            ("Pod", json!({"status": {"phase": "Runing"}}), true),
            ("Queue", json!({"status": {"phase": "Runing"}}), false),
            ("Pod", json!({"spec": {"restartPolicy": "Sometimes"}}), true),
            (
                "PriorityClass",
                json!({"preemptionPolicy": "Perhaps"}),
                true,
            ),
            (
                "Pod",
                json!({"metadata": {"labels": {"restartPolicy": "x"}}}),
                false,
            ),
            (
                "Pod",
                json!({"spec": {"tolerations": [{"operator": "In"}]}}),
                true,
            ),
            (
                "Pod",
                json!({"spec": {"tolerations": [{"operator": ""}]}}),
                false,
            ),
        ];
        for (kind, object, wrong) in table {
            assert_eq!(odd(kind, &object).is_some(), wrong, "{kind} {object}");
        }
    }

    #[test]
    fn fields_that_are_not_kept_are_named_once() {
        let written = json!({
            "kind": "Pod", "status": {"new": 1},
            "spec": {"nodeSelecter": {"a": "b"}, "containers": [
                {"name": "a", "imag": "x"}, {"name": "b", "imag": "y", "env": []},
            ], "overhead": {}},
        });
        let kept = json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        assert_eq!(
            lost(&written, &kept),
            ["spec.containers[].imag", "spec.nodeSelecter"]
        );
    }
}
