//! A node's devices as a picture: its NUMA nodes, the devices on each PCIe switch, the links
//! between GPUs, and the pods that use them. Pure: computes positions, and draws nothing.

use std::collections::{BTreeMap, BTreeSet};

use resources::devices::{GpuDevice, NicDevice, NodeInventory};

/// A device's width and height, and the gap between two, in pixels: eight GPUs and eight cards fit
/// a page.
const WIDTH: u32 = 66;
const HEIGHT: u32 = 46;
const GAP: u32 = 6;
/// The gap between devices on different NUMA nodes.
const APART: u32 = 20;
/// Where the rows begin, and the height of bars.
const BAR: u32 = 26;
const SWITCHES: u32 = 50;
const DEVICES: u32 = 100;
const BELOW: u32 = 186;
/// The depth of an arc between two neighbours, and the maximum depth.
const ARC: u32 = 14;
const ARC_MAX: u32 = 92;
/// How many letters of a name fit into a device.
const LETTERS: usize = 10;

/// A positioned part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PicturePart {
    /// Its left edge.
    pub x: u32,
    /// Its upper edge.
    pub y: u32,
    /// Its width.
    pub width: u32,
    /// Its height.
    pub height: u32,
    /// Its style: `numa`, `switch`, `nic`, `down`, or a GPU's `free`, `busy`, `bad`.
    pub class: &'static str,
    /// Its label.
    pub name: String,
    /// The text below the label, as far as it fits; empty if there is none.
    pub more: String,
    /// The complete text.
    pub words: String,
}

impl PicturePart {
    /// The x coordinate of its centre.
    pub fn middle(&self) -> u32 {
        self.x + self.width / 2
    }
}

/// A link between parts, as an SVG path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPath {
    /// The path.
    pub path: String,
    /// `pcie` or `nvlink`.
    pub class: &'static str,
    /// The description; empty if the parts contain it.
    pub words: String,
}

/// The picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Its width.
    pub width: u32,
    /// Its height.
    pub height: u32,
    /// The parts.
    pub parts: Vec<PicturePart>,
    /// The links.
    pub ways: Vec<LinkPath>,
}

/// A device without a position.
enum UnplacedDevice<'a> {
    Gpu(&'a GpuDevice),
    Nic(&'a NicDevice),
}

impl UnplacedDevice<'_> {
    fn numa(&self) -> Option<u32> {
        match self {
            UnplacedDevice::Gpu(gpu) => gpu.numa,
            UnplacedDevice::Nic(nic) => nic.numa,
        }
    }

    fn switch(&self) -> &str {
        match self {
            UnplacedDevice::Gpu(gpu) => &gpu.switch,
            UnplacedDevice::Nic(nic) => &nic.switch,
        }
    }
}

impl Picture {
    /// The picture of a node's devices, with the pod of each by its id; none if there is nothing to
    /// show.
    pub fn of(inventory: &NodeInventory, holders: &BTreeMap<String, String>) -> Option<Picture> {
        let gpus = inventory.gpus.iter().map(UnplacedDevice::Gpu);
        let devices: Vec<UnplacedDevice<'_>> = gpus
            .chain(inventory.nics.iter().map(UnplacedDevice::Nic))
            .collect();
        if devices.is_empty() {
            return None;
        }
        let mut picture = Picture::default();
        let mut at = 0;
        let mut seen: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        let numa: BTreeSet<Option<u32>> = devices.iter().map(UnplacedDevice::numa).collect();
        for numa in numa {
            let here = devices.iter().filter(|device| device.numa() == numa);
            // Devices on the same switch are adjacent; devices without a switch follow.
            let mut groups: BTreeMap<(bool, &str, usize), Vec<&UnplacedDevice<'_>>> =
                BTreeMap::new();
            for (place, device) in here.enumerate() {
                let switch = device.switch();
                let alone = if switch.is_empty() { place + 1 } else { 0 };
                let group = groups.entry((switch.is_empty(), switch, alone));
                group.or_default().push(device);
            }
            let from = at;
            let mut below = Vec::new();
            for ((_, switch, _), group) in groups {
                let start = at;
                let mut middles = Vec::new();
                for device in group {
                    let part = match device {
                        UnplacedDevice::Gpu(gpu) => gpu_part(gpu, holders, at),
                        UnplacedDevice::Nic(nic) => nic_part(nic, at),
                    };
                    if let UnplacedDevice::Gpu(gpu) = device {
                        seen.insert(&gpu.id, (gpu.index, part.middle()));
                    }
                    middles.push(part.middle());
                    picture.parts.push(part);
                    at += WIDTH + GAP;
                }
                if switch.is_empty() {
                    below.extend(middles.into_iter().map(|middle| (middle, DEVICES)));
                    continue;
                }
                let part = bar("switch", (start, at - GAP - start), SWITCHES, "PCIe switch");
                below.push((part.middle(), SWITCHES));
                let down = middles.into_iter();
                let down = down.map(|middle| straight(middle, SWITCHES + BAR, DEVICES));
                picture.ways.extend(down);
                picture.parts.push(PicturePart {
                    words: format!("PCIe switch {switch}"),
                    ..part
                });
            }
            let part = bar(
                "numa",
                (from, at - GAP - from),
                0,
                &numa_name(inventory, numa),
            );
            let down = below.into_iter();
            picture
                .ways
                .extend(down.map(|(middle, to)| straight(middle, BAR, to)));
            picture.parts.push(part);
            at += APART - GAP;
        }
        picture.width = at - APART;
        picture.height = DEVICES + HEIGHT;
        picture.join(inventory, &seen);
        Some(picture)
    }

    /// Draws the NVLinks, given each GPU's centre.
    fn join(&mut self, inventory: &NodeInventory, seen: &BTreeMap<&str, (u32, u32)>) {
        let foot = DEVICES + HEIGHT;
        let switched = |gpu: &&GpuDevice| gpu.links.iter().any(|link| link.kind == "NVS");
        let joined: Vec<&GpuDevice> = inventory.gpus.iter().filter(switched).collect();
        let middles: Vec<u32> = (joined.iter())
            .filter_map(|gpu| seen.get(&*gpu.id).map(|(_, middle)| *middle))
            .collect();
        if let (Some(first), Some(last)) = (middles.iter().min(), middles.iter().max()) {
            let room = (first - WIDTH / 2, last - first + WIDTH);
            let links = joined.iter().flat_map(|gpu| &gpu.links);
            let most = links.map(|link| link.count).max().unwrap_or_default();
            let name = format!("NVSwitch, {most} NVLinks to each");
            self.parts.push(bar("nvswitch", room, BELOW, &name));
            let down = middles.iter().map(|middle| LinkPath {
                class: "nvlink",
                ..straight(*middle, foot, BELOW)
            });
            self.ways.extend(down);
            self.height = BELOW + BAR;
        }
        for gpu in &inventory.gpus {
            for link in gpu.links.iter().filter(|link| link.kind == "NVL") {
                let (Some((one, from)), Some((other, to))) =
                    (seen.get(&*gpu.id), seen.get(&*link.to))
                else {
                    continue;
                };
                // Both ends report each link.
                if one >= other {
                    continue;
                }
                let neighbours = from.abs_diff(*to) / (WIDTH + GAP);
                let deep = (ARC * neighbours.max(1)).min(ARC_MAX);
                let (middle, bottom) = (u32::midpoint(*from, *to), foot + 2 * deep);
                self.ways.push(LinkPath {
                    path: format!("M{from} {foot} Q{middle} {bottom} {to} {foot}"),
                    class: "nvlink",
                    words: format!("{} NVLinks between GPU {one} and GPU {other}", link.count),
                });
                self.height = self.height.max(foot + deep + 4);
            }
        }
    }
}

fn bar(class: &'static str, (x, width): (u32, u32), y: u32, name: &str) -> PicturePart {
    PicturePart {
        x,
        y,
        width,
        height: BAR,
        class,
        name: name.to_owned(),
        more: String::new(),
        words: name.to_owned(),
    }
}

fn straight(x: u32, from: u32, to: u32) -> LinkPath {
    LinkPath {
        path: format!("M{x} {from} V{to}"),
        class: "pcie",
        words: String::new(),
    }
}

fn numa_name(inventory: &NodeInventory, numa: Option<u32>) -> String {
    let Some(id) = numa else {
        return "PCIe".to_owned();
    };
    let cpus = inventory.numa_nodes.iter().find(|node| node.id == id);
    match cpus.map(|node| node.cpus.len()) {
        Some(cpus) if cpus > 0 => format!("NUMA {id}, {cpus} CPUs"),
        _ => format!("NUMA {id}"),
    }
}

fn gpu_part(gpu: &GpuDevice, holders: &BTreeMap<String, String>, x: u32) -> PicturePart {
    let slices = gpu.slices.iter().flatten();
    let ids = std::iter::once(&gpu.id).chain(slices.map(|slice| &slice.id));
    let held: BTreeSet<&String> = ids.filter_map(|id| holders.get(id)).collect();
    let (class, text) = match (gpu.healthy, held.len()) {
        (false, _) => ("bad", "unhealthy".to_owned()),
        (true, 0) => ("free", "free".to_owned()),
        (true, 1) => ("busy", held.iter().map(|held| held.as_str()).collect()),
        (true, many) => ("busy", format!("{many} pods")),
    };
    let mut words = format!(
        "GPU {} {}, {} GiB",
        gpu.index,
        gpu.model,
        gpu.memory_mib / 1024
    );
    if let Some(slices) = &gpu.slices {
        words += &format!(", partitioned into {} slices", slices.len());
    }
    words += if gpu.healthy { ": " } else { ": unhealthy; " };
    let all: Vec<&str> = held.iter().map(|held| held.as_str()).collect();
    words += &match all.is_empty() {
        true => "free".to_owned(),
        false => format!("used by {}", all.join(", ")),
    };
    PicturePart {
        x,
        y: DEVICES,
        width: WIDTH,
        height: HEIGHT,
        class,
        name: format!("GPU {}", gpu.index),
        more: short(text.rsplit('/').next().unwrap_or_default()),
        words,
    }
}

fn nic_part(nic: &NicDevice, x: u32) -> PicturePart {
    let (class, more) = match nic.gbits {
        0 => ("down", "no link".to_owned()),
        gbits => ("nic", format!("{gbits} Gb/s")),
    };
    PicturePart {
        x,
        y: DEVICES,
        width: WIDTH,
        height: HEIGHT,
        class,
        name: short(&nic.name),
        words: format!("network card {} {}: {more}", nic.name, nic.layer),
        more,
    }
}

/// A name, cut to the available width.
fn short(name: &str) -> String {
    if name.chars().count() <= LETTERS {
        return name.to_owned();
    }
    let start: String = name.chars().take(LETTERS - 1).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use resources::devices::{GpuLink, ReportedNumaNode};

    use super::*;

    fn gpu(index: u32, numa: Option<u32>, switch: &str) -> GpuDevice {
        GpuDevice {
            id: format!("GPU-{index}"),
            index,
            model: "H100".into(),
            memory_mib: 81_920,
            numa,
            healthy: true,
            switch: switch.into(),
            ..GpuDevice::default()
        }
    }

    fn nic(at: u32, numa: Option<u32>, switch: &str, gbits: u32) -> NicDevice {
        NicDevice {
            name: format!("mlx5_{at}"),
            numa,
            switch: switch.into(),
            gbits,
            layer: "InfiniBand".into(),
        }
    }

    fn link(to: u32, kind: &str, count: u32) -> GpuLink {
        GpuLink {
            to: format!("GPU-{to}"),
            kind: kind.into(),
            count,
        }
    }

    fn part<'a>(picture: &'a Picture, name: &str) -> &'a PicturePart {
        let found = picture.parts.iter().find(|part| part.name == name);
        found.unwrap_or_else(|| panic!("{name} is not in {picture:#?}"))
    }

    #[test]
    fn a_gpu_is_next_to_the_card_of_its_switch_and_shows_its_pod() {
        let mut inventory = NodeInventory {
            gpus: vec![
                gpu(0, Some(0), "s1"),
                gpu(1, Some(0), "s0"),
                gpu(2, Some(1), ""),
            ],
            nics: vec![nic(0, Some(0), "s0", 400), nic(1, Some(1), "", 0)],
            numa_nodes: vec![ReportedNumaNode {
                id: 0,
                cpus: (0..48).collect(),
                memory_bytes: 0,
            }],
            ..NodeInventory::default()
        };
        inventory.gpus[2].healthy = false;
        let holders = [(
            "GPU-1".to_owned(),
            "team/train-worker-with-a-long-name".to_owned(),
        )];
        let picture = Picture::of(&inventory, &holders.into()).unwrap();
        let (second, card) = (part(&picture, "GPU 1"), part(&picture, "mlx5_0"));
        assert_eq!(card.x, second.x + WIDTH + GAP);
        assert_eq!((second.class, &*second.more), ("busy", "train-wor…"));
        assert!(
            second
                .words
                .ends_with("used by team/train-worker-with-a-long-name")
        );
        assert_eq!((card.class, &*card.more), ("nic", "400 Gb/s"));
        assert_eq!(part(&picture, "GPU 0").class, "free");
        assert_eq!(part(&picture, "GPU 2").class, "bad");
        assert_eq!(part(&picture, "mlx5_1").class, "down");
        assert_eq!(part(&picture, "NUMA 0, 48 CPUs").width, 3 * WIDTH + 2 * GAP);
        assert_eq!(part(&picture, "NUMA 1").class, "numa");
        let switches = picture.parts.iter().filter(|part| part.class == "switch");
        assert_eq!(switches.count(), 2);
    }

    #[test]
    fn nvlinks_are_arcs_between_two_gpus_or_lines_to_their_switch() {
        let mut inventory = NodeInventory {
            gpus: (0..3).map(|at| gpu(at, Some(0), "")).collect(),
            ..NodeInventory::default()
        };
        inventory.gpus[0].links = vec![link(1, "NVL", 2), link(2, "SYS", 0)];
        inventory.gpus[1].links = vec![link(0, "NVL", 2)];
        let joined = |inventory: &NodeInventory| {
            let picture = Picture::of(inventory, &BTreeMap::new()).unwrap();
            let ways = picture.ways.iter().filter(|way| way.class == "nvlink");
            let words: Vec<String> = ways.map(|way| way.words.clone()).collect();
            (words, picture)
        };
        let (words, picture) = joined(&inventory);
        assert_eq!(words, ["2 NVLinks between GPU 0 and GPU 1"]);
        assert!(picture.height > DEVICES + HEIGHT);
        for at in 0..3 {
            let others = (0..3).filter(|to| *to != at);
            inventory.gpus[at as usize].links = others.map(|to| link(to, "NVS", 18)).collect();
        }
        let (words, picture) = joined(&inventory);
        assert_eq!(words.len(), 3);
        let switch = part(&picture, "NVSwitch, 18 NVLinks to each");
        assert_eq!((switch.x, switch.width), (0, picture.width));
    }

    #[test]
    fn a_node_with_nothing_to_show_has_no_picture() {
        assert_eq!(
            Picture::of(&NodeInventory::default(), &BTreeMap::new()),
            None
        );
    }

    proptest! {
        #[test]
        fn every_device_stands_somewhere_within_and_on_no_other(
            gpus in proptest::collection::vec((proptest::option::of(0..3_u32), 0..4_u32), 0..17),
            nics in proptest::collection::vec((proptest::option::of(0..3_u32), 0..4_u32, 0..2_u32), 0..10),
        ) {
            let switch = |at: u32| if at == 0 { String::new() } else { format!("s{at}") };
            let inventory = NodeInventory {
                gpus: gpus.iter().zip(0..).map(|((numa, at), index)| gpu(index, *numa, &switch(*at))).collect(),
                nics: nics.iter().zip(0..).map(|((numa, at, up), index)| nic(index, *numa, &switch(*at), up * 100)).collect(),
                ..NodeInventory::default()
            };
            let Some(picture) = Picture::of(&inventory, &BTreeMap::new()) else {
                prop_assert!(gpus.is_empty() && nics.is_empty());
                return Ok(());
            };
            let devices = picture.parts.iter().filter(|part| part.y == DEVICES);
            prop_assert_eq!(devices.count(), gpus.len() + nics.len());
            for (at, part) in picture.parts.iter().enumerate() {
                prop_assert!(part.x + part.width <= picture.width && part.y + part.height <= picture.height);
                for other in &picture.parts[at + 1..] {
                    let beside = part.x + part.width <= other.x || other.x + other.width <= part.x;
                    prop_assert!(beside || part.y != other.y, "{:?} {:?}", part, other);
                }
            }
        }
    }
}
