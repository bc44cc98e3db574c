//! Asks the clusters of RayServices about Ray Serve, through the API's subresource `pods/proxy`: submits configurations to
//! the dashboard of the head, reads the state of the applications, and checks the proxies, by [`BackgroundQuestions`]. It
//! holds no state that must outlive the server.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use http::Method;
use kube::Client;
use serde_json::Value;
use workloads::rayservice::{ServeObservation, ServeRequest, pods_with_proxies};

use super::ObjectKey;
use super::background_questions::BackgroundQuestions;
use super::pod_call::{ANSWER, PodCallError, call_pod};

/// How many clusters are asked at once.
const CLUSTERS_AT_ONCE: usize = 16;
/// How many proxies of one cluster are checked at once. All clusters together keep within a user's connections to pods.
const PROXIES_AT_ONCE: usize = 4;
/// The wait before a configuration that Ray did not accept is submitted again.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);
/// How long Ray may take to accept a configuration: it starts its controller and a proxy first.
const SUBMIT: Duration = Duration::from_secs(120);
/// How long a proxy may take to answer.
const PROXY: Duration = Duration::from_secs(5);
/// How long all questions of one round may take.
const ROUND: Duration = Duration::from_secs(300);
/// The answers of all clusters. Clones share one state.
#[derive(Clone)]
pub(crate) struct ServeMonitor {
    client: Client,
    questions: BackgroundQuestions<ServeAnswer>,
}

/// What one cluster answered.
#[derive(Clone)]
struct ServeAnswer {
    observation: ServeObservation,
    /// When a configuration was not accepted last.
    refused: Option<Instant>,
}

impl ServeMonitor {
    pub(crate) fn new(client: Client) -> ServeMonitor {
        ServeMonitor {
            client,
            questions: BackgroundQuestions::new(CLUSTERS_AT_ONCE),
        }
    }

    /// What a cluster answered last.
    pub(crate) fn last(&self, cluster: &ObjectKey) -> Option<ServeObservation> {
        Some(self.questions.last(cluster)?.observation)
    }

    /// Asks a cluster in the background, unless it is being asked or was asked just now.
    pub(crate) fn ask(&self, namespace: &str, mut request: ServeRequest) {
        let key = (namespace.to_owned(), request.cluster.clone());
        let (client, namespace) = (self.client.clone(), namespace.to_owned());
        self.questions.ask(&key, |before| {
            let refused = before.as_ref().and_then(|before| before.refused);
            let before = before.map(|before| before.observation);
            let before = before.filter(|before| before.head_run == request.head_run);
            let repeats = before.as_ref().is_some_and(|before| {
                let hash = before.submission.as_ref().map(|(hash, _)| hash);
                hash == request.submit.as_ref().map(|(hash, _)| hash)
            });
            if repeats && refused.is_some_and(|at| at.elapsed() < AFTER_REFUSAL) {
                request.submit = None;
            }
            let submission = before.and_then(|before| before.submission);
            async move { asked(&client, &namespace, request, submission, refused).await }
        });
    }
}

/// Asks a cluster within the time for one round. `refused`: when a configuration was not accepted last.
async fn asked(
    client: &Client,
    namespace: &str,
    request: ServeRequest,
    submission: Option<(String, Result<(), String>)>,
    refused: Option<Instant>,
) -> ServeAnswer {
    let (head_run, submits) = (request.head_run.clone(), request.submit.is_some());
    let round = round(client, namespace, request, submission);
    let observation = match tokio::time::timeout(ROUND, round).await {
        Ok(observation) => observation,
        Err(_) => ServeObservation {
            head_run,
            answer: Err(format!("it took more than {} s", ROUND.as_secs())),
            healthy: BTreeSet::new(),
            submission: None,
        },
    };
    let refused = match submits {
        true => matches!(observation.submission, Some((_, Err(_)))).then(Instant::now),
        false => refused,
    };
    ServeAnswer {
        observation,
        refused,
    }
}

/// Submits the configuration, if there is one, and reads the state that follows.
async fn round(
    client: &Client,
    namespace: &str,
    request: ServeRequest,
    submission: Option<(String, Result<(), String>)>,
) -> ServeObservation {
    let head = format!("{}:{}", request.head_pod, request.dashboard);
    let path = "api/serve/applications/";
    let submission = match &request.submit {
        None => submission,
        Some((hash, config)) => {
            let body = serde_json::to_vec(config).unwrap_or_default();
            let call = (Method::PUT, head.as_str(), path);
            let result = call_pod(client, namespace, call, body, SUBMIT).await;
            let result = result.map(drop).map_err(|error| error.to_string());
            Some((hash.clone(), result))
        }
    };
    let call = (Method::GET, head.as_str(), path);
    let answer = call_pod(client, namespace, call, Vec::new(), ANSWER).await;
    let answer =
        answer.and_then(|bytes| serde_json::from_slice(&bytes).map_err(PodCallError::NoJson));
    let answer: Result<Value, String> = answer.map_err(|error| error.to_string());
    let mut healthy = BTreeSet::new();
    if let Ok(answer) = &answer {
        let mut pods = request.pods;
        let with_proxy = pods_with_proxies(answer);
        pods.retain(|name, _| with_proxy.contains(name));
        let checks = pods.into_iter().map(|(name, uid)| {
            let pod = format!("{name}:{}", request.http);
            async move {
                let call = (Method::GET, pod.as_str(), "-/healthz");
                let checked = call_pod(client, namespace, call, Vec::new(), PROXY).await;
                checked.is_ok().then_some(uid)
            }
        });
        let mut checks = stream::iter(checks).buffer_unordered(PROXIES_AT_ONCE);
        while let Some(checked) = checks.next().await {
            healthy.extend(checked);
        }
    }
    ServeObservation {
        head_run: request.head_run,
        answer,
        healthy,
        submission,
    }
}
