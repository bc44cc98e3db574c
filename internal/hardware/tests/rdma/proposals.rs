//! What work is told of the cards near its GPUs.

use std::fs;

use hardware::rdma::RdmaProposal;

use crate::tree::{INFINIBAND, PORT, ROCE, Tree};

pub fn proposed(tree: &Tree, gpus: &[&str]) -> Vec<(&'static str, String)> {
    let (found, files) = tree.observe();
    let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    RdmaProposal::of(&found, &files).variables(&gpus, None)
}

#[test]
fn work_is_told_of_the_ports_near_its_gpus_and_how_they_are_used() {
    let pairs = |pairs: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
        let own = |(name, value): &(&'static str, &str)| (*name, (*value).to_owned());
        pairs.iter().map(own).collect()
    };
    let roce = Tree::of(ROCE);
    let both = pairs(&[
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1"),
        ("NCCL_IB_GID_INDEX", "3"),
        ("NCCL_NET_GDR_LEVEL", "PXB"),
    ]);
    assert_eq!(proposed(&roce, &["GPU-0", "GPU-1"]), both);
    assert_eq!(proposed(&roce, &["GPU-0"])[0].1, "=mlx5_0:1");
    assert_eq!(proposed(&roce, &["MIG-1"])[0].1, "=mlx5_1:1");
    assert_eq!(proposed(&roce, &[]), []);
    // A GPU without a card nearby uses all ports, without a direct path.
    let all = pairs(
        &[both[0].clone(), both[1].clone()]
            .each_ref()
            .map(|(n, v)| (*n, v.as_str())),
    );
    assert_eq!(proposed(&roce, &["GPU-0", "GPU-9"]), all);
    // Two ports with different indices have no common one.
    roce.write(&format!("{PORT}/gid_attrs/types/2"), "RoCE v2");
    let names: Vec<&str> = proposed(&roce, &["GPU-0", "GPU-1"])
        .iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(names, ["NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL"]);

    fs::create_dir_all(roce.path().join("proc/net")).unwrap();
    let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask\nbond0 0000000A 00000000 0001 0 0 0 000000FF\n";
    roce.write("proc/net/route", table);
    let (found, files) = roce.observe();
    let address = Some([10, 3, 2, 1].into());
    let told = RdmaProposal::of(&found, &files).variables(&["GPU-0".to_owned()], address);
    assert_eq!(
        told.last(),
        Some(&("NCCL_SOCKET_IFNAME", "=bond0".to_owned()))
    );

    let infiniband = Tree::of(INFINIBAND);
    let names: Vec<&str> = proposed(&infiniband, &["GPU-0"])
        .iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(
        names,
        ["NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL"],
        "no index where none is needed"
    );
    infiniband.remove("sys/module/nvidia_peermem");
    assert_eq!(proposed(&infiniband, &["GPU-0"]).len(), 1);
    // A port that is down or slower than others does not serve GPUs.
    infiniband.write(&format!("{PORT}/rate"), "100 Gb/sec (4X EDR)");
    assert_eq!(proposed(&infiniband, &["GPU-0"])[0].1, "=mlx5_1:1");
    infiniband.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
    assert_eq!(proposed(&infiniband, &["GPU-0"])[0].1, "=mlx5_0:1");
    infiniband.write(&format!("{PORT}/state"), "1: DOWN");
    assert_eq!(proposed(&infiniband, &["GPU-0"]), []);
}

#[test]
fn a_container_that_has_some_cards_is_told_of_those_and_elsewhere_only_what_holds_there() {
    let tree = Tree::of(ROCE);
    let (found, files) = tree.observe();
    let all = RdmaProposal::of(&found, &files);
    let cards = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let first = ["GPU-0".to_owned()];
    let second = ["MIG-1".to_owned()];
    let pair = [first[0].clone(), second[0].clone()];
    let both = all.among(&cards(&["mlx5_0", "mlx5_1"]));
    assert_eq!(both, all);
    let hca = |name: &str| ("NCCL_IB_HCA", format!("={name}"));
    let level = ("NCCL_NET_GDR_LEVEL", "PXB".to_owned());
    assert_eq!(both.elsewhere(&second), [hca("mlx5_1:1"), level.clone()]);
    let one = all.among(&cards(&["mlx5_1", "mlx5_7"]));
    assert!(one.is_near("GPU-1") && one.is_near("MIG-1") && !one.is_near("GPU-0"));
    assert_eq!(one.elsewhere(&second), [hca("mlx5_1:1"), level]);
    // The pod's GPUs have other cards nearby, but the pod uses its own.
    for devices in [&first[..], &pair] {
        assert_eq!(one.elsewhere(devices), [hca("mlx5_1:1")]);
    }
    assert_eq!(one.variables(&first, None)[1].0, "NCCL_IB_GID_INDEX");
    assert_eq!(all.among(&cards(&[])).elsewhere(&first), []);
    assert_eq!(all.elsewhere(&[]), []);

    tree.write("sys/module/ib_core/parameters/netns_mode", "N\n");
    let (found, files) = tree.observe();
    assert_eq!(RdmaProposal::of(&found, &files).elsewhere(&first), []);
}
