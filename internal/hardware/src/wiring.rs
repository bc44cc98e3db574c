//! The connections between a machine's parts, as data: PCIe links and switches, network cards,
//! bandwidths. Owns the types and the arithmetic of single links; detects nothing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The bandwidth of a path, in millions of bytes a second and direction: the rate that programs
/// get, not the wire's.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Bandwidth(pub u32);

impl Bandwidth {
    /// A path without a known limit.
    pub const UNLIMITED: Bandwidth = Bandwidth(u32::MAX);

    /// `count` times as much.
    #[must_use]
    pub fn times(self, count: u32) -> Bandwidth {
        Bandwidth(self.0.saturating_mul(count))
    }
}

impl fmt::Display for Bandwidth {
    /// As `370.8 GB/s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Bandwidth::UNLIMITED {
            return f.write_str("unlimited");
        }
        write!(f, "{}.{} GB/s", self.0 / 1000, self.0 % 1000 / 100)
    }
}

/// A device's PCIe link: its current state, and the maximum in its slot. 0 if not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Its current generation; idle GPUs lower it to save power.
    pub generation: u32,
    /// Its current lanes.
    pub width: u32,
    /// The highest generation that device and slot support.
    pub max_generation: u32,
    /// The most lanes that device and slot support.
    pub max_width: u32,
}

impl PcieLink {
    /// Its bandwidth under load: at its highest generation, but with its current lanes, because a
    /// missing lane does not come back under load. `None` if nothing is known.
    ///
    /// 16 lanes of generation 3, 4, 5 and 6 have 12, 24, 48 and 96 GB/s (NCCL's figures).
    pub fn bandwidth(self) -> Option<Bandwidth> {
        let generation = if self.max_generation > 0 {
            self.max_generation
        } else {
            self.generation
        };
        let width = if self.width > 0 {
            self.width
        } else {
            self.max_width
        };
        if generation == 0 || width == 0 {
            return None;
        }
        let lane = match generation {
            1 => 187,
            2 => 375,
            3 => 750,
            4 => 1500,
            5 => 3000,
            _ => 6000,
        };
        Some(Bandwidth(lane).times(width.min(32)))
    }
}

/// A PCIe switch. Devices below it have its address in `under`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieSwitch {
    /// Its upstream port's PCI address, `0000:15:00.0`.
    pub address: String,
    /// The address of the switch above, or the host bridge as the kernel names it, `pci0000:15`.
    pub under: String,
    /// The NUMA node it is on, if the machine reports it.
    pub numa: Option<u32>,
    /// Its upstream link.
    pub link: PcieLink,
}

/// A network card that does RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Its RDMA device, `mlx5_0`.
    pub name: String,
    /// Its product as it names itself, `MT4129`; empty if not known.
    pub model: String,
    /// Its firmware's version; empty if not known.
    pub firmware: String,
    /// Its PCI address; empty if it is no card (soft-RoCE).
    pub pci: String,
    /// The switch or host bridge above it; see [`PcieSwitch`]. Empty if not known.
    pub under: String,
    /// The NUMA node it is on, if the machine reports it.
    pub numa: Option<u32>,
    /// Its PCIe link.
    pub link: PcieLink,
    /// Its network interfaces, `ib0` or `ens3np0`.
    pub netdevs: Vec<String>,
    /// Its ports, by number.
    pub ports: Vec<CardPort>,
}

impl Nic {
    /// The total bandwidth of its ports that are up: a gigabit is an eighth of a gigabyte.
    pub fn bandwidth(&self) -> Bandwidth {
        let up = self.ports.iter().filter(|port| port.is_up());
        Bandwidth(up.fold(0, |sum: u32, port| {
            sum.saturating_add(port.gbits.saturating_mul(125))
        }))
    }
}

/// A port of a network card, in the kernel's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardPort {
    /// Its number, from 1.
    pub number: u32,
    /// `ACTIVE`, `INIT`, `ARMED`, `DOWN`; empty if not known.
    pub state: String,
    /// `LinkUp`, `Polling`, `Disabled`; empty if not known.
    pub physical: String,
    /// `InfiniBand` or `Ethernet`; empty if not known.
    pub layer: String,
    /// Its rate, gigabits a second; 0 if not known.
    pub gbits: u32,
}

impl CardPort {
    /// Whether traffic can go through it.
    pub fn is_up(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// The bandwidth between two sockets of a processor, by the vendor, family and model in
/// `/proc/cpuinfo`: NCCL's figures. `None` for an unknown processor.
pub fn between_sockets(vendor: &str, family: u32, model: u32) -> Option<Bandwidth> {
    let megabytes = match (vendor, family, model) {
        ("AuthenticAMD" | "HygonGenuine", _, _) => 16_000,
        // Emerald Rapids is Sapphire Rapids' successor in the same socket.
        ("GenuineIntel", 6, 0x8f | 0xcf) => 22_000,
        // Skylake, Cascade Lake and Cooper Lake; Ice Lake has the same links, and more of them.
        ("GenuineIntel", 6, 0x55 | 0x6a) => 10_000,
        ("GenuineIntel", 6, 0x4f) => 6_000,
        _ => return None,
    };
    Some(Bandwidth(megabytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(generation: u32, width: u32, max_generation: u32, max_width: u32) -> PcieLink {
        PcieLink {
            generation,
            width,
            max_generation,
            max_width,
        }
    }

    #[test]
    fn sixteen_lanes_carry_what_the_generation_says() {
        for (generation, megabytes) in [(3, 12_000), (4, 24_000), (5, 48_000), (6, 96_000)] {
            let full = link(generation, 16, generation, 16);
            assert_eq!(full.bandwidth(), Some(Bandwidth(megabytes)));
        }
    }

    #[test]
    fn an_idle_link_is_as_good_as_a_busy_one_and_a_narrow_one_is_not() {
        assert_eq!(link(1, 16, 5, 16).bandwidth(), Some(Bandwidth(48_000)));
        assert_eq!(link(5, 8, 5, 16).bandwidth(), Some(Bandwidth(24_000)));
        assert_eq!(link(0, 0, 4, 16).bandwidth(), Some(Bandwidth(24_000)));
        assert_eq!(PcieLink::default().bandwidth(), None);
    }

    #[test]
    fn a_port_that_is_down_carries_nothing() {
        let port = |number, state: &str| CardPort {
            number,
            state: state.into(),
            gbits: 400,
            ..CardPort::default()
        };
        let nic = Nic {
            ports: vec![port(1, "ACTIVE"), port(2, "DOWN")],
            ..Nic::default()
        };
        assert_eq!(nic.bandwidth().to_string(), "50.0 GB/s");
    }

    #[test]
    fn sockets_are_told_by_the_processors_numbers() {
        let known = |vendor, model| between_sockets(vendor, 6, model).map(|it| it.0);
        assert_eq!(known("GenuineIntel", 0x8f), Some(22_000));
        assert_eq!(known("GenuineIntel", 0x55), Some(10_000));
        assert_eq!(known("GenuineIntel", 0x4f), Some(6_000));
        assert_eq!(known("AuthenticAMD", 1), Some(16_000));
        assert_eq!(known("Somebody", 1), None);
    }
}
