//! The loop over namespaces: it keeps the `default` ServiceAccount and the ConfigMap with the
//! authority's certificate in each, empties a namespace that is being deleted, and then finalizes
//! it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ObjectReference, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use resources::admission::DEFAULT_ACCOUNT;
use resources::names::ROOT_CA_CONFIG_MAP;
use resources::registry::{self, Kind};
use serde_json::json;

use super::access::{answered, unless_gone, within};
use super::mirror::{self, FieldMirror, ObjectKey, text};
use super::stopped;
use super::work_queue::PendingKeys;
use crate::context::Context;
use crate::event_recorder::{EventRecorder, EventType as NoteKind};
use crate::retry::{PANICKED, guarded, panic_in, panicked_note};

/// The finalizer in a namespace's spec that this loop removes.
const FINALIZER: &str = "kubernetes";
/// The key of the authority's certificate in its ConfigMap.
const CERTIFICATE_KEY: &str = "ca.crt";
/// The field manager of this loop.
const MANAGER: &str = "namespace-controller";
/// How many namespaces are reconciled before the watches are read again.
const TAKE_MAX: usize = 16;
/// The wait for deletions before the namespace is checked again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The next step for a namespace.
#[derive(Debug, PartialEq, Eq)]
enum NamespaceStep {
    Nothing,
    /// Creates or corrects what every namespace has.
    Complete {
        account: bool,
        certificate: bool,
    },
    Empty,
}

/// What of the objects that every namespace has is as it should be.
#[derive(Clone, Copy)]
struct Present {
    account: bool,
    certificate: bool,
}

fn decide(namespace: &Namespace, present: Present) -> NamespaceStep {
    if namespace.metadata.deletion_timestamp.is_some() {
        return match finalizers(namespace).any(|name| name == FINALIZER) {
            true => NamespaceStep::Empty,
            false => NamespaceStep::Nothing,
        };
    }
    match present {
        Present {
            account: true,
            certificate: true,
        } => NamespaceStep::Nothing,
        Present {
            account,
            certificate,
        } => NamespaceStep::Complete {
            account: !account,
            certificate: !certificate,
        },
    }
}

/// True if a namespace's ConfigMap has the authority's certificate, or there is none to have.
fn is_current(root_ca: Option<&str>, found: Option<&Option<BTreeMap<String, String>>>) -> bool {
    let Some(root_ca) = root_ca else { return true };
    let data = found.and_then(Option::as_ref);
    data.and_then(|data| data.get(CERTIFICATE_KEY))
        .is_some_and(|certificate| certificate == root_ca)
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
    let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut account_events = mirror::watch(
        Api::<ServiceAccount>::all(ctx.client.clone()),
        named(DEFAULT_ACCOUNT),
    );
    let mut certificate_events = mirror::watch(
        Api::<ConfigMap>::all(ctx.client.clone()),
        named(ROOT_CA_CONFIG_MAP),
    );
    let root_ca = ctx.config.root_ca.clone();
    let notes = EventRecorder::new(ctx.client.clone(), MANAGER);
    let mut namespaces = FieldMirror::new();
    let mut accounts = FieldMirror::new();
    let mut certificates = FieldMirror::new();
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
            Some(event) = certificate_events.next() => {
                for change in certificates.take(event, |map: ConfigMap| map.data) {
                    work.add(change.key.0);
                }
            }
            () = work.ready(), if namespaces.synced() && accounts.synced() && certificates.synced() => {
                for name in work.take(TAKE_MAX) {
                    let Some(namespace) = namespaces.get(&(String::new(), name.clone())) else {
                        work.done(&name);
                        continue;
                    };
                    let account: ObjectKey = (name.clone(), DEFAULT_ACCOUNT.to_owned());
                    let certificate: ObjectKey = (name.clone(), ROOT_CA_CONFIG_MAP.to_owned());
                    let present = Present {
                        account: accounts.get(&account).is_some(),
                        certificate: is_current(root_ca.as_deref(), certificates.get(&certificate)),
                    };
                    match guarded(settle(&ctx.client, namespace, present, root_ca.as_deref())).await {
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
async fn settle(
    client: &Client,
    namespace: &Namespace,
    present: Present,
    root_ca: Option<&str>,
) -> kube::Result<bool> {
    let name = text(namespace.metadata.name.as_ref());
    match decide(namespace, present) {
        NamespaceStep::Nothing => Ok(true),
        NamespaceStep::Complete {
            account,
            certificate,
        } => {
            if account {
                create_account(client, name).await?;
            }
            if let Some(root_ca) = root_ca.filter(|_| certificate) {
                apply_certificate(client, name, root_ca).await?;
            }
            Ok(true)
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

async fn create_account(client: &Client, namespace: &str) -> kube::Result<()> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let mut account = ServiceAccount::default();
    account.metadata.name = Some(DEFAULT_ACCOUNT.to_owned());
    match api.create(&PostParams::default(), &account).await {
        Err(error) if !answered(&error, 409) && !answered(&error, 404) => Err(error),
        _ => Ok(()),
    }
}

/// Creates the ConfigMap with the authority's certificate, or sets the certificate in it.
async fn apply_certificate(client: &Client, namespace: &str, root_ca: &str) -> kube::Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let wanted = Patch::Apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": ROOT_CA_CONFIG_MAP},
        "data": {CERTIFICATE_KEY: root_ca},
    }));
    let params = PatchParams::apply(MANAGER).force();
    let applied = api.patch(ROOT_CA_CONFIG_MAP, &params, &wanted);
    match applied.await {
        Err(error) if !answered(&error, 404) => Err(error),
        _ => Ok(()),
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
        let complete = |account, certificate| NamespaceStep::Complete {
            account,
            certificate,
        };
        let held = vec![FINALIZER];
        let cases = [
            (false, held.clone(), (false, true), complete(true, false)),
            (false, held.clone(), (true, false), complete(false, true)),
            (false, held.clone(), (false, false), complete(true, true)),
            (false, held.clone(), (true, true), NamespaceStep::Nothing),
            (true, held.clone(), (false, false), NamespaceStep::Empty),
            (true, held, (true, true), NamespaceStep::Empty),
            (
                true,
                vec!["example.com/mine"],
                (false, false),
                NamespaceStep::Nothing,
            ),
            (true, vec![], (false, false), NamespaceStep::Nothing),
        ];
        for (deleting, finalizers, (account, certificate), expected) in cases {
            let present = Present {
                account,
                certificate,
            };
            let step = decide(&namespace(deleting, &finalizers), present);
            assert_eq!(
                step, expected,
                "{deleting} {finalizers:?} {account} {certificate}"
            );
        }
    }

    #[test]
    fn only_the_authoritys_own_certificate_is_current() {
        let data = |certificate: &str| {
            Some(BTreeMap::from([(
                CERTIFICATE_KEY.to_owned(),
                certificate.to_owned(),
            )]))
        };
        assert!(is_current(None, None));
        assert!(!is_current(Some("new"), None));
        assert!(!is_current(Some("new"), Some(&None)));
        assert!(!is_current(Some("new"), Some(&data("old"))));
        assert!(is_current(Some("new"), Some(&data("new"))));
    }

    #[test]
    fn only_its_own_hold_is_taken_away() {
        let let_go = finalized(namespace(true, &["example.com/mine", FINALIZER]));
        assert_eq!(Vec::from_iter(finalizers(&let_go)), ["example.com/mine"]);
    }
}
