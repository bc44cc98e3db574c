//! Writes the volume decisions to the API: reserves a free volume for its claim, and sets on a
//! claim the node for which its volume is to be provisioned. Each object is read first and written
//! with its resource version, so that a volume reserved for another claim is not overwritten.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use scheduler::{GroupRef, VolumeSource};
use serde_json::{Value, json};

use super::api_retry::{AttemptResult, NoAnswer, is_fenced, until_answered};

/// The annotation which says that a scheduler bound the claim, not the volume's creator.
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A claim, or its volume, to be written.
pub(super) struct VolumeWrite {
    pub(super) group: GroupRef,
    pub(super) claim: String,
    pub(super) uid: String,
    pub(super) from: VolumeSource,
    pub(super) node: String,
}

/// Why a claim or its volume was not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumeWriteError {
    #[error("PersistentVolume {0} no longer exists")]
    VolumeGone(String),
    #[error("PersistentVolume {volume} belongs to claim {claim} now")]
    VolumeTaken { volume: String, claim: String },
    #[error("it no longer exists")]
    ClaimGone,
    #[error("another claim has its name now")]
    ClaimReplaced,
    /// The API refused it, or the fence did.
    #[error(transparent)]
    Refused(kube::Error),
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
}

/// A failed write of a claim, and why it failed.
#[derive(Debug, thiserror::Error)]
#[error("PersistentVolumeClaim {claim}: {reason}")]
pub(super) struct NotWritten {
    pub(super) claim: String,
    pub(super) reason: VolumeWriteError,
}

/// The outcome of a write: the new version, or the error.
pub(super) struct VolumeWriteOutcome {
    pub(super) group: GroupRef,
    pub(super) claim: String,
    pub(super) result: Result<u64, NotWritten>,
}

/// Performs one write.
pub(super) async fn write(client: Client, write: VolumeWrite) -> VolumeWriteOutcome {
    let (meant, client) = (&write, &client);
    let answer = until_answered(|| async move {
        let answer = match &meant.from {
            VolumeSource::Volume(name) => keep_volume(client, meant, name).await,
            VolumeSource::Made => select_node(client, meant).await,
        };
        match answer {
            Ok(result) => AttemptResult::Given(result),
            // Another client wrote meanwhile: read and try again.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                AttemptResult::Lost(status.message)
            }
            Err(error) if is_fenced(&error) || is_refusal(&error) => {
                AttemptResult::Given(Err(VolumeWriteError::Refused(error)))
            }
            Err(error) => AttemptResult::Lost(error.to_string()),
        }
    })
    .await;
    let (group, claim) = (write.group, write.claim);
    let result = answer.unwrap_or_else(|none| Err(none.into()));
    VolumeWriteOutcome {
        result: result.map_err(|reason| NotWritten {
            claim: claim.clone(),
            reason,
        }),
        group,
        claim,
    }
}

/// The API processed the request and refused it, so a retry would not help.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

/// Reserves a free volume for its claim. Returns the volume's new version, or why not.
async fn keep_volume(
    client: &Client,
    write: &VolumeWrite,
    name: &str,
) -> kube::Result<Result<u64, VolumeWriteError>> {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let Some(volume) = api.get_opt(name).await? else {
        return Ok(Err(VolumeWriteError::VolumeGone(name.to_owned())));
    };
    match reserved_for(&volume, write) {
        ReservedFor::Already => Ok(Ok(version(volume.resource_version()))),
        ReservedFor::ByOther(claim) => Ok(Err(VolumeWriteError::VolumeTaken {
            volume: name.to_owned(),
            claim,
        })),
        ReservedFor::Not(patch) => {
            let params = PatchParams::default();
            let kept = api.patch(name, &params, &Patch::Merge(patch)).await?;
            Ok(Ok(version(kept.resource_version())))
        }
    }
}

/// The claim that a volume is reserved for.
#[derive(Debug, PartialEq)]
enum ReservedFor {
    Already,
    ByOther(String),
    /// None, or not this very claim; holds the value that reserves it.
    Not(Value),
}

fn reserved_for(volume: &PersistentVolume, write: &VolumeWrite) -> ReservedFor {
    let or_empty = |text: &Option<String>| text.clone().unwrap_or_default();
    let of = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    let (namespace, claim) = (&write.group.namespace, &write.claim);
    let mut metadata = json!({"resourceVersion": or_empty(&volume.metadata.resource_version)});
    match of {
        None => {
            // This lets the cluster release the volume again with its claim.
            metadata["annotations"] = json!({ BY_CONTROLLER: "yes" });
        }
        Some(of) if or_empty(&of.namespace) != *namespace || or_empty(&of.name) != *claim => {
            return ReservedFor::ByOther(format!(
                "{}/{}",
                or_empty(&of.namespace),
                or_empty(&of.name)
            ));
        }
        Some(of) if or_empty(&of.uid) == write.uid => return ReservedFor::Already,
        Some(of) if !or_empty(&of.uid).is_empty() => {
            return ReservedFor::ByOther(format!("{namespace}/{claim} that was there before"));
        }
        Some(_) => {}
    }
    ReservedFor::Not(json!({
        "metadata": metadata,
        "spec": {"claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": namespace, "name": claim, "uid": write.uid,
        }},
    }))
}

/// Sets the node for which a claim's volume is provisioned. Returns the claim's new version, or why
/// not.
async fn select_node(
    client: &Client,
    write: &VolumeWrite,
) -> kube::Result<Result<u64, VolumeWriteError>> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &write.group.namespace);
    let Some(claim) = api.get_opt(&write.claim).await? else {
        return Ok(Err(VolumeWriteError::ClaimGone));
    };
    if claim.metadata.uid.as_deref() != Some(&write.uid) {
        return Ok(Err(VolumeWriteError::ClaimReplaced));
    }
    let bound = claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.volume_name.is_some());
    // The volume is already being provisioned for a node; its other users wait for that one.
    if bound || claim.annotations().contains_key(SELECTED_NODE) {
        return Ok(Ok(version(claim.resource_version())));
    }
    let patch = json!({"metadata": {
        "resourceVersion": claim.metadata.resource_version,
        "annotations": { SELECTED_NODE: write.node },
    }});
    let params = PatchParams::default();
    let patched = api
        .patch(&write.claim, &params, &Patch::Merge(patch))
        .await?;
    Ok(Ok(version(patched.resource_version())))
}

fn version(version_text: Option<String>) -> u64 {
    version_text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write() -> VolumeWrite {
        VolumeWrite {
            group: GroupRef {
                namespace: "ns".into(),
                name: "g".into(),
                lone: false,
            },
            claim: "data".into(),
            uid: "u".into(),
            from: VolumeSource::Volume("pv".into()),
            node: "n1".into(),
        }
    }

    fn volume(claim: Value) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "pv", "resourceVersion": "7"}, "spec": {"claimRef": claim},
        }))
        .unwrap()
    }

    #[test]
    fn a_free_volume_is_kept_for_its_claim_as_it_was_read() {
        let ReservedFor::Not(patch) = reserved_for(&volume(Value::Null), &write()) else {
            panic!("it is free");
        };
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["metadata"]["annotations"][BY_CONTROLLER], "yes");
        assert_eq!(
            patch["spec"]["claimRef"],
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": "ns", "name": "data", "uid": "u"})
        );
    }

    #[test]
    fn a_volume_that_people_kept_for_the_claim_stays_theirs_to_delete() {
        let by_name = json!({"namespace": "ns", "name": "data"});
        let ReservedFor::Not(patch) = reserved_for(&volume(by_name), &write()) else {
            panic!("it lacks the uid");
        };
        assert_eq!(patch["metadata"]["annotations"], Value::Null);
        assert_eq!(patch["spec"]["claimRef"]["uid"], "u");
    }

    #[test]
    fn a_volume_of_another_claim_is_left_alone() {
        let reserved = |name: &str, uid: &str| {
            let claim = json!({"namespace": "ns", "name": name, "uid": uid});
            reserved_for(&volume(claim), &write())
        };
        assert_eq!(reserved("data", "u"), ReservedFor::Already);
        assert_eq!(
            reserved("other", "v"),
            ReservedFor::ByOther("ns/other".into())
        );
        assert!(matches!(
            reserved("data", "before"),
            ReservedFor::ByOther(_)
        ));
    }
}
