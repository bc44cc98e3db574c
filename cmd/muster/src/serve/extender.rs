//! kube-scheduler's extender protocol (`k8s.io/kube-scheduler/extender/v1`, 1.34) over plain HTTP: a stock
//! kube-scheduler asks Muster to filter nodes for a pod, to score them, to filter victims of a preemption and to bind
//! the pod. This module reads and writes the messages; the scheduler decides.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use controllers::scheduling::{NodeVictims as Gone, PodRef};
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

use super::health::{HealthState, NotLeading};
use super::open_port;

/// The largest request: some thousands of whole nodes, from a kube-scheduler that is not configured to send names
/// only (`nodeCacheCapable`).
const QUESTION_MAX: usize = 128 << 20;

/// The most connections: kube-scheduler asks about one pod at a time, and binds some tens at a time.
const CONNECTIONS_MAX: usize = 64;

/// After a preemption, kube-scheduler asks about the node as soon as it has seen its victims' deletion. Muster's
/// watch may lag behind; a refusal would make kube-scheduler preempt again on another node. So a refusal is delayed
/// by `CATCH_UP`, and the node is checked every `LOOK_AGAIN`.
const CATCH_UP: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A request about nodes. The field names are those of the Go type's JSON encoding.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ExtenderArgs {
    pod: Pod,
    #[serde(default)]
    nodes: Option<ExtenderNodeList>,
    #[serde(default)]
    node_names: Option<Vec<String>>,
}

/// A NodeList; whole nodes are returned unchanged.
#[derive(Deserialize, Serialize)]
struct ExtenderNodeList {
    #[serde(default)]
    metadata: Value,
    #[serde(default)]
    items: Vec<Value>,
}

fn name_of(node: &Value) -> String {
    let name = node["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

impl ExtenderArgs {
    fn names(&self) -> Vec<String> {
        match (&self.node_names, &self.nodes) {
            (Some(names), _) => names.clone(),
            (None, Some(nodes)) => nodes.items.iter().map(name_of).collect(),
            (None, None) => Vec::new(),
        }
    }
}

#[derive(Serialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Filtered {
    nodes: Option<ExtenderNodeList>,
    node_names: Option<Vec<String>>,
    failed_nodes: BTreeMap<String, String>,
    failed_and_unresolvable_nodes: BTreeMap<String, String>,
    error: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Preference {
    host: String,
    score: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ExtenderPreemptionArgs {
    pod: Pod,
    #[serde(default)]
    node_name_to_victims: Option<BTreeMap<String, ExtenderVictims<Pod>>>,
    #[serde(default)]
    node_name_to_meta_victims: Option<BTreeMap<String, ExtenderVictims<MetaPod>>>,
}

#[derive(Deserialize, Serialize)]
struct ExtenderVictims<P> {
    #[serde(rename = "Pods")]
    pods: Option<Vec<P>>,
    #[serde(rename = "NumPDBViolations", default)]
    violations: i64,
}

#[derive(Deserialize, Serialize, Clone)]
struct MetaPod {
    #[serde(rename = "UID")]
    uid: String,
}

impl ExtenderPreemptionArgs {
    /// The victims of each node by uid.
    fn victims(self) -> (Pod, BTreeMap<String, ExtenderVictims<MetaPod>>) {
        let whole = self.node_name_to_victims.into_iter().flatten();
        let whole = whole.map(|(node, victims)| {
            let pods = victims.pods.into_iter().flatten();
            let uids = pods.filter_map(|pod| pod.metadata.uid);
            let victims = ExtenderVictims {
                pods: Some(uids.map(|uid| MetaPod { uid }).collect()),
                violations: victims.violations,
            };
            (node, victims)
        });
        let meta = self.node_name_to_meta_victims.into_iter().flatten();
        (self.pod, meta.chain(whole).collect())
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Preempted {
    node_name_to_meta_victims: BTreeMap<String, ExtenderVictims<MetaPod>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ExtenderBindingArgs {
    pod_name: String,
    pod_namespace: String,
    #[serde(rename = "PodUID")]
    pod_uid: String,
    node: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ExtenderBindingResult {
    error: String,
}

/// This server cannot answer now: kube-scheduler retries the pod later.
struct NotNow(String);

impl IntoResponse for NotNow {
    fn into_response(self) -> Response {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", self.0)).into_response()
    }
}

impl From<NotLeading> for NotNow {
    fn from(reason: NotLeading) -> NotNow {
        NotNow(reason.to_string())
    }
}

fn listing() -> NotNow {
    NotNow("this server leads, and is still listing the cluster".to_owned())
}

async fn filter(
    Shared(state): Shared<Arc<HealthState>>,
    Json(question): Json<ExtenderArgs>,
) -> Result<Json<Filtered>, NotNow> {
    let (board, _) = state.leader()?;
    let names = question.names();
    let pod = &question.pod;
    let nominated = pod
        .status
        .as_ref()
        .and_then(|s| s.nominated_node_name.as_deref());
    let nominated = names
        .iter()
        .position(|name| Some(name.as_str()) == nominated);
    let asked = Instant::now();
    let places = loop {
        let places = board.extender_filter(pod.clone(), names.clone()).await;
        let places = places.ok_or_else(listing)?;
        let at = nominated.and_then(|at| places.get(at));
        let full = matches!(at, Some(Err(no)) if !no.lasting);
        if !full || asked.elapsed() >= CATCH_UP {
            break places;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    let mut answer = Filtered::default();
    let mut open = BTreeSet::new();
    for (name, place) in names.iter().zip(places) {
        match place {
            Ok(()) => {
                open.insert(name.clone());
            }
            Err(no) if no.lasting => {
                (answer.failed_and_unresolvable_nodes).insert(name.clone(), no.why);
            }
            Err(no) => {
                answer.failed_nodes.insert(name.clone(), no.why);
            }
        }
    }
    match question.nodes {
        Some(mut nodes) if question.node_names.is_none() => {
            nodes.items.retain(|node| open.contains(&name_of(node)));
            answer.nodes = Some(nodes);
        }
        _ => answer.node_names = Some(names.into_iter().filter(|n| open.contains(n)).collect()),
    }
    Ok(Json(answer))
}

async fn prioritize(
    Shared(state): Shared<Arc<HealthState>>,
    Json(question): Json<ExtenderArgs>,
) -> Result<Json<Vec<Preference>>, NotNow> {
    let (board, _) = state.leader()?;
    let names = question.names();
    let scores = board.extender_scores(question.pod, names.clone()).await;
    let scores = scores.ok_or_else(listing)?;
    let scored = names.into_iter().zip(scores);
    let list = scored.map(|(host, score)| Preference { host, score });
    Ok(Json(list.collect()))
}

async fn preempt(
    Shared(state): Shared<Arc<HealthState>>,
    Json(question): Json<ExtenderPreemptionArgs>,
) -> Result<Json<Preempted>, NotNow> {
    let (board, _) = state.leader()?;
    let (pod, mut victims) = question.victims();
    let gone: Vec<Gone> = (victims.iter())
        .map(|(node, victims)| {
            let pods = victims.pods.iter().flatten();
            (node.clone(), pods.map(|pod| pod.uid.clone()).collect())
        })
        .collect();
    let fits = board.extender_filter_without(pod, gone.clone()).await;
    let fits = fits.ok_or_else(listing)?;
    for ((node, _), fits) in gone.iter().zip(fits) {
        if !fits {
            victims.remove(node);
        }
    }
    Ok(Json(Preempted {
        node_name_to_meta_victims: victims,
    }))
}

async fn bind(
    Shared(state): Shared<Arc<HealthState>>,
    Json(asked): Json<ExtenderBindingArgs>,
) -> Result<Json<ExtenderBindingResult>, NotNow> {
    let (board, client) = state.leader()?;
    let pod = PodRef {
        namespace: asked.pod_namespace,
        name: asked.pod_name,
        uid: asked.pod_uid,
    };
    // A separate task survives the end of the connection; otherwise a device could stay allocated to a pod that was
    // never bound.
    let bound =
        tokio::spawn(async move { board.bind_for_extender(&client, pod, asked.node).await });
    let bound = bound.await.unwrap_or_else(|error| Err(error.into()));
    let error = bound.err().map(|error| error.to_string());
    let error = error.unwrap_or_default();
    if !error.is_empty() {
        tracing::warn!("kube-scheduler's binding: {error}");
    }
    Ok(Json(ExtenderBindingResult { error }))
}

/// Binds the listener for kube-scheduler.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = TcpListener::bind(address).await.with_context(|| {
        format!("--extender: {address} cannot be listened on; choose another address or port")
    })?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            "--extender: every client that reaches {address} can bind waiting pods; let only kube-scheduler reach it"
        );
    }
    println!(
        "kube-scheduler's extender: urlPrefix http://{}/",
        socket.local_addr()?
    );
    Ok(socket)
}

/// Serves requests until `stop`.
pub async fn serve(socket: TcpListener, state: Arc<HealthState>, stop: watch::Receiver<bool>) {
    open_port::serve(socket, router(state), CONNECTIONS_MAX, stop).await;
}

fn router(state: Arc<HealthState>) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/preempt", post(preempt))
        .route("/bind", post(bind))
        .layer(DefaultBodyLimit::max(QUESTION_MAX))
        .with_state(state)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use serde_json::json;
    use tower::ServiceExt;

    use super::super::health::ServerState;
    use super::*;

    #[test]
    fn messages_are_read_as_go_writes_them() {
        let asked =
            json!({"Pod": {"metadata": {"name": "p"}}, "Nodes": null, "NodeNames": ["a", "b"]});
        let question: ExtenderArgs = serde_json::from_value(asked).unwrap();
        assert_eq!(question.names(), ["a", "b"]);
        let nodes = json!({"metadata": {}, "items": [{"metadata": {"name": "c"}, "status": {}}]});
        let asked = json!({"Pod": {}, "Nodes": nodes, "NodeNames": null});
        let question: ExtenderArgs = serde_json::from_value(asked).unwrap();
        assert_eq!(question.names(), ["c"]);
        let asked = json!({"Pod": {}, "NodeNameToVictims": null, "NodeNameToMetaVictims":
            {"n": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}, "m": {"Pods": null, "NumPDBViolations": 0}}});
        let asked: ExtenderPreemptionArgs = serde_json::from_value(asked).unwrap();
        let (_, victims) = asked.victims();
        assert_eq!(victims["n"].violations, 1);
        assert_eq!(victims["n"].pods.as_ref().unwrap()[0].uid, "u");
        let answer = serde_json::to_value(Preempted {
            node_name_to_meta_victims: victims,
        });
        assert_eq!(
            answer.unwrap()["NodeNameToMetaVictims"]["n"]["Pods"][0]["UID"],
            "u"
        );
        let asked = json!({"Pod": {}, "NodeNameToVictims":
            {"n": {"Pods": [{"metadata": {"uid": "w"}}], "NumPDBViolations": 0}}});
        let asked: ExtenderPreemptionArgs = serde_json::from_value(asked).unwrap();
        assert_eq!(asked.victims().1["n"].pods.as_ref().unwrap()[0].uid, "w");
    }

    #[tokio::test]
    async fn a_server_that_stands_by_says_who_leads_and_kube_scheduler_tries_again() {
        let state = Arc::new(HealthState::new(Vec::new()));
        let (_leader, follows) = watch::channel("other_1".to_owned());
        state.set(ServerState::Follows(follows));
        let asked = json!({"Pod": {}, "NodeNames": ["a"]}).to_string();
        let request = Request::post("/filter").header("content-type", "application/json");
        let request = request.body(Body::from(asked)).unwrap();
        let answer = router(state).oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let said = axum::body::to_bytes(answer.into_body(), 1024)
            .await
            .unwrap();
        assert_eq!(said, "this server is on standby: other_1 leads\n");
    }

    fn questions() -> Vec<Value> {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"nominatedNodeName": "a"},
        });
        let nodes = json!({"metadata": {}, "items": [{"metadata": {"name": "a"}, "status": {}}]});
        vec![
            json!({"Pod": pod, "Nodes": nodes, "NodeNames": null}),
            json!({"Pod": pod, "Nodes": null, "NodeNames": ["a", "b"]}),
            json!({"Pod": pod, "NodeNameToVictims": {"a": {"Pods": [pod], "NumPDBViolations": 1}},
                "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": -1}}}),
            json!({"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "a"}),
        ]
    }

    proptest::proptest! {
        #[test]
        fn no_question_of_kube_scheduler_panics(
            question in crate::documents::changed(questions()),
            damage in crate::documents::damage(),
        ) {
            let bytes = crate::documents::damaged(question.to_string().into_bytes(), &damage);
            if let Ok(question) = serde_json::from_slice::<ExtenderArgs>(&bytes) {
                let names = question.names();
                if let Some(nodes) = &question.nodes {
                    // Whole nodes are answered as they came.
                    let again = serde_json::to_value(nodes).unwrap();
                    let again: ExtenderNodeList = serde_json::from_value(again).unwrap();
                    proptest::prop_assert_eq!(&again.items, &nodes.items);
                    proptest::prop_assert!(question.node_names.is_some() || names.len() == nodes.items.len());
                }
            }
            if let Ok(question) = serde_json::from_slice::<ExtenderPreemptionArgs>(&bytes) {
                let (_, victims) = question.victims();
                let answer = Preempted { node_name_to_meta_victims: victims };
                let answer = serde_json::to_value(&answer).unwrap();
                proptest::prop_assert!(answer["NodeNameToMetaVictims"].is_object());
            }
            let _ = serde_json::from_slice::<ExtenderBindingArgs>(&bytes);
        }
    }

    #[tokio::test]
    async fn no_body_of_a_question_panics() {
        let state = Arc::new(HealthState::new(Vec::new()));
        for path in ["/filter", "/prioritize", "/preempt", "/bind"] {
            for body in [
                "",
                "{",
                "[]",
                "null",
                "\"x\"",
                "{\"Pod\": {\"metadata\": []}}",
            ] {
                let request = Request::post(path).header("content-type", "application/json");
                let request = request.body(Body::from(body)).unwrap();
                let answer = router(state.clone()).oneshot(request).await.unwrap();
                assert!(answer.status().is_client_error(), "{path} {body}");
            }
            let deep = "[".repeat(1 << 20);
            let request = Request::post(path).header("content-type", "application/json");
            let answer = router(state.clone()).oneshot(request.body(Body::from(deep)).unwrap());
            assert!(answer.await.unwrap().status().is_client_error(), "{path}");
        }
    }
}
