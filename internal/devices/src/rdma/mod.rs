//! RDMA cards that containers share: the cards of each resource, in the format that
//! k8s-rdma-shared-dev-plugin reads, and what a container with one of them gets. Pure but for
//! [`watch`], whose thread reads the machine.

mod discovery;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use hardware::rdma::{RdmaDevice, RdmaDevices};
use resources::devices::Shares;
use tokio::sync::watch as channel;

pub use discovery::watch;
pub use settings::RdmaSettings;

/// How long the agent waits for the first reading of the cards.
const PATIENCE: Duration = Duration::from_secs(10);

/// Cards that are offered as one resource and shared: each container that requests it gets all
/// cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCards {
    /// The resource's name, `rdma/hca_shared_devices_a`.
    pub resource: String,
    /// How many containers may use them at once.
    pub containers: usize,
    /// The criteria for the cards.
    pub selectors: Selectors,
}

/// The criteria for a card: it matches one entry of each list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// PCI vendor ids, `15b3`.
    pub vendors: Vec<String>,
    /// PCI device ids, `101b`.
    pub models: Vec<String>,
    /// Drivers of PCI devices, `mlx5_core`.
    pub drivers: Vec<String>,
    /// Network interfaces; the card has one of them.
    pub interfaces: Vec<String>,
    /// `infiniband` or `ether`; one of its ports has this type.
    pub link_types: Vec<String>,
}

impl Selectors {
    fn fit(&self, card: &RdmaDevice) -> bool {
        let any = |wanted: &[String], has: &dyn Fn(&str) -> bool| {
            wanted.is_empty() || wanted.iter().any(|word| has(word))
        };
        let layer = |word: &str| match word {
            "infiniband" => "InfiniBand",
            _ => "Ethernet",
        };
        any(&self.vendors, &|word| card.vendor == word)
            && any(&self.models, &|word| card.model == word)
            && any(&self.drivers, &|word| card.driver == word)
            && any(&self.interfaces, &|word| {
                card.netdevs.iter().any(|netdev| netdev == word)
            })
            && any(&self.link_types, &|word| {
                card.ports.iter().any(|port| port.layer == layer(word))
            })
    }
}

/// A resource's present cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Their names.
    pub cards: BTreeSet<String>,
    /// The device files of a container with them, below `/dev/infiniband`.
    pub files: Vec<String>,
    /// Whether one of their ports is up.
    pub healthy: bool,
    /// The NUMA node of all of them, if they share one.
    pub numa: Option<u32>,
}

impl SharedCards {
    /// The machine's cards that match and that programs can open.
    pub fn pool(&self, machine: &RdmaDevices) -> Pool {
        let fit = |card: &&RdmaDevice| machine.rdma_cm && card.opens() && self.selectors.fit(card);
        let cards: Vec<&RdmaDevice> = machine.cards.iter().filter(fit).collect();
        let own = cards.iter().flat_map(|card| card.files.iter().cloned());
        let common = (!cards.is_empty()).then(|| "rdma_cm".to_owned());
        let mut ports = cards.iter().flat_map(|card| &card.ports);
        let numa: BTreeSet<Option<u32>> = cards.iter().map(|card| card.numa).collect();
        Pool {
            cards: cards.iter().map(|card| card.name.clone()).collect(),
            files: own.chain(common).collect(),
            healthy: ports.any(hardware::CardPort::is_up),
            numa: (numa.len() == 1)
                .then(|| numa.first().copied().flatten())
                .flatten(),
        }
    }
}

/// A resource whose cards are gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this node has no RDMA card of {resource} any more that programs can open; muster doctor there says \
     what its cards lack"
)]
pub struct NoCard {
    /// The resource.
    pub resource: String,
}

/// What a container gets that requests these resources, from a node's pools by resource; `None` if
/// it requests none of them.
///
/// # Errors
///
/// A resource has no card any more.
pub fn equipment(
    pools: &BTreeMap<String, Pool>,
    asked: &BTreeSet<String>,
) -> Result<Option<Pool>, NoCard> {
    let mut all: Option<Pool> = None;
    for (resource, pool) in pools.iter().filter(|(name, _)| asked.contains(*name)) {
        if pool.cards.is_empty() {
            return Err(NoCard {
                resource: resource.clone(),
            });
        }
        let all = all.get_or_insert_default();
        all.cards.extend(pool.cards.iter().cloned());
        let files = pool.files.iter();
        let new: Vec<String> = files
            .filter(|file| !all.files.contains(file))
            .cloned()
            .collect();
        all.files.extend(new);
    }
    Ok(all)
}

/// The node's shared cards.
#[derive(Clone, Debug)]
pub struct NodeRdmaCards {
    /// The resources.
    pub settings: RdmaSettings,
    /// The machine's present devices.
    pub seen: channel::Receiver<RdmaDevices>,
}

impl NodeRdmaCards {
    /// Watches the cards of the machine whose root is mounted at `root`, after one reading if the
    /// machine answers. Without resources no cards are read.
    pub async fn watch(settings: RdmaSettings, root: PathBuf) -> NodeRdmaCards {
        if settings.resources.is_empty() {
            let (_, seen) = channel::channel(RdmaDevices::default());
            return NodeRdmaCards { settings, seen };
        }
        let mut seen = watch(root);
        let first = tokio::time::timeout(PATIENCE, seen.changed()).await;
        if first.is_err() {
            tracing::warn!("the agent cannot read yet which RDMA cards the machine has");
        }
        NodeRdmaCards { settings, seen }
    }

    /// Waits for a change of the machine's cards since the last call.
    pub async fn news(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Each resource's present cards, and how many containers may share them.
    pub fn now(&self) -> BTreeMap<String, (Pool, Shares)> {
        let machine = self.seen.borrow();
        let all = self.settings.resources.iter().map(|shared| {
            let pool = shared.pool(&machine);
            let shares = Shares {
                count: u32::try_from(shared.containers).unwrap_or(u32::MAX),
                healthy: pool.healthy,
            };
            (shared.resource.clone(), (pool, shares))
        });
        all.collect()
    }

    /// The cards of a container that requests these resources; `None` if it requests no card.
    pub fn of(&self, asked: &BTreeSet<String>) -> Option<BTreeSet<String>> {
        let machine = self.seen.borrow();
        let mut pools = (self.settings.resources.iter())
            .filter(|shared| asked.contains(&shared.resource))
            .peekable();
        pools.peek()?;
        Some(
            pools
                .flat_map(|shared| shared.pool(&machine).cards)
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests;
