//! NCCL's settings for a machine's RDMA and the GPUs of a container. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::inventory::{Inventory, LinkKind};
use crate::rdma::routes::{self, Route};
use crate::rdma::{Files, Near, gid};
use crate::wiring::{CardPort, Nic};

/// The RDMA settings that a machine can propose to containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaProposal {
    /// The usable ports.
    ports: Vec<Usable>,
    /// For each GPU and slice by id, the ports under its PCIe switch, by their places above.
    near: BTreeMap<String, Vec<usize>>,
    /// Whether cards reach GPUs' memory.
    direct: bool,
    /// Networks that are reachable without a gateway.
    routes: Vec<Route>,
    /// Whether every network namespace may use every card, as far as is known.
    shared: bool,
}

/// Variables that are valid in every network namespace: GID indices and interfaces differ between namespaces.
const EVERYWHERE: [&str; 2] = [HCA, LEVEL];
const HCA: &str = "NCCL_IB_HCA";
const LEVEL: &str = "NCCL_NET_GDR_LEVEL";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Usable {
    /// Its card, `mlx5_0`.
    card: String,
    /// Its name for NCCL, `mlx5_0:1`.
    name: String,
    /// The index of its RoCE address; none if it needs none or has none.
    gid: Option<u32>,
    /// Whether it needs one.
    routed: bool,
}

/// The ports for work across machines, each with its card and the card's place in the inventory: those that are up
/// and have the highest rate. These connect GPUs; the others serve storage and management.
pub(super) fn usable<'a>(
    found: &'a Inventory,
    files: &'a Files,
) -> impl Iterator<Item = (usize, &'a Nic, &'a CardPort)> {
    // The file may be invisible here: an agent in a container has its own /dev.
    let fits = |card: &str| (files.cards.get(card)).is_some_and(|card| card.verbs.is_some());
    let all = (found.nics.iter().enumerate())
        .filter(move |(_, nic)| fits(&nic.name))
        .flat_map(|(at, nic)| nic.ports.iter().map(move |port| (at, nic, port)))
        .filter(|(_, _, port)| port.is_up());
    let all: Vec<_> = all.collect();
    let kind = |port: &'a CardPort| (port.gbits, &port.layer);
    let best = all.iter().map(|(_, _, port)| kind(port)).max();
    all.into_iter()
        .filter(move |(_, _, port)| Some(kind(port)) == best)
}

impl RdmaProposal {
    /// The proposal of a machine: its ports for work across machines.
    pub fn of(found: &Inventory, files: &Files) -> RdmaProposal {
        let mut ports = Vec::new();
        let mut of_card: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, nic, port) in usable(found, files) {
            let gids = files
                .cards
                .get(&nic.name)
                .and_then(|card| card.gids.get(&port.number));
            let gid = gids
                .and_then(|gids| gid::best(gids))
                .map(|(gid, _)| gid.index);
            let routed = port.layer == "Ethernet";
            of_card.entry(at).or_default().push(ports.len());
            ports.push(Usable {
                card: nic.name.clone(),
                name: format!("{}:{}", nic.name, port.number),
                gid: gid.filter(|_| routed),
                routed,
            });
        }
        let mut near = BTreeMap::new();
        for (gpu, nearest) in found.gpus.iter().zip(&Near::of(found).gpus) {
            let Some((_, nics)) = nearest.as_ref().filter(|(kind, _)| *kind <= LinkKind::Pxb)
            else {
                continue;
            };
            let under: Vec<usize> = nics
                .iter()
                .filter_map(|nic| of_card.get(nic))
                .flatten()
                .copied()
                .collect();
            let slices = gpu.slices.iter().flatten().map(|slice| &slice.id);
            for id in slices.chain([&gpu.id]).filter(|_| !under.is_empty()) {
                near.insert(id.clone(), under.clone());
            }
        }
        RdmaProposal {
            ports,
            near,
            direct: files.direct.works(&files.kernel),
            routes: files.routes.clone(),
            shared: files.shared_netns != Some(false),
        }
    }

    /// The same proposal, restricted to these cards.
    #[must_use]
    pub fn among(&self, cards: &BTreeSet<String>) -> RdmaProposal {
        let kept: Vec<usize> = (0..self.ports.len())
            .filter(|at| cards.contains(&self.ports[*at].card))
            .collect();
        let place = |at: &usize| kept.iter().position(|kept| kept == at);
        let near = self.near.iter().filter_map(|(id, under)| {
            let under: Vec<usize> = under.iter().filter_map(place).collect();
            (!under.is_empty()).then(|| (id.clone(), under))
        });
        RdmaProposal {
            near: near.collect(),
            ports: kept.iter().map(|at| self.ports[*at].clone()).collect(),
            direct: self.direct,
            routes: self.routes.clone(),
            shared: self.shared,
        }
    }

    /// Whether a GPU or slice has one of the ports under its switch.
    pub fn is_near(&self, device: &str) -> bool {
        self.near.contains_key(device)
    }

    /// The variables for a container with its own network, these cards' device files, and these GPUs or slices: the
    /// ports and how they reach its GPUs, as in [`RdmaProposal::variables`]. Empty if each card belongs to a single
    /// network namespace.
    pub fn elsewhere(&self, devices: &[String]) -> Vec<(&'static str, String)> {
        let all = self.variables(devices, None).into_iter();
        all.filter(|(name, _)| self.shared && EVERYWHERE.contains(name))
            .collect()
    }

    /// The variables for a container with these GPUs or slices: the ports under the switches of its GPUs, or all
    /// ports if one of its GPUs has none there; and for other traffic, the interface of the node's `address`, if
    /// known. Empty without RDMA, or for a container without GPUs.
    ///
    /// They apply to containers in the node's own network: other networks have other interfaces and mostly no cards,
    /// and NCCL doesn't start if a named interface is missing.
    pub fn variables(
        &self,
        devices: &[String],
        address: Option<Ipv4Addr>,
    ) -> Vec<(&'static str, String)> {
        if devices.is_empty() || self.ports.is_empty() {
            return Vec::new();
        }
        let under: Option<Vec<&Vec<usize>>> = devices.iter().map(|id| self.near.get(id)).collect();
        let paired = under.is_some();
        let chosen: BTreeSet<usize> = match under {
            Some(under) => under.into_iter().flatten().copied().collect(),
            None => (0..self.ports.len()).collect(),
        };
        let ports = || chosen.iter().map(|at| &self.ports[*at]);
        let names: Vec<&str> = ports().map(|port| port.name.as_str()).collect();
        // '=': exactly these names, no longer names with the same prefix.
        let mut variables = vec![(HCA, format!("={}", names.join(",")))];
        let indices: BTreeSet<Option<u32>> = ports().map(|port| port.gid).collect();
        let mut indices = indices.into_iter();
        if let (Some(Some(index)), None) = (indices.next(), indices.next())
            && ports().all(|port| port.routed)
        {
            variables.push(("NCCL_IB_GID_INDEX", index.to_string()));
        }
        if self.direct && paired {
            variables.push((LEVEL, LinkKind::Pxb.as_str().to_owned()));
        }
        if let Some(name) = address.and_then(|address| routes::interface(&self.routes, address)) {
            variables.push(("NCCL_SOCKET_IFNAME", format!("={name}")));
        }
        variables
    }
}
