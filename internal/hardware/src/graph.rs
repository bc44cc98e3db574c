//! A machine's GPUs and network cards as a graph whose edges are effective bandwidths. Pure:
//! computed from an [`Inventory`].

use crate::inventory::{FabricState, Gpu, Inventory, LinkKind};
use crate::pcie::{PcieLocation, PcieTree};
use crate::wiring::{Bandwidth, Nic};

/// A path between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Its kind.
    pub kind: LinkKind,
    /// Its NVLinks; 0 for other kinds.
    pub links: u32,
    /// Its bandwidth.
    pub bandwidth: Bandwidth,
}

/// A GPU as a node of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuNode {
    /// Its id.
    pub id: String,
    /// Its place in the driver's order.
    pub index: u32,
    /// Its NUMA node.
    pub numa: Option<u32>,
}

/// A network card as a node of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicNode {
    /// Its name.
    pub name: String,
    /// Its NUMA node.
    pub numa: Option<u32>,
    /// The bandwidth of its ports that are up.
    pub bandwidth: Bandwidth,
}

/// Every path between two devices. Devices are numbered: GPUs in the inventory's order, then
/// network cards in theirs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathGraph {
    /// The GPUs.
    pub gpus: Vec<GpuNode>,
    /// The network cards.
    pub nics: Vec<NicNode>,
    /// By row; none from a device to itself.
    edges: Vec<Option<Edge>>,
}

impl PathGraph {
    /// The graph of a machine.
    pub fn of(inventory: &Inventory) -> PathGraph {
        let tree = PcieTree::of(inventory);
        let places: Vec<PcieLocation<'_>> = (inventory.gpus.iter().map(gpu_place))
            .chain(inventory.nics.iter().map(nic_place))
            .collect();
        let (gpus, size) = (inventory.gpus.len(), places.len());
        let mut edges = vec![None; size * size];
        for one in 0..size {
            for other in one + 1..size {
                let (kind, bandwidth) = tree.path(places[one], places[other]);
                let mut edge = Edge {
                    kind,
                    links: 0,
                    bandwidth,
                };
                if other < gpus {
                    edge = between(&inventory.gpus[one], &inventory.gpus[other], edge);
                } else {
                    let nics = [one, other].into_iter().filter(|at| *at >= gpus);
                    let ports = nics.map(|at| inventory.nics[at - gpus].bandwidth());
                    edge.bandwidth = ports.fold(edge.bandwidth, Bandwidth::min);
                }
                edges[one * size + other] = Some(edge);
                edges[other * size + one] = Some(edge);
            }
        }
        PathGraph {
            gpus: (inventory.gpus.iter())
                .map(|gpu| GpuNode {
                    id: gpu.id.clone(),
                    index: gpu.index,
                    numa: gpu.numa,
                })
                .collect(),
            nics: (inventory.nics.iter())
                .map(|nic| NicNode {
                    name: nic.name.clone(),
                    numa: nic.numa,
                    bandwidth: nic.bandwidth(),
                })
                .collect(),
            edges,
        }
    }

    /// The number of devices.
    pub fn size(&self) -> usize {
        self.gpus.len() + self.nics.len()
    }

    /// The path between two devices; none between a device and itself, or for a number without a
    /// device.
    pub fn edge(&self, one: usize, other: usize) -> Option<Edge> {
        let size = self.size();
        if one >= size || other >= size {
            return None;
        }
        self.edges[one * size + other]
    }

    /// The bandwidth between two GPUs; zero without a path.
    pub fn between(&self, one: usize, other: usize) -> Bandwidth {
        self.edge(one, other)
            .map_or(Bandwidth(0), |edge| edge.bandwidth)
    }
}

fn gpu_place(gpu: &Gpu) -> PcieLocation<'_> {
    PcieLocation {
        under: &gpu.under,
        numa: gpu.numa,
        link: gpu.pcie,
    }
}

fn nic_place(nic: &Nic) -> PcieLocation<'_> {
    PcieLocation {
        under: &nic.under,
        numa: nic.numa,
        link: nic.link,
    }
}

/// The better of the GPUs' NVLinks and their PCIe path.
fn between(one: &Gpu, other: &Gpu, pcie: Edge) -> Edge {
    let there = |from: &Gpu, to: &Gpu| {
        let link = from.links.iter().find(|link| link.to == to.id)?;
        Some((link.kind, link.count))
    };
    // Both ends are checked: a link that only one of them reports carries nothing.
    let (found, back) = (there(one, other), there(other, one));
    let (Some((kind, count)), Some((back, count_back))) = (found, back) else {
        return pcie;
    };
    // The driver knows PCIe paths better than a tree that may be incomplete.
    let pcie = Edge {
        kind: if kind > LinkKind::Nvs {
            kind
        } else {
            pcie.kind
        },
        ..pcie
    };
    let joined = [one, other]
        .iter()
        .all(|gpu| gpu.fabric != FabricState::Starting);
    let links = match (kind, back) {
        (LinkKind::Nvl, LinkKind::Nvl) => count.min(count_back),
        (LinkKind::Nvs, LinkKind::Nvs) if joined => count.min(count_back),
        _ => 0,
    };
    let bandwidth = nvlink(&one.compute_capability)
        .min(nvlink(&other.compute_capability))
        .times(links);
    if links == 0 || bandwidth < pcie.bandwidth {
        return pcie;
    }
    Edge {
        kind,
        links,
        bandwidth,
    }
}

/// The bandwidth of one NVLink, by the GPU's compute capability (NCCL's figures).
fn nvlink(capability: &str) -> Bandwidth {
    let (major, minor) = capability.split_once('.').unwrap_or((capability, "0"));
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    Bandwidth(match (number(major), number(minor)) {
        (10.., _) => 40_100,
        (9, _) => 20_600,
        (8, 6) => 12_000,
        (6, _) => 18_000,
        _ => 20_000,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::GpuPath;

    fn gpu(id: &str, to: &str, kind: LinkKind, count: u32) -> Gpu {
        Gpu {
            id: id.into(),
            compute_capability: "9.0".into(),
            links: vec![GpuPath {
                to: to.into(),
                kind,
                count,
            }],
            ..Gpu::default()
        }
    }

    fn edge(one: Gpu, other: Gpu) -> Edge {
        let machine = Inventory {
            gpus: vec![one, other],
            ..Inventory::default()
        };
        PathGraph::of(&machine).edge(0, 1).expect("two GPUs")
    }

    #[test]
    fn a_switched_path_is_as_wide_as_the_end_with_fewer_links() {
        let found = edge(
            gpu("a", "b", LinkKind::Nvs, 18),
            gpu("b", "a", LinkKind::Nvs, 17),
        );
        assert_eq!(found.links, 17);
        assert_eq!(found.bandwidth.to_string(), "350.2 GB/s");
    }

    #[test]
    fn a_gpu_that_has_not_joined_the_fabric_is_reached_over_pcie() {
        let mut other = gpu("b", "a", LinkKind::Nvs, 18);
        other.fabric = FabricState::Starting;
        let found = edge(gpu("a", "b", LinkKind::Nvs, 18), other);
        assert_eq!((found.kind, found.links), (LinkKind::Phb, 0));
        let completed = |mut gpu: Gpu| {
            gpu.fabric = FabricState::Completed;
            gpu
        };
        let found = edge(
            completed(gpu("a", "b", LinkKind::Nvs, 18)),
            completed(gpu("b", "a", LinkKind::Nvs, 18)),
        );
        assert_eq!((found.kind, found.links), (LinkKind::Nvs, 18));
    }

    #[test]
    fn a_link_that_one_end_does_not_know_carries_nothing() {
        let found = edge(
            gpu("a", "b", LinkKind::Nvl, 4),
            gpu("b", "c", LinkKind::Nvl, 4),
        );
        assert_eq!(found.links, 0);
    }

    #[test]
    fn a_network_cards_ports_bound_its_paths() {
        use crate::wiring::{CardPort, PcieLink};
        let port = CardPort {
            number: 1,
            state: "ACTIVE".into(),
            gbits: 100,
            ..CardPort::default()
        };
        let machine = Inventory {
            gpus: vec![Gpu {
                pcie: PcieLink {
                    max_generation: 5,
                    max_width: 16,
                    ..PcieLink::default()
                },
                ..Gpu::default()
            }],
            nics: vec![Nic {
                ports: vec![port],
                ..Nic::default()
            }],
            ..Inventory::default()
        };
        let found = PathGraph::of(&machine)
            .edge(0, 1)
            .expect("a GPU and a card");
        assert_eq!(found.bandwidth.to_string(), "12.5 GB/s");
    }
}
