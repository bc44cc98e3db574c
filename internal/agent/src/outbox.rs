//! The messages for the server: the latest status of each pod, pods that are gone, and events. Kept
//! while there is no session; a new session gets all of it again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parking_lot::Mutex;
use rpc::agent::v1::{AgentMessage, EventNote, PodGone, PodStatus};
use tokio::sync::Notify;

/// Events kept while there is no session; older ones are dropped.
const MAX_EVENTS: usize = 512;

#[derive(Default)]
struct OutboxContent {
    statuses: BTreeMap<String, PodStatus>,
    unsent: BTreeSet<String>,
    gone: Vec<PodGone>,
    events: VecDeque<EventNote>,
}

/// The messages waiting to be sent.
#[derive(Default)]
pub struct Outbox {
    content: Mutex<OutboxContent>,
    news: Notify,
}

impl Outbox {
    /// A pod's status; not sent if it equals the last one.
    pub fn status(&self, status: PodStatus) {
        let mut content = self.content.lock();
        if content.statuses.get(&status.uid) == Some(&status) {
            return;
        }
        content.unsent.insert(status.uid.clone());
        content.statuses.insert(status.uid.clone(), status);
        drop(content);
        self.news.notify_one();
    }

    /// No part of the pod is left on the node; its last status is sent first.
    pub fn gone(&self, gone: PodGone) {
        self.content.lock().gone.push(gone);
        self.news.notify_one();
    }

    /// Adds an event.
    pub fn event(&self, note: EventNote) {
        let mut content = self.content.lock();
        if content.events.len() >= MAX_EVENTS {
            content.events.pop_front();
        }
        content.events.push_back(note);
        drop(content);
        self.news.notify_one();
    }

    /// A new session starts without any status.
    pub fn begin_again(&self) {
        let mut content = self.content.lock();
        content.unsent = content.statuses.keys().cloned().collect();
        drop(content);
        self.news.notify_one();
    }

    /// Waits for something to send.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// Takes all messages, in order. If a breaking session loses some, they are sent again:
    /// statuses by [`Outbox::begin_again`], the rest because the server asks again.
    pub fn take(&self) -> Vec<AgentMessage> {
        let mut content = self.content.lock();
        let unsent = std::mem::take(&mut content.unsent);
        let mut messages: Vec<AgentMessage> = unsent
            .iter()
            .filter_map(|uid| content.statuses.get(uid).cloned())
            .map(AgentMessage::from)
            .collect();
        for gone in std::mem::take(&mut content.gone) {
            content.statuses.remove(&gone.uid);
            messages.push(gone.into());
        }
        messages.extend(content.events.drain(..).map(AgentMessage::from));
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpc::agent::v1::agent_message::Body;

    fn status(uid: &str, text: &str) -> PodStatus {
        PodStatus {
            uid: uid.to_owned(),
            status_json: text.to_owned(),
            ..PodStatus::default()
        }
    }

    fn texts_of(outbox: &Outbox) -> Vec<String> {
        outbox
            .take()
            .into_iter()
            .map(|message| match message.body.unwrap() {
                Body::PodStatus(status) => format!("{}={}", status.uid, status.status_json),
                Body::PodGone(gone) => format!("{} gone", gone.uid),
                Body::Event(note) => note.reason,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn only_the_latest_status_is_sent_and_only_once() {
        let outbox = Outbox::default();
        outbox.status(status("a", "1"));
        outbox.status(status("a", "2"));
        assert_eq!(texts_of(&outbox), ["a=2"]);
        outbox.status(status("a", "2"));
        assert!(texts_of(&outbox).is_empty());
        outbox.begin_again();
        assert_eq!(texts_of(&outbox), ["a=2"]);
    }

    #[test]
    fn the_last_status_is_sent_before_pod_gone() {
        let outbox = Outbox::default();
        outbox.gone(PodGone {
            uid: "a".to_owned(),
            ..PodGone::default()
        });
        outbox.status(status("a", "last"));
        outbox.event(EventNote {
            reason: "Killing".to_owned(),
            ..EventNote::default()
        });
        assert_eq!(texts_of(&outbox), ["a=last", "a gone", "Killing"]);
        outbox.begin_again();
        assert!(texts_of(&outbox).is_empty());
    }

    #[test]
    fn events_are_bounded_and_the_oldest_go_first() {
        let outbox = Outbox::default();
        for n in 0..MAX_EVENTS + 1 {
            outbox.event(EventNote {
                reason: n.to_string(),
                ..EventNote::default()
            });
        }
        let texts = texts_of(&outbox);
        assert_eq!(texts.len(), MAX_EVENTS);
        assert_eq!(texts[0], "1");
    }
}
