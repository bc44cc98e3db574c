//! Every check of a machine's RDMA, on the trees of an InfiniBand and of a RoCE machine with one
//! change at a time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod faults;
mod ports;
mod proposals;
mod tree;
#[path = "../../testing/unpack.rs"]
mod unpack;

use std::fs;

use hardware::Inventory;
use hardware::rdma::{self, CheckOutcome, Files, PortCounters, RdmaCheck};
use proptest::prelude::*;

use proposals::proposed;
use tree::{INFINIBAND, PORT, ROCE, Tree, others_than};

#[test]
fn a_machine_that_is_well_passes_and_what_no_file_says_is_unknown() {
    let tree = Tree::of(INFINIBAND);
    let mtu = |place| ("MTU", place, CheckOutcome::Unknown);
    let nobody = ("cards", "", CheckOutcome::Unknown);
    let found = tree.checks(None);
    let wanted = [nobody, mtu("mlx5_0/1"), mtu("mlx5_1/1")];
    assert_eq!(others_than(&found, CheckOutcome::Pass), wanted);
    let (itself, _) = tree.observe();
    let found = tree.checks(Some(&itself));
    assert_eq!(others_than(&found, CheckOutcome::Pass), &wanted[1..]);

    let tree = Tree::of(ROCE);
    let pfc = |place| ("PFC", place, CheckOutcome::Unknown);
    let found = tree.checks(None);
    let wanted = [nobody, pfc("mlx5_0/1"), pfc("mlx5_1/1")];
    assert_eq!(others_than(&found, CheckOutcome::Pass), wanted);
    let of = |name: &str| found.iter().find(|check| check.name == name).unwrap();
    assert_eq!(of("GID").found, "index 3: 10.0.0.1, RoCE v2");
    assert_eq!(of("GPU to card").found, "PIX to mlx5_0");
    assert!(of("MTU").found.contains("packets of 4096"));
}

#[test]
fn a_machine_without_rdma_is_asked_nothing_unless_it_should_have_some() {
    let none = Inventory::default();
    let files = Files::default();
    assert!(rdma::examine(&none, Some(&files), Some(&none)).is_empty());
    let (expected, _) = Tree::of(ROCE).observe();
    let checks = rdma::examine(&none, Some(&files), Some(&expected));
    assert_eq!(
        others_than(&checks, CheckOutcome::Pass),
        [("cards", "", CheckOutcome::Fail)]
    );
    assert!(checks[0].found.contains("mlx5_0, mlx5_1 missing"));
}

#[test]
fn a_described_machine_has_no_files_and_is_asked_only_what_it_says() {
    let (found, _) = Tree::of(ROCE).observe();
    let checks = rdma::examine(&found, None, Some(&found));
    assert_eq!(others_than(&checks, CheckOutcome::Pass), []);
    assert!(checks.iter().all(|check| check.name != "GID"));
}

#[test]
fn a_card_that_is_gone_and_one_without_a_driver_are_missed() {
    let tree = Tree::of(INFINIBAND);
    let (itself, _) = tree.observe();
    let card = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0";
    tree.remove("sys/class/infiniband/mlx5_0");
    tree.remove(&format!("{card}/infiniband"));
    let found = tree.checks(Some(&itself));
    let failed: Vec<&RdmaCheck> = found
        .iter()
        .filter(|it| it.answer == CheckOutcome::Fail)
        .collect();
    let said: Vec<String> = failed.iter().map(|check| check.sentence()).collect();
    assert_eq!(failed.len(), 3, "{said:#?}");
    assert!(
        said[0].contains("1 of 2") && said[0].contains("mlx5_0 missing"),
        "{said:#?}"
    );
    assert!(said[1].contains("GPU 0") && said[1].contains("other GPUs have a card"));
    assert!(said[2].contains("0000:19:00.0: driver"), "{said:#?}");
}

#[test]
fn a_container_without_a_dev_of_its_hosts_knows_nothing_of_it() {
    let tree = Tree::of(ROCE);
    tree.remove("dev/infiniband");
    let found = tree.checks(None);
    let unknown = others_than(&found, CheckOutcome::Pass);
    assert!(unknown.contains(&("device files", "mlx5_0", CheckOutcome::Unknown)));
    assert_eq!(proposed(&tree, &["GPU-0"])[0].1, "=mlx5_0:1");
}

#[test]
fn what_is_expected_goes_before_what_most_have() {
    let tree = Tree::of(INFINIBAND);
    let (mut expected, _) = tree.observe();
    for nic in &mut expected.nics {
        nic.ports[0].gbits = 800;
        nic.ports[0].layer = "Ethernet".to_owned();
        nic.firmware.clear();
    }
    let found = tree.checks(Some(&expected));
    let failed: Vec<&str> = (found.iter())
        .filter(|check| check.answer == CheckOutcome::Fail)
        .map(|check| check.name)
        .collect();
    assert_eq!(failed, ["link layer", "rate", "link layer", "rate"]);
    let firmware = found.iter().find(|check| check.name == "firmware").unwrap();
    assert_eq!(
        firmware.answer,
        CheckOutcome::Unknown,
        "a description may leave it open"
    );
}

#[test]
fn counters_are_held_against_an_earlier_look() {
    let tree = Tree::of(ROCE);
    let read = || PortCounters::of(&hardware::ports::read(tree.path()));
    let before = read();
    tree.write(&format!("{PORT}/counters/link_downed"), "2");
    let checks = rdma::growth(&before, &read(), rdma::LEAST);
    let answers: Vec<(&str, CheckOutcome)> = (checks.iter())
        .map(|check| (check.place.as_str(), check.answer))
        .collect();
    assert_eq!(
        answers,
        [
            ("mlx5_0/1", CheckOutcome::Fail),
            ("mlx5_1/1", CheckOutcome::Pass)
        ]
    );
    assert_eq!(checks[0].found, "link_downed grew by 1 in 1 s");
}

/// Checks that pass although some of their files are missing, and say so: a port that is up
/// without its link state.
const SPARED: [&str; 1] = ["port state"];

proptest! {
    // Each case creates two hundred files.
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// For any missing files, no check reports a fault: an unreadable value is unknown.
    #[test]
    fn what_cannot_be_read_is_unknown(
        roce in any::<bool>(), gone in proptest::collection::vec(any::<proptest::sample::Index>(), 1..12),
    ) {
        let text = if roce { ROCE } else { INFINIBAND };
        let about = ["/state", "phys_state", "link_layer", "/rate", "fw_ver", "_link_", "/gid", "/mtu", "/config", "/type", "limits", "netns_mode", "/ecn/"];
        let lines: Vec<&str> = (text.lines())
            .filter(|line| line.contains(" = ") || line.contains(" @ "))
            .filter(|line| about.iter().any(|word| line.contains(word)))
            .collect();
        let tree = Tree::of(text);
        let (itself, itself_files) = tree.observe();
        for index in gone {
            let (path, _) = index.get(&lines).split_once(' ').unwrap();
            let path = tree.path().join(path);
            if path.exists() {
                fs::remove_file(path).unwrap();
            }
        }
        let (itself_again, files) = tree.observe();
        let _ = rdma::draw(&rdma::examine(&itself_again, Some(&files), None));
        let before = rdma::examine(&itself, Some(&itself_files), Some(&itself));
        for check in rdma::examine(&itself_again, Some(&files), Some(&itself)) {
            // A GID without its file is an unused address.
            prop_assert!(check.answer != CheckOutcome::Fail || check.name == "GID", "{check:?}");
            // A check that still passes has read the same value.
            let same = before.iter().any(|it| it.name == check.name && it.found == check.found);
            prop_assert!(check.answer != CheckOutcome::Pass || same || SPARED.contains(&check.name), "{check:?}");
        }
    }
}

#[test]
fn priorities_that_pause_pass_none_fails_and_what_the_kernel_does_not_say_is_unknown() {
    let (found, mut files) = Tree::of(ROCE).observe();
    let mut asked = |pfc: Option<u8>| {
        let card = files.cards.get_mut("mlx5_0").unwrap();
        card.netdevs[0].pfc = pfc;
        let checks = rdma::examine(&found, Some(&files), None);
        let its = |check: &&RdmaCheck| (check.name, check.place.as_str()) == ("PFC", "mlx5_0/1");
        checks.iter().find(its).unwrap().clone()
    };
    // For another machine's tree, this kernel's settings are not read.
    assert_eq!(asked(None).answer, CheckOutcome::Unknown);
    let on = asked(Some(0b1001));
    assert_eq!(
        (on.answer, on.found.as_str()),
        (CheckOutcome::Pass, "on for priority 0, 3")
    );
    let off = asked(Some(0));
    assert_eq!(off.answer, CheckOutcome::Fail);
    assert!(
        off.advice.contains("dcb pfc set dev ens1np0"),
        "{}",
        off.advice
    );
}
