//! Counters of RDMA cards' ports, from sysfs under a root. Owns the list of counters and their
//! units; a counter that a card lacks is absent.

use std::path::Path;

use crate::sysfs::{entries, ports};
use crate::system::line;
use crate::wiring::CardPort;

/// A counter: its file below the port's directory, its name, and the factor for the file's value
/// (the standard data counters are in words of four bytes: IBTA 16.1.3.5).
pub type PortCounter = (&'static str, &'static str, u64);

/// The counters that are read; all are monotonic.
pub const COUNTERS: [PortCounter; 22] = [
    ("counters/port_xmit_data", "data_transmitted_bytes", 4),
    ("counters/port_rcv_data", "data_received_bytes", 4),
    ("counters/port_xmit_packets", "packets_transmitted", 1),
    ("counters/port_rcv_packets", "packets_received", 1),
    ("counters/port_xmit_wait", "transmit_wait_ticks", 1),
    ("counters/port_xmit_discards", "transmit_discards", 1),
    ("counters/port_rcv_errors", "receive_errors", 1),
    ("counters/symbol_error", "symbol_errors", 1),
    ("counters/link_error_recovery", "link_error_recoveries", 1),
    ("counters/link_downed", "link_downed", 1),
    (
        "counters/local_link_integrity_errors",
        "local_link_integrity_errors",
        1,
    ),
    (
        "counters/excessive_buffer_overrun_errors",
        "excessive_buffer_overruns",
        1,
    ),
    ("hw_counters/out_of_sequence", "out_of_sequence", 1),
    ("hw_counters/packet_seq_err", "packet_sequence_errors", 1),
    ("hw_counters/local_ack_timeout_err", "ack_timeouts", 1),
    ("hw_counters/rnr_nak_retry_err", "rnr_nak_retries", 1),
    ("hw_counters/duplicate_request", "duplicate_requests", 1),
    ("hw_counters/roce_slow_restart", "roce_slow_restarts", 1),
    (
        "hw_counters/np_cnp_sent",
        "congestion_notifications_sent",
        1,
    ),
    (
        "hw_counters/rp_cnp_handled",
        "congestion_notifications_handled",
        1,
    ),
    (
        "hw_counters/np_ecn_marked_roce_packets",
        "ecn_marked_packets",
        1,
    ),
    ("hw_counters/rx_icrc_encapsulated", "icrc_errors", 1),
];

/// A port and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortReading {
    /// Its card, `mlx5_0`.
    pub device: String,
    /// Its number and state.
    pub port: CardPort,
    /// The values of those [`COUNTERS`] that it has.
    pub counters: Vec<(PortCounter, u64)>,
}

/// The ports of this machine's cards, by card and number.
pub fn read(root: &Path) -> Vec<PortReading> {
    let mut found = Vec::new();
    for (device, dir) in entries(&root.join("sys/class/infiniband")) {
        for port in ports(&dir) {
            let at = dir.join("ports").join(port.number.to_string());
            let counted = COUNTERS.into_iter().filter_map(|counter| {
                let (file, _, unit) = counter;
                // Soft-RoCE has a standard counter among its own counters.
                let own = || line(&at.join(format!("hw_{file}")));
                let value: u64 = line(&at.join(file)).or_else(own)?.parse().ok()?;
                Some((counter, value.saturating_mul(unit)))
            });
            found.push(PortReading {
                device: device.clone(),
                counters: counted.collect(),
                port,
            });
        }
    }
    found
}

/// A text for each port of this machine's cards that changes when the port comes up or goes down.
/// It reads a few small files; [`read`] reads some dozens per port.
pub fn states(root: &Path) -> Vec<(String, String)> {
    let cards = entries(&root.join("sys/class/infiniband")).into_iter();
    let ports = cards.flat_map(|(card, dir)| {
        let ports = entries(&dir.join("ports")).into_iter();
        ports.map(move |(port, dir)| (format!("{card}/{port}"), dir))
    });
    ports
        .map(|(name, dir)| (name, line(&dir.join("state")).unwrap_or_default()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_says_what_it_has_counted_and_nothing_of_what_it_does_not_count() {
        let root = tempfile::tempdir().unwrap();
        let port = root.path().join("sys/class/infiniband/mlx5_0/ports/1");
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Ethernet"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("counters/port_xmit_data", "250"),
            ("counters/link_downed", "2"),
            ("counters/symbol_error", "N/A (no PMA)"),
            ("hw_counters/roce_slow_restart", "7"),
        ] {
            let path = port.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        let found = read(root.path());
        let [port] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((port.device.as_str(), port.port.gbits), ("mlx5_0", 400));
        let counted: Vec<(&str, u64)> = (port.counters.iter())
            .map(|((_, name, _), value)| (*name, *value))
            .collect();
        let expected = [
            ("data_transmitted_bytes", 1000),
            ("link_downed", 2),
            ("roce_slow_restarts", 7),
        ];
        assert_eq!(counted, expected);
        assert!(read(&root.path().join("nowhere")).is_empty());
        let wanted = [("mlx5_0/1".to_owned(), "4: ACTIVE".to_owned())];
        assert_eq!(states(root.path()), wanted);
    }
}
