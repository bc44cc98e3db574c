//! The loop over namespaces: it creates the `default` ServiceAccount in each, empties a namespace
//! that is being deleted, and then finalizes it.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, ServiceAccount};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use resources::registry::{self, Kind};

use super::access::{answered, unless_gone, within};
use super::mirror::{self, FieldMirror, ObjectKey, text};
use super::stopped;
use super::work_queue::PendingKeys;
use crate::Context;
use crate::event_recorder::{EventRecorder, EventType as NoteKind};
use crate::retry::{PANICKED, guarded, panic_in, panicked_note};

/// The finalizer in a namespace's spec that this loop removes.
const FINALIZER: &str = "kubernetes";
const SERVICE_ACCOUNT: &str = "default";
/// How many namespaces are reconciled before the watches are read again.
const TAKE_MAX: usize = 16;
/// The wait for deletions before the namespace is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The next step for a namespace.
#[derive(Debug, PartialEq, Eq)]
enum NamespaceStep {
    Nothing,
    GiveServiceAccount,
    Empty,
}

fn decide(namespace: &Namespace, has_service_account: bool) -> NamespaceStep {
    let deleting = namespace.metadata.deletion_timestamp.is_some();
    match (deleting, has_service_account) {
        (false, true) => NamespaceStep::Nothing,
        (false, false) => NamespaceStep::GiveServiceAccount,
        (true, _) if finalizers(namespace).any(|name| name == FINALIZER) => NamespaceStep::Empty,
        (true, _) => NamespaceStep::Nothing,
    }
}

fn finalizers(namespace: &Namespace) -> impl Iterator<Item = &String> {
    let spec = namespace.spec.as_ref();
    spec.and_then(|spec| spec.finalizers.as_ref())
        .into_iter()
        .flatten()
}

/// The namespace without its last finalizer.
fn finalized(mut namespace: Namespace) -> Namespace {
    if let Some(spec) = &mut namespace.spec
        && let Some(finalizers) = &mut spec.finalizers
    {
        finalizers.retain(|name| name != FINALIZER);
    }
    namespace
}

pub(crate) async fn run(mut ctx: Context) {
    let mut namespace_events = mirror::watch(
        Api::<Namespace>::all(ctx.client.clone()),
        watcher::Config::default(),
    );
    let named = format!("metadata.name={SERVICE_ACCOUNT}");
    let mut account_events = mirror::watch(
        Api::<ServiceAccount>::all(ctx.client.clone()),
        watcher::Config::default().fields(&named),
    );
    let notes = EventRecorder::new(ctx.client.clone(), "namespace-controller");
    let mut namespaces = FieldMirror::new();
    let mut accounts = FieldMirror::new();
    let mut work: PendingKeys<String> = PendingKeys::new();
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            Some(event) = namespace_events.next() => {
                for change in namespaces.take(event, |namespace| namespace) {
                    work.add(change.key.1);
                }
            }
            Some(event) = account_events.next() => {
                for change in accounts.take(event, |_: ServiceAccount| ()) {
                    work.add(change.key.0);
                }
            }
            () = work.ready(), if namespaces.synced() && accounts.synced() => {
                for name in work.take(TAKE_MAX) {
                    let Some(namespace) = namespaces.get(&(String::new(), name.clone())) else {
                        work.done(&name);
                        continue;
                    };
                    let account: ObjectKey = (name.clone(), SERVICE_ACCOUNT.to_owned());
                    let has_account = accounts.get(&account).is_some();
                    match guarded(settle(&ctx.client, namespace, has_account)).await {
                        Ok(true) => work.done(&name),
                        Ok(false) => work.add_after(name, LOOK_AGAIN),
                        Err(error) => {
                            if let Some(panic) = panic_in(&error) {
                                let about = reference(namespace);
                                notes.note(&about, NoteKind::Warning, PANICKED, &panicked_note(panic));
                            }
                            if !answered(&error, 409) {
                                tracing::warn!(name, %error, "the controller could not handle a namespace; it tries again");
                            }
                            work.failed(name);
                        }
                    }
                }
            }
        }
    }
}

fn reference(namespace: &Namespace) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Namespace".to_owned()),
        name: namespace.metadata.name.clone(),
        uid: namespace.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Performs the next step; returns whether nothing is left to do.
async fn settle(client: &Client, namespace: &Namespace, has_account: bool) -> kube::Result<bool> {
    let name = text(namespace.metadata.name.as_ref());
    match decide(namespace, has_account) {
        NamespaceStep::Nothing => Ok(true),
        NamespaceStep::GiveServiceAccount => {
            let api: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
            let mut account = ServiceAccount::default();
            account.metadata.name = Some(SERVICE_ACCOUNT.to_owned());
            match api.create(&PostParams::default(), &account).await {
                Err(error) if !answered(&error, 409) && !answered(&error, 404) => Err(error),
                _ => Ok(true),
            }
        }
        NamespaceStep::Empty => {
            let (mut empty, mut failed) = (true, None);
            for kind in registry::all().iter().filter(|kind| kind.namespaced) {
                // A kind that cannot be emptied does not keep other kinds from being emptied.
                match guarded(emptied(client, kind, name)).await {
                    Ok(emptied) => empty &= emptied,
                    Err(error) => failed = failed.or(Some((kind.plural, error))),
                }
            }
            if let Some((plural, error)) = failed {
                tracing::warn!(name, plural, %error, "a kind in a namespace could not be emptied");
                return Err(error);
            }
            if !empty {
                return Ok(false);
            }
            let api: Api<Namespace> = Api::all(client.clone());
            let finalized = finalized(namespace.clone());
            let params = PostParams::default();
            let put = api.replace_subresource("finalize", name, &params, &finalized);
            unless_gone(put.await)?;
            Ok(true)
        }
    }
}

/// Deletes a kind's objects in a namespace; returns whether there were none.
async fn emptied(client: &Client, kind: &Kind, namespace: &str) -> kube::Result<bool> {
    let api = within(client, kind, namespace);
    let first = api.list(&ListParams::default().limit(1)).await?;
    if first.items.is_empty() {
        return Ok(true);
    }
    let all = ListParams::default();
    api.delete_collection(&DeleteParams::background(), &all)
        .await?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn namespace(deleting: bool, finalizers: &[&str]) -> Namespace {
        let deleted = deleting.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(json!({
            "metadata": { "name": "a", "deletionTimestamp": deleted },
            "spec": { "finalizers": finalizers },
        }))
        .unwrap()
    }

    #[test]
    fn steps_of_a_namespace() {
        let cases = [
            (
                false,
                vec![FINALIZER],
                false,
                NamespaceStep::GiveServiceAccount,
            ),
            (false, vec![FINALIZER], true, NamespaceStep::Nothing),
            (true, vec![FINALIZER], true, NamespaceStep::Empty),
            (true, vec![FINALIZER], false, NamespaceStep::Empty),
            (
                true,
                vec!["example.com/mine"],
                false,
                NamespaceStep::Nothing,
            ),
            (true, vec![], false, NamespaceStep::Nothing),
        ];
        for (deleting, finalizers, account, expected) in cases {
            let step = decide(&namespace(deleting, &finalizers), account);
            assert_eq!(step, expected, "{deleting} {finalizers:?} {account}");
        }
    }

    #[test]
    fn only_its_own_hold_is_taken_away() {
        let let_go = finalized(namespace(true, &["example.com/mine", FINALIZER]));
        assert_eq!(Vec::from_iter(finalizers(&let_go)), ["example.com/mine"]);
    }
}
