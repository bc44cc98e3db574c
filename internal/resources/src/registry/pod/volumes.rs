//! Validation of a pod's volumes and their mounts.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;
use crate::registry::meta;
use crate::syntax;

const MORE_THAN_ONE: &str = "may not specify more than 1 volume type";
const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];
/// In Kubernetes' order of checks, so that the error names the second source.
const SOURCES: [&str; 16] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "persistentVolumeClaim",
    "rbd",
    "cephfs",
    "downwardAPI",
    "fc",
    "configMap",
    "projected",
    "csi",
    "ephemeral",
];

/// Checks volumes and returns the names that mounts may use.
pub(super) fn check<'a>(
    volumes: &'a [Value],
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) -> BTreeSet<&'a str> {
    let mut known = BTreeSet::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let before = errors.len();
        source(volume, &path, errors);
        let name = json::text(volume, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            let faults = syntax::dns1123_label(name);
            errors.extend(
                faults
                    .into_iter()
                    .map(|f| FieldError::invalid(&path.child("name"), name, f)),
            );
        }
        if known.contains(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if errors.len() == before {
            known.insert(name);
        }
    }
    known
}

fn source(volume: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut count = 0;
    for key in SOURCES {
        let source = json::at(volume, &[key]);
        if source.is_null() {
            continue;
        }
        count += 1;
        let path = path.child(key);
        if count > 1 {
            errors.push(FieldError::forbidden(&path, MORE_THAN_ONE));
            continue;
        }
        match key {
            "emptyDir" => empty_dir(source, &path, errors),
            "hostPath" => host_path(source, &path, errors),
            "configMap" => files(source, Some("name"), &path, errors),
            "secret" => files(source, Some("secretName"), &path, errors),
            "projected" | "downwardAPI" => mode(source, "defaultMode", &path, errors),
            "persistentVolumeClaim" => required(source, "claimName", &path, errors),
            "nfs" => {
                required(source, "server", &path, errors);
                required(source, "path", &path, errors);
            }
            "csi" => required(source, "driver", &path, errors),
            _ => {}
        }
    }
    let other = json::members(volume, &[])
        .any(|(key, value)| key != "name" && !value.is_null() && !SOURCES.contains(&key.as_str()));
    if count == 0 && !other {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn required(source: &Value, key: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if json::text(source, &[key]).is_empty() {
        errors.push(FieldError::required(&path.child(key), ""));
    }
}

fn empty_dir(source: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let limit = json::at(source, &["sizeLimit"]);
    if !limit.is_null() && json::quantity_of(limit).is_none_or(|q| q.is_negative()) {
        errors.push(FieldError::forbidden(
            &path.child("sizeLimit"),
            "SizeLimit field must be a valid resource quantity",
        ));
    }
    let medium = json::text(source, &["medium"]);
    if !matches!(medium, "" | "Memory") && !medium.starts_with("HugePages") {
        errors.push(FieldError::not_supported(
            &path.child("medium"),
            medium,
            &["", "HugePages", "Memory"],
        ));
    }
}

fn host_path(source: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let host = json::text(source, &["path"]);
    if host.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    if host.split('/').any(|step| step == "..") {
        errors.push(FieldError::invalid(
            &path.child("path"),
            host,
            "must not contain '..'",
        ));
    }
    meta::one_of(source, "type", &HOST_PATH_TYPES, path, errors);
}

fn files(source: &Value, name: Option<&str>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(name) = name {
        required(source, name, path, errors);
    }
    mode(source, "defaultMode", path, errors);
    let items = path.child("items");
    for (i, item) in json::items(source, &["items"]).iter().enumerate() {
        let path = items.index(i);
        required(item, "key", &path, errors);
        let target = json::text(item, &["path"]);
        if target.is_empty() {
            errors.push(FieldError::required(&path.child("path"), ""));
        } else {
            local_path(target, &path.child("path"), errors);
        }
        mode(item, "mode", &path, errors);
    }
}

fn mode(source: &Value, key: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(mode) = json::int(source, &[key]).filter(|m| !(0..=0o777).contains(m)) {
        errors.push(FieldError::invalid(&path.child(key), mode, FILE_MODE));
    }
}

/// Checks a path below a directory: relative, without `..`.
fn local_path(target: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if target.starts_with('/') {
        errors.push(FieldError::invalid(path, target, "must be a relative path"));
    }
    if target.split('/').any(|step| step == "..") {
        errors.push(FieldError::invalid(path, target, "must not contain '..'"));
    }
}

/// Checks a container's mounts.
pub(super) fn mounts(
    mounts: &[Value],
    volumes: &BTreeSet<&str>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let mut targets = BTreeSet::new();
    for (i, mount) in mounts.iter().enumerate() {
        let at = path.index(i);
        let name = json::text(mount, &["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        }
        if !volumes.contains(name) {
            errors.push(FieldError::not_found(&at.child("name"), name));
        }
        let target = json::text(mount, &["mountPath"]);
        if target.is_empty() {
            errors.push(FieldError::required(&at.child("mountPath"), ""));
        }
        if !targets.insert(target) {
            errors.push(FieldError::invalid(
                &at.child("mountPath"),
                target,
                "must be unique",
            ));
        }
        let below = json::text(mount, &["subPath"]);
        let expression = json::text(mount, &["subPathExpr"]);
        if !below.is_empty() {
            local_path(below, &path.child("subPath"), errors);
        }
        if !expression.is_empty() {
            if !below.is_empty() {
                errors.push(FieldError::invalid(
                    &at.child("subPathExpr"),
                    expression,
                    "subPathExpr and subPath are mutually exclusive",
                ));
            }
            local_path(expression, &path.child("subPathExpr"), errors);
        }
        meta::one_of(
            mount,
            "mountPropagation",
            &["Bidirectional", "HostToContainer", "None"],
            &at,
            errors,
        );
    }
}
