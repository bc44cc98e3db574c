//! The events of a job, its gang and its pods, also of pods that are gone.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};

use super::When;
use crate::board::JobDetail;
use crate::problem::Problem;

/// The maximum number of events on the page.
const SHOWN_EVENTS: usize = 100;
/// The most pods whose events are asked for one by one.
const ASKED_MAX: usize = 32;
/// The event of a gang or pod that has no room.
const UNSCHEDULABLE: [&str; 2] = ["Unschedulable", "FailedScheduling"];

/// One event.
pub struct EventLine {
    pub at: When,
    /// The CSS class: a warning that still concerns the reader is marked.
    pub class: &'static str,
    pub about: String,
    pub reason: String,
    pub message: String,
    /// How often it was seen.
    pub count: i32,
}

/// The events, the latest first. `waits`: the job waits now; else what kept it waiting is past.
pub async fn of(
    client: Client,
    job: &JobDetail,
    waits: bool,
    now: Timestamp,
) -> Result<Vec<EventLine>, Problem> {
    let api: Api<Event> = Api::namespaced(client, &job.row.namespace);
    let pods = job.replicas.iter().map(|replica| replica.pod.as_str());
    let mut names: Vec<&str> = vec![&job.row.name];
    names.extend(pods.filter(|pod| *pod != job.row.name));
    let all: Vec<Event> = if names.len() <= ASKED_MAX {
        let list = names.iter().map(|name| {
            let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
            let api = api.clone();
            async move { api.list(&about).await }
        });
        let lists = try_join_all(list).await?;
        lists.into_iter().flat_map(|list| list.items).collect()
    } else {
        let names: std::collections::BTreeSet<&str> = names.into_iter().collect();
        let about = |event: &Event| {
            let name = event.involved_object.name.as_deref();
            name.is_some_and(|name| names.contains(name))
        };
        let list = api.list(&ListParams::default()).await?.items;
        list.into_iter().filter(about).collect()
    };
    Ok(lines(all, waits, now))
}

fn lines(all: Vec<Event>, waits: bool, now: Timestamp) -> Vec<EventLine> {
    // Two lists may contain one event.
    let by_uid: BTreeMap<Option<String>, Event> = all
        .into_iter()
        .map(|event| (event.metadata.uid.clone(), event))
        .collect();
    let seen = |event: &Event| {
        let last = event.last_timestamp.as_ref().map(|at| at.0);
        let time = event.event_time.as_ref().map(|at| at.0);
        last.or(time)
            .or(event.metadata.creation_timestamp.as_ref().map(|at| at.0))
    };
    // Times have whole seconds; within one, the order of writing counts.
    let written = |event: &Event| {
        let version = event.metadata.resource_version.as_deref();
        version.and_then(|version| version.parse::<u64>().ok())
    };
    let mut events: Vec<Event> = by_uid.into_values().collect();
    events.sort_by_cached_key(|event| std::cmp::Reverse((seen(event), written(event))));
    let line = |event: Event| {
        let reason = event.reason.clone().unwrap_or_default();
        let warns = event.type_.as_deref() == Some("Warning");
        let past = !waits && UNSCHEDULABLE.contains(&reason.as_str());
        EventLine {
            at: When::maybe(seen(&event), now),
            class: match (warns, past) {
                (true, false) => "warning",
                (_, true) => "past",
                _ => "",
            },
            about: event.involved_object.name.unwrap_or_default(),
            reason,
            message: event.message.unwrap_or_default(),
            count: event.count.unwrap_or(1),
        }
    };
    events.into_iter().take(SHOWN_EVENTS).map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_kept_a_job_waiting_is_no_warning_once_it_runs() {
        let event = |uid: &str, reason: &str, second: u32| -> Event {
            serde_json::from_value(json!({
                "metadata": {"uid": uid, "name": uid}, "type": "Warning", "reason": reason,
                "involvedObject": {"name": "j"}, "message": "m",
                "lastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            }))
            .unwrap()
        };
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let all = || {
            vec![
                event("a", "Unschedulable", 1),
                event("b", "BackOff", 2),
                event("b", "BackOff", 2),
            ]
        };
        let classes = |waits: bool| -> Vec<(String, &str)> {
            let lines = lines(all(), waits, now).into_iter();
            lines.map(|line| (line.reason, line.class)).collect()
        };
        let pair = |reason: &str, class| (reason.to_owned(), class);
        assert_eq!(
            classes(true),
            [pair("BackOff", "warning"), pair("Unschedulable", "warning")]
        );
        assert_eq!(
            classes(false),
            [pair("BackOff", "warning"), pair("Unschedulable", "past")]
        );
    }
}
