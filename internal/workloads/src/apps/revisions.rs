//! The ControllerRevisions of a StatefulSet or DaemonSet: the templates that it had. Finds the one of the current
//! template or creates it, and deletes old ones.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use super::template_hash;
use crate::action::{Action, Dependent, DependentKind};
use crate::ownership::Claimant;

/// The label with a revision's hash.
const HASH: &str = "controller.kubernetes.io/hash";
/// The label of pods with their revision.
pub(super) const POD_REVISION: &str = "controller-revision-hash";
/// The annotation with the reason of a change.
const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";
/// How many names are tried if other templates' revisions have them.
const COLLISIONS_MAX: i32 = 1_000;

/// The revisions of an object, with the current template's.
pub(super) struct Revisions<'a> {
    /// By number.
    own: Vec<&'a ControllerRevision>,
    /// The name of the current template's revision.
    pub(super) update: String,
    /// Its hash.
    pub(super) hash: String,
    /// The objects without a controller that become the owner's.
    pub(super) adoptions: Vec<Action>,
    /// What creates that revision, or makes it the latest one.
    action: Option<Action>,
    /// How many collisions its name took.
    pub(super) collisions: Option<i32>,
}

/// A template as the patch that brings it back, in Kubernetes' form: kubectl sends it to undo a rollout.
fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

/// The owner's annotation that `kubectl rollout history` shows.
fn change_cause(owner: &ObjectMeta) -> Option<BTreeMap<String, String>> {
    let cause = owner.annotations.as_ref()?.get_key_value(CHANGE_CAUSE)?;
    Some(BTreeMap::from([(cause.0.clone(), cause.1.clone())]))
}

fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

impl<'a> Revisions<'a> {
    /// Finds or creates the revision of this template.
    pub(super) fn of(
        claimant: &Claimant<'_>,
        template: &PodTemplateSpec,
        known: &[&'a ControllerRevision],
        collisions: Option<i32>,
    ) -> Revisions<'a> {
        let owner = claimant.owner;
        let claimed = claimant.claim(DependentKind::Revision, known, |_| true);
        let (mut own, adoptions) = (claimed.own, claimed.adoptions);
        own.sort_by_key(|revision| (revision.revision, revision.metadata.name.clone()));
        let wanted = data(template);
        let same = |revision: &&&ControllerRevision| {
            revision.data.as_ref().is_some_and(|data| data.0 == wanted)
        };
        let next = own.last().map_or(1, |last| last.revision.saturating_add(1));
        if let Some(found) = own.iter().rev().find(same) {
            // A template that came back is the latest again.
            let is_last = own
                .last()
                .is_some_and(|last| last.revision == found.revision);
            let action = (!is_last).then(|| Action::Change {
                kind: DependentKind::Revision,
                name: name(&found.metadata).to_owned(),
                uid: found.metadata.uid.clone().unwrap_or_default(),
                patch: json!({"revision": next}),
            });
            let labels = found.metadata.labels.as_ref();
            let hash = labels.and_then(|labels| labels.get(HASH)).cloned();
            return Revisions {
                update: name(&found.metadata).to_owned(),
                hash: hash.unwrap_or_default(),
                own,
                adoptions,
                action,
                collisions,
            };
        }
        let mut count = collisions.unwrap_or(0).max(0);
        let (hash, update) = loop {
            let hash = template_hash(template, count);
            let text = format!("{}-{hash}", name(owner));
            let taken = own.iter().any(|known| name(&known.metadata) == text);
            if !taken || count >= COLLISIONS_MAX {
                break (hash, text);
            }
            count += 1;
        };
        let meta = template.metadata.as_ref();
        let mut labels = meta
            .and_then(|meta| meta.labels.clone())
            .unwrap_or_default();
        labels.insert(HASH.to_owned(), hash.clone());
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(update.clone()),
                namespace: owner.namespace.clone(),
                labels: Some(labels),
                annotations: change_cause(owner),
                owner_references: Some(vec![claimant.reference.clone()]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(wanted)),
            revision: next,
        };
        Revisions {
            own,
            adoptions,
            update,
            hash,
            action: Some(Action::Create(Dependent::Revision(Box::new(revision)))),
            collisions: (count > 0).then_some(count).or(collisions),
        }
    }

    /// The template of a revision, if its object is there and readable.
    pub(super) fn template(&self, revision: &str) -> Option<PodTemplateSpec> {
        let mut own = self.own.iter();
        let found = own.find(|known| name(&known.metadata) == revision)?;
        let mut template = found.data.as_ref()?.0.pointer("/spec/template")?.clone();
        template.as_object_mut()?.remove("$patch");
        serde_json::from_value(template).ok()
    }

    /// True if the revision's object is there.
    pub(super) fn has(&self, revision: &str) -> bool {
        self.own
            .iter()
            .any(|known| name(&known.metadata) == revision)
    }

    /// What creates the current template's revision, and deletes the oldest ones beyond the limit that no pod has.
    pub(super) fn actions(self, live: &BTreeSet<&str>, limit: Option<i32>) -> Vec<Action> {
        let kept = usize::try_from(limit.unwrap_or(10)).unwrap_or_default();
        let old = self.own.iter().filter(|revision| {
            let name = name(&revision.metadata);
            name != self.update && !live.contains(name)
        });
        let old: Vec<&&ControllerRevision> = old.collect();
        let surplus = old.len().saturating_sub(kept);
        let deletions = old
            .into_iter()
            .take(surplus)
            .map(|revision| Action::Delete {
                kind: DependentKind::Revision,
                name: name(&revision.metadata).to_owned(),
                uid: revision.metadata.uid.clone().unwrap_or_default(),
            });
        self.action.into_iter().chain(deletions).collect()
    }
}
