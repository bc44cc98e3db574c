//! Creates, changes and deletes a job's objects of every kind.

use k8s_openapi::api::apps::v1::{ControllerRevision, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use resources::kinds::{JobSet, RayCluster, VolcanoCommand};
use serde_json::Value;
use workloads::{Dependent, DependentKind};

use super::apply::{ActionEffect, ActionExecutor, ActionOutcome};
use super::{RunnerObject, api, ssh_keys};

/// Calls `$call` with the API of the objects of a kind.
macro_rules! with_api {
    ($executor:expr, $kind:expr, $call:ident($($argument:expr),*)) => {{
        let (client, namespace) = (&$executor.client, $executor.namespace.as_str());
        match $kind {
            DependentKind::Job => $call(&api::<Job>(client, namespace), $($argument),*).await,
            DependentKind::RayCluster => {
                $call(&api::<RayCluster>(client, namespace), $($argument),*).await
            }
            DependentKind::JobSet => $call(&api::<JobSet>(client, namespace), $($argument),*).await,
            DependentKind::ReplicaSet => {
                $call(&api::<ReplicaSet>(client, namespace), $($argument),*).await
            }
            DependentKind::Revision => {
                $call(&api::<ControllerRevision>(client, namespace), $($argument),*).await
            }
            DependentKind::Claim => {
                $call(&api::<PersistentVolumeClaim>(client, namespace), $($argument),*).await
            }
            DependentKind::ConfigMap => {
                $call(&api::<ConfigMap>(client, namespace), $($argument),*).await
            }
            DependentKind::Secret => {
                $call(&api::<Secret>(client, namespace), $($argument),*).await
            }
            DependentKind::ServiceAccount => {
                $call(&api::<ServiceAccount>(client, namespace), $($argument),*).await
            }
            DependentKind::Role => $call(&api::<Role>(client, namespace), $($argument),*).await,
            DependentKind::RoleBinding => {
                $call(&api::<RoleBinding>(client, namespace), $($argument),*).await
            }
            DependentKind::Pod => $call(&api::<Pod>(client, namespace), $($argument),*).await,
            DependentKind::Service => $call(&api::<Service>(client, namespace), $($argument),*).await,
            DependentKind::Command => {
                $call(&api::<VolcanoCommand>(client, namespace), $($argument),*).await
            }
        }
    }};
}

impl ActionExecutor {
    pub(super) async fn change_dependent(
        &self,
        kind: DependentKind,
        name: &str,
        uid: &str,
        patch: Value,
    ) -> Result<ActionEffect, kube::Error> {
        with_api!(self, kind, change(name, uid, patch))
    }

    pub(super) async fn delete_dependent(
        &self,
        kind: DependentKind,
        name: &str,
        uid: String,
    ) -> Result<ActionEffect, kube::Error> {
        with_api!(self, kind, delete(name, uid, DeleteParams::background()))
    }

    pub(super) async fn create_dependent(&self, dependent: Dependent) -> ActionOutcome {
        let (kind, name, result) = match dependent {
            Dependent::Job(job) => self.put(DependentKind::Job, *job).await,
            Dependent::RayCluster(cluster) => self.put(DependentKind::RayCluster, *cluster).await,
            Dependent::JobSet(set) => self.put(DependentKind::JobSet, *set).await,
            Dependent::ReplicaSet(set) => self.put(DependentKind::ReplicaSet, *set).await,
            Dependent::Revision(revision) => self.put(DependentKind::Revision, *revision).await,
            Dependent::Claim(claim) => self.put(DependentKind::Claim, *claim).await,
            Dependent::ConfigMap(map) => self.put(DependentKind::ConfigMap, *map).await,
            Dependent::ServiceAccount(account) => {
                self.put(DependentKind::ServiceAccount, *account).await
            }
            Dependent::Role(role) => self.put(DependentKind::Role, *role).await,
            Dependent::RoleBinding(binding) => self.put(DependentKind::RoleBinding, *binding).await,
            Dependent::SshKeys(keys) => {
                let mut keys = *keys;
                match ssh_keys::fill(&mut keys) {
                    Ok(()) => self.put(DependentKind::Secret, keys.secret).await,
                    Err(error) => {
                        let error = kube::Error::Service(Box::new(error));
                        (DependentKind::Secret, keys.secret.name_any(), Err(error))
                    }
                }
            }
        };
        let is_reported = matches!(
            kind,
            DependentKind::Job
                | DependentKind::Claim
                | DependentKind::RayCluster
                | DependentKind::JobSet
        );
        ActionOutcome {
            what: format!("creating {} {name}", kind.as_str()),
            object: is_reported.then(|| (kind.as_str(), name)),
            deletes: false,
            required: matches!(kind, DependentKind::ConfigMap),
            result,
        }
    }

    async fn put<O: RunnerObject>(
        &self,
        kind: DependentKind,
        object: O,
    ) -> (DependentKind, String, Result<ActionEffect, kube::Error>) {
        let result = create(&api::<O>(&self.client, &self.namespace), &object).await;
        (kind, object.name_any(), result)
    }
}

pub(super) async fn create<K: RunnerObject>(
    objects: &Api<K>,
    object: &K,
) -> Result<ActionEffect, kube::Error> {
    match objects.create(&PostParams::default(), object).await {
        Ok(_) => Ok(ActionEffect::Created),
        // Most often the object is this job's own and the watch has not shown it yet. It may also
        // be left over from an earlier job of the same name, so the job is checked again soon.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            Ok(ActionEffect::InTheWay)
        }
        Err(error) => Err(error),
    }
}

pub(super) async fn delete<K: RunnerObject>(
    objects: &Api<K>,
    name: &str,
    uid: String,
    params: DeleteParams,
) -> Result<ActionEffect, kube::Error> {
    let only = Preconditions {
        uid: Some(uid),
        resource_version: None,
    };
    match objects.delete(name, &params.preconditions(only)).await {
        Ok(_) => Ok(ActionEffect::Deleted),
        // The object is gone, or another object has its name now.
        Err(error) if is_gone(&error) => Ok(ActionEffect::Already),
        Err(error) => Err(error),
    }
}

async fn change<K: RunnerObject>(
    objects: &Api<K>,
    name: &str,
    uid: &str,
    mut patch: Value,
) -> Result<ActionEffect, kube::Error> {
    // A new object may have the same name: the uid identifies the object that was decided on.
    patch["metadata"]["uid"] = uid.into();
    match objects
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
    {
        Ok(_) => Ok(ActionEffect::Changed),
        Err(error) if is_gone(&error) => Ok(ActionEffect::InTheWay),
        Err(error) => Err(error),
    }
}

/// The object no longer exists, or another object has its name.
pub(super) fn is_gone(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 404 || status.code == 409,
        _ => false,
    }
}
