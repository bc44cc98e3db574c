//! openb's lists of pods and nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;

use super::trace::{Gatherer, Trace, TraceLine, gpus_of, meaning, queue_name, ran};
use crate::error::SimulatorError;
use crate::read::table::{ColumnMeaning, InputTable};
use crate::scenario::PodShape;
use crate::shape::{self, NodeFigures};

/// openb's pod list.
pub(crate) fn openb(
    file: &str,
    text: &str,
    given: &BTreeMap<String, String>,
) -> Result<Trace, SimulatorError> {
    let table = InputTable::split(file, text, ',', given)?;
    let column = openb_column;
    let [name, cpu, memory, gpus, milli, created, deleted] = [
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "creation_time",
        "deletion_time",
    ]
    .map(|it| table.needed(column(it)));
    let (name, cpu, memory, gpus, milli, created, deleted) =
        (name?, cpu?, memory?, gpus?, milli?, created?, deleted?);
    let (models, scheduled) = (
        table.column(column("gpu_spec"))?,
        table.column(column("scheduled_time"))?,
    );
    let qos = table.column(column("qos"))?;
    let mut all = Gatherer::default();
    for row in table.rows() {
        let start = if row.maybe(scheduled).is_some() {
            scheduled
        } else {
            Some(created)
        };
        let Some(duration) = ran(row, None, start, Some(deleted))? else {
            all.unrun += 1;
            continue;
        };
        let (gpus, part) = (gpus_of(row, gpus)?, row.count(milli)?);
        if part > 1000 {
            return Err(row.wrong(milli, "thousandths of one GPU, at most 1000"));
        }
        let shared = gpus == 1 && part < 1000;
        let shape = all.shape(PodShape {
            cpu_milli: row.count(cpu)?,
            memory_mib: row.count(memory)?,
            gpus: if shared { 0 } else { gpus },
            gpu_milli: if shared { part } else { 0 },
            models: row
                .maybe(models)
                .map(|text| text.split('|').map(str::to_owned).collect())
                .unwrap_or_default(),
        });
        let number = row.place().number;
        let line = TraceLine {
            name: all.name(row.text(name), number),
            arrival: row.moment(created)?,
            duration,
            walltime: None,
            queue: row.maybe(qos).map(queue_name),
            user: None,
            priority: 0,
            shapes: vec![(shape, 1)],
        };
        all.lines.push(line);
    }
    all.finish(file)
}

/// A column with exactly this name in openb's lists.
fn openb_column(name: &'static str) -> ColumnMeaning {
    static NAMES: [&str; 10] = [
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "creation_time",
        "deletion_time",
        "gpu_spec",
        "scheduled_time",
        "qos",
    ];
    let at = NAMES.iter().position(|known| *known == name).unwrap_or(0);
    meaning(NAMES[at], &NAMES[at..=at])
}

/// openb's node list.
pub(crate) fn openb_nodes(file: &str, text: &str) -> Result<Vec<Node>, SimulatorError> {
    let given = BTreeMap::new();
    let table = InputTable::split(file, text, ',', &given)?;
    let (name, cpu) = (
        table.needed(meaning("name", &["sn", "name"]))?,
        table.needed(meaning("cpu_milli", &["cpu_milli"]))?,
    );
    let (memory, gpus) = (
        table.needed(meaning("memory_mib", &["memory_mib"]))?,
        table.needed(meaning("gpu", &["gpu", "gpus"]))?,
    );
    let model = table.column(meaning("model", &["model"]))?;
    let mut nodes = Vec::new();
    for row in table.rows() {
        let figures = NodeFigures {
            cpu_milli: row.count(cpu)?,
            memory_mib: row.count(memory)?,
            gpus: row.count(gpus)?,
            model: row.maybe(model).unwrap_or_default().to_owned(),
            gpu_memory_mib: 0,
        };
        nodes.push(shape::node(row.text(name), &figures));
    }
    Ok(nodes)
}
