//! Jobs whose GPUs do nothing, with their limits; and the limit of each team, which an administrator changes by a form. The
//! limits are annotations of the team's namespaces: the API checks them and decides who may change them.

use std::collections::BTreeMap;

use administration::idle_jobs::IdleJob;
use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use resources::access::Caller;
use resources::names::{
    IDLE_GPU_ACTION, IDLE_GPU_EXEMPT_JOBS, IDLE_GPU_EXEMPT_USERS, IDLE_GPU_LIMIT,
};
use resources::span::human_duration;
use serde::Deserialize;
use serde_json::json;

use super::flash::FlashQuery;
use super::{PageCaller, PageFrame, escape, message, page_with, teams};
use crate::board::JobRow;
use crate::problem::Problem;
use crate::state::Portal;

const HERE: &str = "usage";
/// The most jobs on the page; `/api/v1/idle-gpus` has all.
const ROWS_MAX: usize = 500;

/// The team whose limit the page's form changes.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct TeamQuery {
    team: String,
}

/// A limit as the form's fields and the annotations have it; empty fields are no annotations.
#[derive(Deserialize, Default, Clone, Debug, PartialEq, Eq)]
#[serde(default)]
pub struct LimitForm {
    limit: String,
    action: String,
    users: String,
    jobs: String,
}

/// The annotations of the policy with the values of a form.
fn annotations(form: &LimitForm) -> [(&'static str, Option<&str>); 4] {
    let limit = form.limit.trim();
    // Without a limit the others have no effect, and the API refuses them.
    let with_limit = |text: &'_ str| !limit.is_empty() && !text.trim().is_empty();
    let value = |text| Some(str::trim(text)).filter(|text| with_limit(text));
    [
        (IDLE_GPU_LIMIT, value(&form.limit)),
        (
            IDLE_GPU_ACTION,
            value(&form.action).filter(|action| *action != "warn"),
        ),
        (IDLE_GPU_EXEMPT_USERS, value(&form.users)),
        (IDLE_GPU_EXEMPT_JOBS, value(&form.jobs)),
    ]
}

impl LimitForm {
    fn of(own: &BTreeMap<String, String>) -> LimitForm {
        let text = |name: &str| own.get(name).cloned().unwrap_or_default();
        LimitForm {
            limit: text(IDLE_GPU_LIMIT),
            action: text(IDLE_GPU_ACTION),
            users: text(IDLE_GPU_EXEMPT_USERS),
            jobs: text(IDLE_GPU_EXEMPT_JOBS),
        }
    }

    /// True if jobs are cancelled at the limit.
    fn cancels(&self) -> bool {
        self.action == "cancel"
    }
}

/// A job on the page.
struct IdleRow {
    job: IdleJob,
    /// Its page; empty if it has none.
    href: String,
    idle: String,
    limit: String,
    then: String,
    /// It is cancelled at the limit.
    ends: bool,
}

impl IdleRow {
    fn of(job: &IdleJob, href: String, now: Timestamp) -> IdleRow {
        let then = match &job.limit {
            None => String::new(),
            Some(limit) if limit.cancels() => {
                let left = limit.at.duration_since(now).as_secs().max(0);
                format!("cancelled in {}", human_duration(left))
            }
            Some(limit) => match &limit.kept_because {
                Some(kept) => format!("warned ({kept})"),
                None => "warned".to_owned(),
            },
        };
        let limit = job.limit.as_ref();
        IdleRow {
            idle: human_duration(job.idle_seconds(now)),
            limit: limit.map_or_else(String::new, |limit| human_duration(limit.seconds)),
            ends: limit.is_some_and(|limit| limit.cancels()),
            then,
            href,
            job: job.clone(),
        }
    }
}

/// A namespace of a team, with its limit.
struct LimitRow {
    team: String,
    namespace: String,
    limit: LimitForm,
}

#[derive(Template)]
#[template(path = "idle.html")]
struct IdlePage {
    frame: PageFrame,
    /// The server has judged the jobs since its start.
    judged: bool,
    rows: Vec<IdleRow>,
    more: usize,
    /// GPUs that the jobs on the page hold.
    gpus: usize,
    limits: Vec<LimitRow>,
    manages: bool,
    /// The team whose limit is changed, and the fields.
    edit: Option<(String, LimitForm)>,
    problem: String,
}

fn rows(portal: &Portal, caller: &Caller, now: Timestamp) -> Option<Vec<IdleRow>> {
    let judged = portal.hooks.idle_jobs.lock().clone()?;
    let sees = |job: &&IdleJob| portal.may_see(caller, "", "pods", &job.namespace);
    let seen: Vec<&IdleJob> = judged.jobs.iter().filter(sees).collect();
    if seen.is_empty() {
        return Some(Vec::new());
    }
    let entries = portal.entries(caller);
    let keyed = entries.iter().map(|entry| {
        let job = entry.base();
        ((job.namespace.as_str(), job.kind, job.name.as_str()), job)
    });
    let known: BTreeMap<(&str, &str, &str), &JobRow> = keyed.collect();
    let href = |job: &IdleJob| {
        let key = (job.namespace.as_str(), job.kind.as_str(), job.name.as_str());
        known.get(&key).map(|row| row.href()).unwrap_or_default()
    };
    let row = |job: &IdleJob| IdleRow::of(job, href(job), now);
    Some(seen.into_iter().map(row).collect())
}

fn limits(portal: &Portal, caller: &Caller) -> Vec<LimitRow> {
    let mut rows = Vec::new();
    for team in teams::teams(portal, caller) {
        for namespace in team.namespaces {
            if !portal.may_see(caller, "", "resourcequotas", &namespace) {
                continue;
            }
            rows.push(LimitRow {
                team: team.name.clone(),
                limit: LimitForm::of(&portal.board.team_annotations(&namespace)),
                namespace,
            });
        }
    }
    rows
}

/// The page; with the fields of a form if a team is named.
fn show_with(
    portal: &Portal,
    caller: &Caller,
    team: &str,
    flash: &FlashQuery,
    refused: Option<(LimitForm, Problem)>,
) -> Response {
    let manages = teams::manages(portal, caller);
    let limits = limits(portal, caller);
    let own = limits.iter().find(|row| row.team == team);
    let edit = own
        .filter(|_| manages)
        .map(|row| (team.to_owned(), row.limit.clone()));
    let (edit, problem) = match refused {
        None => (edit, None),
        Some((form, problem)) => (edit.map(|(team, _)| (team, form)), Some(problem)),
    };
    let judged = rows(portal, caller, Timestamp::now());
    let is_judged = judged.is_some();
    let mut rows = judged.unwrap_or_default();
    let gpus = rows.iter().map(|row| row.job.gpus).sum();
    let more = rows.len().saturating_sub(ROWS_MAX);
    rows.truncate(ROWS_MAX);
    let status = problem.as_ref().map_or(StatusCode::OK, Problem::status);
    let template = IdlePage {
        frame: PageFrame::with_problem(caller, HERE, problem.is_some()).flash(flash, "/ui/idle"),
        judged: is_judged,
        rows,
        more,
        gpus,
        limits,
        manages,
        edit,
        problem: problem.map_or_else(String::new, |problem| problem.detail().to_owned()),
    };
    page_with(status, &template)
}

/// The page.
pub async fn show(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(query): Query<TeamQuery>,
    Query(flash): Query<FlashQuery>,
) -> Response {
    show_with(&portal, &caller, &query.team, &flash, None)
}

/// Sets a team's limit in each of its namespaces, as the caller.
async fn set(
    portal: &Portal,
    caller: &Caller,
    team: &str,
    form: &LimitForm,
) -> Result<(), Problem> {
    teams::require(portal, caller)?;
    let own = teams::team(portal, caller, team).ok_or_else(|| teams::missing(team))?;
    let wanted: BTreeMap<&str, Option<&str>> = annotations(form).into_iter().collect();
    let change = Patch::Merge(json!({"metadata": {"annotations": wanted}}));
    let namespaces: Api<Namespace> = Api::all(portal.client(caller));
    for namespace in &own.namespaces {
        let parameters = PatchParams::default();
        let patched = namespaces.patch(namespace, &parameters, &change).await;
        patched.map_err(|error| {
            let refusal = Problem::from(error);
            let words = format!("namespace {namespace}: {}", refusal.detail());
            Problem::new(refusal.status(), "refused", words)
        })?;
    }
    let shown = || {
        own.namespaces.iter().all(|namespace| {
            let now = portal.board.team_annotations(namespace);
            let is = |(name, value): (&&str, &Option<&str>)| {
                now.get(*name).map(String::as_str) == *value
            };
            wanted.iter().all(is)
        })
    };
    teams::settled(portal, shown).await;
    Ok(())
}

/// Answers `POST /ui/idle/{team}`.
pub async fn change(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(team): Path<String>,
    Form(form): Form<LimitForm>,
) -> Response {
    match set(&portal, &caller, &team, &form).await {
        Ok(()) => {
            let page = format!("/ui/idle?team={}&flash=idle-limit-set", escape(&team));
            Redirect::to(&page).into_response()
        }
        Err(problem)
            if matches!(
                problem.status(),
                StatusCode::FORBIDDEN | StatusCode::NOT_FOUND
            ) =>
        {
            message(&caller, HERE, &problem)
        }
        Err(problem) => {
            let none = FlashQuery::default();
            show_with(&portal, &caller, &team, &none, Some((form, problem)))
        }
    }
}

#[cfg(test)]
mod tests {
    use administration::idle_jobs::ShownLimit;
    use jiff::SignedDuration;
    use resources::idle_gpus::{IdleGpuAction, IdleGpuLimit};

    use super::*;

    fn form(limit: &str, action: &str, users: &str) -> LimitForm {
        LimitForm {
            limit: limit.to_owned(),
            action: action.to_owned(),
            users: users.to_owned(),
            jobs: String::new(),
        }
    }

    #[test]
    fn a_form_without_a_limit_removes_every_annotation() {
        let of = |form: &LimitForm| annotations(form).map(|(_, value)| value.map(str::to_owned));
        assert_eq!(of(&form(" ", "cancel", "ann")), [const { None }; 4]);
        let full = of(&form(" 2h ", "cancel", "ann, bob"));
        let words = |text: &str| Some(text.to_owned());
        assert_eq!(
            full,
            [words("2h"), words("cancel"), words("ann, bob"), None]
        );
        assert_eq!(of(&form("2h", "warn", "")), [words("2h"), None, None, None]);
    }

    #[test]
    fn the_fields_of_a_form_are_those_of_the_annotations() {
        let stored: BTreeMap<String, String> = annotations(&form("2h", "cancel", "ann"))
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        assert_eq!(LimitForm::of(&stored), form("2h", "cancel", "ann"));
        assert!(LimitForm::of(&stored).cancels());
        assert_eq!(LimitForm::of(&BTreeMap::new()), LimitForm::default());
    }

    #[test]
    fn a_row_says_what_happens_at_the_limit() {
        let since: Timestamp = "2026-11-27T10:00:00Z".parse().unwrap();
        let job = |limit: Option<ShownLimit>| IdleJob {
            namespace: "a".to_owned(),
            kind: "Pod".to_owned(),
            name: "p".to_owned(),
            user: String::new(),
            queue: "default".to_owned(),
            gpus: 2,
            since,
            limit,
        };
        let limit = |action, kept: Option<&str>| {
            let limit = IdleGpuLimit {
                seconds: 7200,
                action,
                own: false,
            };
            Some(ShownLimit::of(limit, since, kept))
        };
        let now = since + SignedDuration::from_secs(3600);
        for (limit, then, ends) in [
            (None, "", false),
            (limit(IdleGpuAction::Warn, None), "warned", false),
            (limit(IdleGpuAction::Cancel, None), "cancelled in 60m", true),
            (
                limit(IdleGpuAction::Cancel, Some("it would come back")),
                "warned (it would come back)",
                false,
            ),
        ] {
            let row = IdleRow::of(&job(limit), String::new(), now);
            assert_eq!((row.then.as_str(), row.ends), (then, ends));
            assert_eq!(row.idle, "60m");
        }
    }
}
