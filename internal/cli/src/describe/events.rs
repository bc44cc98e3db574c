//! The events of an object and of its dependents, oldest first.

use std::collections::BTreeSet;

use anyhow::Result;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::ListParams;

use super::super::connection::ServerConnection;
use super::super::output::{self, Paint, Table};

/// The events of these objects, each given by kind and name, as a section of text.
pub async fn of(
    connection: &ServerConnection,
    namespace: Option<&str>,
    subjects: &[(String, String)],
) -> Result<String> {
    let api: Api<Event> =
        Api::namespaced(connection.client.clone(), namespace.unwrap_or("default"));
    let mut parameters = ListParams::default();
    if let [(kind, name)] = subjects {
        let one = format!("involvedObject.kind={kind},involvedObject.name={name}");
        parameters = parameters.fields(&one);
    }
    let wanted: BTreeSet<(&str, &str)> = subjects
        .iter()
        .map(|(kind, name)| (kind.as_str(), name.as_str()))
        .collect();
    let mut list = api.list(&parameters).await?.items;
    list.retain(|event| {
        let object = &event.involved_object;
        let kind = object.kind.as_deref().unwrap_or_default();
        wanted.contains(&(kind, object.name.as_deref().unwrap_or_default()))
    });
    // Timestamps have whole seconds; within one second, the order of writing counts.
    list.sort_by_cached_key(|event| {
        let version = event.metadata.resource_version.as_deref();
        let written: Option<u64> = version.and_then(|version| version.parse().ok());
        (last_seen(event).map(|time| time.0), written)
    });
    Ok(render(&list, subjects.len() > 1))
}

fn last_seen(event: &Event) -> Option<Time> {
    event
        .last_timestamp
        .clone()
        .or_else(|| event.event_time.clone().map(|time| Time(time.0)))
        .or_else(|| event.metadata.creation_timestamp.clone())
}

fn render(list: &[Event], several: bool) -> String {
    let heading = Paint::stdout().strong("Events:");
    if list.is_empty() {
        return format!("{heading} <none>\n");
    }
    let mut headings = vec!["  LAST SEEN", "TYPE", "REASON"];
    if several {
        headings.push("OBJECT");
    }
    headings.extend(["COUNT", "MESSAGE"]);
    let mut table = Table::new(headings);
    for event in list {
        let mut cells = vec![
            format!("  {}", output::age(last_seen(event).as_ref())),
            event.type_.clone().unwrap_or_default(),
            event.reason.clone().unwrap_or_default(),
        ];
        if several {
            let object = &event.involved_object;
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            cells.push(format!(
                "{}/{}",
                text(&object.kind).to_lowercase(),
                text(&object.name)
            ));
        }
        cells.push(event.count.unwrap_or(1).to_string());
        cells.push(event.message.clone().unwrap_or_default().replace('\n', " "));
        table.row(cells);
    }
    format!("{heading}\n{}", table.render())
}
