//! Owns `POST pods/NAME/eviction`: a deletion that records the reason on the pod and respects every
//! PodDisruptionBudget. If a namespace has a budget, evictions of its pods run one after another,
//! so that each sees the effect of the previous one.

use std::collections::BTreeMap;

use axum::body::Body;
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use resources::budget::{BudgetCounts, BudgetedPod, desired_healthy, is_about};
use resources::names::{DISRUPTION_TARGET, EVICTION_REASON, PREEMPTION_BY_SCHEDULER};
use resources::{registry, times};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::call::Call;
use crate::delete_options::DeleteOptions;
use crate::rewrite::{RewriteDecision, rewrite};
use crate::status::Failure;
use crate::{decode, delete, fields, object, request, respond};

/// The most characters of a reason that an eviction brings.
const CAUSE_MAX: usize = 1024;

pub(crate) async fn create(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let sent = decode::object(&request::read(body).await?, format)?.value;
    fields::typed(
        &call.server,
        "io.k8s.api.policy.v1.Eviction",
        "Eviction",
        &sent,
    )?;
    let name = object::name(&sent);
    if !name.is_empty() && name != call.object_name() {
        return Err(Failure::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let options = DeleteOptions::of_value(&sent["deleteOptions"])?;
    let dry = call.dry(options.dry_run);
    let (reason, message) = cause(&sent, call.caller.is_component());
    let now = times::seconds(call.server.now());
    let protected = budgets(call)?;
    let _turn = match protected.is_empty() {
        true => None,
        false => Some(call.server.0.evictions.lock().await),
    };
    if !protected.is_empty() {
        check(call, &protected)?;
    }
    rewrite(&dry, |live| {
        if object::deleting(live)
            || matches!(
                live["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            )
        {
            return Ok(RewriteDecision::Keep);
        }
        let mut next = live.clone();
        let condition = json!({"status": "True", "reason": reason, "message": message});
        object::set_condition(&mut next, DISRUPTION_TARGET, condition, &now);
        Ok(if next == *live {
            RewriteDecision::Keep
        } else {
            RewriteDecision::Put(Box::new(next))
        })
    })
    .await?;
    delete::delete_one(&dry, call.object_name(), call.key(), &options).await?;
    let mut response = respond::json(&json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    }));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// The reason and message of the pod's condition: the scheduler's, if it is a component of Muster that asks and its
/// request names it, else Kubernetes'. From others the annotation is ignored: what the platform did is not charged to a
/// job, and no user may claim that for an eviction.
fn cause(eviction: &Value, component: bool) -> (&'static str, String) {
    let reason = eviction["metadata"]["annotations"][EVICTION_REASON].as_str();
    match reason {
        Some(reason) if component && !reason.is_empty() => (
            PREEMPTION_BY_SCHEDULER,
            reason.chars().take(CAUSE_MAX).collect(),
        ),
        _ => ("EvictionByEvictionAPI", "Eviction API: evicting".to_owned()),
    }
}

/// The budgets of the pod's namespace.
fn budgets(call: &Call) -> Result<Vec<PodDisruptionBudget>, Failure> {
    let Some(kind) = registry::by_kind("policy", "v1", "PodDisruptionBudget") else {
        return Ok(Vec::new());
    };
    listed(call, &kind.prefix(call.namespace.as_deref()))
}

fn listed<T: DeserializeOwned>(call: &Call, prefix: &str) -> Result<Vec<T>, Failure> {
    let page = call.server.0.store.list(prefix, None, usize::MAX);
    let objects = page.entries.iter();
    let read = objects.map(|entry| serde_json::from_slice(&entry.value));
    read.collect::<Result<_, _>>().map_err(Failure::internal)
}

/// Refuses with 429 if the eviction would violate a budget. A pod that does not run violates none.
fn check(call: &Call, budgets: &[PodDisruptionBudget]) -> Result<(), Failure> {
    let pods: Vec<Pod> = listed(call, &call.kind.prefix(call.namespace.as_deref()))?;
    let name = call.object_name();
    let ours = |pod: &&Pod| pod.metadata.name.as_deref() == Some(name);
    let Some(pod) = pods.iter().find(ours) else {
        return Ok(());
    };
    if !BudgetedPod::of(pod).healthy {
        return Ok(());
    }
    let none = BTreeMap::new();
    let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_else(|| none.clone());
    let mine = labels(pod);
    for budget in budgets.iter().filter(|budget| is_about(budget, &mine)) {
        let members = pods.iter().filter(|pod| is_about(budget, &labels(pod)));
        let mut count = BudgetCounts::of(budget, members.map(BudgetedPod::of));
        // Its controllers may want more replicas than exist now.
        let wanted = budget
            .status
            .as_ref()
            .map_or(0, |status| status.expected_pods);
        count.expected = count.expected.max(usize::try_from(wanted).unwrap_or(0));
        let spec = budget.spec.as_ref();
        count.desired = spec.map_or(0, |spec| desired_healthy(spec, count.expected));
        if count.allowed() == 0 {
            let budget = budget.metadata.name.as_deref().unwrap_or_default();
            return Err(Failure::disruption_budget(
                budget,
                count.desired,
                count.healthy,
            ));
        }
    }
    Ok(())
}
