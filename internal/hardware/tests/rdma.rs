//! Every check of a machine's RDMA, on the trees of an InfiniBand and of a RoCE machine with one
//! change at a time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;

use hardware::rdma::{self, CheckOutcome, Files, PortCounters, RdmaCheck, RdmaProposal};
use hardware::{Gpu, Inventory, MigDevice};
use proptest::prelude::*;

#[path = "../testing/unpack.rs"]
mod unpack;

const INFINIBAND: &str = include_str!("../testing/trees/infiniband.txt");
const ROCE: &str = include_str!("../testing/trees/roce.txt");

/// The directories of the first card and its port.
const CARD: &str = "sys/bus/pci/devices/0000:19:00.0";
const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

struct Tree(tempfile::TempDir);

impl Tree {
    fn of(text: &str) -> Tree {
        let root = tempfile::tempdir().unwrap();
        unpack::unpack(text, root.path());
        Tree(root)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path().join(file), text).unwrap();
    }

    fn remove(&self, file: &str) {
        let path = self.path().join(file);
        if path.is_dir() && !path.is_symlink() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// The inventory with two GPUs, which no file lists, and the files.
    fn observe(&self) -> (Inventory, Files) {
        let gpu = |(index, pci): (u32, &str)| Gpu {
            id: format!("GPU-{index}"),
            index,
            pci: pci.to_owned(),
            slices: (index == 1).then(|| {
                vec![MigDevice {
                    id: "MIG-1".to_owned(),
                    ..MigDevice::default()
                }]
            }),
            ..Gpu::default()
        };
        let mut found = hardware::system::look(self.path()).unwrap();
        found.gpus = [(0, "0000:18:00.0"), (1, "0000:3a:00.0")].map(gpu).into();
        hardware::sysfs::look(self.path(), &mut found);
        let files = Files::read(self.path(), &found);
        (found, files)
    }

    fn checks(&self, expected: Option<&Inventory>) -> Vec<RdmaCheck> {
        let (found, files) = self.observe();
        rdma::examine(&found, Some(&files), expected)
    }
}

fn others_than(checks: &[RdmaCheck], answer: CheckOutcome) -> Vec<(&str, &str, CheckOutcome)> {
    let other = checks.iter().filter(|check| check.answer != answer);
    other
        .map(|check| (check.name, check.place.as_str(), check.answer))
        .collect()
}

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

/// The first port's check with these values in its files.
fn state(tree: &Tree, state: &str, physical: &str, expected: Option<&Inventory>) -> RdmaCheck {
    tree.write(&format!("{PORT}/state"), state);
    tree.write(&format!("{PORT}/phys_state"), physical);
    let mut checks = tree.checks(expected).into_iter();
    let is = |check: &RdmaCheck| check.name == "port state" && check.place == "mlx5_0/1";
    checks.find(is).unwrap()
}

#[test]
fn a_port_that_is_down_says_what_is_to_be_done() {
    for (text, files, words) in [
        (INFINIBAND, ("2: INIT", "5: LinkUp"), "subnet manager"),
        (INFINIBAND, ("1: DOWN", "2: Polling"), "other end"),
        (INFINIBAND, ("1: DOWN", "3: Disabled"), "ibportstate"),
        (ROCE, ("1: DOWN", "3: Disabled"), "ip link set"),
        (ROCE, ("1: DOWN", "6: LinkErrorRecovery"), "cable"),
    ] {
        let tree = Tree::of(text);
        let (itself, _) = tree.observe();
        let found = state(&tree, files.0, files.1, Some(&itself));
        assert_eq!(found.answer, CheckOutcome::Fail, "{found:?}");
        assert!(found.advice.contains(words), "{found:?}");
        // The rate does not matter while the port is down.
        assert!(
            tree.checks(None)
                .iter()
                .all(|check| check.name != "rate" || check.place != "mlx5_0/1")
        );
    }
    let tree = Tree::of(ROCE);
    tree.remove(&format!("{PORT}/phys_state"));
    tree.remove(&format!("{PORT}/state"));
    let found = tree.checks(None);
    let unknown = others_than(&found, CheckOutcome::Pass);
    assert!(unknown.contains(&("port state", "mlx5_0/1", CheckOutcome::Unknown)));
}

#[test]
fn whether_a_port_is_to_be_up_is_told_by_its_like_or_by_a_description() {
    let down = ("1: DOWN", "3: Disabled");
    let one = Tree::of(ROCE);
    let (itself, _) = one.observe();
    // One of two ports is down: the correct one is unknown.
    assert_eq!(
        state(&one, down.0, down.1, None).answer,
        CheckOutcome::Unknown
    );
    let (unused, _) = one.observe();
    assert_eq!(
        state(&one, down.0, down.1, Some(&itself)).answer,
        CheckOutcome::Fail
    );
    assert_eq!(
        state(&one, down.0, down.1, Some(&unused)).answer,
        CheckOutcome::Pass
    );
    // No port is up: RDMA does not work here.
    one.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
    assert_eq!(state(&one, down.0, down.1, None).answer, CheckOutcome::Fail);
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

fn proposed(tree: &Tree, gpus: &[&str]) -> Vec<(&'static str, String)> {
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
