//! The list of jobs of every kind and of pods without a job: filtered and sorted by its address, in pages, as CSV, and
//! with actions on several jobs at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use askama::Template;
use axum::Form;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use identity::SavedView;
use jiff::Timestamp;
use resources::access::Caller;
use serde::Deserialize;

use super::flash::FlashQuery;
use super::job::carry_out;
use super::{PageCaller, PageFrame, escape, message, page_with};
use crate::board::{JobEntry, JobRow};
use crate::problem::Problem;
use crate::state::Portal;

/// The number of jobs on one page.
const PAGE: usize = 50;
/// The most jobs of one action.
const BULK_MAX: usize = 500;
/// The most lines of the CSV.
const CSV_MAX: usize = 20_000;

/// The columns that sort, with their labels. The first is the order without a choice.
const SORTS: [(&str, &str); 8] = [
    ("", "newest"),
    ("oldest", "oldest"),
    ("name", "name"),
    ("state", "state"),
    ("kind", "kind"),
    ("queue", "queue"),
    ("user", "user"),
    ("gpus", "most GPUs"),
];

/// Whose jobs are shown, with their labels.
const SCOPES: [(&str, &str); 3] = [("", "All"), ("mine", "Mine"), ("team", "My namespaces")];

/// The reader's query.
#[derive(Deserialize, Default, Clone)]
#[serde(default)]
pub struct Filter {
    q: String,
    whose: String,
    state: String,
    kind: String,
    namespace: String,
    queue: String,
    sort: String,
    page: usize,
}

impl Filter {
    /// The filters and the order as a query, without the page.
    fn query(&self) -> String {
        let href = self.href("page", "");
        href.split_once('?')
            .map_or_else(String::new, |(_, query)| query.to_owned())
    }

    /// The address of the list with a part of it replaced.
    fn href(&self, name: &str, value: &str) -> String {
        let page = self.page.to_string();
        let parts = [
            ("q", self.q.as_str()),
            ("whose", &self.whose),
            ("state", &self.state),
            ("kind", &self.kind),
            ("namespace", &self.namespace),
            ("queue", &self.queue),
            ("sort", &self.sort),
            ("page", if name == "page" { page.as_str() } else { "" }),
            ("format", ""),
            ("flash", ""),
        ];
        let chosen = parts.map(|(part, own)| (part, if part == name { value } else { own }));
        let filled = chosen.iter().filter(|(_, value)| !value.is_empty());
        let query: Vec<String> = filled
            .map(|(part, value)| format!("{part}={}", escape(value)))
            .collect();
        match query.is_empty() {
            true => "/ui/jobs".to_owned(),
            false => format!("/ui/jobs?{}", query.join("&")),
        }
    }

    fn selects(&self, job: &JobRow, user: &str, own: Option<&[String]>) -> bool {
        let is = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
        let whose = match self.whose.as_str() {
            "mine" => job.user == user,
            "team" => own.is_none_or(|own| own.contains(&job.namespace)),
            _ => true,
        };
        whose
            && job.name.contains(self.q.trim())
            && is(&self.state, job.label())
            && is(&self.kind, job.kind)
            && is(&self.namespace, &job.namespace)
            && is(&self.queue, &job.queue)
    }

    fn order(&self, jobs: &mut [Arc<JobEntry>]) {
        let by = |key: fn(&JobRow) -> &str, jobs: &mut [Arc<JobEntry>]| {
            jobs.sort_by(|a, b| key(a.base()).cmp(key(b.base())));
        };
        match self.sort.as_str() {
            "oldest" => jobs.reverse(),
            "name" => by(|row| &row.name, jobs),
            "state" => by(JobRow::label, jobs),
            "kind" => by(|row| row.kind, jobs),
            "queue" => by(|row| &row.queue, jobs),
            "user" => by(|row| &row.user, jobs),
            "gpus" => jobs.sort_by_key(|job| std::cmp::Reverse(job.base().gpus)),
            _ => {}
        }
    }
}

/// What the query asks for beside the filter.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct FormatQuery {
    /// `csv` for a file.
    format: String,
}

/// One job's outcome of an action on several.
struct Outcome {
    name: String,
    words: String,
    done: bool,
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct Jobs {
    frame: PageFrame,
    jobs: Vec<JobRow>,
    states: BTreeSet<String>,
    kinds: BTreeSet<&'static str>,
    namespaces: BTreeSet<String>,
    queues: BTreeSet<String>,
    sorts: [(&'static str, &'static str); 8],
    scopes: [(&'static str, &'static str); 3],
    /// The reader has any job at all.
    any: bool,
    total: usize,
    pages: usize,
    filter: Filter,
    outcomes: Vec<Outcome>,
    /// The views that the reader saved; none for a reader without a record.
    views: Option<Vec<SavedView>>,
    /// Why a view was not saved.
    problem: String,
}

impl Jobs {
    /// True if the list shows this view.
    fn is_shown(&self, view: &SavedView) -> bool {
        view.query == self.filter.query()
    }

    fn page_href(&self, by: isize) -> String {
        let page = self.filter.page.saturating_add_signed(by);
        self.filter.href("page", &page.to_string())
    }
}

/// The jobs that a caller may see and that the filter selects, in its order; and all that the caller may see.
fn selected(
    portal: &Portal,
    caller: &Caller,
    filter: &Filter,
) -> (Vec<Arc<JobEntry>>, Vec<Arc<JobEntry>>) {
    let all = portal.entries(caller);
    let user = portal.identity.user(&caller.user);
    let own = user.and_then(|user| user.namespaces);
    let wanted = all
        .iter()
        .filter(|entry| filter.selects(entry.base(), &caller.user, own.as_deref()));
    let mut wanted: Vec<Arc<JobEntry>> = wanted.cloned().collect();
    filter.order(&mut wanted);
    (wanted, all)
}

/// What is told above the list.
#[derive(Default)]
struct BulkResult {
    outcomes: Vec<Outcome>,
    problem: Option<Problem>,
}

fn show(
    portal: &Portal,
    caller: &Caller,
    mut filter: Filter,
    flash: &FlashQuery,
    result: BulkResult,
) -> Response {
    let (wanted, all) = selected(portal, caller, &filter);
    let (mut states, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    let (mut namespaces, mut queues) = (BTreeSet::new(), BTreeSet::new());
    // Each text is copied once: there may be 10,000 jobs and few different texts.
    let add = |set: &mut BTreeSet<String>, text: &str| {
        if !text.is_empty() && !set.contains(text) {
            set.insert(text.to_owned());
        }
    };
    for entry in &all {
        let row = entry.base();
        add(&mut states, row.label());
        kinds.insert(row.kind);
        add(&mut namespaces, &row.namespace);
        add(&mut queues, &row.queue);
    }
    let total = wanted.len();
    let pages = total.div_ceil(PAGE).max(1);
    filter.page = filter.page.clamp(1, pages);
    let now = Timestamp::now();
    let shown = wanted.iter().skip((filter.page - 1) * PAGE).take(PAGE);
    let user = portal.identity.user(&caller.user);
    let status = result
        .problem
        .as_ref()
        .map_or(StatusCode::OK, Problem::status);
    let template = Jobs {
        frame: PageFrame::with_problem(caller, "jobs", result.problem.is_some())
            .flash(flash, "/ui/jobs"),
        jobs: shown.map(|entry| entry.row(now)).collect(),
        states,
        kinds,
        namespaces,
        queues,
        sorts: SORTS,
        scopes: SCOPES,
        any: !all.is_empty(),
        total,
        pages,
        filter,
        outcomes: result.outcomes,
        views: user.map(|user| user.views),
        problem: result
            .problem
            .map_or_else(String::new, |problem| problem.detail().to_owned()),
    };
    page_with(status, &template)
}

/// What is done with a view.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct ViewForm {
    /// Its name.
    name: String,
    /// `remove`, or empty to save it.
    action: String,
}

/// Saves the list with its filters as a view of the caller's, or removes a view.
pub async fn keep_view(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(filter): Query<Filter>,
    Form(form): Form<ViewForm>,
) -> Response {
    let name = form.name.trim();
    let (done, flash) = match form.action.as_str() {
        "remove" => {
            let done = portal.identity.remove_view(&caller.user, name).await;
            (done, "view-removed")
        }
        _ => {
            let view = SavedView {
                name: name.to_owned(),
                query: filter.query(),
            };
            let done = portal.identity.save_view(&caller.user, view).await;
            (done, "view-saved")
        }
    };
    match done.map_err(Problem::from) {
        Ok(()) => {
            let page = filter.href("flash", flash);
            Redirect::to(&page).into_response()
        }
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => {
            message(&caller, "jobs", &problem)
        }
        Err(problem) => {
            let result = BulkResult {
                problem: Some(problem),
                ..BulkResult::default()
            };
            show(&portal, &caller, filter, &FlashQuery::default(), result)
        }
    }
}

/// The page, or the same as CSV.
pub async fn list(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(filter): Query<Filter>,
    Query(form): Query<FormatQuery>,
    Query(flash): Query<FlashQuery>,
) -> Response {
    if form.format != "csv" {
        return show(&portal, &caller, filter, &flash, BulkResult::default());
    }
    let (wanted, _) = selected(&portal, &caller, &filter);
    let now = Timestamp::now();
    let rows = wanted.iter().take(CSV_MAX).map(|entry| entry.row(now));
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"jobs.csv\"",
        ),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, csv(rows)).into_response()
}

/// A cell of CSV (RFC 4180). A text that a spreadsheet would take for a formula is marked as text.
fn cell(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let mark = if formula { "'" } else { "" };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{mark}{}\"", text.replace('"', "\"\"")),
        false => format!("{mark}{text}"),
    }
}

fn csv(rows: impl Iterator<Item = JobRow>) -> String {
    let mut text =
        "namespace,kind,name,state,queue,user,replicas,running,gpus,created,runtime\r\n".to_owned();
    for row in rows {
        let created = row.created.map(|at| at.to_string()).unwrap_or_default();
        let (wanted, running) = (row.wanted.to_string(), row.running.to_string());
        let gpus = row.gpus.to_string();
        let cells: [&str; 11] = [
            &row.namespace,
            row.kind,
            &row.name,
            row.label(),
            &row.queue,
            &row.user,
            &wanted,
            &running,
            &gpus,
            &created,
            &row.duration,
        ];
        text.push_str(&cells.map(cell).join(","));
        text.push_str("\r\n");
    }
    text
}

/// What a form of checkboxes asks for: the action, and the jobs as `NAMESPACE/PLURAL/NAME`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    action: String,
    jobs: Vec<String>,
}

impl Asked {
    /// Reads `action=cancel&job=…&job=…`.
    fn read(body: &[u8]) -> Asked {
        let text = String::from_utf8_lossy(body);
        let mut asked = Asked::default();
        for pair in text.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = value.replace('+', " ");
            let value = percent_encoding::percent_decode_str(&value).decode_utf8_lossy();
            match name {
                "action" => asked.action = value.into_owned(),
                "job" if asked.jobs.len() <= BULK_MAX => asked.jobs.push(value.into_owned()),
                _ => {}
            }
        }
        asked
    }
}

/// Acts on the marked jobs, and tells the outcome of each.
pub async fn act(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(filter): Query<Filter>,
    body: Bytes,
) -> Response {
    let asked = Asked::read(&body);
    if asked.jobs.len() > BULK_MAX {
        let detail = format!("job: mark at most {BULK_MAX} jobs at once");
        return message(&caller, "jobs", &Problem::invalid(detail));
    }
    if !["cancel", "suspend", "resume"].contains(&asked.action.as_str()) {
        let detail = format!(
            "action: Invalid value: {:?}: use cancel, suspend or resume",
            asked.action
        );
        return message(&caller, "jobs", &Problem::invalid(detail));
    }
    let mut outcomes = Vec::new();
    for job in asked.jobs {
        let parts: Vec<&str> = job.split('/').collect();
        let done = match parts[..] {
            [namespace, plural, name] => {
                carry_out(&portal, &caller, namespace, plural, name, &asked.action).await
            }
            _ => Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid",
                format!("job: Invalid value: {job:?}: write NAMESPACE/KIND/NAME"),
            )),
        };
        outcomes.push(Outcome {
            words: match &done {
                Ok(done) => (*done).to_owned(),
                Err(problem) => problem.detail().to_owned(),
            },
            done: done.is_ok(),
            name: job,
        });
    }
    let result = BulkResult {
        outcomes,
        problem: None,
    };
    show(&portal, &caller, filter, &FlashQuery::default(), result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Tone;

    fn row(name: &str, user: &str, namespace: &str) -> JobRow {
        JobRow {
            plural: "jobs",
            kind: "Job",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            state: "Complete".to_owned(),
            tone: Tone::Good,
            queue: "default".to_owned(),
            user: user.to_owned(),
            wanted: 1,
            running: 0,
            gpus: 2,
            created: None,
            age: String::new(),
            duration: String::new(),
        }
    }

    #[test]
    fn a_filter_selects_by_whose_jobs_they_are_and_by_their_parts() {
        let job = row("train-1", "ann", "team-a");
        let own = ["team-a".to_owned()];
        let with = |text: &str| -> Filter {
            let uri: axum::http::Uri = format!("/ui/jobs?{text}").parse().unwrap();
            Query::try_from_uri(&uri)
                .map(|Query(filter)| filter)
                .unwrap()
        };
        let table = [
            ("", true),
            ("q=rain", true),
            ("q=x", false),
            ("whose=mine", true),
            ("whose=team", true),
            ("state=Succeeded", true),
            ("state=Failed", false),
            ("kind=Job&queue=default", true),
            ("kind=Pod", false),
            ("namespace=team-b", false),
        ];
        for (query, selected) in table {
            assert_eq!(
                with(query).selects(&job, "ann", Some(&own)),
                selected,
                "{query}"
            );
        }
        assert!(!with("whose=mine").selects(&job, "bob", Some(&own)));
        assert!(!with("whose=team").selects(&job, "ann", Some(&[])));
        // A user of all namespaces.
        assert!(with("whose=team").selects(&job, "ann", None));
    }

    #[test]
    fn an_address_keeps_the_rest_of_the_filter_and_begins_at_the_first_page() {
        let filter = Filter {
            q: "a&b".into(),
            sort: "gpus".into(),
            page: 3,
            ..Filter::default()
        };
        assert_eq!(
            filter.href("state", "Failed"),
            "/ui/jobs?q=a%26b&state=Failed&sort=gpus"
        );
        assert_eq!(
            filter.href("page", "4"),
            "/ui/jobs?q=a%26b&sort=gpus&page=4"
        );
        assert_eq!(Filter::default().href("state", ""), "/ui/jobs");
        // A view has no page.
        assert_eq!(filter.query(), "q=a%26b&sort=gpus");
        assert_eq!(Filter::default().query(), "");
    }

    #[test]
    fn a_file_has_no_formula() {
        for (text, written) in [
            ("a", "a"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("=1+1", "'=1+1"),
            ("@x,", "\"'@x,\""),
        ] {
            assert_eq!(cell(text), written);
        }
        let file = csv([row("j", "ann", "a")].into_iter());
        assert_eq!(
            file.lines().nth(1),
            Some("a,Job,j,Succeeded,default,ann,1,0,2,,")
        );
    }

    #[test]
    fn marked_jobs_are_read_to_their_bound() {
        let asked = Asked::read(b"action=cancel&job=a%2Fjobs%2Fj&job=b%2Fjobs%2Fk+x&other=1");
        assert_eq!(asked.action, "cancel");
        assert_eq!(asked.jobs, ["a/jobs/j", "b/jobs/k x"]);
        let many = "job=a&".repeat(BULK_MAX * 3);
        assert_eq!(Asked::read(many.as_bytes()).jobs.len(), BULK_MAX + 1);
        assert_eq!(
            Asked::read(b"\xff&=&job"),
            Asked {
                action: String::new(),
                jobs: vec![String::new()]
            }
        );
    }
}
