//! PersistentVolumeClaim: storage that outlives pods; a controller binds it to a directory.

use serde_json::{Value, json};

use super::columns::{AGE, NAME, column, wide};
use super::meta::{self, NameRule};
use super::pod::check_quantity;
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::quantity::Quantity;

const MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
const MODE_LETTERS: [(&str, &str); 4] = [
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];
const FIXED: &str = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Status",
        "string",
        "Whether the claim is bound.",
        |claim, _| {
            let deleting = json::has(claim, &["metadata", "deletionTimestamp"]);
            Value::from(if deleting {
                "Terminating"
            } else {
                json::text(claim, &["status", "phase"])
            })
        },
    ),
    column(
        "Volume",
        "string",
        "The volume that the claim is bound to.",
        |claim, _| Value::from(json::text(claim, &["spec", "volumeName"])),
    ),
    column(
        "Capacity",
        "string",
        "The capacity of the volume.",
        |claim, _| {
            let bound = !json::text(claim, &["spec", "volumeName"]).is_empty();
            Value::from(if bound {
                json::text(claim, &["status", "capacity", "storage"])
            } else {
                ""
            })
        },
    ),
    column(
        "Access Modes",
        "string",
        "The access modes of the claim.",
        |claim, _| modes(claim),
    ),
    column(
        "StorageClass",
        "string",
        "StorageClass of the pvc",
        |claim, _| Value::from(json::text(claim, &["spec", "storageClassName"])),
    ),
    column(
        "VolumeAttributesClass",
        "string",
        "VolumeAttributesClass of the pvc",
        |claim, _| {
            Value::from(
                json::at(claim, &["spec", "volumeAttributesClassName"])
                    .as_str()
                    .unwrap_or("<unset>"),
            )
        },
    ),
    AGE,
    wide("VolumeMode", "string", "Files or blocks.", |claim, _| {
        Value::from(
            json::at(claim, &["spec", "volumeMode"])
                .as_str()
                .unwrap_or("<unset>"),
        )
    }),
];

pub(super) const KIND: Kind = Kind {
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    list_kind: "PersistentVolumeClaimList",
    short_names: &["pvc"],
    schema: "io.k8s.api.core.v1.PersistentVolumeClaim",
    status: true,
    default: |claim| {
        if let Some(spec) = json::object(claim, "spec") {
            json::fill_text(spec, "volumeMode", "Filesystem");
            if let Some(resources) = json::child(spec, "resources") {
                json::canonical_quantities(resources, "requests");
                json::canonical_quantities(resources, "limits");
            }
        }
    },
    validate,
    prepare: |new, old| meta::with_status(new, old, json!({ "phase": "Pending" })),
    columns: COLUMNS,
    ..Kind::BASE
};

fn modes(claim: &Value) -> Value {
    if json::text(claim, &["spec", "volumeName"]).is_empty() {
        return Value::from("");
    }
    let all = json::items(claim, &["status", "accessModes"]);
    let letters: Vec<&str> = MODE_LETTERS
        .iter()
        .filter(|(mode, _)| all.iter().any(|m| m.as_str() == Some(mode)))
        .map(|(_, letters)| *letters)
        .collect();
    Value::from(letters.join(","))
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let path = Path::new("spec");
    let spec = json::at(new, &["spec"]);
    let modes = json::items(spec, &["accessModes"]);
    if modes.is_empty() {
        errors.push(FieldError::required(
            &path.child("accessModes"),
            "at least 1 access mode is required",
        ));
    }
    for mode in modes
        .iter()
        .filter_map(Value::as_str)
        .filter(|m| !MODES.contains(m))
    {
        errors.push(FieldError::not_supported(
            &path.child("accessModes"),
            mode,
            &MODES,
        ));
    }
    if modes.len() > 1 && modes.iter().any(|m| m.as_str() == Some("ReadWriteOncePod")) {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&path.child("accessModes"), detail));
    }
    let resources = path.child("resources");
    let storage_path = resources.key("storage");
    let storage = json::at(spec, &["resources", "requests", "storage"]);
    match json::quantity_of(storage) {
        _ if storage.is_null() => errors.push(FieldError::required(&storage_path, "")),
        Some(size) if size <= Quantity::ZERO => {
            errors.push(FieldError::invalid(
                &storage_path,
                size.to_string(),
                "must be greater than zero",
            ));
        }
        _ => check_quantity("storage", storage, &storage_path, &mut errors),
    }
    meta::one_of(
        spec,
        "volumeMode",
        &["Block", "Filesystem"],
        &path,
        &mut errors,
    );
    meta::selector(
        json::at(spec, &["selector"]),
        &path.child("selector"),
        &mut errors,
    );
    if let Some(old) = old {
        check_change(spec, json::at(old, &["spec"]), &path, &mut errors);
    }
    errors
}

fn check_change(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let keys = json::members(new, &[])
        .chain(json::members(old, &[]))
        .map(|(k, _)| k.as_str());
    let changed = keys
        .filter(|key| match *key {
            // A bound claim cannot be bound again.
            "volumeName" => !json::text(old, &["volumeName"]).is_empty(),
            "resources" | "volumeAttributesClassName" => false,
            "storageClassName" => json::has(old, &["storageClassName"]),
            _ => true,
        })
        .any(|key| !json::same(json::at(new, &[key]), json::at(old, &[key])));
    if changed {
        errors.push(FieldError::forbidden(path, FIXED));
    }
    let size =
        |spec: &Value| json::quantity_of(json::at(spec, &["resources", "requests", "storage"]));
    if let (Some(now), Some(before)) = (size(new), size(old))
        && now < before
    {
        let detail = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(
            &path.child("resources").child("requests").child("storage"),
            detail,
        ));
    }
}
