//! Memory: its size, its use, and its errors.

use std::ffi::{c_uint, c_ulonglong};

use hardware::Ecc;
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlDevice_t, nvmlEccCounterType_t, nvmlEnableState_t, nvmlMemory_t,
    nvmlMemory_v2_t, nvmlMemoryErrorType_t, nvmlMemoryLocation_t, nvmlPageRetirementCause_t,
};

use crate::answer::{No, calls, put};
use crate::world::{HandleTarget, World};

/// MiB that the driver reserves.
const RESERVED: u64 = 0;

/// A device's memory and its used part, in bytes.
fn memory(world: &World, device: nvmlDevice_t) -> Result<(u64, u64), No> {
    let (total, used) = match world.target(device)? {
        HandleTarget::Whole(gpu) => (gpu.memory_mib, gpu.load.memory_mib.unwrap_or(0)),
        HandleTarget::Slice(_, slice) => (slice.memory_mib, 0),
    };
    Ok((total << 20, used << 20))
}

fn ecc(world: &World, device: nvmlDevice_t) -> Result<Ecc, No> {
    world.whole(device)?.ecc.ok_or(No::NotSupported)
}

/// The count of an error: 0 is corrected, 1 is uncorrected. The same count serves as NVML's
/// volatile and as its aggregate count.
fn errors(world: &World, device: nvmlDevice_t, kind: nvmlMemoryErrorType_t) -> Result<u64, No> {
    let ecc = ecc(world, device)?;
    match kind {
        _ if !ecc.enabled => Err(No::NotSupported),
        0 => Ok(ecc.corrected),
        1 => Ok(ecc.uncorrected),
        _ => Err(No::InvalidArgument),
    }
}

calls! {
    nvmlDeviceGetMemoryInfo(world | device: nvmlDevice_t, out: *mut nvmlMemory_t) {
        let (total, used) = memory(world, device)?;
        put(out, nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }

    nvmlDeviceGetMemoryInfo_v2(world | device: nvmlDevice_t, out: *mut nvmlMemory_v2_t) {
        let (total, used) = memory(world, device)?;
        let version = if out.is_null() { 0 } else { (&raw const (*out).version).read() };
        put(out, nvmlMemory_v2_t {
            version,
            total,
            reserved: RESERVED << 20,
            free: total.saturating_sub(used),
            used,
        })
    }

    nvmlDeviceGetBAR1MemoryInfo(world | device: nvmlDevice_t, out: *mut nvmlBAR1Memory_t) {
        let total = (world.whole(device)?.memory_mib << 20).next_power_of_two();
        put(out, nvmlBAR1Memory_t { bar1Total: total, bar1Free: total, bar1Used: 0 })
    }

    nvmlDeviceGetEccMode(world | device: nvmlDevice_t, current: *mut nvmlEnableState_t, pending: *mut nvmlEnableState_t) {
        let mode = nvmlEnableState_t::from(ecc(world, device)?.enabled);
        put(current, mode)?;
        put(pending, mode)
    }

    nvmlDeviceGetTotalEccErrors(world | device: nvmlDevice_t, kind: nvmlMemoryErrorType_t, _counter: nvmlEccCounterType_t, out: *mut c_ulonglong) {
        put(out, errors(world, device, kind)?)
    }

    nvmlDeviceGetMemoryErrorCounter(world | device: nvmlDevice_t, kind: nvmlMemoryErrorType_t, _counter: nvmlEccCounterType_t, place: nvmlMemoryLocation_t, out: *mut c_ulonglong) {
        let count = errors(world, device, kind)?;
        // All of them are in the card's own memory, which is place 2.
        put(out, if place == 2 { count } else { 0 })
    }

    nvmlDeviceGetRetiredPages(world | device: nvmlDevice_t, _cause: nvmlPageRetirementCause_t, count: *mut c_uint, _addresses: *mut c_ulonglong) {
        ecc(world, device)?;
        put(count, 0)
    }

    nvmlDeviceGetRetiredPages_v2(world | device: nvmlDevice_t, _cause: nvmlPageRetirementCause_t, count: *mut c_uint, _addresses: *mut c_ulonglong, _times: *mut c_ulonglong) {
        ecc(world, device)?;
        put(count, 0)
    }

    nvmlDeviceGetRemappedRows(world | device: nvmlDevice_t, corrected: *mut c_uint, uncorrected: *mut c_uint, pending: *mut c_uint, failed: *mut c_uint) {
        let (gpu, card) = world.card(device)?;
        gpu.ecc.ok_or(No::NotSupported)?;
        let state = &card.state;
        put(corrected, state.remapped[0])?;
        put(uncorrected, state.remapped[1])?;
        put(pending, c_uint::from(state.remap_pending))?;
        put(failed, c_uint::from(state.remap_failed))
    }
}
