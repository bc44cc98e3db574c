//! Tells a node's agent which Services changed since the last message of its session.

use std::collections::BTreeMap;
use std::sync::Arc;

use resources::services::ClusterService;
use rpc::agent::v1::ServiceChanges;

use super::{Session, SessionServer};
use crate::index::IndexKey;

/// The most Services in one message.
const MESSAGE_SERVICES: usize = 256;
/// The size from which no Service is added to a message, in bytes; one with the most endpoints has about 150 KiB.
const MESSAGE_BYTES: usize = 1 << 20;

/// What an agent was told.
pub(super) type SentServices = Option<BTreeMap<IndexKey, Arc<ClusterService>>>;

/// Sends a session what changed; false if the session has ended.
pub(super) async fn send(
    server: &SessionServer,
    session: &Arc<Session>,
    sent: &mut SentServices,
) -> bool {
    if !session.description.cluster_services || server.nodes.ranges.services.is_none() {
        return true;
    }
    let now = server.index.lock().cluster_services();
    let messages = messages(sent.as_ref(), &now);
    *sent = Some(now);
    for message in messages {
        if !session.send(message).await {
            return false;
        }
    }
    true
}

/// The messages that lead from what was sent to what is now; none if nothing changed.
fn messages(
    sent: Option<&BTreeMap<IndexKey, Arc<ClusterService>>>,
    now: &BTreeMap<IndexKey, Arc<ClusterService>>,
) -> Vec<ServiceChanges> {
    let same = |key: &IndexKey, service: &Arc<ClusterService>| {
        let before = sent.and_then(|sent| sent.get(key));
        before.is_some_and(|before| Arc::ptr_eq(before, service))
    };
    let mut all = Vec::new();
    let mut message = ServiceChanges {
        begins: sent.is_none(),
        ..ServiceChanges::default()
    };
    for key in sent.iter().flat_map(|sent| sent.keys()) {
        if !now.contains_key(key) {
            message.removed.push(format!("{}/{}", key.0, key.1));
        }
    }
    let mut bytes = 0;
    for (_, service) in now.iter().filter(|(key, service)| !same(key, service)) {
        let json = match serde_json::to_string(service.as_ref()) {
            Ok(json) => json,
            Err(error) => {
                tracing::error!(namespace = service.namespace, service = service.name, %error, "the server cannot encode a Service as JSON");
                continue;
            }
        };
        bytes += json.len();
        message.services_json.push(json);
        if message.services_json.len() == MESSAGE_SERVICES || bytes >= MESSAGE_BYTES {
            all.push(std::mem::take(&mut message));
            bytes = 0;
        }
    }
    let changes =
        message.begins || !message.removed.is_empty() || !message.services_json.is_empty();
    if changes {
        all.push(message);
    }
    if let Some(last) = all.last_mut() {
        last.complete = true;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(numbers: std::ops::Range<usize>) -> BTreeMap<IndexKey, Arc<ClusterService>> {
        let service = |number: usize| ClusterService {
            namespace: "team".to_owned(),
            name: format!("s{number}"),
            address: None,
            external_name: None,
            affinity_seconds: None,
            ports: Vec::new(),
            groups: Vec::new(),
        };
        let key = |number: usize| ("team".to_owned(), format!("s{number}"));
        numbers
            .map(|number| (key(number), Arc::new(service(number))))
            .collect()
    }

    #[test]
    fn only_what_changed_is_sent_in_messages_of_bounded_size() {
        let shown = |messages: Vec<ServiceChanges>| {
            let one = |message: &ServiceChanges| {
                let (begins, complete) = (message.begins, message.complete);
                let (put, removed) = (message.services_json.len(), message.removed.join(" "));
                format!("{begins} {complete} {put} {removed}")
            };
            messages.iter().map(one).collect::<Vec<_>>()
        };
        let none = BTreeMap::new();
        assert_eq!(shown(messages(None, &none)), ["true true 0 "]);
        let some = services(0..300);
        assert_eq!(
            shown(messages(None, &some)),
            ["true false 256 ", "false true 44 "]
        );
        assert!(messages(Some(&some), &some).is_empty());
        let mut changed = some.clone();
        changed.remove(&("team".to_owned(), "s7".to_owned()));
        changed.extend(services(8..9));
        assert_eq!(
            shown(messages(Some(&some), &changed)),
            ["false true 1 team/s7"]
        );
        let exactly = services(0..256);
        assert_eq!(shown(messages(None, &exactly)), ["true true 256 "]);
    }
}
