//! Ends that match and ends that differ, and perftest's output.

use proptest::prelude::*;

use super::*;
use crate::rdma::CheckOutcome;

fn port(card: &str) -> EndPort {
    EndPort {
        card: card.into(),
        number: 1,
        model: "MT4123".into(),
        firmware: "20.1".into(),
        layer: "Ethernet".into(),
        gbits: 200,
        pcie_gbits: Some(192),
        soft: false,
        mtu: Some(4096),
        gid: Some(3),
        network: Some("10.0.0.0/24".into()),
    }
}

fn machine() -> PairEnd {
    PairEnd {
        driver: "kernel 6.1.0".into(),
        ports: vec![port("mlx5_0"), port("mlx5_1")],
        ..PairEnd::default()
    }
}

/// The checks that did not pass, as question, place, answer and found value.
fn faults(one: &PairEnd, other: &PairEnd) -> Vec<(&'static str, String, CheckOutcome, String)> {
    let all = compare(("a", one), ("b", other)).into_iter();
    all.filter(|check| check.answer != CheckOutcome::Pass)
        .map(|check| (check.name, check.place, check.answer, check.found))
        .collect()
}

#[test]
fn ends_that_are_alike_pass_and_each_difference_shows_in_its_check_alone() {
    let good = machine();
    assert_eq!(faults(&good, &good), []);
    assert_eq!(compare(("a", &good), ("b", &good)).len(), 2 + 2 * 6);
    type Case = (
        fn(&mut PairEnd),
        &'static str,
        &'static str,
        CheckOutcome,
        &'static str,
    );
    let cases: [Case; 9] = [
        (
            |end| end.driver = "kernel 6.2.0".into(),
            "driver",
            "",
            CheckOutcome::Fail,
            "a: kernel 6.1.0, b: kernel 6.2.0",
        ),
        (
            |end| end.ports[1].gbits = 100,
            "rate",
            "mlx5_1/1",
            CheckOutcome::Fail,
            "b: 100 Gb/s",
        ),
        (
            |end| end.ports[0].gbits = 0,
            "rate",
            "mlx5_0/1",
            CheckOutcome::Unknown,
            "b: unknown",
        ),
        (
            |end| end.ports[0].mtu = Some(1024),
            "MTU",
            "mlx5_0/1",
            CheckOutcome::Fail,
            "b: RoCE packets of 1024",
        ),
        (
            |end| end.ports[0].gid = Some(1),
            "GID index",
            "mlx5_0/1",
            CheckOutcome::Fail,
            "a: 3, b: 1",
        ),
        (
            |end| end.ports[0].gid = None,
            "GID index",
            "mlx5_0/1",
            CheckOutcome::Unknown,
            "a: 3, b: unknown",
        ),
        (
            |end| end.ports[0].firmware = "20.2".into(),
            "firmware",
            "mlx5_0/1",
            CheckOutcome::Fail,
            "a: 20.1, b: 20.2",
        ),
        // A router may connect them.
        (
            |end| end.ports[0].network = Some("10.0.1.0/24".into()),
            "network",
            "mlx5_0/1",
            CheckOutcome::Unknown,
            "b: 10.0.1.0/24",
        ),
        (
            |end| {
                end.ports.pop();
            },
            "ports",
            "",
            CheckOutcome::Fail,
            "a: 2 that work uses, b: 1 that work uses",
        ),
    ];
    for (change, name, place, answer, words) in cases {
        let mut other = machine();
        change(&mut other);
        let found = faults(&good, &other);
        let [(its, at, said, found)] = &found[..] else {
            panic!("{name}: {found:?}")
        };
        assert_eq!((*its, at.as_str(), *said), (name, place, answer));
        assert!(found.contains(words), "{found}");
    }
}

#[test]
fn infiniband_is_asked_for_its_subnet_and_cards_of_two_models_for_no_one_firmware() {
    let infiniband = |prefix: &str| {
        let mut end = machine();
        end.ports.truncate(1);
        end.ports[0].layer = "InfiniBand".into();
        end.ports[0].network = Some(prefix.into());
        end
    };
    let one = infiniband("fe80:0000:0000:0000");
    let names = |one: &PairEnd, other: &PairEnd| -> Vec<&str> {
        let all = compare(("a", one), ("b", other)).into_iter();
        all.map(|check| check.name).collect()
    };
    let wanted = [
        "ports",
        "driver",
        "link layer",
        "rate",
        "firmware",
        "network",
    ];
    assert_eq!(names(&one, &one), wanted);
    let found = faults(&one, &infiniband("fec0:0000:0000:0001"));
    assert_eq!((found[0].0, found[0].2), ("network", CheckOutcome::Fail));
    let mut other = one.clone();
    other.ports[0].model = "MT4129".into();
    assert!(!names(&one, &other).contains(&"firmware"));
}

#[test]
fn ports_go_together_by_name_or_else_by_place() {
    let named = |names: &[&str]| PairEnd {
        ports: names.iter().map(|name| port(name)).collect(),
        ..PairEnd::default()
    };
    let one = named(&["mlx5_0", "mlx5_1", "mlx5_2"]);
    assert_eq!(rails(&one, &named(&["mlx5_2", "mlx5_0"])), [(0, 1), (2, 0)]);
    assert_eq!(rails(&one, &named(&["bnxt_re0"])), [(0, 0)]);
    assert_eq!(rails(&one, &PairEnd::default()), []);
}

/// Output of `ib_write_bw` and `ib_write_lat` of perftest 4.5.
const BANDWIDTH: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Number of qps   : 1            Transport type : IB
 local address: LID 0000 QPN 0x0011 PSN 0x6c7b11 RKey 0x0003bd VAddr 0x007f5b7f9c4000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1103             0.00               193.35             0.368790
---------------------------------------------------------------------------------------
";
const LATENCY: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.02           7.26         1.08     \t       1.11        \t0.19   \t\t1.41    \t\t7.26
";

#[test]
fn the_result_is_read_from_what_perftest_prints() {
    assert_eq!(read(Test::Bandwidth, BANDWIDTH), Some(193.35));
    assert_eq!(read(Test::Latency, LATENCY), Some(1.08));
    let before = BANDWIDTH.split(" 65536").next().unwrap_or_default();
    assert_eq!(read(Test::Bandwidth, before), None);
    assert_eq!(read(Test::Latency, " 2 1000 1.0 2.0 nan 1 1"), None);
}

#[test]
fn what_goes_across_is_held_against_the_least_of_rates_and_pcie_links() {
    let answer = |change: fn(&mut EndPort), gbits: f64| {
        let mut other = port("mlx5_0");
        change(&mut other);
        check_bandwidth(("a", &port("mlx5_0")), ("b", &other), gbits)
    };
    let same = |_: &mut EndPort| {};
    let good = answer(same, 185.0);
    assert_eq!(
        (good.answer, good.place.as_str()),
        (CheckOutcome::Pass, "mlx5_0/1 from a to b")
    );
    assert!(good.found.contains("96% of the 192"), "{}", good.found);
    assert_eq!(answer(same, 150.0).answer, CheckOutcome::Fail);
    let narrow = |port: &mut EndPort| port.pcie_gbits = Some(96);
    assert_eq!(answer(narrow, 90.0).answer, CheckOutcome::Pass);
    let coded = |port: &mut EndPort| (port.gbits, port.layer) = (40, "InfiniBand".into());
    assert_eq!(answer(coded, 27.0).answer, CheckOutcome::Pass);
    assert_eq!(
        answer(|port| port.soft = true, 0.4).answer,
        CheckOutcome::Unknown
    );
    assert_eq!(
        answer(|port| port.gbits = 0, 90.0).answer,
        CheckOutcome::Unknown
    );
}

#[test]
fn a_rail_is_held_against_the_fastest_and_one_alone_against_none() {
    let (one, other) = (port("mlx5_0"), port("mlx5_1"));
    let of = |times: &[f64]| -> Vec<CheckOutcome> {
        let rails: Vec<_> = times.iter().map(|micros| (&one, &other, *micros)).collect();
        let all = check_latencies(&rails).into_iter();
        all.map(|check| check.answer).collect()
    };
    assert_eq!(of(&[1.2]), [CheckOutcome::Unknown]);
    assert_eq!(
        of(&[1.2, 2.3, 2.5]),
        [CheckOutcome::Pass, CheckOutcome::Pass, CheckOutcome::Fail]
    );
    assert!(of(&[]).is_empty());
}

#[test]
fn tests_are_asked_for_by_port_and_address() {
    let run = TestRun {
        test: Test::Bandwidth,
        card: "mlx5_0".into(),
        port: 1,
        force: false,
    };
    let (program, words) = arguments(&run, Some(3), 18515, None);
    assert_eq!(program, "ib_write_bw");
    for word in [
        "--ib-dev=mlx5_0",
        "--ib-port=1",
        "--port=18515",
        "--gid-index=3",
    ] {
        assert!(words.iter().any(|it| it == word), "{word}: {words:?}");
    }
    let run = TestRun {
        test: Test::Latency,
        ..run
    };
    let to = [10, 0, 0, 2].into();
    let (program, words) = arguments(&run, None, 18515, Some(to));
    assert_eq!(
        (program, words.last().map(String::as_str)),
        ("ib_write_lat", Some("10.0.0.2"))
    );
    assert!(!words.iter().any(|word| word.starts_with("--gid")));
}

proptest! {
    #[test]
    fn nothing_that_is_printed_panics(text in "([0-9. a-zN\t-]{0,40}\n){0,6}") {
        for test in [Test::Bandwidth, Test::Latency] {
            if let Some(result) = read(test, &text) {
                prop_assert!(result.is_finite());
            }
        }
    }

    #[test]
    fn two_ends_are_compared_alike_from_either_side(
        gbits in 0..3_u32, mtu in proptest::option::of(256..258_u32), gid in proptest::option::of(0..2_u32),
    ) {
        let one = machine();
        let mut other = machine();
        other.ports[0].gbits = gbits * 100;
        other.ports[0].mtu = mtu;
        other.ports[0].gid = gid;
        let answers = |one: &PairEnd, other: &PairEnd| -> Vec<(&str, CheckOutcome)> {
            let all = compare(("a", one), ("b", other)).into_iter();
            all.map(|check| (check.name, check.answer)).collect()
        };
        prop_assert_eq!(answers(&one, &other), answers(&other, &one));
    }
}
