//! The preconditions in a Kubernetes cluster: Muster's kinds and the default queue. The embedded
//! engine has both from its first start.

use kube::api::PostParams;
use kube::{Api, Client};
use resources::kinds::Queue;
use resources::names;
use serde_json::json;

use crate::jobs::JobKind;

/// Why the loops cannot run against a cluster yet.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// The cluster does not serve these kinds.
    #[error(
        "the cluster does not serve {0}; install the CustomResourceDefinitions with `muster crds`"
    )]
    KindsMissing(String),
    /// The API did not answer, or refused.
    #[error("{0}")]
    Api(#[from] kube::Error),
}

/// The group version and the plural name of each kind that these controllers need.
fn needed(jobs: impl Iterator<Item = JobKind>) -> Vec<(String, &'static str)> {
    let scheduling = || "scheduling.volcano.sh/v1beta1".to_owned();
    let mut needed = vec![(scheduling(), "podgroups"), (scheduling(), "queues")];
    let training = jobs.filter_map(JobKind::training);
    needed.extend(training.map(|kind| (kind.api_version(), kind.plural)));
    needed
}

/// Checks that the cluster serves the kinds that are needed.
///
/// # Errors
///
/// The missing kinds by name, or the API's error.
pub async fn check_kinds(
    client: &Client,
    jobs: impl Iterator<Item = JobKind>,
) -> Result<(), NotReady> {
    let mut missing = Vec::new();
    let mut served: Option<(String, Vec<String>)> = None;
    for (version, plural) in needed(jobs) {
        if served.as_ref().is_none_or(|(known, _)| *known != version) {
            let plurals = match client.list_api_group_resources(&version).await {
                Ok(list) => list.resources.into_iter().map(|kind| kind.name).collect(),
                Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            served = Some((version.clone(), plurals));
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

/// Creates the default queue, for jobs that name no queue, if it does not exist.
///
/// # Errors
///
/// The API's error.
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
            tracing::info!("created the queue `{}`", names::DEFAULT_QUEUE);
            Ok(())
        }
        // Another client created it first.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// An API that serves some kinds of Volcano and no other group.
    fn api(plurals: &'static [&'static str]) -> Client {
        let answer = move |request: Request<Body>| async move {
            let found = request.uri().path() == "/apis/scheduling.volcano.sh/v1beta1";
            let resources = plurals.iter().map(|name| {
                json!({"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": []})
            });
            let body = match found {
                true => json!({"kind": "APIResourceList", "apiVersion": "v1",
                    "groupVersion": "scheduling.volcano.sh/v1beta1",
                    "resources": resources.collect::<Vec<_>>()}),
                false => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "message": "not found", "reason": "NotFound", "code": 404}),
            };
            let response = Response::builder().status(if found { 200 } else { 404 });
            Ok::<_, std::convert::Infallible>(
                response
                    .body(Body::from(body.to_string().into_bytes()))
                    .unwrap(),
            )
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test]
    async fn missing_kinds_are_named_with_the_command_that_installs_them() {
        let jobs = || [JobKind::Job, JobKind::PyTorchJob].into_iter();
        let missing = check_kinds(&api(&["queues"]), jobs()).await.unwrap_err();
        assert_eq!(
            missing.to_string(),
            "the cluster does not serve podgroups (scheduling.volcano.sh/v1beta1), pytorchjobs (kubeflow.org/v1); \
             install the CustomResourceDefinitions with `muster crds`"
        );
        let both = api(&["podgroups", "queues"]);
        assert!(check_kinds(&both, [JobKind::Job].into_iter()).await.is_ok());
    }
}
