//! Writes bindings: POST, with the chosen devices. If the answer to a binding is lost, the binder
//! reads the pod until the API returns its state. Until then the pod counts as bound, and its
//! resources are not given to another.

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use resources::devices::{DEVICES_ANNOTATION, chosen};
use scheduler::Bind;
use serde_json::{Value, json};
use tracing::Instrument;

use super::api_retry::{AttemptResult, is_fenced, until_answered, until_known};

/// How a binding ended.
pub(super) struct BindingOutcome {
    pub(super) bind: Bind,
    /// Why the pod is not bound as planned.
    pub(super) refused: Option<BindingRefused>,
}

/// A pod was not bound as planned.
pub(super) struct BindingRefused {
    /// The API's reason.
    pub(super) why: String,
    /// The pod's state after the refusal, if the API was asked.
    pub(super) found: Option<Pod>,
}

/// The result of one request.
enum BindRequestResult {
    Bound,
    /// Nothing was written, for this reason.
    Refused(String),
    /// The pod may be bound: by this request, by an earlier one, or by another client.
    Unclear(String),
}

/// Binds one pod, in a span with the pod and its node.
pub(super) async fn bind(client: Client, bind: Bind) -> BindingOutcome {
    let span = tracing::info_span!(
        "bind",
        namespace = bind.pod.namespace,
        pod = bind.pod.name,
        node = bind.node,
    );
    write(client, bind).instrument(span).await
}

async fn write(client: Client, bind: Bind) -> BindingOutcome {
    let api: Api<Pod> = Api::namespaced(client, &bind.pod.namespace);
    let refused = match ask(&api, &bind).await {
        BindRequestResult::Bound => None,
        BindRequestResult::Refused(why) => Some(BindingRefused { why, found: None }),
        BindRequestResult::Unclear(why) => ask_after(&api, &bind, why).await,
    };
    match &refused {
        None => tracing::debug!("the pod is bound"),
        Some(refused) => tracing::debug!(why = refused.why, "the pod is not bound as planned"),
    }
    BindingOutcome { bind, refused }
}

/// Requests the binding; retries only where the API has said that it did not process the request.
async fn ask(api: &Api<Pod>, meant: &Bind) -> BindRequestResult {
    let (binding, params) = (&binding(meant), &PostParams::default());
    let answer = until_answered(|| async move {
        let answer: Result<Value, kube::Error> = api
            .create_subresource("binding", &meant.pod.name, params, binding)
            .await;
        let Err(error) = answer else {
            return AttemptResult::Given(BindRequestResult::Bound);
        };
        let message = error.to_string();
        match error {
            // Too many requests.
            kube::Error::Api(status) if status.code == 429 => AttemptResult::Lost(message),
            kube::Error::Api(status) if status.code != 409 && (400..500).contains(&status.code) => {
                AttemptResult::Given(BindRequestResult::Refused(message))
            }
            error if is_fenced(&error) => AttemptResult::Given(BindRequestResult::Refused(message)),
            _ => AttemptResult::Given(BindRequestResult::Unclear(message)),
        }
    })
    .await;
    answer.unwrap_or_else(|none| BindRequestResult::Refused(none.to_string()))
}

/// Reads the pod's state after an inconclusive answer.
async fn ask_after(api: &Api<Pod>, meant: &Bind, why: String) -> Option<BindingRefused> {
    let known = until_known(|| async move {
        match api.get_opt(&meant.pod.name).await {
            Ok(pod) => AttemptResult::Given(pod),
            Err(error) => AttemptResult::Lost(error.to_string()),
        }
    })
    .await;
    match known {
        Ok(Some(pod)) if is_bound_so(&pod, meant) => None,
        Ok(found) => Some(BindingRefused { why, found }),
        Err(error) => Some(BindingRefused {
            why: format!("{why}; the pod's current state cannot be read: {error}"),
            found: None,
        }),
    }
}

/// The pod as the API will show it once it is bound.
pub(super) fn bound(mut pod: Pod, bind: &Bind) -> Pod {
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(bind.node.clone());
    }
    if let Some(devices) = devices(bind) {
        let notes = pod.metadata.annotations.get_or_insert_default();
        notes.insert(DEVICES_ANNOTATION.to_owned(), devices);
    }
    pod
}

/// The value of the device annotation, if devices were chosen.
fn devices(bind: &Bind) -> Option<String> {
    let chosen = Some(&bind.devices).filter(|devices| !devices.is_empty());
    chosen.map(|devices| serde_json::to_string(devices).unwrap_or_default())
}

/// Whether the pod has a node.
pub(super) fn is_bound(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

fn is_bound_so(pod: &Pod, bind: &Bind) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let devices = chosen(pod.metadata.annotations.as_ref());
    pod.metadata.uid.as_deref() == Some(bind.pod.uid.as_str())
        && node == Some(bind.node.as_str())
        && devices == bind.devices
}

fn binding(bind: &Bind) -> Value {
    let mut metadata = json!({
        "name": bind.pod.name, "namespace": bind.pod.namespace, "uid": bind.pod.uid,
    });
    if let Some(devices) = devices(bind) {
        metadata["annotations"] = json!({ DEVICES_ANNOTATION: devices });
    }
    json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::{Request, Response};
    use kube::client::Body;
    use scheduler::{GroupRef, PodRef};

    use super::*;

    fn meant() -> Bind {
        let one = BTreeMap::from([("nvidia.com/gpu".to_owned(), vec!["GPU-1".to_owned()])]);
        Bind {
            pod: PodRef {
                namespace: "ns".into(),
                name: "p".into(),
                uid: "u".into(),
            },
            group: GroupRef {
                namespace: "ns".into(),
                name: "g".into(),
                lone: false,
            },
            node: "n1".into(),
            devices: BTreeMap::from([("main".to_owned(), one)]),
            volumes: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_binding_is_a_span_with_its_pod_and_node() {
        let service = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, kube::Error>(Response::new(Body::from(b"{}".to_vec())))
        });
        let client = Client::new(service, "ns");
        let (log, subscriber) = crate::test_log::subscriber();
        let collecting = tracing::subscriber::set_default(subscriber);
        let outcome = bind(client, meant()).await;
        drop(collecting);
        assert!(outcome.refused.is_none());
        let span = "bind{namespace=\"ns\" pod=\"p\" node=\"n1\"}";
        assert!(log.text().contains(span), "{}", log.text());
    }

    #[test]
    fn a_binding_names_the_pod_meant_and_carries_its_devices() {
        let binding = binding(&meant());
        assert_eq!(binding["metadata"]["uid"], "u");
        assert_eq!(binding["target"]["name"], "n1");
        assert_eq!(
            binding["metadata"]["annotations"]["muster.io/devices"],
            r#"{"main":{"nvidia.com/gpu":["GPU-1"]}}"#
        );
    }
}
