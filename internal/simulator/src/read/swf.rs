//! The Standard Workload Format.

use super::trace::{GPUS_MAX, Gatherer, Packing, Trace, TraceLine};
use crate::error::{InputLocation, SimulatorError};
use crate::read::duration::TraceMoment;

/// The Standard Workload Format: 18 numbers a line, comments behind semicolons.
pub(crate) fn swf(file: &str, text: &str, packing: Packing) -> Result<Trace, SimulatorError> {
    const FIELDS: [&str; 18] = [
        "job number",
        "submit time",
        "wait time",
        "run time",
        "allocated processors",
        "average CPU time",
        "used memory",
        "requested processors",
        "requested time",
        "requested memory",
        "status",
        "user",
        "group",
        "executable",
        "queue",
        "partition",
        "preceding job",
        "think time",
    ];
    let mut all = Gatherer::default();
    let (mut nodes, mut processors) = (None, None);
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let line = line.trim();
        if let Some(comment) = line.strip_prefix(';') {
            let header = |name: &str| {
                comment
                    .trim()
                    .strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse::<i64>()
                    .ok()
            };
            nodes = header("MaxNodes:").or(nodes);
            processors = header("MaxProcs:").or(processors);
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let place = || InputLocation::line(file, number);
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() != FIELDS.len() {
            return Err(SimulatorError::Form {
                place: place(),
                what: format!("the line has {} fields", words.len()),
                wanted: "write the 18 fields of the Standard Workload Format, with -1 for an unknown value"
                    .to_owned(),
            });
        }
        let field = |which: usize| -> Result<Option<i64>, SimulatorError> {
            let number = words[which]
                .parse::<f64>()
                .ok()
                .filter(|n| n.is_finite() && n.abs() < 1e15);
            let number = number.ok_or_else(|| {
                let valid = "a number, or -1 if the value is unknown";
                SimulatorError::value(place(), FIELDS[which], words[which], valid)
            })?;
            Ok((number >= 0.0).then_some(number.ceil() as i64))
        };
        let asked = field(4)?
            .filter(|n| *n > 0)
            .or(field(7)?.filter(|n| *n > 0));
        let (Some(arrival), Some(duration), Some(asked)) =
            (field(1)?, field(3)?.filter(|n| *n > 0), asked)
        else {
            all.unrun += 1;
            continue;
        };
        let line = TraceLine {
            name: all.name(words[0], number),
            arrival: TraceMoment::Second(arrival),
            duration,
            walltime: field(8)?.filter(|n| *n > 0),
            queue: field(14)?.map(|queue| format!("queue-{queue}")),
            user: field(11)?.map(|user| format!("user-{user}")),
            priority: 0,
            shapes: all.pods(asked.min(GPUS_MAX), 0, packing),
        };
        all.lines.push(line);
    }
    let mut trace = all.finish(file)?;
    trace.machine = processors.map(|processors| (nodes.unwrap_or(1).max(1), processors));
    trace.notes.push(format!(
        "{file}: the simulator reads each processor as a GPU"
    ));
    Ok(trace)
}
