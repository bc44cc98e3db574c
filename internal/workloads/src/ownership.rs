//! The link between a job and its dependents: the controller's owner reference. A workload with a selector adopts the
//! objects that it selects and that have no controller, and releases its own that it no longer selects, by the rules of
//! Kubernetes' ControllerRefManager.

use std::collections::BTreeMap;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use resources::selector;
use serde_json::json;

use crate::action::{Action, DependentKind};

/// The reference that makes `owner` the controller of the object that carries it.
pub(crate) fn controller_reference(
    api_version: &str,
    kind: &str,
    owner: &ObjectMeta,
) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: owner.name.clone().unwrap_or_default(),
        uid: owner.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The object's controller.
pub(crate) fn controller(object: &ObjectMeta) -> Option<&OwnerReference> {
    let references = object.owner_references.as_deref().unwrap_or_default();
    let mut references = references.iter();
    references.find(|reference| reference.controller == Some(true))
}

/// Whether the object is controlled by the owner with this uid.
pub(crate) fn controlled_by(object: &ObjectMeta, owner: &ObjectMeta) -> bool {
    controller(object)
        .is_some_and(|reference| reference.uid == owner.uid.as_deref().unwrap_or_default())
}

/// A workload that owns what its selector matches.
pub(crate) struct Claimant<'a> {
    pub(crate) owner: &'a ObjectMeta,
    pub(crate) reference: OwnerReference,
    selector: Option<selector::LabelSelector>,
}

/// A workload's objects of one kind.
pub(crate) struct Claimed<'a, O> {
    /// Those that it controls or is about to control.
    pub(crate) own: Vec<&'a O>,
    /// The objects that it takes; nothing else may be decided before these are its own.
    pub(crate) adoptions: Vec<Action>,
    /// The objects that it gives up.
    pub(crate) releases: Vec<Action>,
}

impl<'a> Claimant<'a> {
    /// The controller of this kind of `apps/v1`. A selector that cannot be read changes no owner.
    pub(crate) fn of(kind: &str, owner: &'a ObjectMeta, selector: &LabelSelector) -> Claimant<'a> {
        Claimant {
            owner,
            reference: controller_reference("apps/v1", kind, owner),
            selector: selector::LabelSelector::from_k8s(selector).ok(),
        }
    }

    fn selects(&self, object: &ObjectMeta) -> Option<bool> {
        let selector = self.selector.as_ref()?;
        Some(match &object.labels {
            Some(labels) => selector.matches(labels),
            None => selector.matches(&BTreeMap::new()),
        })
    }

    /// Sorts the objects of a namespace; `adoptable` excludes some that have no controller.
    pub(crate) fn claim<'o, O: Metadata<Ty = ObjectMeta>>(
        &self,
        kind: DependentKind,
        objects: &[&'o O],
        adoptable: impl Fn(&O) -> bool,
    ) -> Claimed<'o, O> {
        let mut claimed = Claimed {
            own: Vec::new(),
            adoptions: Vec::new(),
            releases: Vec::new(),
        };
        let owner_leaves = self.owner.deletion_timestamp.is_some();
        for object in objects.iter().copied() {
            let meta = object.metadata();
            let selected = self.selects(meta);
            if controlled_by(meta, self.owner) {
                if selected == Some(false) && !owner_leaves {
                    claimed.releases.push(self.release(kind, meta));
                } else {
                    claimed.own.push(object);
                }
                continue;
            }
            let free = controller(meta).is_none() && meta.deletion_timestamp.is_none();
            if free && !owner_leaves && selected == Some(true) && adoptable(object) {
                claimed.adoptions.push(self.adopt(kind, meta));
                claimed.own.push(object);
            }
        }
        claimed
    }

    fn adopt(&self, kind: DependentKind, object: &ObjectMeta) -> Action {
        let mut owners = object.owner_references.clone().unwrap_or_default();
        owners.retain(|reference| reference.uid != self.reference.uid);
        owners.push(self.reference.clone());
        Action::Adopt {
            kind,
            name: object.name.clone().unwrap_or_default(),
            uid: object.uid.clone().unwrap_or_default(),
            patch: owners_patch(object, &owners),
        }
    }

    fn release(&self, kind: DependentKind, object: &ObjectMeta) -> Action {
        let mut owners = object.owner_references.clone().unwrap_or_default();
        owners.retain(|reference| reference.uid != self.reference.uid);
        Action::Change {
            kind,
            name: object.name.clone().unwrap_or_default(),
            uid: object.uid.clone().unwrap_or_default(),
            patch: owners_patch(object, &owners),
        }
    }
}

/// The version guards against a decision on an outdated copy.
pub(crate) fn owners_patch(object: &ObjectMeta, owners: &[OwnerReference]) -> serde_json::Value {
    json!({"metadata": {"ownerReferences": owners, "resourceVersion": object.resource_version}})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::Value;

    use super::*;

    fn pod(name: &str, app: &str, owners: Value) -> Pod {
        let meta = json!({"name": name, "uid": name, "resourceVersion": "7",
            "labels": {"app": app}, "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": meta})).unwrap()
    }

    fn owner(uid: &str, controls: bool) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid, "controller": controls})
    }

    fn names(actions: &[Action]) -> Vec<String> {
        let name = |action: &Action| match action {
            Action::Adopt { name, patch, .. } | Action::Change { name, patch, .. } => {
                assert_eq!(patch["metadata"]["resourceVersion"], "7");
                let owners = patch["metadata"]["ownerReferences"].as_array().unwrap();
                let uids = owners.iter().map(|owner| owner["uid"].as_str().unwrap());
                format!("{name}:{}", uids.collect::<Vec<_>>().join(","))
            }
            other => panic!("{other:?}"),
        };
        actions.iter().map(name).collect()
    }

    #[test]
    fn orphans_that_match_are_adopted_and_own_objects_that_do_not_are_released() {
        let mut meta = ObjectMeta {
            name: Some("web".to_owned()),
            uid: Some("me".to_owned()),
            ..ObjectMeta::default()
        };
        let selector: LabelSelector =
            serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap();
        let mut leaving = pod("leaving", "web", json!([]));
        leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        let pods = [
            pod("own", "web", json!([owner("me", true)])),
            pod(
                "gone",
                "other",
                json!([owner("keeps", false), owner("me", true)]),
            ),
            pod("orphan", "web", json!([owner("keeps", false)])),
            pod("unwanted", "web", json!([])),
            pod("foreign", "web", json!([owner("them", true)])),
            pod("apart", "other", json!([])),
            leaving,
        ];
        let pods: Vec<&Pod> = pods.iter().collect();
        let adoptable = |pod: &Pod| pod.metadata.name.as_deref() != Some("unwanted");
        let ask = |meta: &ObjectMeta| {
            let claimant = Claimant::of("ReplicaSet", meta, &selector);
            let claimed = claimant.claim(DependentKind::Pod, &pods, adoptable);
            let own = claimed
                .own
                .iter()
                .map(|pod| pod.metadata.name.clone().unwrap());
            let own: Vec<String> = own.collect();
            (own, names(&claimed.adoptions), names(&claimed.releases))
        };
        let text = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let want = (
            text(&["own", "orphan"]),
            text(&["orphan:keeps,me"]),
            text(&["gone:keeps"]),
        );
        assert_eq!(ask(&meta), want);
        // A workload that is being deleted keeps what it has and takes nothing.
        meta.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(ask(&meta), (text(&["own", "gone"]), text(&[]), text(&[])));
    }
}
