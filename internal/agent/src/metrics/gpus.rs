//! The metric families of GPUs: dcgm-exporter's default list, and its counters of memory errors,
//! with its names, types, help texts and labels, so that dashboards and alerts made for it keep
//! working. Pure. A value that a GPU does not measure is absent.

use devices::holders::{DeviceHolder, DeviceHolders};
use hardware::reading::{GpuReading, PerformanceCounters, SliceReading};
use resources::exposition::{Kind, MetricLabels, Page};

/// A value of whole GPUs.
struct GpuMetric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&GpuReading) -> Option<f64>,
}

const fn field(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&GpuReading) -> Option<f64>,
) -> GpuMetric {
    GpuMetric {
        name,
        kind,
        help,
        value,
    }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    value: fn(&GpuReading) -> Option<f64>,
) -> GpuMetric {
    field(name, Kind::Gauge, help, value)
}

const fn counter(
    name: &'static str,
    help: &'static str,
    value: fn(&GpuReading) -> Option<f64>,
) -> GpuMetric {
    field(name, Kind::Counter, help, value)
}

/// Not on that list, but needed by the alert on power.
const POWER_LIMIT: &str = "DCGM_FI_DEV_ENFORCED_POWER_LIMIT";

/// All fields except those of the memory, which slices have too.
static FIELDS: [GpuMetric; 31] = [
    gauge(
        "DCGM_FI_DEV_SM_CLOCK",
        "SM clock frequency (in MHz).",
        |gpu| gpu.sm_mhz.map(f64::from),
    ),
    gauge(
        "DCGM_FI_DEV_MEM_CLOCK",
        "Memory clock frequency (in MHz).",
        |gpu| gpu.memory_mhz.map(f64::from),
    ),
    gauge(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "Memory temperature (in C).",
        |gpu| gpu.memory_celsius.map(f64::from),
    ),
    gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", |gpu| {
        gpu.celsius.map(f64::from)
    }),
    gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", |gpu| {
        gpu.milliwatts.map(watts)
    }),
    gauge(POWER_LIMIT, "Enforced power limit (in W).", |gpu| {
        gpu.milliwatts_limit.map(watts)
    }),
    counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since boot (in mJ).",
        |gpu| gpu.energy_mj.map(count),
    ),
    counter(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "Total number of PCIe retries.",
        |gpu| gpu.pcie_replays.map(f64::from),
    ),
    gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", |gpu| {
        gpu.percent.map(f64::from)
    }),
    gauge(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Memory utilization (in %).",
        |gpu| gpu.memory_percent.map(f64::from),
    ),
    gauge(
        "DCGM_FI_DEV_ENC_UTIL",
        "Encoder utilization (in %).",
        |gpu| gpu.encoder.map(f64::from),
    ),
    gauge(
        "DCGM_FI_DEV_DEC_UTIL",
        "Decoder utilization (in %).",
        |gpu| gpu.decoder.map(f64::from),
    ),
    counter(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "Total number of single-bit persistent ECC errors.",
        |gpu| gpu.ecc.map(|ecc| count(ecc.corrected)),
    ),
    counter(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "Total number of double-bit persistent ECC errors.",
        |gpu| gpu.ecc.map(|ecc| count(ecc.uncorrected)),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "Total number of NVLink bandwidth counters for all lanes.",
        |gpu| gpu.nvlink_kib.map(count),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "Total number of NVLink flow-control CRC errors.",
        |gpu| gpu.nvlink_errors.map(|errors| count(errors.flits)),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "Total number of NVLink data CRC errors.",
        |gpu| gpu.nvlink_errors.map(|errors| count(errors.data)),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "Total number of NVLink retries.",
        |gpu| gpu.nvlink_errors.map(|errors| count(errors.replays)),
    ),
    counter(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "Total number of NVLink recovery errors.",
        |gpu| gpu.nvlink_errors.map(|errors| count(errors.recoveries)),
    ),
    gauge(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
        "Reasons for low clocks (bitmask of NVML's nvmlClocksEventReasons).",
        |gpu| gpu.throttle.map(count),
    ),
    counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for uncorrectable errors",
        |gpu| gpu.rows.map(|rows| count(rows.uncorrected)),
    ),
    counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for correctable errors",
        |gpu| gpu.rows.map(|rows| count(rows.corrected)),
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "Whether remapping of rows has failed",
        |gpu| gpu.rows.map(|rows| f64::from(u8::from(rows.failed))),
    ),
    gauge(
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "Whether remapping of rows is pending",
        |gpu| gpu.rows.map(|rows| f64::from(u8::from(rows.pending))),
    ),
    gauge(
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS",
        "vGPU License status",
        |gpu| gpu.licensed.map(|licensed| f64::from(u8::from(licensed))),
    ),
    gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Ratio of time the graphics engine is active.",
        |gpu| share(gpu.counters, |counters| counters.graphics),
    ),
    gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        |gpu| share(gpu.counters, |counters| counters.tensor),
    ),
    gauge(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        |gpu| share(gpu.counters, |counters| counters.dram),
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        |gpu| rate(gpu.counters.pcie_sent),
    ),
    gauge(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        |gpu| rate(gpu.counters.pcie_received),
    ),
    gauge(
        "muster_gpu_processes",
        "Processes that compute on the GPU.",
        |gpu| Some(gpu.processes.len() as f64),
    ),
];

fn watts(milli: u32) -> f64 {
    f64::from(milli) / 1000.0
}

/// Counts are exact up to 2^53, as in Prometheus itself.
fn count(count: u64) -> f64 {
    count as f64
}

fn share(
    counters: PerformanceCounters,
    percent: impl Fn(&PerformanceCounters) -> Option<f64>,
) -> Option<f64> {
    percent(&counters).map(|percent| percent / 100.0)
}

/// The driver counts MiB a second, contrary to its reference.
fn rate(mib: Option<f64>) -> Option<f64> {
    mib.map(|mib| mib * f64::from(1 << 20))
}

/// Writes all families about these GPUs.
pub fn write(page: &mut Page, gpus: &[GpuReading], holders: &DeviceHolders, hostname: &str) {
    let about: Vec<About<'_>> = (gpus.iter())
        .map(|gpu| About::of(gpu, holders, hostname))
        .collect();
    for field in &FIELDS {
        let values = about.iter().filter_map(|about| {
            let value = (field.value)(about.gpu)?;
            Some((about.labels.clone(), value))
        });
        page.family(field.name, field.kind, field.help, values);
    }
    let held = about.iter().map(|about| {
        let slices = about.gpu.slices.iter().map(|slice| &slice.id);
        let devices = std::iter::once(&about.gpu.id).chain(slices);
        let count: usize = devices.map(|id| holders.of(id).len()).sum();
        (about.plain.clone(), count as f64)
    });
    page.family(
        "muster_gpu_holders",
        Kind::Gauge,
        "Containers that have the GPU or slices of it.",
        held,
    );
    memory(page, &about, holders, hostname);
    processes(page, &about, holders);
}

/// A GPU with the labels of its values.
struct About<'a> {
    gpu: &'a GpuReading,
    /// With its holder; without one if there are several, because the values are no single
    /// holder's.
    labels: MetricLabels,
    /// The same without a holder.
    plain: MetricLabels,
    /// Whether it has several holders.
    shared: bool,
}

impl<'a> About<'a> {
    fn of(gpu: &'a GpuReading, holders: &DeviceHolders, hostname: &str) -> About<'a> {
        About {
            gpu,
            labels: held(gpu, holders, hostname),
            plain: named(gpu, None, hostname),
            shared: shared(gpu, holders),
        }
    }
}

/// Whether a GPU has several holders.
pub fn shared(gpu: &GpuReading, holders: &DeviceHolders) -> bool {
    holders.of(&gpu.id).len() > 1 || gpu.processes.len() > 1
}

/// The labels that identify a GPU, for families that only Muster has.
pub fn plainly(gpu: &GpuReading, hostname: &str) -> MetricLabels {
    MetricLabels::default()
        .with("gpu", &gpu.index.to_string())
        .with("UUID", &gpu.id)
        .with("Hostname", hostname)
}

/// A GPU's labels, with its holder if there is exactly one.
pub fn held(gpu: &GpuReading, holders: &DeviceHolders, hostname: &str) -> MetricLabels {
    let plain = named(gpu, None, hostname);
    match holders.of(&gpu.id) {
        [only] => held_by(plain, only),
        _ => plain,
    }
}

/// The labels that identify a GPU or slice.
fn named(gpu: &GpuReading, slice: Option<&SliceReading>, hostname: &str) -> MetricLabels {
    let device = gpu.minor.unwrap_or(gpu.index);
    let labels = MetricLabels::default()
        .with("gpu", &gpu.index.to_string())
        .with("UUID", &gpu.id)
        .with("pci_bus_id", &bus_id(&gpu.pci))
        .with("device", &format!("nvidia{device}"))
        .with("modelName", &gpu.model);
    let labels = match slice {
        None => labels,
        Some(slice) => {
            let instance = slice.instance.map(|number| number.to_string());
            labels
                .with("GPU_I_PROFILE", &slice.profile)
                .with("GPU_I_ID", &instance.unwrap_or_default())
        }
    };
    labels
        .with("Hostname", hostname)
        .with("DCGM_FI_DRIVER_VERSION", &gpu.driver)
}

/// The same with a container that holds it.
pub fn held_by(labels: MetricLabels, holder: &DeviceHolder) -> MetricLabels {
    labels
        .with("container", &holder.container)
        .with("namespace", &holder.namespace)
        .with("pod", &holder.pod)
}

/// sysfs writes the domain with four lower-case digits, NVML with eight upper-case ones.
fn bus_id(pci: &str) -> String {
    let capital = pci.to_ascii_uppercase();
    match capital.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}"),
        None => capital,
    }
}

/// The memory of GPUs, or of the slices of a partitioned GPU.
fn memory(page: &mut Page, about: &[About<'_>], holders: &DeviceHolders, hostname: &str) {
    let mut all = Vec::new();
    for about in about {
        if about.gpu.slices.is_empty() {
            all.extend(
                about
                    .gpu
                    .memory
                    .map(|memory| (about.labels.clone(), memory)),
            );
        }
        for slice in &about.gpu.slices {
            let plain = named(about.gpu, Some(slice), hostname);
            let labels = match holders.of(&slice.id) {
                [only] => held_by(plain, only),
                _ => plain,
            };
            all.extend(slice.memory.map(|memory| (labels, memory)));
        }
    }
    let mut one = |name: &str, help: &str, value: fn(&hardware::reading::DeviceMemory) -> u64| {
        let values = all
            .iter()
            .map(|(labels, memory)| (labels.clone(), count(value(memory))));
        page.family(name, Kind::Gauge, help, values);
    };
    one(
        "DCGM_FI_DEV_FB_FREE",
        "Framebuffer memory free (in MiB).",
        |memory| memory.free,
    );
    one(
        "DCGM_FI_DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        |memory| memory.used,
    );
    one(
        "DCGM_FI_DEV_FB_RESERVED",
        "Framebuffer memory reserved (in MiB).",
        |memory| memory.reserved,
    );
}

/// The use of each process on a GPU with several holders. With one holder the GPU's own values are
/// that holder's.
fn processes(page: &mut Page, about: &[About<'_>], holders: &DeviceHolders) {
    let shared = about.iter().filter(|about| about.shared);
    let all: Vec<_> = shared
        .flat_map(|about| {
            about.gpu.processes.iter().map(|process| {
                let labels = about.plain.clone().with("pid", &process.pid.to_string());
                let labels = match holders.of_process(process.pid) {
                    Some(holder) => held_by(labels, holder),
                    None => labels,
                };
                (labels, process)
            })
        })
        .collect();
    let memory = all.iter().filter_map(|(labels, process)| {
        let bytes = count(process.memory_mib?) * f64::from(1 << 20);
        Some((labels.clone(), bytes))
    });
    page.family(
        "muster_gpu_process_memory_bytes",
        Kind::Gauge,
        "Memory that a process has on a GPU which several use.",
        memory,
    );
    let busy = all.iter().filter_map(|(labels, process)| {
        let share = f64::from(process.percent?) / 100.0;
        Some((labels.clone(), share))
    });
    page.family(
        "muster_gpu_process_utilization_ratio",
        Kind::Gauge,
        "Share of the time in which a process computed on a GPU which several use.",
        busy,
    );
}
