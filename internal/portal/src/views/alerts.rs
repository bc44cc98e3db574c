//! The page of alerts: what fires, what is silenced, and who is notified.

use alerting::{ReceiverReport, Silence, SilenceRequest};
use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use resources::span::human_duration;
use serde::Deserialize;

use super::flash::FlashQuery;
use super::{PageCaller, PageFrame, message, page};
use crate::problem::Problem;
use crate::rest::alerts::{ShownAlert, manages, shown};
use crate::state::Portal;

const HERE: &str = "alerts";

/// The form that silences an alert.
#[derive(Deserialize)]
pub struct SilenceForm {
    rule: String,
    on: String,
    hours: i64,
    #[serde(default)]
    comment: String,
}

struct AlertLine {
    alert: ShownAlert,
    /// For how long it has fired.
    age: String,
}

struct ReceiverLine {
    report: ReceiverReport,
    waiting: usize,
    /// How the last attempt went; empty if there was none.
    last: String,
}

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: PageFrame,
    alerts: Vec<AlertLine>,
    manages: bool,
    silences: Vec<Silence>,
    receivers: Vec<ReceiverLine>,
}

/// The page.
pub async fn show(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(flash): Query<FlashQuery>,
) -> Response {
    let alerts = match shown(&portal, &caller) {
        Ok(alerts) => alerts,
        Err(problem) => return message(&caller, HERE, &problem),
    };
    let now = Timestamp::now();
    let alerts = alerts.into_iter().map(|alert| {
        let since = alert.since.parse::<Timestamp>();
        let age = since.map(|since| human_duration(now.duration_since(since).as_secs()));
        AlertLine {
            age: age.unwrap_or_default(),
            alert,
        }
    });
    let manages = manages(&portal, &caller);
    let (silences, receivers) = match manages {
        false => (Vec::new(), Vec::new()),
        true => {
            let state = portal.hooks.alerts.lock();
            (state.silences(now).cloned().collect(), state.receivers(now))
        }
    };
    page(&AlertsPage {
        frame: PageFrame::of(&caller, HERE).flash(&flash, "/ui/alerts"),
        alerts: alerts.collect(),
        manages,
        silences,
        receivers: receivers.into_iter().map(receiver).collect(),
    })
}

fn receiver(report: ReceiverReport) -> ReceiverLine {
    let waiting = report.deliveries.iter().filter(|one| one.waits).count();
    let last = report.deliveries.iter().find(|one| one.attempts > 0);
    let last = last.map_or_else(String::new, |last| {
        format!("{}: {}", last.alerts.join(", "), last.outcome())
    });
    ReceiverLine {
        report,
        waiting,
        last,
    }
}

/// Silences the alerts of a rule on an object.
pub async fn silence(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Form(form): Form<SilenceForm>,
) -> Response {
    if let Some(refused) = refused(&portal, &caller) {
        return refused;
    }
    let filled = |text: String| Some(text).filter(|text| !text.is_empty());
    let request = SilenceRequest {
        rule: filled(form.rule),
        on: filled(form.on),
        seconds: form.hours.saturating_mul(3600),
        comment: form.comment,
    };
    let mut alerts = portal.hooks.alerts.lock();
    match alerts.silence(&request, &caller.user, Timestamp::now()) {
        Ok(_) => Redirect::to("/ui/alerts?flash=silenced").into_response(),
        Err(error) => message(&caller, HERE, &Problem::invalid(error.to_string())),
    }
}

/// Ends a silence, or sends a test to a receiver.
pub async fn act(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path((what, name)): Path<(String, String)>,
) -> Response {
    if let Some(refused) = refused(&portal, &caller) {
        return refused;
    }
    let mut alerts = portal.hooks.alerts.lock();
    let (done, flash) = match what.as_str() {
        "unsilence" => (
            name.parse().is_ok_and(|number| alerts.end_silence(number)),
            "unsilenced",
        ),
        "test" => (alerts.test(&name, Timestamp::now()).is_ok(), "test-sent"),
        _ => (false, ""),
    };
    drop(alerts);
    if done {
        return Redirect::to(&format!("/ui/alerts?flash={flash}")).into_response();
    }
    let detail =
        format!("there is no {what} of {name:?} on the page of alerts; open the page again");
    let problem = Problem::new(axum::http::StatusCode::NOT_FOUND, "not-found", detail);
    message(&caller, HERE, &problem)
}

fn refused(portal: &Portal, caller: &resources::access::Caller) -> Option<Response> {
    (!manages(portal, caller)).then(|| {
        let words = "only administrators manage the receivers and silences of alerts";
        message(caller, HERE, &Problem::forbidden(words))
    })
}
