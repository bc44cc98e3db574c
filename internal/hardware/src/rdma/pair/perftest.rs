//! The tests of perftest (`ib_write_bw`, `ib_write_lat`): their arguments, their output, and its evaluation.

use std::net::IpAddr;

use super::compare::place;
use super::{EndPort, Test, TestRun};
use crate::rdma::{CheckQuestion, FailureSeverity, RdmaCheck};

const BANDWIDTH: CheckQuestion = CheckQuestion("bandwidth", FailureSeverity::Harms);
const LATENCY: CheckQuestion = CheckQuestion("latency", FailureSeverity::Harms);

/// The least acceptable part of a port's bandwidth, in hundredths: RoCE's headers take 7 of each 100 bytes of
/// 1024-byte packets, and one connection should fill the rest.
const LEAST: f64 = 80.0;
/// The largest acceptable latency of a rail, as a multiple of the pair's fastest.
const SLOWER: f64 = 2.0;

/// The program of a test, and its arguments: to listen at a TCP port, or to run the test against the server there.
pub fn arguments(
    run: &TestRun,
    gid: Option<u32>,
    tcp: u16,
    to: Option<IpAddr>,
) -> (&'static str, Vec<String>) {
    let (program, own): (_, &[&str]) = match run.test {
        // Three seconds, of which the middle one counts: enough for 400 Gb/s and for soft-RoCE.
        Test::Bandwidth => (
            "ib_write_bw",
            &["--report_gbits", "--duration=3", "--margin=1"],
        ),
        Test::Latency => ("ib_write_lat", &["--iters=1000"]),
    };
    let mut words: Vec<String> = own.iter().map(ToString::to_string).collect();
    words.push(format!("--ib-dev={}", run.card));
    words.push(format!("--ib-port={}", run.port));
    words.push(format!("--port={tcp}"));
    // Changing clock rates must not abort the test.
    words.push("--CPU-freq".to_owned());
    words.extend(gid.map(|gid| format!("--gid-index={gid}")));
    words.extend(to.map(|to| to.to_string()));
    (program, words)
}

/// The result in a test's output: gigabits a second, or the typical time in microseconds. It is in the last line that
/// begins with a size in bytes: size, iterations, peak and average; or size, iterations, minimum, maximum and
/// typical.
pub fn read(test: Test, printed: &str) -> Option<f64> {
    let column = match test {
        Test::Bandwidth => 3,
        Test::Latency => 4,
    };
    let rows = printed.lines().rev().filter_map(|line| {
        let numbers: Option<Vec<f64>> = (line.split_whitespace())
            .map(|word| word.parse().ok())
            .collect();
        numbers.filter(|numbers| numbers.len() > column)
    });
    let mut results = rows.map(|numbers| numbers[column]);
    results.next().filter(|result| result.is_finite())
}

/// Gigabits a second of payload that a port carries, if its rate is known.
fn carries(port: &EndPort) -> Option<f64> {
    // Up to QDR, InfiniBand encodes eight bits as ten.
    let coded = port.layer == "InfiniBand" && [10, 20, 40].contains(&port.gbits);
    let rate = f64::from(port.gbits) * if coded { 0.8 } else { 1.0 };
    let rate = (port.gbits > 0 && !port.soft).then_some(rate)?;
    Some(port.pcie_gbits.map_or(rate, |pcie| rate.min(pcie.into())))
}

/// Checks the measured bandwidth from one port to another.
pub fn check_bandwidth(from: (&str, &EndPort), to: (&str, &EndPort), gbits: f64) -> RdmaCheck {
    let place = format!("{} from {} to {}", place(from.1, to.1), from.0, to.0);
    if from.1.soft || to.1.soft {
        let found = format!("{gbits:.2} Gb/s; soft-RoCE has no rate to compare it with");
        let advice = "compare it with what the interface carries by TCP";
        return BANDWIDTH.unknown(&place, found, advice);
    }
    let Some(most) = carries(from.1).zip(carries(to.1)) else {
        let found = format!("{gbits:.1} Gb/s; a port does not say its rate");
        return BANDWIDTH.unknown(&place, found, "look at it with ibstat or ethtool");
    };
    let most = most.0.min(most.1);
    let share = gbits / most * 100.0;
    let found = format!("{gbits:.1} Gb/s, {share:.0}% of the {most:.0} that the ports carry");
    if share >= LEAST {
        return BANDWIDTH.pass(&place, found);
    }
    BANDWIDTH.fail(
        &place,
        found,
        "look at the PCIe links and counters of both cards (muster doctor), at PFC and ECN, and at the \
         switch's ports between; measure again when nothing else uses them",
    )
}

/// Checks the latencies of small writes on all rails of a pair, in microseconds: each against the fastest. A single
/// rail has no comparison.
pub fn check_latencies(rails: &[(&EndPort, &EndPort, f64)]) -> Vec<RdmaCheck> {
    let fastest = rails.iter().map(|(.., micros)| *micros);
    let fastest = fastest.fold(f64::INFINITY, f64::min);
    let judge = |(one, other, micros): &(&EndPort, &EndPort, f64)| {
        let place = place(one, other);
        let found = format!("{micros:.2} us one way");
        if rails.len() < 2 {
            let found = format!("{found}; there is no other rail to compare it with");
            let advice = "within a rack a card takes some 1 to 3 us, each switch less than 1";
            return LATENCY.unknown(&place, found, advice);
        }
        if *micros <= fastest * SLOWER {
            return LATENCY.pass(&place, found);
        }
        LATENCY.fail(
            &place,
            format!("{found}, and {fastest:.2} on the fastest rail"),
            "look whether its switches are congested, and at the cards' PCIe links and IOMMU",
        )
    };
    rails.iter().map(judge).collect()
}

/// A test without a result, and the reason.
pub fn unmeasured(
    test: Test,
    from: (&str, &EndPort),
    to: (&str, &EndPort),
    why: &str,
) -> RdmaCheck {
    let question = match test {
        Test::Bandwidth => BANDWIDTH,
        Test::Latency => LATENCY,
    };
    let place = format!("{} from {} to {}", place(from.1, to.1), from.0, to.0);
    // Messages put the fault first, then the remedy.
    let (found, advice) = why.split_once("; ").unwrap_or((
        why,
        "look whether the nodes reach each other by TCP, and at muster doctor on both",
    ));
    question.unknown(&place, found, advice)
}
