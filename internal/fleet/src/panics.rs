//! Reports that the server panicked over one object: in the log, and in an event on the object.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::{Api, PostParams};
use kube::{Client, Resource, ResourceExt as _};
use serde_json::json;

/// The reason of the event, as the controllers give it.
const REASON: &str = "ReconcilePanicked";

/// Reports a panic of the loop `name` over `object`. A failed write loses the event, as in
/// Kubernetes; the log has the message.
pub async fn report<K>(client: &Client, object: &K, name: &'static str, panic: &str)
where
    K: Resource<DynamicType = ()>,
{
    let about: ObjectReference = object.object_ref(&());
    let (kind, namespace, of) = (
        about.kind.clone().unwrap_or_default(),
        object.namespace().unwrap_or_default(),
        object.name_any(),
    );
    tracing::error!(
        name,
        kind,
        namespace,
        object = of,
        panic,
        "the server panicked over an object, leaves it aside, and tries again later"
    );
    let namespace = match namespace.is_empty() {
        true => "default".to_owned(),
        false => namespace,
    };
    let now = Timestamp::now();
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let event = serde_json::from_value::<Event>(json!({
        "metadata": {"generateName": format!("{of}-"), "namespace": namespace},
        "involvedObject": about,
        "type": "Warning", "reason": REASON,
        "message": format!(
            "The server panicked while it handled this object ({name}), leaves it aside, and will try again: {panic}. \
             Other objects are not affected. Change or delete this object, and report the panic with the object's manifest."
        ),
        "source": {"component": "muster-fleet"},
        "firstTimestamp": second, "lastTimestamp": second, "count": 1,
    }));
    let event = event.expect("an event of plain text is always an Event");
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        tracing::debug!(%error, "the server could not write an event");
    }
}
