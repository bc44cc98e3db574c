//! GPUs from NVML. A machine without the library has none, which is no error; if a driver is
//! loaded and does not answer, the inventory's warnings say so. Owns the open library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::device::Device;
use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, nvmlGpuFabricInfo_v2_t,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN,
};

use crate::capabilities;
use crate::fault_signs::{GpuFault, Signs};
use crate::inventory::{
    DriverLoad, Ecc, FabricState, Gpu, GpuPath, Inventory, LinkKind, MigDevice, Origin,
};
use crate::mig::profile_mib;
use crate::system::numa_of_pci;
use crate::wiring::PcieLink;

/// The most NVLinks that are queried; the library refuses those that a GPU lacks.
const MAX_LINKS: u32 = 36;
/// The second version of the driver's structure for fabrics: its size, with the version in the
/// bits above.
const FABRIC_INFO_V2: u32 = size_of::<nvmlGpuFabricInfo_v2_t>() as u32 | 2 << 24;

/// The driver's library, opened at first use and kept.
#[derive(Default)]
pub struct NvmlDriver {
    nvml: Option<Nvml>,
    /// The library's path; if absent, the system's search path applies.
    library: Option<PathBuf>,
    /// The last answer of each GPU, by its id.
    known: BTreeMap<String, Gpu>,
}

impl NvmlDriver {
    /// A driver whose library is in the given file: a stand-in, or one in an unusual place.
    pub fn with_library(library: PathBuf) -> NvmlDriver {
        NvmlDriver {
            nvml: None,
            library: Some(library),
            known: BTreeMap::new(),
        }
    }

    /// Adds the GPUs that exist now.
    pub fn observe(&mut self, root: &Path, inventory: &mut Inventory) {
        let driver_is_there = root.join("proc/driver/nvidia/version").exists();
        if self.nvml.is_none() {
            match open(self.library.as_deref()) {
                Ok(nvml) => self.nvml = Some(nvml),
                Err(error) => {
                    inventory
                        .warnings
                        .extend(complaint(&error, driver_is_there));
                    self.silent(inventory, &error);
                    return;
                }
            }
        }
        let Some(nvml) = &self.nvml else { return };
        let count = match nvml.device_count() {
            Ok(count) => count,
            Err(error) => {
                inventory.warnings.push(format!(
                    "the NVIDIA driver does not say how many GPUs there are: {error}"
                ));
                // The next look opens the library again: the driver may have been reloaded.
                self.nvml = None;
                self.silent(inventory, &error);
                return;
            }
        };
        let driver = nvml.sys_driver_version().unwrap_or_default();
        inventory.cuda = (nvml.sys_cuda_driver_version()).map_or_else(
            |_| String::new(),
            |version| format!("{}.{}", version / 1000, version % 1000 / 10),
        );
        let mut devices = Vec::new();
        let mut unanswered = Vec::new();
        for index in 0..count {
            let device = nvml.device_by_index(index);
            let described =
                device.and_then(|device| Ok((describe(&device, index, &driver, root)?, device)));
            match described {
                Ok((gpu, device)) => {
                    inventory.gpus.push(gpu);
                    devices.push(device);
                }
                // A dead GPU must neither hide the others nor be forgotten.
                Err(error) => unanswered.push((index, GpuFault::silent(&error))),
            }
        }
        link(nvml, &devices, &mut inventory.gpus);
        (self.known).extend(
            inventory
                .gpus
                .iter()
                .map(|gpu| (gpu.id.clone(), gpu.clone())),
        );
        let lost = self.lost(root, inventory, unanswered);
        self.give(inventory, lost);
    }

    /// The known GPUs that no longer answer, or that the driver no longer lists. GPUs that never
    /// answered get a warning that they are not offered.
    fn lost(
        &self,
        root: &Path,
        inventory: &mut Inventory,
        unanswered: Vec<(u32, GpuFault)>,
    ) -> Vec<Gpu> {
        let missing: Vec<&Gpu> = (self.known.values())
            .filter(|known| !inventory.gpus.iter().any(|gpu| gpu.id == known.id))
            .collect();
        for (index, fault) in &unanswered {
            if !missing.iter().any(|gpu| gpu.index == *index) {
                let problem = &fault.problem;
                (inventory.warnings).push(format!("GPU {index} is not offered: {problem}"));
            }
        }
        let lost = missing.into_iter().map(|gpu| {
            let fault = unanswered.iter().find(|(index, _)| *index == gpu.index);
            let mut fault = match fault {
                Some((_, fault)) => fault.clone(),
                None => GpuFault {
                    problem: "the driver no longer lists it".to_owned(),
                    fatal: true,
                },
            };
            if !on_bus(root, &gpu.pci) {
                fault.problem.push_str("; it has fallen off the PCIe bus");
                fault.fatal = true;
            }
            stopped(gpu, fault)
        });
        lost.collect()
    }

    /// Marks all known GPUs if the driver does not answer at all.
    fn silent(&self, inventory: &mut Inventory, error: &NvmlError) {
        let fault = GpuFault {
            problem: format!("the NVIDIA driver does not answer: {error}"),
            // Running pods may still have the driver: a library can be missing for a while.
            fatal: false,
        };
        let all = self.known.values().map(|gpu| stopped(gpu, fault.clone()));
        self.give(inventory, all.collect());
    }

    fn give(&self, inventory: &mut Inventory, stopped: Vec<Gpu>) {
        inventory.gpus.extend(stopped);
        (inventory.gpus).sort_by(|a, b| (a.index, &a.id).cmp(&(b.index, &b.id)));
        if !inventory.gpus.is_empty() {
            inventory.origin = Origin::Nvml;
        }
    }
}

/// A known GPU that now has this fault.
fn stopped(gpu: &Gpu, fault: GpuFault) -> Gpu {
    Gpu {
        healthy: false,
        failed: fault.fatal,
        problem: fault.problem,
        load: DriverLoad::default(),
        signs: Signs::default(),
        ..gpu.clone()
    }
}

/// Whether there is a PCIe device at this address, as far as sysfs shows.
fn on_bus(root: &Path, pci: &str) -> bool {
    let devices = root.join("sys/bus/pci/devices");
    !devices.exists() || devices.join(pci).exists()
}

/// Opens the given library, or the one that the system finds.
pub(crate) fn open(library: Option<&Path>) -> Result<Nvml, NvmlError> {
    match library {
        None => Nvml::init(),
        Some(path) => Nvml::builder().lib_path(path.as_os_str()).init(),
    }
}

/// The warning for a failed opening, if it deserves one.
fn complaint(error: &NvmlError, driver_is_there: bool) -> Option<String> {
    match error {
        NvmlError::LibloadingError(_) if driver_is_there => Some(
            "the NVIDIA driver is loaded but its library libnvidia-ml.so.1 is not found; install it to use the GPUs".into(),
        ),
        NvmlError::LibloadingError(_) => None,
        NvmlError::DriverNotLoaded if !driver_is_there => None,
        other => Some(format!("the NVIDIA driver's library does not start: {other}; the GPUs are not offered")),
    }
}

fn describe(device: &Device<'_>, index: u32, driver: &str, root: &Path) -> Result<Gpu, NvmlError> {
    let pci = address(&device.pci_info()?.bus_id);
    let capability = device.cuda_compute_capability();
    let (fabric, clique) = fabric(device);
    let signs = Signs::read(device);
    // A card may lack any value except the id.
    let memory = device.memory_info();
    let fault = match &memory {
        Err(error @ (NvmlError::GpuLost | NvmlError::Unknown)) => Some(GpuFault::silent(error)),
        _ => signs.fault(),
    };
    Ok(Gpu {
        id: device.uuid()?,
        index,
        minor: device.minor_number().ok(),
        model: device.name().unwrap_or_else(|_| "NVIDIA GPU".into()),
        load: load(device, memory.as_ref().ok().map(|memory| memory.used >> 20)),
        memory_mib: memory.map_or(0, |memory| memory.total >> 20),
        compute_capability: capability
            .map_or_else(|_| String::new(), |c| format!("{}.{}", c.major, c.minor)),
        driver: driver.to_string(),
        numa: numa_of_pci(root, &pci),
        under: String::new(),
        pcie: PcieLink {
            generation: device.current_pcie_link_gen().unwrap_or(0),
            width: device.current_pcie_link_width().unwrap_or(0),
            max_generation: device.max_pcie_link_gen().unwrap_or(0),
            max_width: device.max_pcie_link_width().unwrap_or(0),
        },
        ecc: ecc(device),
        fabric,
        clique,
        mode: mode(root, &pci),
        healthy: fault.is_none(),
        failed: fault.as_ref().is_some_and(|fault| fault.fatal),
        problem: fault.map(|fault| fault.problem).unwrap_or_default(),
        concerns: Vec::new(),
        signs,
        slices: slices(device, root),
        links: Vec::new(),
        pci,
    })
}

/// The error correction of a GPU's memory; none if the card has none.
pub(crate) fn ecc(device: &Device<'_>) -> Option<Ecc> {
    let enabled = device.is_ecc_enabled().ok()?.currently_enabled;
    let errors = |kind| device.total_ecc_errors(kind, EccCounter::Aggregate);
    Some(Ecc {
        enabled,
        corrected: errors(MemoryError::Corrected).unwrap_or(0),
        uncorrected: errors(MemoryError::Uncorrected).unwrap_or(0),
    })
}

/// A GPU's state in its fabric; the wrapper has no call for it. Drivers before 535 have none
/// either, and then a GPU counts as needing no fabric.
fn fabric(device: &Device<'_>) -> (FabricState, String) {
    let none = String::new();
    let Ok(call) = device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref() else {
        return (FabricState::None, none);
    };
    let mut info = nvmlGpuFabricInfo_v2_t {
        version: FABRIC_INFO_V2,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
    };
    // SAFETY: the handle belongs to the driver and is valid as long as its library is open; `info`
    // has the version that its first field states, and the driver writes nothing beyond it.
    let answer = unsafe { call(device.handle(), (&raw mut info).cast()) };
    match (answer, u32::from(info.state)) {
        (0, NVML_GPU_FABRIC_STATE_COMPLETED) if info.status == 0 => {
            // A fabric of one machine has no UUID.
            let spans = info.clusterUuid.iter().any(|byte| *byte != 0);
            let clique = || format!("{}.{}", uuid(&info.clusterUuid), info.cliqueId);
            (FabricState::Completed, if spans { clique() } else { none })
        }
        (0, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED) => (FabricState::None, none),
        (0, _) => (FabricState::Starting, none),
        _ => (FabricState::None, none),
    }
}

/// A UUID in its usual form.
fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

/// The purpose of a card by its PCI class: 3D controllers only compute, VGA controllers also draw.
fn mode(root: &Path, pci: &str) -> String {
    let class = crate::system::line(&root.join("sys/bus/pci/devices").join(pci).join("class"));
    let mode = match class.as_deref().map(|class| class.get(..6)) {
        Some(Some("0x0302")) => "compute",
        Some(Some("0x0300")) => "graphics",
        _ => "",
    };
    mode.to_owned()
}

/// A GPU's load. A card may lack a sensor, and a driver a call.
fn load(device: &Device<'_>, memory_mib: Option<u64>) -> DriverLoad {
    DriverLoad {
        percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        memory_mib,
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        milliwatts: device.power_usage().ok(),
        milliwatts_limit: device.enforced_power_limit().ok(),
    }
}

/// The slices of a GPU in MIG mode; none if it is not in MIG mode, or does not support it.
fn slices(device: &Device<'_>, root: &Path) -> Option<Vec<MigDevice>> {
    let mode = device.mig_mode().ok()?;
    if mode.current == 0 {
        return None;
    }
    let places = 0..device.mig_device_count().unwrap_or(0);
    // The driver returns the maximum number: unused places do not answer.
    let cut = places.filter_map(|place| device.mig_device_by_index(place).ok());
    let slices = cut.filter_map(|slice| {
        Some(MigDevice {
            id: slice.uuid().ok()?,
            profile: slice_profile(&slice.name().ok()?)?.to_owned(),
            memory_mib: slice.memory_info().map_or(0, |memory| memory.total >> 20),
            capabilities: capabilities(device, &slice, root).unwrap_or_default(),
        })
    });
    Some(slices.collect())
}

/// The device files of a slice; the wrapper has no calls for its instances' numbers.
fn capabilities(gpu: &Device<'_>, slice: &Device<'_>, root: &Path) -> Option<Vec<u32>> {
    let lib = slice.nvml().lib();
    let ask_instance = lib.nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    let ask_compute = lib.nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
    let (mut instance, mut compute) = (0, 0);
    // SAFETY: the handle belongs to the driver, and both numbers are writable.
    let answers = unsafe {
        [
            ask_instance(slice.handle(), &raw mut instance),
            ask_compute(slice.handle(), &raw mut compute),
        ]
    };
    let minor = gpu.minor_number().ok()?;
    (answers == [0, 0]).then(|| capabilities::of_slice(root, minor, instance, compute))
}

/// The profile in a slice's name: `NVIDIA A100-SXM4-80GB MIG 1g.10gb`.
pub(crate) fn slice_profile(name: &str) -> Option<&str> {
    let (_, profile) = name.rsplit_once("MIG ")?;
    Some(profile.trim()).filter(|profile| profile_mib(profile).is_some())
}

/// Converts NVML's address (eight digits of domain, upper case) to that of sysfs (four digits,
/// lower case).
pub(crate) fn address(bus_id: &str) -> String {
    let small = bus_id.to_ascii_lowercase();
    match small.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            format!("{}:{rest}", &domain[domain.len() - 4..])
        }
        _ => small,
    }
}

/// Fills in the links. `devices` and `gpus` are parallel.
fn link(nvml: &Nvml, devices: &[Device<'_>], gpus: &mut [Gpu]) {
    let places: Vec<(String, String)> = gpus
        .iter()
        .map(|gpu| (gpu.id.clone(), gpu.pci.clone()))
        .collect();
    let nvlinks: Vec<NvLinks> = devices
        .iter()
        .map(|device| NvLinks::of(device, &places))
        .collect();
    for (from, device) in devices.iter().enumerate() {
        gpus[from].signs.nvlinks = nvlinks[from].up;
        for to in (0..devices.len()).filter(|to| *to != from) {
            let direct = nvlinks[from].direct.get(&to).copied().unwrap_or(0);
            let switched = nvlinks[from].switched.min(nvlinks[to].switched);
            let (kind, count) = if direct > 0 {
                (LinkKind::Nvl, direct)
            } else if switched > 0 {
                (LinkKind::Nvs, switched)
            } else {
                let other = nvml.device_by_index(gpus[to].index);
                match other.and_then(|other| device.topology_common_ancestor(other)) {
                    Ok(level) => (kind(level), 0),
                    Err(_) => continue,
                }
            };
            gpus[from].links.push(GpuPath {
                to: places[to].0.clone(),
                kind,
                count,
            });
        }
    }
}

/// A GPU's NVLinks that are up.
#[derive(Default)]
struct NvLinks {
    /// Number of links directly to the GPU at each place.
    direct: BTreeMap<usize, u32>,
    /// Number of links to a switch.
    switched: u32,
    /// Number of links that are up, whatever their other end.
    up: u32,
}

impl NvLinks {
    fn of(device: &Device<'_>, places: &[(String, String)]) -> NvLinks {
        let mut found = NvLinks::default();
        for number in 0..MAX_LINKS {
            let nvlink = device.link_wrapper_for(number);
            match nvlink.is_active() {
                Ok(true) => found.up += 1,
                // The GPU has no more links.
                Err(NvmlError::InvalidArg) => break,
                _ => continue,
            }
            let Ok(remote) = nvlink.remote_pci_info() else {
                continue;
            };
            let place = address(&remote.bus_id);
            match places.iter().position(|(_, pci)| *pci == place) {
                Some(other) => *found.direct.entry(other).or_default() += 1,
                None if leads_to_switch(device, number) => found.switched += 1,
                // A GPU that does not answer, or a processor.
                None => {}
            }
        }
        found
    }
}

/// Whether a link that leads to none of the GPUs leads to a switch. The wrapper's own call always
/// answers Unknown; if the driver does not say, a switch is assumed.
fn leads_to_switch(device: &Device<'_>, link: u32) -> bool {
    let mut kind = nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    if let Ok(call) = (device.nvml().lib().nvmlDeviceGetNvLinkRemoteDeviceType).as_ref() {
        // SAFETY: the handle belongs to the driver and is valid as long as its library is open,
        // and `kind` is writable.
        let answer = unsafe { call(device.handle(), link, &raw mut kind) };
        if answer == 0 && kind != nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_UNKNOWN {
            return kind == nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH;
        }
    }
    true
}

fn kind(level: TopologyLevel) -> LinkKind {
    match level {
        TopologyLevel::Internal | TopologyLevel::Single => LinkKind::Pix,
        TopologyLevel::Multiple => LinkKind::Pxb,
        TopologyLevel::HostBridge => LinkKind::Phb,
        TopologyLevel::Node => LinkKind::Node,
        TopologyLevel::System => LinkKind::Sys,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slices_name_ends_with_its_profile() {
        let name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb";
        assert_eq!(slice_profile(name), Some("1g.10gb"));
        assert_eq!(
            slice_profile("NVIDIA A100-SXM4-80GB MIG 1g.10gb+me"),
            Some("1g.10gb+me")
        );
        assert_eq!(slice_profile("NVIDIA H100 80GB HBM3"), None);
    }

    #[test]
    fn a_uuid_is_written_in_five_parts() {
        let bytes = std::array::from_fn(|at| u8::try_from(at * 17).unwrap());
        assert_eq!(uuid(&bytes), "00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn addresses_take_the_form_of_sysfs() {
        assert_eq!(address("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(address("0001:1b:00.0"), "0001:1b:00.0");
        assert_eq!(address("rubbish"), "rubbish");
    }

    #[test]
    fn silence_without_a_driver_and_a_warning_with_one() {
        assert_eq!(complaint(&NvmlError::DriverNotLoaded, false), None);
        assert!(
            complaint(&NvmlError::DriverNotLoaded, true)
                .unwrap()
                .contains("does not start")
        );
        assert!(complaint(&NvmlError::Unknown, false).is_some());
    }

    #[test]
    fn a_machine_without_the_library_has_no_gpus() {
        let mut inventory = Inventory::default();
        let mut driver = NvmlDriver::default();
        driver.observe(Path::new("/nowhere"), &mut inventory);
        if driver.nvml.is_none() {
            assert_eq!(inventory, Inventory::default());
        }
    }
}
