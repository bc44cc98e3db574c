//! Reads the GPUs' measurements repeatedly, from NVML or from a described machine. Owns its own
//! open library, and the state between two readings: samples of performance counters, and the time
//! of the last look at processes.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;

use nvml_wrapper::Nvml;
use nvml_wrapper::device::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlGpmSample_t, nvmlGridLicensableFeatures_t, nvmlValue_t,
};

use crate::description::MachineDescription;
use crate::error::HardwareError;
use crate::fault_signs::{NvlinkErrors, fields};
use crate::gpus::{address, ecc, open, slice_profile};
use crate::inventory::Inventory;
use crate::reading::{
    DeviceMemory, GpuReading, PerformanceCounters, ProcessReading, Rows, SliceReading,
};
use crate::sources::InventorySources;

/// NVML's field numbers: the memory's temperature, rows remapped for corrected and for uncorrected
/// errors, a pending remapping, and a failed one; errors on NVLinks.
const FIELDS: [u32; 9] = [82, 142, 143, 144, 145, 38, 45, 52, 59];
/// Data sent and received over NVLinks; KiB.
const NVLINK_FIELDS: [u32; 2] = [138, 139];
/// The value for all links, instead of a link's number.
const ALL_LINKS: u32 = u32::MAX;
/// NVML's type of 64-bit values.
const LONG: u32 = 3;

/// Reads the values of GPUs.
pub struct Meter {
    source: InventorySources,
    library: Option<Library>,
}

/// The open library. Samples belong to it and are freed before it.
struct Library {
    nvml: Nvml,
    /// Each GPU's last sample of its performance counters.
    samples: BTreeMap<String, Sample>,
    /// Time of the last look at each GPU's processes, by the driver's clock.
    seen: BTreeMap<String, u64>,
}

/// A sample that outlives the call that took it.
struct Sample(nvmlGpmSample_t);

// SAFETY: NVML lets any thread use a sample, one at a time; it is reachable only through its
// library's single owner.
unsafe impl Send for Sample {}

impl Drop for Library {
    fn drop(&mut self) {
        for Sample(handle) in std::mem::take(&mut self.samples).into_values() {
            // SAFETY: the sample comes from this library, and is freed here only.
            drop(unsafe { GpmSample::from_handle(&self.nvml, handle) });
        }
    }
}

impl Meter {
    /// Opens nothing yet.
    pub fn new(source: InventorySources) -> Meter {
        Meter {
            source,
            library: None,
        }
    }

    /// The values of the GPUs that answer, by index. A machine without the library has none.
    pub fn read(&mut self) -> Result<Vec<GpuReading>, HardwareError> {
        if let Some(path) = &self.source.description {
            let machine = MachineDescription::load(path)?.machine(Inventory::default());
            if machine.driver_gone {
                return Ok(Vec::new());
            }
            let gpus = machine.inventory.gpus.iter().zip(&machine.cards);
            return Ok(gpus
                .filter_map(|(gpu, card)| GpuReading::described(gpu, card))
                .collect());
        }
        if !self.source.nvml {
            return Ok(Vec::new());
        }
        if self.library.is_none() {
            self.library = open(self.source.library.as_deref()).ok().map(Library::new);
        }
        let Some(library) = &mut self.library else {
            return Ok(Vec::new());
        };
        match library.read() {
            Ok(readings) => Ok(readings),
            Err(_) => {
                // The next reading opens the library again: the driver may have been reloaded.
                self.library = None;
                Ok(Vec::new())
            }
        }
    }
}

impl Library {
    fn new(nvml: Nvml) -> Library {
        Library {
            nvml,
            samples: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    fn read(&mut self) -> Result<Vec<GpuReading>, NvmlError> {
        let Library {
            nvml,
            samples,
            seen,
        } = self;
        let driver = nvml.sys_driver_version().unwrap_or_default();
        let mut readings = Vec::new();
        for index in 0..nvml.device_count()? {
            // A GPU that doesn't answer has no reading, and does not hide the others.
            let Ok(device) = nvml.device_by_index(index) else {
                continue;
            };
            let Ok(mut reading) = whole(&device, index, &driver) else {
                continue;
            };
            reading.counters = counters(&device, samples, &reading.id);
            let since = seen.entry(reading.id.clone()).or_insert(0);
            reading.processes = processes(&device, since);
            readings.push(reading);
        }
        Ok(readings)
    }
}

/// All values of a GPU.
fn whole(device: &Device<'_>, index: u32, driver: &str) -> Result<GpuReading, NvmlError> {
    let rates = device.utilization_rates().ok();
    let fields = fields(device, &FIELDS);
    let field = |id: u32| fields.get(&id).copied();
    let rows = match (field(142), field(143)) {
        (Some(corrected), Some(uncorrected)) => Some(Rows {
            corrected,
            uncorrected,
            pending: field(144) == Some(1),
            failed: field(145) == Some(1),
        }),
        _ => None,
    };
    Ok(GpuReading {
        id: device.uuid()?,
        index,
        minor: device.minor_number().ok(),
        model: device.name().unwrap_or_else(|_| "NVIDIA GPU".into()),
        driver: driver.to_owned(),
        pci: address(&device.pci_info()?.bus_id),
        sm_mhz: device.clock_info(Clock::SM).ok(),
        memory_mhz: device.clock_info(Clock::Memory).ok(),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        memory_celsius: field(82).and_then(|value| u32::try_from(value).ok()),
        milliwatts: device.power_usage().ok(),
        milliwatts_limit: device.enforced_power_limit().ok(),
        energy_mj: device.total_energy_consumption().ok(),
        percent: rates.as_ref().map(|rates| rates.gpu),
        memory_percent: rates.as_ref().map(|rates| rates.memory),
        encoder: (device.encoder_utilization().ok()).map(|share| share.utilization),
        decoder: (device.decoder_utilization().ok()).map(|share| share.utilization),
        memory: memory(device),
        pcie_replays: device.pcie_replay_counter().ok(),
        nvlink_kib: nvlink(device),
        nvlink_errors: NvlinkErrors::of(field),
        throttle: (device.current_throttle_reasons().ok()).map(|reasons| reasons.bits()),
        ecc: ecc(device).filter(|ecc| ecc.enabled),
        rows,
        licensed: licensed(device),
        counters: PerformanceCounters::default(),
        slices: slices(device),
        processes: Vec::new(),
    })
}

fn memory(device: &Device<'_>) -> Option<DeviceMemory> {
    let info = device.memory_info().ok()?;
    Some(DeviceMemory {
        used: info.used >> 20,
        free: info.free >> 20,
        reserved: info.reserved >> 20,
    })
}

/// Data that all NVLinks carried. The wrapper's call cannot ask for all links at once.
fn nvlink(device: &Device<'_>) -> Option<u64> {
    let call = (device.nvml().lib().nvmlDeviceGetFieldValues.as_ref()).ok()?;
    let mut values = NVLINK_FIELDS.map(|field| nvmlFieldValue_t {
        fieldId: field,
        scopeId: ALL_LINKS,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: 0,
        value: nvmlValue_t { ullVal: 0 },
    });
    // SAFETY: the handle belongs to the driver and is valid as long as its library is open; the
    // array has the stated number of values.
    let answer = unsafe { call(device.handle(), values.len() as i32, values.as_mut_ptr()) };
    let good = |value: &nvmlFieldValue_t| value.nvmlReturn == 0 && value.valueType == LONG;
    if answer != 0 || !values.iter().all(good) {
        return None;
    }
    // SAFETY: the driver says that each is a 64-bit number.
    let each = values.map(|value| unsafe { value.value.ullVal });
    Some(each[0].saturating_add(each[1]))
}

/// Whether a virtual GPU has a licence. The wrapper has no call for it, and lacks the version of
/// the list that the driver fills in.
fn licensed(device: &Device<'_>) -> Option<bool> {
    let call = (device
        .nvml()
        .lib()
        .nvmlDeviceGetGridLicensableFeatures_v4
        .as_ref())
    .ok()?;
    let mut features = MaybeUninit::<nvmlGridLicensableFeatures_t>::zeroed();
    // SAFETY: the handle belongs to the driver, and the list is writable.
    let answer = unsafe { call(device.handle(), features.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    // SAFETY: all fields are numbers and texts, for which zero is valid if the driver wrote none.
    let features = unsafe { features.assume_init() };
    let count = usize::try_from(features.licensableFeaturesCount).unwrap_or(0);
    let mut all = features.gridLicensableFeatures.iter().take(count);
    Some(features.isGridLicenseSupported != 0 && all.any(|feature| feature.featureState != 0))
}

fn slices(device: &Device<'_>) -> Vec<SliceReading> {
    if device.mig_mode().map_or(0, |mode| mode.current) == 0 {
        return Vec::new();
    }
    let places = 0..device.mig_device_count().unwrap_or(0);
    let cut = places.filter_map(|place| device.mig_device_by_index(place).ok());
    let reading = |slice: Device<'_>| {
        Some(SliceReading {
            id: slice.uuid().ok()?,
            profile: slice_profile(&slice.name().ok()?)?.to_owned(),
            instance: instance(&slice),
            memory: memory(&slice),
        })
    };
    cut.filter_map(reading).collect()
}

/// The number of a slice's GPU instance; the wrapper has no call for it.
fn instance(slice: &Device<'_>) -> Option<u32> {
    let call = (slice.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref()).ok()?;
    let mut number = 0;
    // SAFETY: the handle belongs to the driver, and `number` is writable.
    let answer = unsafe { call(slice.handle(), &raw mut number) };
    (answer == 0).then_some(number)
}

/// The performance counters since the last sample, which is replaced. The first reading has no
/// counters.
fn counters(
    device: &Device<'_>,
    kept: &mut BTreeMap<String, Sample>,
    id: &str,
) -> PerformanceCounters {
    if !device.gpm_support().unwrap_or(false) {
        return PerformanceCounters::default();
    }
    let Ok(now) = device.gpm_sample() else {
        return PerformanceCounters::default();
    };
    let nvml = device.nvml();
    // SAFETY: the sample comes from this library, and no other code holds it.
    let before =
        (kept.remove(id)).map(|Sample(handle)| unsafe { GpmSample::from_handle(nvml, handle) });
    let metrics = PerformanceCounters::METRICS.map(GpmMetricId::try_from);
    let metrics: Vec<GpmMetricId> = metrics.into_iter().flatten().collect();
    let shown = before.and_then(|before| gpm_metrics_get(nvml, &before, &now, &metrics).ok());
    kept.insert(id.to_owned(), Sample(now.into_handle()));
    let shown: Vec<_> = shown.into_iter().flatten().flatten().collect();
    PerformanceCounters::of(|number| {
        let mut of_it = shown
            .iter()
            .filter(|shown| shown.metric_id.as_c() == number);
        of_it.next().map(|shown| shown.value)
    })
}

/// The compute processes of a GPU, and their utilisation since `since`, which becomes now.
fn processes(device: &Device<'_>, since: &mut u64) -> Vec<ProcessReading> {
    let lists = [
        device.running_compute_processes(),
        device.mps_running_compute_processes(),
    ];
    let mut memory: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for ProcessInfo {
        pid,
        used_gpu_memory,
        ..
    } in lists.into_iter().flatten().flatten()
    {
        let used = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes >> 20),
            UsedGpuMemory::Unavailable => None,
        };
        // A process on several slices of one GPU is listed once for each.
        let sum = memory.entry(pid).or_insert(None);
        *sum = match (*sum, used) {
            (Some(before), Some(more)) => Some(before + more),
            (one, other) => one.or(other),
        };
    }
    if memory.is_empty() {
        return Vec::new();
    }
    // Several samples of each process; the driver keeps those of about a second.
    let samples = match device.process_utilization_stats(*since) {
        Ok(samples) => Some(samples),
        Err(NvmlError::NotFound) => Some(Vec::new()),
        Err(_) => None,
    };
    let latest = samples
        .iter()
        .flatten()
        .map(|sample| sample.timestamp)
        .max();
    *since = latest.unwrap_or(0).max(*since);
    let percent = |pid: u32| {
        let of_it = samples.as_ref()?.iter().filter(|sample| sample.pid == pid);
        let (sum, count) = of_it.fold((0, 0), |(sum, count), sample| {
            (sum + sample.sm_util, count + 1)
        });
        Some(sum / count.max(1))
    };
    (memory.into_iter())
        .map(|(pid, memory_mib)| ProcessReading {
            pid,
            memory_mib,
            percent: percent(pid),
        })
        .collect()
}
