//! Writes bindings: POST, with the devices chosen, until the API has said yes or no. An
//! answer that got lost is asked after, so that no pod is thought unbound that is bound.

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use resources::devices::DEVICES_ANNOTATION;
use scheduler::Bind;
use serde_json::{Value, json};

use super::asking::{Answer, until_answered};

/// How a binding ended.
pub(super) struct Outcome {
    pub(super) bind: Bind,
    /// The pod is told by an event of its own.
    pub(super) told: bool,
    /// What the API said against it.
    pub(super) refused: Option<String>,
}

/// Binds one pod.
pub(super) async fn bind(client: Client, bind: Bind, told: bool) -> Outcome {
    let api: Api<Pod> = Api::namespaced(client, &bind.pod.namespace);
    let binding = binding(&bind);
    let (params, meant) = (PostParams::default(), &bind);
    let (api, binding, params) = (&api, &binding, &params);
    let refused = until_answered(|| async move {
        let answer: Result<Value, kube::Error> = api
            .create_subresource("binding", &meant.pod.name, params, binding)
            .await;
        let Err(error) = answer else {
            return Answer::Yes;
        };
        let said = error.to_string();
        match error {
            // Bound already: by us, if an earlier answer got lost.
            kube::Error::Api(status) if status.code == 409 => {
                match api.get(&meant.pod.name).await {
                    Ok(pod) if is_bound_so(&pod, meant) => Answer::Yes,
                    _ => Answer::No(said),
                }
            }
            kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
                Answer::No(said)
            }
            _ => Answer::Lost(said),
        }
    })
    .await;
    Outcome {
        bind,
        told,
        refused,
    }
}

/// The pod as the API will tell it once it is bound so.
pub(super) fn bound(mut pod: Pod, bind: &Bind) -> Pod {
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(bind.node.clone());
    }
    if !bind.devices.is_empty() {
        let devices = serde_json::to_string(&bind.devices).unwrap_or_default();
        let notes = pod.metadata.annotations.get_or_insert_default();
        notes.insert(DEVICES_ANNOTATION.to_owned(), devices);
    }
    pod
}

fn is_bound_so(pod: &Pod, bind: &Bind) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    pod.metadata.uid.as_deref() == Some(bind.pod.uid.as_str()) && node == Some(bind.node.as_str())
}

fn binding(bind: &Bind) -> Value {
    let mut metadata = json!({
        "name": bind.pod.name, "namespace": bind.pod.namespace, "uid": bind.pod.uid,
    });
    if !bind.devices.is_empty() {
        let devices = serde_json::to_string(&bind.devices).unwrap_or_default();
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

    use scheduler::{GroupRef, PodRef};

    use super::*;

    #[test]
    fn a_binding_names_the_pod_meant_and_carries_its_devices() {
        let one = BTreeMap::from([("nvidia.com/gpu".to_owned(), vec!["GPU-1".to_owned()])]);
        let bind = Bind {
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
        };
        let binding = binding(&bind);
        assert_eq!(binding["metadata"]["uid"], "u");
        assert_eq!(binding["target"]["name"], "n1");
        assert_eq!(
            binding["metadata"]["annotations"]["muster.io/devices"],
            r#"{"main":{"nvidia.com/gpu":["GPU-1"]}}"#
        );
    }
}
