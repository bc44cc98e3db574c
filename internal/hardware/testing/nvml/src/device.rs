//! The devices and their properties.

use std::ffi::{CStr, c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlBrandType_t, nvmlComputeMode_t, nvmlDevice_t, nvmlDeviceArchitecture_t, nvmlEnableState_t,
    nvmlPciInfo_t,
};

use crate::answer::{No, NvmlResult, array, calls, put, put_text};
use crate::world::{HandleTarget, World, handle, slice_handle};

/// Writes the handle of the first GPU for which `is` holds.
///
/// # Safety
///
/// `out` is null, or may be written.
unsafe fn find(
    world: &World,
    out: *mut nvmlDevice_t,
    is: impl Fn(&hardware::Gpu) -> bool,
) -> NvmlResult {
    let place = world.gpus().iter().position(is).ok_or(No::NotFound)?;
    world.present(place)?;
    // SAFETY: the caller's own.
    unsafe { put(out, handle(place)) }
}

/// A caller's text.
///
/// # Safety
///
/// `text` is null, or ends.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, No> {
    if text.is_null() {
        return Err(No::InvalidArgument);
    }
    // SAFETY: not null, so it ends.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| No::InvalidArgument)
}

/// A PCI address in the driver's form: eight digits of domain, capitals.
pub fn bus_id(pci: &str) -> String {
    match pci.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}").to_ascii_uppercase(),
        None => pci.to_ascii_uppercase(),
    }
}

/// The same in NVML's structure.
pub fn pci_info(pci: &str) -> nvmlPciInfo_t {
    let mut parts = pci.split([':', '.']);
    let mut number = || u32::from_str_radix(parts.next().unwrap_or(""), 16).unwrap_or(0);
    nvmlPciInfo_t {
        busIdLegacy: array(&pci.to_ascii_uppercase()),
        domain: number(),
        bus: number(),
        device: number(),
        pciDeviceId: 0x10de,
        pciSubSystemId: 0,
        busId: array(&bus_id(pci)),
    }
}

/// NVML's number for an architecture, by the compute capability.
fn architecture(capability: &str) -> Option<u32> {
    let (major, minor) = capability.split_once('.')?;
    Some(match (major.parse().ok()?, minor.parse().ok()?) {
        (6, _) => 4,
        (7, 0..=4) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => return None,
    })
}

calls! {
    nvmlDeviceGetCount_v2(world | out: *mut c_uint) {
        put(out, c_uint::try_from(world.gpus().len()).unwrap_or(0))
    }

    nvmlDeviceGetHandleByIndex_v2(world | index: c_uint, out: *mut nvmlDevice_t) {
        world.present(index as usize)?;
        put(out, handle(index as usize))
    }

    nvmlDeviceGetHandleByUUID(world | uuid: *const c_char, out: *mut nvmlDevice_t) {
        let uuid = text(uuid)?;
        for (place, gpu) in world.gpus().iter().enumerate() {
            let mut slices = world.cuts[place].all();
            if let Some((instance, compute)) = slices.find(|(_, it)| it.slice.id == uuid) {
                let found = slice_handle(place, instance.id, compute.id);
                world.present(gpu.index as usize)?;
                return put(out, found);
            }
        }
        find(world, out, |gpu| gpu.id == uuid)
    }

    nvmlDeviceGetHandleByPciBusId_v2(world | address: *const c_char, out: *mut nvmlDevice_t) {
        let address = bus_id(text(address)?);
        find(world, out, |gpu| bus_id(&gpu.pci) == address)
    }

    nvmlDeviceGetName(world | device: nvmlDevice_t, out: *mut c_char, size: c_uint) {
        match world.target(device)? {
            HandleTarget::Whole(gpu) => put_text(out, size, &gpu.model),
            HandleTarget::Slice(gpu, slice) => {
                put_text(out, size, &format!("{} MIG {}", gpu.model, slice.profile))
            }
        }
    }

    nvmlDeviceGetUUID(world | device: nvmlDevice_t, out: *mut c_char, size: c_uint) {
        match world.target(device)? {
            HandleTarget::Whole(gpu) => put_text(out, size, &gpu.id),
            HandleTarget::Slice(_, slice) => put_text(out, size, &slice.id),
        }
    }

    nvmlDeviceGetIndex(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, world.whole(device)?.index)
    }

    nvmlDeviceGetMinorNumber(world | device: nvmlDevice_t, out: *mut c_uint) {
        let gpu = world.whole(device)?;
        put(out, gpu.minor.unwrap_or(gpu.index))
    }

    nvmlDeviceGetSerial(world | device: nvmlDevice_t, out: *mut c_char, size: c_uint) {
        let gpu = world.whole(device)?;
        put_text(out, size, &format!("{:013}", 1_650_000_000_000_u64 + u64::from(gpu.index)))
    }

    nvmlDeviceGetBrand(world | device: nvmlDevice_t, out: *mut nvmlBrandType_t) {
        // Tesla, as old cards have it, and NVIDIA, as new ones.
        let tesla = world.whole(device)?.model.starts_with("Tesla");
        put(out, if tesla { 2 } else { 14 })
    }

    nvmlDeviceGetArchitecture(world | device: nvmlDevice_t, out: *mut nvmlDeviceArchitecture_t) {
        let gpu = world.whole(device)?;
        put(out, architecture(&gpu.compute_capability).ok_or(No::NotSupported)?)
    }

    nvmlDeviceGetCudaComputeCapability(world | device: nvmlDevice_t, major: *mut c_int, minor: *mut c_int) {
        let (HandleTarget::Whole(gpu) | HandleTarget::Slice(gpu, _)) = world.target(device)?;
        let parts = gpu.compute_capability.split_once('.').ok_or(No::NotSupported)?;
        let number = |text: &str| text.parse::<c_int>().map_err(|_| No::NotSupported);
        put(major, number(parts.0)?)?;
        put(minor, number(parts.1)?)
    }

    nvmlDeviceGetPciInfo_v3(world | device: nvmlDevice_t, out: *mut nvmlPciInfo_t) {
        let (HandleTarget::Whole(gpu) | HandleTarget::Slice(gpu, _)) = world.target(device)?;
        put(out, pci_info(&gpu.pci))
    }

    nvmlDeviceGetVbiosVersion(world | device: nvmlDevice_t, out: *mut c_char, size: c_uint) {
        world.whole(device)?;
        put_text(out, size, "96.00.89.00.01")
    }

    nvmlDeviceGetBoardPartNumber(world | device: nvmlDevice_t, out: *mut c_char, size: c_uint) {
        world.whole(device)?;
        put_text(out, size, "900-00000-0000-000")
    }

    nvmlDeviceGetComputeMode(world | device: nvmlDevice_t, out: *mut nvmlComputeMode_t) {
        let index = world.whole(device)?.index;
        put(out, world.modes.get(&index).copied().unwrap_or(0))
    }

    nvmlDeviceSetComputeMode(world | device: nvmlDevice_t, mode: nvmlComputeMode_t) {
        let index = world.whole(device)?.index;
        world.modes.insert(index, mode);
        Ok(())
    }

    nvmlDeviceGetPersistenceMode(world | device: nvmlDevice_t, out: *mut nvmlEnableState_t) {
        world.whole(device)?;
        put(out, 1)
    }
}
