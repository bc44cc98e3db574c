//! The PCIe tree in NCCL's format: of described machines against golden files, and of random machines with a reader
//! that follows NCCL's own rules.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;

use hardware::description::MachineDescription;
use hardware::nccl::{TreeDelivery, tree, xml};
use hardware::{CardPort, Gpu, Inventory, Nic, NumaNode, Origin, PcieLink, PcieSwitch};
use proptest::prelude::*;

fn described(name: &str) -> Inventory {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples/machines");
    let mut inventory = Inventory::default();
    let description = MachineDescription::load(&dir.join(name)).unwrap();
    description.apply(&mut inventory);
    inventory
}

/// An element with its attributes and its content.
#[derive(Debug, Default)]
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    inside: Vec<Element>,
}

impl Element {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Its `pci` elements, each with the addresses above it.
    fn devices<'a>(&'a self, above: &[&'a str]) -> Vec<(Vec<&'a str>, &'a Element)> {
        let mut all = Vec::new();
        for device in self.inside.iter().filter(|it| it.name == "pci") {
            let mut way = above.to_vec();
            all.push((way.clone(), device));
            way.push(device.get("busid").unwrap());
            all.extend(device.devices(&way));
        }
        all
    }
}

/// Reads elements as NCCL does: it accepts neither a declaration nor text nor unclosed elements, and limits the
/// number of attributes, the number of child elements and the length of values.
fn read(text: &str) -> Element {
    let mut open = vec![Element::default()];
    for part in text.split('<').skip(1) {
        let (tag, after) = part.split_once('>').unwrap();
        assert!(after.trim().is_empty(), "{after:?} is no element");
        if let Some(name) = tag.strip_prefix('/') {
            let done = open.pop().unwrap();
            assert_eq!(done.name, name);
            open.last_mut().unwrap().inside.push(done);
            continue;
        }
        let single = tag.ends_with('/');
        let mut parts = tag.trim_end_matches('/').splitn(2, ' ');
        let mut element = Element {
            name: parts.next().unwrap().to_owned(),
            ..Element::default()
        };
        let mut rest = parts.next().unwrap_or_default();
        while !rest.is_empty() {
            let (name, value) = rest.split_once("=\"").unwrap();
            let (value, after) = value.split_once('"').unwrap();
            assert!(value.len() < 255 && !name.contains(' '), "{tag}");
            element.attributes.push((name.to_owned(), value.to_owned()));
            rest = after.strip_prefix(' ').unwrap_or(after);
        }
        assert!(element.attributes.len() <= 16, "{tag}");
        if single {
            open.last_mut().unwrap().inside.push(element);
        } else {
            open.push(element);
        }
    }
    let [document] = <[Element; 1]>::try_from(open).unwrap();
    let [system] = <[Element; 1]>::try_from(document.inside).unwrap();
    assert_eq!(
        (system.name.as_str(), system.get("version")),
        ("system", Some("1"))
    );
    system
}

#[test]
fn described_machines_are_told_as_their_files_have_them() {
    for (machine, kept) in [
        ("hgx-h100.toml", include_str!("nccl/hgx-h100.xml")),
        ("dgx-a100.toml", include_str!("nccl/dgx-a100.xml")),
    ] {
        let machine = described(machine);
        let text = xml(&machine);
        assert_eq!(text, kept);
        let gpus = text.matches("class=\"0x030200\"").count();
        assert_eq!(gpus, machine.gpus.len());
    }
}

/// A random device: its parent, by place among switches, bridges and none, its NUMA node, and its link.
fn place() -> impl Strategy<Value = (usize, Option<u32>, PcieLink)> {
    let link = (0_u32..8, 0_u32..33, 0_u32..8, 0_u32..33);
    let link = link.prop_map(|(generation, width, max_generation, max_width)| PcieLink {
        generation,
        width,
        max_generation,
        max_width,
    });
    (0_usize..8, prop::option::of(0_u32..3), link)
}

/// A machine of GPUs, cards, and switches that may form cycles.
fn machine() -> impl Strategy<Value = Inventory> {
    let places = |most| prop::collection::vec(place(), 0..most);
    let nodes = prop::collection::vec(prop::collection::btree_set(0_u32..9000, 0..5), 0..3);
    (places(6), places(9), places(9), nodes).prop_map(|(switches, gpus, nics, nodes)| {
        let under = |at: usize| match at {
            0..6 => format!("0000:{at:02x}:00.0"),
            6 => "pci0000:00".to_owned(),
            _ => String::new(),
        };
        let numbered = |domain: usize, at: usize| format!("{domain:04x}:{at:02x}:00.0");
        let numa_nodes = nodes.into_iter().zip(0..).map(|(cpus, id)| NumaNode {
            id,
            cpus: cpus.into_iter().collect(),
            memory_bytes: 0,
        });
        let switches = switches.into_iter().enumerate();
        let gpus = gpus.into_iter().enumerate();
        let nics = nics.into_iter().enumerate();
        Inventory {
            numa_nodes: numa_nodes.collect(),
            switches: switches
                .map(|(at, (on, numa, link))| PcieSwitch {
                    address: numbered(0, at),
                    under: under(on),
                    numa,
                    link,
                })
                .collect(),
            gpus: gpus
                .map(|(at, (on, numa, pcie))| Gpu {
                    pci: numbered(1, at),
                    under: under(on),
                    numa,
                    pcie,
                    ..Gpu::default()
                })
                .collect(),
            nics: nics
                .map(|(at, (on, numa, link))| Nic {
                    pci: numbered(2, at),
                    under: under(on),
                    numa,
                    link,
                    ..Nic::default()
                })
                .collect(),
            ..Inventory::default()
        }
    })
}

/// The switches on the path down to the parent `under`; none if they form a cycle.
fn way<'a>(machine: &'a Inventory, under: &str) -> Vec<&'a str> {
    let switch = |address: &str| machine.switches.iter().find(|it| it.address == address);
    let mut way = Vec::new();
    let mut at = switch(under);
    while let Some(above) = at {
        if way.contains(&above.address.as_str()) {
            return Vec::new();
        }
        way.insert(0, above.address.as_str());
        at = switch(&above.under);
    }
    way
}

proptest! {
    #[test]
    fn each_gpu_and_card_is_told_once_under_the_switch_that_it_hangs_on(machine in machine()) {
        let system = read(&xml(&machine));
        let mut nodes: Vec<&str> = Vec::new();
        let mut devices = Vec::new();
        for node in &system.inside {
            prop_assert_eq!(&node.name, "cpu");
            nodes.push(node.get("numaid").unwrap());
            devices.extend(node.devices(&[]));
        }
        let count = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        prop_assert_eq!(nodes.len(), count);
        let mut addresses: Vec<&str> =
            devices.iter().map(|(_, device)| device.get("busid").unwrap()).collect();
        addresses.sort_unstable();
        let all = addresses.len();
        addresses.dedup();
        prop_assert_eq!(addresses.len(), all);

        let leaves = machine.gpus.iter().map(|gpu| (&gpu.pci, &gpu.under));
        let leaves: Vec<_> =
            leaves.chain(machine.nics.iter().map(|nic| (&nic.pci, &nic.under))).collect();
        for (address, under) in &leaves {
            let (above, device) = devices
                .iter()
                .find(|(_, device)| device.get("busid") == Some(address.as_str()))
                .unwrap();
            prop_assert_eq!(device.get("class").map(|class| &class[..4] == "0x06"), Some(false));
            prop_assert_eq!(above, &way(&machine, under));
        }
        // A switch is listed only if a device is below it.
        for (_, device) in &devices {
            let leaf = leaves.iter().any(|(address, _)| Some(address.as_str()) == device.get("busid"));
            prop_assert_eq!(leaf, device.inside.is_empty());
        }
    }
}

/// The HGX H100 with its devices as a virtual machine shows them: on one bridge, without links.
fn flat() -> Inventory {
    let mut machine = described("hgx-h100.toml");
    machine.origin = Origin::Nvml;
    machine.switches.clear();
    for gpu in &mut machine.gpus {
        "pci0000:00".clone_into(&mut gpu.under);
        gpu.pcie = PcieLink::default();
    }
    for nic in &mut machine.nics {
        "pci0000:00".clone_into(&mut nic.under);
        nic.link = PcieLink::default();
    }
    machine
}

#[test]
fn a_tree_is_told_where_the_kernel_hides_it_and_a_description_knows_it() {
    let (known, hidden) = (described("hgx-h100.toml"), flat());
    let real = Inventory {
        origin: Origin::Nvml,
        ..known.clone()
    };
    let unlinked = |mut machine: Inventory| {
        for gpu in &mut machine.gpus {
            gpu.pcie = PcieLink::default();
        }
        machine
    };
    let bare = Inventory {
        gpus: hidden.gpus.clone(),
        ..Inventory::default()
    };
    let cards_only = Inventory {
        gpus: Vec::new(),
        ..known.clone()
    };
    for (what, tell, found, shown, described, told) in [
        (
            "it is hidden",
            TreeDelivery::Hidden,
            &hidden,
            &hidden,
            Some(&known),
            true,
        ),
        (
            "the kernel shows it",
            TreeDelivery::Hidden,
            &real,
            &real,
            Some(&known),
            false,
        ),
        (
            "links are hidden",
            TreeDelivery::Hidden,
            &real,
            &unlinked(real.clone()),
            Some(&known),
            true,
        ),
        (
            "nobody knows it",
            TreeDelivery::Hidden,
            &hidden,
            &hidden,
            None,
            false,
        ),
        (
            "cards are described",
            TreeDelivery::Hidden,
            &hidden,
            &hidden,
            Some(&cards_only),
            false,
        ),
        (
            "it is described as flat",
            TreeDelivery::Hidden,
            &hidden,
            &hidden,
            Some(&hidden),
            false,
        ),
        (
            "a described machine",
            TreeDelivery::Hidden,
            &known,
            &bare,
            None,
            true,
        ),
        (
            "it is asked for",
            TreeDelivery::Always,
            &real,
            &real,
            None,
            true,
        ),
        (
            "as described",
            TreeDelivery::Always,
            &real,
            &real,
            Some(&known),
            true,
        ),
        (
            "it is not wanted",
            TreeDelivery::Never,
            &hidden,
            &hidden,
            Some(&known),
            false,
        ),
    ] {
        let tree = tree(tell, found, shown, described).unwrap();
        assert_eq!(tree.is_some(), told, "{what}");
        if let Some(tree) = tree {
            assert_eq!(xml(&tree), xml(&known), "{what}");
        }
    }
    let none = Inventory::default();
    assert_eq!(tree(TreeDelivery::Always, &none, &none, None), Ok(None));
}

#[test]
fn a_description_that_lacks_a_device_is_no_tree_and_what_is_not_here_is_not_told() {
    let (mut known, found) = (described("hgx-h100.toml"), flat());
    let told = |known: &Inventory| tree(TreeDelivery::Hidden, &found, &found, Some(known));
    // Upper case is the same address.
    known.gpus[5].pci = known.gpus[5].pci.to_uppercase();
    known.gpus.push(Gpu {
        pci: "0000:ff:00.0".into(),
        under: "pci0000:fe".into(),
        ..Gpu::default()
    });
    let text = xml(&told(&known).unwrap().unwrap());
    assert_eq!(text, include_str!("nccl/hgx-h100.xml"));
    let card = known.nics.remove(3);
    let why = told(&known).unwrap_err().to_string();
    for word in [
        "card mlx5_3",
        "\"0000:5d:00.0\"",
        "NCCL_TOPO_FILE",
        "[[nic]]",
    ] {
        assert!(why.contains(word), "{why}");
    }
    known.nics.push(card);
    known.gpus.remove(2);
    assert!(
        told(&known)
            .unwrap_err()
            .to_string()
            .contains("GPU 2 at \"0000:4b:00.0\"")
    );
}

#[test]
fn what_is_not_known_is_left_to_nccl() {
    let gpu = |pci: &str, numa| Gpu {
        pci: pci.into(),
        numa,
        ..Gpu::default()
    };
    let mut machine = Inventory {
        gpus: vec![gpu("0001:00:00.0", None), gpu("", Some(0))],
        nics: vec![Nic {
            pci: "0101:00:00.0".into(),
            ports: vec![CardPort {
                layer: "Ethernet".into(),
                ..CardPort::default()
            }],
            ..Nic::default()
        }],
        ..Inventory::default()
    };
    let text = "<system version=\"1\">\n  <cpu numaid=\"-1\">\n    \
                <pci busid=\"0001:00:00.0\" class=\"0x030200\"/>\n    \
                <pci busid=\"0101:00:00.0\" class=\"0x020000\"/>\n  </cpu>\n</system>\n";
    assert_eq!(xml(&machine), text);
    // With a single node the mask has all CPUs; NCCL reads CPUs beyond its limit itself.
    let node = |cpus: &[u32]| NumaNode {
        id: 0,
        cpus: cpus.to_vec(),
        memory_bytes: 0,
    };
    for (cpus, line) in [
        (
            &[0, 33, 63][..],
            "<cpu numaid=\"0\" affinity=\"80000002,00000001\">",
        ),
        (&[5000], "<cpu numaid=\"0\">"),
        (&[], "<cpu numaid=\"0\">"),
    ] {
        machine.numa_nodes = vec![node(cpus)];
        assert!(xml(&machine).contains(line), "{}", xml(&machine));
    }
}
