//! A machine described in a file, which replaces a machine with GPUs in tests and demos. [`save`]
//! can describe any machine.
//!
//! ```toml
//! [machine]                    # all optional; the real machine's facts otherwise
//! hostname = "gpu-1"
//! cpus = 64
//! cpu_model = "Intel(R) Xeon(R) Platinum 8480C"
//! between_sockets_gbs = 22.0   # what goes between two sockets, each direction
//! memory_mib = 524288
//! driver = "550.54.15"
//! cuda = "12.4"
//! mig_strategy = "mixed"       # or "single": slices of one profile are given out as GPUs; or
//!                              # "none": GPUs are given out whole, also those that are cut
//! driver_gone = true           # the driver does not answer; false if absent
//!
//! [[numa]]                     # optional
//! id = 0
//! cpus = "0-31"
//! memory_mib = 262144
//!
//! [[switch]]                   # a PCIe switch; optional
//! address = "0000:15:00.0"
//! under = "pci0000:14"         # a host bridge, or another switch's address
//! numa = 0
//! pcie_generation = 5          # its link upwards
//! pcie_width = 16
//!
//! [[gpu]]                      # one table for `count` cards of a kind
//! model = "NVIDIA H100 80GB HBM3"
//! memory_mib = 81559
//! count = 4                    # 1 if absent
//! numa = 0                     # optional
//! compute_capability = "9.0"   # optional
//! id = ["GPU-..."]             # these four: one for each card, or absent
//! minor = [0]                  # /dev/nvidiaN
//! pci = ["0000:18:00.0"]
//! under = ["0000:15:00.0"]     # the switch or host bridge that it hangs on
//! pcie_generation = 5          # what it and its slot can
//! pcie_width = 16
//! ecc = true                   # absent: it has none
//! nvlinks = 18                 # links a card; 0 if absent
//! nvswitch = true              # links lead to a switch that joins all; false if absent
//! fabric = "completed"         # or "starting", or "none" where switches need no registration
//! healthy = true               # true if absent
//! utilisation = 97             # what each is doing: percent; all of these optional
//! memory_used_mib = 40000
//! celsius = 71
//! watts = 612
//! watts_limit = 700
//! mig = ["1g.10gb", "3g.40gb"] # its slices, if it is in MIG mode
//!
//! [[nvlink]]                   # NVLinks from GPU to GPU; with these, `nvlinks` counts only
//! gpus = [0, 3]                # those to switches
//! links = 2
//!
//! [[nic]]                      # a network card that does RDMA
//! name = "mlx5_0"
//! model = "MT4129"
//! firmware = "28.39.1002"
//! pci = "0000:19:00.0"
//! under = "0000:15:00.0"
//! numa = 0
//! pcie_generation = 5
//! pcie_width = 16
//! netdevs = ["ib0"]
//! ports = [{ gbits = 400, layer = "InfiniBand", state = "ACTIVE", physical = "LinkUp" }]
//!
//! [[state]]                    # what one GPU is doing and suffering now; see [`GpuState`]
//! gpu = 2
//! lost = true
//! ```
//!
//! Owns the format. Ids are made of the host name and the place, so that they are the same
//! each time and no two machines share one.

mod build;
mod check;
mod format;
mod save;

use std::path::Path;

use crate::error::HardwareError;
use crate::inventory::{Inventory, NumaNode};

pub use build::{Card, Described, NvlinkEnd};
pub use format::{GpuState, Metric, Process};
pub use save::{SaveError, save};

use format::{GpuTable, MachineTable, NicTable, NvlinkTable, SwitchTable};

/// GPUs a described machine may have.
pub const MAX_GPUS: usize = 64;
/// Network cards a described machine may have.
pub const MAX_NICS: usize = 64;
/// NVLinks a described GPU may have.
pub const MAX_NVLINKS: u32 = 36;
/// Slices a described GPU may have.
pub const MAX_SLICES: usize = 7;

/// A checked machine description.
#[derive(Debug)]
pub struct MachineDescription {
    machine: MachineTable,
    numa: Vec<NumaNode>,
    switches: Vec<SwitchTable>,
    gpus: Vec<GpuTable>,
    nvlinks: Vec<NvlinkTable>,
    nics: Vec<NicTable>,
    states: Vec<GpuState>,
}

impl MachineDescription {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<MachineDescription, HardwareError> {
        let text = std::fs::read_to_string(path).map_err(|source| HardwareError::Read {
            path: path.into(),
            source,
        })?;
        MachineDescription::parse(&text, path)
    }

    /// Checks a text; `path` is its name in errors.
    pub fn parse(text: &str, path: &Path) -> Result<MachineDescription, HardwareError> {
        check::parse(text, path)
    }

    /// Replaces the detected hardware by the described hardware.
    pub fn apply(self, inventory: &mut Inventory) {
        *inventory = self.machine(std::mem::take(inventory)).inventory;
    }

    /// Like `apply`, with the GPUs' data that an inventory lacks.
    pub fn machine(self, found: Inventory) -> Described {
        build::build(self, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{GpuPath, LinkKind, Origin};

    fn described(text: &str) -> Inventory {
        let mut inventory = Inventory {
            hostname: "real".into(),
            cpus: 2,
            memory_bytes: 1 << 30,
            ..Inventory::default()
        };
        MachineDescription::parse(text, Path::new("m.toml"))
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
            [GpuPath {
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
                "[machine]\nmig_strategy = \"some\"\n",
                "line 1",
                "machine.mig_strategy",
            ),
            (
                "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nmig = [\"1g.5gb\"]\n",
                "line 1",
                "it has 1g.10gb, 1g.10gb+me",
            ),
            (
                "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nmig = [\"3g.40gb\", \"4g.40gb\"]\n",
                "line 1",
                "has no place for \"4g.40gb\"",
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
            (
                "[[gpu]]\nmodel = \"x\"\nmemory_mib = 1\ncount = 2\npci = [\"0000:01:00.0\"]\n",
                "line 1",
                "one for each of the 2 cards",
            ),
            (
                "[[gpu]]\nmodel = \"x\"\nmemory_mib = 1\npci = [\"1:0\"]\n",
                "line 1",
                "\"1:0\" is not usable; write a PCI address",
            ),
            (
                "[[gpu]]\nmodel = \"x\"\nmemory_mib = 1\nunder = [\"0000:01:00.0\"]\n",
                "line 1",
                "gpu[0].under",
            ),
            (
                "[[nvlink]]\ngpus = [0, 1]\nlinks = 2\n",
                "line 1",
                "write the places of two of the 0 GPUs",
            ),
            (
                "[[nic]]\nname = \"mlx5_0\"\nports = [{ gbits = 1, layer = \"Token\" }]\n",
                "line 1",
                "\"Token\" is not usable",
            ),
            ("[[state]]\ngpu = 0\n", "line 1", "state[0].gpu"),
            (
                "[[switch]]\naddress = \"0000:01:00.0\"\nunder = \"there\"\n",
                "line 1",
                "write a [[switch]]'s address",
            ),
            (
                "[machine]\nbetween_sockets_gbs = -1.0\n",
                "line 1",
                "machine.between_sockets_gbs",
            ),
        ];
        for (text, line, field) in cases {
            let error = MachineDescription::parse(text, Path::new("m.toml"))
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("m.toml") && error.contains(line) && error.contains(field),
                "{text:?}: {error}"
            );
        }
    }

    fn shipped() -> Vec<(String, Inventory)> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
        let mut machines: Vec<(String, Inventory)> = (std::fs::read_dir(dir).unwrap())
            .map(|entry| {
                let path = entry.unwrap().path();
                let mut inventory = Inventory {
                    hostname: "host".into(),
                    kernel: "6.1.0".into(),
                    os: "Debian".into(),
                    cpus: 2,
                    memory_bytes: 1 << 30,
                    numa_nodes: vec![NumaNode {
                        id: 0,
                        cpus: vec![0, 1],
                        memory_bytes: 1 << 30,
                    }],
                    ..Inventory::default()
                };
                MachineDescription::load(&path)
                    .unwrap()
                    .apply(&mut inventory);
                let name = path.file_name().unwrap().to_str().unwrap();
                (name.to_owned(), inventory)
            })
            .collect();
        machines.sort_by(|a, b| a.0.cmp(&b.0));
        machines
    }

    #[test]
    fn the_machines_that_ship_are_good() {
        let found = shipped();
        let counts: Vec<(&str, usize, usize)> = (found.iter())
            .map(|(name, machine)| (name.as_str(), machine.gpus.len(), machine.nics.len()))
            .collect();
        let expected = [
            ("4x-a40.toml", 4, 1),
            ("4x-h100.toml", 4, 0),
            ("8x-h100.toml", 8, 0),
            ("8x-l4.toml", 8, 1),
            ("8x-v100.toml", 8, 4),
            ("dgx-a100.toml", 8, 8),
            ("gb200-tray.toml", 4, 4),
            ("hgx-h100.toml", 8, 8),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_machine_that_is_written_down_and_read_again_is_the_same() {
        for (name, machine) in shipped() {
            let text = save(&machine).unwrap();
            let mut again = Inventory::default();
            let description = MachineDescription::parse(&text, Path::new("again.toml")).unwrap();
            description.apply(&mut again);
            assert_eq!(again, machine, "{name}:\n{text}");
        }
    }

    #[test]
    fn what_a_gpu_suffers_is_told_apart_from_what_it_is() {
        let text = "[[gpu]]\nmodel = \"H\"\nmemory_mib = 10\ncount = 3\necc = true\nnvlinks = 4\n\
                    nvswitch = true\n[[state]]\ngpu = 1\nlost = true\n[[state]]\ngpu = 2\n\
                    uncorrected = 3\ncelsius = 91\nnvlinks_down = [0, 2]\n";
        let machine = described(text);
        let healthy: Vec<bool> = machine.gpus.iter().map(|gpu| gpu.healthy).collect();
        assert_eq!(healthy, [true, false, true]);
        let last = &machine.gpus[2];
        assert_eq!(last.ecc.map(|ecc| ecc.uncorrected), Some(3));
        assert_eq!(last.load.celsius, Some(91));
        assert!(last.links.iter().all(|link| link.count == 2));
    }
}
