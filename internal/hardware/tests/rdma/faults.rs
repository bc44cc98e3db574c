//! Each fault of a machine changes the answer of one check, and of no other.

use std::fs;

use hardware::rdma::{CheckOutcome, RdmaCheck};

use crate::tree::{CARD, INFINIBAND, PORT, ROCE, Tree};

/// A change, and the only answer that it must change: question, place, answer, and a part of the
/// found value or the remedy.
type Case = (
    &'static str,
    fn(&Tree),
    &'static str,
    &'static str,
    CheckOutcome,
    &'static str,
);

fn hold(text: &str, cases: &[Case]) {
    for (what, change, name, place, answer, words) in cases {
        let tree = Tree::of(text);
        let (itself, _) = tree.observe();
        let before = tree.checks(Some(&itself));
        change(&tree);
        let after = tree.checks(Some(&itself));
        let is = |check: &&RdmaCheck| check.name == *name && check.place == *place;
        let found = after.iter().find(is).unwrap_or_else(|| panic!("{what}"));
        assert_eq!(found.answer, *answer, "{what}: {found:?}");
        let said = found.sentence();
        assert!(said.contains(words), "{what}: {said}");
        assert_eq!(
            found.advice.is_empty(),
            *answer == CheckOutcome::Pass,
            "{what}: {found:?}"
        );
        for check in after.iter().filter(|check| !is(check)) {
            assert!(before.contains(check), "{what} changed {check:?} too");
        }
    }
}

#[test]
fn each_fault_of_an_infiniband_machine_shows_in_its_check_alone() {
    use CheckOutcome::{Fail, Pass, Unknown};
    let acs = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/config";
    assert!(Tree::of(INFINIBAND).path().join(acs).exists());
    hold(
        INFINIBAND,
        &[
            (
                "another firmware",
                |tree| tree.write("sys/class/infiniband/mlx5_0/fw_ver", "28.35.1"),
                "firmware",
                "mlx5_0",
                Fail,
                "28.35.1 in the place of 28.39.1002",
            ),
            (
                "no firmware",
                |tree| tree.remove("sys/class/infiniband/mlx5_0/fw_ver"),
                "firmware",
                "mlx5_0",
                Unknown,
                "does not say",
            ),
            (
                "a lower rate",
                |tree| tree.write(&format!("{PORT}/rate"), "200 Gb/sec (2X NDR)"),
                "rate",
                "mlx5_0/1",
                Fail,
                "200 Gb/s in the place of 400",
            ),
            (
                "no rate",
                |tree| tree.remove(&format!("{PORT}/rate")),
                "rate",
                "mlx5_0/1",
                Unknown,
                "ibstat",
            ),
            (
                "fewer lanes",
                |tree| tree.write(&format!("{CARD}/current_link_width"), "8"),
                "PCIe link",
                "mlx5_0",
                Fail,
                "generation 5, 8 lanes, where card and slot can do generation 5, 16",
            ),
            (
                "a slower slot",
                |tree| tree.write(&format!("{CARD}/current_link_speed"), "8.0 GT/s PCIe"),
                "PCIe link",
                "mlx5_0",
                Fail,
                "generation 3",
            ),
            (
                "lanes that are not known",
                |tree| tree.write(&format!("{CARD}/current_link_width"), "255"),
                "PCIe link",
                "mlx5_0",
                Unknown,
                "lspci",
            ),
            (
                "ACS on, at the card's bridge",
                |tree| {
                    let mut config = vec![0; 4096];
                    config[0x100..0x108].copy_from_slice(&[0x0d, 0, 1, 0, 0x1d, 0, 0x1d, 0]);
                    let at = "sys/bus/pci/devices/0000:17:01.0/config";
                    fs::write(tree.path().join(at), config).unwrap();
                },
                "ACS",
                "GPU 0",
                Fail,
                "0000:17:01.0; turn it off",
            ),
            (
                "ACS that only root sees",
                |tree| {
                    let at = "sys/bus/pci/devices/0000:17:00.0/config";
                    fs::write(tree.path().join(at), [0; 64]).unwrap();
                },
                "ACS",
                "GPU 0",
                Unknown,
                "as root",
            ),
            (
                "an IOMMU that translates",
                |tree| tree.write("sys/kernel/iommu_groups/20/type", "DMA-FQ"),
                "IOMMU",
                "mlx5_0",
                Fail,
                "iommu=pt",
            ),
            (
                "an IOMMU that does not say",
                |tree| tree.remove("sys/kernel/iommu_groups/20/type"),
                "IOMMU",
                "mlx5_0",
                Unknown,
                "dmesg",
            ),
            (
                "no IOMMU",
                |tree| tree.remove(&format!("{CARD}/iommu_group")),
                "IOMMU",
                "mlx5_0",
                Pass,
                "off",
            ),
            (
                "no module for GPUs' memory",
                |tree| tree.remove("sys/module/nvidia_peermem"),
                "GPUDirect",
                "",
                Fail,
                "modprobe nvidia-peermem",
            ),
            (
                "memory that cannot be locked",
                |tree| {
                    let limits = "Max locked memory   8388608   8388608   bytes\n";
                    tree.write("proc/self/limits", limits);
                },
                "locked memory",
                "",
                Fail,
                "8388608 bytes; LimitMEMLOCK=infinity",
            ),
            (
                "limits that cannot be read",
                |tree| tree.remove("proc/self/limits"),
                "locked memory",
                "",
                Unknown,
                "ulimit -l",
            ),
            (
                "no file for programs",
                |tree| tree.remove("dev/infiniband/uverbs0"),
                "device files",
                "mlx5_0",
                Fail,
                "/dev/infiniband/uverbs0 is not there",
            ),
            (
                "no device for programs",
                |tree| tree.remove("sys/class/infiniband_verbs/uverbs0"),
                "device files",
                "mlx5_0",
                Fail,
                "modprobe ib_uverbs",
            ),
            (
                "cards that one namespace has",
                |tree| tree.write("sys/module/ib_core/parameters/netns_mode", "N"),
                "network namespaces",
                "",
                Fail,
                "rdma system set netns shared",
            ),
            (
                "a kernel that says nothing of namespaces",
                |tree| tree.remove("sys/module/ib_core"),
                "network namespaces",
                "",
                Unknown,
                "rdma system",
            ),
        ],
    );
}

#[test]
fn each_fault_of_a_roce_machine_shows_in_its_check_alone() {
    use CheckOutcome::{Fail, Pass, Unknown};
    hold(
        ROCE,
        &[
            (
                "no address",
                |tree| tree.write(&format!("{PORT}/gids/3"), &"0000:".repeat(8)[..39]),
                "GID",
                "mlx5_0/1",
                Fail,
                "give ens1np0 an IPv4 address",
            ),
            (
                "another place in the table",
                |tree| {
                    tree.write(&format!("{PORT}/gid_attrs/types/3"), "IB/RoCE v1");
                    tree.write(&format!("{PORT}/gid_attrs/types/2"), "RoCE v2");
                },
                "GID",
                "mlx5_0/1",
                Pass,
                "index 2",
            ),
            (
                "types that cannot be read",
                |tree| tree.remove(&format!("{PORT}/gid_attrs")),
                "GID",
                "mlx5_0/1",
                Unknown,
                "types cannot be read",
            ),
            (
                "a table that cannot be read",
                |tree| tree.remove(&format!("{PORT}/gids")),
                "GID",
                "mlx5_0/1",
                Unknown,
                "show_gids",
            ),
            (
                "small packets",
                |tree| tree.write("sys/class/net/ens1np0/mtu", "1500"),
                "MTU",
                "mlx5_0/1",
                Fail,
                "packets of 1024; others have 4096; ip link set ens1np0 mtu 9000",
            ),
            (
                "packets just large enough",
                |tree| tree.write("sys/class/net/ens1np0/mtu", "4192"),
                "MTU",
                "mlx5_0/1",
                Pass,
                "packets of 4096",
            ),
            (
                "packets just too small",
                |tree| tree.write("sys/class/net/ens1np0/mtu", "4191"),
                "MTU",
                "mlx5_0/1",
                Fail,
                "packets of 2048",
            ),
            (
                "packets of no known size",
                |tree| tree.remove("sys/class/net/ens1np0/mtu"),
                "MTU",
                "mlx5_0/1",
                Unknown,
                "ibv_devinfo",
            ),
            (
                "marks that nobody heeds",
                |tree| tree.write("sys/class/net/ens1np0/ecn/roce_rp/enable/3", "0"),
                "ECN",
                "mlx5_0/1",
                Fail,
                "one side only; write 1 to /sys/class/net/ens1np0/ecn",
            ),
            (
                "a driver that does not say",
                |tree| tree.remove("sys/class/net/ens1np0/ecn"),
                "ECN",
                "mlx5_0/1",
                Unknown,
                "no file says",
            ),
            (
                "no file for connections",
                |tree| tree.remove("dev/infiniband/uverbs1"),
                "device files",
                "mlx5_1",
                Fail,
                "uverbs1",
            ),
            (
                "closed kernel modules",
                |tree| tree.write("proc/driver/nvidia/version", "NVRM version: 570.124.06"),
                "GPUDirect",
                "",
                Fail,
                "open kernel modules",
            ),
            (
                "a kernel before dma-buf",
                |tree| tree.write("proc/sys/kernel/osrelease", "5.4.0-generic"),
                "GPUDirect",
                "",
                Fail,
                "nvidia-peermem",
            ),
            (
                "no driver at all",
                |tree| {
                    tree.remove("sys/module/nvidia");
                    tree.remove("proc/driver");
                },
                "GPUDirect",
                "",
                Unknown,
                "lsmod",
            ),
        ],
    );
}
