//! Asks the clusters of RayServices about Ray Serve, through the API's subresource `pods/proxy`: submits configurations to
//! the dashboard of the head, reads the state of the applications, and checks the proxies. A cluster is asked when its
//! service is decided on, at most once a second and not twice at a time; the answer is kept for the next decision. It
//! holds no state that must outlive the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _};
use http::Method;
use kube::Client;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;
use workloads::rayservice::{ServeObservation, ServeRequest, pods_with_proxies};

use super::ObjectKey;
use super::pod_call::{ANSWER, PodCallError, call_pod};

/// How many clusters are asked at once.
const CLUSTERS_AT_ONCE: usize = 16;
/// How many proxies of one cluster are checked at once. All clusters together keep within a user's connections to pods.
const PROXIES_AT_ONCE: usize = 4;
/// The shortest time between two questions to one cluster.
const BETWEEN: Duration = Duration::from_secs(1);
/// The wait before a configuration that Ray did not accept is submitted again.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);
/// How long Ray may take to accept a configuration: it starts its controller and a proxy first.
const SUBMIT: Duration = Duration::from_secs(120);
/// How long a proxy may take to answer.
const PROXY: Duration = Duration::from_secs(5);
/// How long all questions of one round may take.
const ROUND: Duration = Duration::from_secs(300);
/// Answers of clusters that were not asked for so long are forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// The answers of all clusters. Clones share one state.
#[derive(Clone)]
pub(crate) struct ServeMonitor {
    client: Client,
    places: Arc<Semaphore>,
    known: Arc<Mutex<BTreeMap<ObjectKey, KnownCluster>>>,
}

/// What is known of one cluster.
struct KnownCluster {
    observation: Option<ServeObservation>,
    /// When it was asked last.
    asked: Instant,
    /// Whether it is being asked.
    asking: bool,
    /// When a configuration was not accepted last.
    refused: Option<Instant>,
}

impl ServeMonitor {
    pub(crate) fn new(client: Client) -> ServeMonitor {
        ServeMonitor {
            client,
            places: Arc::new(Semaphore::new(CLUSTERS_AT_ONCE)),
            known: Arc::default(),
        }
    }

    /// What a cluster answered last.
    pub(crate) fn last(&self, cluster: &ObjectKey) -> Option<ServeObservation> {
        self.known.lock().get(cluster)?.observation.clone()
    }

    /// Asks a cluster in the background, unless it is being asked or was asked just now.
    pub(crate) fn ask(&self, namespace: &str, mut request: ServeRequest) {
        let key = (namespace.to_owned(), request.cluster.clone());
        let now = Instant::now();
        let before = {
            let mut all = self.known.lock();
            all.retain(|_, known| known.asking || known.asked.elapsed() < FORGET);
            let known = all.get(&key);
            if known.is_some_and(|known| known.asking || known.asked.elapsed() < BETWEEN) {
                return;
            }
            let refused = known.and_then(|known| known.refused);
            let before = known.and_then(|known| known.observation.clone());
            let before = before.filter(|before| before.head_run == request.head_run);
            let repeats = before.as_ref().is_some_and(|before| {
                let hash = before.submission.as_ref().map(|(hash, _)| hash);
                hash == request.submit.as_ref().map(|(hash, _)| hash)
            });
            if repeats && refused.is_some_and(|at| at.elapsed() < AFTER_REFUSAL) {
                request.submit = None;
            }
            let observation = known.and_then(|known| known.observation.clone());
            let asked = KnownCluster {
                observation,
                asked: now,
                asking: true,
                refused,
            };
            all.insert(key.clone(), asked);
            before
        };
        let asking = Asking {
            monitor: self.clone(),
            key,
        };
        tokio::spawn(async move {
            let _place = asking.monitor.places.acquire().await;
            let (client, namespace) = (&asking.monitor.client, asking.key.0.as_str());
            let (head_run, submits) = (request.head_run.clone(), request.submit.is_some());
            let submission = before.and_then(|before| before.submission);
            let asked = round(client, namespace, request, submission);
            let observation = match tokio::time::timeout(ROUND, asked).await {
                Ok(observation) => observation,
                Err(_) => ServeObservation {
                    head_run,
                    answer: Err(format!("it took more than {} s", ROUND.as_secs())),
                    healthy: BTreeSet::new(),
                    submission: None,
                },
            };
            asking.keep(observation, submits);
        });
    }
}

/// A cluster that is being asked, until this is dropped.
struct Asking {
    monitor: ServeMonitor,
    key: ObjectKey,
}

impl Asking {
    fn keep(&self, observation: ServeObservation, submits: bool) {
        if let Some(known) = self.monitor.known.lock().get_mut(&self.key) {
            let refused = matches!(observation.submission, Some((_, Err(_))));
            if submits {
                known.refused = refused.then(Instant::now);
            }
            known.observation = Some(observation);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(known) = self.monitor.known.lock().get_mut(&self.key) {
            known.asking = false;
        }
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
