//! Two machines' RDMA, held against each other and measured between them. Owns what is asked of each
//! machine and what it answers, which ports belong together, and what is made of the answers. Pure.

mod compare;
mod perftest;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::inventory::Inventory;
use crate::rdma::proposal::usable;
use crate::rdma::{Files, gid, routes, settings};
use crate::wiring::{Nic, Port};

pub use compare::compare;
pub use perftest::{arguments, judge_bandwidth, judge_latencies, read, unmeasured};

/// What is asked of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ask {
    /// What its end of a pair is.
    Examine,
    /// To be the far end of one test.
    Serve(Run),
    /// To run a test against who serves it.
    Measure {
        /// The test.
        run: Run,
        /// Where the other end is.
        address: IpAddr,
        /// The TCP port at which it listens there.
        tcp: u16,
    },
}

/// What is asked of a machine where questions and answers are left for each other to find.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Tells it from all others.
    pub id: String,
    /// When it was asked, in seconds since 1970 by the asker's clock.
    pub asked: i64,
    /// What is asked.
    pub ask: Ask,
}

/// Why a machine does not answer as it was asked, in a sentence. It travels as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(transparent)]
#[error("{0}")]
pub struct Refusal(pub String);

/// The answer to the question of the same id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The question's.
    pub id: String,
    /// What the machine answers, or why it can't.
    pub answer: Result<Told, Refusal>,
}

/// A test on one of a machine's ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Which.
    pub test: Test,
    /// The card, `mlx5_0`.
    pub card: String,
    /// Its port's number.
    pub port: u32,
    /// Also where pods with GPUs run.
    pub force: bool,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Test {
    /// What one connection carries in one direction.
    Bandwidth,
    /// How long a small write takes.
    Latency,
}

/// What a machine answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Told {
    /// Its end.
    End(End),
    /// It listens at this TCP port.
    Serving(u16),
    /// Gigabits a second, or microseconds.
    Measured(f64),
}

/// One machine's end of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// The address that other nodes reach it by.
    pub address: String,
    /// Its kernel's release, and the version of a driver that is not the kernel's own.
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
    /// What the card's PCIe link carries, gigabits a second, where that is known.
    pub pcie_gbits: Option<u32>,
    /// It is software on a network interface (soft-RoCE), whose rate says nothing.
    pub soft: bool,
    /// The largest packet of RDMA that its interface leaves room for, bytes; known of RoCE.
    pub mtu: Option<u32>,
    /// The index of the address that RoCE uses.
    pub gid: Option<u32>,
    /// The network that it is in: of RoCE its address's, `10.0.0.0/24`, of InfiniBand its subnet's
    /// prefix.
    pub network: Option<String>,
}

impl EndPort {
    /// What it is called in answers.
    pub fn name(&self) -> String {
        format!("{}/{}", self.card, self.number)
    }
}

/// The end that a machine is, but for its address and pods.
pub fn end(found: &Inventory, files: &Files) -> End {
    let version = files.driver_version.as_ref();
    let version = version.map_or_else(String::new, |version| format!(", driver {version}"));
    let ports = usable(found, files).map(|(_, nic, port)| end_port(nic, port, files));
    End {
        driver: format!("kernel {}{version}", files.kernel),
        ports: ports.collect(),
        ..End::default()
    }
}

fn end_port(nic: &Nic, port: &Port, files: &Files) -> EndPort {
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

/// How many characters of an InfiniBand port's first address say its subnet: four groups of four digits.
const PREFIX: usize = 19;

/// Which ports of two ends belong together: those of the same name, or without any, those in the same
/// place. Pairs of places in [`End::ports`].
pub fn rails(here: &End, there: &End) -> Vec<(usize, usize)> {
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
