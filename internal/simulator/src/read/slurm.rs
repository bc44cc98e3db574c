//! Slurm's accounting, as `sacct --parsable2` prints it.

use std::collections::BTreeMap;

use super::trace::{
    GPUS_MAX, Gatherer, PRIORITY, Packing, Trace, TraceLine, meaning, priority_of, queue_name, ran,
};
use crate::error::SimulatorError;
use crate::read::table::InputTable;

/// Slurm's accounting, as `sacct --parsable2` prints it.
pub(crate) fn sacct(
    file: &str,
    text: &str,
    given: &BTreeMap<String, String>,
    packing: Packing,
) -> Result<Trace, SimulatorError> {
    let table = InputTable::split(file, text, '|', given)?;
    let id = table.needed(meaning("name", &["JobID", "JobIDRaw"]))?;
    let submit = table.needed(meaning("arrival", &["Submit", "Eligible"]))?;
    let elapsed = table.column(meaning("duration", &["ElapsedRaw", "Elapsed"]))?;
    let (start, end) = (
        table.column(meaning("start", &["Start"]))?,
        table.column(meaning("end", &["End"]))?,
    );
    if elapsed.is_none() && (start.is_none() || end.is_none()) {
        table.needed(meaning("duration", &["ElapsedRaw", "Elapsed"]))?;
    }
    let tres = [
        table.column(meaning("gpus", &["AllocTRES"]))?,
        table.column(meaning("gpus", &["ReqTRES"]))?,
        table.column(meaning("gpus", &["AllocGRES", "ReqGRES"]))?,
    ];
    let cpus = table.column(meaning("cpus", &["AllocCPUS", "NCPUS", "ReqCPUS"]))?;
    let raw_limit = table.column(meaning("walltime-minutes", &["TimelimitRaw"]))?;
    let limit = table.column(meaning("walltime", &["Timelimit"]))?;
    let (queue, user) = (
        table.column(meaning("queue", &["Partition", "Account"]))?,
        table.column(meaning("user", &["User"]))?,
    );
    let priority = table.column(PRIORITY)?;
    let mut all = Gatherer::default();
    for row in table.rows() {
        // `123.batch` and `123.0` are steps of 123.
        if row.text(id).contains('.') {
            continue;
        }
        let duration = ran(row, elapsed, start, end)?.filter(|seconds| *seconds > 0);
        let Some(duration) = duration.filter(|_| !row.text(id).contains('[')) else {
            all.unrun += 1;
            continue;
        };
        let mut gpus = 0;
        for column in tres.into_iter().flatten() {
            if let Some(found) = tres_gpus(row.text(column))
                .map_err(|()| row.wrong(column, "resources as Slurm does: cpu=8,gres/gpu=2"))?
            {
                gpus = found;
                break;
            }
        }
        let walltime = match (row.maybe(raw_limit), row.maybe(limit)) {
            (Some(text), _) => text.parse::<i64>().ok().map(|minutes| minutes * 60),
            (None, Some(text)) if text.contains(':') => {
                limit.map(|column| row.span(column)).transpose()?
            }
            _ => None,
        };
        let number = row.place().number;
        let cores = row
            .given(cpus, |row, column| row.count(column))?
            .unwrap_or(0);
        let line = TraceLine {
            name: all.name(row.text(id), number),
            arrival: row.moment(submit)?,
            duration,
            walltime,
            queue: row.maybe(queue).map(queue_name),
            user: row.maybe(user).map(str::to_owned),
            priority: row.given(priority, priority_of)?.unwrap_or(0),
            shapes: all.pods(
                gpus.min(GPUS_MAX),
                if gpus > 0 { 0 } else { cores },
                packing,
            ),
        };
        all.lines.push(line);
    }
    all.finish(file)
}

/// GPUs in `cpu=8,gres/gpu=2,gres/gpu:a100=2` or `gpu:a100:2`; none if the text mentions no GPUs.
fn tres_gpus(text: &str) -> Result<Option<i64>, ()> {
    let mut typed = None;
    for part in text.split(',') {
        let Some(rest) = part
            .strip_prefix("gres/gpu")
            .or_else(|| part.strip_prefix("gres:gpu"))
            .or_else(|| part.strip_prefix("gpu"))
        else {
            continue;
        };
        let number = rest.rsplit(['=', ':']).next().unwrap_or_default();
        let number: i64 = number.parse().map_err(|_| ())?;
        if rest.starts_with('=') {
            return Ok(Some(number));
        }
        typed = Some(typed.unwrap_or(0) + number);
    }
    Ok(typed)
}
