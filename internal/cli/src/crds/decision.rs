//! What `muster crds` does with each definition, beside those that other operators have installed. Pure.
//!
//! Volcano installs PodGroups and Queues and Kubeflow installs PyTorchJobs, under the names that Muster uses. Two
//! programs can share a definition if it serves the version and the subresources that both use; fields that it lacks
//! are dropped by the API server. Example: Volcano's Queue serves `v1beta1` with a status, so it is shared, and
//! `spec.namespaceSelector`, which Volcano does not know, is not kept. A definition that serves only `v1alpha1` can't
//! be shared. Cost: linear in the fields of a definition's first two levels.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps,
};
use resources::inert_kinds::{self, InertKind};
use resources::training;

/// The annotation of an object that helm installed: its release.
const HELM_RELEASE: &str = "meta.helm.sh/release-name";

/// What is done with a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrdDecision {
    /// It does not exist: install it.
    Create,
    /// Muster installed it: bring it up to date.
    Update,
    /// It is Muster's, and helm or kubectl installed it: bring it up to date, and take its fields over.
    Adopt,
    /// Another program installed it, and both can use it as it is.
    Share(CrdNotes),
    /// Another program installed it, and Muster can't use it.
    Conflict {
        /// Why not.
        reason: String,
        /// What the administrator can do.
        remedy: String,
    },
}

/// What an administrator should know about a shared definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrdNotes {
    /// The program that installed it, as far as it is known.
    pub owner: String,
    /// Paths of Muster's fields that the definition lacks, such as `spec.namespaceSelector`.
    pub missing: Vec<String>,
    /// Whether Muster does not run the kind, and so needs nothing of it.
    pub inert: bool,
}

/// Whether Muster itself needs the kind of a definition of its own: its controllers use it.
pub fn is_needed(ours: &CustomResourceDefinition) -> bool {
    let name = ours.metadata.name.as_deref().unwrap_or_default();
    !InertKind::has_definition(name)
}

/// Decides on a definition of ours, given the installed one of the same name. `manager` is the field manager under
/// which Muster installs definitions.
pub fn decide(
    ours: &CustomResourceDefinition,
    existing: Option<&CustomResourceDefinition>,
    manager: &str,
) -> CrdDecision {
    let Some(existing) = existing else {
        return CrdDecision::Create;
    };
    if is_managed_by(existing, manager) {
        return CrdDecision::Update;
    }
    if has_label(existing) {
        return CrdDecision::Adopt;
    }
    let owner = owner(existing);
    if !is_needed(ours) {
        return CrdDecision::Share(CrdNotes {
            owner,
            missing: Vec::new(),
            inert: true,
        });
    }
    match unusable(ours, existing) {
        Some(reason) => CrdDecision::Conflict {
            reason: format!("{owner} installed it, and {reason}"),
            remedy: remedy(ours),
        },
        None => CrdDecision::Share(CrdNotes {
            owner,
            missing: missing(ours, existing),
            inert: false,
        }),
    }
}

/// Whether `muster crds` has applied a definition before.
fn is_managed_by(existing: &CustomResourceDefinition, manager: &str) -> bool {
    let mut entries = existing.metadata.managed_fields.iter().flatten();
    entries.any(|entry| entry.manager.as_deref() == Some(manager))
}

/// Whether a definition is Muster's own, whichever program installed it.
fn has_label(existing: &CustomResourceDefinition) -> bool {
    let labels = existing.metadata.labels.as_ref();
    let (label, value) = inert_kinds::LABEL;
    let found = labels.and_then(|labels| labels.get(label));
    found.map(String::as_str) == Some(value)
}

/// The program that installed a definition: its helm release, its label, or its first field manager.
fn owner(existing: &CustomResourceDefinition) -> String {
    let text = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|map| map.get(key)).cloned()
    };
    let metadata = &existing.metadata;
    if let Some(release) = text(&metadata.annotations, HELM_RELEASE) {
        return format!("helm's release {release}");
    }
    let label = text(&metadata.labels, inert_kinds::LABEL.0).filter(|name| name != "Helm");
    let mut entries = metadata.managed_fields.iter().flatten();
    // kube-apiserver itself writes the status of every definition.
    let manager = entries
        .find(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .and_then(|entry| entry.manager.clone());
    match label.or(manager) {
        Some(name) => format!("another operator ({name})"),
        None => "another operator".to_owned(),
    }
}

fn remedy(ours: &CustomResourceDefinition) -> String {
    let name = ours.metadata.name.as_deref().unwrap_or_default();
    let leave = match training::find(&ours.spec.group, &ours.spec.names.kind) {
        Some(kind) => format!(
            "leave {}s to the other operator (muster server kubernetes --kinds none), ",
            kind.kind
        ),
        None => String::new(),
    };
    format!(
        "{leave}upgrade the other operator, or replace its definition by `muster crds --force-conflicts` after `kubectl get {name} -A` shows which objects depend on it"
    )
}

/// The version that Muster uses of its definition.
fn used(ours: &CustomResourceDefinition) -> Option<&CustomResourceDefinitionVersion> {
    ours.spec.versions.iter().find(|version| version.storage)
}

/// Why Muster can't use an installed definition.
fn unusable(
    ours: &CustomResourceDefinition,
    existing: &CustomResourceDefinition,
) -> Option<String> {
    let used = used(ours)?;
    let (wanted, found) = (&ours.spec, &existing.spec);
    if wanted.names.kind != found.names.kind {
        return Some(format!("its kind is {}", found.names.kind));
    }
    if wanted.scope != found.scope {
        return Some(format!(
            "its objects are {} instead of {}",
            found.scope, wanted.scope
        ));
    }
    let same = found.versions.iter().find(|other| other.name == used.name);
    let Some(same) = same.filter(|version| version.served) else {
        let served = found.versions.iter().filter(|version| version.served);
        let served: Vec<&str> = served.map(|version| version.name.as_str()).collect();
        return Some(format!(
            "it serves {} instead of {}",
            served.join(", "),
            used.name
        ));
    };
    let has_status = |version: &CustomResourceDefinitionVersion| {
        let subresources = version.subresources.as_ref();
        subresources.is_some_and(|subresources| subresources.status.is_some())
    };
    if has_status(used) && !has_status(same) {
        return Some(format!("its {} has no status subresource", same.name));
    }
    let lacks = ["spec", "status"]
        .into_iter()
        .find(|part| section(used, part).is_some() && section(same, part).is_none());
    lacks.map(|part| format!("its {} has no field {part}", same.name))
}

/// The schema of `spec` or `status`; `None` if the version keeps no such field. A version that keeps unknown fields, or
/// that has no schema, keeps it without a schema of its own.
fn section<'a>(
    version: &'a CustomResourceDefinitionVersion,
    part: &str,
) -> Option<Option<&'a JSONSchemaProps>> {
    let schema = version.schema.as_ref();
    let Some(root) = schema.and_then(|schema| schema.open_api_v3_schema.as_ref()) else {
        return Some(None);
    };
    let found = root.properties.as_ref().and_then(|all| all.get(part));
    match found {
        Some(schema) => Some(Some(schema)),
        None => keeps_unknown(root).then_some(None),
    }
}

fn keeps_unknown(schema: &JSONSchemaProps) -> bool {
    schema.x_kubernetes_preserve_unknown_fields == Some(true)
}

/// The fields of `spec` and `status` in our version that the installed one does not keep.
fn missing(ours: &CustomResourceDefinition, existing: &CustomResourceDefinition) -> Vec<String> {
    let Some(used) = used(ours) else {
        return Vec::new();
    };
    let mut versions = existing.spec.versions.iter();
    let Some(same) = versions.find(|other| other.name == used.name) else {
        return Vec::new();
    };
    let mut missing = Vec::new();
    for part in ["spec", "status"] {
        let (Some(Some(wanted)), Some(Some(found))) = (section(used, part), section(same, part))
        else {
            continue;
        };
        if keeps_unknown(found) {
            continue;
        }
        let names = wanted.properties.iter().flatten().map(|(name, _)| name);
        let kept = |name: &String| {
            let properties = found.properties.as_ref();
            properties.is_some_and(|properties| properties.contains_key(name))
        };
        let lost = names.filter(|name| !kept(name));
        missing.extend(lost.map(|name| format!("{part}.{name}")));
    }
    missing
}

#[cfg(test)]
mod tests;
