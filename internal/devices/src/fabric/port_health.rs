//! Judges the results of a node's RDMA checks. Pure.
//!
//! A node is unfit for gangs on several nodes if a card or port differs from an administrator's
//! description, if a card or port that was present and up is not any more, or if a port beside a
//! GPU is down and most ports like it are up: work across machines would hang or fail there. If
//! something became worse (lanes, rates, growing counters), the node is suspect: it works, and
//! other nodes are better. The machine's setup is reported in its log and in `muster doctor`'s
//! table only: it is the same on all machines of its kind, and marking all of them suspect says
//! nothing. Work that already runs there continues: NCCL retries for a while, and a link that comes
//! back in time saves the work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hardware::Inventory;
use hardware::rdma::{CheckOutcome, FailureSeverity, RdmaCheck};
use tokio::time::Instant;

/// How long a passed sign is reported, so that a node's condition doesn't flap.
const LATELY: Duration = Duration::from_secs(600);

/// Remembers the cards and ports seen.
#[derive(Debug, Default)]
pub struct FabricJudge {
    /// Cards that were present, and ports that were up.
    cards: BTreeSet<String>,
    up: BTreeSet<String>,
    /// Signs of degradation, by the check and its place, with the time each was seen last.
    lately: BTreeMap<(String, &'static str), (String, Instant)>,
}

impl FabricJudge {
    /// Adds the problems of a machine with these check results to its inventory.
    pub fn assess(&mut self, found: &mut Inventory, checks: &[RdmaCheck], now: Instant) {
        let failed = || {
            checks
                .iter()
                .filter(|check| check.answer == CheckOutcome::Fail)
        };
        let mut out: Vec<String> = (failed())
            .filter(|check| check.weight == FailureSeverity::Breaks)
            .map(RdmaCheck::sentence)
            .collect();
        out.extend(self.missed(found, checks));
        for check in failed().filter(|check| check.weight == FailureSeverity::Harms) {
            let key = (check.place.clone(), check.name);
            self.lately.insert(key, (check.sentence(), now));
        }
        (self.lately).retain(|_, (_, at)| now.duration_since(*at) < LATELY);
        (found.concerns).extend(self.lately.values().map(|(concern, _)| concern.clone()));
        found.fabric = match &out[..] {
            [] => String::new(),
            [one] => one.clone(),
            [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
        };
    }

    /// Cards and ports that are missing, except those already reported.
    fn missed(&mut self, found: &Inventory, checks: &[RdmaCheck]) -> Vec<String> {
        let cards: BTreeSet<String> = found.nics.iter().map(|nic| nic.name.clone()).collect();
        let mut up = BTreeSet::new();
        for nic in &found.nics {
            let ports = nic.ports.iter().filter(|port| port.is_up());
            up.extend(ports.map(|port| format!("{}/{}", nic.name, port.number)));
        }
        let fails = |place: &str| {
            let breaks = |it: &&RdmaCheck| {
                it.answer == CheckOutcome::Fail && it.weight == FailureSeverity::Breaks
            };
            checks
                .iter()
                .filter(breaks)
                .any(|check| check.place == place)
        };
        let known = |place: &String| {
            let (card, _) = place.split_once('/').unwrap_or((place, ""));
            cards.contains(card)
        };
        let mut concerns: Vec<String> = (self.cards.difference(&cards))
            .map(|card| {
                format!("{card}: it was there and is gone; look at dmesg, restart the machine")
            })
            .collect();
        let down = self
            .up
            .difference(&up)
            .filter(|place| known(place) && !fails(place));
        concerns.extend(down.map(|place| {
            let how = checks
                .iter()
                .find(|it| it.name == "port state" && it.place == **place);
            let how = how.map_or("", |check| check.found.as_str());
            format!(
                "{place}: port state: {how}, and it was up; look at cable, switch and interface"
            )
        }));
        self.cards.extend(cards);
        self.up.extend(up);
        concerns
    }
}

#[cfg(test)]
mod tests {
    use hardware::rdma::examine;
    use hardware::{CardPort, Gpu, Nic, PcieLink};
    use proptest::prelude::*;

    use super::*;

    /// A machine with a card of one port for each of these states; GPUs are under the first `paired`.
    fn machine(states: &[&str], paired: usize) -> Inventory {
        let link = PcieLink {
            generation: 5,
            width: 16,
            max_generation: 5,
            max_width: 16,
        };
        let switch = |at: usize| hardware::PcieSwitch {
            address: format!("switch-{at}"),
            under: format!("pci0000:{at}"),
            ..hardware::PcieSwitch::default()
        };
        let nic = |(at, state): (usize, &&str)| Nic {
            name: format!("mlx5_{at}"),
            pci: format!("0000:0{at}:00.0"),
            under: format!("switch-{at}"),
            firmware: "1".to_owned(),
            link,
            ports: vec![CardPort {
                number: 1,
                state: (*state).to_owned(),
                layer: "InfiniBand".to_owned(),
                gbits: 400,
                ..CardPort::default()
            }],
            ..Nic::default()
        };
        let gpu = |at: usize| Gpu {
            id: format!("GPU-{at}"),
            under: format!("switch-{at}"),
            ..Gpu::default()
        };
        Inventory {
            switches: (0..states.len()).map(switch).collect(),
            nics: states.iter().enumerate().map(nic).collect(),
            gpus: (0..paired).map(gpu).collect(),
            ..Inventory::default()
        }
    }

    fn judged(judge: &mut FabricJudge, mut found: Inventory, now: Instant) -> Inventory {
        let checks = examine(&found, None, None);
        judge.assess(&mut found, &checks, now);
        found
    }

    const UP: &str = "ACTIVE";
    const DOWN: &str = "DOWN";

    #[test]
    fn a_port_that_was_up_and_is_down_makes_the_node_unfit_until_it_is_up() {
        let (mut judge, now) = (FabricJudge::default(), Instant::now());
        assert_eq!(judged(&mut judge, machine(&[UP], 0), now).fabric, "");
        let down = judged(&mut judge, machine(&[DOWN], 0), now);
        assert!(
            down.fabric.starts_with("mlx5_0/1: port state: DOWN"),
            "{}",
            down.fabric
        );
        assert!(down.fabric.contains("it was up"), "{}", down.fabric);
        assert_eq!(judged(&mut judge, machine(&[UP], 0), now).fabric, "");
        let gone = judged(&mut judge, machine(&[], 0), now).fabric;
        assert!(
            gone.starts_with("mlx5_0: it was there and is gone"),
            "{gone}"
        );
    }

    #[test]
    fn a_port_that_was_never_up_takes_the_node_out_beside_a_gpu_only() {
        for (states, paired, out, suspect) in [
            (&[DOWN, UP, UP][..], 3, true, false),
            (&[DOWN, UP, UP], 0, false, true),
            // As many are down as up: which ports are used is unknown.
            (&[DOWN, UP], 2, false, false),
            // RDMA is not used here.
            (&[DOWN, DOWN], 2, false, false),
        ] {
            let (mut judge, now) = (FabricJudge::default(), Instant::now());
            let found = judged(&mut judge, machine(states, paired), now);
            let problems = (!found.fabric.is_empty(), !found.concerns.is_empty());
            assert_eq!(problems, (out, suspect), "{states:?} {found:?}");
        }
    }

    #[test]
    fn degradation_is_suspect_for_a_while_and_settings_never_are() {
        let (mut judge, now) = (FabricJudge::default(), Instant::now());
        let mut slow = machine(&[UP, UP], 2);
        slow.nics[0].ports[0].gbits = 200;
        slow.nics[1].firmware = "2".to_owned();
        let found = judged(&mut judge, slow, now);
        assert_eq!(found.fabric, "");
        let [one] = &found.concerns[..] else {
            panic!("{:?}", found.concerns)
        };
        assert!(
            one.starts_with("mlx5_0/1: rate: 200 Gb/s in the place of 400"),
            "{one}"
        );
        let again = |judge: &mut FabricJudge, later: Duration| {
            judged(judge, machine(&[UP, UP], 2), now + later)
                .concerns
                .len()
        };
        assert_eq!(again(&mut judge, LATELY / 2), 1);
        assert_eq!(again(&mut judge, LATELY), 0);
    }

    proptest! {
        #[test]
        fn a_node_whose_ports_are_all_as_they_were_at_best_is_never_out(
            before in proptest::collection::vec(any::<bool>(), 1..5), paired in 0..5_usize,
        ) {
            let states = |up: &[bool]| -> Vec<&str> { up.iter().map(|up| if *up { UP } else { DOWN }).collect() };
            let (mut judge, now) = (FabricJudge::default(), Instant::now());
            let all = vec![true; before.len()];
            judged(&mut judge, machine(&states(&before), paired.min(before.len())), now);
            let now_up = judged(&mut judge, machine(&states(&all), paired.min(before.len())), now);
            prop_assert_eq!(now_up.fabric, "");
            // A node that lost any is unfit.
            for lost in 0..all.len() {
                let mut some = all.clone();
                some[lost] = false;
                let out = judged(&mut judge, machine(&states(&some), paired.min(all.len())), now);
                let name = format!("mlx5_{lost}/1");
                prop_assert!(out.fabric.starts_with(&name), "{}", out.fabric);
            }
        }
    }
}
