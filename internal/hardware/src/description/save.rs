//! Writes a machine as a description.

use std::cmp::Reverse;

use serde::Serialize;

use super::format::{
    GpuTable, MachineTable, NicTable, NumaTable, NvlinkTable, PortTable, SwitchTable,
};
use crate::inventory::{FabricState, Gpu, Inventory, LinkKind};
use crate::matrix::ranges;

/// The machine cannot be described.
#[derive(Debug, thiserror::Error)]
#[error("the description of the machine cannot be written: {0}")]
pub struct SaveError(toml::ser::Error);

/// The file's tables, in the order in which they are written.
#[derive(Serialize)]
struct SavedDescription {
    machine: MachineTable,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    numa: Vec<NumaTable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    switch: Vec<SwitchTable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpu: Vec<GpuTable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nvlink: Vec<NvlinkTable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nic: Vec<NicTable>,
}

/// A description of the machine, from which reading restores the same machine: its parts and their
/// links, without the GPUs' current load.
///
/// # Errors
///
/// The text cannot be serialised.
pub fn save(machine: &Inventory) -> Result<String, SaveError> {
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    let driver = machine.gpus.first().map(|gpu| gpu.driver.clone());
    let file = SavedDescription {
        machine: MachineTable {
            hostname: text(&machine.hostname),
            kernel: text(&machine.kernel),
            os: text(&machine.os),
            cpus: Some(machine.cpus).filter(|cpus| *cpus > 0),
            cpu_model: text(&machine.cpu_model),
            between_sockets_gbs: machine.between_sockets.map(|it| f64::from(it.0) / 1000.0),
            memory_mib: Some(machine.memory_bytes >> 20),
            driver: driver.unwrap_or_default(),
            cuda: machine.cuda.clone(),
            mig_strategy: machine.mig_strategy.clone(),
            driver_gone: false,
        },
        numa: (machine.numa_nodes.iter())
            .map(|node| NumaTable {
                id: node.id,
                cpus: ranges(&node.cpus),
                memory_mib: node.memory_bytes >> 20,
            })
            .collect(),
        switch: (machine.switches.iter())
            .map(|switch| SwitchTable {
                address: switch.address.clone(),
                under: switch.under.clone(),
                numa: switch.numa,
                pcie_generation: switch.link.max_generation,
                pcie_width: switch.link.max_width,
            })
            .collect(),
        gpu: machine.gpus.iter().map(gpu).collect(),
        nvlink: nvlinks(machine),
        nic: (machine.nics.iter())
            .map(|nic| NicTable {
                name: nic.name.clone(),
                model: nic.model.clone(),
                firmware: nic.firmware.clone(),
                pci: nic.pci.clone(),
                under: nic.under.clone(),
                numa: nic.numa,
                pcie_generation: nic.link.max_generation,
                pcie_width: nic.link.max_width,
                netdevs: nic.netdevs.clone(),
                ports: (nic.ports.iter())
                    .map(|port| PortTable {
                        gbits: port.gbits,
                        layer: port.layer.clone(),
                        state: port.state.clone(),
                        physical: port.physical.clone(),
                    })
                    .collect(),
            })
            .collect(),
    };
    let tables = toml::to_string(&file).map_err(SaveError)?;
    Ok(format!(
        "# A machine as muster doctor saw it. What reads it: muster topology --machine FILE,\n\
         # muster doctor --machine FILE, muster agent --machine FILE.\n\n{tables}"
    ))
}

fn gpu(gpu: &Gpu) -> GpuTable {
    let switched = gpu.links.iter().filter(|link| link.kind == LinkKind::Nvs);
    let nvlinks = switched.map(|link| link.count).max().unwrap_or(0);
    let some = |text: &String| {
        let given = (!text.is_empty()).then(|| text.clone());
        given.into_iter().collect::<Vec<String>>()
    };
    GpuTable {
        model: gpu.model.clone(),
        memory_mib: gpu.memory_mib,
        count: 1,
        numa: gpu.numa,
        compute_capability: gpu.compute_capability.clone(),
        id: some(&gpu.id),
        minor: gpu.minor.into_iter().collect(),
        pci: some(&gpu.pci),
        under: some(&gpu.under),
        pcie_generation: gpu.pcie.max_generation,
        pcie_width: gpu.pcie.max_width,
        ecc: gpu.ecc.map(|ecc| ecc.enabled),
        nvlinks,
        nvswitch: nvlinks > 0,
        fabric: match gpu.fabric {
            // A transient state.
            FabricState::Starting => FabricState::Completed,
            settled => settled,
        },
        healthy: true,
        utilisation: None,
        memory_used_mib: None,
        celsius: None,
        watts: None,
        watts_limit: gpu.load.milliwatts_limit.map(|limit| limit / 1000),
        mig: gpu.slices.as_ref().map(|slices| {
            let mut slices: Vec<_> = slices.iter().collect();
            // Larger slices first, which is the order of placement when the text is read.
            slices.sort_by_key(|slice| Reverse(slice.memory_mib));
            (slices.iter()).map(|slice| slice.profile.clone()).collect()
        }),
    }
}

fn nvlinks(machine: &Inventory) -> Vec<NvlinkTable> {
    let mut tables = Vec::new();
    for (one, gpu) in machine.gpus.iter().enumerate() {
        for link in gpu.links.iter().filter(|link| link.kind == LinkKind::Nvl) {
            let other = machine.gpus.iter().position(|other| other.id == link.to);
            tables.extend(other.filter(|other| *other > one).map(|other| NvlinkTable {
                gpus: [one, other],
                links: link.count,
            }));
        }
    }
    tables
}
