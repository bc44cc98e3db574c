//! Koordinator's ElasticQuota.

use serde_json::Value;

use super::{Fields, MappingError, QueueDraft, ResourceAmounts, Warning, name_of};
use crate::names::{LENDING_LIMIT, SURPLUS_WEIGHT};
use crate::quantity::Quantity;

/// The prefix of Koordinator's labels and annotations.
const PREFIX: &str = "quota.scheduling.koordinator.sh/";
/// The root of every tree, which has no object.
const ROOT: &str = "koordinator-root-quota";
/// Status that Koordinator writes itself.
const SHOWN: [&str; 8] = [
    "runtime",
    "request",
    "child-request",
    "non-preemptible-request",
    "non-preemptible-used",
    "allocated",
    "is-parent",
    "unschedulable-resource",
];

pub(super) fn read(
    object: &Value,
    drafts: &mut Vec<QueueDraft>,
    warnings: &mut Vec<Warning>,
) -> Result<(), MappingError> {
    let name = name_of(object);
    let spec = Fields::of(&name, "spec", &object["spec"]);
    let labels = Fields::of(&name, "metadata.labels", &object["metadata"]["labels"]);
    let notes = &object["metadata"]["annotations"];
    let notes = Fields::of(&name, "metadata.annotations", notes);
    let key = |key: &str| format!("{PREFIX}{key}");
    let mut draft = QueueDraft {
        name: object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        parent: labels
            .word(&key("parent"))
            .filter(|parent| *parent != ROOT)
            .map(str::to_owned),
        deserved: Some(spec.list("min")?),
        capability: spec.list("max")?,
        ..QueueDraft::default()
    };
    let weight = key("shared-weight");
    let shared: ResourceAmounts = match notes.text(&weight) {
        None => draft.capability.clone(),
        Some(text) => {
            let wrong = || {
                let wanted = r#"JSON of resource to quantity, as in {"cpu": "10"}"#;
                notes.wrong(&weight, text.clone(), wanted.to_owned())
            };
            let map: serde_json::Map<String, Value> =
                serde_json::from_str(&text).map_err(|_| wrong())?;
            let entries = map.iter().map(|(name, value)| {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                Some((name.clone(), text.parse::<Quantity>().ok()?))
            });
            entries
                .collect::<Option<ResourceAmounts>>()
                .ok_or_else(wrong)?
        }
    };
    draft.annotate(SURPLUS_WEIGHT, &shared);
    let lends = [("true", true), ("false", false)];
    if labels.one_of(&key("allow-lent-resource"), &lends)? == Some(false) {
        let nothing = |name: &String| (name.clone(), Quantity::default());
        let names = draft.deserved.iter().flat_map(ResourceAmounts::keys);
        let none: ResourceAmounts = names.map(nothing).collect();
        draft.annotate(LENDING_LIMIT, &none);
    }
    for shown in SHOWN {
        labels.get(&key(shown));
        notes.get(&key(shown));
    }
    spec.rest(warnings);
    let mut own = Vec::new();
    labels.rest(&mut own);
    notes.rest(&mut own);
    // Labels of other programs need no counterpart.
    own.retain(|warning| warning.key.contains(PREFIX));
    warnings.append(&mut own);
    drafts.push(draft);
    Ok(())
}
