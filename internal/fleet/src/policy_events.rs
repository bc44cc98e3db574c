//! Reports on NetworkPolicies that are not enforced as they are written: by an event on the policy.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, PostParams};
use resources::network_policies::Shortfall;
use serde_json::json;
use supervisor::{LoopEnd, keep_running};
use tokio::task::AbortHandle;

/// How often the policies are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// The most characters of an event's message.
const MESSAGE_MAX: usize = 1000;
/// The reason of the events.
const REASON: &str = "NotEnforced";

/// What a look at the policies finds.
pub enum PolicyReport {
    /// The server stops.
    Stopped,
    /// Nothing has changed since the look with this number.
    Same,
    /// The number of this look, and the policies that are not enforced as they are written, with their uids.
    Changed(u64, Vec<(Shortfall, String)>),
}

/// Starts the reports. `look` gets the number of the last look.
pub fn spawn(
    client: Client,
    look: impl Fn(Option<u64>) -> PolicyReport + Clone + Send + Sync + 'static,
) -> AbortHandle {
    let start = move || report(client.clone(), look.clone());
    tokio::spawn(keep_running("the reports on NetworkPolicies", start)).abort_handle()
}

async fn report(client: Client, look: impl Fn(Option<u64>) -> PolicyReport) -> LoopEnd {
    /// Namespace, name and uid of a policy, and what was told of it.
    type Told = BTreeMap<((String, String), String), String>;
    let (mut seen, mut told) = (None, Told::new());
    loop {
        tokio::time::sleep(LOOK).await;
        let shortfalls = match look(seen) {
            PolicyReport::Stopped => return LoopEnd::Finished,
            PolicyReport::Same => continue,
            PolicyReport::Changed(number, shortfalls) => {
                seen = Some(number);
                shortfalls
            }
        };
        let mut now = Told::new();
        for (shortfall, uid) in shortfalls {
            let message = now.entry((shortfall.policy, uid)).or_default();
            if !message.is_empty() {
                message.push_str("; ");
            }
            message.push_str(&shortfall.message);
        }
        for (policy, message) in &now {
            if told.get(policy) != Some(message) {
                write(&client, &policy.0, &policy.1, message).await;
            }
        }
        told = now;
    }
}

/// A failed write loses the event, as in Kubernetes; the log has the message.
async fn write(client: &Client, (namespace, name): &(String, String), uid: &str, message: &str) {
    tracing::warn!(
        namespace,
        policy = name,
        "a NetworkPolicy is not enforced as it is written: {message}"
    );
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let now = Timestamp::now();
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let event = serde_json::from_value::<Event>(json!({
        "metadata": {"generateName": format!("{name}-"), "namespace": namespace},
        "involvedObject": {
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "namespace": namespace, "name": name, "uid": uid,
        },
        "type": "Warning", "reason": REASON, "message": message,
        "source": {"component": "muster-fleet"},
        "firstTimestamp": second, "lastTimestamp": second, "count": 1,
    }));
    let event = event.expect("an event of plain text is always an Event");
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        tracing::debug!(%error, "the server could not write an event");
    }
}
