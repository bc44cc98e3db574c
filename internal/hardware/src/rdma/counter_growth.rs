//! The growth between two readings of port counters that should stand still. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ports::PortReading;
use crate::rdma::{CheckQuestion, FailureSeverity, RdmaCheck};

/// The least time between two readings: over less, a rate means nothing.
pub const LEAST: Duration = Duration::from_secs(1);

/// A counter that should stand still: its name in [`crate::ports::COUNTERS`], the growth per
/// minute that is harmless, and the meaning of more.
///
/// 120 symbol errors an hour are within InfiniBand's bit error rate of 10^-12. Packets out of
/// order and slow restarts come with every burst and with adaptive routing; a sustained rate of
/// ten a second does not.
const STILL: [(&str, u64, &str); 4] = [
    (
        "link_downed",
        0,
        "the link goes down now and then: exchange cable or transceiver, then the port's other end",
    ),
    (
        "symbol_errors",
        2,
        "the link damages data: clean or exchange cable or transceiver",
    ),
    (
        "out_of_sequence",
        600,
        "packets get lost: look at the switch's drops, and at PFC and ECN on both ends",
    ),
    (
        "roce_slow_restarts",
        600,
        "the network is congested or loses packets: look at PFC and ECN on both ends and the switch",
    ),
];

const COUNTERS: CheckQuestion = CheckQuestion("counters", FailureSeverity::Harms);

/// The counters of ports, by card and port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters(BTreeMap<String, BTreeMap<&'static str, u64>>);

impl PortCounters {
    /// The counters in these readings.
    pub fn of(ports: &[PortReading]) -> PortCounters {
        let still = |name: &str| STILL.iter().any(|(still, ..)| *still == name);
        let counts = |port: &PortReading| {
            let all = port.counters.iter();
            let all = all.map(|((_, name, _), value)| (*name, *value));
            all.filter(|(name, _)| still(name)).collect()
        };
        let name = |port: &PortReading| format!("{}/{}", port.device, port.port.number);
        PortCounters(
            ports
                .iter()
                .map(|port| (name(port), counts(port)))
                .collect(),
        )
    }
}

/// The checks of the growth between two readings at this distance.
pub fn growth(before: &PortCounters, now: &PortCounters, apart: Duration) -> Vec<RdmaCheck> {
    let minutes = apart.as_secs().div_ceil(60).max(1);
    let mut checks = Vec::new();
    for (port, counts) in &now.0 {
        let old = before.0.get(port);
        if counts.is_empty() || old.is_none_or(BTreeMap::is_empty) {
            let advice = "perfquery or the card's own tools may count";
            checks.push(COUNTERS.unknown(port, "the port counts nothing that is known", advice));
            continue;
        }
        let mut failed = false;
        for (name, allowed, meaning) in STILL {
            let was = old.and_then(|old| old.get(name));
            let (Some(was), Some(is)) = (was, counts.get(name)) else {
                continue;
            };
            // A counter with a smaller value was reset.
            let grown = is.saturating_sub(*was);
            if grown > allowed * minutes {
                let found = format!("{name} grew by {grown} in {} s", apart.as_secs());
                checks.push(COUNTERS.fail(port, found, meaning));
                failed = true;
            }
        }
        if !failed {
            let names: Vec<&str> = counts.keys().copied().collect();
            let found = format!("still for {} s: {}", apart.as_secs(), names.join(", "));
            checks.push(COUNTERS.pass(port, found));
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rdma::CheckOutcome;

    fn counted(values: &[(&'static str, u64)]) -> PortCounters {
        PortCounters([("mlx5_0/1".to_owned(), values.iter().copied().collect())].into())
    }

    #[test]
    fn each_counter_has_its_own_measure() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        for (name, grown, apart, answer) in [
            ("link_downed", 0, second, CheckOutcome::Pass),
            ("link_downed", 1, hour, CheckOutcome::Fail),
            ("symbol_errors", 2, second, CheckOutcome::Pass),
            ("symbol_errors", 3, second, CheckOutcome::Fail),
            ("symbol_errors", 120, hour, CheckOutcome::Pass),
            ("symbol_errors", 121, hour, CheckOutcome::Fail),
            ("out_of_sequence", 600, second, CheckOutcome::Pass),
            ("out_of_sequence", 601, second, CheckOutcome::Fail),
            ("roce_slow_restarts", 601, second, CheckOutcome::Fail),
        ] {
            let (before, now) = (counted(&[(name, 7)]), counted(&[(name, 7 + grown)]));
            let checks = growth(&before, &now, apart);
            let [check] = &checks[..] else {
                panic!("{checks:?}")
            };
            assert_eq!(check.answer, answer, "{check:?}");
            assert_eq!(check.advice.is_empty(), answer == CheckOutcome::Pass);
        }
    }

    #[test]
    fn a_port_that_counts_nothing_is_unknown_and_one_that_is_gone_is_not_asked() {
        let none = counted(&[]);
        let answers =
            |checks: Vec<RdmaCheck>| checks.iter().map(|it| it.answer).collect::<Vec<_>>();
        assert_eq!(
            answers(growth(&none, &none, LEAST)),
            [CheckOutcome::Unknown]
        );
        let some = counted(&[("link_downed", 1)]);
        assert_eq!(
            answers(growth(&PortCounters::default(), &some, LEAST)),
            [CheckOutcome::Unknown]
        );
        assert!(growth(&some, &PortCounters::default(), LEAST).is_empty());
    }

    proptest! {
        #[test]
        fn growth_is_what_counts_whatever_was_counted_before(
            base in 0..u64::MAX / 2, other in 0..u64::MAX / 2, grown in 0..2000_u64, seconds in 1..7200_u64,
        ) {
            let apart = Duration::from_secs(seconds);
            let answers = |base: u64| -> Vec<(CheckOutcome, String)> {
                let all = |more: u64| counted(&STILL.map(|(name, ..)| (name, base + more)));
                let checks = growth(&all(0), &all(grown), apart);
                checks.into_iter().map(|check| (check.answer, check.found)).collect()
            };
            prop_assert_eq!(answers(base), answers(other));
        }
    }
}
