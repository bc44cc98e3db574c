//! A described machine's sysfs and proc, as its kernel would show them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hardware::matrix::ranges;
use hardware::{Inventory, Nic, PcieLink};

/// Creates the tree under `root`.
pub fn make(root: &Path, machine: &Inventory) {
    let mut tree = Tree { root, ports: 0 };
    tree.host(machine);
    for switch in &machine.switches {
        let dir = tree.path(machine, &switch.under, &switch.address);
        tree.device(&dir, switch.numa, switch.link);
    }
    for gpu in &machine.gpus {
        let dir = tree.path(machine, &gpu.under, &gpu.pci);
        tree.device(&dir, gpu.numa, gpu.pcie);
    }
    for nic in &machine.nics {
        let dir = tree.path(machine, &nic.under, &nic.pci);
        tree.device(&dir, nic.numa, nic.link);
        tree.card(&dir, nic);
    }
}

struct Tree<'a> {
    root: &'a Path,
    /// Number of ports created so far: each downstream path has its own.
    ports: u32,
}

impl Tree<'_> {
    fn write(&self, path: impl AsRef<Path>, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// The path of a device in the kernel's tree, below its own downstream port.
    fn path(&mut self, machine: &Inventory, under: &str, address: &str) -> PathBuf {
        let above = machine
            .switches
            .iter()
            .find(|switch| switch.address == under);
        let dir = match above {
            Some(switch) => {
                let all = fs::read_link(self.all().join(&switch.address));
                match all {
                    Ok(target) => PathBuf::from(target.strip_prefix("../../../devices").unwrap()),
                    // Described below its own devices: created now, and found later.
                    Err(_) => {
                        let dir = self.path(machine, &switch.under, &switch.address);
                        self.device(&dir, switch.numa, switch.link);
                        dir
                    }
                }
            }
            None => PathBuf::from(under),
        };
        self.ports += 1;
        dir.join(format!("00ff:{:02x}:01.0", self.ports))
            .join(address)
    }

    fn all(&self) -> PathBuf {
        self.root.join("sys/bus/pci/devices")
    }

    fn device(&self, dir: &Path, numa: Option<u32>, link: PcieLink) {
        let all = self.all();
        fs::create_dir_all(&all).unwrap();
        let name = all.join(dir.file_name().unwrap());
        if name.is_symlink() {
            return;
        }
        let numa = numa.map_or("-1".to_owned(), |numa| numa.to_string());
        let file = |name: &str| Path::new("sys/devices").join(dir).join(name);
        self.write(file("numa_node"), &numa);
        self.write(file("current_link_speed"), speed(link.generation));
        self.write(file("max_link_speed"), speed(link.max_generation));
        self.write(file("current_link_width"), &link.width.to_string());
        self.write(file("max_link_width"), &link.max_width.to_string());
        symlink(Path::new("../../../devices").join(dir), name).unwrap();
    }

    fn card(&self, dir: &Path, nic: &Nic) {
        let device = Path::new("sys/devices").join(dir);
        let rdma = device.join("infiniband").join(&nic.name);
        self.write(rdma.join("hca_type"), &nic.model);
        self.write(rdma.join("fw_ver"), &nic.firmware);
        symlink(
            self.root.join(&device),
            self.root.join(&rdma).join("device"),
        )
        .unwrap();
        for netdev in &nic.netdevs {
            fs::create_dir_all(self.root.join(&device).join("net").join(netdev)).unwrap();
        }
        for port in &nic.ports {
            let dir = rdma.join("ports").join(port.number.to_string());
            self.write(dir.join("state"), &format!("4: {}", port.state));
            self.write(dir.join("phys_state"), &format!("5: {}", port.physical));
            self.write(dir.join("link_layer"), &port.layer);
            self.write(dir.join("rate"), &format!("{} Gb/sec (4X NDR)", port.gbits));
        }
        let class = self.root.join("sys/class/infiniband");
        fs::create_dir_all(&class).unwrap();
        symlink(self.root.join(&rdma), class.join(&nic.name)).unwrap();
    }

    fn host(&self, machine: &Inventory) {
        let kib = machine.memory_bytes >> 10;
        self.write("proc/meminfo", &format!("MemTotal: {kib} kB"));
        let (vendor, model) = match machine.between_sockets.map(|it| it.0) {
            Some(22_000) => ("GenuineIntel", 0x8f),
            Some(16_000) => ("AuthenticAMD", 49),
            Some(10_000) => ("GenuineIntel", 0x6a),
            Some(6_000) => ("GenuineIntel", 0x4f),
            _ => ("ARM", 0),
        };
        let name = &machine.cpu_model;
        let text = format!(
            "vendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: {name}"
        );
        self.write("proc/cpuinfo", &text);
        self.write("proc/sys/kernel/hostname", &machine.hostname);
        let mut cpus: Vec<u32> = (machine.numa_nodes.iter())
            .flat_map(|node| node.cpus.iter().copied())
            .collect();
        cpus.sort_unstable();
        self.write("sys/devices/system/cpu/online", &ranges(&cpus));
        for node in &machine.numa_nodes {
            let dir = Path::new("sys/devices/system/node").join(format!("node{}", node.id));
            self.write(dir.join("cpulist"), &ranges(&node.cpus));
            let kib = node.memory_bytes >> 10;
            let text = format!("Node {} MemTotal: {kib} kB", node.id);
            self.write(dir.join("meminfo"), &text);
        }
    }
}

fn speed(generation: u32) -> &'static str {
    match generation {
        1 => "2.5 GT/s PCIe",
        2 => "5.0 GT/s PCIe",
        3 => "8.0 GT/s PCIe",
        4 => "16.0 GT/s PCIe",
        5 => "32.0 GT/s PCIe",
        6 => "64.0 GT/s PCIe",
        _ => "Unknown",
    }
}
