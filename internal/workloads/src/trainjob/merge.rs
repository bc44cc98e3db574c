//! Merges a patch of a runtime's JobSet into it, by the rules of strategic merge patches for the fields that patches may
//! set: objects are merged, the items of these lists are found by a key, and everything else is replaced. Depth and
//! cost are bounded by the object, which the API bounds.

use serde_json::Value;

/// The lists that are merged by a key of their items.
const MERGED: [(&str, &str); 8] = [
    ("replicatedJobs", "name"),
    ("initContainers", "name"),
    ("containers", "name"),
    ("env", "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("imagePullSecrets", "name"),
    ("schedulingGates", "name"),
];
/// The deepest nesting of a patch; what lies deeper is replaced as a whole.
const DEPTH_MAX: usize = 32;

/// Why a patch does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    /// It changes a job or container that the runtime lacks.
    #[error("{list} has no {name:?}")]
    Unknown {
        /// The list.
        list: &'static str,
        /// The item that is missing.
        name: String,
    },
}

/// Merges the patch into the target. Jobs and containers must exist in the target; other items may be new.
///
/// # Errors
/// When the patch changes a job or a container that the target lacks.
pub(crate) fn merge(target: &mut Value, patch: &Value) -> Result<(), Misfit> {
    merge_at(target, patch, DEPTH_MAX)
}

fn merge_at(target: &mut Value, patch: &Value, left: usize) -> Result<(), Misfit> {
    let (true, Some(fields)) = (left > 0, patch.as_object()) else {
        *target = patch.clone();
        return Ok(());
    };
    if !target.is_object() {
        *target = serde_json::json!({});
    }
    for (name, value) in fields {
        let merged = MERGED.iter().find(|(list, _)| list == name);
        match (merged, value.as_array()) {
            (Some((list, key)), Some(items)) => {
                merge_list(&mut target[name], items, list, key, left - 1)?;
            }
            _ if value.is_null() => {
                if let Some(map) = target.as_object_mut() {
                    map.remove(name);
                }
            }
            _ => merge_at(&mut target[name], value, left - 1)?,
        }
    }
    Ok(())
}

fn merge_list(
    target: &mut Value,
    items: &[Value],
    list: &'static str,
    key: &str,
    left: usize,
) -> Result<(), Misfit> {
    if !target.is_array() {
        *target = serde_json::json!([]);
    }
    let Some(known) = target.as_array_mut() else {
        return Ok(());
    };
    for item in items {
        match known.iter_mut().find(|one| one[key] == item[key]) {
            Some(one) => merge_at(one, item, left)?,
            None if ["replicatedJobs", "initContainers", "containers"].contains(&list) => {
                let name = item[key].as_str().unwrap_or_default().to_owned();
                return Err(Misfit::Unknown { list, name });
            }
            None => known.push(item.clone()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_merge_named_items_are_found_and_the_rest_is_replaced() {
        let mut target = json!({"replicatedJobs": [
            {"name": "a", "template": {"x": 1}},
            {"name": "b", "containers": [{"name": "c", "env": [{"name": "A", "value": "1"}]}],
                "tolerations": [{"key": "k"}], "nodeSelector": {"zone": "a"}},
        ]});
        let patch = json!({"replicatedJobs": [{"name": "b",
            "containers": [{"name": "c", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v"}], "tolerations": [{"key": "l"}], "nodeSelector": {"rack": "r"}}]});
        merge(&mut target, &patch).unwrap();
        let wanted = json!({"replicatedJobs": [
            {"name": "a", "template": {"x": 1}},
            {"name": "b", "containers": [{"name": "c", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v"}], "tolerations": [{"key": "l"}], "nodeSelector": {"zone": "a", "rack": "r"}},
        ]});
        assert_eq!(target, wanted);
        let again = target.clone();
        merge(&mut target, &patch).unwrap();
        assert_eq!(target, again);
        let unknown = json!({"replicatedJobs": [{"name": "z"}]});
        assert_eq!(
            merge(&mut target, &unknown).unwrap_err().to_string(),
            "replicatedJobs has no \"z\""
        );
    }
}
