//! GPUs from a driver's library, with a stand-in compiled from testing/nvml.c in its place.

use std::path::{Path, PathBuf};
use std::process::Command;

use hardware::gpus::Driver;
use hardware::{Inventory, LinkKind, Load, Origin};

fn library(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("testing/nvml.c");
    let library = dir.join("libnvidia-ml.so.1");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg(format!("-DLOST_FILE=\"{}\"", dir.join("lost").display()))
        .status()
        .expect("a C compiler, which linking Rust needs too");
    assert!(built.success());
    library
}

#[test]
fn gpus_are_read_with_their_links_and_a_lost_one_does_not_hide_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::with_library(library(dir.path()));
    let numa = dir.path().join("sys/bus/pci/devices/0000:11:00.0");
    std::fs::create_dir_all(&numa).unwrap();
    std::fs::write(numa.join("numa_node"), "1\n").unwrap();
    // Asked twice: the second look is like the first.
    for _ in 0..2 {
        let mut machine = Inventory::default();
        driver.look(dir.path(), &mut machine);
        assert_eq!(machine.origin, Origin::Nvml);
        let [warning] = &machine.warnings[..] else {
            panic!("{:?}", machine.warnings)
        };
        assert!(warning.starts_with("GPU 2 is not offered"), "{warning}");
        let indices: Vec<u32> = machine.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!(indices, [0, 1, 3, 4]);
        let [h100, other, l4, last] = &machine.gpus[..] else {
            panic!("{:?}", machine.gpus)
        };
        assert_eq!(h100.id, "GPU-00000000-0000-0000-0000-000000000000");
        assert_eq!(h100.model, "NVIDIA H100 80GB HBM3");
        assert_eq!((h100.memory_mib, h100.minor), (81_559, Some(7)));
        assert_eq!(h100.compute_capability, "9.0");
        assert_eq!(
            (h100.driver.as_str(), h100.pci.as_str()),
            ("550.54.15", "0000:10:00.0")
        );
        assert_eq!((h100.numa, other.numa), (None, Some(1)));
        assert!(h100.healthy && last.healthy);
        assert_eq!(last.compute_capability, "");
        let path = |from: &hardware::Gpu, to: &hardware::Gpu| {
            let link = from.links.iter().find(|link| link.to == to.id).unwrap();
            (link.kind, link.count)
        };
        let at_work = Load {
            percent: Some(97),
            memory_mib: Some(40_000),
            celsius: Some(40),
            milliwatts: Some(612_000),
            milliwatts_limit: Some(700_000),
        };
        assert_eq!(h100.load, at_work);
        assert_eq!((last.load.percent, last.load.milliwatts), (Some(0), None));
        // One of the second card's links is down.
        assert_eq!(path(h100, other), (LinkKind::Nvs, 17));
        assert_eq!(path(h100, l4), (LinkKind::Sys, 0));
        assert_eq!(path(l4, last), (LinkKind::Pix, 0));
    }
}

#[test]
fn a_gpu_that_is_lost_later_stays_in_the_inventory_as_unhealthy_until_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Driver::with_library(library(dir.path()));
    let healths = |driver: &mut Driver| {
        let mut machine = Inventory::default();
        driver.look(dir.path(), &mut machine);
        let gpus = machine.gpus.into_iter();
        gpus.map(|gpu| (gpu.index, gpu.healthy, gpu.problem.is_empty()))
            .collect::<Vec<_>>()
    };
    let well = [
        (0, true, true),
        (1, true, true),
        (3, true, true),
        (4, true, true),
    ];
    assert_eq!(healths(&mut driver), well);
    std::fs::write(dir.path().join("lost"), "").unwrap();
    assert_eq!(healths(&mut driver)[2], (3, false, false));
    std::fs::remove_file(dir.path().join("lost")).unwrap();
    assert_eq!(healths(&mut driver), well);
}
