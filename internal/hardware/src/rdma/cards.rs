//! Checks of cards, their ports and their positions, against the inventory and the expected
//! machine. Pure.

use std::collections::BTreeMap;

use crate::inventory::{Inventory, LinkKind};
use crate::rdma::{CheckQuestion, FailureSeverity, Near, RdmaCheck, port_name};
use crate::wiring::{CardPort, Nic};

const CARDS: CheckQuestion = CheckQuestion("cards", FailureSeverity::Breaks);
const FIRMWARE: CheckQuestion = CheckQuestion("firmware", FailureSeverity::Setting);
const STATE: CheckQuestion = CheckQuestion("port state", FailureSeverity::Breaks);
/// A port without a GPU near it, while other ports are up.
const STATE_ASIDE: CheckQuestion = CheckQuestion("port state", FailureSeverity::Harms);
/// No port is up at all, and no description expects one: RDMA may be unused here.
const STATE_UNUSED: CheckQuestion = CheckQuestion("port state", FailureSeverity::Setting);
const LAYER: CheckQuestion = CheckQuestion("link layer", FailureSeverity::Setting);
const RATE: CheckQuestion = CheckQuestion("rate", FailureSeverity::Harms);
const PCIE: CheckQuestion = CheckQuestion("PCIe link", FailureSeverity::Harms);
const PAIRING: CheckQuestion = CheckQuestion("GPU to card", FailureSeverity::Setting);

/// The remedy for a missing expectation.
const WRITE_DOWN: &str = "write a good machine down with --save-machine, and give that as --expect";

/// All checks of cards.
pub fn all(found: &Inventory, expected: Option<&Inventory>, near: &Near) -> Vec<RdmaCheck> {
    let mut checks = vec![cards(found, expected)];
    for (at, nic) in found.nics.iter().enumerate() {
        let card = ComparedCard {
            found,
            near,
            at,
            expected: expected.and_then(|expected| same(expected, nic)),
            described: expected.is_some(),
        };
        if !nic.pci.is_empty() {
            checks.push(card.firmware(nic));
            checks.push(pcie(nic));
        }
        for port in &nic.ports {
            checks.push(card.state(nic, port));
            if port.is_up() {
                checks.push(card.layer(nic, port));
                checks.push(card.rate(nic, port));
            }
        }
    }
    checks.extend(pairing(found, near));
    checks
}

/// The same card in another inventory of the machine, or of a machine of the same kind.
fn same<'a>(among: &'a Inventory, nic: &Nic) -> Option<&'a Nic> {
    let by_address = |it: &&Nic| !nic.pci.is_empty() && it.pci == nic.pci;
    let mut all = among.nics.iter();
    all.find(by_address)
        .or_else(|| among.nics.iter().find(|it| it.name == nic.name))
}

fn cards(found: &Inventory, expected: Option<&Inventory>) -> RdmaCheck {
    let Some(expected) = expected else {
        let found = format!(
            "{} found; the expected number is not given",
            found.nics.len()
        );
        return CARDS.unknown("", found, WRITE_DOWN);
    };
    let missing: Vec<&str> = (expected.nics.iter())
        .filter(|nic| same(found, nic).is_none())
        .map(|nic| nic.name.as_str())
        .collect();
    let count = format!(
        "{} of {}",
        expected.nics.len() - missing.len(),
        expected.nics.len()
    );
    if missing.is_empty() {
        return CARDS.pass("", format!("{count} that are expected"));
    }
    CARDS.fail(
        "",
        format!("{count} that are expected: {} missing", missing.join(", ")),
        "look whether lspci lists it and its driver is loaded (modprobe mlx5_ib); if not, restart \
         the machine, and then have the card exchanged",
    )
}

/// A card, the others of its model, and its expected properties.
struct ComparedCard<'a> {
    found: &'a Inventory,
    near: &'a Near,
    /// The card's place in the inventory.
    at: usize,
    expected: Option<&'a Nic>,
    /// Whether a description states the expected properties.
    described: bool,
}

impl ComparedCard<'_> {
    /// Other cards of the model at the same distance to GPUs: cards for GPUs and cards for storage
    /// often have the same model and differ in their settings.
    fn others(&self) -> impl Iterator<Item = &Nic> {
        let (nics, near) = (&self.found.nics, self.near);
        let paired = near.paired(self.at);
        let alike = move |(at, nic): &(usize, &Nic)| {
            *at != self.at && nic.model == nics[self.at].model && near.paired(*at) == paired
        };
        nics.iter().enumerate().filter(alike).map(|(_, nic)| nic)
    }

    fn expected_port(&self, port: &CardPort) -> Option<&CardPort> {
        let mut ports = self.expected?.ports.iter();
        ports.find(|it| it.number == port.number)
    }

    fn firmware(&self, nic: &Nic) -> RdmaCheck {
        if nic.firmware.is_empty() {
            let advice = "look at it with ethtool -i or mlxfwmanager";
            return FIRMWARE.unknown(&nic.name, "it does not say", advice);
        }
        let wanted = match self.expected {
            Some(expected) => Some(expected.firmware.clone()),
            None => most(self.others().chain([nic]).map(|it| it.firmware.clone()))
                .filter(|_| self.others().next().is_some()),
        };
        match wanted.filter(|wanted| !wanted.is_empty()) {
            None => {
                let found = format!("{}; the expected one is not given", nic.firmware);
                FIRMWARE.unknown(&nic.name, found, WRITE_DOWN)
            }
            Some(wanted) if wanted == nic.firmware => FIRMWARE.pass(&nic.name, wanted),
            Some(wanted) => FIRMWARE.fail(
                &nic.name,
                format!("{} in the place of {wanted}", nic.firmware),
                "bring all cards of a model to one version (mlxfwmanager), then restart the machine",
            ),
        }
    }

    fn state(&self, nic: &Nic, port: &CardPort) -> RdmaCheck {
        let place = port_name(nic, port);
        let word = |text: &str| if text.is_empty() { "unknown" } else { text }.to_owned();
        let found = format!("{}, {}", word(&port.state), word(&port.physical));
        if port.state.is_empty() {
            let advice = "look at it with ibstat or rdma link";
            return STATE.unknown(&place, found, advice);
        }
        if port.is_up() && ["", "LinkUp"].contains(&port.physical.as_str()) {
            return STATE.pass(&place, found);
        }
        if self.described {
            return match self.expected_port(port) {
                Some(expected) if expected.is_up() => STATE.fail(&place, found, remedy(port)),
                _ => STATE.pass(&place, format!("{found}; it is not expected to be up")),
            };
        }
        let all_down = !self
            .found
            .nics
            .iter()
            .flat_map(|nic| &nic.ports)
            .any(CardPort::is_up);
        let ups: Vec<bool> = (self.others().chain([nic]))
            .flat_map(|nic| &nic.ports)
            .map(CardPort::is_up)
            .collect();
        let up = ups.iter().filter(|up| **up).count();
        if !all_down && up * 2 <= ups.len() {
            let found =
                format!("{found}, like as many others of its kind; the ports in use are not given");
            return STATE.unknown(&place, found, WRITE_DOWN);
        }
        let question = match (all_down, self.near.paired(self.at)) {
            (true, _) => STATE_UNUSED,
            (false, true) => STATE,
            (false, false) => STATE_ASIDE,
        };
        question.fail(&place, found, remedy(port))
    }

    fn layer(&self, nic: &Nic, port: &CardPort) -> RdmaCheck {
        let place = port_name(nic, port);
        if port.layer.is_empty() {
            let advice = "look at it with ibstat";
            return LAYER.unknown(&place, "it does not say", advice);
        }
        let wanted = match self.expected_port(port) {
            Some(expected) => Some(expected.layer.clone()),
            None => most(self.ports(nic).map(|port| port.layer.clone())),
        };
        match wanted.filter(|wanted| !wanted.is_empty() && *wanted != port.layer) {
            None => LAYER.pass(&place, port.layer.clone()),
            Some(wanted) => LAYER.fail(
                &place,
                format!("{} in the place of {wanted}", port.layer),
                "set the port's type (mlxconfig -d CARD set LINK_TYPE_P1=1 for InfiniBand, 2 for \
                 Ethernet), then restart the machine",
            ),
        }
    }

    fn rate(&self, nic: &Nic, port: &CardPort) -> RdmaCheck {
        let place = port_name(nic, port);
        if port.gbits == 0 {
            let advice = "look at it with ibstat or ethtool";
            return RATE.unknown(&place, "it does not say", advice);
        }
        let wanted = match self.expected_port(port) {
            Some(expected) => expected.gbits,
            None => {
                let alike = |it: &&CardPort| it.is_up() && it.layer == port.layer;
                let card = self.ports(nic).filter(alike).map(|it| it.gbits);
                card.max().unwrap_or(0)
            }
        };
        let known = self.expected_port(port).is_some() || self.others().next().is_some();
        if port.gbits < wanted {
            return RATE.fail(
                &place,
                format!("{} Gb/s in the place of {wanted}", port.gbits),
                "the link has lost lanes or came up slower: seat or exchange cable and transceiver, \
                 and look at the switch's port (mlxlink -d CARD)",
            );
        }
        let found = format!("{} Gb/s", port.gbits);
        if known {
            RATE.pass(&place, found)
        } else {
            let found = format!("{found}; the expected one is not given");
            RATE.unknown(&place, found, WRITE_DOWN)
        }
    }

    /// The ports of a card and of the others of its model.
    fn ports<'b>(&'b self, nic: &'b Nic) -> impl Iterator<Item = &'b CardPort> {
        self.others().chain([nic]).flat_map(|nic| &nic.ports)
    }
}

/// The most frequent value; of several the last in order.
fn most(values: impl Iterator<Item = String>) -> Option<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for value in values.filter(|value| !value.is_empty()) {
        *counts.entry(value).or_default() += 1;
    }
    let all = counts.into_iter().map(|(value, count)| (count, value));
    all.max().map(|(_, value)| value)
}

/// The remedy for a port that isn't up.
fn remedy(port: &CardPort) -> &'static str {
    let infiniband = port.layer == "InfiniBand";
    match (port.state.as_str(), port.physical.as_str()) {
        ("INIT" | "ARMED", _) if infiniband => {
            "its link is up, and no subnet manager has set it up: look at the fabric's (sminfo), or \
             start opensm"
        }
        (_, "Disabled") if infiniband => "it was switched off: switch it on (ibportstate)",
        (_, "Disabled") => {
            "its interface is down or has no carrier: ip link set INTERFACE up, then look at cable \
             and switch"
        }
        (_, "Polling") => "nothing answers at the other end: look at cable, transceiver and switch",
        _ => "look at its interface (ip link), cable, transceiver and the switch's port",
    }
}

fn pcie(nic: &Nic) -> RdmaCheck {
    let link = nic.link;
    if link.generation == 0 || link.width == 0 || link.max_generation == 0 || link.max_width == 0 {
        let advice = "look at it with lspci -vv (LnkSta, LnkCap)";
        return PCIE.unknown(&nic.name, "the kernel does not say", advice);
    }
    let found = format!("generation {}, {} lanes", link.generation, link.width);
    if link.generation >= link.max_generation && link.width >= link.max_width {
        return PCIE.pass(&nic.name, found);
    }
    PCIE.fail(
        &nic.name,
        format!(
            "{found}, where card and slot can do generation {}, {} lanes",
            link.max_generation, link.max_width
        ),
        "reseat the card and its riser, and look at the slot's settings in the firmware",
    )
}

/// The distance between each GPU and its nearest card.
fn pairing(found: &Inventory, near: &Near) -> Vec<RdmaCheck> {
    if found.nics.is_empty() {
        return Vec::new();
    }
    let close = |kind: LinkKind| kind <= LinkKind::Pxb;
    let any = near.gpus.iter().flatten().any(|(kind, _)| close(*kind));
    let of_gpu = |(gpu, nearest): (&crate::Gpu, &Option<(LinkKind, Vec<usize>)>)| {
        let place = format!("GPU {}", gpu.index);
        let Some((kind, nics)) = nearest.as_ref().filter(|_| !gpu.under.is_empty()) else {
            let advice = "look at nvidia-smi topo -m";
            return PAIRING.unknown(&place, "where it hangs is not known", advice);
        };
        let names: Vec<&str> = nics
            .iter()
            .map(|nic| found.nics[*nic].name.as_str())
            .collect();
        let pairing = format!("{} to {}", kind.as_str(), names.join(", "));
        match (close(*kind), any) {
            (true, _) => PAIRING.pass(&place, pairing),
            (false, true) => PAIRING.fail(
                &place,
                format!("{pairing}, where other GPUs have a card under their switch"),
                "check whether its card is missing, or is in another slot than in machines like this",
            ),
            (false, false) => PAIRING.unknown(
                &place,
                format!("{pairing}; no GPU has one under its switch"),
                "if the machine is not built so: move cards to slots under the GPUs' switches",
            ),
        }
    };
    found.gpus.iter().zip(&near.gpus).map(of_gpu).collect()
}
