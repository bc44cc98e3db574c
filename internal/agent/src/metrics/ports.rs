//! The families about RDMA ports. Pure.

use hardware::ports::{COUNTERS, PortReading};
use resources::exposition::{Kind, MetricLabels, Page};

/// Writes all families about these ports.
pub fn write(page: &mut Page, ports: &[PortReading], hostname: &str) {
    let named = |port: &PortReading| {
        MetricLabels::default()
            .with("device", &port.device)
            .with("port", &port.port.number.to_string())
            .with("link_layer", &port.port.layer)
            .with("Hostname", hostname)
    };
    let up = ports.iter().map(|port| {
        let up = f64::from(u8::from(port.port.is_up()));
        (named(port), up)
    });
    page.family(
        "muster_rdma_port_up",
        Kind::Gauge,
        "Whether the port is active and its link is up.",
        up,
    );
    let rated = ports.iter().filter(|port| port.port.gbits > 0);
    page.family(
        "muster_rdma_port_rate_bits_per_second",
        Kind::Gauge,
        "What the port's link carries.",
        rated.map(|port| (named(port), f64::from(port.port.gbits) * 1e9)),
    );
    for counter in COUNTERS {
        let (file, name, _) = counter;
        let values = ports.iter().filter_map(|port| {
            let (_, value) = port.counters.iter().find(|(it, _)| *it == counter)?;
            // Exact up to 2^53, as everywhere in Prometheus.
            Some((named(port), *value as f64))
        });
        page.family(
            &format!("muster_rdma_port_{name}_total"),
            Kind::Counter,
            &format!("The port's {file} in sysfs, in bytes where it counts data."),
            values,
        );
    }
}
