//! Reports on objects whose kinds are stored and not acted on (`resources::inert_kinds`) that no
//! controller runs them: in their status, and by an event. It creates and deletes nothing. In a
//! Kubernetes cluster it reports only on kinds whose definition Muster installed: where another
//! operator owns the kind, it leaves the objects alone.

use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use resources::inert_kinds::{ALL, InertKind, LABEL, REASON};
use resources::registry::Kind;
use serde_json::json;
use supervisor::{SetAside, contained};

use crate::context::Context;
use crate::control_loop::ControlLoop;
use crate::event_recorder::{EventRecorder, EventType as NoteKind};
use crate::retry::{PANICKED, panicked_note};

/// How often the loop checks again which operator owns a kind.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Starts a loop for each stored kind. Must be called within a tokio runtime.
pub(crate) fn spawn(ctx: &Context) -> Vec<ControlLoop> {
    let built_in = ctx.config.core_controllers;
    let notes = EventRecorder::new(ctx.client.clone(), "muster");
    let start = |inert: &'static InertKind| {
        let is_inert = |kind: &&Kind| match built_in {
            true => !inert.embedded_runs,
            false => kind.is_custom(),
        };
        let kind = inert
            .kind()
            .filter(is_inert)
            .filter(|_| inert.has_status())?;
        let (of, notes) = (ctx.clone(), notes.clone());
        let run = move || run(of.clone(), notes.clone(), inert, kind);
        let name = "kinds that are not run";
        Some(ControlLoop::kept_running(&ctx.stop, name, run))
    };
    ALL.iter().filter_map(start).collect()
}

async fn run(ctx: Context, notes: EventRecorder, inert: &'static InertKind, kind: &'static Kind) {
    let built_in = ctx.config.core_controllers;
    let mut stop = ctx.stop.clone();
    let mut logged = false;
    loop {
        let ours = built_in || is_ours(&ctx.client, inert).await;
        if !ours && !logged {
            tracing::info!(
                "the server leaves {} alone: another operator owns the definition, or it is not installed",
                inert.definition()
            );
        }
        logged = !ours;
        tokio::select! {
            // Stop was requested, or its sender is gone.
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(LOOK_AGAIN), if !ours || !built_in => {}
            () = watch(&ctx, &notes, inert, kind), if ours => {}
        }
    }
}

/// Whether Muster installed the kind.
async fn is_ours(client: &Client, inert: &InertKind) -> bool {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    match definitions.get_opt(&inert.definition()).await {
        Ok(found) => {
            let label = found.and_then(|found| found.labels().get(LABEL.0).cloned());
            label.as_deref() == Some(LABEL.1)
        }
        Err(error) => {
            tracing::warn!(%error, "the server cannot read the definition of {} and leaves its objects alone", inert.definition());
            false
        }
    }
}

/// Reports on every present and future object, until dropped.
async fn watch(ctx: &Context, notes: &EventRecorder, inert: &InertKind, kind: &Kind) {
    let resource = resource(kind);
    let all: Api<DynamicObject> = Api::all_with(ctx.client.clone(), &resource);
    let objects = watcher(all, watcher::Config::default())
        .backoff(crate::retry::Waits::default())
        .applied_objects();
    let mut objects = std::pin::pin!(objects);
    let mut aside = SetAside::default();
    loop {
        let object = tokio::select! {
            object = objects.next() => object,
            (_, object) = aside.due() => Some(Ok(object)),
        };
        let Some(object) = object else { return };
        match object {
            Ok(object) => {
                let key = (object.namespace(), object.name_any());
                let written = say(&ctx.client, notes, inert, &resource, &object);
                let Err(panic) = contained(written).await else {
                    aside.remove(&key);
                    continue;
                };
                tracing::error!(kind = kind.kind, object = ?key, %panic, "the controller panicked over an object and tries again later");
                let about = reference(&resource, &object);
                notes.note(
                    &about,
                    NoteKind::Warning,
                    PANICKED,
                    &panicked_note(panic.message()),
                );
                aside.put(key, object);
            }
            Err(error) => {
                tracing::debug!(%error, kind = kind.kind, "a watch ended; the controller opens it again")
            }
        }
    }
}

fn resource(kind: &Kind) -> ApiResource {
    let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    ApiResource::from_gvk_with_plural(&gvk, kind.plural)
}

fn reference(resource: &ApiResource, object: &DynamicObject) -> ObjectReference {
    ObjectReference {
        // An event's object is found by its kind, which a watch's items may leave out.
        api_version: Some(resource.api_version.clone()),
        kind: Some(resource.kind.clone()),
        ..object.object_ref(resource)
    }
}

/// Reports on one object, unless its status says so already.
async fn say(
    client: &Client,
    notes: &EventRecorder,
    inert: &InertKind,
    resource: &ApiResource,
    object: &DynamicObject,
) {
    if object.metadata.deletion_timestamp.is_some() {
        return;
    }
    let about = reference(resource, object);
    let Some(status) = inert.status(&object.data, Timestamp::now()) else {
        return;
    };
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, resource);
    let patch = Patch::Merge(json!({
        // The uid and version exclude an object that was created anew under the same name, and keep
        // others' writes from being overwritten.
        "metadata": {"uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version},
        "status": status,
    }));
    match api
        .patch_status(&object.name_any(), &PatchParams::default(), &patch)
        .await
    {
        Ok(_) => notes.note(&about, NoteKind::Warning, REASON, inert.message),
        // The object changed, and comes again; or it is gone.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
        Err(error) => {
            tracing::warn!(%error, kind = %resource.kind, %namespace, name = %object.name_any(), "the controller could not write the object's status");
        }
    }
}
