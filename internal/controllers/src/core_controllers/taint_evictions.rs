//! The loop that deletes pods which do not tolerate a `NoExecute` taint of their node, at the time that
//! [`tolerance`](super::tolerance) says. Pods are watched only while a node has such a taint.
//!
//! The time counts from when this server first saw pod and taint together, so a restart gives a pod its time again.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, Client};
use resources::names::DISRUPTION_TARGET;
use resources::times::seconds;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::access::{answered, unless_gone};
use super::mirror::{self, FieldMirror, ObjectKey, uid_of};
use super::work_queue::PendingKeys;
use super::{stopped, tolerance};
use crate::context::Context;
use crate::event_recorder::{EventRecorder, EventType as NoteKind};
use crate::part::part_of;
use crate::retry::guarded;

/// How many pods are judged before the watches are read again.
const TAKE_MAX: usize = 64;
/// The longest wait before a pod is judged again: the queue holds no later time.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The part of a pod that this loop reads.
#[derive(Clone, Debug, Default, Deserialize)]
struct PodPart {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: SpecPart,
    #[serde(default)]
    status: StatusPart,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecPart {
    #[serde(default)]
    node_name: String,
    #[serde(default)]
    tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct StatusPart {
    #[serde(default)]
    phase: String,
}

part_of!(Pod, PodPart);

/// A pod with a node.
struct TaintedPod {
    uid: String,
    node: String,
    tolerations: Vec<Toleration>,
    /// It has ended or is being deleted.
    leaves: bool,
}

impl TaintedPod {
    fn of(pod: PodPart) -> TaintedPod {
        let ended = matches!(&*pod.status.phase, "Succeeded" | "Failed");
        TaintedPod {
            uid: uid_of(&pod),
            leaves: ended || pod.metadata.deletion_timestamp.is_some(),
            node: pod.spec.node_name,
            tolerations: pod.spec.tolerations,
        }
    }
}

struct TaintEvictions {
    client: Client,
    notes: EventRecorder,
    /// The taints of each node that count.
    nodes: FieldMirror<Vec<Taint>>,
    pods: FieldMirror<TaintedPod>,
    /// Since when each pod, by uid, has been seen with a taint that limits its stay.
    since: BTreeMap<ObjectKey, (String, Instant)>,
    work: PendingKeys<ObjectKey>,
}

pub(crate) async fn run(mut ctx: Context) {
    let any = watcher::Config::default;
    let client = ctx.client.clone();
    let mut nodes = mirror::watch(Api::<Node>::all(client.clone()), any());
    let mut pods: BoxStream<'static, watcher::Event<PodPart>> = stream::pending().boxed();
    let mut watching = false;
    let mut state = TaintEvictions {
        notes: EventRecorder::new(client.clone(), "taint-eviction-controller"),
        client: client.clone(),
        nodes: FieldMirror::new(),
        pods: FieldMirror::new(),
        since: BTreeMap::new(),
        work: PendingKeys::new(),
    };
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            Some(event) = nodes.next() => {
                state.take_node(event);
                let tainted = state.is_tainted();
                if tainted && !watching {
                    let bound = any().fields("spec.nodeName!=");
                    pods = mirror::watch(Api::<PodPart>::all(client.clone()), bound);
                }
                if !tainted && watching {
                    pods = stream::pending().boxed();
                    state.pods = FieldMirror::new();
                    state.since.clear();
                }
                watching = tainted;
            }
            Some(event) = pods.next() => {
                for change in state.pods.take(event, TaintedPod::of) {
                    state.work.add(change.key);
                }
            }
            () = state.work.ready(), if state.pods.synced() => state.act().await,
        }
    }
}

impl TaintEvictions {
    fn is_tainted(&self) -> bool {
        self.nodes.iter().any(|(_, taints)| !taints.is_empty())
    }

    fn take_node(&mut self, event: watcher::Event<Node>) {
        let taints = |node: Node| {
            let taints = node.spec.and_then(|spec| spec.taints);
            tolerance::evicting(taints.unwrap_or_default())
        };
        for change in self.nodes.take(event, taints) {
            let now = self.nodes.get(&change.key);
            if now == change.before.as_ref() {
                continue;
            }
            let on_node = self.pods.iter().filter(|(_, pod)| pod.node == change.key.1);
            let keys: Vec<ObjectKey> = on_node.map(|(key, _)| key.clone()).collect();
            for key in keys {
                self.work.add(key);
            }
        }
    }

    async fn act(&mut self) {
        for key in self.work.take(TAKE_MAX) {
            let Some(wait) = self.wait_for(&key) else {
                self.since.remove(&key);
                self.work.done(&key);
                continue;
            };
            if !wait.is_zero() {
                self.work.add_after(key, wait.min(LONGEST_WAIT));
                continue;
            }
            match guarded(self.delete(&key)).await {
                Ok(()) => self.work.done(&key),
                Err(error) => {
                    if !answered(&error, 409) {
                        tracing::warn!(pod = ?key, %error, "the controller could not delete a pod from a tainted node; it tries again");
                    }
                    self.work.failed(key);
                }
            }
        }
    }

    /// How long the pod may still stay; `None` if no taint limits its stay.
    fn wait_for(&mut self, key: &ObjectKey) -> Option<Duration> {
        let pod = self.pods.get(key).filter(|pod| !pod.leaves)?;
        let node = (String::new(), pod.node.clone());
        let stays = tolerance::stays_for(self.nodes.get(&node)?, &pod.tolerations)?;
        let now = Instant::now();
        let (uid, since) = self
            .since
            .entry(key.clone())
            .or_insert_with(|| (pod.uid.clone(), now));
        if *uid != pod.uid {
            (*uid, *since) = (pod.uid.clone(), now);
        }
        Some(stays.saturating_sub(now.saturating_duration_since(*since)))
    }

    async fn delete(&self, key: &ObjectKey) -> kube::Result<()> {
        let Some(pod) = self.pods.get(key) else {
            return Ok(());
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.0);
        // A Job's failure policy uses this condition to tell an evicted pod from a failed program.
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": pod.uid},
            "status": {"conditions": [{
                "type": DISRUPTION_TARGET, "status": "True", "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": seconds(Timestamp::now()),
            }]},
        }));
        let params = PatchParams::default();
        unless_gone(api.patch_status(&key.1, &params, &patch).await)?;
        let only = DeleteParams::default().preconditions(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        });
        unless_gone(api.delete(&key.1, &only).await)?;
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(key.0.clone()),
            name: Some(key.1.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        let message = format!("Marking for deletion Pod {}/{}", key.0, key.1);
        self.notes
            .note(&about, NoteKind::Normal, "TaintManagerEviction", &message);
        Ok(())
    }
}
