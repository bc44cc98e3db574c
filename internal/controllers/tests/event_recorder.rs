//! Events recorded against the embedded resource API.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod served;

use std::time::Duration;

use controllers::event_recorder::{EventRecorder, EventType};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::ListParams;
use kube::{Api, Client};

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn pod(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some("default".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(format!("uid-{name}")),
        ..ObjectReference::default()
    }
}

/// Waits until the events satisfy the test.
async fn until(client: &Client, met: impl Fn(&[Event]) -> bool) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let waiting = async {
        loop {
            let seen = events.list(&ListParams::default()).await.unwrap().items;
            if met(&seen) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .expect("the events came")
}

#[tokio::test]
async fn the_same_remark_becomes_one_event_whose_count_grows() {
    let (_data, client) = served("test").await;
    let notes = EventRecorder::new(client.clone(), "scheduler");
    for _ in 0..5 {
        notes.note(
            &pod("a"),
            EventType::Warning,
            "FailedScheduling",
            "0/1 nodes are available",
        );
    }
    notes.note(
        &pod("b"),
        EventType::Normal,
        "Scheduled",
        "assigned to node-a",
    );
    let events = until(&client, |events| {
        events.len() == 2 && events.iter().any(|event| event.count == Some(5))
    })
    .await;
    let repeated = events.iter().find(|event| event.count == Some(5)).unwrap();
    assert_eq!(repeated.reason.as_deref(), Some("FailedScheduling"));
    assert_eq!(repeated.type_.as_deref(), Some("Warning"));
    assert_eq!(repeated.involved_object.name.as_deref(), Some("a"));
    assert_eq!(
        repeated.source.as_ref().unwrap().component.as_deref(),
        Some("scheduler")
    );
    assert!(
        repeated.last_timestamp.as_ref().unwrap().0 >= repeated.first_timestamp.as_ref().unwrap().0
    );
    assert_eq!(notes.dropped(), 0);
}

#[tokio::test]
async fn counts_not_yet_written_are_written_when_the_last_handle_goes() {
    let (_data, client) = served("test").await;
    let notes = EventRecorder::new(client.clone(), "scheduler");
    let other = notes.clone();
    notes.note(&pod("a"), EventType::Normal, "Looked", "at it");
    drop(notes);
    other.note(&pod("a"), EventType::Normal, "Looked", "at it");
    drop(other);
    until(&client, |events| {
        events.len() == 1 && events[0].count == Some(2)
    })
    .await;
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_stops_nothing() {
    let (_data, client) = served("test").await;
    let notes = EventRecorder::new(client.clone(), "scheduler");
    let mut lost = pod("x");
    lost.namespace = Some("gone".to_owned());
    notes.note(&lost, EventType::Normal, "Looked", "at nothing");
    notes.note(&pod("a"), EventType::Normal, "Looked", "at it");
    until(&client, |events| events.len() == 1).await;
}

#[tokio::test]
async fn more_remarks_than_can_wait_are_dropped_and_counted() {
    let (_data, client) = served("test").await;
    let notes = EventRecorder::new(client.clone(), "scheduler");
    // This loop never yields, so no event is written meanwhile.
    for n in 0..20_000 {
        notes.note(&pod(&format!("p{n}")), EventType::Normal, "Looked", "at it");
    }
    assert!(notes.dropped() > 0);
}
