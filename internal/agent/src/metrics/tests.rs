//! The metric families of described GPUs, as a scrape shows them.

use std::collections::{BTreeMap, BTreeSet};

use devices::holders::{DeviceHolder, DeviceHolders};
use hardware::{GpuReading, InventorySources, Meter};
use resources::exposition::Page;

use super::gpus;

/// The default metrics of dcgm-exporter, with its two counters of memory errors.
const DCGM: [(&str, &str); 27] = [
    ("DCGM_FI_DEV_SM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge"),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge"),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge"),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter"),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge"),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge"),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge"),
    ("DCGM_FI_DEV_FB_FREE", "gauge"),
    ("DCGM_FI_DEV_FB_USED", "gauge"),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge"),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "counter"),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter"),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter"),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge"),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "gauge"),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge"),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge"),
    ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "gauge"),
];

/// Three H100: one that measures everything, one idle, and one with two holders.
const MACHINE: &str = r#"
[machine]
driver = "550.54.15"
[[gpu]]
model = "NVIDIA H100 80GB HBM3"
memory_mib = 81559
count = 3
compute_capability = "9.0"
ecc = true
id = ["GPU-a", "GPU-b", "GPU-c"]
pci = ["0000:18:00.0", "0000:3a:00.0", "0000:4b:00.0"]
[[gpu]]
model = "NVIDIA H100 80GB HBM3"
memory_mib = 81559
id = ["GPU-d"]
mig = ["1g.10gb", "3g.40gb"]
[[state]]
gpu = 0
utilisation = 93
memory_utilisation = 41
encoder = 3
decoder = 4
watts = 640
watts_limit = 700
celsius = 78
memory_celsius = 91
energy_mj = 123456789
sm_mhz = 1980
memory_mhz = 2619
memory_used_mib = 70000
nvlink_kib = 1001
corrected = 12
gpm = [{ metric = 1, value = 92.5 }, { metric = 5, value = 61.0 }, { metric = 10, value = 50.0 },
    { metric = 20, value = 2.0 }, { metric = 21, value = 3.0 }]
[[state]]
gpu = 2
utilisation = 80
processes = [{ pid = 7, memory_mib = 1024, utilisation = 50 }, { pid = 8, memory_mib = 2048 }]
"#;

fn readings() -> Vec<GpuReading> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("machine.toml");
    std::fs::write(&file, MACHINE).expect("a machine is written");
    let source = InventorySources {
        description: Some(file),
        ..InventorySources::default()
    };
    Meter::new(source).read().expect("a machine")
}

fn holder(pod: &str) -> DeviceHolder {
    DeviceHolder {
        namespace: "team".into(),
        pod: pod.into(),
        container: "main".into(),
    }
}

fn page() -> String {
    let gpus = readings();
    let mut holders = DeviceHolders::default();
    holders.note("GPU-a", &holder("alone"));
    holders.note("GPU-c::0", &holder("left"));
    holders.note("GPU-c::1", &holder("right"));
    holders.note_process(7, holder("left"));
    holders.note(&gpus[3].slices[1].id, &holder("sliced"));
    let mut page = Page::default();
    gpus::write(&mut page, &gpus, &holders, "node-1");
    page.text()
}

/// The value of each line with this prefix.
fn values<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    let lines = page.lines().filter(|line| line.starts_with(begin));
    lines
        .filter_map(|line| Some(line.rsplit_once(' ')?.1))
        .collect()
}

#[test]
fn a_gpu_that_measures_everything_has_every_value_that_dashboards_look_for() {
    let page = page();
    let types: BTreeMap<&str, &str> = (page.lines())
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let labels = "{gpu=\"0\",UUID=\"GPU-a\",pci_bus_id=\"00000000:18:00.0\",device=\"nvidia0\",\
        modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"node-1\",DCGM_FI_DRIVER_VERSION=\"550.54.15\",\
        container=\"main\",namespace=\"team\",pod=\"alone\"} ";
    for (name, kind) in DCGM {
        assert_eq!(types.get(name), Some(&kind), "{name}");
        assert_eq!(values(&page, &format!("{name}{labels}")).len(), 1, "{name}");
    }
    let value = |name: &str| values(&page, &format!("{name}{labels}"))[0].to_owned();
    for (name, expected) in [
        ("DCGM_FI_DEV_POWER_USAGE", "640"),
        ("DCGM_FI_DEV_FB_FREE", "11559"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "123456789"),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0.925"),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", "2097152"),
        ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "12"),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
}

#[test]
fn a_value_that_a_gpu_does_not_measure_is_absent_and_not_zero() {
    let page = page();
    for name in [
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    ] {
        assert!(
            values(&page, &format!("{name}{{gpu=\"1\"")).is_empty(),
            "{name}"
        );
    }
    // Its memory has no error correction, so there are no errors to count.
    assert!(values(&page, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL{gpu=\"3\"").is_empty());
    assert_eq!(
        values(&page, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL{gpu=\"1\""),
        ["0"]
    );
}

#[test]
fn a_gpu_with_several_holders_names_none_and_each_process_has_its_own_values() {
    let page = page();
    let shared: BTreeSet<&str> = (page.lines())
        .filter(|line| line.starts_with("DCGM_") && line.contains("gpu=\"2\""))
        .collect();
    assert!(!shared.is_empty());
    assert!(
        shared.iter().all(|line| !line.contains("pod=")),
        "{shared:?}"
    );
    let held: Vec<&str> = values(&page, "muster_gpu_holders{");
    assert_eq!(held, ["1", "0", "2", "1"]);
    let processes: Vec<&str> = (page.lines())
        .filter(|line| line.starts_with("muster_gpu_process_"))
        .collect();
    let [left, other, busy, idle] = &processes[..] else {
        panic!("{processes:?}")
    };
    assert!(
        left.contains("pid=\"7\"")
            && left.contains("pod=\"left\"")
            && left.ends_with(" 1073741824")
    );
    assert!(
        other.contains("pid=\"8\"") && !other.contains("pod=") && other.ends_with(" 2147483648")
    );
    assert!(
        busy.ends_with(" 0.5") && idle.ends_with(" 0"),
        "{busy} {idle}"
    );
}

#[test]
fn a_gpu_that_is_cut_has_the_memory_of_its_slices() {
    let page = page();
    let free: Vec<&str> = (page.lines())
        .filter(|line| line.starts_with("DCGM_FI_DEV_FB_FREE{gpu=\"3\""))
        .collect();
    let [small, large] = &free[..] else {
        panic!("{free:?}")
    };
    assert!(small.contains("GPU_I_PROFILE=\"1g.10gb\"") && !small.contains("pod="));
    assert!(large.contains("GPU_I_PROFILE=\"3g.40gb\"") && large.contains("pod=\"sliced\""));
    assert!(small.ends_with(" 9984") && large.ends_with(" 40448"));
}
