//! Metrics of both engines' servers in Prometheus' text format: the scheduler's counts, the answered requests, and the
//! process by the names that Prometheus' own clients use.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use controllers::scheduling::CounterSnapshot;
use nix::unistd::{SysconfVar, sysconf};
use parking_lot::Mutex;
use resources::exposition::{Histogram, Kind, MetricLabels, Page};

/// The upper bounds of the histogram of answers, in seconds.
const ANSWERS: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0];
/// The methods that are told apart; clients choose others freely.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// How long requests took until the head of their answer, by method and first digit of the status. A watch's answer
/// begins at once and goes on.
#[derive(Debug, Default)]
pub struct RequestMetrics(Mutex<BTreeMap<(&'static str, &'static str), Histogram>>);

impl RequestMetrics {
    /// Counts an answer.
    pub fn count(&self, method: &Method, status: StatusCode, took: Duration) {
        let known = METHODS.into_iter().find(|one| *one == method.as_str());
        let class = match status.as_u16() {
            100..200 => "1xx",
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        let mut all = self.0.lock();
        let answers = all.entry((known.unwrap_or("other"), class));
        let answers = answers.or_insert_with(|| Histogram::new(ANSWERS));
        answers.observe(took.as_secs_f64());
    }

    /// Writes them on the page.
    pub fn write(&self, page: &mut Page) {
        let all = self.0.lock();
        let labelled = all.iter().map(|((method, class), answers)| {
            let labels = MetricLabels::default()
                .with("method", method)
                .with("code", class);
            (labels, answers)
        });
        page.histograms(
            "muster_http_request_duration_seconds",
            "Time from a request's head to its answer's head.",
            labelled,
        );
    }
}

/// Writes the scheduler's counts, and how many gangs wait.
pub fn scheduler(page: &mut Page, pending: usize, counts: &CounterSnapshot) {
    page.single(
        "muster_pending_gangs",
        Kind::Gauge,
        "Gangs that wait.",
        pending as f64,
    );
    page.single(
        "muster_planning_seconds_total",
        Kind::Counter,
        "Time spent planning.",
        counts.planning.as_secs_f64(),
    );
    for (name, help, count) in [
        ("muster_plans_total", "Plans made.", counts.plans),
        ("muster_binds_total", "Pods bound.", counts.binds),
        (
            "muster_binds_refused_total",
            "Bindings that the API refused.",
            counts.binds_refused,
        ),
        ("muster_evictions_total", "Pods evicted.", counts.evictions),
        (
            "muster_evictions_refused_total",
            "Evictions that the API refused.",
            counts.evictions_refused,
        ),
        (
            "muster_invariant_violations_total",
            "Faults found in plans and kept from being written.",
            counts.violations,
        ),
    ] {
        page.single(name, Kind::Counter, help, count as f64);
    }
}

/// Writes what the process uses; what the system does not tell is left out.
pub fn process(page: &mut Page) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let per_second = system(SysconfVar::CLK_TCK);
    let page_bytes = system(SysconfVar::PAGE_SIZE);
    if let (Some(use_now), Some(per_second), Some(bytes)) = (used(&stat), per_second, page_bytes) {
        page.single(
            "process_cpu_seconds_total",
            Kind::Counter,
            "Time of processors that the process used.",
            use_now.ticks as f64 / per_second,
        );
        page.single(
            "process_resident_memory_bytes",
            Kind::Gauge,
            "Resident memory.",
            use_now.pages as f64 * bytes,
        );
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.single(
            "process_open_fds",
            Kind::Gauge,
            "Open file descriptors.",
            open.count() as f64,
        );
    }
    let version = MetricLabels::default().with("version", env!("CARGO_PKG_VERSION"));
    page.family(
        "muster_build_info",
        Kind::Gauge,
        "Always 1; the label tells the version.",
        [(version, 1.0)],
    );
}

fn system(variable: SysconfVar) -> Option<f64> {
    sysconf(variable).ok().flatten().map(|value| value as f64)
}

#[derive(Debug, PartialEq, Eq)]
struct ProcessUse {
    ticks: u64,
    pages: u64,
}

/// Of a line of `/proc/PID/stat` (proc_pid_stat(5)) utime and stime in clock ticks, and rss in pages.
fn used(stat: &str) -> Option<ProcessUse> {
    // The second field is the program's name in parentheses, which may have any characters.
    let (_, fields) = stat.rsplit_once(')')?;
    let field = |number: usize| {
        fields
            .split_whitespace()
            .nth(number - 3)?
            .parse::<u64>()
            .ok()
    };
    Some(ProcessUse {
        ticks: field(14)? + field(15)?,
        pages: field(24)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let line = "42 (a ) b) S 1 42 42 0 -1 4194560 900 0 1 0 130 70 0 0 20 0 4 0 1000 99999744 2048 1844";
        let expected = ProcessUse {
            ticks: 200,
            pages: 2048,
        };
        assert_eq!(used(line), Some(expected));
        assert_eq!(used("42 (a) S"), None);
        assert_eq!(used(""), None);
    }

    #[test]
    fn answers_are_counted_by_method_and_class_whatever_method_a_client_invents() {
        let requests = RequestMetrics::default();
        let invented = Method::from_bytes(b"BREW").unwrap();
        requests.count(&Method::GET, StatusCode::OK, Duration::from_millis(3));
        requests.count(
            &Method::GET,
            StatusCode::CREATED,
            Duration::from_millis(300),
        );
        requests.count(&invented, StatusCode::METHOD_NOT_ALLOWED, Duration::ZERO);
        let mut page = Page::default();
        requests.write(&mut page);
        let text = page.text();
        for line in [
            "muster_http_request_duration_seconds_bucket{method=\"GET\",code=\"2xx\",le=\"0.005\"} 1\n",
            "muster_http_request_duration_seconds_count{method=\"GET\",code=\"2xx\"} 2\n",
            "muster_http_request_duration_seconds_count{method=\"other\",code=\"4xx\"} 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
