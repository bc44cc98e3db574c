//! `muster idle`: jobs whose GPUs do nothing.

use administration::idle_jobs::IdleJob;
use anyhow::Result;
use jiff::Timestamp;
use resources::span::human_duration;
use serde::Deserialize;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::usage::csv;
use crate::arguments::{IdleArguments, UsageOutput};

const HEADINGS: [&str; 9] = [
    "NAMESPACE",
    "KIND",
    "NAME",
    "USER",
    "QUEUE",
    "GPUS",
    "IDLE",
    "LIMIT",
    "AT-THE-LIMIT",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    judged_at: Option<Timestamp>,
    items: Vec<IdleJob>,
}

/// Lists them, those that are idle for longest first.
pub async fn idle(
    connection: &ServerConnection,
    arguments: IdleArguments,
) -> Result<CommandOutcome> {
    let answer = connection.ask("/api/v1/idle-gpus").await?;
    if let Some(UsageOutput::Json) = arguments.output {
        output::put_line(&serde_json::to_string_pretty(&answer)?)?;
        return Ok(CommandOutcome::Yes);
    }
    let answer: Answer = serde_json::from_value(answer)?;
    let now = Timestamp::now();
    let rows = answer.items.iter().map(|job| row(job, now));
    if let Some(UsageOutput::Csv) = arguments.output {
        let headings = HEADINGS.map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = std::iter::once(headings).chain(rows).collect();
        output::put(&csv(&rows))?;
        return Ok(CommandOutcome::Yes);
    }
    if answer.judged_at.is_none() {
        eprintln!(
            "The server has just started and does not know yet which GPUs do nothing; ask again in a minute."
        );
        return Ok(CommandOutcome::Yes);
    }
    if answer.items.is_empty() {
        eprintln!("No job holds GPUs that do nothing in the namespaces that you may see.");
        return Ok(CommandOutcome::Yes);
    }
    let mut table = Table::new(HEADINGS.to_vec());
    rows.for_each(|cells| table.row(cells));
    output::put(&table.render())?;
    Ok(CommandOutcome::Yes)
}

fn row(job: &IdleJob, now: Timestamp) -> Vec<String> {
    let user = match job.user.as_str() {
        "" => "-",
        user => user,
    };
    let (limit, then) = match &job.limit {
        None => ("-".to_owned(), "-".to_owned()),
        Some(limit) => {
            let left = limit.at.duration_since(now).as_secs().max(0);
            let then = match (limit.cancels(), &limit.kept_because) {
                (true, _) => format!("cancelled in {}", human_duration(left)),
                (false, Some(kept)) => format!("warned ({kept})"),
                (false, None) => "warned".to_owned(),
            };
            (human_duration(limit.seconds), then)
        }
    };
    vec![
        job.namespace.clone(),
        job.kind.clone(),
        job.name.clone(),
        user.to_owned(),
        job.queue.clone(),
        job.gpus.to_string(),
        human_duration(job.idle_seconds(now)),
        limit,
        then,
    ]
}

#[cfg(test)]
mod tests {
    use administration::idle_jobs::ShownLimit;
    use jiff::SignedDuration;
    use resources::idle_gpus::{IdleGpuAction, IdleGpuLimit};

    use super::*;

    #[test]
    fn a_row_says_how_long_and_what_happens_at_the_limit() {
        let since: Timestamp = "2026-11-27T10:00:00Z".parse().unwrap();
        let job = |limit: Option<ShownLimit>| IdleJob {
            namespace: "team-a".to_owned(),
            kind: "PyTorchJob".to_owned(),
            name: "train".to_owned(),
            user: String::new(),
            queue: "default".to_owned(),
            gpus: 4,
            since,
            limit,
        };
        let now = since + SignedDuration::from_mins(30);
        let cells = |limit| row(&job(limit), now)[3..].join(" ");
        assert_eq!(cells(None), "- default 4 30m - -");
        let limit = |action| IdleGpuLimit {
            seconds: 3600,
            action,
            own: false,
        };
        let cancels = ShownLimit::of(limit(IdleGpuAction::Cancel), since, None);
        assert_eq!(cells(Some(cancels)), "- default 4 30m 60m cancelled in 30m");
        let warns = ShownLimit::of(limit(IdleGpuAction::Warn), since, None);
        assert_eq!(cells(Some(warns)), "- default 4 30m 60m warned");
        let kept = ShownLimit::of(
            limit(IdleGpuAction::Cancel),
            since,
            Some("a ReplicaSet would replace it"),
        );
        assert_eq!(
            cells(Some(kept)),
            "- default 4 30m 60m warned (a ReplicaSet would replace it)"
        );
    }
}
