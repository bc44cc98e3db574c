//! The watches, merged into one stream of the scheduler's events. An interrupted watch resumes
//! after a growing wait, and objects that vanished meanwhile are reported as gone. In a cluster
//! whose kinds another operator installed, an object may be unreadable: it counts as absent and
//! delays no other.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use kube::core::{DeserializeGuard, error_boundary::InvalidObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use resources::kinds::{PodGroup, Queue};
use scheduler::Event;
use serde::de::DeserializeOwned;

use super::binder::is_bound;
use crate::key::{ObjectKey, key_of};

/// A message of the watches.
#[derive(Debug)]
pub(super) enum WatchMessage {
    /// Something changed.
    Change(Event),
    /// All objects of this kind have been delivered.
    Listed(&'static str),
}

/// The stream of everything that the scheduler needs, and the number of kinds in it: planning
/// starts when each was listed once. A waiting pod that names none of these schedulers is left out:
/// it holds no resources and gets none here. Claims, volumes and storage classes are watched if
/// `settings` enables them.
pub(super) fn watch_events(
    client: &Client,
    settings: &scheduler::Config,
) -> (BoxStream<'static, WatchMessage>, usize) {
    let names = settings.scheduler_names.clone();
    let mut all = vec![
        watch_kind(
            client,
            "nodes",
            |_| true,
            |o: Node| Ok(Event::NodeChanged(Box::new(o))),
            |_, name| Event::NodeGone(name),
        ),
        watch_kind(
            client,
            "pods",
            move |o| concerns(o, &names),
            |o: Pod| Ok(Event::PodChanged(Box::new(o))),
            Event::PodGone,
        ),
        watch_kind(
            client,
            "podgroups",
            |_| true,
            |o: DeserializeGuard<PodGroup>| Ok(Event::PodGroupChanged(Box::new(o.0?))),
            Event::PodGroupGone,
        ),
        watch_kind(
            client,
            "queues",
            |_| true,
            |o: DeserializeGuard<Queue>| Ok(Event::QueueChanged(Box::new(o.0?))),
            |_, name| Event::QueueGone(name),
        ),
        watch_kind(
            client,
            "namespaces",
            |_| true,
            |o: Namespace| Ok(Event::NamespaceChanged(Box::new(o))),
            |_, name| Event::NamespaceGone(name),
        ),
        watch_kind(
            client,
            "poddisruptionbudgets",
            |_| true,
            |o: PodDisruptionBudget| Ok(Event::BudgetChanged(Box::new(o))),
            Event::BudgetGone,
        ),
        watch_kind(
            client,
            "priorityclasses",
            |_| true,
            |o: PriorityClass| Ok(Event::PriorityClassChanged(Box::new(o))),
            |_, name| Event::PriorityClassGone(name),
        ),
    ];
    if settings.volumes_told {
        all.extend(volumes(client));
    }
    let kinds = all.len();
    (stream::select_all(all).boxed(), kinds)
}

/// The kinds that determine where claims let their pods run, and which volumes they get.
fn volumes(client: &Client) -> [BoxStream<'static, WatchMessage>; 7] {
    [
        watch_kind(
            client,
            "persistentvolumeclaims",
            |_| true,
            |o: PersistentVolumeClaim| Ok(Event::ClaimChanged(Box::new(o))),
            Event::ClaimGone,
        ),
        watch_kind(
            client,
            "persistentvolumes",
            |_| true,
            |o: PersistentVolume| Ok(Event::VolumeChanged(Box::new(o))),
            |_, name| Event::VolumeGone(name),
        ),
        watch_kind(
            client,
            "storageclasses",
            |_| true,
            |o: StorageClass| Ok(Event::StorageClassChanged(Box::new(o))),
            |_, name| Event::StorageClassGone(name),
        ),
        watch_kind(
            client,
            "csinodes",
            |_| true,
            |o: CSINode| Ok(Event::CsiNodeChanged(Box::new(o))),
            |_, name| Event::CsiNodeGone(name),
        ),
        watch_kind(
            client,
            "csidrivers",
            |_| true,
            |o: CSIDriver| Ok(Event::CsiDriverChanged(Box::new(o))),
            |_, name| Event::CsiDriverGone(name),
        ),
        watch_kind(
            client,
            "csistoragecapacities",
            |_| true,
            |o: CSIStorageCapacity| Ok(Event::StorageCapacityChanged(Box::new(o))),
            Event::StorageCapacityGone,
        ),
        watch_kind(
            client,
            "volumeattachments",
            |_| true,
            |o: VolumeAttachment| Ok(Event::AttachmentChanged(Box::new(o))),
            |_, name| Event::AttachmentGone(name),
        ),
    ]
}

/// Whether a pod holds resources or requests them from a scheduler of these names.
fn concerns(pod: &Pod, scheduler_names: &[String]) -> bool {
    pod.spec.as_ref().is_none_or(|spec| {
        let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
        is_bound(pod) || scheduler_names.iter().any(|name| name == scheduler)
    })
}

fn watch_kind<K>(
    client: &Client,
    kind: &'static str,
    heeds: impl Fn(&K) -> bool + Send + 'static,
    changed: fn(K) -> Result<Event, Box<InvalidObject>>,
    gone: fn(String, String) -> Event,
) -> BoxStream<'static, WatchMessage>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut known = KnownNames {
        kind,
        all: BTreeSet::new(),
        listing: BTreeSet::new(),
        changed,
        gone,
    };
    watcher(Api::all(client.clone()), watcher::Config::default())
        .backoff(crate::retry::Waits::default())
        .filter_map(move |event| async move {
            event
                .inspect_err(|error| {
                    tracing::warn!(kind, %error, "a watch was interrupted; the server opens it again");
                })
                .ok()
        })
        .flat_map(move |event| {
            let is_relevant = match &event {
                watcher::Event::InitApply(object) | watcher::Event::Apply(object) => heeds(object),
                _ => true,
            };
            stream::iter(if is_relevant { known.take(event) } else { Vec::new() })
        })
        .boxed()
}

/// The names known of one kind, to detect objects that vanished while a watch was interrupted. Only
/// names: the scheduler's state is the copy of the objects, so a mirror would be a second one.
struct KnownNames<K> {
    kind: &'static str,
    all: BTreeSet<ObjectKey>,
    listing: BTreeSet<ObjectKey>,
    changed: fn(K) -> Result<Event, Box<InvalidObject>>,
    gone: fn(String, String) -> Event,
}

impl<K: Resource> KnownNames<K> {
    fn take(&mut self, event: watcher::Event<K>) -> Vec<WatchMessage> {
        match event {
            watcher::Event::Init => {
                self.listing.clear();
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                let key = key_of(&object);
                let event = self.read(&key, object);
                event.map_or_else(Vec::new, |event| {
                    self.listing.insert(key);
                    vec![WatchMessage::Change(event)]
                })
            }
            watcher::Event::InitDone => {
                let now = std::mem::take(&mut self.listing);
                let before = std::mem::replace(&mut self.all, now);
                let vanished = before.difference(&self.all).cloned();
                let gone = self.gone;
                let mut messages: Vec<WatchMessage> = vanished
                    .map(|(namespace, name)| WatchMessage::Change(gone(namespace, name)))
                    .collect();
                messages.push(WatchMessage::Listed(self.kind));
                messages
            }
            watcher::Event::Apply(object) => {
                let key = key_of(&object);
                if let Some(event) = self.read(&key, object) {
                    self.all.insert(key);
                    return vec![WatchMessage::Change(event)];
                }
                self.all.remove(&key);
                vec![WatchMessage::Change((self.gone)(key.0, key.1))]
            }
            watcher::Event::Delete(object) => {
                let key = key_of(&object);
                self.all.remove(&key);
                vec![WatchMessage::Change((self.gone)(key.0, key.1))]
            }
        }
    }

    fn read(&self, key: &ObjectKey, object: K) -> Option<Event> {
        let read = (self.changed)(object);
        read.inspect_err(|error| {
            let (kind, namespace, name) = (self.kind, &key.0, &key.1);
            tracing::warn!(kind, namespace, name, %error, "an object cannot be read; the controller treats it as absent");
        })
        .ok()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    fn pod(name: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.name = Some(name.to_owned());
        pod
    }

    #[test]
    fn a_pod_that_waits_for_another_scheduler_is_left_out() {
        let names = ["muster".to_owned(), String::new()];
        let pod = |scheduler: Option<&str>, node: Option<&str>| Pod {
            spec: Some(PodSpec {
                scheduler_name: scheduler.map(str::to_owned),
                node_name: node.map(str::to_owned),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        assert!(concerns(&pod(None, None), &names));
        assert!(concerns(&pod(Some("muster"), None), &names));
        assert!(concerns(&pod(Some("other"), Some("n1")), &names));
        assert!(!concerns(&pod(Some("other"), None), &names));
        assert!(!concerns(&pod(Some("other"), Some("")), &names));
    }

    #[test]
    fn a_new_list_reports_objects_that_vanished_meanwhile() {
        let mut known = KnownNames {
            kind: "pods",
            all: BTreeSet::new(),
            listing: BTreeSet::new(),
            changed: |o: Pod| Ok(Event::PodChanged(Box::new(o))),
            gone: Event::PodGone,
        };
        known.take(watcher::Event::Init);
        known.take(watcher::Event::InitApply(pod("a")));
        known.take(watcher::Event::InitApply(pod("b")));
        assert!(matches!(
            known.take(watcher::Event::InitDone)[..],
            [WatchMessage::Listed("pods")]
        ));
        known.take(watcher::Event::Apply(pod("c")));
        known.take(watcher::Event::Init);
        known.take(watcher::Event::InitApply(pod("b")));
        let messages = known.take(watcher::Event::InitDone);
        let gone: Vec<&str> = messages
            .iter()
            .filter_map(|message| match message {
                WatchMessage::Change(Event::PodGone(_, name)) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(gone, ["a", "c"]);
    }

    #[test]
    fn an_object_that_cannot_be_read_counts_as_not_there_and_holds_up_no_other() {
        let mut known = KnownNames {
            kind: "podgroups",
            all: BTreeSet::new(),
            listing: BTreeSet::new(),
            changed: |o: DeserializeGuard<PodGroup>| Ok(Event::PodGroupChanged(Box::new(o.0?))),
            gone: Event::PodGroupGone,
        };
        let group = |name: &str, members: serde_json::Value| -> DeserializeGuard<PodGroup> {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
                "metadata": {"namespace": "ns", "name": name}, "spec": {"minMember": members},
            }))
            .unwrap()
        };
        let good = || group("good", 2.into());
        known.take(watcher::Event::Init);
        assert!(
            known
                .take(watcher::Event::InitApply(group("bad", "two".into())))
                .is_empty()
        );
        assert_eq!(known.take(watcher::Event::InitApply(good())).len(), 1);
        assert!(matches!(
            known.take(watcher::Event::InitDone)[..],
            [WatchMessage::Listed("podgroups")]
        ));
        // The object was readable and no longer is.
        let messages = known.take(watcher::Event::Apply(group("good", "two".into())));
        assert!(
            matches!(&messages[..], [WatchMessage::Change(Event::PodGroupGone(_, name))] if name == "good")
        );
        let messages = known.take(watcher::Event::Apply(good()));
        assert!(matches!(
            messages[..],
            [WatchMessage::Change(Event::PodGroupChanged(_))]
        ));
    }
}
