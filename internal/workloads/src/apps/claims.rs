//! The claims of pods with names that last: one for each template and pod, `<template>-<pod>`. They outlive their pods. The
//! retention policy makes the workload, or the pod that goes, an owner of them; garbage collection then deletes them.
//! StatefulSet and LeaderWorkerSet have them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSetPersistentVolumeClaimRetentionPolicy;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::action::{Action, Dependent, DependentKind};
use crate::ownership::owners_patch;
use crate::pod_facts;

/// Finds a claim of the workload's namespace by its name.
pub type FindClaim<'a> = &'a dyn Fn(&str) -> Option<&'a PersistentVolumeClaim>;

/// A workload's claims.
pub(crate) struct PodClaims<'a, 'f> {
    /// The workload.
    pub(crate) owner: &'a ObjectMeta,
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) templates: &'a [PersistentVolumeClaim],
    pub(crate) policy: Option<&'a StatefulSetPersistentVolumeClaimRetentionPolicy>,
    pub(crate) find: FindClaim<'f>,
}

fn volume_of(template: &PersistentVolumeClaim) -> &str {
    template.metadata.name.as_deref().unwrap_or_default()
}

fn name(template: &PersistentVolumeClaim, pod: &str) -> String {
    format!("{}-{pod}", volume_of(template))
}

/// Gives a pod the volumes of its claims, each with the name of its template.
pub(crate) fn add_volumes(templates: &[PersistentVolumeClaim], pod: &str, spec: &mut PodSpec) {
    for template in templates {
        let volume = volume_of(template);
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|known| known.name != volume);
        volumes.push(Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: name(template, pod),
                read_only: Some(false),
            }),
            name: volume.to_owned(),
            ..Volume::default()
        });
    }
}

impl PodClaims<'_, '_> {
    fn is_deleted(&self, when_scaled: bool) -> bool {
        let policy = self.policy.and_then(|policy| {
            if when_scaled {
                policy.when_scaled.as_deref()
            } else {
                policy.when_deleted.as_deref()
            }
        });
        policy == Some("Delete")
    }

    /// Creates the claims of a pod that are missing, with these labels.
    pub(crate) fn create(
        &self,
        pod: &str,
        labels: &BTreeMap<String, String>,
        actions: &mut Vec<Action>,
    ) {
        for template in self.templates {
            let name = name(template, pod);
            if (self.find)(&name).is_some() {
                continue;
            }
            let mut all = template.metadata.labels.clone().unwrap_or_default();
            all.extend(labels.clone());
            let owner = self.is_deleted(false).then(|| vec![self.as_owner()]);
            let claim = PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(name),
                    namespace: self.owner.namespace.clone(),
                    labels: Some(all),
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
            api_version: self.api_version.to_owned(),
            kind: self.kind.to_owned(),
            name: self.owner.name.clone().unwrap_or_default(),
            uid: self.owner.uid.clone().unwrap_or_default(),
            ..OwnerReference::default()
        }
    }

    /// Writes the owners that the retention policy asks for to the claims of a pod; `condemned`: the pod goes because
    /// fewer are wanted.
    pub(crate) fn change_owners(&self, pod: &Pod, condemned: bool, actions: &mut Vec<Action>) {
        for template in self.templates {
            if let Some(claim) = (self.find)(&name(template, pod_facts::name(pod))) {
                actions.extend(self.own(claim, pod, condemned));
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
            (self.as_owner(), self.is_deleted(false)),
            (pod_owner, condemned && self.is_deleted(true)),
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
