//! The metric families of GPU shares: limits, use and excess of containers. Pure.

use devices::over_share::ShareObservation;
use resources::exposition::{Kind, MetricLabels, Page};

use super::gpus::held_by;

/// Writes the last result.
pub fn write(page: &mut Page, sight: &ShareObservation, hostname: &str) {
    let gpu = |id: &str| {
        MetricLabels::default()
            .with("UUID", id)
            .with("Hostname", hostname)
    };
    let mut family = |name: &str, help: &str, value: &dyn Fn(usize) -> f64| {
        let values = sight.uses.iter().enumerate().map(|(at, has)| {
            let labels = held_by(gpu(&has.held.gpu), &has.held.holder);
            (labels, value(at))
        });
        page.family(name, Kind::Gauge, help, values);
    };
    let bytes = |mib: u64| mib as f64 * f64::from(1 << 20);
    family(
        "muster_gpu_share_memory_bytes",
        "Memory of a shared GPU that a container may have.",
        &|at| bytes(sight.uses[at].held.may_mib),
    );
    family(
        "muster_gpu_share_used_bytes",
        "Memory of a shared GPU that a container's processes have.",
        &|at| bytes(sight.uses[at].used_mib),
    );
    family(
        "muster_gpu_over_share",
        "Whether a container has exceeded its share in several readings in a row.",
        &|at| f64::from(u8::from(sight.is_over(&sight.uses[at].held))),
    );
    let unknown = (sight.unknown.iter()).map(|(id, count)| (gpu(id), *count as f64));
    page.family(
        "muster_gpu_share_unknown_processes",
        Kind::Gauge,
        "Processes on a shared GPU whose pod or memory is unknown.",
        unknown,
    );
}
