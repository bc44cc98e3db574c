//! The meter's readings through the driver's library equal the description.

use hardware::reading::{DeviceMemory, PerformanceCounters, Rows};
use hardware::{GpuReading, InventorySources, Meter};

use crate::standin::{MACHINES, StandIn};

/// A busy GPU with errors, one with two processes, and a lost one.
const STATES: &str = "[[state]]\ngpu = 1\nutilisation = 93\nmemory_utilisation = 41\nencoder = 3\n\
    decoder = 4\nwatts = 640\ncelsius = 78\nmemory_celsius = 91\nenergy_mj = 123456789\n\
    sm_mhz = 1980\nmemory_mhz = 2619\ncorrected = 12\nuncorrected = 1\nremapped = [2, 1]\n\
    remap_failed = true\npcie_replays = 7\nnvlink_kib = 1001\nmemory_used_mib = 70000\n\
    licensed = true\n\
    gpm = [{ metric = 1, value = 92.5 }, { metric = 5, value = 61.0 }, { metric = 20, value = 3.5 }]\n\
    [[state]]\ngpu = 2\nprocesses = [\n\
    { pid = 4712, memory_mib = 500, utilisation = 13, mps = true },\n\
    { pid = 4711, name = \"python3\", memory_mib = 30000, utilisation = 80 },\n]\n\
    [[state]]\ngpu = 3\nlost = true\n";

fn meter(standin: &StandIn) -> Meter {
    Meter::new(InventorySources {
        library: Some(standin.library()),
        sysfs_root: standin.root(),
        ..InventorySources::default()
    })
}

/// The described machine's readings, with the numbers of slices' instances, which only a driver
/// has.
fn described(standin: &StandIn, like: &[GpuReading]) -> Vec<GpuReading> {
    let mut readings = Meter::new(InventorySources {
        description: Some(standin.description()),
        ..InventorySources::default()
    })
    .read()
    .unwrap();
    for (reading, like) in readings.iter_mut().zip(like) {
        for (slice, like) in reading.slices.iter_mut().zip(&like.slices) {
            assert!(like.instance.is_some());
            slice.instance = like.instance;
        }
    }
    readings
}

#[test]
fn every_described_machine_measures_what_is_described() {
    for machine in MACHINES {
        let standin = StandIn::of(machine);
        standin.with(STATES);
        let mut meter = meter(&standin);
        let mut first = meter.read().unwrap();
        // Performance counters have the values between two readings.
        assert!(
            first
                .iter()
                .all(|gpu| gpu.counters == PerformanceCounters::default())
        );
        first = meter.read().unwrap();
        assert_eq!(first, described(&standin, &first), "{machine}");
        assert!(first.iter().all(|gpu| gpu.index != 3), "{machine}");
    }
}

#[test]
fn values_are_in_the_drivers_units_and_what_is_not_measured_is_not_there() {
    let standin = StandIn::of("hgx-h100.toml");
    standin.with(STATES);
    let mut meter = meter(&standin);
    meter.read().unwrap();
    let gpus = meter.read().unwrap();
    let [idle, busy, shared, ..] = &gpus[..] else {
        panic!("{gpus:?}")
    };
    assert_eq!(
        (busy.milliwatts, busy.energy_mj),
        (Some(640_000), Some(123_456_789))
    );
    assert_eq!(
        (busy.memory_celsius, busy.nvlink_kib),
        (Some(91), Some(1001))
    );
    let memory = DeviceMemory {
        used: 70_000,
        free: 11_559,
        reserved: 0,
    };
    assert_eq!(busy.memory, Some(memory));
    let rows = Rows {
        corrected: 2,
        uncorrected: 1,
        pending: false,
        failed: true,
    };
    assert_eq!(busy.rows, Some(rows));
    assert_eq!((busy.licensed, idle.licensed), (Some(true), Some(false)));
    assert_eq!(
        (busy.counters.graphics, busy.counters.dram),
        (Some(92.5), None)
    );
    assert_eq!(
        (idle.milliwatts, idle.percent, idle.nvlink_kib),
        (None, None, None)
    );
    let processes: Vec<_> = (shared.processes.iter())
        .map(|process| (process.pid, process.memory_mib, process.percent))
        .collect();
    assert_eq!(
        processes,
        [(4711, Some(30_000), Some(80)), (4712, Some(500), Some(13))]
    );
}

#[test]
fn a_driver_that_goes_and_comes_back_is_read_again() {
    let standin = StandIn::of("4x-a40.toml");
    let mut meter = meter(&standin);
    assert_eq!(meter.read().unwrap().len(), 4);
    standin.with("[[state]]\ngpu = 0\nlost = true\n");
    assert_eq!(meter.read().unwrap().len(), 3);
    standin.with("");
    assert_eq!(meter.read().unwrap().len(), 4);
}

#[test]
fn a_slice_has_its_own_memory() {
    let cut = StandIn::saying(
        "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nmig = [\"1g.10gb\", \"3g.40gb\"]\n",
    );
    let gpus = meter(&cut).read().unwrap();
    let slices: Vec<_> = (gpus[0].slices.iter())
        .map(|slice| {
            (
                slice.profile.as_str(),
                slice.memory.map(|memory| memory.free),
            )
        })
        .collect();
    assert_eq!(slices, [("1g.10gb", Some(9984)), ("3g.40gb", Some(40_448))]);
}

#[test]
fn a_machine_without_the_library_measures_nothing() {
    let nowhere = InventorySources {
        library: Some("/nowhere/libnvidia-ml.so.1".into()),
        ..InventorySources::default()
    };
    assert!(Meter::new(nowhere).read().unwrap().is_empty());
    let wrong = InventorySources {
        description: Some("/nowhere/machine.toml".into()),
        ..InventorySources::default()
    };
    assert!(Meter::new(wrong).read().is_err());
}
