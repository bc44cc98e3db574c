//! A machine described in a file, to stand in for one with GPUs in tests and demos.
//!
//! ```toml
//! [machine]                    # all optional; the real machine's facts otherwise
//! hostname = "gpu-1"
//! cpus = 64
//! memory_mib = 524288
//! driver = "550.54.15"
//! mig_strategy = "mixed"       # or "single": slices of one profile are given out as GPUs
//!
//! [[numa]]                     # optional
//! id = 0
//! cpus = "0-31"
//! memory_mib = 262144
//!
//! [[gpu]]                      # one table for `count` cards of a kind
//! model = "NVIDIA H100 80GB HBM3"
//! memory_mib = 81559
//! count = 4                    # 1 if absent
//! numa = 0                     # optional
//! compute_capability = "9.0"   # optional
//! nvlinks = 18                 # links a card; 0 if absent
//! nvswitch = true              # links lead to a switch that joins all; false if absent
//! healthy = true               # true if absent
//! mig = ["1g.10gb", "3g.40gb"] # its slices, if it is in MIG mode
//! ```
//!
//! Owns the format. Ids are made of the host name and the place, so that they are the same
//! each time and no two machines share one.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::error::HardwareError;
use crate::inventory::{Gpu, Inventory, Link, LinkKind, NumaNode, Origin, Slice};
use crate::system::cpu_list;

/// GPUs a described machine may have.
pub const MAX_GPUS: usize = 64;
/// NVLinks a described GPU may have.
pub const MAX_NVLINKS: u32 = 36;
/// Slices a described GPU may have.
pub const MAX_SLICES: usize = 7;

/// A machine description, checked.
#[derive(Debug)]
pub struct Description {
    machine: MachineTable,
    numa: Vec<NumaNode>,
    gpus: Vec<GpuTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    machine: MachineTable,
    #[serde(default)]
    numa: Vec<Spanned<NumaTable>>,
    #[serde(default)]
    gpu: Vec<Spanned<GpuTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineTable {
    hostname: Option<String>,
    kernel: Option<String>,
    os: Option<String>,
    cpus: Option<u32>,
    memory_mib: Option<u64>,
    #[serde(default)]
    driver: String,
    #[serde(default)]
    mig_strategy: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NumaTable {
    id: u32,
    cpus: String,
    #[serde(default)]
    memory_mib: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuTable {
    model: String,
    memory_mib: u64,
    #[serde(default = "one")]
    count: usize,
    numa: Option<u32>,
    #[serde(default)]
    compute_capability: String,
    #[serde(default)]
    nvlinks: u32,
    #[serde(default)]
    nvswitch: bool,
    #[serde(default = "yes")]
    healthy: bool,
    mig: Option<Vec<String>>,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

impl Description {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Description, HardwareError> {
        let text = std::fs::read_to_string(path).map_err(|source| HardwareError::Read {
            path: path.into(),
            source,
        })?;
        Description::parse(&text, path)
    }

    /// Checks a text; `path` is what errors call it.
    pub fn parse(text: &str, path: &Path) -> Result<Description, HardwareError> {
        let fault = |at: usize, field: String, detail: String| HardwareError::Description {
            path: PathBuf::from(path),
            line: text[..at.min(text.len())].matches('\n').count() + 1,
            field,
            detail,
        };
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            fault(at, "syntax".into(), error.message().to_string())
        })?;
        let mut numa: Vec<NumaNode> = Vec::new();
        for (index, table) in file.numa.iter().enumerate() {
            let (at, node) = (table.span().start, table.get_ref());
            let bad =
                |field: &str, detail: String| fault(at, format!("numa[{index}].{field}"), detail);
            let cpus = cpu_list(&node.cpus).map_err(|detail| bad("cpus", detail))?;
            if numa.iter().any(|other| other.id == node.id) {
                return Err(bad(
                    "id",
                    format!("{} is there twice; number the nodes from 0", node.id),
                ));
            }
            numa.push(NumaNode {
                id: node.id,
                cpus,
                memory_bytes: node.memory_mib << 20,
            });
        }
        let mut total = 0usize;
        let mut gpus = Vec::new();
        for (index, table) in file.gpu.into_iter().enumerate() {
            let (at, gpu) = (table.span().start, table.into_inner());
            let bad =
                |field: &str, detail: String| fault(at, format!("gpu[{index}].{field}"), detail);
            total = total.saturating_add(gpu.count);
            if gpu.model.trim().is_empty() {
                return Err(bad(
                    "model",
                    "is empty; name a product, such as \"NVIDIA H100 80GB HBM3\"".into(),
                ));
            }
            if gpu.count == 0 || total > MAX_GPUS {
                return Err(bad(
                    "count",
                    format!(
                        "{} is not usable; a machine has 1 to {MAX_GPUS} GPUs",
                        gpu.count
                    ),
                ));
            }
            if gpu.memory_mib == 0 || gpu.memory_mib > (1 << 24) {
                return Err(bad(
                    "memory_mib",
                    format!(
                        "{} is not usable; give the card's memory in MiB",
                        gpu.memory_mib
                    ),
                ));
            }
            let slices = gpu.mig.as_deref().unwrap_or_default();
            if let Some(profile) = slices.iter().find(|slice| profile_mib(slice).is_none()) {
                return Err(bad(
                    "mig",
                    format!("{profile:?} is not usable; write profiles such as \"1g.10gb\""),
                ));
            }
            if slices.len() > MAX_SLICES {
                return Err(bad(
                    "mig",
                    format!(
                        "{} slices are not usable; a card has 0 to {MAX_SLICES}",
                        slices.len()
                    ),
                ));
            }
            if gpu.nvlinks > MAX_NVLINKS {
                return Err(bad(
                    "nvlinks",
                    format!(
                        "{} is not usable; a card has 0 to {MAX_NVLINKS}",
                        gpu.nvlinks
                    ),
                ));
            }
            if let Some(node) = gpu.numa
                && !numa.is_empty()
                && numa.iter().all(|known| known.id != node)
            {
                return Err(bad(
                    "numa",
                    format!("{node} is not one of the [[numa]] nodes"),
                ));
            }
            gpus.push(gpu);
        }
        if !["", "single", "mixed"].contains(&file.machine.mig_strategy.as_str()) {
            let given = &file.machine.mig_strategy;
            return Err(fault(
                0,
                "machine.mig_strategy".into(),
                format!("{given:?} is not usable; write \"single\" or \"mixed\""),
            ));
        }
        if let Some(0) = file.machine.cpus {
            return Err(fault(
                0,
                "machine.cpus".into(),
                "0 is not usable; give the number of CPUs".into(),
            ));
        }
        Ok(Description {
            machine: file.machine,
            numa,
            gpus,
        })
    }

    /// Puts what is described in the place of what was found.
    pub fn apply(self, inventory: &mut Inventory) {
        let machine = self.machine;
        if let Some(hostname) = machine.hostname {
            inventory.hostname = hostname;
        }
        if let Some(kernel) = machine.kernel {
            inventory.kernel = kernel;
        }
        if let Some(os) = machine.os {
            inventory.os = os;
        }
        if !self.numa.is_empty() {
            let cpus: usize = self.numa.iter().map(|node| node.cpus.len()).sum();
            inventory.cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
            inventory.memory_bytes = self.numa.iter().map(|node| node.memory_bytes).sum();
            inventory.numa_nodes = self.numa;
        } else if machine.cpus.is_some() || machine.memory_mib.is_some() {
            let cpus = machine.cpus.unwrap_or(inventory.cpus);
            let memory_bytes = machine
                .memory_mib
                .map_or(inventory.memory_bytes, |mib| mib << 20);
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
        let (mut gpus, mut kinds) = (Vec::new(), Vec::new());
        for kind in &self.gpus {
            for _ in 0..kind.count {
                gpus.push(card(kind, gpus.len(), &inventory.hostname, &machine.driver));
                kinds.push(kind);
            }
        }
        let ids: Vec<(String, Option<u32>)> = gpus
            .iter()
            .map(|gpu: &Gpu| (gpu.id.clone(), gpu.numa))
            .collect();
        for (from, gpu) in gpus.iter_mut().enumerate() {
            for (to, (id, numa)) in ids.iter().enumerate().filter(|(to, _)| *to != from) {
                let links = kinds[from].nvlinks.min(kinds[to].nvlinks);
                let (kind, count) = match (links, kinds[from].nvswitch && kinds[to].nvswitch) {
                    (0, _) if gpu.numa == *numa => (LinkKind::Phb, 0),
                    (0, _) => (LinkKind::Sys, 0),
                    (_, true) => (LinkKind::Nvs, links),
                    (_, false) => (LinkKind::Nvl, links),
                };
                gpu.links.push(Link {
                    to: id.clone(),
                    kind,
                    count,
                });
            }
        }
        inventory.origin = if gpus.is_empty() {
            Origin::None
        } else {
            Origin::Described
        };
        inventory.gpus = gpus;
    }
}

fn card(kind: &GpuTable, place: usize, hostname: &str, driver: &str) -> Gpu {
    let index = u32::try_from(place).unwrap_or(u32::MAX);
    let slice = |(at, profile): (usize, &String)| {
        let number = index
            .saturating_mul(MAX_SLICES as u32)
            .saturating_add(u32::try_from(at).unwrap_or(0));
        Slice {
            id: id(&format!("{hostname} slice"), number).replacen("GPU", "MIG", 1),
            profile: profile.clone(),
            memory_mib: profile_mib(profile).unwrap_or(0),
        }
    };
    let slices = |list: &Vec<String>| list.iter().enumerate().map(slice).collect();
    Gpu {
        slices: kind.mig.as_ref().map(slices),
        id: id(hostname, index),
        index,
        minor: None,
        model: kind.model.clone(),
        memory_mib: kind.memory_mib,
        compute_capability: kind.compute_capability.clone(),
        driver: driver.to_string(),
        pci: format!("0000:{:02x}:00.0", 0x10 + place),
        numa: kind.numa,
        healthy: kind.healthy,
        problem: if kind.healthy {
            String::new()
        } else {
            "described as unhealthy".into()
        },
        links: Vec::new(),
    }
}

/// The memory in MiB that a profile's name says: `1g.10gb`, `1g.10gb+me`.
pub(crate) fn profile_mib(profile: &str) -> Option<u64> {
    let (parts, rest) = profile.split_once("g.")?;
    let (gigabytes, more) = rest.split_once("gb")?;
    let good = more.is_empty() || more.starts_with('+');
    let parts: u64 = parts.parse().ok()?;
    let gigabytes: u64 = gigabytes.parse().ok()?;
    (good && parts > 0 && gigabytes > 0).then_some(gigabytes << 10)
}

/// A UUID's shape from a host name and a place: FNV-1a, twice with different starts.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn described(text: &str) -> Inventory {
        let mut inventory = Inventory {
            hostname: "real".into(),
            cpus: 2,
            memory_bytes: 1 << 30,
            ..Inventory::default()
        };
        Description::parse(text, Path::new("m.toml"))
            .expect("a good description")
            .apply(&mut inventory);
        inventory
    }

    #[test]
    fn the_example_in_the_documentation_is_a_machine_of_four() {
        let machine = described(
            r#"
[machine]
hostname = "gpu-1"
cpus = 64
memory_mib = 524288
driver = "550.54.15"
[[numa]]
id = 0
cpus = "0-31"
memory_mib = 262144
[[numa]]
id = 1
cpus = "32-63"
memory_mib = 262144
[[gpu]]
model = "NVIDIA H100 80GB HBM3"
memory_mib = 81559
count = 4
numa = 0
compute_capability = "9.0"
nvlinks = 18
nvswitch = true
"#,
        );
        assert_eq!(
            (
                machine.hostname.as_str(),
                machine.cpus,
                machine.memory_bytes
            ),
            ("gpu-1", 64, 512 << 30)
        );
        assert_eq!(machine.origin, Origin::Described);
        assert_eq!(machine.gpus.len(), 4);
        assert_eq!(machine.gpus[3].index, 3);
        assert_eq!(machine.gpus[0].links.len(), 3);
        assert_eq!(machine.gpus[0].links[0].kind, LinkKind::Nvs);
        let mut ids: Vec<_> = machine.gpus.iter().map(|gpu| gpu.id.clone()).collect();
        assert!(
            ids.iter().all(|id| id.len() == "GPU-".len() + 36),
            "{ids:?}"
        );
        ids.dedup();
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn what_is_not_described_is_as_found() {
        let machine = described("[[gpu]]\nmodel = \"NVIDIA L4\"\nmemory_mib = 23034\ncount = 2\n");
        assert_eq!(
            (
                machine.hostname.as_str(),
                machine.cpus,
                machine.memory_bytes
            ),
            ("real", 2, 1 << 30)
        );
        assert_eq!(
            machine.gpus[1].links,
            [Link {
                to: machine.gpus[0].id.clone(),
                kind: LinkKind::Phb,
                count: 0
            }]
        );
        assert!(machine.gpus[0].healthy);
        assert_eq!(described("").origin, Origin::None);
    }

    #[test]
    fn a_card_may_be_cut_into_slices() {
        let machine = described(
            "[machine]\nmig_strategy = \"single\"\n[[gpu]]\nmodel = \"A\"\nmemory_mib = 81920\ncount = 2\nmig = [\"1g.10gb\", \"3g.40gb+me\"]\n",
        );
        assert_eq!(machine.mig_strategy, "single");
        let slices = machine.gpus[1].slices.clone().unwrap();
        assert_eq!(
            (slices[0].profile.as_str(), slices[0].memory_mib),
            ("1g.10gb", 10_240)
        );
        assert_eq!(slices[1].memory_mib, 40_960);
        let all = machine
            .gpus
            .iter()
            .flat_map(|gpu| gpu.slices.iter().flatten());
        let ids: std::collections::BTreeSet<&str> = all.map(|slice| slice.id.as_str()).collect();
        assert_eq!(ids.len(), 4);
        assert!(ids.iter().all(|id| id.starts_with("MIG-")));
    }

    #[test]
    fn faults_name_line_and_field() {
        let cases = [
            (
                "[[gpu]]\nmodel = \"x\"\nmemory_mib = 1\nmig = [\"half\"]\n",
                "line 1",
                "gpu[0].mig",
            ),
            (
                "[machine]\nmig_strategy = \"none\"\n",
                "line 1",
                "machine.mig_strategy",
            ),
            ("[machine]\nhostnam = \"x\"\n", "line 2", "hostnam"),
            ("[[gpu]]\nmodel = \"x\"\n", "line 1", "memory_mib"),
            (
                "\n\n[[gpu]]\nmodel = \"x\"\nmemory_mib = 1\ncount = 0\n",
                "line 3",
                "gpu[0].count",
            ),
            (
                "[[gpu]]\nmodel = \"x\"\nmemory_mib = 1\ncount = 100\n",
                "line 1",
                "1 to 64",
            ),
            (
                "[[gpu]]\nmodel = \" \"\nmemory_mib = 1\n",
                "line 1",
                "gpu[0].model",
            ),
            (
                "[[gpu]]\nmodel = \"x\"\nmemory_mib = \"many\"\n",
                "line 3",
                "syntax",
            ),
            (
                "[[numa]]\nid = 0\ncpus = \"3-1\"\n",
                "line 1",
                "numa[0].cpus",
            ),
            (
                "[[numa]]\nid = 0\ncpus = \"0\"\n[[gpu]]\nmodel = \"x\"\nmemory_mib = 1\nnuma = 3\n",
                "line 4",
                "gpu[0].numa",
            ),
            ("[machine]\ncpus = 0\n", "line 1", "machine.cpus"),
            ("rubbish", "line 1", "syntax"),
        ];
        for (text, line, field) in cases {
            let error = Description::parse(text, Path::new("m.toml"))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("m.toml") && error.contains(line) && error.contains(field),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn the_machines_that_ship_are_good() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
        for (file, count) in [("4x-h100.toml", 4), ("8x-h100.toml", 8)] {
            let mut inventory = Inventory::default();
            Description::load(&dir.join(file))
                .unwrap()
                .apply(&mut inventory);
            assert_eq!(inventory.gpus.len(), count);
        }
    }
}
