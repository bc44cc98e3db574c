//! A machine's PCIe tree in the words that NCCL reads from the file `NCCL_TOPO_FILE`, and when it is to
//! be told one. Pure.
//!
//! NCCL finds the tree by itself wherever the kernel shows it. A virtual machine's often doesn't: then
//! every GPU seems as far from every card as from any other. What the file says NCCL believes, so it has
//! nothing that NCCL asks drivers, cards and processors for in any case: GPUs' numbers (a container's
//! begin anew), NVLinks, ports, the processor's model.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::inventory::{Gpu, Inventory, NumaNode, Origin};
use crate::pcie::Tree;
use crate::wiring::{Nic, PcieLink};

/// The PCI class of a bridge, as which NCCL knows a switch.
const SWITCH: &str = "0x060400";
/// Of a GPU that computes.
const GPU: &str = "0x030200";
/// Of a card for InfiniBand.
const INFINIBAND: &str = "0x020700";
/// Of one for Ethernet.
const ETHERNET: &str = "0x020000";
/// The longest value that NCCL reads.
const MAX_VALUE: usize = 254;

/// Whether NCCL is told a machine's tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tell {
    /// Where the machine doesn't show what a description knows.
    #[default]
    Hidden,
    /// Wherever there are GPUs: as a description has it, else as it was found.
    Always,
    /// Nowhere.
    Never,
}

/// A description lacks a device that the machine has, so that NCCL can't be told of a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NCCL is told no PCIe tree (NCCL_TOPO_FILE), as the description lacks {device} at {address:?}; give each \
     [[gpu]] and [[nic]] there the PCI address that this machine has it at (pci), and what it hangs on (under)"
)]
pub struct Lacking {
    /// The device: a GPU by its index, or a card by its name.
    pub device: String,
    /// Its PCI address.
    pub address: String,
}

/// The tree that NCCL is to be told of a machine with these devices, in the same words as the machine;
/// nothing where it finds out better by itself. `shown` is what its kernel shows of the tree, and
/// `described` what a description of it says; one that was `found` in a description is that itself.
///
/// # Errors
///
/// Where a tree is described that lacks a device: what NCCL took from the file and what it
/// found itself would be two trees.
pub fn tree(
    tell: Tell,
    found: &Inventory,
    shown: &Inventory,
    described: Option<&Inventory>,
) -> Result<Option<Inventory>, Lacking> {
    if tell == Tell::Never || found.gpus.is_empty() {
        return Ok(None);
    }
    let described = match found.origin {
        Origin::Described => Some(found),
        _ => described,
    };
    let Some(described) = described.filter(|it| has_tree(it)) else {
        return Ok((tell == Tell::Always).then(|| found.clone()));
    };
    let tree = devices_of(described, found)?;
    Ok(Some(tree).filter(|tree| tell == Tell::Always || is_hidden(shown, tree)))
}

/// Whether it says of each GPU where it hangs.
fn has_tree(machine: &Inventory) -> bool {
    let gpus = &machine.gpus;
    !gpus.is_empty() && gpus.iter().all(|gpu| !gpu.under.is_empty())
}

/// Whether the kernel shows no GPU's switch, or no GPU's link, where a description knows one.
fn is_hidden(shown: &Inventory, described: &Inventory) -> bool {
    let switched = |machine: &Inventory| {
        let tree = Tree::of(machine);
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

/// What a description says of the devices that were found, which are told by their PCI addresses.
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

/// A device of the tree, and what is under it.
#[derive(Default)]
struct Branch {
    class: &'static str,
    link: PcieLink,
    below: BTreeMap<String, Branch>,
}

/// A GPU or card.
struct Leaf<'a> {
    address: &'a str,
    under: &'a str,
    numa: Option<u32>,
    link: PcieLink,
    class: &'static str,
}

/// A machine's tree in NCCL's format: NUMA nodes, the switches above its GPUs and network cards, and
/// these, each once, in the order of their addresses, which NCCL wants. What has no PCI address is left
/// out; a NUMA node that is not known is -1, as the kernel has it.
pub fn xml(machine: &Inventory) -> String {
    let tree = Tree::of(machine);
    let leaves = leaves(machine);
    // A switch that doesn't say where it is, is where a device under it is.
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
    let mut cpus: BTreeMap<Option<u32>, Branch> = BTreeMap::new();
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
        at.below.insert(address, Branch { class, link, below });
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

fn write_below(text: &mut String, depth: usize, branch: &Branch) {
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
    // A String takes all that is written to it.
    let _ = writeln!(text, "{:1$}{content}", "", depth * 2);
}

/// ` name="value"`; nothing where the value is not known.
fn attribute(name: &str, value: Option<String>) -> String {
    value.map_or_else(String::new, |value| format!(" {name}=\"{value}\""))
}

/// A link's speed as the kernel writes it: what it runs at when it is at work.
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
        // NCCL knows no faster one.
        6.. => "64.0",
        0 => return None,
    };
    Some(format!("{transfers} GT/s PCIe"))
}

/// Its lanes: a missing one does not come back under load.
fn width(link: PcieLink) -> Option<String> {
    let lanes = match link.width {
        0 => link.max_width,
        now => now,
    };
    (lanes > 0).then(|| lanes.to_string())
}

/// A node's CPUs as the kernel writes their mask: 32 to a number, the highest first. NCCL reads them
/// from the machine where this says nothing, as of a node whose mask would be too long for it.
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

/// An address that is one needs none of this.
fn escaped(address: &str) -> String {
    let address = address.replace('&', "&amp;").replace('<', "&lt;");
    address.replace('>', "&gt;").replace('"', "&quot;")
}
