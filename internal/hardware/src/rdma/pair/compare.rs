//! The properties that two ends of a pair must share.

use std::fmt::Display;

use super::{EndPort, PairEnd, rails};
use crate::rdma::{CheckQuestion, FailureSeverity, RdmaCheck};

const PORTS: CheckQuestion = CheckQuestion("ports", FailureSeverity::Setting);
const DRIVER: CheckQuestion = CheckQuestion("driver", FailureSeverity::Setting);
const LAYER: CheckQuestion = CheckQuestion("link layer", FailureSeverity::Setting);
const RATE: CheckQuestion = CheckQuestion("rate", FailureSeverity::Setting);
const FIRMWARE: CheckQuestion = CheckQuestion("firmware", FailureSeverity::Setting);
const MTU: CheckQuestion = CheckQuestion("MTU", FailureSeverity::Setting);
const GID: CheckQuestion = CheckQuestion("GID index", FailureSeverity::Setting);
const NETWORK: CheckQuestion = CheckQuestion("network", FailureSeverity::Setting);

/// Compares two machines' ends: an equal value passes, a different one fails, and a value that one end does not
/// report is unknown.
pub fn compare(here: (&str, &PairEnd), there: (&str, &PairEnd)) -> Vec<RdmaCheck> {
    let names = [here.0, there.0];
    let (one, other) = (here.1, there.1);
    let machine = Pair { names, place: "" };
    let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let count = |end: &PairEnd| match end.ports.len() {
        0 => None,
        count => Some(format!("{count} that work uses")),
    };
    let mut checks = vec![
        machine.alike(
            PORTS,
            [count(one), count(other)],
            "look at muster doctor on the node that has fewer",
        ),
        machine.alike(
            DRIVER,
            [known(&one.driver), known(&other.driver)],
            "bring both nodes to one version",
        ),
    ];
    for (at, of) in rails(one, other) {
        let (port, its) = (&one.ports[at], &other.ports[of]);
        checks.extend(rail(names, port, its));
    }
    checks
}

/// The properties that two ports must share.
fn rail(names: [&str; 2], one: &EndPort, other: &EndPort) -> Vec<RdmaCheck> {
    let place = place(one, other);
    let pair = Pair {
        names,
        place: &place,
    };
    let word = |of: fn(&EndPort) -> &String| {
        [one, other].map(|port| Some(of(port).clone()).filter(|text| !text.is_empty()))
    };
    let gbits = |port: &EndPort| (port.gbits > 0).then(|| format!("{} Gb/s", port.gbits));
    let mut checks = vec![
        pair.alike(
            LAYER,
            word(|port| &port.layer),
            "set both ports to one type; ports of two types cannot communicate",
        ),
        pair.alike(
            RATE,
            [one, other].map(gbits),
            "look at cable, transceiver and the switch's port of the slower one",
        ),
    ];
    if one.model == other.model && !one.soft && !other.soft {
        checks.push(pair.alike(
            FIRMWARE,
            word(|port| &port.firmware),
            "bring all cards of a model to one version (mlxfwmanager)",
        ));
    }
    let routed = |port: &EndPort| port.layer == "Ethernet";
    if routed(one) && routed(other) {
        let size = |port: &EndPort| port.mtu.map(|size| format!("RoCE packets of {size}"));
        checks.push(pair.alike(
            MTU,
            [one, other].map(size),
            "set one MTU on both interfaces and on all ports between (ip link set INTERFACE mtu 9000)",
        ));
        checks.push(pair.alike(
            GID,
            [one, other].map(|port| port.gid),
            "a job takes one index for all nodes: give both interfaces their addresses in the same order",
        ));
    }
    checks.push(network(&pair, one, other));
    checks
}

/// Different InfiniBand subnets do not reach each other; different RoCE networks may, through a router.
fn network(pair: &Pair<'_>, one: &EndPort, other: &EndPort) -> RdmaCheck {
    let networks = [one, other].map(|port| port.network.clone());
    let advice = "look whether both are cabled to the same fabric";
    let check = pair.alike(NETWORK, networks, advice);
    if one.layer == "Ethernet" && check.answer == crate::rdma::CheckOutcome::Fail {
        let advice = "keep this if a router joins them; else give both addresses of one network";
        return NETWORK.unknown(pair.place, check.found, advice);
    }
    check
}

/// The name of a pair of ports: one name if both share it.
pub(super) fn place(one: &EndPort, other: &EndPort) -> String {
    match (one.name(), other.name()) {
        (one, other) if one == other => one,
        (one, other) => format!("{one} and {other}"),
    }
}

/// Two nodes and the place of a check.
struct Pair<'a> {
    names: [&'a str; 2],
    place: &'a str,
}

impl Pair<'_> {
    fn alike<T: Display + PartialEq>(
        &self,
        question: CheckQuestion,
        values: [Option<T>; 2],
        advice: &str,
    ) -> RdmaCheck {
        let word = |value: &Option<T>| match value {
            Some(value) => value.to_string(),
            None => "unknown".to_owned(),
        };
        let [one, other] = &values;
        let differ = format!(
            "{}: {}, {}: {}",
            self.names[0],
            word(one),
            self.names[1],
            word(other)
        );
        match (one, other) {
            (Some(one), Some(other)) if one == other => {
                question.pass(self.place, format!("{one} on both"))
            }
            (Some(_), Some(_)) => question.fail(self.place, differ, advice),
            _ => {
                let advice = "run muster doctor on the node without the value";
                question.unknown(self.place, differ, advice)
            }
        }
    }
}
