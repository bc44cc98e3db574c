//! What a Kubernetes cluster must have before the loops run: Muster's kinds, and the default
//! queue. The embedded engine has both from its first start.

use kube::api::PostParams;
use kube::{Api, Client};
use resources::kinds::Queue;
use resources::names;
use serde_json::json;

use crate::jobs::JobKind;

/// Why a cluster can't be worked on yet.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// Kinds that it does not serve.
    #[error("the cluster does not know {0}; install them with `muster crds`")]
    KindsMissing(String),
    /// It did not answer, or said no.
    #[error("{0}")]
    Api(#[from] kube::Error),
}

/// The group's version and the plural name of what the loops over these kinds need.
fn needed(jobs: impl Iterator<Item = JobKind>) -> Vec<(&'static str, &'static str)> {
    let scheduling = "scheduling.volcano.sh/v1beta1";
    let mut needed = vec![(scheduling, "podgroups"), (scheduling, "queues")];
    needed.extend(jobs.filter_map(|kind| match kind {
        JobKind::Job => None,
        JobKind::PyTorchJob => Some(("kubeflow.org/v1", "pytorchjobs")),
    }));
    needed
}

/// Looks whether the cluster serves the kinds that are needed.
///
/// # Errors
///
/// Those that are missing, by name; or what the API said.
pub async fn check_kinds(
    client: &Client,
    jobs: impl Iterator<Item = JobKind>,
) -> Result<(), NotReady> {
    let mut missing = Vec::new();
    let mut served: Option<(&str, Vec<String>)> = None;
    for (version, plural) in needed(jobs) {
        if served.as_ref().is_none_or(|(known, _)| *known != version) {
            let plurals = match client.list_api_group_resources(version).await {
                Ok(list) => list.resources.into_iter().map(|kind| kind.name).collect(),
                Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            served = Some((version, plurals));
        }
        let known = served
            .iter()
            .any(|(_, plurals)| plurals.iter().any(|name| name == plural));
        if !known {
            missing.push(format!("{plural} ({version})"));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(NotReady::KindsMissing(missing.join(", ")))
}

/// Makes the queue that takes whatever names no other, where there is none.
///
/// # Errors
///
/// What the API said against it.
pub async fn ensure_default_queue(client: &Client) -> kube::Result<()> {
    let queues: Api<Queue> = Api::all(client.clone());
    if queues.get_opt(names::DEFAULT_QUEUE).await?.is_some() {
        return Ok(());
    }
    let queue = serde_json::from_value(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": names::DEFAULT_QUEUE}, "spec": {"weight": 1},
    }))
    .map_err(kube::Error::SerdeError)?;
    match queues.create(&PostParams::default(), &queue).await {
        Ok(_) => {
            tracing::info!("made the queue `{}`", names::DEFAULT_QUEUE);
            Ok(())
        }
        // Another was quicker.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}
