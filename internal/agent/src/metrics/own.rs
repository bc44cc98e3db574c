//! The agent's own resource use, under the standard names of Prometheus clients.

use resources::exposition::{Kind, MetricLabels, Page};

use crate::version::VERSION;

/// The kernel's clock ticks in a second for process times; the same on every supported Linux.
const TICKS: f64 = 100.0;

/// Writes the use of this process.
pub fn write(page: &mut Page) {
    let version = MetricLabels::default().with("version", VERSION);
    page.family(
        "muster_agent_build_info",
        Kind::Gauge,
        "The agent that answers.",
        [(version, 1.0)],
    );
    let one = |value: Option<f64>| value.map(|value| (MetricLabels::default(), value));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    page.family(
        "process_resident_memory_bytes",
        Kind::Gauge,
        "Resident memory size in bytes.",
        one(resident(&status)),
    );
    let pid = i32::try_from(std::process::id()).ok();
    let ticks = pid
        .and_then(runtime::proc::stat)
        .map(|stat| stat.cpu_ticks as f64);
    page.family(
        "process_cpu_seconds_total",
        Kind::Counter,
        "Total user and system CPU time spent in seconds.",
        one(ticks.map(|ticks| ticks / TICKS)),
    );
}

fn resident(status: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let status = "Name:\tmuster\nVmHWM:\t   99 kB\nVmRSS:\t   12 kB\nThreads:\t4\n";
        assert_eq!(resident(status), Some(12_288.0));
        assert_eq!(resident(""), None);
    }
}
