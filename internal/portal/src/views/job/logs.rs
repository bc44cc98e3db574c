//! The logs of a job: of all ranks, the failing one first, or of a chosen one, which the page follows.

use futures::future::join_all;
use resources::access::Caller;
use serde::Deserialize;

use super::super::escape;
use crate::board::{JobDetail, Replica, Tone};
use crate::log_tail;
use crate::log_text::{self, LogLine};
use crate::state::{LogQuery, Portal};

/// How many lines of a chosen rank the page shows.
const LINES: u64 = 200;
/// How many lines of each rank the page of all ranks shows.
const LINES_OF_EACH: u64 = 40;
/// How many lines a search looks at.
const SEARCHED_LINES: u64 = 5000;
/// The most ranks whose logs one page shows.
const PANES_MAX: usize = 8;
/// The most characters of logs on one page: a page stays below 150 KB.
const CHARS_MAX: usize = 60_000;
/// The most ranks in the list of choices.
const CHOICES_MAX: usize = 100;

/// What the reader asks for.
#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default)]
pub struct LogQueryForm {
    /// A rank, `all`, or empty: the failing rank, or rank 0.
    rank: String,
    /// Only lines with this text.
    q: String,
    /// `on`: with times.
    time: String,
    /// `on`: the run before the last restart.
    previous: String,
}

/// One rank's log.
pub struct LogPane {
    pub rank: usize,
    pub pod: String,
    pub state: String,
    pub tone: Tone,
    pub failed: bool,
    pub lines: Vec<LogLine>,
    /// Why there are no lines.
    pub problem: String,
    /// The log as text.
    pub source: String,
    /// Changes when the container starts again.
    pub run: String,
    /// The page follows the log.
    pub follows: bool,
}

/// The tab.
#[derive(Default)]
pub struct LogView {
    pub rank: String,
    pub q: String,
    pub time: bool,
    pub previous: bool,
    /// Ranks to choose, with their names.
    pub choices: Vec<(String, String)>,
    pub panes: Vec<LogPane>,
    /// Ranks that are not shown.
    pub more: usize,
}

/// The ranks to show: a chosen one, or all with the failing one first.
fn chosen<'j>(
    replicas: &'j [Replica],
    failing: Option<&str>,
    rank: &str,
) -> (Vec<&'j Replica>, String) {
    let bad = |replica: &Replica| failing == Some(&replica.pod) || replica.tone == Tone::Bad;
    let mut order: Vec<&Replica> = replicas.iter().collect();
    order.sort_by_key(|replica| (failing != Some(&replica.pod), !bad(replica), replica.rank));
    if rank == "all" {
        return (order, rank.to_owned());
    }
    let wanted = rank.parse().ok();
    let found = replicas
        .iter()
        .find(|replica| Some(replica.rank) == wanted)
        .or(order.first().copied());
    let rank = found.map(|replica| replica.rank.to_string());
    (found.into_iter().collect(), rank.unwrap_or_default())
}

/// Keeps the last lines up to a number of characters.
fn within(lines: Vec<LogLine>, most: usize) -> Vec<LogLine> {
    let mut left = most;
    let mut kept: Vec<LogLine> = Vec::new();
    for line in lines.into_iter().rev() {
        let length = line.spans.iter().map(|span| span.text.len()).sum::<usize>() + 1;
        if length > left {
            break;
        }
        left -= length;
        kept.push(line);
    }
    kept.reverse();
    kept
}

/// Reads the logs that the tab shows.
pub async fn view(
    portal: &Portal,
    caller: &Caller,
    job: &JobDetail,
    failing: Option<&str>,
    form: LogQueryForm,
) -> LogView {
    let (shown, rank) = chosen(&job.replicas, failing, &form.rank);
    let more = shown.len().saturating_sub(PANES_MAX);
    let several = rank == "all";
    let (time, previous) = (form.time == "on", form.previous == "on");
    let searched = form.q.trim().to_lowercase();
    let tail = match (searched.is_empty(), several) {
        (false, _) => SEARCHED_LINES,
        (true, true) => LINES_OF_EACH,
        (true, false) => LINES,
    };
    let namespace = &job.row.namespace;
    let panes = shown.into_iter().take(PANES_MAX).map(|replica| {
        let query = LogQuery {
            namespace: namespace.clone(),
            pod: replica.pod.clone(),
            tail_lines: Some(tail),
            timestamps: time,
            previous,
            ..LogQuery::default()
        };
        let mut source = format!(
            "/api/v1/logs/{}/{}?tailLines={tail}",
            escape(namespace),
            escape(&replica.pod)
        );
        if time {
            source.push_str("&timestamps=true");
        }
        if previous {
            source.push_str("&previous=true");
        }
        let searched = &searched;
        async move {
            let read = match job.over {
                true => log_tail::read_last_run(portal, caller, query).await,
                false => log_tail::read(portal, caller, query).await,
            };
            let (text, problem) = match read {
                Ok(text) => (text, String::new()),
                Err(problem) => (String::new(), problem.to_string()),
            };
            let mut lines = log_text::lines(&text, time);
            if !searched.is_empty() {
                lines.retain(|line| line.plain().to_lowercase().contains(searched));
            }
            LogPane {
                rank: replica.rank,
                pod: replica.pod.clone(),
                state: replica.state.clone(),
                tone: replica.tone,
                failed: failing == Some(&replica.pod) || replica.tone == Tone::Bad,
                lines,
                problem,
                source,
                run: replica.run.clone(),
                follows: searched.is_empty() && !several && !previous && !job.over,
            }
        }
    });
    let mut panes = join_all(panes).await;
    let each = CHARS_MAX / panes.len().max(1);
    for pane in &mut panes {
        pane.lines = within(std::mem::take(&mut pane.lines), each);
    }
    let choice = |replica: &Replica| {
        (
            replica.rank.to_string(),
            format!("rank {} ({})", replica.rank, replica.pod),
        )
    };
    let mut choices: Vec<(String, String)> = Vec::new();
    if job.replicas.len() > 1 {
        choices.push(("all".to_owned(), "all ranks".to_owned()));
    }
    choices.extend(job.replicas.iter().take(CHOICES_MAX).map(choice));
    LogView {
        rank,
        q: form.q,
        time,
        previous,
        choices,
        panes,
        more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(rank: usize, tone: Tone) -> Replica {
        Replica {
            tone,
            ..Replica::gone(rank, format!("j-{rank}"))
        }
    }

    #[test]
    fn the_failing_rank_comes_first_and_an_unknown_one_is_replaced() {
        let all = [
            replica(0, Tone::Busy),
            replica(1, Tone::Busy),
            replica(2, Tone::Bad),
        ];
        let ranks = |rank: &str, failing: Option<&str>| -> (Vec<usize>, String) {
            let (shown, rank) = chosen(&all, failing, rank);
            (shown.iter().map(|replica| replica.rank).collect(), rank)
        };
        assert_eq!(ranks("all", Some("j-1")), (vec![1, 2, 0], "all".to_owned()));
        assert_eq!(ranks("", Some("j-1")), (vec![1], "1".to_owned()));
        assert_eq!(ranks("", None), (vec![2], "2".to_owned()));
        assert_eq!(ranks("0", Some("j-1")), (vec![0], "0".to_owned()));
        assert_eq!(ranks("99", None), (vec![2], "2".to_owned()));
        assert!(chosen(&[], None, "0").0.is_empty());
    }

    #[test]
    fn the_end_of_a_log_is_kept_within_its_bound() {
        let lines = log_text::lines("one\ntwo\nthree", false);
        let kept = |most| -> Vec<String> {
            let kept = within(lines.clone(), most);
            kept.iter().map(LogLine::plain).collect()
        };
        assert_eq!(kept(100), ["one", "two", "three"]);
        assert_eq!(kept(10), ["two", "three"]);
        assert_eq!(kept(2), [] as [&str; 0]);
    }
}
