//! `muster crds`: Muster's custom resource definitions for a Kubernetes cluster, generated from their Rust types.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};
use resources::training;

use super::apply::FIELD_MANAGER;
use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output;
use crate::arguments::Crds;

mod decision;

use decision::{CrdDecision, CrdNotes, decide, is_needed};

/// How long to wait until the cluster serves a kind.
const ESTABLISHED: Duration = Duration::from_secs(60);

/// Writes all definitions as YAML documents.
pub fn print() -> Result<CommandOutcome> {
    for crd in resources::crds::all() {
        output::put_line(&format!(
            "---\n{}",
            serde_norway::to_string(&crd)?.trim_end()
        ))?;
    }
    Ok(CommandOutcome::Yes)
}

/// Applies all definitions except those that another operator has installed, says of these whether Muster can share
/// them, and waits until the cluster serves each kind. Answers no if a kind that Muster needs can't be used.
///
/// # Errors
/// The cluster can't be asked, takes no definitions, or refuses one for a reason other than its owner.
pub async fn install(connection: &ServerConnection, arguments: &Crds) -> Result<CommandOutcome> {
    let crds: Api<CustomResourceDefinition> = Api::all(connection.client.clone());
    let mut applied = Vec::new();
    let mut unusable = Vec::new();
    for crd in resources::crds::all() {
        let name = crd.name_any();
        let mut parameters = PatchParams::apply(FIELD_MANAGER);
        parameters.force = arguments.force_conflicts;
        if !arguments.force_conflicts {
            let found = crds.get_opt(&name).await.with_context(|| name.clone())?;
            match decide(&crd, found.as_ref(), FIELD_MANAGER) {
                CrdDecision::Create | CrdDecision::Update => {}
                CrdDecision::Adopt => parameters.force = true,
                CrdDecision::Share(notes) => {
                    output::put_line(&shared(&name, &notes))?;
                    continue;
                }
                CrdDecision::Conflict { reason, remedy } => {
                    output::put_line(&conflict(&name, &reason, &remedy))?;
                    unusable.push(name);
                    continue;
                }
            }
        }
        match crds.patch(&name, &parameters, &Patch::Apply(&crd)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let server = &connection.server;
                bail!(
                    "{server} takes no CRDs: a muster server of its own has these kinds built in"
                );
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // Another program changed fields of a definition that Muster installed.
                let remedy = "take the fields over with --force-conflicts";
                output::put_line(&conflict(&name, &status.message, remedy))?;
                if is_needed(&crd) {
                    unusable.push(name);
                }
                continue;
            }
            answer => answer.with_context(|| name.clone())?,
        };
        output::put_line(&format!("customresourcedefinition/{name} applied"))?;
        applied.push(name);
    }
    for name in &applied {
        let established = conditions::is_crd_established();
        let waiting = await_condition(crds.clone(), name, established);
        match tokio::time::timeout(ESTABLISHED, waiting).await {
            Ok(answer) => answer.with_context(|| name.clone())?,
            Err(_) => return Ok(CommandOutcome::TimedOut),
        };
    }
    if unusable.is_empty() {
        return Ok(CommandOutcome::Yes);
    }
    eprintln!(
        "muster: the cluster lacks kinds that Muster needs, in its own form: {}",
        unusable.join(", ")
    );
    Ok(CommandOutcome::No)
}

/// The line on a definition that stays another operator's.
fn shared(name: &str, notes: &CrdNotes) -> String {
    let owner = &notes.owner;
    if notes.inert {
        return format!(
            "customresourcedefinition/{name} left alone: {owner} installed it, and Muster does not run the kind"
        );
    }
    let mut line = format!(
        "customresourcedefinition/{name} shared: {owner} installed it, and Muster can use it"
    );
    if !notes.missing.is_empty() {
        line.push_str(&format!(
            "\n  it lacks fields of Muster's, which the API server drops: {}; `muster crds --force-conflicts` adds them",
            notes.missing.join(", ")
        ));
    }
    let training = name.split_once('.').is_some_and(|(plural, group)| {
        group == training::GROUP && training::by_plural(plural).is_some()
    });
    if training {
        line.push_str(
            "\n  if the other operator's controller runs too, only one may control the jobs: stop it, or leave them to it by `muster server kubernetes --kinds none`",
        );
    }
    line
}

fn conflict(name: &str, reason: &str, remedy: &str) -> String {
    format!("customresourcedefinition/{name} not usable: {reason}\n  to fix it: {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_on_a_shared_kind_says_what_is_lost_and_which_controller_may_run() {
        let notes = |missing: &[&str], inert| CrdNotes {
            owner: "helm's release volcano".to_owned(),
            missing: missing.iter().map(|field| (*field).to_owned()).collect(),
            inert,
        };
        let cases: [(&str, CrdNotes, &[&str]); 4] = [
            (
                "queues.x",
                notes(&[], false),
                &["queues.x shared: helm's release volcano"],
            ),
            (
                "queues.x",
                notes(&["spec.a", "status.b"], false),
                &["spec.a, status.b", "--force-conflicts"],
            ),
            (
                "pytorchjobs.kubeflow.org",
                notes(&[], false),
                &["--kinds none"],
            ),
            (
                "rayclusters.ray.io",
                notes(&[], true),
                &["left alone: helm's"],
            ),
        ];
        for (name, notes, all) in cases {
            let line = shared(name, &notes);
            assert!(all.iter().all(|words| line.contains(words)), "{line}");
        }
    }
}
