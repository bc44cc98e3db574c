//! `muster usage`: hours that were allocated, and the single allocations.

use std::collections::BTreeSet;

use anyhow::Result;
use jiff::Timestamp;
use resources::span::human_duration;
use serde::Deserialize;
use serde_json::Value;
use usage::{Allocation, UsageRow};

use super::connection::ServerConnection;
use super::nodes::{cores, gib};
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::platform::escape;
use crate::arguments::{UsageArguments, UsageOutput};

#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

/// Shows usage.
pub async fn usage(
    connection: &ServerConnection,
    arguments: UsageArguments,
) -> Result<CommandOutcome> {
    let until = arguments.until.unwrap_or_default();
    let interval = format!(
        "since={}&until={}",
        escape(&arguments.since),
        escape(&until)
    );
    let path = if arguments.allocations {
        format!("/api/v1/allocations?{interval}&limit={}", arguments.limit)
    } else {
        format!("/api/v1/usage?{interval}&by={}", escape(&arguments.by))
    };
    let answer = connection.ask(&path).await?;
    let rows = match (arguments.output, arguments.allocations) {
        (Some(UsageOutput::Json), _) => {
            output::put_line(&serde_json::to_string_pretty(&answer)?)?;
            return Ok(CommandOutcome::Yes);
        }
        (_, true) => allocations(answer, arguments.output.is_some())?,
        (form, false) => sums(answer, &arguments.by, form.is_some())?,
    };
    if arguments.output.is_some() {
        output::put(&csv(&rows))?;
    } else if rows.len() == 1 {
        eprintln!("Nothing was allocated in that time in the namespaces that you may see.");
    } else {
        let mut rows = rows.into_iter();
        let headings = rows.next().unwrap_or_default();
        let mut table = Table::new(headings);
        rows.for_each(|row| table.row(row));
        output::put(&table.render())?;
    }
    Ok(CommandOutcome::Yes)
}

/// Headings, and a row for each combination. For programs with all resources, and digits enough to add up.
fn sums(answer: Value, by: &str, exact: bool) -> Result<Vec<Vec<String>>> {
    let answer: Items<UsageRow> = serde_json::from_value(answer)?;
    let periods = ["hour", "day", "month"];
    let words: Vec<&str> = by.split(',').map(str::trim).collect();
    let period = words.iter().find(|word| periods.contains(word));
    let mut resources = vec!["nvidia.com/gpu", "cpu", "memory"];
    let of_rows: BTreeSet<&str> = (answer.items.iter())
        .flat_map(|row| row.hours.keys().map(String::as_str))
        .collect();
    resources.extend(
        of_rows
            .iter()
            .filter(|name| !["nvidia.com/gpu", "cpu", "memory"].contains(name)),
    );
    let mut headings: Vec<String> = period.iter().map(|word| word.to_uppercase()).collect();
    let dimensions: BTreeSet<usage::Dimension> = (answer.items.iter())
        .flat_map(|row| row.by.keys().copied())
        .collect();
    headings.extend(dimensions.iter().map(|one| one.name().to_uppercase()));
    let of_gpus = |row: &UsageRow| row.gpus.is_some_and(|gpus| gpus.allocated > 0.0);
    // People see what GPUs did where there were any.
    let shows_activity = exact || answer.items.iter().any(of_gpus);
    for name in &resources {
        headings.push(heading(name));
        if shows_activity && *name == "nvidia.com/gpu" {
            headings.extend(["GPU-ACTIVE", "GPU-IDLE", "GPU-UNMEASURED"].map(str::to_owned));
        }
    }
    let mut rows = vec![headings];
    for row in &answer.items {
        let mut cells: Vec<String> = row.period.iter().cloned().collect();
        let value = |one| row.by.get(one).cloned().unwrap_or_default();
        cells.extend(
            dimensions
                .iter()
                .map(value)
                .map(|value| or_dash(value, exact)),
        );
        let hours = |hours: f64| {
            if exact {
                format!("{hours:.6}")
            } else {
                format!("{hours:.1}")
            }
        };
        for name in &resources {
            cells.push(hours(row.of(name)));
            if shows_activity && *name == "nvidia.com/gpu" {
                let known = row
                    .gpus
                    .map(|gpus| [gpus.active, gpus.idle, gpus.unmeasured].map(hours));
                let known = known.unwrap_or_default();
                cells.extend(known.map(|cell| or_dash(cell, exact)));
            }
        }
        rows.push(cells);
    }
    Ok(rows)
}

fn heading(resource: &str) -> String {
    match resource {
        "nvidia.com/gpu" => "GPU-HOURS".to_owned(),
        "cpu" => "CPU-HOURS".to_owned(),
        "memory" => "GIB-HOURS".to_owned(),
        other => format!("{other}-HOURS"),
    }
}

fn or_dash(value: String, exact: bool) -> String {
    if value.is_empty() && !exact {
        return "-".to_owned();
    }
    value
}

/// Headings, and a row for each allocation.
fn allocations(answer: Value, exact: bool) -> Result<Vec<Vec<String>>> {
    let answer: Items<Allocation> = serde_json::from_value(answer)?;
    let headings = [
        "NAMESPACE",
        "JOB",
        "POD",
        "USER",
        "TEAM",
        "QUEUE",
        "NODE",
        "GPU",
        "CPU",
        "MEMORY",
        "WAITED",
        "STARTED",
        "RAN",
        "STATE",
        "EXIT",
    ];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    let now = Timestamp::now();
    for one in answer.items {
        let end = one.ended.as_ref();
        let ran = end.map_or(now, |end| end.at).duration_since(one.started);
        let waited = one.started.duration_since(one.submitted);
        let span = |span: jiff::SignedDuration| {
            if exact {
                span.as_secs().to_string()
            } else {
                human_duration(span.as_secs())
            }
        };
        let memory = one.amounts.get("memory");
        let state = end.map_or("Running", |end| end.reason.as_str());
        let exit = end.and_then(|end| end.exit_code);
        let job = if one.job.is_empty() {
            String::new()
        } else {
            format!("{}/{}", one.kind.to_lowercase(), one.job)
        };
        let cells = vec![
            one.owner.namespace.clone(),
            job,
            one.pod.clone(),
            one.owner.user.clone(),
            one.owner.team.clone(),
            one.owner.queue.clone(),
            one.node.clone(),
            one.amounts.get("nvidia.com/gpu").to_string(),
            cores(one.amounts.get("cpu")),
            if exact {
                memory.to_string()
            } else {
                format!("{} GiB", gib(memory))
            },
            span(waited),
            one.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            span(ran),
            state.to_owned(),
            exit.map_or_else(String::new, |code| code.to_string()),
        ];
        rows.push(cells.into_iter().map(|cell| or_dash(cell, exact)).collect());
    }
    Ok(rows)
}

/// Comma-separated values by RFC 4180. A cell that a spreadsheet would take for a formula gets an apostrophe before it.
pub fn csv(rows: &[Vec<String>]) -> String {
    let cell = |cell: &String| {
        let guarded = match cell.chars().next() {
            Some('=' | '+' | '-' | '@') if cell.parse::<f64>().is_err() => format!("'{cell}"),
            _ => cell.clone(),
        };
        if guarded.contains([',', '"', '\n', '\r']) {
            return format!("\"{}\"", guarded.replace('"', "\"\""));
        }
        guarded
    };
    let line = |row: &Vec<String>| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\r\n";
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sums_have_a_column_for_each_resource_that_was_allocated() {
        let answer = json!({"items": [
            {"period": "2026-11-26", "user": "ann", "hours": {"nvidia.com/gpu": 1.25, "cpu": 8.0, "amd.com/gpu": 2.0}},
            {"period": "2026-11-26", "user": "", "hours": {"cpu": 0.0000014}},
        ]});
        let rows = sums(answer.clone(), "user,day", false).unwrap();
        assert_eq!(
            rows[0],
            [
                "DAY",
                "USER",
                "GPU-HOURS",
                "CPU-HOURS",
                "GIB-HOURS",
                "amd.com/gpu-HOURS"
            ]
        );
        assert_eq!(rows[1], ["2026-11-26", "ann", "1.2", "8.0", "0.0", "2.0"]);
        assert_eq!(rows[2], ["2026-11-26", "-", "0.0", "0.0", "0.0", "0.0"]);
        let rows = sums(answer, "user,day", true).unwrap();
        assert_eq!(
            rows[2],
            [
                "2026-11-26",
                "",
                "0.000000",
                "",
                "",
                "",
                "0.000001",
                "0.000000",
                "0.000000"
            ]
        );
    }

    #[test]
    fn hours_of_gpus_are_told_apart_where_the_server_does_so() {
        let answer = json!({"items": [{"hours": {"nvidia.com/gpu": 4.0},
            "gpuHours": {"allocated": 4.0, "active": 2.5, "idle": 1.0, "unmeasured": 0.5}}]});
        let rows = sums(answer, "", false).unwrap();
        let columns = ["GPU-HOURS", "GPU-ACTIVE", "GPU-IDLE", "GPU-UNMEASURED"];
        assert_eq!(rows[0][..4], columns);
        assert_eq!(rows[1][..4], ["4.0", "2.5", "1.0", "0.5"]);
    }

    #[test]
    fn an_allocation_tells_who_held_what_how_long_and_how_it_ended() {
        let answer = json!({"items": [{
            "uid": "u", "pod": "t-worker-0", "namespace": "red", "queue": "q", "user": "ann", "team": "", "model": "H100",
            "kind": "PyTorchJob", "job": "t", "node": "n1",
            "amounts": {"cpu": 1500, "memory": 2_i64 << 30, "nvidia.com/gpu": 4},
            "submitted": "2026-11-26T10:00:00Z", "started": "2026-11-26T10:01:00Z",
            "ended": {"at": "2026-11-26T11:31:00Z", "reason": "Failed", "exitCode": 3}}]});
        let row = allocations(answer.clone(), false).unwrap().remove(1);
        assert_eq!(
            row.join(" "),
            "red pytorchjob/t t-worker-0 ann - q n1 4 1.5 2.0 GiB 60s 2026-11-26T10:01:00Z 90m Failed 3"
        );
        let row = allocations(answer, true).unwrap().remove(1);
        assert_eq!(
            row.join(" "),
            "red pytorchjob/t t-worker-0 ann  q n1 4 1.5 2147483648 60 2026-11-26T10:01:00Z 5400 Failed 3"
        );
    }

    #[test]
    fn cells_are_quoted_and_are_no_formulas() {
        let rows = [vec![
            "a,b".to_owned(),
            "say \"x\"".to_owned(),
            "=1+1".to_owned(),
            "-1.5".to_owned(),
        ]];
        assert_eq!(csv(&rows), "\"a,b\",\"say \"\"x\"\"\",'=1+1,-1.5\r\n");
    }
}
