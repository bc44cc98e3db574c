//! The objects that an MPIJob's pods refer to: its ConfigMap, and the means by which the launcher reaches the workers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names;
use resources::training::ReplicaType;
use serde_json::json;

use super::Settings;
use crate::action::{Action, Dependent, DependentKind, SshKeys};
use crate::mpi::remote_shell::Account;
use crate::ownership::controller_reference;
use crate::training::plan::ParsedTrainingJob;

/// The keys of the Secret's data, as its type has them.
pub(super) const PRIVATE_KEY: &str = "ssh-privatekey";
pub(super) const PUBLIC_KEY: &str = "ssh-publickey";

/// The name of the job's ConfigMap.
pub(super) fn config_name(plan: &ParsedTrainingJob<'_>) -> String {
    format!("{}-config", plan.name())
}

/// The name of the job's Secret with keys for SSH.
pub(super) fn secret_name(plan: &ParsedTrainingJob<'_>) -> String {
    format!("{}-ssh", plan.name())
}

/// The service account as which the launcher runs.
pub(super) fn account(plan: &ParsedTrainingJob<'_>) -> Account {
    let template = plan
        .replicas_of(ReplicaType::Launcher)
        .and_then(|launcher| launcher.template.spec.as_ref());
    Account::of(plan.meta, "launcher", template)
}

fn metadata(plan: &ParsedTrainingJob<'_>, name: String) -> ObjectMeta {
    let labels = [
        (names::JOB_NAME, plan.name()),
        (names::OPERATOR_NAME, plan.kind.operator),
    ];
    ObjectMeta {
        name: Some(name),
        namespace: plan.meta.namespace.clone(),
        labels: Some(
            labels
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        ),
        owner_references: Some(vec![controller_reference(
            &plan.kind.api_version(),
            plan.kind.kind,
            plan.meta,
        )]),
        ..ObjectMeta::default()
    }
}

/// Creates the ConfigMap.
pub(super) fn create_config(
    plan: &ParsedTrainingJob<'_>,
    data: BTreeMap<String, String>,
) -> Action {
    let config = ConfigMap {
        metadata: metadata(plan, config_name(plan)),
        data: Some(data),
        ..ConfigMap::default()
    };
    Action::Create(Dependent::ConfigMap(Box::new(config)))
}

/// Gives the ConfigMap this data.
pub(super) fn change_config(config: &ConfigMap, data: BTreeMap<String, String>) -> Action {
    Action::Change {
        kind: DependentKind::ConfigMap,
        name: config.metadata.name.clone().unwrap_or_default(),
        uid: config.metadata.uid.clone().unwrap_or_default(),
        patch: json!({"data": data}),
    }
}

/// What lets the launcher reach the workers: keys for SSH, or rights to run commands in their pods.
pub(super) fn access(plan: &ParsedTrainingJob<'_>, mpi: &Settings) -> Vec<Action> {
    if mpi.shared {
        return rights(plan, mpi).into_iter().map(Action::Create).collect();
    }
    let secret = Secret {
        metadata: metadata(plan, secret_name(plan)),
        type_: Some("kubernetes.io/ssh-auth".to_owned()),
        ..Secret::default()
    };
    let keys = SshKeys {
        secret,
        private: PRIVATE_KEY,
        public: &[PUBLIC_KEY],
    };
    vec![Action::Create(Dependent::SshKeys(Box::new(keys)))]
}

/// The launcher's service account, and its right to run commands in the job's pods and in no other one.
fn rights(plan: &ParsedTrainingJob<'_>, mpi: &Settings) -> Vec<Dependent> {
    let workers = plan.replicas_of(ReplicaType::Worker);
    let workers = workers.map_or(0, |workers| workers.count);
    let mut pods: Vec<String> = (0..workers)
        .map(|index| plan.pod_name(ReplicaType::Worker, index))
        .collect();
    if mpi.launcher_is_worker {
        pods.push(plan.pod_name(ReplicaType::Launcher, 0));
    }
    account(plan).rights(pods, workers, |name| metadata(plan, name.to_owned()))
}
