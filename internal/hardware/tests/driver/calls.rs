//! The wrapper's calls behind metrics and health, answered by the stand-in.

use nvml_wrapper::enum_wrappers::device::{Clock, ComputeMode, EccCounter, MemoryError};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::structs::device::FieldId;

use crate::standin::StandIn;

const STATE: &str = "[[state]]\ngpu = 1\nutilisation = 93\nmemory_utilisation = 41\nencoder = 3\n\
    decoder = 4\nwatts = 640\ncelsius = 78\nmemory_celsius = 91\nenergy_mj = 123456789\n\
    sm_mhz = 1980\nmemory_mhz = 2619\nthrottle = 4\ncorrected = 12\nuncorrected = 1\n\
    remapped = [2, 1]\nremap_pending = true\npcie_replays = 7\nrecovery = 1\nprocesses = [\n\
    { pid = 4711, name = \"python3\", memory_mib = 30000, utilisation = 80 },\n\
    { pid = 4712, memory_mib = 500, utilisation = 13, mps = true },\n]\n";

#[test]
fn what_a_gpu_does_is_answered_in_the_drivers_units() {
    let standin = StandIn::of("hgx-h100.toml");
    standin.with(STATE);
    let nvml = standin.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), "550.54.15");
    let gpu = nvml.device_by_index(1).unwrap();
    let rates = gpu.utilization_rates().unwrap();
    assert_eq!((rates.gpu, rates.memory), (93, 41));
    assert_eq!(gpu.encoder_utilization().unwrap().utilization, 3);
    assert_eq!(gpu.decoder_utilization().unwrap().utilization, 4);
    assert_eq!(gpu.power_usage().unwrap(), 640_000);
    assert_eq!(gpu.total_energy_consumption().unwrap(), 123_456_789);
    assert_eq!(gpu.clock_info(Clock::SM).unwrap(), 1980);
    assert_eq!(gpu.clock_info(Clock::Memory).unwrap(), 2619);
    assert_eq!(gpu.current_throttle_reasons().unwrap().bits(), 4);
    assert_eq!(gpu.pcie_replay_counter().unwrap(), 7);
    let errors = |kind| gpu.total_ecc_errors(kind, EccCounter::Aggregate).unwrap();
    assert_eq!(errors(MemoryError::Corrected), 12);
    assert_eq!(errors(MemoryError::Uncorrected), 1);
    // An idle card lacks these values: the stand-in invents nothing that is not described.
    let idle = nvml.device_by_index(0).unwrap();
    assert!(matches!(idle.power_usage(), Err(NvmlError::NotSupported)));
    assert!(matches!(
        idle.utilization_rates(),
        Err(NvmlError::NotSupported)
    ));
}

#[test]
fn fields_have_values_or_say_which_they_lack() {
    let standin = StandIn::of("hgx-h100.toml");
    standin.with(STATE);
    let nvml = standin.nvml();
    let gpu = nvml.device_by_index(1).unwrap();
    let ids = [82, 142, 143, 144, 145, 230, 251].map(FieldId);
    let values = gpu.field_values_for(&ids).unwrap();
    let told: Vec<String> = (values.into_iter())
        .map(|field| match field.and_then(|field| field.value) {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("{error:?}"),
        })
        .collect();
    let expected = [
        "U32(91)",
        "U32(2)",
        "U32(1)",
        "U32(1)",
        "U32(0)",
        "U32(1)",
        "NotSupported",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_gpu_takes_one_process_at_a_time_while_it_is_told_so() {
    let standin = StandIn::of("hgx-h100.toml");
    let nvml = standin.nvml();
    let mode = |index| nvml.device_by_index(index).unwrap().compute_mode().unwrap();
    let gpu = nvml.device_by_index(1).unwrap().uuid().unwrap();
    let source = standin.source();
    for (exclusive, wanted) in [
        (true, ComputeMode::ExclusiveProcess),
        (true, ComputeMode::ExclusiveProcess),
        (false, ComputeMode::Default),
    ] {
        hardware::compute_mode::set_exclusive(&source, &gpu, exclusive).unwrap();
        assert_eq!((mode(0), mode(1)), (ComputeMode::Default, wanted));
    }
    standin.with("[[state]]\ngpu = 1\nlost = true\n");
    let why = hardware::compute_mode::set_exclusive(&source, &gpu, true).unwrap_err();
    assert!(why.to_string().contains(&gpu), "{why}");
}

#[test]
fn processes_are_listed_with_their_memory_those_of_mps_apart() {
    let standin = StandIn::of("hgx-h100.toml");
    standin.with(STATE);
    let nvml = standin.nvml();
    let gpu = nvml.device_by_index(1).unwrap();
    let processes = gpu.running_compute_processes().unwrap();
    let [process] = &processes[..] else {
        panic!("{processes:?}")
    };
    assert_eq!(process.pid, 4711);
    let memory = format!("{:?}", process.used_gpu_memory);
    assert!(memory.contains(&(30_000u64 << 20).to_string()), "{memory}");
    let shared = gpu.mps_running_compute_processes().unwrap();
    assert_eq!(shared.len(), 1);
    assert_eq!(nvml.sys_process_name(4711, 64).unwrap(), "python3");
    let mut samples = gpu.process_utilization_stats(None).unwrap();
    samples.sort_by_key(|sample| sample.pid);
    let shares: Vec<(u32, u32)> = (samples.iter())
        .map(|sample| (sample.pid, sample.sm_util))
        .collect();
    assert_eq!(shares, [(4711, 80), (4712, 13)]);
    let idle = nvml.device_by_index(0).unwrap();
    assert!(idle.running_compute_processes().unwrap().is_empty());
}

#[test]
fn devices_are_found_by_their_ids_and_addresses() {
    let standin = StandIn::of("gb200-tray.toml");
    let nvml = standin.nvml();
    for gpu in standin.described().inventory.gpus {
        assert_eq!(
            nvml.device_by_uuid(gpu.id.as_str())
                .unwrap()
                .index()
                .unwrap(),
            gpu.index
        );
        assert_eq!(
            nvml.device_by_pci_bus_id(gpu.pci.as_str())
                .unwrap()
                .uuid()
                .unwrap(),
            gpu.id
        );
    }
    assert!(matches!(
        nvml.device_by_uuid("GPU-0"),
        Err(NvmlError::NotFound)
    ));
    assert!(matches!(
        nvml.device_by_index(4),
        Err(NvmlError::InvalidArg)
    ));
}

#[test]
fn near_cpus_are_those_of_the_gpus_node() {
    let standin = StandIn::of("hgx-h100.toml");
    let nvml = standin.nvml();
    let words = nvml.device_by_index(4).unwrap().cpu_affinity(4).unwrap();
    let cpus: Vec<u32> = (0..256)
        .filter(|cpu| words[*cpu as usize / 64] >> (cpu % 64) & 1 == 1)
        .collect();
    assert_eq!(hardware::matrix::ranges(&cpus), "56-111,168-223");
}

#[test]
fn performance_counters_are_read_where_the_gpu_has_them() {
    let standin = StandIn::of("hgx-h100.toml");
    standin.with("[[state]]\ngpu = 2\ngpm = [{ metric = 5, value = 41.5 }]\n");
    let nvml = standin.nvml();
    let gpu = nvml.device_by_index(2).unwrap();
    assert!(gpu.gpm_support().unwrap());
    let (before, after) = (gpu.gpm_sample().unwrap(), gpu.gpm_sample().unwrap());
    let wanted = [GpmMetricId::AnyTensorUtil, GpmMetricId::SmUtil];
    let values = gpm_metrics_get(&nvml, &before, &after, &wanted).unwrap();
    assert_eq!(values[0].as_ref().unwrap().value, 41.5);
    assert!(matches!(values[1], Err(NvmlError::NotSupported)));
    let old = StandIn::of("dgx-a100.toml");
    let nvml = old.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    assert!(!gpu.gpm_support().unwrap());
    assert!(matches!(gpu.gpm_sample(), Err(NvmlError::NotSupported)));
}
