//! Reads a KubeSchedulerConfiguration (`kubescheduler.config.k8s.io`, as of Kubernetes 1.34).
//!
//! | kube-scheduler | Muster |
//! |---|---|
//! | `profiles[].schedulerName` | `schedulerNames` |
//! | NodeResourcesFit's `scoringStrategy.type` MostAllocated, LeastAllocated | `placement: pack`, `spread` |
//! | plugin DefaultPreemption disabled | no `preempt` among the `actions` |
//! | filters: NodeAffinity, TaintToleration, PodTopologySpread, ... | always on, as the pods request |

use serde_json::Value;

use super::foreign::{ForeignSettings, WarningCollector, items, within};
use super::words::{object, unusable};
use super::{InvalidValue, Settings};
use crate::config::{Actions, PlacementStrategy};

const GROUP: &str = "kubescheduler.config.k8s.io/";
/// The name of a profile without one.
const DEFAULT_NAME: &str = "default-scheduler";
/// Plugins whose rules always hold here.
const BUILT_IN: [&str; 16] = [
    "DefaultBinder",
    "InterPodAffinity",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "NodeResourcesFit",
    "NodeUnschedulable",
    "NodeVolumeLimits",
    "PodTopologySpread",
    "PrioritySort",
    "SchedulingGates",
    "TaintToleration",
    "VolumeBinding",
    "VolumeRestrictions",
    "VolumeZone",
    "DefaultPreemption",
];

/// True if this is a KubeSchedulerConfiguration.
pub(super) fn is(document: &Value) -> bool {
    let version = document["apiVersion"].as_str().unwrap_or_default();
    document["kind"] == "KubeSchedulerConfiguration" && version.starts_with(GROUP)
}

pub(super) fn read(document: &Value) -> Result<ForeignSettings, InvalidValue> {
    let mut notes = WarningCollector::on("KubeSchedulerConfiguration");
    let mut settings = Settings::default();
    if let Some(top) = document.as_object() {
        notes.rest("", top, &["apiVersion", "kind", "metadata", "profiles"]);
    }
    let mut names: Vec<String> = Vec::new();
    let mut placements: Vec<PlacementStrategy> = Vec::new();
    for (at, profile) in items("profiles", &document["profiles"])?.iter().enumerate() {
        let path = format!("profiles[{at}]");
        let Some(fields) = object(&path, profile)? else {
            continue;
        };
        notes.rest(&path, fields, &["schedulerName", "plugins", "pluginConfig"]);
        let name = match &profile["schedulerName"] {
            Value::Null => DEFAULT_NAME,
            Value::String(name) => name,
            other => {
                let field = within(&path, "schedulerName");
                return Err(unusable(&field, other, "a name"));
            }
        };
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
        plugins(&path, &profile["plugins"], &mut settings, &mut notes)?;
        placements.extend(strategy(&path, &profile["pluginConfig"], &mut notes)?);
    }
    if let Some((first, others)) = placements.split_first() {
        settings.placement = Some(*first);
        if others.iter().any(|other| other != first) {
            notes.add(
                "profiles",
                "their scoring strategies differ, and Muster has one for all pods; it uses the first",
            );
        }
    }
    settings.scheduler_names = (!names.is_empty()).then_some(names);
    Ok(ForeignSettings {
        settings,
        warnings: notes.warnings,
    })
}

/// Applies the enabled and disabled plugins, by extension point.
fn plugins(
    path: &str,
    value: &Value,
    settings: &mut Settings,
    notes: &mut WarningCollector,
) -> Result<(), InvalidValue> {
    let path = within(path, "plugins");
    let Some(points) = object(&path, value)? else {
        return Ok(());
    };
    for (point, sets) in points {
        let path = within(&path, point);
        let Some(fields) = object(&path, sets)? else {
            continue;
        };
        notes.rest(&path, fields, &["enabled", "disabled"]);
        for (at, plugin) in items(&within(&path, "enabled"), &sets["enabled"])?
            .iter()
            .enumerate()
        {
            let path = format!("{path}.enabled[{at}]");
            let name = plugin["name"].as_str().unwrap_or_default();
            if !BUILT_IN.contains(&name) {
                notes.add(
                    &path,
                    format!("Muster has no counterpart of the plugin {name} and ignores it"),
                );
            } else if !plugin["weight"].is_null() {
                notes.add(
                    &within(&path, "weight"),
                    format!(
                        "Muster does not weight {name} against other plugins and ignores the weight"
                    ),
                );
            }
        }
        for (at, plugin) in items(&within(&path, "disabled"), &sets["disabled"])?
            .iter()
            .enumerate()
        {
            let path = format!("{path}.disabled[{at}]");
            match plugin["name"].as_str().unwrap_or_default() {
                "DefaultPreemption" => {
                    let actions = settings.actions.unwrap_or_default();
                    settings.actions = Some(Actions {
                        preempt: false,
                        ..actions
                    });
                }
                name if name == "*" || BUILT_IN.contains(&name) => {
                    notes.add(&path, format!("Muster cannot switch off {name}"));
                }
                // A plugin that does not exist here is off anyway.
                _ => {}
            }
        }
    }
    Ok(())
}

/// The placement strategy, from NodeResourcesFit's arguments; warns about all other arguments.
fn strategy(
    path: &str,
    value: &Value,
    notes: &mut WarningCollector,
) -> Result<Option<PlacementStrategy>, InvalidValue> {
    let path = within(path, "pluginConfig");
    let mut found = None;
    for (at, config) in items(&path, value)?.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let name = config["name"].as_str().unwrap_or_default();
        let scoring = &config["args"]["scoringStrategy"];
        if name != "NodeResourcesFit" {
            notes.add(
                &path,
                format!("Muster has no counterpart of the arguments of {name} and ignores them"),
            );
            continue;
        }
        let args = within(&path, "args");
        if let Some(fields) = object(&args, &config["args"])? {
            notes.rest(&args, fields, &["apiVersion", "kind", "scoringStrategy"]);
        }
        let own = within(&args, "scoringStrategy");
        if let Some(fields) = object(&own, scoring)? {
            notes.rest(&own, fields, &["type"]);
        }
        match scoring["type"].as_str() {
            Some("MostAllocated") => found = Some(PlacementStrategy::Pack),
            Some("LeastAllocated") => found = Some(PlacementStrategy::Spread),
            Some(other) => notes.add(
                &within(&own, "type"),
                format!(
                    "Muster has no counterpart of {other}; write MostAllocated or LeastAllocated"
                ),
            ),
            None => {}
        }
    }
    Ok(found)
}
