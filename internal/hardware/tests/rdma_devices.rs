//! RDMA cards as programs use them, on the trees of an InfiniBand and of a RoCE machine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use hardware::rdma::devices;

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

    // What nobody made is not given.
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
