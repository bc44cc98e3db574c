//! A machine's PCIe tree in the format of NCCL's topology file (`NCCL_TOPO_FILE`), and the decision when NCCL gets
//! one. Pure.
//!
//! NCCL detects the tree itself if the kernel shows it. In a virtual machine the kernel often hides it: then every
//! GPU seems equally far from every card. NCCL trusts the file, so the file omits everything that NCCL reads from
//! drivers, cards and processors in any case: GPUs' numbers (a container's begin at 0), NVLinks, ports, the
//! processor's model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::inventory::{Gpu, Inventory, NumaNode, Origin};
use crate::pcie::PcieTree;
use crate::wiring::{Nic, PcieLink};

/// The PCI class of a bridge, by which NCCL recognises a switch.
const SWITCH: &str = "0x060400";
/// The PCI class of a compute GPU.
const GPU: &str = "0x030200";
/// The PCI class of an InfiniBand card.
const INFINIBAND: &str = "0x020700";
/// The PCI class of an Ethernet card.
const ETHERNET: &str = "0x020000";
/// The longest value that NCCL reads.
const MAX_VALUE: usize = 254;

/// When NCCL gets a machine's tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TreeDelivery {
    /// If the machine hides a tree that a description lists.
    #[default]
    Hidden,
    /// If there are GPUs: the described tree, else the detected one.
    Always,
    /// Never.
    Never,
}

/// A description lacks a device of the machine, so that it cannot give NCCL a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NCCL gets no PCIe tree (NCCL_TOPO_FILE), because the description lacks {device} at {address:?}; give each [[gpu]] \
     and [[nic]] in it the PCI address on this machine (pci), and the switch or bridge above it (under)"
)]
pub struct Lacking {
    /// The device: a GPU by its index, or a card by its name.
    pub device: String,
    /// Its PCI address.
    pub address: String,
}

/// The tree for NCCL on a machine with these devices, under the machine's own names; none if NCCL detects it better
/// itself. `shown` is the tree that its kernel shows, and `described` the one in a description; for a machine `found`
/// in a description, that description is the tree.
///
/// # Errors
///
/// A described tree lacks a device: NCCL would combine the file and its own detection into two different trees.
pub fn tree(
    delivery: TreeDelivery,
    found: &Inventory,
    shown: &Inventory,
    described: Option<&Inventory>,
) -> Result<Option<Inventory>, Lacking> {
    if delivery == TreeDelivery::Never || found.gpus.is_empty() {
        return Ok(None);
    }
    let described = match found.origin {
        Origin::Described => Some(found),
        _ => described,
    };
    let Some(described) = described.filter(|it| has_tree(it)) else {
        return Ok((delivery == TreeDelivery::Always).then(|| found.clone()));
    };
    let tree = devices_of(described, found)?;
    Ok(Some(tree).filter(|tree| delivery == TreeDelivery::Always || is_hidden(shown, tree)))
}

/// Whether the position of each GPU is known.
fn has_tree(machine: &Inventory) -> bool {
    let gpus = &machine.gpus;
    !gpus.is_empty() && gpus.iter().all(|gpu| !gpu.under.is_empty())
}

/// Whether the kernel shows no GPU's switch, or no GPU's link, although a description lists one.
fn is_hidden(shown: &Inventory, described: &Inventory) -> bool {
    let switched = |machine: &Inventory| {
        let tree = PcieTree::of(machine);
        let mut gpus = machine.gpus.iter();
        gpus.any(|gpu| !tree.way_down(&gpu.under).is_empty())
    };
    let linked = |machine: &Inventory| {
        let mut gpus = machine.gpus.iter();
        gpus.any(|gpu| gpu.pcie.bandwidth().is_some())
    };
    let lacks = |has: &dyn Fn(&Inventory) -> bool| !has(shown) && has(described);
    lacks(&switched) || lacks(&linked)
}

/// A description's data for the detected devices, matched by their PCI addresses.
fn devices_of(described: &Inventory, found: &Inventory) -> Result<Inventory, Lacking> {
    let lacking = |device: String, address: &str| {
        Err(Lacking {
            device,
            address: address.to_owned(),
        })
    };
    let mut gpus = Vec::new();
    for gpu in &found.gpus {
        let same = |other: &&Gpu| same(&other.pci, &gpu.pci);
        match described.gpus.iter().find(same) {
            Some(known) => gpus.push(known.clone()),
            None => return lacking(format!("GPU {}", gpu.index), &gpu.pci),
        }
    }
    let mut nics = Vec::new();
    for nic in found.nics.iter().filter(|nic| !nic.pci.is_empty()) {
        let same = |other: &&Nic| same(&other.pci, &nic.pci);
        match described.nics.iter().find(same) {
            Some(known) => nics.push(known.clone()),
            None => return lacking(format!("card {}", nic.name), &nic.pci),
        }
    }
    Ok(Inventory {
        gpus,
        nics,
        switches: described.switches.clone(),
        numa_nodes: found.numa_nodes.clone(),
        ..Inventory::default()
    })
}

fn same(one: &str, other: &str) -> bool {
    !one.is_empty() && one.eq_ignore_ascii_case(other)
}

/// A device of the tree, and the devices below it.
#[derive(Default)]
struct TopologyBranch {
    class: &'static str,
    link: PcieLink,
    below: BTreeMap<String, TopologyBranch>,
}

/// A GPU or card.
struct Leaf<'a> {
    address: &'a str,
    under: &'a str,
    numa: Option<u32>,
    link: PcieLink,
    class: &'static str,
}

/// A machine's tree in NCCL's format: NUMA nodes, the switches above its GPUs and network cards, and these, each once
/// and sorted by address, as NCCL requires. Devices without a PCI address are left out; an unknown NUMA node is -1,
/// as in the kernel.
pub fn xml(machine: &Inventory) -> String {
    let tree = PcieTree::of(machine);
    let leaves = leaves(machine);
    // A switch without a NUMA node gets that of a device below it.
    let tops: BTreeMap<&str, u32> = (leaves.iter().rev())
        .filter_map(|leaf| {
            let top = *tree.way_down(leaf.under).first()?;
            Some((top.address.as_str(), top.numa.or(leaf.numa)?))
        })
        .collect();
    let only = match machine.numa_nodes.as_slice() {
        [node] => Some(node.id),
        _ => None,
    };
    let mut cpus: BTreeMap<Option<u32>, TopologyBranch> = BTreeMap::new();
    let mut written = BTreeSet::new();
    for leaf in &leaves {
        let address = leaf.address.to_ascii_lowercase();
        if address.is_empty() || !written.insert(address.clone()) {
            continue;
        }
        let way = tree.way_down(leaf.under);
        let numa = match way.first() {
            Some(top) => tops.get(top.address.as_str()).copied(),
            None => leaf.numa,
        };
        let mut at = cpus.entry(numa.or(only)).or_default();
        for switch in way {
            at = at.below.entry(switch.address.clone()).or_default();
            (at.class, at.link) = (SWITCH, switch.link);
        }
        let (class, link) = (leaf.class, leaf.link);
        let below = BTreeMap::new();
        at.below
            .insert(address, TopologyBranch { class, link, below });
    }
    let mut text = "<system version=\"1\">\n".to_owned();
    for (numa, branch) in &cpus {
        let id = numa.map_or_else(|| "-1".to_owned(), |id| id.to_string());
        let node = (machine.numa_nodes.iter()).find(|node| Some(node.id) == *numa);
        let affinity = attribute("affinity", node.and_then(mask));
        line(&mut text, 1, &format!("<cpu numaid=\"{id}\"{affinity}>"));
        write_below(&mut text, 2, branch);
        line(&mut text, 1, "</cpu>");
    }
    text + "</system>\n"
}

fn leaves(machine: &Inventory) -> Vec<Leaf<'_>> {
    let gpus = machine.gpus.iter().map(|gpu| Leaf {
        address: &gpu.pci,
        under: &gpu.under,
        numa: gpu.numa,
        link: gpu.pcie,
        class: GPU,
    });
    let nics = machine.nics.iter().map(|nic| Leaf {
        address: &nic.pci,
        under: &nic.under,
        numa: nic.numa,
        link: nic.link,
        class: match nic.ports.first() {
            Some(port) if port.layer == "Ethernet" => ETHERNET,
            _ => INFINIBAND,
        },
    });
    gpus.chain(nics).collect()
}

fn write_below(text: &mut String, depth: usize, branch: &TopologyBranch) {
    for (address, device) in &branch.below {
        let speed = attribute("link_speed", speed(device.link));
        let width = attribute("link_width", width(device.link));
        let open = format!(
            "<pci busid=\"{}\" class=\"{}\"{speed}{width}",
            escaped(address),
            device.class
        );
        if device.below.is_empty() {
            line(text, depth, &format!("{open}/>"));
            continue;
        }
        line(text, depth, &format!("{open}>"));
        write_below(text, depth + 1, device);
        line(text, depth, "</pci>");
    }
}

fn line(text: &mut String, depth: usize, content: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{:1$}{content}", "", depth * 2);
}

/// ` name="value"`; empty if the value is not known.
fn attribute(name: &str, value: Option<String>) -> String {
    value.map_or_else(String::new, |value| format!(" {name}=\"{value}\""))
}

/// A link's speed as the kernel writes it: the speed under load.
fn speed(link: PcieLink) -> Option<String> {
    let generation = match link.max_generation {
        0 => link.generation,
        most => most,
    };
    let transfers = match generation {
        1 => "2.5",
        2 => "5.0",
        3 => "8.0",
        4 => "16.0",
        5 => "32.0",
        // NCCL knows no faster generation.
        6.. => "64.0",
        0 => return None,
    };
    Some(format!("{transfers} GT/s PCIe"))
}

/// A link's current lanes: a missing lane does not come back under load.
fn width(link: PcieLink) -> Option<String> {
    let lanes = match link.width {
        0 => link.max_width,
        now => now,
    };
    (lanes > 0).then(|| lanes.to_string())
}

/// A node's CPUs in the kernel's mask format: 32 per number, the highest first. If this is none, as for a node whose
/// mask would exceed NCCL's limit, NCCL reads them from the machine.
fn mask(node: &NumaNode) -> Option<String> {
    let last = node.cpus.iter().max()?;
    let mut words = vec![0_u32; usize::try_from(last / 32).ok()? + 1];
    for cpu in &node.cpus {
        let word = usize::try_from(cpu / 32).ok()?;
        *words.get_mut(word)? |= 1 << (cpu % 32);
    }
    let words = words.iter().rev().map(|word| format!("{word:08x}"));
    let mask = words.collect::<Vec<_>>().join(",");
    (mask.len() <= MAX_VALUE).then_some(mask)
}

/// An address in its usual form needs no escaping.
fn escaped(address: &str) -> String {
    let address = address.replace('&', "&amp;").replace('<', "&lt;");
    address.replace('>', "&gt;").replace('"', "&quot;")
}
