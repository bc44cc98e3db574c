//! A machine's RDMA state in sysfs, proc and dev, beyond its inventory. Owns the reading; a missing or unreadable
//! value is `None`. Judges nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use crate::inventory::Inventory;
use crate::rdma::acs::{self, Acs};
use crate::rdma::dcb;
use crate::rdma::gid::Gid;
use crate::rdma::routes::{self, Route};
use crate::sysfs::{self, entries};
use crate::system::line;

/// The configuration space of a PCIe device, in bytes.
const CONFIG: u64 = 4096;

/// The values that were read from a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Its RDMA cards, by name.
    pub cards: BTreeMap<String, CardFiles>,
    /// PCI addresses of InfiniBand cards for which no driver created an RDMA device.
    pub unbound: Vec<String>,
    /// For GPUs and cards by PCI address: the bridges above each, the topmost first.
    pub ways: BTreeMap<String, Vec<String>>,
    /// The path that each bridge gives to traffic between two devices below it.
    pub bridges: BTreeMap<String, Acs>,
    /// The means by which network cards could reach GPUs' memory.
    pub direct: GpuDirect,
    /// The limit on a process's locked memory: `unlimited`, or bytes.
    pub memlock: Option<String>,
    /// Whether `/dev/infiniband` exists: a container without cards has none, whatever its host has.
    pub dev: bool,
    /// Whether `/dev/infiniband/rdma_cm` exists.
    pub rdma_cm: bool,
    /// Whether every network namespace may use every card.
    pub shared_netns: Option<bool>,
    /// The kernel's release.
    pub kernel: String,
    /// The version of NVIDIA's network driver, if it replaces the kernel's own.
    pub driver_version: Option<String>,
    /// Networks that are reachable without a gateway.
    pub routes: Vec<Route>,
}

/// The values that were read for one card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardFiles {
    /// The readable addresses of each of its ports, by port.
    pub gids: BTreeMap<u32, Vec<Gid>>,
    /// Its network interfaces, in the inventory's order.
    pub netdevs: Vec<Netdev>,
    /// The translation of its memory accesses.
    pub iommu: Iommu,
    /// Its device for programs, `uverbs0`; `None` if the kernel created none.
    pub verbs: Option<String>,
    /// Whether that device exists below `/dev/infiniband`.
    pub verbs_file: bool,
}

/// The values that were read for a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// The largest packet that it sends, bytes.
    pub mtu: Option<u32>,
    /// Its port on the card, counted from 0.
    pub port: Option<u32>,
    /// Whether RoCE reacts to congestion marks, as receiver and as sender, on any priority.
    pub ecn: Option<(bool, bool)>,
    /// A bit for each priority on which it pauses its sender instead of losing packets (PFC). No file has it: it
    /// comes from this machine's kernel, and is absent for another root.
    pub pfc: Option<u8>,
}

/// The translation of a card's memory accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Iommu {
    /// It cannot be read.
    #[default]
    Unknown,
    /// There is no IOMMU, or it is off.
    Off,
    /// The kernel's term: with `identity`, accesses are not translated; with `DMA` and `DMA-FQ`, each access is.
    Type(String),
}

/// The means by which network cards could reach GPUs' memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuDirect {
    /// The NVIDIA driver is loaded.
    pub driver: bool,
    /// Its peer memory module is also loaded.
    pub peermem: bool,
    /// The driver's kernel modules are the open ones, which export memory through dma-buf.
    pub open: bool,
}

/// The first kernel that exports GPUs' memory to network cards through dma-buf.
const DMA_BUF: (u32, u32) = (5, 12);

impl GpuDirect {
    /// Whether GPUs' memory can be exported through dma-buf under this kernel.
    pub fn by_dma_buf(&self, kernel: &str) -> bool {
        let mut numbers = (kernel.split(['.', '-'])).map_while(|it| it.parse::<u32>().ok());
        let kernel = numbers.next().zip(numbers.next());
        self.open && kernel.is_some_and(|kernel| kernel >= DMA_BUF)
    }

    /// Whether cards can reach GPUs' memory under this kernel.
    pub fn works(&self, kernel: &str) -> bool {
        self.peermem || self.by_dma_buf(kernel)
    }
}

impl Files {
    /// Reads the values below `root` of a machine with this inventory.
    pub fn read(root: &Path, found: &Inventory) -> Files {
        let devices = (found.gpus.iter().map(|gpu| &gpu.pci))
            .chain(found.nics.iter().map(|nic| &nic.pci))
            .filter(|address| !address.is_empty());
        let ways: BTreeMap<String, Vec<String>> = devices
            .filter_map(|address| Some((address.clone(), bridges(root, address)?)))
            .collect();
        let bridges = (ways.values().flatten())
            .map(|bridge| (bridge.clone(), access_control(root, bridge)))
            .collect();
        let module = |name: &str| root.join("sys/module").join(name).exists();
        let version = line(&root.join("proc/driver/nvidia/version")).unwrap_or_default();
        let verbs = verbs(root);
        let card = |nic: &crate::Nic| CardFiles {
            gids: (nic.ports.iter())
                .filter_map(|port| Some((port.number, gids(root, &nic.name, port.number)?)))
                .collect(),
            netdevs: nic.netdevs.iter().map(|name| netdev(root, name)).collect(),
            iommu: iommu(root, &nic.pci),
            verbs_file: (verbs.get(&nic.name))
                .is_some_and(|name| root.join("dev/infiniband").join(name).exists()),
            verbs: verbs.get(&nic.name).cloned(),
        };
        Files {
            cards: (found.nics.iter())
                .map(|nic| (nic.name.clone(), card(nic)))
                .collect(),
            unbound: unbound(root),
            ways,
            bridges,
            direct: GpuDirect {
                driver: module("nvidia"),
                peermem: module("nvidia_peermem") || module("nv_peer_mem"),
                open: version.contains("Open Kernel Module"),
            },
            memlock: memlock(root),
            dev: root.join("dev/infiniband").is_dir(),
            rdma_cm: root.join("dev/infiniband/rdma_cm").exists(),
            shared_netns: match line(&root.join("sys/module/ib_core/parameters/netns_mode")) {
                Some(word) if word == "Y" => Some(true),
                Some(word) if word == "N" => Some(false),
                _ => None,
            },
            kernel: found.kernel.clone(),
            driver_version: line(&root.join("sys/module/mlx5_core/version")),
            routes: routes::read(root),
        }
    }
}

/// The used entries of a port's GID table; `None` if it cannot be read.
fn gids(root: &Path, card: &str, port: u32) -> Option<Vec<Gid>> {
    let port = root.join(format!("sys/class/infiniband/{card}/ports/{port}"));
    let table = port.join("gids");
    if !table.is_dir() {
        return None;
    }
    let about = |kind: &str, index: u32| {
        line(&port.join("gid_attrs").join(kind).join(index.to_string())).unwrap_or_default()
    };
    let entry = |(name, path): (String, std::path::PathBuf)| {
        let index: u32 = name.parse().ok()?;
        let address = line(&path)?;
        let used = address.bytes().any(|byte| !b"0:".contains(&byte));
        used.then(|| Gid {
            index,
            address,
            kind: about("types", index),
            netdev: about("ndevs", index),
        })
    };
    let mut found: Vec<Gid> = entries(&table).into_iter().filter_map(entry).collect();
    found.sort_by_key(|gid| gid.index);
    Some(found)
}

fn netdev(root: &Path, name: &str) -> Netdev {
    let dir = root.join("sys/class/net").join(name);
    let number = |file: &str| line(&dir.join(file))?.parse().ok();
    // NVIDIA's driver has these files; the kernel's own driver has none.
    let heeds = |side: &str| {
        let priorities = entries(&dir.join("ecn").join(side).join("enable"));
        let read: Vec<String> = priorities.iter().filter_map(|(_, at)| line(at)).collect();
        (!read.is_empty()).then(|| read.iter().any(|word| word == "1"))
    };
    Netdev {
        name: name.to_owned(),
        mtu: number("mtu"),
        port: number("dev_port"),
        ecn: heeds("roce_np").zip(heeds("roce_rp")),
        pfc: (root == Path::new("/"))
            .then(|| dcb::paused_priorities(name))
            .flatten(),
    }
}

fn iommu(root: &Path, pci: &str) -> Iommu {
    let devices = root.join("sys/bus/pci/devices");
    if pci.is_empty() || !devices.join(pci).exists() {
        return Iommu::Unknown;
    }
    let group = devices.join(pci).join("iommu_group");
    if group.exists() {
        return line(&group.join("type")).map_or(Iommu::Unknown, Iommu::Type);
    }
    let units = root.join("sys/class/iommu");
    if entries(&units).is_empty() {
        Iommu::Off
    } else {
        Iommu::Unknown
    }
}

/// The device for programs of each card.
pub(super) fn verbs(root: &Path) -> BTreeMap<String, String> {
    let all = entries(&root.join("sys/class/infiniband_verbs")).into_iter();
    all.filter_map(|(name, dir)| Some((line(&dir.join("ibdev"))?, name)))
        .collect()
}

/// InfiniBand cards by their PCI class, except virtual functions, that have no RDMA device.
fn unbound(root: &Path) -> Vec<String> {
    let all = entries(&root.join("sys/bus/pci/devices")).into_iter();
    let infiniband = |dir: &Path| {
        let class = line(&dir.join("class")).unwrap_or_default();
        class.starts_with("0x0207") && !dir.join("physfn").exists()
    };
    all.filter(|(_, dir)| infiniband(dir) && entries(&dir.join("infiniband")).is_empty())
        .map(|(address, _)| address)
        .collect()
}

/// The bridges above a PCI device, the topmost first.
fn bridges(root: &Path, address: &str) -> Option<Vec<String>> {
    let (_, mut way) = sysfs::way(root, address)?;
    way.pop()?;
    Some(way)
}

fn access_control(root: &Path, bridge: &str) -> Acs {
    let path = root.join("sys/bus/pci/devices").join(bridge).join("config");
    let mut config = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(CONFIG).read_to_end(&mut config));
    match read {
        Ok(_) => acs::of(&config),
        Err(_) => Acs::Unknown,
    }
}

/// The limit on this process's locked memory, which child processes inherit.
fn memlock(root: &Path) -> Option<String> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let found = (limits.lines()).find_map(|line| line.strip_prefix("Max locked memory"))?;
    found.split_whitespace().next().map(str::to_owned)
}
