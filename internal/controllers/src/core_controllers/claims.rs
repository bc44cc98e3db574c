//! The loop over PersistentVolumeClaims. Each claim is bound to a volume named after it, a
//! directory that the agent creates where a pod needs it. This loop creates no directories.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::{Value, json};

use super::access::{answered, unless_gone};
use super::mirror::{self, FieldMirror, ObjectKey, reference, text};
use super::stopped;
use super::work_queue::PendingKeys;
use crate::context::Context;
use crate::event_recorder::{EventRecorder, EventType as NoteKind};
use crate::retry::guarded;

/// The kind of claims in events.
const CLAIM: &str = "PersistentVolumeClaim";
/// How many claims are reconciled before the watch is read again.
const TAKE_MAX: usize = 64;

/// The next step for a claim.
#[derive(Debug, PartialEq)]
enum ClaimAction {
    Nothing,
    /// Set the claim's volume name.
    Name(String),
    /// Mark the claim as bound.
    Bind(Value),
    /// Leave the claim pending, for this reason.
    Refuse(String),
}

/// The name of a claim's volume.
fn volume_name(key: &ObjectKey) -> String {
    format!("muster-{}-{}", key.0, key.1)
}

/// The next step for a claim; `taken` says whether another claim has a volume.
fn decide(
    key: &ObjectKey,
    claim: &PersistentVolumeClaim,
    taken: impl Fn(&str) -> bool,
) -> ClaimAction {
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_ref());
    if claim.metadata.deletion_timestamp.is_some() || text(phase) == "Bound" {
        return ClaimAction::Nothing;
    }
    let own = volume_name(key);
    let spec = claim.spec.clone().unwrap_or_default();
    match text(spec.volume_name.as_ref()) {
        // The claims a-b/c and a/b-c map to the same name, and a volume has only one claim.
        "" if taken(&own) => ClaimAction::Refuse(format!(
            "volume {own} belongs to another claim; use another name for this one"
        )),
        "" => ClaimAction::Name(own),
        name if name == own => ClaimAction::Bind(json!({
            "phase": "Bound",
            "accessModes": spec.access_modes,
            "capacity": spec.resources.and_then(|r| r.requests),
        })),
        // A claim must not obtain another claim's volume by naming it.
        name => ClaimAction::Refuse(format!(
            "volume {name} is not this claim's own; leave spec.volumeName out"
        )),
    }
}

pub(crate) async fn run(mut ctx: Context) {
    let all = Api::<PersistentVolumeClaim>::all(ctx.client.clone());
    let mut events = mirror::watch(all, watcher::Config::default());
    let notes = EventRecorder::new(ctx.client.clone(), "persistentvolume-controller");
    let mut claims = FieldMirror::new();
    let mut work = PendingKeys::new();
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            Some(event) = events.next() => {
                for change in claims.take(event, |claim| claim) {
                    work.add(change.key);
                }
            }
            () = work.ready(), if claims.synced() => {
                for key in work.take(TAKE_MAX) {
                    match guarded(settle(&ctx, &notes, &claims, &key)).await {
                        Ok(()) => work.done(&key),
                        Err(error) => {
                            let uid = claims.get(&key).and_then(|c: &PersistentVolumeClaim| c.metadata.uid.clone());
                            notes.note_panic(&reference("v1", CLAIM, &key, uid), &error);
                            if !answered(&error, 409) {
                                tracing::warn!(claim = ?key, %error, "the controller could not bind a claim; it tries again");
                            }
                            work.failed(key);
                        }
                    }
                }
            }
        }
    }
}

async fn settle(
    ctx: &Context,
    notes: &EventRecorder,
    claims: &FieldMirror<PersistentVolumeClaim>,
    key: &ObjectKey,
) -> kube::Result<()> {
    let Some(claim) = claims.get(key) else {
        return Ok(());
    };
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &key.0);
    let params = PatchParams::default();
    let uid = &claim.metadata.uid;
    let taken = |volume: &str| {
        let mut others = claims.iter().filter(|(other, _)| *other != key);
        others.any(|(_, other)| {
            let spec = other.spec.as_ref();
            text(spec.and_then(|s| s.volume_name.as_ref())) == volume
        })
    };
    match decide(key, claim, taken) {
        ClaimAction::Nothing => {}
        ClaimAction::Name(volume) => {
            let patch = Patch::Merge(json!({
                "metadata": {
                    "uid": uid,
                    "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
                },
                "spec": { "volumeName": volume },
            }));
            unless_gone(api.patch(&key.1, &params, &patch).await)?;
        }
        ClaimAction::Bind(status) => {
            let patch = Patch::Merge(json!({ "metadata": { "uid": uid }, "status": status }));
            unless_gone(api.patch_status(&key.1, &params, &patch).await)?;
        }
        ClaimAction::Refuse(message) => {
            let about = reference("v1", CLAIM, key, uid.clone());
            notes.note(&about, NoteKind::Warning, "FailedBinding", &message);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(volume: Option<&str>, phase: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "spec": {
                "volumeName": volume,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_is_named_then_bound_then_left_alone() {
        let key = ("ns".to_owned(), "data".to_owned());
        let free = |_: &str| false;
        let own = "muster-ns-data";
        assert_eq!(
            decide(&key, &claim(None, "Pending"), free),
            ClaimAction::Name(own.to_owned())
        );
        assert_eq!(
            decide(&key, &claim(Some(own), "Pending"), free),
            ClaimAction::Bind(json!({
                "phase": "Bound",
                "accessModes": ["ReadWriteOnce"],
                "capacity": { "storage": "1Gi" },
            }))
        );
        assert_eq!(
            decide(&key, &claim(Some(own), "Bound"), free),
            ClaimAction::Nothing
        );
    }

    #[test]
    fn a_claim_cannot_have_the_volume_of_another() {
        let key = ("ns".to_owned(), "data".to_owned());
        let free = |_: &str| false;
        let foreign = claim(Some("muster-other-data"), "Pending");
        assert!(matches!(
            decide(&key, &foreign, free),
            ClaimAction::Refuse(_)
        ));
        let taken = |volume: &str| volume == "muster-ns-data";
        let step = decide(&key, &claim(None, "Pending"), taken);
        assert!(matches!(step, ClaimAction::Refuse(_)));
    }

    #[test]
    fn a_claim_that_is_deleted_is_left_alone() {
        let key = ("ns".to_owned(), "data".to_owned());
        let mut claim = claim(None, "Pending");
        claim.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        assert_eq!(decide(&key, &claim, |_| false), ClaimAction::Nothing);
    }
}
