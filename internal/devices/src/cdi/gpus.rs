//! The CDI edits for each of the machine's GPUs and their slices: their device files and the
//! driver's. Only checks which of these files exist.

use std::path::{Path, PathBuf};

use super::{CdiDevice, CdiSpec, DeviceNode, Edits, driver};
use crate::inventory::NodeHardware;

/// The devices' kind. NVIDIA's tools write `nvidia.com/gpu`, and runtimes refuse a device that two
/// files name.
pub const KIND: &str = "muster.io/gpu";

/// The device that stands for all GPUs and slices.
pub const ALL: &str = "all";

/// Device files that every container with a GPU needs, if the machine has them.
pub const CONTROL_FILES: [&str; 4] = [
    "nvidiactl",
    "nvidia-uvm",
    "nvidia-uvm-tools",
    "nvidia-modeset",
];

/// The directories of devices and driver, on the machine and as this process sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The root whose `dev` has the device files.
    pub dev: PathBuf,
    /// The same, as this process sees it.
    pub dev_seen: PathBuf,
    /// The root below which the driver's libraries are.
    pub driver: PathBuf,
    /// The same, as this process sees it.
    pub driver_seen: PathBuf,
}

impl Roots {
    /// A device file by its name in `dev`, if the machine has it.
    pub fn node(&self, name: &str) -> Option<DeviceNode> {
        let path = Path::new("/dev").join(name);
        let own = self.dev.join("dev").join(name);
        self.dev_seen
            .join("dev")
            .join(name)
            .exists()
            .then(|| DeviceNode {
                host_path: (own != path).then_some(own),
                path,
                permissions: "rw".into(),
            })
    }
}

/// The names in `dev` of a slice's files beside its GPU's.
pub fn capability_files(numbers: &[u32]) -> impl Iterator<Item = String> {
    let name = |number| format!("nvidia-caps/nvidia-cap{number}");
    numbers.iter().map(name)
}

/// The machine's GPUs and slices by UUID and by index (a slice's is `GPU:PLACE`), and [`ALL`]. A
/// device without a device file, such as a described one, is left out. `hidden`: tells NVIDIA's own
/// runtime to add nothing, because this spec is complete.
pub fn spec(machine: &NodeHardware, roots: &Roots, hidden: bool) -> CdiSpec {
    let mut devices = Vec::new();
    let mut all: Vec<DeviceNode> = Vec::new();
    let mut add = |names: [String; 2], nodes: Vec<DeviceNode>| {
        for node in &nodes {
            if !all.contains(node) {
                all.push(node.clone());
            }
        }
        devices.extend(names.map(|name| device(name, nodes.clone())));
    };
    for gpu in &machine.inventory.gpus {
        let minor = machine.minors.get(&gpu.id);
        let Some(own) = minor.and_then(|minor| roots.node(&format!("nvidia{minor}"))) else {
            continue;
        };
        add([gpu.id.clone(), gpu.index.to_string()], vec![own.clone()]);
        for (place, slice) in gpu.slices.iter().flatten().enumerate() {
            let numbers = machine.capabilities.get(&slice.id);
            let caps = capability_files(numbers.map_or(&[], Vec::as_slice));
            let caps: Vec<DeviceNode> = caps.filter_map(|name| roots.node(&name)).collect();
            // The driver in the container would refuse a slice without all of its files.
            if caps.is_empty() || Some(caps.len()) != numbers.map(Vec::len) {
                continue;
            }
            let nodes = std::iter::once(own.clone()).chain(caps).collect();
            add([slice.id.clone(), format!("{}:{place}", gpu.index)], nodes);
        }
    }
    if !all.is_empty() {
        devices.push(device(ALL.to_owned(), all));
    }
    let control = CONTROL_FILES.iter().filter_map(|name| roots.node(name));
    let hiding = || vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()];
    CdiSpec {
        kind: KIND.to_owned(),
        devices,
        edits: Edits {
            env: if hidden { hiding() } else { Vec::new() },
            device_nodes: control.collect(),
            mounts: driver::mounts(&roots.driver_seen, &roots.driver),
        },
        ..CdiSpec::default()
    }
}

fn device(name: String, device_nodes: Vec<DeviceNode>) -> CdiDevice {
    CdiDevice {
        name,
        edits: Edits {
            device_nodes,
            ..Edits::default()
        },
        ..CdiDevice::default()
    }
}

#[cfg(test)]
mod tests {
    use resources::devices::{GpuDevice, MigSlice, NodeInventory};

    use super::*;

    /// GPU 0 is described; GPU 1 is nvidia4; GPU 2 is nvidia2 with two slices, of which the second
    /// lacks a file.
    fn machine() -> NodeHardware {
        let slice = |id: &str| MigSlice {
            id: id.into(),
            ..MigSlice::default()
        };
        let gpu = |index: u32, slices| GpuDevice {
            id: format!("GPU-{index}"),
            index,
            slices,
            ..GpuDevice::default()
        };
        NodeHardware {
            inventory: NodeInventory {
                gpus: vec![
                    gpu(0, None),
                    gpu(1, None),
                    gpu(2, Some(vec![slice("MIG-a"), slice("MIG-b")])),
                ],
                ..NodeInventory::default()
            },
            minors: [("GPU-1", 4), ("GPU-2", 2), ("MIG-a", 2), ("MIG-b", 2)]
                .map(|(id, minor)| (id.to_owned(), minor))
                .into(),
            capabilities: [("MIG-a", vec![30, 31]), ("MIG-b", vec![39, 40])]
                .map(|(id, numbers)| (id.to_owned(), numbers))
                .into(),
            ..NodeHardware::default()
        }
    }

    fn roots(files: &[&str]) -> (tempfile::TempDir, Roots) {
        let dir = tempfile::tempdir().expect("a directory");
        for name in files {
            let path = dir.path().join("dev").join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
            std::fs::write(path, "").expect("it is written");
        }
        let roots = Roots {
            dev: "/".into(),
            dev_seen: dir.path().into(),
            driver: "/".into(),
            driver_seen: dir.path().into(),
        };
        (dir, roots)
    }

    fn told(spec: &CdiSpec) -> Vec<String> {
        let one = |device: &CdiDevice| {
            let nodes = device.edits.device_nodes.iter();
            let nodes: Vec<String> = nodes.map(|n| n.path.display().to_string()).collect();
            format!("{} {}", device.name, nodes.join(" "))
        };
        spec.devices.iter().map(one).collect()
    }

    #[test]
    fn each_gpu_and_slice_is_there_by_both_names_with_its_files_and_all_with_everybodys() {
        let files = [
            "nvidia2",
            "nvidia4",
            "nvidiactl",
            "nvidia-uvm",
            "nvidia-caps/nvidia-cap30",
            "nvidia-caps/nvidia-cap31",
            "nvidia-caps/nvidia-cap39",
        ];
        let (_keep, mut roots) = roots(&files);
        let spec = spec(&machine(), &roots, true);
        let caps = "/dev/nvidia-caps/nvidia-cap30 /dev/nvidia-caps/nvidia-cap31";
        let wanted = [
            "GPU-1 /dev/nvidia4".to_owned(),
            "1 /dev/nvidia4".to_owned(),
            "GPU-2 /dev/nvidia2".to_owned(),
            "2 /dev/nvidia2".to_owned(),
            format!("MIG-a /dev/nvidia2 {caps}"),
            format!("2:0 /dev/nvidia2 {caps}"),
            format!("all /dev/nvidia4 /dev/nvidia2 {caps}"),
        ];
        assert_eq!(told(&spec), wanted);
        let common = spec.edits.device_nodes.iter().map(|node| &node.path);
        let common: Vec<&Path> = common.map(PathBuf::as_path).collect();
        assert_eq!(common, ["/dev/nvidiactl", "/dev/nvidia-uvm"].map(Path::new));
        assert_eq!(spec.edits.env, ["NVIDIA_VISIBLE_DEVICES=void"]);
        assert!((spec.edits.device_nodes.iter()).all(|node| node.host_path.is_none()));

        roots.dev = "/elsewhere".into();
        let spec = super::spec(&machine(), &roots, false);
        let first = &spec.devices[0].edits.device_nodes[0];
        let there = Path::new("/elsewhere/dev/nvidia4");
        assert_eq!(first.host_path.as_deref(), Some(there));
        assert_eq!(spec.edits.env, Vec::<String>::new());
    }

    #[test]
    fn a_machine_whose_gpus_have_no_files_has_no_devices() {
        let (_keep, roots) = roots(&["nvidiactl"]);
        assert!(spec(&machine(), &roots, true).devices.is_empty());
    }
}
