//! The watches, as one stream of the scheduler's events. A watch that is interrupted goes on
//! after a growing while, and what vanished meanwhile is told as gone.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use resources::kinds::{PodGroup, Queue};
use scheduler::Event;
use serde::de::DeserializeOwned;

/// How many kinds are watched: planning starts when each was listed once.
pub(super) const KINDS: usize = 5;

/// What the watches say.
#[derive(Debug)]
pub(super) enum Told {
    /// Something changed.
    Change(Event),
    /// All objects of this kind have been told.
    Listed(&'static str),
}

/// Everything that the scheduler must know of.
pub(super) fn feed(client: &Client) -> BoxStream<'static, Told> {
    let config = watcher::Config::default();
    stream::select_all([
        told(
            Api::all(client.clone()),
            config.clone(),
            "nodes",
            |o: Node| Event::NodeChanged(Box::new(o)),
            |_, name| Event::NodeGone(name),
        ),
        told(
            Api::all(client.clone()),
            config.clone(),
            "pods",
            |o: Pod| Event::PodChanged(Box::new(o)),
            Event::PodGone,
        ),
        told(
            Api::all(client.clone()),
            config.clone(),
            "podgroups",
            |o: PodGroup| Event::PodGroupChanged(Box::new(o)),
            Event::PodGroupGone,
        ),
        told(
            Api::all(client.clone()),
            config.clone(),
            "queues",
            |o: Queue| Event::QueueChanged(Box::new(o)),
            |_, name| Event::QueueGone(name),
        ),
        told(
            Api::all(client.clone()),
            config,
            "priorityclasses",
            |o: PriorityClass| Event::PriorityClassChanged(Box::new(o)),
            |_, name| Event::PriorityClassGone(name),
        ),
    ])
    .boxed()
}

type Key = (String, String);

fn told<K>(
    api: Api<K>,
    config: watcher::Config,
    kind: &'static str,
    changed: fn(K) -> Event,
    gone: fn(String, String) -> Event,
) -> BoxStream<'static, Told>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut known = Known {
        kind,
        all: BTreeSet::new(),
        listing: BTreeSet::new(),
        changed,
        gone,
    };
    watcher(api, config)
        .default_backoff()
        .filter_map(move |event| async move {
            event
                .inspect_err(|error| {
                    tracing::warn!(kind, %error, "a watch was interrupted and goes on");
                })
                .ok()
        })
        .flat_map(move |event| stream::iter(known.take(event)))
        .boxed()
}

/// The names known of one kind, to tell what vanished while a watch was interrupted.
struct Known<K> {
    kind: &'static str,
    all: BTreeSet<Key>,
    listing: BTreeSet<Key>,
    changed: fn(K) -> Event,
    gone: fn(String, String) -> Event,
}

impl<K: Resource> Known<K> {
    fn take(&mut self, event: watcher::Event<K>) -> Vec<Told> {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                self.listing.insert(key_of(&object));
                vec![Told::Change((self.changed)(object))]
            }
            watcher::Event::InitDone => {
                let now = std::mem::take(&mut self.listing);
                let before = std::mem::replace(&mut self.all, now);
                let vanished = before.difference(&self.all).cloned();
                let gone = self.gone;
                let mut told: Vec<Told> = vanished
                    .map(|(namespace, name)| Told::Change(gone(namespace, name)))
                    .collect();
                told.push(Told::Listed(self.kind));
                told
            }
            watcher::Event::Apply(object) => {
                self.all.insert(key_of(&object));
                vec![Told::Change((self.changed)(object))]
            }
            watcher::Event::Delete(object) => {
                let key = key_of(&object);
                self.all.remove(&key);
                vec![Told::Change((self.gone)(key.0, key.1))]
            }
        }
    }
}

fn key_of<K: Resource>(object: &K) -> Key {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.name = Some(name.to_owned());
        pod
    }

    #[test]
    fn a_new_list_tells_what_vanished_meanwhile() {
        let mut known = Known {
            kind: "pods",
            all: BTreeSet::new(),
            listing: BTreeSet::new(),
            changed: |o: Pod| Event::PodChanged(Box::new(o)),
            gone: Event::PodGone,
        };
        known.take(watcher::Event::Init);
        known.take(watcher::Event::InitApply(pod("a")));
        known.take(watcher::Event::InitApply(pod("b")));
        assert!(matches!(
            known.take(watcher::Event::InitDone)[..],
            [Told::Listed("pods")]
        ));
        known.take(watcher::Event::Apply(pod("c")));
        known.take(watcher::Event::Init);
        known.take(watcher::Event::InitApply(pod("b")));
        let told = known.take(watcher::Event::InitDone);
        let gone: Vec<&str> = told
            .iter()
            .filter_map(|told| match told {
                Told::Change(Event::PodGone(_, name)) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(gone, ["a", "c"]);
    }
}
