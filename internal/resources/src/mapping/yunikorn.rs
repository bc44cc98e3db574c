//! YuniKorn's queue configuration: the text of `queues.yaml`.

use serde_json::Value;

use super::{Fields, MappingError, QueueDraft, ResourceAmounts, Warning};
use crate::names::{PREEMPTION, QUEUE_POLICY, TEAM_LIMIT, USER_LIMIT};

/// The maximum depth of the tree.
const DEPTH_MAX: usize = 64;

pub(super) fn read(
    object: &Value,
    drafts: &mut Vec<QueueDraft>,
    warnings: &mut Vec<Warning>,
) -> Result<(), MappingError> {
    let whole = Fields::of("queue configuration", "", object);
    let partitions = whole.items("partitions");
    let several = partitions.len() > 1;
    for partition in partitions {
        let name = partition.word("name").unwrap_or("default");
        if several && name != "default" {
            partition.warn(
                "name",
                "is left out, because Muster schedules one cluster",
                warnings,
            );
            continue;
        }
        for queue in partition.items("queues") {
            read_queue(&queue, None, 0, drafts, warnings)?;
        }
        partition.rest(warnings);
    }
    whole.rest(warnings);
    Ok(())
}

fn read_queue(
    queue: &Fields<'_>,
    above: Option<&str>,
    depth: usize,
    drafts: &mut Vec<QueueDraft>,
    warnings: &mut Vec<Warning>,
) -> Result<(), MappingError> {
    let own = queue.word("name").unwrap_or_default();
    let name = match above {
        Some(above) => format!("{above}.{own}"),
        None => own.to_owned(),
    };
    if own.is_empty() || depth > DEPTH_MAX {
        let wanted = format!("a name for each queue, with at most {DEPTH_MAX} queues above it");
        return Err(queue.wrong("name", name, wanted));
    }
    queue.get("parent");
    let mut draft = QueueDraft {
        name: name.clone(),
        parent: above.map(str::to_owned),
        ..QueueDraft::default()
    };
    let resources = queue.inner("resources");
    let guaranteed = cores(resources.list("guaranteed")?);
    draft.deserved = (!guaranteed.is_empty()).then_some(guaranteed);
    draft.capability = cores(resources.list("max")?);
    resources.rest(warnings);
    properties(&queue.inner("properties"), &mut draft, warnings)?;
    for limit in queue.items("limits") {
        read_limit(&limit, &mut draft, warnings)?;
    }
    for inner in queue.items("queues") {
        read_queue(&inner, Some(&name), depth + 1, drafts, warnings)?;
    }
    queue.rest(warnings);
    drafts.push(draft);
    Ok(())
}

/// Renames YuniKorn's `vcore` to `cpu`.
fn cores(mut list: ResourceAmounts) -> ResourceAmounts {
    if let Some(cores) = list.remove("vcore") {
        list.insert("cpu".to_owned(), cores);
    }
    list
}

fn properties(
    properties: &Fields<'_>,
    draft: &mut QueueDraft,
    warnings: &mut Vec<Warning>,
) -> Result<(), MappingError> {
    let switch = [("enabled", true), ("disabled", false)];
    let priorities = properties
        .one_of("application.sort.priority", &switch)?
        .unwrap_or(true);
    let policy = match properties.word("application.sort.policy") {
        Some("fair") => Some("fair"),
        Some("fifo") if !priorities => Some("fifo"),
        _ => None,
    };
    if let Some(policy) = policy {
        draft
            .annotations
            .insert(QUEUE_POLICY.to_owned(), policy.to_owned());
    }
    if policy == Some("fair") {
        let why = "is fair between the queue's users in Muster, not between its applications";
        properties.warn("application.sort.policy", why, warnings);
    }
    if let Some(offset) = properties.text("priority.offset") {
        let wanted = || "a whole number".to_owned();
        let offset = offset.parse::<i32>();
        draft.priority = Some(offset.map_err(|_| {
            let text = properties.text("priority.offset").unwrap_or_default();
            properties.wrong("priority.offset", text, wanted())
        })?);
    }
    match properties.word("preemption.policy") {
        Some("disabled") => {
            draft.reclaimable = Some(false);
            let never = r#"{"withinQueue":"Never","reclaim":"Never"}"#;
            draft
                .annotations
                .insert(PREEMPTION.to_owned(), never.to_owned());
        }
        Some("fence") => {
            let why =
                "has no counterpart; a queue may reclaim its entitlement from any other queue";
            properties.warn("preemption.policy", why, warnings);
        }
        _ => {}
    }
    properties.rest(warnings);
    Ok(())
}

fn read_limit(
    limit: &Fields<'_>,
    draft: &mut QueueDraft,
    warnings: &mut Vec<Warning>,
) -> Result<(), MappingError> {
    limit.get("limit");
    let most = cores(limit.list("maxresources")?);
    for (key, name) in [("users", USER_LIMIT), ("groups", TEAM_LIMIT)] {
        let names: Vec<&str> = limit
            .get(key)
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if names.contains(&"*") {
            draft.annotate(name, &most);
        }
        if names.iter().any(|name| *name != "*") {
            let why = "limits apply to all users or groups alike; only `*` has a counterpart";
            limit.warn(key, why, warnings);
        }
    }
    limit.rest(warnings);
    Ok(())
}
