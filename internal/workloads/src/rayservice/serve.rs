//! What a RayService's cluster does with its applications: whether Ray has the configuration, whether all applications
//! run, and which pods take requests.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use resources::kinds::{
    RayCluster, RayServiceClusterStatus, ServeApplicationStatus, SubmittedConfig,
};
use resources::names;
use serde_json::{Value, json};

use super::plan::ParsedRayService;
use crate::action::{Action, DependentKind, EventNote};
use crate::pod_facts::{self, PodPhase};
use crate::ray::HEAD_POD_READY;

/// The longest message of Ray's in a status, in characters.
const MESSAGE_MAX: usize = 500;
/// The longest part of a message of Ray's in a sentence, in characters.
const CLAUSE_MAX: usize = 300;
/// The most applications, and deployments of one, that a status lists.
const LISTED_MAX: usize = 200;

/// What a cluster answered when it was asked last.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeObservation {
    /// The run of the head that was asked.
    pub head_run: String,
    /// The answer of Ray's dashboard to `GET /api/serve/applications/`, or why there was none.
    pub answer: Result<Value, String>,
    /// The uids of the pods whose proxies are healthy.
    pub healthy: BTreeSet<String>,
    /// The hash of the last configuration that was submitted to this run of the head, and Ray's refusal.
    pub submission: Option<(String, Result<(), String>)>,
}

/// What a cluster is to be asked next.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeRequest {
    /// The cluster.
    pub cluster: String,
    /// The pod of its head.
    pub head_pod: String,
    /// The run of its head.
    pub head_run: String,
    /// The dashboard's port at the head.
    pub dashboard: u16,
    /// The port of HTTP at every pod with a proxy.
    pub http: u16,
    /// The cluster's pods by name, with their uids.
    pub pods: BTreeMap<String, String>,
    /// The configuration to submit before the state is read, with its hash.
    pub submit: Option<(String, Value)>,
}

/// What follows for a cluster from what it answered.
pub(crate) struct ServeState {
    /// True if all applications of the desired configuration run.
    pub(crate) ready: bool,
    /// Why not, in one sentence.
    pub(crate) cause: String,
    pub(crate) request: Option<ServeRequest>,
    pub(crate) events: Vec<EventNote>,
}

impl ServeState {
    fn waits(cause: String, request: Option<ServeRequest>) -> ServeState {
        ServeState {
            ready: false,
            cause,
            request,
            events: Vec::new(),
        }
    }
}

/// Judges a cluster. `submits` is false for a cluster that another one is about to replace.
pub(crate) fn judge(
    service: &ParsedRayService<'_>,
    cluster: &RayCluster,
    pods: &[&Pod],
    observation: Option<&ServeObservation>,
    submits: bool,
    record: &mut RayServiceClusterStatus,
) -> ServeState {
    record.ray_cluster_status.clone_from(&cluster.status);
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let desired = service.config_for(cluster, head_shares_address(pods));
    let Some(mut request) = request(service, cluster, pods) else {
        return ServeState::waits(why_not_ready(cluster), None);
    };
    let observation = observation.filter(|observation| observation.head_run == request.head_run);
    let submission = observation.and_then(|observation| observation.submission.as_ref());
    let submission = submission.filter(|(hash, _)| *hash == desired.hash);
    let mut events = Vec::new();
    if let Some((hash, Ok(()))) = submission {
        let accepted = SubmittedConfig {
            hash: hash.clone(),
            head_run: request.head_run.clone(),
        };
        if record.submitted_config.as_ref() != Some(&accepted) {
            record.submitted_config = Some(accepted);
            let text = format!("RayCluster {name} has accepted serveConfigV2.");
            events.push(EventNote::normal("UpdatedServeApplications", text));
        }
    }
    let has_config = record.submitted_config.as_ref().is_some_and(|known| {
        (known.hash.as_str(), known.head_run.as_str())
            == (desired.hash.as_str(), request.head_run.as_str())
    });
    let answer = observation.map(|observation| &observation.answer);
    let applications = answer.and_then(|answer| answer.as_ref().ok().map(applications));
    let lost = applications.as_ref().is_some_and(BTreeMap::is_empty);
    if let Some(applications) = &applications {
        record.application_statuses.clone_from(applications);
    }
    if submits && (!has_config || lost) {
        let cause = match submission {
            Some((_, Err(refusal))) => {
                format!(
                    "RayCluster {name} did not accept serveConfigV2: {}.",
                    short(refusal)
                )
            }
            _ => format!("serveConfigV2 is being submitted to RayCluster {name}."),
        };
        request.submit = Some((desired.hash, desired.body));
        let mut state = ServeState::waits(cause, Some(request));
        state.events = events;
        return state;
    }
    let (ready, cause) = match answer {
        None => (
            false,
            format!("RayCluster {name} is asked for its applications."),
        ),
        Some(Err(error)) => {
            let cause = format!(
                "The dashboard of RayCluster {name} does not answer: {}.",
                short(error)
            );
            (false, cause)
        }
        Some(Ok(_)) => match record.application_statuses.iter().find(not_running) {
            Some((application, status)) => (false, why_not_running(name, application, status)),
            None => (!lost, format!("RayCluster {name} has no application.")),
        },
    };
    ServeState {
        ready,
        cause: if ready { String::new() } else { cause },
        request: Some(request),
        events,
    }
}

fn request(
    service: &ParsedRayService<'_>,
    cluster: &RayCluster,
    pods: &[&Pod],
) -> Option<ServeRequest> {
    let status = cluster.status.as_ref()?;
    let mut conditions = status.conditions.iter();
    let head_ready = conditions.any(|one| one.type_ == HEAD_POD_READY && one.status == "True");
    let head = status.head.as_ref().filter(|_| head_ready)?;
    let running = pods
        .iter()
        .filter(|pod| PodPhase::of(pod) == PodPhase::Running);
    let named = running.map(|pod| {
        (
            pod_facts::name(pod).to_owned(),
            pod_facts::uid(pod).to_owned(),
        )
    });
    Some(ServeRequest {
        cluster: cluster.metadata.name.clone()?,
        head_pod: head.pod_name.clone()?,
        head_run: head.run.clone()?,
        dashboard: status.endpoints.as_ref()?.get("dashboard")?.parse().ok()?,
        http: service.http_port(cluster),
        pods: named.collect(),
        submit: None,
    })
}

fn why_not_ready(cluster: &RayCluster) -> String {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let mut unmet = conditions.filter(|one| one.status == "False" && !one.message.is_empty());
    let why = unmet.next().map_or("", |one| one.message.as_str());
    format!("RayCluster {name} is not ready. {why}")
        .trim_end()
        .to_owned()
}

/// The applications in an answer of the dashboard.
fn applications(answer: &Value) -> BTreeMap<String, ServeApplicationStatus> {
    let all = answer["applications"].as_object();
    let of = |(name, application): (&String, &Value)| {
        let deployments = application["deployments"].as_object().into_iter().flatten();
        let deployments = deployments.take(LISTED_MAX).map(|(name, deployment)| {
            let status = json!({"status": deployment["status"], "message": message(deployment)});
            (
                name.clone(),
                serde_json::from_value(status).unwrap_or_default(),
            )
        });
        let name = match name.as_str() {
            "" => "default",
            name => name,
        };
        let status = ServeApplicationStatus {
            serve_deployment_statuses: deployments.collect(),
            status: application["status"].as_str().map(str::to_owned),
            message: message(application),
        };
        (name.to_owned(), status)
    };
    all.into_iter().flatten().take(LISTED_MAX).map(of).collect()
}

fn message(answer: &Value) -> Option<String> {
    let text = answer["message"].as_str().unwrap_or_default().trim();
    let text: String = match text.char_indices().rev().nth(MESSAGE_MAX - 1) {
        // The end of a traceback is its cause.
        Some((at, _)) => text.get(at..).unwrap_or_default().to_owned(),
        None => text.to_owned(),
    };
    Some(text).filter(|text| !text.is_empty())
}

fn not_running((_, status): &(&String, &ServeApplicationStatus)) -> bool {
    status.status.as_deref() != Some("RUNNING")
}

fn why_not_running(cluster: &str, name: &str, status: &ServeApplicationStatus) -> String {
    let own = status.message.as_deref();
    let mut deployments = status.serve_deployment_statuses.iter();
    let of_deployment = deployments.find_map(|(name, deployment)| {
        let unhealthy = deployment.status.as_deref() != Some("HEALTHY");
        let message = deployment.message.as_deref().filter(|_| unhealthy)?;
        Some(format!("deployment {name}: {}", last_line(message)))
    });
    let state = status.status.as_deref().unwrap_or("NOT_STARTED");
    let why = of_deployment.or_else(|| own.map(last_line));
    let what = match state {
        "DEPLOY_FAILED" => format!("Application {name} failed to deploy on RayCluster {cluster}"),
        state => format!("Application {name} is {state} on RayCluster {cluster}"),
    };
    match why {
        Some(why) if !why.is_empty() => format!("{what}: {why}."),
        _ => format!("{what}."),
    }
}

/// The last line of a traceback says what went wrong.
fn last_line(message: &str) -> String {
    let mut lines = message.lines().map(str::trim);
    let line = lines.rfind(|line| !line.is_empty());
    short(line.unwrap_or_default())
}

/// A message of several lines as a part of a sentence.
fn short(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    pod_facts::clause(&words.join(" "), CLAUSE_MAX)
}

/// The changes of the label by which the serve Service finds a cluster's pods.
pub(crate) fn label(
    service: &ParsedRayService<'_>,
    pods: &[&Pod],
    observation: Option<&ServeObservation>,
) -> Vec<Action> {
    let Some(observation) = observation else {
        return Vec::new();
    };
    let changes = pods.iter().filter(|pod| !pod_facts::is_leaving(pod));
    let change = |pod: &&Pod| {
        let uid = pod_facts::uid(pod);
        let excluded = is_head(pod) && service.excludes_head();
        // A dashboard that does not answer says nothing about the proxies.
        if observation.answer.is_err() && !excluded {
            return None;
        }
        let wanted = match observation.healthy.contains(uid) && !excluded {
            true => "true",
            false => "false",
        };
        let known = pod.metadata.labels.as_ref();
        let known = known.and_then(|labels| labels.get(names::RAY_SERVE));
        (known.map(String::as_str) != Some(wanted)).then(|| Action::Change {
            kind: DependentKind::Pod,
            name: pod_facts::name(pod).to_owned(),
            uid: uid.to_owned(),
            patch: json!({"metadata": {"labels": {names::RAY_SERVE: wanted}}}),
        })
    };
    changes.filter_map(change).collect()
}

/// Whether the head's pod has its node's address, as far as is known.
fn head_shares_address(pods: &[&Pod]) -> bool {
    let head = pods.iter().find(|pod| is_head(pod));
    let status = head.and_then(|pod| pod.status.as_ref());
    status.is_none_or(|status| status.pod_ip.is_none() || status.pod_ip == status.host_ip)
}

fn is_head(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(names::RAY_NODE_TYPE))
        .is_some_and(|type_| type_ == "head")
}

/// How many of a cluster's pods get requests of the serve Service.
pub(crate) fn endpoints(pods: &[&Pod]) -> usize {
    let serves = |pod: &&&Pod| {
        let labels = pod.metadata.labels.as_ref();
        let labelled = labels.and_then(|labels| labels.get(names::RAY_SERVE));
        labelled.is_some_and(|value| value == "true")
            && PodPhase::of(pod) == PodPhase::Running
            && pod_facts::is_ready(pod)
            && !pod_facts::is_leaving(pod)
    };
    pods.iter().filter(serves).count()
}

/// Whether a cluster's applications all ran when it answered last, so that it may have got requests.
pub(crate) fn may_serve(record: &RayServiceClusterStatus) -> bool {
    let all = &record.application_statuses;
    !all.is_empty() && !all.iter().any(|one| not_running(&one))
}

/// The names of the pods that have a proxy of Ray Serve which Ray takes for healthy, by an answer of the dashboard.
#[must_use]
pub fn pods_with_proxies(answer: &Value) -> BTreeSet<String> {
    let proxies = answer["proxies"].as_object().into_iter().flatten();
    let healthy = proxies.filter(|(_, proxy)| proxy["status"] == "HEALTHY");
    let named = healthy.filter_map(|(_, proxy)| proxy["node_instance_id"].as_str());
    named.map(str::to_owned).collect()
}
