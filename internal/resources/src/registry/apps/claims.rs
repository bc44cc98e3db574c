//! Templates of claims, which StatefulSets and LeaderWorkerSets have: their checks, and the volumes that the controllers add
//! for them.

use serde_json::{Value, json};

use super::super::meta;
use crate::field::{FieldError, Path};
use crate::json;
use crate::syntax;

const RETENTION: [&str; 2] = ["Retain", "Delete"];

/// Checks what the controller reads of the claims' templates; the claims themselves are checked when they are created.
pub fn check_claim_templates(claims: &[Value], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let list = path.child("volumeClaimTemplates");
    for (i, claim) in claims.iter().enumerate() {
        let item = list.index(i);
        let meta = item.child("metadata");
        let path = meta.child("name");
        let name = json::text(claim, &["metadata", "name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else {
            for fault in syntax::dns1123_label(name) {
                errors.push(FieldError::invalid(&path, name, fault));
            }
        }
    }
}

/// Checks what becomes of the claims.
pub fn check_retention(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("persistentVolumeClaimRetentionPolicy");
    let policy = json::at(spec, &["persistentVolumeClaimRetentionPolicy"]);
    for key in ["whenDeleted", "whenScaled"] {
        meta::one_of(policy, key, &RETENTION, &path, errors);
    }
}

/// Gives a pod's spec the volumes that the controller adds for the claims, in place of its own of the same names.
pub fn add_claim_volumes(pod: &mut Value, claims: &[Value]) {
    if claims.is_empty() || !pod.is_object() {
        return;
    }
    let mut volumes: Vec<Value> = Vec::new();
    for claim in claims {
        if let Some(name) = json::at(claim, &["metadata", "name"]).as_str() {
            let source = json!({"claimName": name});
            volumes.push(json!({"name": name, "persistentVolumeClaim": source}));
        }
    }
    let own = json::items(pod, &["volumes"]).iter();
    let own: Vec<Value> = own
        .filter(|volume| !volumes.iter().any(|added| added["name"] == volume["name"]))
        .cloned()
        .collect();
    volumes.extend(own);
    pod["volumes"] = volumes.into();
}
