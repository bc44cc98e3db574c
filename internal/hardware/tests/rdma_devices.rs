//! RDMA cards as programs use them, on the trees of an InfiniBand and of a RoCE machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use hardware::rdma::{CheckOutcome, Files, devices, pair};

#[path = "../testing/unpack.rs"]
mod unpack;

const INFINIBAND: &str = include_str!("../testing/trees/infiniband.txt");
const ROCE: &str = include_str!("../testing/trees/roce.txt");

#[test]
fn cards_are_known_by_their_pci_numbers_driver_and_interfaces_with_the_files_that_are_there() {
    let root = tempfile::tempdir().unwrap();
    unpack::unpack(INFINIBAND, root.path());
    let found = devices(root.path());
    assert!(found.rdma_cm);
    let [first, second] = &found.cards[..] else {
        panic!("{found:?}")
    };
    assert_eq!(
        [&first.name, &first.vendor, &first.model, &first.driver],
        ["mlx5_0", "15b3", "1021", "mlx5_core"]
    );
    assert_eq!(
        (&first.netdevs[..], first.numa),
        (&["ib0".into()][..], Some(0))
    );
    assert_eq!(second.files, ["uverbs1", "issm1", "umad1"]);
    assert!(second.ports[0].is_up() && second.opens());

    // A missing device file is not listed.
    fs::remove_file(root.path().join("dev/infiniband/uverbs1")).unwrap();
    fs::remove_file(root.path().join("dev/infiniband/rdma_cm")).unwrap();
    let found = devices(root.path());
    assert_eq!(found.cards[1].files, ["issm1", "umad1"]);
    assert!(!found.cards[1].opens() && !found.rdma_cm);
}

#[test]
fn a_card_without_managers_and_one_that_is_none_have_their_own_file() {
    let root = tempfile::tempdir().unwrap();
    unpack::unpack(ROCE, root.path());
    let soft = root.path().join("sys/class/infiniband/rxe0");
    fs::create_dir_all(&soft).unwrap();
    fs::write(soft.join("parent"), "eth7\n").unwrap();
    let found = devices(root.path());
    let [_, second, soft] = &found.cards[..] else {
        panic!("{found:?}")
    };
    assert_eq!(second.files, ["uverbs1"]);
    assert_eq!([&soft.vendor, &soft.model, &soft.driver], ["", "", ""]);
    assert_eq!(soft.netdevs, ["eth7"]);
    assert!(!soft.opens());
}

#[test]
fn a_machines_end_of_a_pair_is_its_ports_as_work_uses_them() {
    let of = |text: &str| {
        let root = tempfile::tempdir().unwrap();
        unpack::unpack(text, root.path());
        fs::create_dir_all(root.path().join("proc/net")).unwrap();
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask\nens1np0 0000000A 00000000 0001 0 0 0 00FFFFFF\n";
        fs::write(root.path().join("proc/net/route"), table).unwrap();
        let mut found = hardware::system::look(root.path()).unwrap();
        hardware::sysfs::look(root.path(), &mut found);
        let files = Files::read(root.path(), &found);
        pair::end(&found, &files)
    };
    let roce = of(ROCE);
    assert!(
        roce.driver.starts_with("kernel 6.1.0-31"),
        "{}",
        roce.driver
    );
    let port = &roce.ports[0];
    assert_eq!(
        (port.name().as_str(), port.gbits, port.soft),
        ("mlx5_0/1", 200, false)
    );
    assert_eq!((port.mtu, port.gid), (Some(4096), Some(3)));
    assert_eq!(port.pcie_gbits, Some(192));
    assert_eq!(port.network.as_deref(), Some("10.0.0.0/24"));
    assert!(
        pair::compare(("a", &roce), ("b", &roce))
            .iter()
            .all(|check| { check.answer == CheckOutcome::Pass || check.place == "mlx5_1/1" })
    );
    let infiniband = of(INFINIBAND);
    let port = &infiniband.ports[1];
    assert_eq!(
        (port.layer.as_str(), port.mtu, port.gid),
        ("InfiniBand", None, None)
    );
    assert_eq!(port.network.as_deref(), Some("fe80:0000:0000:0000"));
}
