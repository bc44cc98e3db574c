//! The sentence on top of a job's page, with the one action that follows from it. The sentences come from the failure's
//! verdict, the scheduler's report and the job's own state, as in the REST API.

use jiff::Timestamp;
use resources::access::Caller;
use resources::failure::FailureAction;
use resources::leader_worker_set;
use resources::names;
use resources::report::{PlacementReport, WaitReason, preemptable_words};

use super::When;
use crate::board::{ClusterTotals, JobDetail, Tone};
use crate::failure::Failure;
use crate::log_text::LogLine;
use crate::state::Portal;
use crate::verdict::record_of;

/// How long a new job's missing pods are no news, in seconds: its controller is creating them.
const CREATING: i64 = 15;
/// The length of the bar of free and needed GPUs, in units of the drawing.
const BAR: i64 = 1000;

/// GPUs that a waiting job needs, beside those there are.
#[derive(Debug)]
pub struct Need {
    pub needed: i64,
    pub free: i64,
    pub all: i64,
    /// Places on a bar of [`BAR`] units.
    pub held_width: i64,
    pub all_width: i64,
    pub needed_width: i64,
}

/// The link that the verdict suggests.
#[derive(Debug)]
pub struct Action {
    pub href: String,
    pub label: String,
}

/// What the page says first.
#[derive(Debug)]
pub struct Verdict {
    pub tone: Tone,
    pub sentence: String,
    pub action: Option<Action>,
    pub need: Option<Need>,
    /// Terms with their descriptions.
    pub details: Vec<(&'static str, String)>,
    pub start: Option<(When, When, When)>,
    pub since: Option<When>,
    pub waits: bool,
    /// The end of the failed pod's log.
    pub lines: Vec<LogLine>,
    pod: String,
}

impl Verdict {
    /// The pod that failed; empty if there is none.
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// The verdict on a job.
    pub async fn of(
        portal: &Portal,
        caller: &Caller,
        job: &JobDetail,
        failure: Option<Failure>,
        report: Option<PlacementReport>,
        now: Timestamp,
    ) -> Verdict {
        if let Some(failure) = failure {
            return failed(job, failure);
        }
        if let Some(report) = report {
            let mut verdict = waiting(portal, caller, job, &report, now).await;
            // The other groups of a LeaderWorkerSet may run.
            let of_group = &verdict.sentence;
            if let Some(text) = leader_worker_set::waiting_sentence(&job.object, of_group) {
                verdict.sentence = text;
            }
            return verdict;
        }
        let logs = |label: &str| Action {
            href: format!("{}?tab=logs", job.row.href()),
            label: label.to_owned(),
        };
        let action = match job.row.tone {
            Tone::Busy => Some(logs("Follow the log")),
            Tone::Good | Tone::Bad if !job.replicas.is_empty() => Some(logs("Read the log")),
            Tone::Idle if job.suspended => None,
            _ => None,
        };
        Verdict {
            tone: job.row.tone,
            sentence: job.sentence.clone(),
            action,
            details: last_failure(job),
            ..Verdict::blank()
        }
    }

    fn blank() -> Verdict {
        Verdict {
            tone: Tone::Idle,
            sentence: String::new(),
            action: None,
            need: None,
            details: Vec::new(),
            start: None,
            since: None,
            waits: false,
            lines: Vec::new(),
            pod: String::new(),
        }
    }
}

/// The last failure of a job that went on after it, with its class and what followed.
fn last_failure(job: &JobDetail) -> Vec<(&'static str, String)> {
    let record = record_of(&job.object).filter(|_| !job.over);
    let Some(record) = record else {
        return Vec::new();
    };
    let mut details = vec![
        ("Last failure", record.sentence()),
        ("Class", record.class.as_str().to_owned()),
    ];
    let action = record
        .action
        .map(|action| ("Action", action.as_str().to_owned()));
    details.extend(action);
    details
}

fn failed(job: &JobDetail, failure: Failure) -> Verdict {
    let row = &job.row;
    let mut replicas = job.replicas.iter();
    let node = replicas
        .find(|replica| replica.pod == failure.pod.pod)
        .map(|replica| replica.node.clone());
    let from = format!("{}/{}/{}", row.namespace, row.plural, row.name);
    let mut details = Vec::new();
    let mut add = |term, words: String| {
        if !words.is_empty() {
            details.push((term, words));
        }
    };
    add("Pod", failure.pod.pod.clone());
    add("Node", node.unwrap_or_default());
    let code = failure.pod.exit_code;
    add(
        "Exit code",
        code.map(|code| code.to_string()).unwrap_or_default(),
    );
    add("Attempts", failure.pod.attempts.to_string());
    if let Some(record) = &failure.pod.record {
        add("Class", record.class.as_str().to_owned());
        let action = record.action.map(FailureAction::as_str);
        add("Action", action.unwrap_or_default().to_owned());
    }
    Verdict {
        tone: Tone::Bad,
        sentence: failure.sentence,
        action: Some(Action {
            href: format!("/ui/submit?from={}", super::super::escape(&from)),
            label: "Run again with changes".to_owned(),
        }),
        details,
        lines: failure.lines,
        pod: failure.pod.pod,
        ..Verdict::blank()
    }
}

/// The GPUs that a report's tasks need together.
fn gpus_needed(report: &PlacementReport) -> i64 {
    let of = |task: &resources::report::TaskReport| {
        let members = i64::try_from(task.wanted).unwrap_or(i64::MAX);
        let each = task.each.get(names::NVIDIA_GPU).copied().unwrap_or(0);
        each.saturating_mul(members)
    };
    report.tasks.iter().map(of).fold(0, i64::saturating_add)
}

impl Need {
    /// The bar; none for a job without GPUs.
    fn of(needed: i64, cluster: &ClusterTotals) -> Option<Need> {
        let all = i64::try_from(cluster.gpus).ok()?;
        let free = i64::try_from(cluster.gpus_free).ok()?;
        let whole = needed.max(all).max(1);
        let place = |count: i64| count.saturating_mul(BAR) / whole;
        (needed > 0).then(|| Need {
            needed,
            free,
            all,
            held_width: place(all - free),
            all_width: place(all),
            needed_width: place(needed),
        })
    }
}

/// True if a gang cannot start on nodes with so many GPUs although all of them were empty.
pub fn never_fits(report: &PlacementReport, gpus: usize) -> bool {
    let all = i64::try_from(gpus).unwrap_or(i64::MAX);
    let too_many = gpus_needed(report) > all;
    too_many || matches!(report.verdict, WaitReason::NoNodeFits | WaitReason::NoNodes)
}

/// True if the job cannot start although every node were empty.
fn never(report: &PlacementReport, need: Option<&Need>) -> bool {
    let too_many = need.is_some_and(|need| need.needed > need.all);
    too_many || matches!(report.verdict, WaitReason::NoNodeFits | WaitReason::NoNodes)
}

fn sentence(report: &PlacementReport, need: Option<&Need>) -> String {
    let never = never(report, need);
    let binding = match report.binding.trim_end_matches('.') {
        "" => report.verdict.reason(),
        binding => binding,
    };
    match (need, never) {
        (Some(need), true) => format!(
            "Cannot start on these nodes: needs {} GPUs, the cluster has {}: {binding}.",
            need.needed, need.all
        ),
        (None, true) => format!("Cannot start on these nodes: {binding}."),
        (Some(need), false) if report.verdict == WaitReason::InsufficientResources => format!(
            "Waits: needs {} GPUs at once, {} of {} are free.",
            need.needed, need.free, need.all
        ),
        _ => format!("Waits: {binding}."),
    }
}

async fn waiting(
    portal: &Portal,
    caller: &Caller,
    job: &JobDetail,
    report: &PlacementReport,
    now: Timestamp,
) -> Verdict {
    let age = job.created.map(|at| now.duration_since(at).as_secs());
    let creating =
        report.verdict == WaitReason::NotEnoughMembers && age.is_some_and(|age| age < CREATING);
    if creating {
        return Verdict {
            sentence: "The job's pods are being created.".to_owned(),
            ..Verdict::blank()
        };
    }
    let cards = portal.nodes(caller).unwrap_or_default();
    let need = Need::of(gpus_needed(report), &ClusterTotals::of(&cards));
    let need = need.filter(|_| !cards.is_empty());
    let victims = portal
        .could_evict(caller, &report.namespace, &report.group)
        .await;
    let mut details = Vec::new();
    let mut add = |term, words: String| {
        if !words.is_empty() {
            details.push((term, words));
        }
    };
    add("What binds", report.binding.clone());
    add("What would fit", report.would_fit.clone());
    add("Evictions", report.evictions.clone());
    add("Could evict", preemptable_words(&victims));
    for task in &report.tasks {
        let name = match task.name.as_str() {
            "" => "members",
            name => name,
        };
        let words = format!(
            "{name}: {} of {} can be scheduled",
            task.placeable, task.wanted
        );
        add("Members", words);
    }
    let ahead = match report.ahead {
        0 => format!("first in queue {}", report.queue),
        1 => format!("1 gang or pod is ahead in queue {}", report.queue),
        ahead => format!("{ahead} gangs and pods are ahead in queue {}", report.queue),
    };
    add("Position", ahead);
    let excluded = report.per_reason.iter().map(|reason| match reason.nodes {
        1 => format!("1 node: {}", reason.reason),
        nodes => format!("{nodes} nodes: {}", reason.reason),
    });
    let excluded: Vec<String> = excluded.collect();
    add("Nodes", excluded.join("; "));
    let never = never(report, need.as_ref());
    let row = &job.row;
    let from = format!("{}/{}/{}", row.namespace, row.plural, row.name);
    let action = match never {
        true => Action {
            href: format!("/ui/submit?from={}", super::super::escape(&from)),
            label: "Run again with changes".to_owned(),
        },
        false => Action {
            href: format!("/ui/queues/{}", super::super::escape(&report.queue)),
            label: format!("See queue {}", report.queue),
        },
    };
    Verdict {
        tone: match never {
            true => Tone::Bad,
            false => Tone::Idle,
        },
        sentence: sentence(report, need.as_ref()),
        action: Some(action),
        need,
        details,
        start: report.estimate.map(|estimate| {
            let when = |at| When::of(at, now);
            (
                when(estimate.likely),
                when(estimate.earliest),
                when(estimate.latest),
            )
        }),
        since: report.since.map(|since| When::of(since, now)),
        waits: true,
        ..Verdict::blank()
    }
}

#[cfg(test)]
mod tests {
    use resources::report::TaskReport;

    use super::*;

    fn report(verdict: WaitReason, each: i64, wanted: usize) -> PlacementReport {
        PlacementReport {
            verdict,
            binding: "0 of 4 nvidia.com/gpu are free".into(),
            tasks: vec![TaskReport {
                wanted,
                each: [(names::NVIDIA_GPU.to_owned(), each)].into(),
                ..TaskReport::default()
            }],
            ..PlacementReport::default()
        }
    }

    #[test]
    fn a_waiting_job_says_what_it_needs_beside_what_is_free() {
        let cluster = ClusterTotals {
            gpus: 12,
            gpus_free: 3,
            ..ClusterTotals::default()
        };
        let words = |report: &PlacementReport| {
            let need = Need::of(gpus_needed(report), &cluster);
            sentence(report, need.as_ref())
        };
        let short = report(WaitReason::InsufficientResources, 4, 2);
        assert_eq!(
            words(&short),
            "Waits: needs 8 GPUs at once, 3 of 12 are free."
        );
        let never = report(WaitReason::NoNodeFits, 64, 1);
        assert!(
            words(&never)
                .starts_with("Cannot start on these nodes: needs 64 GPUs, the cluster has 12:")
        );
        let many = report(WaitReason::InsufficientResources, 16, 1);
        assert!(words(&many).starts_with("Cannot start"));
        let cpus = report(WaitReason::InsufficientResources, 0, 1);
        assert_eq!(words(&cpus), "Waits: 0 of 4 nvidia.com/gpu are free.");
    }

    #[test]
    fn the_bar_holds_what_is_needed_and_what_there_is() {
        let totals = |gpus: usize, gpus_free: usize| ClusterTotals {
            gpus,
            gpus_free,
            ..ClusterTotals::default()
        };
        for (needed, gpus, free) in [(8, 12, 3), (64, 12, 12), (1, 0, 0), (i64::MAX, 4, 1)] {
            let need = Need::of(needed, &totals(gpus, free)).unwrap();
            for width in [need.held_width, need.all_width, need.needed_width] {
                assert!((0..=BAR).contains(&width), "{need:?}");
            }
        }
        assert!(Need::of(0, &totals(4, 4)).is_none());
    }
}
