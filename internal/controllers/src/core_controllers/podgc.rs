//! The loop over leftover pods: pods whose node was deleted, pods that are deleted before they were
//! placed, and ended pods without an owner beyond the limit.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher;
use kube::{Api, Client};

use super::access::{answered, together};
use super::lost_pods::{self, BoundPod, PodPart};
use super::mirror::{self, FieldMirror, ObjectKey};
use super::stopped;
use super::work_queue::PendingKeys;
use crate::context::Context;
use crate::event_recorder::EventRecorder;
use crate::retry::guarded;

/// How many ended pods without an owner are kept; Kubernetes' default.
const ENDED_MAX: usize = 12_500;
/// How often all pods are checked without a change.
const LOOK_EVERY: Duration = Duration::from_secs(20);

pub(crate) async fn run(mut ctx: Context) {
    let mut node_events = mirror::watch(
        Api::<Node>::all(ctx.client.clone()),
        watcher::Config::default(),
    );
    let mut pod_events = mirror::watch(
        Api::<PodPart>::all(ctx.client.clone()),
        watcher::Config::default(),
    );
    let notes = EventRecorder::new(ctx.client.clone(), "pod-garbage-collector");
    let mut nodes = FieldMirror::new();
    let mut pods = FieldMirror::new();
    let mut work = PendingKeys::new();
    work.add(());
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            Some(event) = node_events.next() => {
                for change in nodes.take(event, |_: Node| ()) {
                    if nodes.get(&change.key).is_none() {
                        work.add(());
                    }
                }
            }
            Some(event) = pod_events.next() => {
                for change in pods.take(event, BoundPod::of) {
                    if pods.get(&change.key).is_some_and(never_placed) {
                        work.add(());
                    }
                }
            }
            () = work.ready() => {
                work.take(1);
                let synced = nodes.synced() && pods.synced();
                match if synced { look(&ctx.client, &notes, &nodes, &pods).await } else { Ok(()) } {
                    Ok(()) => {
                        work.done(&());
                        work.add_after((), LOOK_EVERY);
                    }
                    Err(error) => {
                        if !answered(&error, 409) {
                            tracing::warn!(%error, "the controller could not delete leftover pods; it tries again");
                        }
                        work.failed(());
                    }
                }
            }
        }
    }
}

/// Whether a pod is being deleted and has no node that could report its end.
fn never_placed(pod: &BoundPod) -> bool {
    pod.deleting && pod.node.is_empty()
}

/// The names of nodes that pods are bound to and for which `has` is false.
fn missing_nodes<'a>(
    pods: impl Iterator<Item = &'a BoundPod>,
    has: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let bound = pods.map(|pod| pod.node.as_str());
    let missing = bound.filter(|node| !node.is_empty() && !has(node));
    missing.map(str::to_owned).collect()
}

/// The oldest ended pods without an owner, beyond the limit.
fn excess<'a>(
    pods: impl Iterator<Item = (&'a ObjectKey, &'a BoundPod)>,
    most: usize,
) -> Vec<(&'a ObjectKey, &'a BoundPod)> {
    let mut ended: Vec<_> = pods
        .filter(|(_, pod)| pod.finished && !pod.owned && !pod.deleting)
        .collect();
    let beyond = ended.len().saturating_sub(most);
    ended.sort_by_key(|(_, pod)| pod.created);
    ended.truncate(beyond);
    ended
}

async fn look(
    client: &Client,
    notes: &EventRecorder,
    nodes: &FieldMirror<()>,
    pods: &FieldMirror<BoundPod>,
) -> kube::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let known = |name: &str| nodes.get(&(String::new(), name.to_owned())).is_some();
    let (mut gone, mut failed) = (BTreeSet::new(), None);
    for name in missing_nodes(pods.iter().map(|(_, pod)| pod), known) {
        // The pods' watch may be ahead of the nodes' watch.
        match api.get_opt(&name).await {
            Ok(None) => {
                gone.insert(name);
            }
            Ok(Some(_)) => {}
            // The node's state is unknown, for example because its record is damaged: its pods
            // stay, and the pods of other nodes are processed.
            Err(error) => failed = Some(error),
        }
    }
    let mut writes = Vec::new();
    for (key, pod) in pods.iter() {
        if gone.contains(&pod.node) {
            writes.push(with_panic_event(notes, key, pod, give_up(client, key, pod)).boxed());
        } else if never_placed(pod) {
            let deleted = lost_pods::delete_now(client, key, pod);
            writes.push(with_panic_event(notes, key, pod, deleted).boxed());
        }
    }
    for (key, pod) in excess(pods.iter(), ENDED_MAX) {
        let deleted = lost_pods::delete_now(client, key, pod);
        writes.push(with_panic_event(notes, key, pod, deleted).boxed());
    }
    together(writes).await?;
    failed.map_or(Ok(()), Err)
}

/// Does the work about one pod. An event names the pod if that panics.
async fn with_panic_event(
    notes: &EventRecorder,
    key: &ObjectKey,
    pod: &BoundPod,
    work: impl Future<Output = kube::Result<()>>,
) -> kube::Result<()> {
    let done = guarded(work).await;
    if let Err(error) = &done {
        notes.note_panic(&pod.reference(key), error);
    }
    done
}

/// Ends a pod whose node was deleted.
async fn give_up(client: &Client, key: &ObjectKey, pod: &BoundPod) -> kube::Result<()> {
    if !pod.finished {
        let message = format!("Node {} was deleted", pod.node);
        lost_pods::declare(client, key, pod, &message, Timestamp::now()).await?;
    }
    lost_pods::delete_now(client, key, pod).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    fn pod(node: &str, phase: &str, created: i64, owned: bool) -> BoundPod {
        let owner = json!({"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "u"});
        let owners = if owned { vec![owner] } else { Vec::new() };
        let part: PodPart = serde_json::from_value(json!({
            "metadata": {
                "creationTimestamp": Timestamp::from_second(created).unwrap(), "ownerReferences": owners,
            },
            "spec": {"nodeName": node, "containers": [{"name": "c"}]},
            "status": {"phase": phase, "podIP": "10.0.0.1"},
        }))
        .unwrap();
        BoundPod::of(part)
    }

    #[test]
    fn the_oldest_ended_pods_without_an_owner_are_too_many() {
        let pods: Vec<(ObjectKey, BoundPod)> = [
            ("new", pod("n", "Succeeded", 30, false)),
            ("old", pod("n", "Failed", 10, false)),
            ("middle", pod("n", "Succeeded", 20, false)),
            ("owned", pod("n", "Succeeded", 1, true)),
            ("running", pod("n", "Running", 2, false)),
        ]
        .map(|(name, pod)| ((String::new(), name.to_owned()), pod))
        .into();
        let names = |most| -> Vec<&str> {
            let pods = pods.iter().map(|(key, pod)| (key, pod));
            excess(pods, most).iter().map(|(k, _)| &*k.1).collect()
        };
        assert_eq!(names(3), Vec::<&str>::new());
        assert_eq!(names(2), ["old"]);
        assert_eq!(names(0), ["old", "middle", "new"]);
    }

    #[tokio::test]
    async fn pods_of_a_node_that_cannot_be_read_stay_and_the_others_are_given_up() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let noted = deleted.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let code = if path.ends_with("/nodes/damaged") {
                500
            } else {
                404
            };
            if *request.method() == Method::DELETE {
                noted.lock().push(path);
            }
            let reason = if code == 404 { "NotFound" } else { "Unknown" };
            let body = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": reason, "message": "no", "code": code,
            });
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            async move { Ok::<_, kube::Error>(response) }
        });
        let client = Client::new(service, "default");
        let part = |name: &str, node: &str| -> PodPart {
            let part = json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name},
                "spec": {"nodeName": node}, "status": {"phase": "Succeeded"},
            });
            serde_json::from_value(part).unwrap()
        };
        let mut pods = FieldMirror::new();
        for (name, node) in [("a", "damaged"), ("b", "gone")] {
            pods.take(watcher::Event::Apply(part(name, node)), BoundPod::of);
        }
        let notes = EventRecorder::new(client.clone(), "test");
        let looked = look(&client, &notes, &FieldMirror::new(), &pods).await;
        assert!(looked.is_err());
        assert_eq!(*deleted.lock(), ["/api/v1/namespaces/ns/pods/b"]);
    }

    #[test]
    fn only_bound_pods_can_miss_their_node() {
        let pods = [
            pod("there", "Running", 1, false),
            pod("gone", "Running", 1, false),
            pod("", "Pending", 1, false),
        ];
        let missing = missing_nodes(pods.iter(), |name| name == "there");
        assert_eq!(Vec::from_iter(missing), ["gone"]);
    }
}
