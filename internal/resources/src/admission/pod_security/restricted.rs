//! Owns the checks that the restricted level adds to the baseline's. Kubernetes exempts pods for Windows from three of
//! them (`allowPrivilegeEscalation`, capabilities, seccomp); here they apply to every pod, because Muster's nodes run
//! Linux whatever `spec.os` names.

use std::collections::BTreeSet;

use serde_json::Value;

use super::baseline::{seccomp_filters, seccomp_type, seccomp_unconfined};
use super::checks::CheckInput;
use super::pod::{
    CheckViolation, WrongValues, containers, context, name, plural, quoted, setters, texts, volumes,
};
use crate::json;

const ALL: &str = "ALL";
const NET_BIND_SERVICE: &str = "NET_BIND_SERVICE";

/// The volume sources that give no access to the host.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
/// The other sources.
static OTHER_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

pub(super) fn privilege_escalation(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let bad = look.pod.named(|container| {
        let allow = json::at(context(container), &["allowPrivilegeEscalation"]);
        allow.as_bool() != Some(false)
    });
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "allowPrivilegeEscalation != false",
        detail: format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            containers(&bad)
        ),
    })
}

pub(super) fn capabilities(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let keeps = look.pod.named(|container| {
        !texts(context(container), &["capabilities", "drop"]).any(|one| one == ALL)
    });
    let mut added = BTreeSet::new();
    let mut adds = Vec::new();
    for container in look.pod.containers() {
        let wrong: Vec<&str> = texts(context(container), &["capabilities", "add"])
            .filter(|one| *one != NET_BIND_SERVICE && !look.allowed.capability(one))
            .collect();
        if !wrong.is_empty() {
            adds.push(name(container));
            added.extend(wrong);
        }
    }
    let keeps = (!keeps.is_empty()).then(|| {
        format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            containers(&keeps)
        )
    });
    let adds = (!adds.is_empty()).then(|| {
        format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&adds),
            quoted(added.iter().copied())
        )
    });
    let all: Vec<String> = keeps.into_iter().chain(adds).collect();
    (!all.is_empty()).then(|| CheckViolation {
        reason: "unrestricted capabilities",
        detail: all.join("; "),
    })
}

pub(super) fn volume_types(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let mut types = BTreeSet::new();
    let mut bad = Vec::new();
    for volume in look.pod.volumes() {
        // Checked first: a volume must not pass because of a second, harmless source.
        let on_host = json::has(volume, &["hostPath"]);
        if on_host && look.allowed.host_path(look.pod, volume).is_ok() {
            continue;
        }
        if !on_host && VOLUMES.iter().any(|source| json::has(volume, &[source])) {
            continue;
        }
        bad.push(name(volume));
        let known = OTHER_VOLUMES
            .iter()
            .find(|source| json::has(volume, &[source]));
        types.insert(known.copied().unwrap_or("unknown"));
    }
    (!bad.is_empty()).then(|| CheckViolation {
        reason: "restricted volume types",
        detail: format!(
            "{} {} {} {}",
            volumes(&bad),
            plural("uses", "use", bad.len()),
            plural(
                "restricted volume type",
                "restricted volume types",
                types.len()
            ),
            quoted(types.iter().copied())
        ),
    })
}

pub(super) fn run_as_non_root(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let set = |context: &Value| json::at(context, &["runAsNonRoot"]).as_bool();
    let own = set(look.pod.context());
    let root = look
        .pod
        .named(|container| set(context(container)) == Some(false));
    if let Some(setters) = setters(own == Some(false), &root) {
        return Some(CheckViolation {
            reason: "runAsNonRoot != true",
            detail: format!("{setters} must not set securityContext.runAsNonRoot=false"),
        });
    }
    let silent = look
        .pod
        .named(|container| own != Some(true) && set(context(container)).is_none());
    (!silent.is_empty()).then(|| CheckViolation {
        reason: "runAsNonRoot != true",
        detail: format!(
            "pod or {} must set securityContext.runAsNonRoot=true",
            containers(&silent)
        ),
    })
}

pub(super) fn run_as_user(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let root = |context: &Value| json::int(context, &["runAsUser"]) == Some(0);
    let bad = look.pod.named(|container| root(context(container)));
    let setters = setters(root(look.pod.context()), &bad)?;
    Some(CheckViolation {
        reason: "runAsUser=0",
        detail: format!("{setters} must not set runAsUser=0"),
    })
}

pub(super) fn seccomp(look: &CheckInput<'_>) -> Option<CheckViolation> {
    let wrong = WrongValues::find(look.pod, seccomp_type, seccomp_filters);
    if let Some(violation) = seccomp_unconfined(&wrong) {
        return Some(violation);
    }
    let filtered = seccomp_type(look.pod.context()).is_some();
    let silent = look
        .pod
        .named(|container| !filtered && seccomp_type(context(container)).is_none());
    (!silent.is_empty()).then(|| CheckViolation {
        reason: "seccompProfile",
        detail: format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
            containers(&silent)
        ),
    })
}
