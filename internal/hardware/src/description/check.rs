//! Validates a machine description. Each error names its line, its field, the value, and the valid
//! values.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::format::{DescriptionFile, GpuState, GpuTable, NicTable, NvlinkTable, SwitchTable};
use super::{MAX_GPUS, MAX_NICS, MAX_NVLINKS, MAX_SLICES, MachineDescription};
use crate::error::HardwareError;
use crate::inventory::NumaNode;
use crate::mig::{self, profile_mib};
use crate::system::cpu_list;

/// A field's fault.
type FieldFault = (&'static str, String);

/// Checks a text; `path` is its name in errors.
pub fn parse(text: &str, path: &Path) -> Result<MachineDescription, HardwareError> {
    let fault = |at: usize, field: String, detail: String| HardwareError::Description {
        path: PathBuf::from(path),
        line: text[..at.min(text.len())].matches('\n').count() + 1,
        field,
        detail,
    };
    let file: DescriptionFile = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        fault(at, "syntax".into(), error.message().to_string())
    })?;
    let mut seen = VisitedParts::default();
    let mut numa: Vec<NumaNode> = Vec::new();
    for (index, table) in file.numa.iter().enumerate() {
        let (at, node) = (table.span().start, table.get_ref());
        let bad = |field: &str, detail: String| fault(at, format!("numa[{index}].{field}"), detail);
        let cpus = cpu_list(&node.cpus).map_err(|error| bad("cpus", error.to_string()))?;
        if !seen.nodes.insert(node.id) {
            return Err(bad(
                "id",
                format!("{} occurs twice; number the nodes from 0", node.id),
            ));
        }
        numa.push(NumaNode {
            id: node.id,
            cpus,
            memory_bytes: node.memory_mib << 20,
        });
    }
    seen.switches = (file.switch.iter())
        .map(|table| table.get_ref().address.clone())
        .collect();
    let name = |kind: &str, index: usize| {
        let kind = kind.to_owned();
        move |at: usize, (field, detail): FieldFault| {
            fault(at, format!("{kind}[{index}].{field}"), detail)
        }
    };
    fn each<T>(
        tables: Vec<Spanned<T>>,
        mut check: impl FnMut(&T) -> Result<(), FieldFault>,
        bad: impl Fn(usize, usize, FieldFault) -> HardwareError,
    ) -> Result<Vec<T>, HardwareError> {
        let checked = tables.into_iter().enumerate().map(|(index, table)| {
            let (at, table) = (table.span().start, table.into_inner());
            match check(&table) {
                Ok(()) => Ok(table),
                Err(fault) => Err(bad(index, at, fault)),
            }
        });
        checked.collect()
    }
    let switches = each(
        file.switch,
        |table| seen.switch(table),
        |index, at, fault| name("switch", index)(at, fault),
    )?;
    let gpus = each(
        file.gpu,
        |table| seen.gpu(table),
        |index, at, fault| name("gpu", index)(at, fault),
    )?;
    let nvlinks = each(
        file.nvlink,
        |table| seen.nvlink(table),
        |index, at, fault| name("nvlink", index)(at, fault),
    )?;
    let nics = each(
        file.nic,
        |table| seen.nic(table),
        |index, at, fault| name("nic", index)(at, fault),
    )?;
    let states = each(
        file.state,
        |table| seen.state(table),
        |index, at, fault| name("state", index)(at, fault),
    )?;
    if !["", "none", "single", "mixed"].contains(&file.machine.mig_strategy.as_str()) {
        let given = &file.machine.mig_strategy;
        return Err(fault(
            0,
            "machine.mig_strategy".into(),
            format!("{given:?} is not usable; write \"none\", \"single\" or \"mixed\""),
        ));
    }
    if let Some(0) = file.machine.cpus {
        return Err(fault(
            0,
            "machine.cpus".into(),
            "0 is not usable; write the number of CPUs".into(),
        ));
    }
    if let Some(gbs) = file.machine.between_sockets_gbs
        && !(gbs > 0.0 && gbs <= 1000.0)
    {
        return Err(fault(
            0,
            "machine.between_sockets_gbs".into(),
            format!("{gbs} is not usable; write GB/s in each direction, such as 22.0"),
        ));
    }
    Ok(MachineDescription {
        machine: file.machine,
        numa,
        switches,
        gpus,
        nvlinks,
        nics,
        states,
    })
}

/// The parts of the file that have been visited.
#[derive(Default)]
struct VisitedParts {
    nodes: BTreeSet<u32>,
    switches: BTreeSet<String>,
    addresses: BTreeSet<String>,
    ids: BTreeSet<String>,
    names: BTreeSet<String>,
    gpus: usize,
    models: Vec<String>,
    states: BTreeSet<usize>,
}

impl VisitedParts {
    fn switch(&mut self, switch: &SwitchTable) -> Result<(), FieldFault> {
        self.address("address", &switch.address)?;
        self.under(&switch.under)?;
        if switch.under == switch.address {
            let detail = format!("{:?} is the switch itself", switch.under);
            return Err(("under", detail));
        }
        self.numa(switch.numa)?;
        link(switch.pcie_generation, switch.pcie_width)
    }

    fn gpu(&mut self, gpu: &GpuTable) -> Result<(), FieldFault> {
        self.gpus = self.gpus.saturating_add(gpu.count);
        if gpu.model.trim().is_empty() {
            let detail = "is empty; write a product, such as \"NVIDIA H100 80GB HBM3\"";
            return Err(("model", detail.into()));
        }
        if gpu.count == 0 || self.gpus > MAX_GPUS {
            let count = gpu.count;
            let detail = format!("{count} is not usable; write 1 to {MAX_GPUS} GPUs");
            return Err(("count", detail));
        }
        if gpu.memory_mib == 0 || gpu.memory_mib > (1 << 24) {
            let mib = gpu.memory_mib;
            let detail = format!("{mib} is not usable; write the card's memory in MiB");
            return Err(("memory_mib", detail));
        }
        slices(&gpu.model, gpu.mig.as_deref().unwrap_or_default())?;
        let models = std::iter::repeat_n(gpu.model.clone(), gpu.count);
        self.models.extend(models);
        if gpu.nvlinks > MAX_NVLINKS {
            let links = gpu.nvlinks;
            let detail = format!("{links} is not usable; write 0 to {MAX_NVLINKS} NVLinks");
            return Err(("nvlinks", detail));
        }
        self.numa(gpu.numa)?;
        percent("utilisation", gpu.utilisation)?;
        if let Some(used) = gpu.memory_used_mib.filter(|used| *used > gpu.memory_mib) {
            let detail = format!("{used} is more than the card's {} MiB", gpu.memory_mib);
            return Err(("memory_used_mib", detail));
        }
        let lists = [
            ("id", gpu.id.len()),
            ("minor", gpu.minor.len()),
            ("pci", gpu.pci.len()),
            ("under", gpu.under.len()),
        ];
        if let Some((field, length)) =
            (lists.into_iter()).find(|(_, length)| *length != 0 && *length != gpu.count)
        {
            let count = gpu.count;
            let detail = format!("has {length} entries; give one for each of the {count} cards");
            return Err((field, detail));
        }
        for address in &gpu.pci {
            self.address("pci", address)?;
        }
        for under in &gpu.under {
            self.under(under)?;
        }
        for id in &gpu.id {
            if !id.starts_with("GPU-") || !self.ids.insert(id.clone()) {
                let detail = format!(
                    "{id:?} is not usable; write an id that starts with GPU- and occurs once"
                );
                return Err(("id", detail));
            }
        }
        link(gpu.pcie_generation, gpu.pcie_width)
    }

    fn nvlink(&mut self, nvlink: &NvlinkTable) -> Result<(), FieldFault> {
        let [one, other] = nvlink.gpus;
        if one == other || one.max(other) >= self.gpus {
            let detail = format!(
                "{one} and {other} are not usable; write the places of two of the {} GPUs, from 0",
                self.gpus
            );
            return Err(("gpus", detail));
        }
        if nvlink.links == 0 || nvlink.links > MAX_NVLINKS {
            let links = nvlink.links;
            let detail = format!("{links} is not usable; write 1 to {MAX_NVLINKS} NVLinks");
            return Err(("links", detail));
        }
        Ok(())
    }

    fn nic(&mut self, nic: &NicTable) -> Result<(), FieldFault> {
        if nic.name.trim().is_empty() || !self.names.insert(nic.name.clone()) {
            let detail = format!(
                "{:?} is not usable; write each RDMA device, such as \"mlx5_0\", once",
                nic.name
            );
            return Err(("name", detail));
        }
        if self.names.len() > MAX_NICS {
            return Err(("name", format!("a machine has at most {MAX_NICS} cards")));
        }
        if !nic.pci.is_empty() {
            self.address("pci", &nic.pci)?;
        }
        if !nic.under.is_empty() {
            self.under(&nic.under)?;
        }
        self.numa(nic.numa)?;
        for port in &nic.ports {
            if !["InfiniBand", "Ethernet", ""].contains(&port.layer.as_str()) {
                let layer = &port.layer;
                let detail =
                    format!("layer {layer:?} is not usable; write \"InfiniBand\" or \"Ethernet\"");
                return Err(("ports", detail));
            }
            if port.gbits > 100_000 {
                let gbits = port.gbits;
                let detail = format!("gbits {gbits} is not usable; write gigabits a second");
                return Err(("ports", detail));
            }
        }
        link(nic.pcie_generation, nic.pcie_width)
    }

    fn state(&mut self, state: &GpuState) -> Result<(), FieldFault> {
        let place = state.gpu;
        if place >= self.gpus || !self.states.insert(place) {
            let detail = format!(
                "{place} is not usable; write the place of one of the {} GPUs, from 0, once",
                self.gpus
            );
            return Err(("gpu", detail));
        }
        slices(
            &self.models[place],
            state.mig.as_deref().unwrap_or_default(),
        )?;
        percent("utilisation", state.utilisation)?;
        percent("memory_utilisation", state.memory_utilisation)?;
        percent("encoder", state.encoder)?;
        percent("decoder", state.decoder)?;
        link(
            state.pcie_generation.unwrap_or(0),
            state.pcie_width.unwrap_or(0),
        )
    }

    fn numa(&self, numa: Option<u32>) -> Result<(), FieldFault> {
        match numa {
            Some(node) if !self.nodes.is_empty() && !self.nodes.contains(&node) => {
                Err(("numa", format!("{node} is not one of the [[numa]] nodes")))
            }
            _ => Ok(()),
        }
    }

    fn address(&mut self, field: &'static str, address: &str) -> Result<(), FieldFault> {
        if !is_address(address) || !self.addresses.insert(address.to_owned()) {
            let detail = format!(
                "{address:?} is not usable; write a PCI address such as 0000:1b:00.0, once"
            );
            return Err((field, detail));
        }
        Ok(())
    }

    fn under(&self, under: &str) -> Result<(), FieldFault> {
        if self.switches.contains(under) || under.starts_with("pci") {
            return Ok(());
        }
        let detail = format!(
            "{under:?} is not usable; write a [[switch]]'s address, or a host bridge such as pci0000:15"
        );
        Err(("under", detail))
    }
}

fn slices(model: &str, slices: &[String]) -> Result<(), FieldFault> {
    if let Some(profile) = slices.iter().find(|slice| profile_mib(slice).is_none()) {
        let detail = format!("{profile:?} is not usable; write profiles such as \"1g.10gb\"");
        return Err(("mig", detail));
    }
    if slices.len() > MAX_SLICES {
        let count = slices.len();
        let detail = format!("{count} slices are not usable; write 0 to {MAX_SLICES}");
        return Err(("mig", detail));
    }
    let known = mig::profiles(model);
    if known.is_empty() {
        return Ok(());
    }
    let mut profiles = Vec::new();
    for slice in slices {
        let Some(profile) = mig::profile(model, slice) else {
            // Drivers name more variants of a profile than this crate knows.
            if slice.contains('+') {
                continue;
            }
            let names: Vec<&str> = known.iter().map(|profile| profile.name).collect();
            let detail = format!("{model} has no {slice:?}; it has {}", names.join(", "));
            return Err(("mig", detail));
        };
        profiles.push(profile);
    }
    if let Err(profile) = mig::place(&profiles) {
        let detail = format!(
            "{slices:?} do not fit on one card, which has no place for {:?}; write fewer, or larger ones first",
            profile.name
        );
        return Err(("mig", detail));
    }
    Ok(())
}

fn percent(field: &'static str, given: Option<u32>) -> Result<(), FieldFault> {
    match given.filter(|percent| *percent > 100) {
        Some(percent) => {
            let detail = format!("{percent} is not usable; write percent, 0 to 100");
            Err((field, detail))
        }
        None => Ok(()),
    }
}

fn link(generation: u32, width: u32) -> Result<(), FieldFault> {
    if generation > 7 {
        let detail = format!("{generation} is not usable; write a PCIe generation, 1 to 7");
        return Err(("pcie_generation", detail));
    }
    if width > 32 {
        let detail = format!("{width} is not usable; write lanes, 1 to 32");
        return Err(("pcie_width", detail));
    }
    Ok(())
}

/// `0000:1b:00.0`, in lower case as the kernel writes it.
fn is_address(text: &str) -> bool {
    let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len())
            && (text.bytes()).all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let parts: Vec<&str> = text.split([':', '.']).collect();
    matches!(parts[..], [domain, bus, device, function]
        if hex(domain, 4..=8) && hex(bus, 2..=2) && hex(device, 2..=2) && hex(function, 1..=1))
}
