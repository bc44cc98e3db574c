//! The first page: what needs attention, the GPUs by node, what runs and what waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use axum::response::Response;
use jiff::Timestamp;
use resources::access::Caller;
use resources::training;
use serde::Deserialize;

use super::chart::{Chart, ChartRange};
use super::job::never_fits;
use super::measured;
use super::{PageCaller, PageFrame, escape, page};
use crate::board::{ClusterTotals, GpuSquare, JobEntry, JobRow, NodeCard, PODS, Tone, runs, waits};
use crate::state::Portal;
use crate::verdict::{FailedPod, rank_names};

/// The number of running and of waiting jobs on the page.
const SHOWN_JOBS: usize = 8;
/// The most lines of the list of what needs attention.
const ATTENTION_MAX: usize = 10;
/// The most waiting jobs whose reports are read.
const REPORTS_MAX: usize = 50;
/// The most nodes on the map.
const MAP_MAX: usize = 200;
/// How long ago a job failed at most to need attention, in seconds.
const RECENT: i64 = 24 * 3600;
/// The number of colours of owners.
const OWNERS: usize = 8;

/// What the map shows.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct MapQuery {
    /// `load`, or empty: by owner.
    map: String,
    /// The time of the chart.
    range: String,
}

/// A line of what needs attention.
#[derive(Debug, PartialEq, Eq)]
struct Attention {
    href: String,
    name: String,
    words: String,
}

/// A square of the map.
struct Square {
    index: u32,
    class: String,
    words: String,
}

/// A node on the map.
struct MapNode {
    name: String,
    status: String,
    tone: Tone,
    squares: Vec<Square>,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: PageFrame,
    cluster: ClusterTotals,
    attention: Vec<Attention>,
    more_attention: usize,
    map: Vec<MapNode>,
    more_nodes: usize,
    by_load: bool,
    /// GPUs in use over time.
    chart: Option<Chart>,
    range: ChartRange,
    /// Namespaces with the colours of their GPUs.
    owners: Vec<(String, usize)>,
    running: Vec<JobRow>,
    waiting: Vec<JobRow>,
    runs: usize,
    waits: usize,
}

impl Overview {
    /// The address of the chart's ranges, without the range.
    fn ranges_of(&self) -> &'static str {
        match self.by_load {
            true => "/ui/?map=load&",
            false => "/ui/?",
        }
    }
}

/// The namespace of a GPU's holder; empty for one that the reader may not see.
fn owner(gpu: &GpuSquare) -> Option<&str> {
    if gpu.class() != "busy" {
        return None;
    }
    Some(gpu.holder.split_once('/').map_or("", |(owner, _)| owner))
}

/// Each namespace's colour. The last colour is that of all others.
fn colours(cards: &[NodeCard]) -> BTreeMap<String, usize> {
    let gpus = cards.iter().flat_map(|card| &card.gpus);
    let owners: BTreeSet<&str> = gpus.filter_map(owner).collect();
    let named = owners.into_iter().filter(|owner| !owner.is_empty());
    named
        .enumerate()
        .map(|(at, owner)| (owner.to_owned(), at.min(OWNERS - 1)))
        .collect()
}

fn square(gpu: &GpuSquare, colours: &BTreeMap<String, usize>, by_load: bool) -> Square {
    let class = match (owner(gpu), by_load) {
        (None, _) => gpu.class().to_owned(),
        (Some(_), true) => match gpu.level {
            Some(level) => format!("load{level}"),
            None => "busy".to_owned(),
        },
        (Some(owner), false) => format!("own{}", colours.get(owner).unwrap_or(&(OWNERS - 1))),
    };
    let load = match gpu.load.as_str() {
        "" => String::new(),
        load => format!("; {load}"),
    };
    Square {
        index: gpu.index,
        class,
        words: format!("{}{load}", gpu.message()),
    }
}

fn of_nodes(cards: &[NodeCard], all: &mut Vec<Attention>) {
    for card in cards {
        let mut add = |words: String| {
            all.push(Attention {
                href: format!("/ui/nodes/{}", escape(&card.name)),
                name: card.name.clone(),
                words,
            });
        };
        if card.tone == Tone::Bad {
            let lost = match card.gpus.len() {
                0 => String::new(),
                gpus => format!("; its {gpus} GPUs are out"),
            };
            add(format!("node is {}{lost}", card.status));
            continue;
        }
        let bad = card.gpus.iter().filter(|gpu| !gpu.healthy).count();
        if bad > 0 {
            add(format!("{bad} of {} GPUs unhealthy", card.gpus.len()));
        }
        if !card.suspect.is_empty() {
            add(format!("suspect: {}", card.suspect));
        }
        let warns = |alert: &&crate::board::ActiveAlert| alert.severity == "warning";
        if let Some(alert) = card.alerts.iter().find(warns) {
            add(alert.message.clone());
        }
    }
}

fn of_job(row: &JobRow, words: String) -> Attention {
    Attention {
        href: row.href(),
        name: row.name.clone(),
        words,
    }
}

/// What needs attention: nodes first, then pods that fail again and again, jobs that cannot start on these nodes, and the
/// reader's own jobs that failed within a day. At most [`ATTENTION_MAX`] of them, and how many more there are: to read
/// why a job failed takes its whole object, and thousands may have failed.
fn attention(
    portal: &Portal,
    caller: &Caller,
    cards: &[NodeCard],
    entries: &[Arc<JobEntry>],
    now: Timestamp,
) -> (Vec<Attention>, usize) {
    let mut all = Vec::new();
    of_nodes(cards, &mut all);
    for entry in entries {
        let row = entry.base();
        if row.plural == PODS && row.tone == Tone::Bad && !row.over() {
            all.push(of_job(row, format!("pod is in {}", row.state)));
        }
    }
    let gpus = ClusterTotals::of(cards).gpus;
    let waiting = entries.iter().filter(|entry| waits(entry));
    for entry in waiting.take(REPORTS_MAX) {
        let row = entry.base();
        let report = (portal.hooks.explain)(&row.namespace, &row.name);
        if let Some(report) = report.filter(|report| never_fits(report, gpus)) {
            let words = format!("cannot start on these nodes: {}", report.binding);
            all.push(of_job(row, words));
        }
    }
    let failed = entries.iter().filter(|entry| {
        let row = entry.base();
        let recent = entry
            .ended
            .is_some_and(|at| now.duration_since(at).as_secs() < RECENT);
        row.over() && row.tone == Tone::Bad && recent && row.user == caller.user
    });
    let count = all.len() + failed.clone().count();
    let room = ATTENTION_MAX.saturating_sub(all.len());
    let failed = failed.take(room);
    all.extend(failed.map(|entry| of_job(entry.base(), failure(entry))));
    all.truncate(ATTENTION_MAX);
    let more = count - all.len();
    (all, more)
}

/// Why a job failed, as its controller says.
fn failure(entry: &JobEntry) -> String {
    let job = entry.source.value();
    let kind = training::by_plural(entry.base().plural);
    let pod = FailedPod::of(&job, &rank_names(kind, &job));
    pod.map_or_else(|| "failed".to_owned(), |pod| pod.sentence(None))
}

/// The page.
pub async fn overview(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(query): Query<MapQuery>,
) -> Response {
    let now = Timestamp::now();
    let entries = portal.entries(&caller);
    let cards = portal.nodes(&caller).unwrap_or_default();
    let (attention, more_attention) = attention(&portal, &caller, &cards, &entries, now);
    let by_load = query.map == "load";
    let colours = colours(&cards);
    let map = cards.iter().take(MAP_MAX).map(|card| MapNode {
        name: card.name.clone(),
        status: card.status.clone(),
        tone: card.tone,
        squares: card
            .gpus
            .iter()
            .map(|gpu| square(gpu, &colours, by_load))
            .collect(),
    });
    let first = |of: fn(&JobEntry) -> bool| -> (Vec<JobRow>, usize) {
        let rows = entries.iter().filter(|entry| of(entry));
        let shown = rows.clone().take(SHOWN_JOBS).map(|entry| entry.row(now));
        (shown.collect(), rows.count())
    };
    let range = ChartRange::named(&query.range, "24h");
    let chart = measured::of_cluster(&portal, &caller, range).await;
    let (running, runs) = first(runs);
    let (waiting, waits) = first(waits);
    page(&Overview {
        frame: PageFrame::of(&caller, "overview"),
        cluster: ClusterTotals::of(&cards),
        attention,
        more_attention,
        map: map.collect(),
        more_nodes: cards.len().saturating_sub(MAP_MAX),
        by_load,
        chart,
        range,
        owners: colours.into_iter().collect(),
        running,
        waiting,
        runs,
        waits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(holder: &str) -> GpuSquare {
        GpuSquare {
            index: 0,
            model: "H100".into(),
            memory_mib: 81_920,
            healthy: true,
            holder: holder.to_owned(),
            load: String::new(),
            level: None,
            away: false,
        }
    }

    #[test]
    fn a_gpu_has_its_owners_colour_and_a_dead_nodes_gpu_has_none() {
        let colours = BTreeMap::from([("a".to_owned(), 0), ("b".to_owned(), 1)]);
        let class = |gpu: &GpuSquare, by_load| square(gpu, &colours, by_load).class;
        assert_eq!(class(&gpu(""), false), "free");
        assert_eq!(class(&gpu("b/p"), false), "own1");
        assert_eq!(class(&gpu("another namespace's pod"), false), "own7");
        assert_eq!(class(&gpu("b/p"), true), "busy");
        let hot = GpuSquare {
            level: Some(3),
            ..gpu("b/p")
        };
        assert_eq!(class(&hot, true), "load3");
        let away = GpuSquare {
            away: true,
            ..gpu("b/p")
        };
        assert_eq!(class(&away, false), "away");
        assert!(
            square(&away, &colours, false)
                .words
                .ends_with("its node is away")
        );
    }
}
