//! Checks of a machine's configuration for RDMA, from its files. Pure.

use std::collections::BTreeSet;

use crate::inventory::{Inventory, LinkKind};
use crate::rdma::acs::{self, Acs};
use crate::rdma::files::{CardFiles, Files, Iommu, Netdev};
use crate::rdma::{CheckQuestion, FailureSeverity, Near, RdmaCheck, gid, port_name};
use crate::wiring::{CardPort, Nic};

const DRIVER: CheckQuestion = CheckQuestion("driver", FailureSeverity::Harms);
const GID: CheckQuestion = CheckQuestion("GID", FailureSeverity::Setting);
const MTU: CheckQuestion = CheckQuestion("MTU", FailureSeverity::Setting);
const CONGESTION: CheckQuestion = CheckQuestion("ECN", FailureSeverity::Setting);
const PFC: CheckQuestion = CheckQuestion("PFC", FailureSeverity::Setting);
const IOMMU: CheckQuestion = CheckQuestion("IOMMU", FailureSeverity::Setting);
const ACS: CheckQuestion = CheckQuestion("ACS", FailureSeverity::Setting);
const DIRECT: CheckQuestion = CheckQuestion("GPUDirect", FailureSeverity::Setting);
const MEMLOCK: CheckQuestion = CheckQuestion("locked memory", FailureSeverity::Setting);
const DEVICES: CheckQuestion = CheckQuestion("device files", FailureSeverity::Setting);
const NETNS: CheckQuestion = CheckQuestion("network namespaces", FailureSeverity::Setting);

/// Bytes that RoCE adds to each packet: the kernel's `iboe_get_mtu`.
const OVERHEAD: u32 = 96;
/// RDMA's packet sizes, the largest first.
const SIZES: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// All checks of the configuration.
pub fn all(found: &Inventory, files: &Files, near: &Near) -> Vec<RdmaCheck> {
    let mut checks: Vec<RdmaCheck> = (files.unbound.iter())
        .map(|address| {
            let advice = "load its driver (modprobe mlx5_ib), and look at dmesg if that fails";
            DRIVER.fail(address, "an InfiniBand card without an RDMA device", advice)
        })
        .collect();
    let none = CardFiles::default();
    let largest = largest_mtu(found, files);
    for nic in &found.nics {
        let card = files.cards.get(&nic.name).unwrap_or(&none);
        for port in nic.ports.iter().filter(|port| port.is_up()) {
            if port.layer == "Ethernet" {
                checks.push(gid(nic, port, card));
                checks.push(mtu(nic, port, card, largest));
                checks.push(ecn(nic, port, card));
                checks.push(pfc(nic, port, card));
            } else if port.layer == "InfiniBand" {
                let advice = "look at active_mtu in ibv_devinfo: it is to be 4096";
                checks.push(MTU.unknown(&port_name(nic, port), "no file says", advice));
            }
        }
        if !nic.pci.is_empty() {
            checks.push(iommu(nic, &card.iommu));
        }
        checks.push(device_files(nic, card, files));
    }
    checks.extend(acs(found, files, near));
    if !found.nics.is_empty() {
        checks.extend(direct(found, files));
        checks.push(memlock(files.memlock.as_deref()));
        checks.push(netns(files.shared_netns));
    }
    checks
}

/// The interface of a card's port: the interface that names the port, or the only one.
pub(super) fn interface<'a>(port: &CardPort, card: &'a CardFiles) -> Option<&'a Netdev> {
    if let [only] = &card.netdevs[..] {
        return Some(only);
    }
    let of_port = |it: &&Netdev| it.port.is_some_and(|at| at + 1 == port.number);
    card.netdevs.iter().find(of_port)
}

fn gid(nic: &Nic, port: &CardPort, card: &CardFiles) -> RdmaCheck {
    let place = port_name(nic, port);
    let Some(gids) = card.gids.get(&port.number) else {
        let advice = "look at them with show_gids or rdma link";
        return GID.unknown(&place, "its table cannot be read", advice);
    };
    if let Some((gid, address)) = gid::best(gids) {
        let found = format!("index {}: {address}, RoCE v2", gid.index);
        return GID.pass(&place, found);
    }
    let kinds: BTreeSet<&str> = gids.iter().map(|gid| gid.kind.as_str()).collect();
    if kinds.contains("") {
        let advice = "look at them with show_gids";
        return GID.unknown(&place, "its entries' types cannot be read", advice);
    }
    let found = format!("none of its {} is RoCE v2 for an IPv4 address", gids.len());
    let interface = interface(port, card).map_or("its interface", |it| it.name.as_str());
    let advice = format!("give {interface} an IPv4 address (ip address add)");
    GID.fail(&place, found, advice)
}

/// The largest RDMA packet that fits into an interface's packets, bytes.
pub(super) fn active_mtu(mtu: u32) -> Option<u32> {
    let room = mtu.checked_sub(OVERHEAD)?;
    SIZES.into_iter().find(|size| *size <= room)
}

fn largest_mtu(found: &Inventory, files: &Files) -> u32 {
    let up = |nic: &&Nic| {
        nic.ports
            .iter()
            .any(|port| port.is_up() && port.layer == "Ethernet")
    };
    let cards = found.nics.iter().filter(up);
    let cards = cards.filter_map(|nic| files.cards.get(&nic.name));
    let sizes = cards
        .flat_map(|card| &card.netdevs)
        .filter_map(|it| active_mtu(it.mtu?));
    sizes.max().unwrap_or(0)
}

fn mtu(nic: &Nic, port: &CardPort, card: &CardFiles, largest: u32) -> RdmaCheck {
    let place = port_name(nic, port);
    let known = interface(port, card).and_then(|it| Some((it, it.mtu?)));
    let Some((netdev, mtu)) = known else {
        let advice = "look at it with ip link and ibv_devinfo";
        return MTU.unknown(&place, "its interface's cannot be read", advice);
    };
    let (name, active) = (&netdev.name, active_mtu(mtu));
    let Some(active) = active else {
        let found = format!("{name}: {mtu}, too small for any RoCE packet");
        return MTU.fail(&place, found, format!("ip link set {name} mtu 9000"));
    };
    let found = format!("{name}: {mtu}, which leaves RoCE packets of {active}");
    if active >= largest {
        return MTU.pass(&place, found);
    }
    let found = format!("{found}; others have {largest}");
    let least = largest + OVERHEAD;
    let advice = format!(
        "ip link set {name} mtu {}, and the switch's port alike",
        least.max(9000)
    );
    MTU.fail(&place, found, advice)
}

fn ecn(nic: &Nic, port: &CardPort, card: &CardFiles) -> RdmaCheck {
    let place = port_name(nic, port);
    match interface(port, card).and_then(|it| Some((it, it.ecn?))) {
        None => {
            let advice = "look at the card's own tools (mlxreg -d CARD --reg_name ROCE_ACCL)";
            CONGESTION.unknown(&place, "no file says", advice)
        }
        Some((_, (true, true))) => CONGESTION.pass(&place, "marks are sent and heeded"),
        Some((netdev, (notes, heeds))) => {
            let side = if notes || heeds {
                "one side only"
            } else {
                "off"
            };
            let dir = format!("/sys/class/net/{}/ecn", netdev.name);
            let advice = format!(
                "write 1 to {dir}/roce_np/enable/N and {dir}/roce_rp/enable/N of the priority \
                 that RoCE has"
            );
            CONGESTION.fail(&place, side, advice)
        }
    }
}

fn pfc(nic: &Nic, port: &CardPort, card: &CardFiles) -> RdmaCheck {
    let place = port_name(nic, port);
    match interface(port, card).and_then(|it| Some((it, it.pfc?))) {
        None => {
            let advice = "look at it with dcb pfc show dev INTERFACE, and at the switch's port";
            PFC.unknown(&place, "the driver does not say", advice)
        }
        Some((netdev, 0)) => {
            let advice = format!(
                "dcb pfc set dev {} prio-pfc 3:on, where RoCE has priority 3, and the switch's port alike; \
                 a network that is to lose packets needs ECN in its place",
                netdev.name
            );
            PFC.fail(&place, "off on every priority", advice)
        }
        Some((_, mask)) => {
            let on = (0..8).filter(|priority| mask >> priority & 1 == 1);
            let on: Vec<String> = on.map(|priority: u32| priority.to_string()).collect();
            PFC.pass(&place, format!("on for priority {}", on.join(", ")))
        }
    }
}

fn iommu(nic: &Nic, iommu: &Iommu) -> RdmaCheck {
    match iommu {
        Iommu::Unknown => {
            let advice = "look for IOMMU in dmesg";
            IOMMU.unknown(&nic.name, "it cannot be read", advice)
        }
        Iommu::Off => IOMMU.pass(&nic.name, "off"),
        Iommu::Type(kind) if kind == "identity" => IOMMU.pass(&nic.name, "passes through"),
        Iommu::Type(kind) => IOMMU.fail(
            &nic.name,
            format!("it translates each access ({kind})"),
            "start the kernel with iommu=pt, unless its users must be kept apart by it",
        ),
    }
}

fn device_files(nic: &Nic, card: &CardFiles, files: &Files) -> RdmaCheck {
    let Some(verbs) = &card.verbs else {
        let advice = "modprobe ib_uverbs";
        return DEVICES.fail(&nic.name, "the kernel has no device for programs", advice);
    };
    if !files.dev {
        let advice =
            "look on the machine itself; if it has none there either, look whether udev runs";
        let found = "there is no /dev/infiniband here: a container's own /dev has none";
        return DEVICES.unknown(&nic.name, found, advice);
    }
    if !card.verbs_file {
        let advice = "modprobe ib_uverbs, and look whether udev runs";
        let found = format!("/dev/infiniband/{verbs} is not there");
        return DEVICES.fail(&nic.name, found, advice);
    }
    if !files.rdma_cm {
        let advice = "modprobe rdma_ucm";
        return DEVICES.fail(&nic.name, "/dev/infiniband/rdma_cm is not there", advice);
    }
    DEVICES.pass(&nic.name, "its own and rdma_cm are there")
}

/// For each GPU with cards nearby: whether bridges on the path redirect the traffic between them
/// upwards.
fn acs(found: &Inventory, files: &Files, near: &Near) -> Vec<RdmaCheck> {
    let mut checks = Vec::new();
    for (gpu, nearest) in found.gpus.iter().zip(&near.gpus) {
        let Some((_, nics)) = nearest.as_ref().filter(|(kind, _)| *kind <= LinkKind::Pxb) else {
            continue;
        };
        let place = format!("GPU {}", gpu.index);
        let ways = |nic: usize| {
            let (own, its) = (
                files.ways.get(&gpu.pci),
                files.ways.get(&found.nics[nic].pci),
            );
            own.zip(its).map(|(own, its)| acs::between(own, its))
        };
        let ways: Option<Vec<Vec<&str>>> = nics.iter().map(|nic| ways(*nic)).collect();
        let bridges: Option<BTreeSet<&str>> = ways.map(|ways| ways.concat().into_iter().collect());
        let unknown = |found: &str| {
            let advice = "run this as root, or look at ACSCtl in lspci -vvv";
            ACS.unknown(&place, found.to_owned(), advice)
        };
        let Some(bridges) = bridges.filter(|bridges| !bridges.is_empty()) else {
            checks.push(unknown("the bridges to its cards are not known"));
            continue;
        };
        let of = |wanted: Acs| -> Vec<&str> {
            let is = |bridge: &&str| *files.bridges.get(*bridge).unwrap_or(&Acs::Unknown) == wanted;
            bridges.iter().copied().filter(is).collect()
        };
        let redirecting = of(Acs::Redirects);
        checks.push(if !redirecting.is_empty() {
            ACS.fail(
                &place,
                format!("on, between it and its cards: {}", redirecting.join(", ")),
                "turn it off in the firmware, or at each start: setpci -s BRIDGE ECAP_ACS+0x6.w=0000",
            )
        } else if of(Acs::Unknown).is_empty() {
            ACS.pass(&place, "off, between it and its cards")
        } else {
            unknown("the bridges' configuration cannot be read")
        });
    }
    checks
}

/// Whether cards can reach GPUs' memory; no check without GPUs.
fn direct(found: &Inventory, files: &Files) -> Option<RdmaCheck> {
    if found.gpus.is_empty() {
        return None;
    }
    let direct = &files.direct;
    Some(if direct.peermem {
        DIRECT.pass("", "nvidia_peermem is loaded")
    } else if direct.by_dma_buf(&files.kernel) {
        DIRECT.pass("", "the driver's open modules share memory by dma-buf")
    } else if direct.driver {
        DIRECT.fail(
            "",
            "neither nvidia_peermem nor dma-buf: data goes through the processor's memory",
            "modprobe nvidia-peermem (and at each start, /etc/modules-load.d), or install the \
             driver's open kernel modules",
        )
    } else {
        let advice = "look whether the NVIDIA driver is loaded (lsmod)";
        DIRECT.unknown("", "the GPUs' driver is not seen", advice)
    })
}

fn memlock(limit: Option<&str>) -> RdmaCheck {
    match limit {
        None => {
            let advice = "look at ulimit -l where the work runs";
            MEMLOCK.unknown("", "it cannot be read", advice)
        }
        Some("unlimited") => MEMLOCK.pass("", "unlimited"),
        Some(bytes) => MEMLOCK.fail(
            "",
            format!("{bytes} bytes"),
            "LimitMEMLOCK=infinity in the units of the agent and of the container runtime; in a \
             shell, ulimit -l unlimited",
        ),
    }
}

fn netns(shared: Option<bool>) -> RdmaCheck {
    match shared {
        None => {
            let advice = "look at it with rdma system";
            NETNS.unknown("", "it cannot be read", advice)
        }
        Some(true) => NETNS.pass("", "share the cards"),
        Some(false) => NETNS.fail(
            "",
            "each card is in one only: pods with a network of their own do not reach it",
            "rdma system set netns shared, unless a network plugin gives pods cards of their own",
        ),
    }
}
