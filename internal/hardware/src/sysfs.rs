//! The PCIe tree and the RDMA network cards, from sysfs under a root. Owns the parsing; an unreadable value is
//! unknown, which is no error.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::inventory::{Gpu, Inventory};
use crate::system::{line, numa_of_pci};
use crate::wiring::{CardPort, Nic, PcieLink, PcieSwitch};

/// The most ports of a card; a higher number is damaged.
const MAX_PORTS: u32 = 16;

/// The part of a machine's tree that the kernel shows: for GPUs at these addresses, and its cards.
pub fn shown(root: &Path, addresses: &[String]) -> Inventory {
    let gpus = addresses.iter().map(|pci| Gpu {
        pci: pci.clone(),
        ..Gpu::default()
    });
    let mut inventory = Inventory {
        gpus: gpus.collect(),
        ..Inventory::default()
    };
    look(root, &mut inventory);
    inventory
}

/// Adds network cards, and their parents and those of the GPUs.
pub fn look(root: &Path, inventory: &mut Inventory) {
    let mut switches = BTreeMap::new();
    inventory.nics = nics(root, &mut switches);
    for gpu in &mut inventory.gpus {
        if let Some(place) = place(root, &gpu.pci, &mut switches) {
            gpu.under = place.under;
            // The driver's values take precedence: it sees links that sysfs hides.
            let (own, seen) = (&mut gpu.pcie, place.link);
            *own = PcieLink {
                generation: or(own.generation, seen.generation),
                width: or(own.width, seen.width),
                max_generation: or(own.max_generation, seen.max_generation),
                max_width: or(own.max_width, seen.max_width),
            };
        }
    }
    inventory.switches = switches.into_values().collect();
}

fn or(known: u32, otherwise: u32) -> u32 {
    if known > 0 { known } else { otherwise }
}

/// A PCI device's place in the tree.
struct PciPlace {
    under: String,
    link: PcieLink,
}

/// A PCI device's host bridge, and the path down from it: bridges, then the device itself.
pub fn way(root: &Path, address: &str) -> Option<(String, Vec<String>)> {
    let target = fs::read_link(root.join("sys/bus/pci/devices").join(address)).ok()?;
    let names: Vec<&str> = (target.components())
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    // If bridges hide further bridges (Intel's VMD), the last host bridge is the device's.
    let host = names.iter().rposition(|name| name.starts_with("pci"))?;
    let down = names[host + 1..].iter().map(|name| (*name).to_owned());
    Some((names[host].to_owned(), down.collect()))
}

/// Follows a device's path through the kernel's tree, and collects its switches. The kernel shows each port of a
/// switch as a bridge: after the root port, a switch's upstream and downstream ports alternate.
fn place(
    root: &Path,
    address: &str,
    switches: &mut BTreeMap<String, PcieSwitch>,
) -> Option<PciPlace> {
    let (mut under, way) = way(root, address)?;
    let (device, bridges) = way.split_last()?;
    for (depth, bridge) in bridges.iter().enumerate() {
        if depth % 2 == 0 {
            continue;
        }
        let known = switches.entry(bridge.clone());
        known.or_insert_with(|| PcieSwitch {
            address: bridge.clone(),
            under,
            numa: numa_of_pci(root, bridge),
            link: link(root, bridge, Some(&bridges[depth - 1])),
        });
        under = bridge.clone();
    }
    let link = link(root, device, bridges.last().map(String::as_str));
    Some(PciPlace { under, link })
}

/// A device's link, with the maximum that both it and the port above support.
fn link(root: &Path, address: &str, port: Option<&str>) -> PcieLink {
    let read = |address: &str, file: &str| {
        let path = root.join("sys/bus/pci/devices").join(address).join(file);
        line(&path).unwrap_or_default()
    };
    let both = |value: &dyn Fn(&str) -> u32| {
        let (own, above) = (value(address), port.map_or(0, value));
        match (own, above) {
            (0, above) => above,
            (own, 0) => own,
            (own, above) => own.min(above),
        }
    };
    PcieLink {
        generation: generation(&read(address, "current_link_speed")),
        width: width(&read(address, "current_link_width")),
        max_generation: both(&|address| generation(&read(address, "max_link_speed"))),
        max_width: both(&|address| width(&read(address, "max_link_width"))),
    }
}

/// `32.0 GT/s PCIe` is generation 5; 0 if the kernel does not know.
fn generation(speed: &str) -> u32 {
    match speed.split_whitespace().next() {
        Some("2.5") => 1,
        Some("5.0" | "5") => 2,
        Some("8.0" | "8") => 3,
        Some("16.0" | "16") => 4,
        Some("32.0" | "32") => 5,
        Some("64.0" | "64") => 6,
        Some("128.0" | "128") => 7,
        _ => 0,
    }
}

/// Lanes; 0 if the kernel does not know, which it writes as 0 or 255.
fn width(text: &str) -> u32 {
    text.parse().ok().filter(|width| *width <= 32).unwrap_or(0)
}

/// The entries of a directory, by name; none if the directory does not exist.
pub(crate) fn entries(dir: &Path) -> Vec<(String, PathBuf)> {
    let read = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, entry.path()));
    let mut found: Vec<(String, PathBuf)> = read.filter_map(named).collect();
    found.sort();
    found
}

pub(crate) fn nics(root: &Path, switches: &mut BTreeMap<String, PcieSwitch>) -> Vec<Nic> {
    let mut nics = Vec::new();
    for (name, dir) in entries(&root.join("sys/class/infiniband")) {
        let device = fs::canonicalize(dir.join("device")).ok();
        // A virtual function belongs to its card.
        if (device.as_ref()).is_some_and(|device| device.join("physfn").exists()) {
            continue;
        }
        let pci = (device.as_deref().and_then(Path::file_name))
            .and_then(OsStr::to_str)
            .unwrap_or_default();
        let text = |file: &str| line(&dir.join(file)).unwrap_or_default();
        let place = place(root, pci, switches);
        let mut netdevs: Vec<String> = (device.iter())
            .flat_map(|device| entries(&device.join("net")))
            .map(|(name, _)| name)
            .collect();
        // Soft-RoCE and iWARP devices without a card name the interface that they use.
        netdevs.extend(line(&dir.join("parent")).filter(|parent| !parent.is_empty()));
        nics.push(Nic {
            model: text("hca_type"),
            firmware: text("fw_ver"),
            pci: pci.to_owned(),
            under: (place.as_ref()).map_or_else(String::new, |place| place.under.clone()),
            numa: numa_of_pci(root, pci).filter(|_| !pci.is_empty()),
            link: place.map_or_else(PcieLink::default, |place| place.link),
            netdevs,
            ports: ports(&dir),
            name,
        });
    }
    nics
}

/// A card's ports, by number.
pub(crate) fn ports(nic: &Path) -> Vec<CardPort> {
    let numbered = |(name, dir): (String, PathBuf)| {
        let number: u32 = name.parse().ok()?;
        (number <= MAX_PORTS).then_some((number, dir))
    };
    let mut ports: Vec<CardPort> = (entries(&nic.join("ports")).into_iter())
        .filter_map(numbered)
        .map(|(number, dir)| {
            let text = |file: &str| line(&dir.join(file)).unwrap_or_default();
            // `4: ACTIVE`
            let word = |file: &str| {
                let text = text(file);
                let word = text.split_once(':').map_or(text.as_str(), |(_, word)| word);
                word.trim().to_owned()
            };
            CardPort {
                number,
                state: word("state"),
                physical: word("phys_state"),
                layer: text("link_layer"),
                gbits: gbits(&text("rate")),
            }
        })
        .collect();
    ports.sort_by_key(|port| port.number);
    ports
}

/// `400 Gb/sec (4X NDR)`; halves of gigabits (`2.5 Gb/sec`) are rounded down.
fn gbits(rate: &str) -> u32 {
    let number = rate.split_whitespace().next().unwrap_or_default();
    let whole = number.split('.').next().unwrap_or_default();
    whole.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes a device in the kernel's tree under `path`, which begins with its host bridge.
    fn device(root: &Path, path: &str, files: &[(&str, &str)]) {
        let dir = root.join("sys/devices").join(path);
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            fs::write(dir.join(file), format!("{text}\n")).unwrap();
        }
        let address = dir.file_name().unwrap();
        let all = root.join("sys/bus/pci/devices");
        fs::create_dir_all(&all).unwrap();
        let target = Path::new("../../../devices").join(path);
        symlink(target, all.join(address)).unwrap();
    }

    fn gen5(width: &str) -> [(&str, &str); 4] {
        [
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", width),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
        ]
    }

    #[test]
    fn a_gpu_and_a_card_under_one_switch_are_found_there() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let port = "pci0000:15/0000:15:01.0";
        let up = format!("{port}/0000:16:00.0");
        device(root, port, &gen5("16"));
        device(root, &up, &gen5("16"));
        fs::write(root.join("sys/devices").join(&up).join("numa_node"), "1\n").unwrap();
        for (downward, address) in [
            ("0000:17:00.0", "0000:18:00.0"),
            ("0000:17:01.0", "0000:19:00.0"),
        ] {
            device(root, &format!("{up}/{downward}"), &gen5("16"));
            device(root, &format!("{up}/{downward}/{address}"), &gen5("8"));
        }
        let card = root
            .join("sys/devices")
            .join(format!("{up}/0000:17:01.0/0000:19:00.0"));
        let port = card.join("infiniband/mlx5_0/ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::create_dir_all(card.join("net/ib0")).unwrap();
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "InfiniBand"),
            ("rate", "400 Gb/sec (4X NDR)"),
            ("../../hca_type", "MT4129"),
            ("../../fw_ver", "28.39.1002"),
        ] {
            fs::write(port.join(file), format!("{text}\n")).unwrap();
        }
        symlink(
            "../../../0000:19:00.0",
            card.join("infiniband/mlx5_0/device"),
        )
        .unwrap();
        fs::create_dir_all(root.join("sys/class/infiniband")).unwrap();
        symlink(
            card.join("infiniband/mlx5_0"),
            root.join("sys/class/infiniband/mlx5_0"),
        )
        .unwrap();

        let mut machine = Inventory {
            gpus: vec![crate::Gpu {
                pci: "0000:18:00.0".into(),
                ..crate::Gpu::default()
            }],
            ..Inventory::default()
        };
        look(root, &mut machine);
        let [switch] = &machine.switches[..] else {
            panic!("{:?}", machine.switches)
        };
        assert_eq!(
            (switch.address.as_str(), switch.under.as_str()),
            ("0000:16:00.0", "pci0000:15")
        );
        assert_eq!((switch.numa, switch.link.max_generation), (Some(1), 5));
        assert_eq!(machine.gpus[0].under, "0000:16:00.0");
        assert_eq!(machine.gpus[0].pcie.width, 8);
        let [nic] = &machine.nics[..] else {
            panic!("{:?}", machine.nics)
        };
        assert_eq!(
            (nic.name.as_str(), nic.pci.as_str()),
            ("mlx5_0", "0000:19:00.0")
        );
        assert_eq!(
            (nic.model.as_str(), nic.firmware.as_str()),
            ("MT4129", "28.39.1002")
        );
        assert_eq!(
            (nic.under.as_str(), &nic.netdevs[..]),
            ("0000:16:00.0", &["ib0".to_string()][..])
        );
        let [port] = &nic.ports[..] else {
            panic!("{:?}", nic.ports)
        };
        assert!(port.is_up());
        assert_eq!(
            (port.physical.as_str(), port.layer.as_str(), port.gbits),
            ("LinkUp", "InfiniBand", 400)
        );
    }

    #[test]
    fn a_card_that_is_none_names_its_interface() {
        let root = tempfile::tempdir().unwrap();
        let rxe = root.path().join("sys/class/infiniband/rxe0");
        fs::create_dir_all(rxe.join("ports/1")).unwrap();
        fs::write(rxe.join("parent"), "eth0\n").unwrap();
        let mut machine = Inventory::default();
        look(root.path(), &mut machine);
        assert_eq!(machine.nics[0].netdevs, ["eth0"]);
        assert_eq!(
            (machine.nics[0].pci.as_str(), machine.nics[0].numa),
            ("", None)
        );
        // A state that a port lacks is unknown, and not up.
        assert_eq!(machine.nics[0].ports[0].state, "");
        assert!(!machine.nics[0].ports[0].is_up());
    }

    #[test]
    fn what_the_kernel_does_not_know_is_not_known() {
        assert_eq!(
            (generation("Unknown"), width("255"), width("0"), gbits("")),
            (0, 0, 0, 0)
        );
        assert_eq!(
            (
                generation("8.0 GT/s PCIe"),
                width("16"),
                gbits("2.5 Gb/sec (1X SDR)")
            ),
            (3, 16, 2)
        );
    }
}
