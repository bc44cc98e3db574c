//! Compares two machines' RDMA, and measures between them. Owns the requests to each machine and the answers, the
//! matching of ports, and the evaluation. Pure.

mod compare;
mod perftest;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::inventory::Inventory;
use crate::rdma::proposal::usable;
use crate::rdma::{Files, gid, routes, settings};
use crate::wiring::{CardPort, Nic};

pub use compare::compare;
pub use perftest::{arguments, check_bandwidth, check_latencies, read, unmeasured};

/// A request to a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PairRequest {
    /// Describe its end of a pair.
    Examine,
    /// Act as the server of one test.
    Serve(TestRun),
    /// Run a test against its server.
    Measure {
        /// The test.
        run: TestRun,
        /// The server's address.
        address: IpAddr,
        /// The server's TCP port.
        tcp: u16,
    },
}

/// A request that is stored until the machine finds it, like its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRequest {
    /// Unique among all requests.
    pub id: String,
    /// Time of the request, in seconds since 1970 by the requester's clock.
    pub asked: i64,
    /// The request.
    pub ask: PairRequest,
}

/// Why a machine refuses a request, in a sentence. It is sent as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(transparent)]
#[error("{0}")]
pub struct PairRefusal(pub String);

/// The answer to the request of the same id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id.
    pub id: String,
    /// The machine's answer, or the reason for a refusal.
    pub answer: Result<PairAnswer, PairRefusal>,
}

/// A test on one of a machine's ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestRun {
    /// The test.
    pub test: Test,
    /// The card, `mlx5_0`.
    pub card: String,
    /// Its port's number.
    pub port: u32,
    /// Run the test even if pods with GPUs run here.
    pub force: bool,
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Test {
    /// Bandwidth of one connection in one direction.
    Bandwidth,
    /// Latency of a small write.
    Latency,
}

/// A machine's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PairAnswer {
    /// Its end.
    End(PairEnd),
    /// It listens at this TCP port.
    Serving(u16),
    /// The result: gigabits a second, or microseconds.
    Measured(f64),
}

/// One machine's end of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PairEnd {
    /// The address at which other nodes reach it.
    pub address: String,
    /// Its kernel's release, and the version of the network driver if that is not the kernel's own.
    pub driver: String,
    /// The pods that have GPUs here, each as `namespace/name`.
    pub pods: Vec<String>,
    /// The ports that work across machines uses.
    pub ports: Vec<EndPort>,
}

/// A port of an end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndPort {
    /// Its card, `mlx5_0`.
    pub card: String,
    /// Its number.
    pub number: u32,
    /// The card's product; empty if not known.
    pub model: String,
    /// The card's firmware; empty if not known.
    pub firmware: String,
    /// `InfiniBand` or `Ethernet`; empty if not known.
    pub layer: String,
    /// Its rate in gigabits a second; 0 if not known.
    pub gbits: u32,
    /// The bandwidth of the card's PCIe link, gigabits a second, if known.
    pub pcie_gbits: Option<u32>,
    /// Whether it is software on a network interface (soft-RoCE), whose rate means nothing.
    pub soft: bool,
    /// The largest RDMA packet for which its interface has room, bytes; known for RoCE.
    pub mtu: Option<u32>,
    /// The index of the address that RoCE uses.
    pub gid: Option<u32>,
    /// Its network: for RoCE that of its address, `10.0.0.0/24`; for InfiniBand its subnet's prefix.
    pub network: Option<String>,
}

impl EndPort {
    /// Its name in answers.
    pub fn name(&self) -> String {
        format!("{}/{}", self.card, self.number)
    }
}

/// A machine's end, without its address and pods.
pub fn end(found: &Inventory, files: &Files) -> PairEnd {
    let version = files.driver_version.as_ref();
    let version = version.map_or_else(String::new, |version| format!(", driver {version}"));
    let ports = usable(found, files).map(|(_, nic, port)| end_port(nic, port, files));
    PairEnd {
        driver: format!("kernel {}{version}", files.kernel),
        ports: ports.collect(),
        ..PairEnd::default()
    }
}

fn end_port(nic: &Nic, port: &CardPort, files: &Files) -> EndPort {
    let card = files.cards.get(&nic.name);
    let gids = card.and_then(|card| card.gids.get(&port.number));
    let routed = port.layer == "Ethernet";
    let best = gids.and_then(|gids| gid::best(gids)).filter(|_| routed);
    let interface = card.and_then(|card| settings::interface(port, card));
    let prefix = gids.and_then(|gids| {
        let first = gids.iter().find(|gid| gid.index == 0)?;
        Some(first.address.get(..PREFIX)?.to_owned())
    });
    EndPort {
        card: nic.name.clone(),
        number: port.number,
        model: nic.model.clone(),
        firmware: nic.firmware.clone(),
        layer: port.layer.clone(),
        gbits: port.gbits,
        pcie_gbits: (nic.link.bandwidth()).map(|megabytes| megabytes.0.saturating_mul(8) / 1000),
        soft: nic.pci.is_empty(),
        mtu: (interface.filter(|_| routed)).and_then(|it| settings::active_mtu(it.mtu?)),
        gid: best.map(|(gid, _)| gid.index),
        network: match (routed, best) {
            (true, Some((gid, address))) => routes::network(&files.routes, &gid.netdev, address),
            (true, None) => None,
            (false, _) => prefix,
        },
    }
}

/// Length of the subnet prefix in an InfiniBand port's first address: four groups of four digits.
const PREFIX: usize = 19;

/// The matching ports of two ends: those of the same name, or if no names match, those at the same place. Pairs of
/// places in [`PairEnd::ports`].
pub fn rails(here: &PairEnd, there: &PairEnd) -> Vec<(usize, usize)> {
    let same = |port: &EndPort| there.ports.iter().position(|it| it.name() == port.name());
    let named: Vec<(usize, usize)> = (here.ports.iter().enumerate())
        .filter_map(|(at, port)| Some((at, same(port)?)))
        .collect();
    if !named.is_empty() {
        return named;
    }
    let count = here.ports.len().min(there.ports.len());
    (0..count).map(|at| (at, at)).collect()
}

#[cfg(test)]
mod tests;
