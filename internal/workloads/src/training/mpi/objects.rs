//! The objects that an MPIJob's pods refer to: its ConfigMap, and the means by which the launcher reaches the workers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names;
use resources::training::ReplicaType;
use serde_json::json;

use super::Settings;
use crate::account_rights::{RightsOf, rule};
use crate::action::{Action, Dependent, DependentKind};
use crate::ownership::controller_reference;
use crate::training::plan::ParsedTrainingJob;

/// How much of the job's uid is in names.
const UID_PART: usize = 8;

/// The name of the job's ConfigMap.
pub(super) fn config_name(plan: &ParsedTrainingJob<'_>) -> String {
    format!("{}-config", plan.name())
}

/// The name of the job's Secret with keys for SSH.
pub(super) fn secret_name(plan: &ParsedTrainingJob<'_>) -> String {
    format!("{}-ssh", plan.name())
}

/// The service account as which the launcher runs, unless its template names one.
pub(super) fn account_name(plan: &ParsedTrainingJob<'_>) -> String {
    let template = plan
        .replicas_of(ReplicaType::Launcher)
        .and_then(|launcher| launcher.template.spec.as_ref());
    let named = template.and_then(|spec| spec.service_account_name.clone());
    named
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| own_account(plan))
}

/// The service account that the controller makes. Its name has a part of the job's uid: objects of an earlier job of the
/// same name may still be there.
fn own_account(plan: &ParsedTrainingJob<'_>) -> String {
    let uid = plan.meta.uid.as_deref().unwrap_or_default();
    let part: String = uid.chars().take(UID_PART).collect();
    format!("{}-launcher-{part}", plan.name())
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
    vec![Action::Create(Dependent::SshKeys(Box::new(secret)))]
}

/// The launcher's service account, and its right to run commands in the job's pods and in no other one. The role's name
/// has the number of workers: a job that grows gets a further role.
fn rights(plan: &ParsedTrainingJob<'_>, mpi: &Settings) -> Vec<Dependent> {
    let workers = plan.replicas_of(ReplicaType::Worker);
    let workers = workers.map_or(0, |workers| workers.count);
    let mut pods: Vec<String> = (0..workers)
        .map(|index| plan.pod_name(ReplicaType::Worker, index))
        .collect();
    if mpi.launcher_is_worker {
        pods.push(plan.pod_name(ReplicaType::Launcher, 0));
    }
    let own = own_account(plan);
    let account = account_name(plan);
    let rights = RightsOf {
        account: &account,
        is_own: account == own,
        role: &format!("{own}-{workers}"),
    };
    let rules = vec![
        rule("", "pods", &["get"], Some(pods.clone())),
        rule("", "pods/exec", &["get", "create"], Some(pods)),
    ];
    rights.with(rules, |name| metadata(plan, name.to_owned()))
}
