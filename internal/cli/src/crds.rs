//! `muster crds`: Muster's custom resource definitions for a Kubernetes cluster, generated from their Rust types.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt};

use resources::inert_kinds;

use super::apply::FIELD_MANAGER;
use super::{CommandOutcome, ServerConnection, output};
use crate::arguments::Crds;

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

/// Whether another operator owns the installed definition of a kind that Muster can do without. Muster labels its own
/// definitions of kinds that it stores but does not run.
async fn is_others(
    crds: &Api<CustomResourceDefinition>,
    crd: &CustomResourceDefinition,
) -> Result<bool> {
    let (label, ours) = inert_kinds::LABEL;
    if !crd.labels().contains_key(label) {
        return Ok(false);
    }
    let name = crd.name_any();
    let found = crds.get_opt(&name).await.with_context(|| name.clone())?;
    Ok(found.is_some_and(|found| found.labels().get(label).map(String::as_str) != Some(ours)))
}

/// Applies all definitions except those of other operators, then waits until the cluster serves each kind.
pub async fn install(connection: &ServerConnection, arguments: &Crds) -> Result<CommandOutcome> {
    let crds: Api<CustomResourceDefinition> = Api::all(connection.client.clone());
    let mut all = resources::crds::all();
    let mut parameters = PatchParams::apply(FIELD_MANAGER);
    parameters.force = arguments.force_conflicts;
    if !arguments.force_conflicts {
        let mut ours = Vec::new();
        for crd in all {
            if is_others(&crds, &crd).await? {
                let name = crd.name_any();
                output::put_line(&format!(
                    "customresourcedefinition/{name} left alone: another operator installed it"
                ))?;
            } else {
                ours.push(crd);
            }
        }
        all = ours;
    }
    for crd in &all {
        let name = crd.name_any();
        match crds.patch(&name, &parameters, &Patch::Apply(crd)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let server = &connection.server;
                bail!(
                    "{server} takes no CRDs: a muster server of its own has these kinds built in"
                );
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                bail!(
                    "{}\n  another operator installed {name}: either leave it, or take it over with --force-conflicts",
                    status.message
                );
            }
            answer => answer.with_context(|| name.clone())?,
        };
        output::put_line(&format!("customresourcedefinition/{name} applied"))?;
    }
    for crd in &all {
        let name = crd.name_any();
        let established = conditions::is_crd_established();
        let waiting = await_condition(crds.clone(), &name, established);
        match tokio::time::timeout(ESTABLISHED, waiting).await {
            Ok(answer) => answer.with_context(|| name.clone())?,
            Err(_) => return Ok(CommandOutcome::TimedOut),
        };
    }
    Ok(CommandOutcome::Yes)
}
