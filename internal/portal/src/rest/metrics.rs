//! The server's metrics in Prometheus' text format. They tell of all namespaces: the caller needs the right to GET the
//! path `/metrics`, as with kube-apiserver's.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::{HeaderName, header};
use resources::exposition::{self, Kind, MetricLabels, Page};
use resources::quantity::Quantity;
use resources::queue_status::{QueueUsageStatus, ResourceUsageStatus};

use crate::board::{NodeCard, Tone};
use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

const PATH: &str = "/metrics";

/// Answers `GET /metrics`.
pub async fn page(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<([(HeaderName, &'static str); 1], String), Problem> {
    if !(portal.hooks.permits_path)(&caller, PATH) {
        return Err(Problem::forbidden(format!(
            "user {:?} may not get {PATH}; an administrator can bind a ClusterRole with nonResourceURLs [{PATH:?}]",
            caller.user
        )));
    }
    let mut page = Page::default();
    let nodes = portal.board.nodes(|_| true);
    write_nodes(&mut page, &nodes);
    let entries = portal.board.entries(|_, _, _| true);
    let jobs = entries.iter().filter(|entry| entry.is_job());
    let jobs = jobs.map(|entry| (entry.base().kind, entry.base().state.as_str()));
    write_jobs(&mut page, jobs);
    let queues = (portal.hooks.queues)().await;
    write_queues(&mut page, &queues);
    {
        let usage = portal.hooks.usage.lock();
        let waits = usage.waits();
        page.histograms(
            "muster_pod_wait_seconds",
            "Time from a pod's creation to its binding.",
            waits.map(|(queue, waits)| (MetricLabels::default().with("queue", queue), waits)),
        );
    }
    (portal.hooks.metrics)(&mut page);
    let kind = [(header::CONTENT_TYPE, exposition::CONTENT_TYPE)];
    Ok((kind, page.text()))
}

fn write_nodes(page: &mut Page, nodes: &[NodeCard]) {
    let mut by_state: BTreeMap<&str, usize> = BTreeMap::from([("ready", 0), ("not_ready", 0)]);
    let mut gpus: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for node in nodes {
        let ready = node.tone == Tone::Good;
        *by_state
            .entry(if ready { "ready" } else { "not_ready" })
            .or_default() += 1;
        for gpu in &node.gpus {
            let state = match (gpu.healthy && ready, gpu.holder.is_empty()) {
                (false, _) => "unavailable",
                (true, true) => "free",
                (true, false) => "allocated",
            };
            *gpus.entry((gpu.model.clone(), state)).or_default() += 1;
        }
    }
    let labelled = by_state
        .into_iter()
        .map(|(state, count)| (MetricLabels::default().with("state", state), count as f64));
    page.family("muster_nodes", Kind::Gauge, "Nodes by state.", labelled);
    let labelled = gpus.into_iter().map(|((model, state), count)| {
        let labels = MetricLabels::default()
            .with("model", &model)
            .with("state", state);
        (labels, count as f64)
    });
    page.family(
        "muster_gpus",
        Kind::Gauge,
        "GPUs by model: allocated, free, or unavailable (ill, or on a node that is not ready).",
        labelled,
    );
}

fn write_jobs<'a>(page: &mut Page, jobs: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for job in jobs {
        *counts.entry(job).or_default() += 1;
    }
    let labelled = counts.into_iter().map(|((kind, state), count)| {
        let labels = MetricLabels::default()
            .with("kind", kind)
            .with("state", state);
        (labels, count as f64)
    });
    page.family(
        "muster_jobs",
        Kind::Gauge,
        "Jobs by kind and state.",
        labelled,
    );
}

type AmountOf = fn(&ResourceUsageStatus) -> Option<&str>;

fn write_queues(page: &mut Page, queues: &BTreeMap<String, QueueUsageStatus>) {
    let families: [(&str, &str, AmountOf); 4] = [
        ("muster_queue_used", "What a queue uses.", |row| {
            Some(&row.used)
        }),
        (
            "muster_queue_requested",
            "What a queue uses and its waiting gangs ask for.",
            |row| Some(&row.requested),
        ),
        (
            "muster_queue_entitled",
            "What a queue is entitled to now.",
            |row| Some(&row.entitled),
        ),
        (
            "muster_queue_limit",
            "The most that a queue may use.",
            |row| row.at_most.as_deref(),
        ),
    ];
    for (name, help, amount) in families {
        let rows = queues.iter().flat_map(|(queue, status)| {
            status.resources.iter().filter_map(move |row| {
                let quantity: Quantity = amount(row)?.parse().ok()?;
                let labels = MetricLabels::default()
                    .with("queue", queue)
                    .with("resource", &row.resource);
                Some((labels, quantity.milli() as f64 / 1000.0))
            })
        });
        page.family(name, Kind::Gauge, help, rows);
    }
    let labelled = |value: fn(&QueueUsageStatus) -> f64| {
        queues.iter().map(move |(queue, status)| {
            (MetricLabels::default().with("queue", queue), value(status))
        })
    };
    page.family(
        "muster_queue_share",
        Kind::Gauge,
        "A queue's dominant share of the cluster, from 0 to 1.",
        labelled(|status| status.share),
    );
    page.family(
        "muster_queue_share_of_entitled",
        Kind::Gauge,
        "A queue's largest use as a fraction of its entitlement: above 1 others may reclaim some of it.",
        labelled(|status| status.share_of_entitled),
    );
    page.family(
        "muster_queue_pending_gangs",
        Kind::Gauge,
        "Gangs that wait in a queue.",
        labelled(|status| status.waiting.len() as f64),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_amounts_are_numbers_in_the_resources_units() {
        let row = |resource: &str, used: &str, at_most: Option<&str>| ResourceUsageStatus {
            resource: resource.to_owned(),
            used: used.to_owned(),
            requested: "0".to_owned(),
            entitled: "odd".to_owned(),
            at_most: at_most.map(str::to_owned),
            ..ResourceUsageStatus::default()
        };
        let status = QueueUsageStatus {
            share: 0.25,
            resources: vec![row("cpu", "1500m", None), row("memory", "2Gi", Some("8Gi"))],
            waiting: vec![("a".to_owned(), "b".to_owned())],
            ..QueueUsageStatus::default()
        };
        let mut page = Page::default();
        write_queues(
            &mut page,
            &BTreeMap::from([("research".to_owned(), status)]),
        );
        let text = page.text();
        for line in [
            "muster_queue_used{queue=\"research\",resource=\"cpu\"} 1.5\n",
            "muster_queue_used{queue=\"research\",resource=\"memory\"} 2147483648\n",
            "muster_queue_limit{queue=\"research\",resource=\"memory\"} 8589934592\n",
            "muster_queue_share{queue=\"research\"} 0.25\n",
            "muster_queue_pending_gangs{queue=\"research\"} 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("muster_queue_entitled"), "{text}");
    }

    #[test]
    fn jobs_are_counted_by_kind_and_state() {
        let mut page = Page::default();
        write_jobs(
            &mut page,
            [("Job", "Running"), ("Job", "Failed"), ("Job", "Running")].into_iter(),
        );
        let text = page.text();
        assert!(
            text.contains("muster_jobs{kind=\"Job\",state=\"Running\"} 2\n"),
            "{text}"
        );
        assert!(
            text.contains("muster_jobs{kind=\"Job\",state=\"Failed\"} 1\n"),
            "{text}"
        );
    }
}
