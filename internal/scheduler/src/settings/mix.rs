//! The expected pods of a configuration: the number and the requests of each kind.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::invalid_value::InvalidValue;
use resources::quantity::Quantity;
use serde_json::Value;

use super::words::{count, known, object, unusable};

/// The fields of one kind of pod.
const FIELDS: [&str; 4] = ["count", "requests", "annotations", "nodeSelector"];
/// The most kinds.
const KINDS_MAX: usize = 1000;
/// The most pods of one kind.
const COUNT_MAX: i64 = 1_000_000_000;

/// Reads `expected`.
pub(super) fn read(field: &str, value: &Value) -> Result<Vec<(Pod, u64)>, InvalidValue> {
    let valid = "a list, as in [{count: 40, requests: {cpu: 8, nvidia.com/gpu: 1}}]";
    let kinds = value
        .as_array()
        .ok_or_else(|| unusable(field, value, valid))?;
    if kinds.len() > KINDS_MAX {
        let found = Value::from(kinds.len());
        return Err(unusable(
            field,
            &found,
            format!("at most {KINDS_MAX} kinds of pods"),
        ));
    }
    let mut all = Vec::new();
    for (at, value) in kinds.iter().enumerate() {
        all.push(kind(&format!("{field}[{at}]"), value)?);
    }
    Ok(all)
}

fn kind(field: &str, value: &Value) -> Result<(Pod, u64), InvalidValue> {
    let valid = "a mapping with count and requests";
    let fields = object(field, value)?.ok_or_else(|| unusable(field, value, valid))?;
    known(field, fields, &FIELDS)?;
    let count = count(&format!("{field}.count"), &value["count"], 1..=COUNT_MAX)?;
    let requests = requests(&format!("{field}.requests"), &value["requests"])?;
    let mut pod = Pod::default();
    pod.metadata.annotations = words(&format!("{field}.annotations"), &value["annotations"])?;
    let container = Container {
        name: "main".to_owned(),
        resources: Some(ResourceRequirements {
            limits: Some(requests.clone()),
            requests: Some(requests),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    };
    pod.spec = Some(PodSpec {
        containers: vec![container],
        node_selector: words(&format!("{field}.nodeSelector"), &value["nodeSelector"])?,
        ..PodSpec::default()
    });
    Ok((pod, u64::try_from(count).unwrap_or(0)))
}

/// The requests of one pod.
fn requests(field: &str, value: &Value) -> Result<BTreeMap<String, K8sQuantity>, InvalidValue> {
    let valid = "amounts by resource, as in {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1}";
    let fields = object(field, value)?.filter(|fields| !fields.is_empty());
    let fields = fields.ok_or_else(|| unusable(field, value, valid))?;
    let mut all = BTreeMap::new();
    for (name, value) in fields {
        let field = format!("{field}[{name}]");
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let wrong = |valid: String| unusable(&field, value, valid);
        let amount: Quantity = text
            .parse()
            .map_err(|error| wrong(format!("a quantity, as in 8, 500m or 64Gi ({error})")))?;
        if amount.is_negative() {
            return Err(wrong("a quantity of 0 or more".to_owned()));
        }
        all.insert(name.clone(), amount.to_k8s());
    }
    Ok(all)
}

fn words(field: &str, value: &Value) -> Result<Option<BTreeMap<String, String>>, InvalidValue> {
    let Some(fields) = object(field, value)? else {
        return Ok(None);
    };
    let mut all = BTreeMap::new();
    for (name, value) in fields {
        let text = value.as_str().ok_or_else(|| {
            let valid = "the value as text, in quotes";
            unusable(&format!("{field}[{name}]"), value, valid)
        })?;
        all.insert(name.clone(), text.to_owned());
    }
    Ok(Some(all))
}
