//! The scheduling decisions about a job, or about a gang by its own name: the records of the
//! scheduling controllers, the oldest first. Also answers for deleted jobs.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{Path, State};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use resources::access::Caller;
use resources::leader_worker_set;
use resources::names;
use resources::record::DecisionRecord;
use serde::Serialize;
use serde_json::{Value, json};

use super::explain::job_kind;
use crate::other_kinds::SETS;
use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// A record and its gang.
#[derive(Serialize)]
pub struct HistoryLine {
    /// The PodGroup's name, or the pod's for a pod without one.
    pub group: String,
    /// The decision.
    #[serde(flatten)]
    pub record: DecisionRecord,
}

/// Answers `GET /api/v1/jobs/{namespace}/{kind}/{name}/history`.
pub async fn of_job(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path((namespace, plural, name)): Path<(String, String, String)>,
) -> Result<Json<Value>, Problem> {
    job_kind(&plural)?;
    let lines = lines(&portal, &caller, &namespace, &plural, &name).await?;
    Ok(Json(json!({ "items": lines })))
}

/// Answers `GET /api/v1/gangs/{namespace}/{name}/history`.
pub async fn of_gang(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Value>, Problem> {
    may(&portal, &caller, &namespace)?;
    let lines = of(&portal, &namespace, &name);
    Ok(Json(json!({ "items": lines })))
}

/// The records of a job's gang, and of its pods without a gang; of a LeaderWorkerSet, those of the gangs of its groups that
/// exist.
pub async fn lines(
    portal: &Portal,
    caller: &Caller,
    namespace: &str,
    plural: &str,
    name: &str,
) -> Result<Vec<HistoryLine>, Problem> {
    may(portal, caller, namespace)?;
    let is_set = plural == SETS;
    let mut lines = match is_set {
        true => Vec::new(),
        false => of(portal, namespace, name),
    };
    let label = match is_set {
        true => leader_worker_set::NAME,
        false => names::BATCH_JOB_NAME,
    };
    let pods: Api<Pod> = Api::namespaced(portal.client(caller), namespace);
    let selector = ListParams::default().labels(&format!("{label}={name}"));
    let pods = pods.list(&selector).await?.items.into_iter();
    let gangs: BTreeSet<String> = pods
        .filter_map(|pod| match is_set {
            true => leader_worker_set::gang_of(pod.metadata.labels.as_ref()),
            false => pod.metadata.name,
        })
        .collect();
    for gang in gangs {
        lines.extend(of(portal, namespace, &gang));
    }
    lines.sort_by_key(|line| line.record.at);
    Ok(lines)
}

fn of(portal: &Portal, namespace: &str, group: &str) -> Vec<HistoryLine> {
    let records = (portal.hooks.history)(namespace, group).into_iter();
    let line = |record| HistoryLine {
        group: group.to_owned(),
        record,
    };
    records.map(line).collect()
}

/// Refuses callers that may not read gangs in a namespace.
pub fn may(portal: &Portal, caller: &Caller, namespace: &str) -> Result<(), Problem> {
    match portal.may_see(caller, "scheduling.volcano.sh", "podgroups", namespace) {
        true => Ok(()),
        false => Err(Problem::forbidden(format!(
            "user {:?} may not see decisions in namespace {namespace:?}; an administrator can bind a role that permits it",
            caller.user
        ))),
    }
}
