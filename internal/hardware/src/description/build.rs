//! Builds the described machine from a checked description.

use super::format::{GpuState, GpuTable, NicTable, SwitchTable};
use super::{MAX_SLICES, MachineDescription};
use crate::fault_signs::{GpuFault, NvlinkErrors, Recovery, Signs};
use crate::inventory::{
    DriverLoad, Ecc, Gpu, GpuPath, Inventory, LinkKind, MigDevice, NumaNode, Origin,
};
use crate::mig::slice_mib;
use crate::pcie::{PcieLocation, PcieTree};
use crate::wiring::{Bandwidth, CardPort, Nic, PcieLink, PcieSwitch};

/// A described machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    /// Its inventory.
    pub inventory: Inventory,
    /// Data of each GPU that the driver's library knows and the inventory lacks, in the same
    /// order.
    pub cards: Vec<Card>,
    /// Whether the driver does not answer.
    pub driver_gone: bool,
}

/// Data of a described GPU that an inventory lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Card {
    /// Its NVLinks, by number.
    pub nvlinks: Vec<NvlinkEnd>,
    /// Its current load and faults.
    pub state: GpuState,
}

/// A GPU's end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvlinkEnd {
    /// The place of the GPU at the other end; none if that is a switch.
    pub to: Option<usize>,
    /// Whether the link is up.
    pub up: bool,
}

pub(super) fn build(description: MachineDescription, found: Inventory) -> Described {
    let mut inventory = host(&description, found);
    inventory.switches = description.switches.iter().map(switch).collect();
    inventory.nics = description.nics.iter().map(nic).collect();
    inventory.nics.sort_by(|a, b| a.name.cmp(&b.name));
    (inventory.switches).sort_by(|a, b| a.address.cmp(&b.address));
    let kinds: Vec<(&GpuTable, usize)> = (description.gpus.iter())
        .flat_map(|kind| (0..kind.count).map(move |within| (kind, within)))
        .collect();
    let states: Vec<GpuState> = (0..kinds.len())
        .map(|place| {
            let given = description.states.iter().find(|state| state.gpu == place);
            given.cloned().unwrap_or(GpuState {
                gpu: place,
                ..GpuState::default()
            })
        })
        .collect();
    let driver = &description.machine.driver;
    inventory.gpus = (kinds.iter().zip(&states).enumerate())
        .map(|(place, ((kind, within), state))| {
            card(kind, *within, place, &inventory.hostname, driver, state)
        })
        .collect();
    let cards: Vec<Card> = (states.into_iter().enumerate())
        .map(|(place, state)| Card {
            nvlinks: nvlinks(&description, &kinds, place, &state),
            state,
        })
        .collect();
    link(&mut inventory, &cards);
    if description.machine.driver_gone {
        (inventory.warnings).push("the NVIDIA driver is described as gone".to_owned());
        for gpu in &mut inventory.gpus {
            gpu.healthy = false;
            gpu.problem = "the driver is described as gone".to_owned();
        }
    }
    inventory.origin = if inventory.gpus.is_empty() {
        Origin::None
    } else {
        Origin::Described
    };
    Described {
        inventory,
        cards,
        driver_gone: description.machine.driver_gone,
    }
}

/// Processors, memory and names.
fn host(description: &MachineDescription, mut inventory: Inventory) -> Inventory {
    let machine = &description.machine;
    let or = |given: &Option<String>, found: String| given.clone().unwrap_or(found);
    inventory.hostname = or(&machine.hostname, inventory.hostname);
    inventory.kernel = or(&machine.kernel, inventory.kernel);
    inventory.os = or(&machine.os, inventory.os);
    inventory.cpu_model = or(&machine.cpu_model, inventory.cpu_model);
    if let Some(gbs) = machine.between_sockets_gbs {
        // Checked to be above 0 and at most 1000.
        inventory.between_sockets = Some(Bandwidth((gbs * 1000.0).round() as u32));
    }
    if !description.numa.is_empty() {
        let cpus: usize = description.numa.iter().map(|node| node.cpus.len()).sum();
        inventory.cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        inventory.memory_bytes = (description.numa.iter())
            .map(|node| node.memory_bytes)
            .sum();
        inventory.numa_nodes = description.numa.clone();
        inventory.numa_nodes.sort_by_key(|node| node.id);
    } else if machine.cpus.is_some() || machine.memory_mib.is_some() {
        let cpus = machine.cpus.unwrap_or(inventory.cpus);
        let memory_bytes = (machine.memory_mib).map_or(inventory.memory_bytes, |mib| mib << 20);
        inventory.numa_nodes = vec![NumaNode {
            id: 0,
            cpus: (0..cpus).collect(),
            memory_bytes,
        }];
    }
    if let Some(cpus) = machine.cpus {
        inventory.cpus = cpus;
    }
    if let Some(mib) = machine.memory_mib {
        inventory.memory_bytes = mib << 20;
    }
    inventory.mig_strategy = machine.mig_strategy.clone();
    inventory.cuda = machine.cuda.clone();
    inventory
}

fn pcie(generation: u32, width: u32) -> PcieLink {
    PcieLink {
        generation,
        width,
        max_generation: generation,
        max_width: width,
    }
}

fn switch(table: &SwitchTable) -> PcieSwitch {
    PcieSwitch {
        address: table.address.clone(),
        under: table.under.clone(),
        numa: table.numa,
        link: pcie(table.pcie_generation, table.pcie_width),
    }
}

fn nic(table: &NicTable) -> Nic {
    let ports = (1..).zip(&table.ports).map(|(number, port)| CardPort {
        number,
        state: port.state.clone(),
        physical: port.physical.clone(),
        layer: port.layer.clone(),
        gbits: port.gbits,
    });
    Nic {
        name: table.name.clone(),
        model: table.model.clone(),
        firmware: table.firmware.clone(),
        pci: table.pci.clone(),
        under: table.under.clone(),
        numa: table.numa,
        link: pcie(table.pcie_generation, table.pcie_width),
        netdevs: table.netdevs.clone(),
        ports: ports.collect(),
    }
}

fn card(
    kind: &GpuTable,
    within: usize,
    place: usize,
    hostname: &str,
    driver: &str,
    state: &GpuState,
) -> Gpu {
    let index = u32::try_from(place).unwrap_or(u32::MAX);
    let slice = |(at, profile): (usize, &String)| {
        let number = index
            .saturating_mul(MAX_SLICES as u32)
            .saturating_add(u32::try_from(at).unwrap_or(0));
        MigDevice {
            id: id(&format!("{hostname} slice"), number).replacen("GPU", "MIG", 1),
            profile: profile.clone(),
            memory_mib: slice_mib(&kind.model, profile).unwrap_or(0),
            capabilities: Vec::new(),
        }
    };
    let slices = |list: &Vec<String>| list.iter().enumerate().map(slice).collect();
    let milliwatts = |watts: Option<u32>| watts.map(|watts| watts.saturating_mul(1000));
    let full = pcie(kind.pcie_generation, kind.pcie_width);
    let signs = described_signs(state, kind.ecc == Some(true));
    let fault = |problem: &str, fatal| {
        let problem = problem.to_owned();
        Some(GpuFault { problem, fatal })
    };
    let fault = match (state.lost, kind.healthy) {
        (true, _) => fault("described as lost", true),
        (false, false) => fault("described as unhealthy", false),
        (false, true) => signs.fault(),
    };
    Gpu {
        slices: state.mig.as_ref().or(kind.mig.as_ref()).map(slices),
        id: kind
            .id
            .get(within)
            .cloned()
            .unwrap_or_else(|| id(hostname, index)),
        index,
        minor: kind.minor.get(within).copied(),
        model: kind.model.clone(),
        memory_mib: kind.memory_mib,
        compute_capability: kind.compute_capability.clone(),
        driver: driver.to_string(),
        pci: (kind.pci.get(within).cloned())
            .unwrap_or_else(|| format!("0000:{:02x}:00.0", 0x10 + place)),
        under: kind.under.get(within).cloned().unwrap_or_default(),
        pcie: PcieLink {
            generation: state.pcie_generation.unwrap_or(full.generation),
            width: state.pcie_width.unwrap_or(full.width),
            ..full
        },
        numa: kind.numa,
        ecc: kind.ecc.map(|enabled| Ecc {
            enabled,
            corrected: state.corrected,
            uncorrected: state.uncorrected,
        }),
        fabric: state.fabric.unwrap_or(kind.fabric),
        clique: String::new(),
        mode: String::new(),
        healthy: fault.is_none(),
        failed: fault.as_ref().is_some_and(|fault| fault.fatal),
        problem: fault.map(|fault| fault.problem).unwrap_or_default(),
        concerns: Vec::new(),
        signs,
        load: if state.lost {
            DriverLoad::default()
        } else {
            DriverLoad {
                percent: state.utilisation.or(kind.utilisation),
                memory_mib: state.memory_used_mib.or(kind.memory_used_mib),
                celsius: state.celsius.or(kind.celsius),
                milliwatts: milliwatts(state.watts.or(kind.watts)),
                milliwatts_limit: milliwatts(state.watts_limit.or(kind.watts_limit)),
            }
        },
        links: Vec::new(),
    }
}

/// A GPU's NVLinks: those to switches, then those to each other GPU in the file's order.
fn nvlinks(
    description: &MachineDescription,
    kinds: &[(&GpuTable, usize)],
    place: usize,
    state: &GpuState,
) -> Vec<NvlinkEnd> {
    let kind = kinds[place].0;
    let mut ends: Vec<Option<usize>> = Vec::new();
    let mut add = |to: Option<usize>, links: u32| ends.extend((0..links).map(|_| to));
    if kind.nvswitch {
        add(None, kind.nvlinks);
    } else if description.nvlinks.is_empty() {
        for (other, (its, _)) in kinds.iter().enumerate() {
            if other != place && !its.nvswitch {
                add(Some(other), kind.nvlinks.min(its.nvlinks));
            }
        }
    }
    for nvlink in &description.nvlinks {
        match nvlink.gpus {
            [one, other] if one == place => add(Some(other), nvlink.links),
            [one, other] if other == place => add(Some(one), nvlink.links),
            _ => {}
        }
    }
    (ends.into_iter().enumerate())
        .map(|(number, to)| NvlinkEnd {
            to,
            up: !state.nvlinks_down.contains(&number),
        })
        .collect()
}

/// Fills in each GPU's best path to each other.
fn link(inventory: &mut Inventory, cards: &[Card]) {
    let up = |place: usize, to: Option<usize>| {
        let ends = cards[place].nvlinks.iter();
        let up = ends.filter(|end| end.up && end.to == to).count();
        u32::try_from(up).unwrap_or(u32::MAX)
    };
    let tree = PcieTree::of(inventory);
    let place = |gpu: usize| {
        let gpu: &Gpu = &inventory.gpus[gpu];
        PcieLocation {
            under: &gpu.under,
            numa: gpu.numa,
            link: gpu.pcie,
        }
    };
    let all = 0..inventory.gpus.len();
    let links: Vec<Vec<GpuPath>> = (all.clone())
        .map(|from| {
            let others = all.clone().filter(|to| *to != from);
            let link = |to: usize| {
                let (direct, switched) = (up(from, Some(to)), up(from, None).min(up(to, None)));
                let (kind, count) = match (direct, switched) {
                    (0, 0) => (tree.path(place(from), place(to)).0, 0),
                    (0, switched) => (LinkKind::Nvs, switched),
                    (direct, _) => (LinkKind::Nvl, direct),
                };
                GpuPath {
                    to: inventory.gpus[to].id.clone(),
                    kind,
                    count,
                }
            };
            others.map(link).collect()
        })
        .collect();
    for ((gpu, links), card) in inventory.gpus.iter_mut().zip(links).zip(cards) {
        let up = card.nvlinks.iter().filter(|end| end.up).count();
        gpu.signs.nvlinks = u32::try_from(up).unwrap_or(u32::MAX);
        gpu.links = links;
    }
}

/// An id in the form of a UUID from a host name and a place: FNV-1a, twice with different starts.
fn id(hostname: &str, index: u32) -> String {
    let hash = |start: u64| {
        hostname
            .bytes()
            .chain(index.to_le_bytes())
            .fold(start, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
    };
    let (a, b) = (hash(0xcbf2_9ce4_8422_2325), hash(0x8422_2325_cbf2_9ce4));
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xffff,
        b >> 48,
        b & 0xffff_ffff_ffff
    )
}

/// A described GPU's signs; `corrects` says whether its memory has error correction.
fn described_signs(state: &GpuState, corrects: bool) -> Signs {
    if state.lost {
        return Signs::default();
    }
    Signs {
        recovery: (!state.old_driver).then(|| Recovery::of(state.recovery.into())),
        rows_pending: corrects && state.remap_pending,
        rows_failed: corrects && state.remap_failed,
        throttle: state.throttle,
        nvlinks: 0,
        nvlink_errors: described_errors(state),
    }
}

/// The errors on a described GPU's NVLinks.
fn described_errors(state: &GpuState) -> Option<NvlinkErrors> {
    let [flits, data, replays, recoveries] = state.nvlink_errors?;
    Some(NvlinkErrors {
        flits,
        data,
        replays,
        recoveries,
    })
}
