//! The page of usage.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use resources::devices::is_whole_gpu;
use serde::Deserialize;
use usage::{Dimension, Period};

use super::{PageCaller, PageFrame, message, page};
use crate::rest::usage_answer;
use crate::state::Portal;

/// The rows of one page; the REST API has all.
const ROWS_MAX: usize = 1000;

/// The form's fields, as the query of the page's address.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub struct UsageForm {
    by: String,
    period: String,
    since: String,
    until: String,
}

impl Default for UsageForm {
    fn default() -> UsageForm {
        UsageForm {
            by: "user".to_owned(),
            period: String::new(),
            since: "7d".to_owned(),
            until: String::new(),
        }
    }
}

struct Row {
    cells: Vec<String>,
    gpus: String,
    active: String,
    idle: String,
    unmeasured: String,
    cpu: String,
    memory: String,
    others: Vec<(String, String)>,
    /// Its share of the largest row's GPU-hours (of the core-hours, if nothing used GPUs), in percent.
    bar: u32,
}

#[derive(Template)]
#[template(path = "usage.html")]
struct UsagePage {
    frame: PageFrame,
    form: UsageForm,
    dimensions: Vec<&'static str>,
    periods: Vec<&'static str>,
    headings: Vec<&'static str>,
    rows: Vec<Row>,
    more: usize,
    /// Below this utilisation, in percent, a GPU is idle.
    threshold: f64,
    since: String,
    until: String,
}

/// The page.
pub async fn show(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(form): Query<UsageForm>,
) -> Response {
    let by = format!("{},{}", form.by, form.period);
    let answer = match usage_answer(&portal, &caller, &by, &form.since, &form.until) {
        Ok(answer) => answer,
        Err(problem) => return message(&caller, "usage", &problem),
    };
    let uses_gpus = answer.rows.iter().any(|row| row.gpu_hours() > 0.0);
    let size = |row: &usage::UsageRow| {
        if uses_gpus {
            row.gpu_hours()
        } else {
            row.of("cpu")
        }
    };
    let most = answer.rows.iter().map(size).fold(0.0, f64::max);
    let hours = |hours: f64| format!("{hours:.1}");
    let of_gpus = |row: &usage::UsageRow| row.gpus.unwrap_or_default();
    let more = answer.rows.len().saturating_sub(ROWS_MAX);
    let row = |row: &usage::UsageRow| {
        let period = row.period.iter().cloned();
        let values = answer
            .query
            .by()
            .iter()
            .map(|one| row.by.get(one).cloned().unwrap_or_default());
        let known = BTreeSet::from(["cpu", "memory"]);
        let others = row
            .hours
            .iter()
            .filter(|(name, _)| !known.contains(name.as_str()) && !is_whole_gpu(name));
        Row {
            cells: period
                .chain(values)
                .map(|cell| {
                    if cell.is_empty() {
                        "(none)".to_owned()
                    } else {
                        cell
                    }
                })
                .collect(),
            gpus: hours(row.gpu_hours()),
            active: hours(of_gpus(row).active),
            idle: hours(of_gpus(row).idle),
            unmeasured: hours(of_gpus(row).unmeasured),
            cpu: hours(row.of("cpu")),
            memory: hours(row.of("memory")),
            others: others
                .map(|(name, amount)| (name.clone(), hours(*amount)))
                .collect(),
            bar: if most > 0.0 {
                (100.0 * size(row) / most) as u32
            } else {
                0
            },
        }
    };
    let period = answer.query.period().map(Period::name);
    let form_of_time = "%Y-%m-%d %H:%M";
    page(&UsagePage {
        frame: PageFrame::still(&caller, "usage"),
        dimensions: Dimension::ALL.iter().map(|one| one.name()).collect(),
        periods: vec!["hour", "day", "month"],
        headings: (period.into_iter())
            .chain(answer.query.by().iter().map(|one| one.name()))
            .collect(),
        rows: answer.rows.iter().take(ROWS_MAX).map(row).collect(),
        more,
        threshold: usage::IDLE_BELOW_PERCENT,
        since: answer.query.since().strftime(form_of_time).to_string(),
        until: answer.query.until().strftime(form_of_time).to_string(),
        form,
    })
}
