//! The list of jobs: filtered, sorted, in pages.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use jiff::Timestamp;
use serde::Deserialize;

use super::{PageCaller, PageFrame, escape, page};
use crate::board::JobRow;
use crate::state::Portal;

/// The number of jobs on one page.
const PAGE: usize = 50;

/// The sort orders with their labels.
const SORTS: [(&str, &str); 4] = [
    ("", "newest"),
    ("name", "name"),
    ("state", "state"),
    ("gpus", "most GPUs"),
];

/// The reader's query.
#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub struct Filter {
    q: String,
    state: String,
    namespace: String,
    sort: String,
    page: usize,
}

impl Filter {
    fn href(&self, number: usize) -> String {
        format!(
            "/ui/jobs?q={}&state={}&namespace={}&sort={}&page={number}",
            escape(&self.q),
            escape(&self.state),
            escape(&self.namespace),
            escape(&self.sort)
        )
    }

    fn selects(&self, job: &JobRow) -> bool {
        job.name.contains(self.q.trim())
            && (self.state.is_empty() || job.state == self.state)
            && (self.namespace.is_empty() || job.namespace == self.namespace)
    }

    fn order(&self, jobs: &mut [JobRow]) {
        match self.sort.as_str() {
            "name" => jobs.sort_by(|a, b| a.name.cmp(&b.name)),
            "state" => jobs.sort_by(|a, b| a.state.cmp(&b.state)),
            "gpus" => jobs.sort_by_key(|job| std::cmp::Reverse(job.gpus)),
            _ => {}
        }
    }
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct Jobs {
    frame: PageFrame,
    jobs: Vec<JobRow>,
    states: Vec<String>,
    namespaces: Vec<String>,
    sorts: [(&'static str, &'static str); 4],
    total: usize,
    pages: usize,
    previous: String,
    next: String,
    filter: Filter,
}

/// The page.
pub async fn list(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(mut filter): Query<Filter>,
) -> Response {
    let all = portal.jobs(&caller, Timestamp::now());
    let states: BTreeSet<String> = all.iter().map(|job| job.state.clone()).collect();
    let namespaces: BTreeSet<String> = all.iter().map(|job| job.namespace.clone()).collect();
    let mut jobs: Vec<JobRow> = all.into_iter().filter(|job| filter.selects(job)).collect();
    filter.order(&mut jobs);
    let total = jobs.len();
    let pages = total.div_ceil(PAGE).max(1);
    filter.page = filter.page.clamp(1, pages);
    let jobs = jobs
        .into_iter()
        .skip((filter.page - 1) * PAGE)
        .take(PAGE)
        .collect();
    page(&Jobs {
        frame: PageFrame::of(&caller, "jobs"),
        jobs,
        states: states.into_iter().collect(),
        namespaces: namespaces.into_iter().collect(),
        sorts: SORTS,
        total,
        pages,
        previous: filter.href(filter.page - 1),
        next: filter.href(filter.page + 1),
        filter,
    })
}
