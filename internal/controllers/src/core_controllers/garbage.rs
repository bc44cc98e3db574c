//! The garbage collection loop: watches every registered kind's metadata, asks
//! [`graph`](super::graph) for the next steps, and performs them. Every write carries the uid or
//! the resource version that the decision was based on.

use std::collections::BTreeSet;

use futures::StreamExt as _;
use futures::future::FutureExt as _;
use futures::stream::{self, SelectAll};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::runtime::watcher;
use resources::registry::{self, Kind};
use serde_json::json;
use supervisor::caught;

use super::access::{Metadata, WRITES_MAX, answered, everywhere, unless_gone, within};
use super::graph::{
    Cascade, GraphNode, GraphStep, ORPHAN, OwnerGraph, Uid, is_collected, owner_kind,
};
use super::work_queue::PendingKeys;
use super::{mirror, stopped};
use crate::context::Context;
use crate::event_recorder::{EventRecorder, EventType as NoteKind};
use crate::retry::{PANICKED, guarded, panic_in, panicked_note};

/// How many objects are processed before the watches are read again.
const TAKE_MAX: usize = 256;
/// From this number of absent owners on, those that no object names any more are forgotten. The
/// rest is bounded by the references in the graph and is never forgotten: the API is asked once
/// about each owner, however many are absent. An absent uid never comes back.
const ABSENT_FEW: usize = 10_000;

pub(crate) async fn run(mut ctx: Context) {
    let kinds: Vec<&'static Kind> = registry::all().iter().filter(|k| is_collected(k)).collect();
    let mut events: SelectAll<_> = kinds
        .iter()
        .map(|kind| {
            let api = everywhere(&ctx.client, kind);
            let events = mirror::watch(api, watcher::Config::default());
            events.map(|event| (*kind, event)).boxed()
        })
        .collect();
    let mut collector = Collector::new(ctx.client.clone(), &kinds);
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            Some((kind, event)) = events.next() => collector.take(kind, event),
            () = collector.work.ready(), if collector.unsynced.is_empty() => collector.act().await,
        }
    }
}

struct Collector {
    client: kube::Client,
    graph: OwnerGraph,
    work: PendingKeys<Uid>,
    absent: BTreeSet<Uid>,
    /// At this number of absent owners, those that no object names are forgotten.
    absent_max: usize,
    notes: EventRecorder,
    /// Kinds that were not listed yet; until then no object is known to have no dependents.
    unsynced: BTreeSet<&'static str>,
    /// The objects seen in the lists in progress.
    listing: BTreeSet<Uid>,
}

/// The result of one step.
enum GarbageOutcome {
    Done,
    OwnerAbsent(Uid),
    /// The API has an object that the graph has not seen yet.
    GraphBehind,
}

impl Collector {
    fn new(client: kube::Client, kinds: &[&'static Kind]) -> Collector {
        Collector {
            notes: EventRecorder::new(client.clone(), "garbage-collector"),
            client,
            graph: OwnerGraph::default(),
            work: PendingKeys::new(),
            absent: BTreeSet::new(),
            absent_max: ABSENT_FEW,
            unsynced: kinds.iter().map(|kind| kind.schema).collect(),
            listing: BTreeSet::new(),
        }
    }

    fn take(&mut self, kind: &'static Kind, event: watcher::Event<Metadata>) {
        let look = match event {
            watcher::Event::Init => {
                // Objects of an interrupted list are discarded.
                for uid in self.graph.of_kind(kind) {
                    self.listing.remove(&uid);
                }
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                let node = node(kind, object);
                self.listing.insert(node.uid.clone());
                self.graph.apply(node)
            }
            watcher::Event::InitDone => {
                self.unsynced.remove(kind.schema);
                let mut look = Vec::new();
                for uid in self.graph.of_kind(kind) {
                    if !self.listing.remove(&uid) {
                        look.extend(self.graph.remove(&uid));
                    }
                }
                look
            }
            watcher::Event::Apply(object) => self.graph.apply(node(kind, object)),
            watcher::Event::Delete(object) => self.graph.remove(&mirror::uid_of(&object)),
        };
        for uid in look {
            self.work.add(uid);
        }
    }

    async fn act(&mut self) {
        let mut steps = Vec::new();
        for uid in self.work.take(TAKE_MAX) {
            let decided = match caught(|| self.graph.decide(&uid, &self.absent)) {
                Ok(decided) => decided,
                Err(panic) => {
                    self.set_aside(uid, panic.message());
                    continue;
                }
            };
            if decided.is_empty() {
                self.work.done(&uid);
            }
            steps.extend(decided.into_iter().map(|step| (uid.clone(), step)));
        }
        let mut writes = Vec::new();
        for (uid, step) in steps {
            writes.push(self.perform(uid, step).boxed());
        }
        let done = stream::iter(writes).buffer_unordered(WRITES_MAX);
        let outcomes: Vec<_> = done.collect().await;
        for (uid, step, outcome) in outcomes {
            self.settle(uid, &step, outcome);
        }
    }

    async fn perform(
        &self,
        uid: Uid,
        step: GraphStep,
    ) -> (Uid, GraphStep, kube::Result<GarbageOutcome>) {
        let outcome = guarded(perform(&self.client, &self.graph, &uid, &step)).await;
        (uid, step, outcome)
    }

    /// An object that the loop panicked over backs off; the others go on.
    fn set_aside(&mut self, uid: Uid, panic: &str) {
        if let Some(node) = self.graph.get(&uid) {
            tracing::error!(
                kind = node.kind.kind,
                namespace = node.namespace,
                name = node.name,
                panic,
                "the garbage collector panicked on an object; it tries again later"
            );
            let about = reference(node);
            let words = panicked_note(panic);
            self.notes.note(&about, NoteKind::Warning, PANICKED, &words);
        }
        self.work.failed(uid);
    }

    /// Remembers that an owner does not exist.
    fn is_absent(&mut self, owner: Uid) {
        self.absent.insert(owner);
        if self.absent.len() > self.absent_max {
            let graph = &self.graph;
            self.absent.retain(|owner| graph.is_owner(owner));
            // Twice the remaining number: each scan of all entries is paid for by as many
            // additions.
            self.absent_max = self.absent.len().saturating_mul(2).max(ABSENT_FEW);
        }
    }

    fn settle(&mut self, uid: Uid, step: &GraphStep, outcome: kube::Result<GarbageOutcome>) {
        match outcome {
            Ok(GarbageOutcome::Done) => self.work.done(&uid),
            Ok(GarbageOutcome::OwnerAbsent(owner)) => {
                self.is_absent(owner);
                self.work.add(uid);
            }
            // The watch will show it in a moment.
            Ok(GarbageOutcome::GraphBehind) => self.work.failed(uid),
            Err(error) if panic_in(&error).is_some() => {
                self.set_aside(uid, panic_in(&error).unwrap_or_default());
            }
            Err(error) => {
                // The object changed meanwhile: the step is decided anew, without an error.
                if !answered(&error, 409) {
                    tracing::warn!(?step, %error, "the garbage collector could not handle an object; it tries again");
                }
                self.work.failed(uid);
            }
        }
    }
}

fn reference(node: &GraphNode) -> ObjectReference {
    ObjectReference {
        api_version: Some(node.kind.api_version()),
        kind: Some(node.kind.kind.to_owned()),
        namespace: Some(node.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        name: Some(node.name.clone()),
        uid: Some(node.uid.clone()),
        ..ObjectReference::default()
    }
}

fn node(kind: &'static Kind, object: Metadata) -> GraphNode {
    let meta = object.metadata;
    GraphNode {
        uid: meta.uid.unwrap_or_default(),
        kind,
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        resource_version: meta.resource_version.unwrap_or_default(),
        owners: meta.owner_references.unwrap_or_default(),
        finalizers: meta.finalizers.unwrap_or_default(),
        deleting: meta.deletion_timestamp.is_some(),
    }
}

async fn perform(
    client: &kube::Client,
    graph: &OwnerGraph,
    uid: &str,
    step: &GraphStep,
) -> kube::Result<GarbageOutcome> {
    let target = |uid: &Uid| graph.get(uid);
    match step {
        GraphStep::AskOwner(owner) => {
            let Some(dependent) = graph.get(uid) else {
                return Ok(GarbageOutcome::Done);
            };
            return ask_owner(client, &dependent.namespace, owner).await;
        }
        GraphStep::Delete(uid, cascade) => {
            if let Some(node) = target(uid) {
                delete(client, node, *cascade).await?;
            }
        }
        GraphStep::DropOwners(uid, gone) => {
            if let Some(node) = target(uid) {
                let kept = node.owners.iter();
                let kept: Vec<_> = kept.filter(|o| !gone.contains(&o.uid)).collect();
                patch(
                    client,
                    node,
                    json!({ "ownerReferences": absent_if_empty(kept) }),
                )
                .await?;
            }
        }
        GraphStep::Unblock(uid) => {
            if let Some(node) = target(uid) {
                let mut owners = node.owners.clone();
                for owner in &mut owners {
                    owner.block_owner_deletion = Some(false);
                }
                patch(
                    client,
                    node,
                    json!({ "ownerReferences": absent_if_empty(owners) }),
                )
                .await?;
            }
        }
        GraphStep::DropFinalizer(uid, finalizer) => {
            if let Some(node) = target(uid) {
                // A dependent overlooked here would be deleted, not orphaned.
                if *finalizer == ORPHAN && has_dependents(client, node).await? {
                    return Ok(GarbageOutcome::GraphBehind);
                }
                let kept = node.finalizers.iter();
                let kept: Vec<_> = kept.filter(|name| name != finalizer).collect();
                patch(client, node, json!({ "finalizers": kept })).await?;
            }
        }
    }
    Ok(GarbageOutcome::Done)
}

async fn ask_owner(
    client: &kube::Client,
    namespace: &str,
    owner: &OwnerReference,
) -> kube::Result<GarbageOutcome> {
    let Some(kind) = owner_kind(owner) else {
        return Ok(GarbageOutcome::Done);
    };
    // A cluster-scoped object cannot be owned by a namespaced one.
    if kind.namespaced && namespace.is_empty() {
        return Ok(GarbageOutcome::OwnerAbsent(owner.uid.clone()));
    }
    let found = within(client, kind, namespace).get_opt(&owner.name).await?;
    Ok(match found {
        Some(found) if found.metadata.uid.as_ref() == Some(&owner.uid) => {
            GarbageOutcome::GraphBehind
        }
        _ => GarbageOutcome::OwnerAbsent(owner.uid.clone()),
    })
}

/// Asks the API whether any object still names this one as its owner.
async fn has_dependents(client: &kube::Client, owner: &GraphNode) -> kube::Result<bool> {
    let scoped = !owner.namespace.is_empty();
    for kind in registry::all().iter().filter(|kind| is_collected(kind)) {
        if scoped && !kind.namespaced {
            continue;
        }
        let api = if scoped {
            within(client, kind, &owner.namespace)
        } else {
            everywhere(client, kind)
        };
        let found = api.list(&ListParams::default()).await?;
        let mut owners = found.items.iter().flat_map(ResourceExt::owner_references);
        if owners.any(|reference| reference.uid == owner.uid) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn delete(client: &kube::Client, node: &GraphNode, cascade: Cascade) -> kube::Result<()> {
    let params = DeleteParams {
        propagation_policy: Some(match cascade {
            Cascade::Background => PropagationPolicy::Background,
            Cascade::Foreground => PropagationPolicy::Foreground,
            Cascade::Orphan => PropagationPolicy::Orphan,
        }),
        preconditions: Some(Preconditions {
            uid: Some(node.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let api = within(client, node.kind, &node.namespace);
    unless_gone(api.delete(&node.name, &params).await)?;
    Ok(())
}

/// An empty list is omitted, as Kubernetes does.
fn absent_if_empty<T: serde::Serialize>(list: Vec<T>) -> serde_json::Value {
    if list.is_empty() {
        serde_json::Value::Null
    } else {
        json!(list)
    }
}

/// Patches part of an object's metadata, if the object is unchanged since the decision.
async fn patch(
    client: &kube::Client,
    node: &GraphNode,
    mut metadata: serde_json::Value,
) -> kube::Result<()> {
    metadata["uid"] = json!(node.uid);
    metadata["resourceVersion"] = json!(node.resource_version);
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let api = within(client, node.kind, &node.namespace);
    let patched = api.patch(&node.name, &PatchParams::default(), &patch).await;
    unless_gone(patched)?;
    Ok(())
}

#[cfg(test)]
#[path = "garbage_tests.rs"]
mod tests;
