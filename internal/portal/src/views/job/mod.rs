//! One job's page: the verdict, and its tabs.

mod actions;
mod events;
mod logs;
mod pages;
mod verdict;

pub use actions::{act, carry_out};
pub use verdict::never_fits;

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use resources::access::Caller;
use resources::record::DecisionKind;
use resources::registry::{self, Kind};
use resources::report::PlacementReport;
use resources::training;
use serde::Deserialize;

use self::events::EventLine;
use self::logs::{LogQueryForm, LogView};
use self::pages::PodPage;
use self::verdict::Verdict;
use super::chart::{Chart, ChartRange};
use super::flash::FlashQuery;
use super::measured;
use super::when::When;
use super::{PageCaller, PageFrame, message, page as render};
use crate::board::{CRON_JOBS, GONE, JobDetail, PODS, Replica, Tone, caught_up};
use crate::failure::{self, Failure};
use crate::other_kinds::{OtherKind, SETS};
use crate::problem::Problem;
use crate::rest::explain::{api_of, unknown_job_kind};
use crate::rest::history::{self, HistoryLine};
use crate::state::Portal;
use crate::timeline::{self, BarKind, Lane, RankTimes};
use crate::waiting;

/// The maximum number of decisions on the page, the latest first.
const SHOWN_DECISIONS: usize = 20;
/// The maximum number of replicas on the page.
const SHOWN_REPLICAS: usize = 200;
/// The most bytes of the manifest on the page.
const MANIFEST_MAX: usize = 64 * 1024;

/// The tabs with their names.
const TABS: [(&str, &str); 6] = [
    ("summary", "Summary"),
    ("replicas", "Replicas"),
    ("metrics", "Metrics"),
    ("logs", "Logs"),
    ("events", "Events"),
    ("manifest", "Manifest"),
];

/// A job's path.
#[derive(Deserialize)]
pub struct Address {
    pub(super) namespace: String,
    pub(super) kind: String,
    pub(super) name: String,
}

/// What of the job is open.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct OpenTab {
    tab: String,
    /// The time of the charts.
    range: String,
}

/// A decision about the job.
struct DecisionLine {
    at: When,
    until: Option<When>,
    decision: &'static str,
    message: String,
}

/// A replica with its node, which the history knows after its pod is gone.
struct ReplicaLine {
    replica: Replica,
    failed: bool,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: PageFrame,
    job: JobDetail,
    tab: &'static str,
    tabs: [(&'static str, &'static str); 6],
    /// The page asks for the job's name before it deletes the job.
    deleting: bool,
    verdict: Verdict,
    created: When,
    lanes: Vec<Lane>,
    begins: When,
    ends: When,
    more_lanes: usize,
    decisions: Vec<DecisionLine>,
    replicas: Vec<ReplicaLine>,
    more_replicas: usize,
    charts: Vec<Chart>,
    range: ChartRange,
    logs: LogView,
    pages: Vec<PodPage>,
    events: Vec<EventLine>,
    manifest: String,
    /// Jobs of a CronJob are listed elsewhere.
    jobs_of: String,
    /// A pod without a job does not run again.
    repeatable: bool,
}

impl JobPage {
    fn is(&self, tab: &str) -> bool {
        self.tab == tab && !self.deleting
    }

    fn tab_href(&self, tab: &str) -> String {
        format!("{}?tab={tab}", self.job.row.href())
    }

    fn ranges_of(&self) -> String {
        format!("{}&", self.tab_href("metrics"))
    }

    fn again_href(&self) -> String {
        let row = &self.job.row;
        let from = format!("{}/{}/{}", row.namespace, row.plural, row.name);
        format!("/ui/submit?from={}", super::escape(&from))
    }
}

/// The kinds that have a page: jobs, CronJobs and pods.
pub(super) fn page_kind(plural: &str) -> Result<&'static Kind, Problem> {
    let has_page = |kind: &&Kind| match kind.group {
        "batch" => true,
        "" => kind.plural == PODS,
        _ => kind.training().is_some(),
    };
    if let Some(other) = OtherKind::by_plural(plural).and_then(OtherKind::registered) {
        return Ok(other);
    }
    let mut kinds = registry::all().iter();
    kinds
        .find(|kind| kind.plural == plural && has_page(kind))
        .ok_or_else(|| Problem::invalid(unknown_job_kind(plural)))
}

/// The plural of a kind in the addresses of its pages, if it has pages.
pub(super) fn page_plural(kind: &Kind) -> Option<&'static str> {
    if let Some(other) = OtherKind::of(kind) {
        return Some(other.plural);
    }
    let known = page_kind(kind.plural).ok()?;
    std::ptr::eq(kind, known).then_some(known.plural)
}

/// The job on the board; waits for the board if only the API has it yet.
async fn find(portal: &Portal, caller: &Caller, address: &Address) -> Option<JobDetail> {
    let Address {
        namespace,
        kind,
        name,
    } = address;
    let known = page_kind(kind).ok()?;
    let exists = async {
        let api = api_of(portal.client(caller), namespace, known);
        matches!(api.get_metadata_opt(name).await, Ok(Some(_)))
    };
    let sees = |group: &str, plural: &str, namespace: &str| {
        portal.may_see(caller, group, plural, namespace)
    };
    let shown = || {
        portal
            .board
            .job(sees, namespace, kind, name, Timestamp::now())
    };
    caught_up(portal.board.version(), shown, exists).await
}

/// The gang's report, or that of the first pod that waits: of its group's gang, or of itself without a gang. None for a
/// job that has ended.
async fn report(portal: &Portal, caller: &Caller, job: &JobDetail) -> Option<PlacementReport> {
    if job.over || job.suspended {
        return None;
    }
    let (namespace, name) = (&job.row.namespace, &job.row.name);
    // Each group of a LeaderWorkerSet is a gang of its own.
    if job.row.plural != SETS
        && let Some(report) = waiting::report(portal, caller, namespace, name, name).await
    {
        return Some(report);
    }
    let mut replicas = job.replicas.iter();
    let waits = replicas.find(|replica| replica.node.is_empty() && replica.state != GONE)?;
    match waits.gang.as_str() {
        "" => (portal.hooks.explain)(namespace, &waits.pod),
        gang => waiting::report(portal, caller, namespace, gang, name).await,
    }
}

/// When each pod got its node, as the decisions say.
fn bound(history: &[HistoryLine]) -> BTreeMap<String, Vec<(Timestamp, String)>> {
    let mut all: BTreeMap<String, Vec<(Timestamp, String)>> = BTreeMap::new();
    let records = history.iter().map(|line| &line.record);
    for record in records.filter(|record| record.decision == DecisionKind::Bound) {
        for place in &record.pods {
            let times = all.entry(place.pod.clone()).or_default();
            times.push((record.at, place.node.clone()));
        }
    }
    all
}

fn lanes(
    job: &JobDetail,
    bound: &BTreeMap<String, Vec<(Timestamp, String)>>,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Vec<Lane> {
    let Some(created) = job.created.filter(|_| job.row.plural != CRON_JOBS) else {
        return Vec::new();
    };
    let end = |replica: &Replica| match replica.state.as_str() {
        "Succeeded" => Some(BarKind::Done),
        "Failed" | "Error" => Some(BarKind::Failed),
        _ if !job.over => None,
        _ => match (job.row.tone, failure) {
            (Tone::Bad, Some(failure)) if failure.pod.pod == replica.pod => Some(BarKind::Failed),
            (Tone::Bad, _) => Some(BarKind::Ended),
            _ => Some(BarKind::Done),
        },
    };
    let ranks = job.replicas.iter().map(|replica| {
        let mut times = bound.get(&replica.pod).cloned().unwrap_or_default();
        // The history keeps a bounded number of decisions.
        if times.is_empty() && !replica.node.is_empty() {
            times.extend(job.started.map(|at| (at, replica.node.clone())));
        }
        RankTimes {
            pod: replica.pod.clone(),
            bound: times,
            end: end(replica),
        }
    });
    let ranks: Vec<RankTimes> = ranks.take(timeline::LANES_MAX).collect();
    timeline::lanes(&ranks, created, job.ended.unwrap_or(now))
}

/// The page.
async fn page_of(
    portal: &Portal,
    caller: &Caller,
    address: &Address,
    open: &OpenTab,
    logs: LogQueryForm,
    flash: FlashQuery,
) -> Result<Response, Problem> {
    let Address {
        namespace, name, ..
    } = address;
    let mut job = find(portal, caller, address).await.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "not-found",
            format!(
                "there is no job {name:?} in namespace {namespace:?}; it may have been deleted"
            ),
        )
    })?;
    let now = Timestamp::now();
    let mut tabs = TABS.iter().map(|(tab, _)| *tab);
    let tab = tabs.find(|tab| *tab == open.tab).unwrap_or("summary");
    let deleting = open.tab == "delete";
    let kind = training::by_plural(&address.kind);
    let failure = match job.row.tone == Tone::Bad && job.over {
        true => failure::of(portal, caller, kind, &job.object).await,
        false => None,
    };
    // A caller that may not read decisions sees the page without them.
    let history = history::lines(portal, caller, namespace, &address.kind, name).await;
    let history = history.unwrap_or_default();
    let bound = bound(&history);
    complete(&mut job, &bound, failure.as_ref());
    let report = report(portal, caller, &job).await;
    let lanes = lanes(&job, &bound, failure.as_ref(), now);
    let more_lanes = job.replicas.len().saturating_sub(lanes.len());
    let failing = failure.as_ref().map(|failure| failure.pod.pod.as_str());
    let range = measured::range_of_job(&job, &open.range, now);
    let charts = match tab {
        "metrics" => measured::of_job(portal, caller, &job, range, now).await?,
        _ => Vec::new(),
    };
    let logs = match tab {
        "logs" => logs::view(portal, caller, &job, failing, logs).await,
        _ => LogView::default(),
    };
    let events = match tab {
        "events" => events::of(portal.client(caller), &job, report.is_some(), now).await?,
        _ => Vec::new(),
    };
    let manifest = match tab {
        "manifest" => manifest(portal, caller, address).await?,
        _ => String::new(),
    };
    let pages = match tab {
        "summary" => pages::of(portal, caller, &job),
        _ => Vec::new(),
    };
    let verdict = Verdict::of(portal, caller, &job, failure, report, now).await;
    let lost = verdict.pod().to_owned();
    let line = |replica: &Replica| ReplicaLine {
        failed: replica.tone == Tone::Bad || replica.pod == lost,
        replica: replica.clone(),
    };
    let mut replicas: Vec<ReplicaLine> = job.replicas.iter().map(line).collect();
    // A page with many replicas begins with those that failed.
    if replicas.len() > SHOWN_REPLICAS {
        replicas.sort_by_key(|line| !line.failed);
    }
    let more_replicas = replicas.len().saturating_sub(SHOWN_REPLICAS);
    replicas.truncate(SHOWN_REPLICAS);
    let decisions = history.iter().rev().take(SHOWN_DECISIONS);
    let decisions = decisions.map(|line| DecisionLine {
        at: When::of(line.record.at, now),
        until: line.record.until.map(|until| When::of(until, now)),
        decision: line.record.decision.as_str(),
        message: line.record.message(),
    });
    let jobs_of = match job.row.plural == CRON_JOBS {
        true => format!(
            "/ui/jobs?namespace={}&q={}-",
            super::escape(namespace),
            super::escape(name)
        ),
        false => String::new(),
    };
    Ok(render(&JobPage {
        frame: PageFrame::of(caller, "jobs").flash(&flash, &job.row.href()),
        tab,
        tabs: TABS,
        deleting,
        verdict,
        created: When::maybe(job.row.created, now),
        lanes,
        begins: When::maybe(job.created, now),
        ends: When::of(job.ended.unwrap_or(now), now),
        more_lanes,
        decisions: decisions.collect(),
        replicas,
        more_replicas,
        charts,
        range,
        logs,
        pages,
        events,
        manifest,
        jobs_of,
        repeatable: job.row.plural != PODS,
        job,
    }))
}

/// Adds what the history and the verdict know of pods that are gone.
fn complete(
    job: &mut JobDetail,
    bound: &BTreeMap<String, Vec<(Timestamp, String)>>,
    failure: Option<&Failure>,
) {
    let over = job.over;
    // The pods of a Job have generated names: those that are gone are known from the decisions only.
    if job.replicas.is_empty() && job.row.plural != PODS {
        let gone = bound.keys().chain(failure.map(|failure| &failure.pod.pod));
        let names: std::collections::BTreeSet<&String> = gone.collect();
        job.replicas = names
            .into_iter()
            .take(SHOWN_REPLICAS)
            .enumerate()
            .map(|(rank, pod)| Replica::gone(rank, pod.clone()))
            .collect();
    }
    for replica in job.replicas.iter_mut().filter(|one| one.state == GONE) {
        let times = bound.get(&replica.pod);
        if let Some((_, node)) = times.and_then(|times| times.last()) {
            replica.node.clone_from(node);
        }
        if over {
            "ended".clone_into(&mut replica.state);
        }
        if let Some(failure) = failure.filter(|failure| failure.pod.pod == replica.pod) {
            "Failed".clone_into(&mut replica.state);
            replica.tone = Tone::Bad;
            let code = failure.pod.exit_code;
            replica.exit = code.map(|code| code.to_string()).unwrap_or_default();
            let restarts = failure.pod.attempts.saturating_sub(1);
            replica.restarts = i32::try_from(restarts).unwrap_or(i32::MAX);
        }
    }
}

/// The object as YAML, without the fields that the API keeps for itself.
async fn manifest(portal: &Portal, caller: &Caller, address: &Address) -> Result<String, Problem> {
    let kind = page_kind(&address.kind)?;
    let api = api_of(portal.client(caller), &address.namespace, kind);
    let mut object = api.get(&address.name).await?;
    object.metadata.managed_fields = None;
    let mut yaml = serde_norway::to_string(&object).unwrap_or_default();
    if yaml.len() > MANIFEST_MAX {
        let cut = (0..=MANIFEST_MAX).rfind(|at| yaml.is_char_boundary(*at));
        yaml.truncate(cut.unwrap_or(0));
        yaml.push_str("\n# the manifest goes on; `muster get -o yaml` prints all of it\n");
    }
    Ok(yaml)
}

/// Answers `GET`.
pub async fn page(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(address): Path<Address>,
    Query(open): Query<OpenTab>,
    Query(logs): Query<LogQueryForm>,
    Query(flash): Query<FlashQuery>,
) -> Response {
    match page_of(&portal, &caller, &address, &open, logs, flash).await {
        Ok(response) => response,
        Err(problem) => message(&caller, "jobs", &problem),
    }
}
