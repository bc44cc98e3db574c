//! Alerts: those that fire, their silences, and the receivers that are notified of them.

use std::collections::BTreeSet;

use alerting::{FiringAlert, Rule, SilenceRequest, SubjectKind};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use resources::access::Caller;
use serde::Serialize;
use serde_json::{Value, json};

use crate::board::ActiveAlert;
use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// The resource that roles grant for receivers and silences, in the API group `muster.io`.
const RESOURCE: &str = "alerts";

/// An alert that fires.
#[derive(Clone, Debug, Serialize)]
pub struct ShownAlert {
    /// The rule's name.
    pub alert: &'static str,
    /// `critical`, `warning` or `info`.
    pub severity: &'static str,
    /// What it is about: `node`, `gpu`, `quota` or `server`.
    pub kind: &'static str,
    /// The name of that: `gpu7`, `gpu7/3` for a GPU, `NAMESPACE/NAME` for a quota.
    pub subject: String,
    /// The node that it is about, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The GPU's index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The GPU's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Since when it fires.
    pub since: String,
    /// A sentence without a full stop.
    pub message: String,
    /// What to do; empty where the message says it.
    pub advice: &'static str,
    /// True if a silence keeps it from being delivered.
    pub silenced: bool,
    /// False if the node that reported it is silent.
    pub known: bool,
}

/// The alerts that fire on objects that the caller may see: those that the server judges, then those that agents
/// report of their GPUs.
pub async fn list(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    let items = shown(&portal, &caller)?;
    Ok(Json(json!({"items": items})))
}

/// The same for a page.
///
/// # Errors
/// The caller may not list nodes.
pub fn shown(portal: &Portal, caller: &Caller) -> Result<Vec<ShownAlert>, Problem> {
    let cards = portal.nodes(caller)?;
    let now = Timestamp::now();
    let alerts = portal.hooks.alerts.lock();
    let firing: Vec<(&FiringAlert, bool)> = alerts.firing(now).collect();
    let silenced = firing.iter().filter(|(_, silenced)| *silenced);
    let silenced: BTreeSet<(&str, &str)> = silenced
        .map(|(alert, _)| (alert.rule.name(), alert.subject.name.as_str()))
        .collect();
    let judged = firing
        .iter()
        .filter(|(alert, _)| alert.subject.kind != SubjectKind::Gpu && sees(portal, caller, alert));
    let mut items: Vec<ShownAlert> = judged
        .map(|(alert, silenced)| {
            let node = alert.subject.kind == SubjectKind::Node;
            ShownAlert {
                alert: alert.rule.name(),
                severity: alert.rule.severity().name(),
                kind: alert.subject.kind.name(),
                subject: alert.subject.name.clone(),
                node: node.then(|| alert.subject.name.clone()),
                gpu: None,
                id: None,
                since: alert.since.to_string(),
                message: alert.message.clone(),
                advice: alert.rule.advice(),
                silenced: *silenced,
                known: true,
            }
        })
        .collect();
    for card in &cards {
        items.extend(card.alerts.iter().map(|alert| {
            let subject = format!("{}/{}", card.name, alert.gpu);
            let silenced = silenced.contains(&(alert.alert, subject.as_str()));
            of_agent(&card.name, alert, silenced, subject)
        }));
    }
    Ok(items)
}

fn of_agent(node: &str, alert: &ActiveAlert, silenced: bool, subject: String) -> ShownAlert {
    ShownAlert {
        alert: alert.alert,
        severity: alert.severity,
        kind: SubjectKind::Gpu.name(),
        subject,
        node: Some(node.to_owned()),
        gpu: Some(alert.gpu),
        id: Some(alert.id.clone()),
        since: alert.since.clone(),
        message: alert.message.clone(),
        advice: "",
        silenced,
        known: alert.known,
    }
}

/// Whether a caller who may list nodes may see an alert.
fn sees(portal: &Portal, caller: &Caller, alert: &FiringAlert) -> bool {
    match alert.subject.kind {
        SubjectKind::Node | SubjectKind::Gpu => true,
        SubjectKind::Quota => portal.may_see(caller, "", "resourcequotas", alert.subject.owner()),
        SubjectKind::Server => portal.permits_own(caller, "list", RESOURCE),
    }
}

/// The receivers, with their latest deliveries.
pub async fn receivers(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    require(&portal, &caller, "list")?;
    let rules: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    let items = portal.hooks.alerts.lock().receivers(Timestamp::now());
    Ok(Json(json!({"rules": rules, "items": items})))
}

/// Sends a test to a receiver; the result is among its deliveries.
pub async fn test(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    require(&portal, &caller, "create")?;
    let id = portal.hooks.alerts.lock().test(&name, Timestamp::now());
    let id =
        id.map_err(|error| Problem::new(StatusCode::NOT_FOUND, "not-found", error.to_string()))?;
    Ok((StatusCode::ACCEPTED, Json(json!({"id": id}))))
}

/// The silences that have not ended.
pub async fn silences(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    require(&portal, &caller, "list")?;
    let alerts = portal.hooks.alerts.lock();
    let items: Vec<_> = alerts.silences(Timestamp::now()).collect();
    Ok(Json(json!({"items": items})))
}

/// Adds a silence.
pub async fn silence(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(request): Json<SilenceRequest>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    require(&portal, &caller, "create")?;
    let mut alerts = portal.hooks.alerts.lock();
    let silence = alerts.silence(&request, &caller.user, Timestamp::now());
    let silence = silence.map_err(|error| Problem::invalid(error.to_string()))?;
    Ok((StatusCode::CREATED, Json(json!(silence))))
}

/// Ends a silence.
pub async fn end_silence(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    require(&portal, &caller, "delete")?;
    let number = id.parse().ok();
    let mut alerts = portal.hooks.alerts.lock();
    if !number.is_some_and(|number| alerts.end_silence(number)) {
        let detail = format!("there is no silence {id:?}; `muster alerts silences` lists them");
        return Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail));
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a caller manages receivers and silences.
pub fn manages(portal: &Portal, caller: &Caller) -> bool {
    portal.permits_own(caller, "create", RESOURCE)
}

fn require(portal: &Portal, caller: &Caller, verb: &str) -> Result<(), Problem> {
    if portal.permits_own(caller, verb, RESOURCE) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "only administrators manage the receivers and silences of alerts",
    ))
}
