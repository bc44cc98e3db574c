//! A StatefulSet's claims: they outlive their pods. `persistentVolumeClaimRetentionPolicy` makes the set, or the pod
//! that goes, an owner of them; garbage collection then deletes them.

use super::SetPlan;
use crate::action::{Action, Dependent, DependentKind};
use crate::ownership::owners_patch;
use crate::pod_facts;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// `<template>-<set>-<number>`.
pub(super) fn name(template: &str, set: &str, number: i64) -> String {
    format!("{template}-{set}-{number}")
}

impl SetPlan<'_> {
    fn set_name(&self) -> &str {
        self.set.metadata.name.as_deref().unwrap_or_default()
    }

    fn templates(&self) -> &[PersistentVolumeClaim] {
        let templates = self.spec.volume_claim_templates.as_deref();
        templates.unwrap_or_default()
    }

    fn deletes(&self, when_scaled: bool) -> bool {
        let policy = self.spec.persistent_volume_claim_retention_policy.as_ref();
        let policy = policy.and_then(|policy| {
            if when_scaled {
                policy.when_scaled.as_deref()
            } else {
                policy.when_deleted.as_deref()
            }
        });
        policy == Some("Delete")
    }

    /// Creates the claims of a number that are missing.
    pub(super) fn claims_of(&self, number: i64, actions: &mut Vec<Action>) {
        for template in self.templates() {
            let volume = template.metadata.name.as_deref().unwrap_or_default();
            let name = name(volume, self.set_name(), number);
            if (self.claim)(&name).is_some() {
                continue;
            }
            let selector = self.spec.selector.match_labels.clone();
            let mut labels = template.metadata.labels.clone().unwrap_or_default();
            labels.extend(selector.unwrap_or_default());
            let owner = self.deletes(false).then(|| vec![self.as_owner()]);
            let claim = PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(name),
                    namespace: self.set.metadata.namespace.clone(),
                    labels: Some(labels),
                    annotations: template.metadata.annotations.clone(),
                    owner_references: owner,
                    ..ObjectMeta::default()
                },
                spec: template.spec.clone(),
                status: None,
            };
            actions.push(Action::Create(Dependent::Claim(Box::new(claim))));
        }
    }

    fn as_owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: "apps/v1".to_owned(),
            kind: "StatefulSet".to_owned(),
            name: self.set_name().to_owned(),
            uid: self.set.metadata.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        }
    }

    /// Writes the owners that the retention policy asks for to the claims of existing pods.
    pub(super) fn claim_owners(&self, actions: &mut Vec<Action>) {
        for (number, pod) in &self.pods {
            let condemned = *number < self.first || *number >= self.end;
            for template in self.templates() {
                let volume = template.metadata.name.as_deref().unwrap_or_default();
                let name = name(volume, self.set_name(), *number);
                if let Some(claim) = (self.claim)(&name) {
                    actions.extend(self.own(claim, pod, condemned));
                }
            }
        }
    }

    fn own(&self, claim: &PersistentVolumeClaim, pod: &Pod, condemned: bool) -> Option<Action> {
        let pod_owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod_facts::name(pod).to_owned(),
            uid: pod_facts::uid(pod).to_owned(),
            ..OwnerReference::default()
        };
        let wanted = [
            (self.as_owner(), self.deletes(false)),
            (pod_owner, condemned && self.deletes(true)),
        ];
        let known = claim.metadata.owner_references.clone().unwrap_or_default();
        let mut next = known.clone();
        for (owner, holds) in wanted {
            let has = next.iter().any(|reference| reference.uid == owner.uid);
            if holds && !has {
                next.push(owner);
            } else if !holds && has {
                next.retain(|reference| reference.uid != owner.uid);
            }
        }
        (next != known).then(|| Action::Change {
            kind: DependentKind::Claim,
            name: claim.metadata.name.clone().unwrap_or_default(),
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            patch: owners_patch(&claim.metadata, &next),
        })
    }
}
