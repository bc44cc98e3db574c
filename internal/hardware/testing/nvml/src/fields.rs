//! Values by field number.

use std::ffi::c_int;

use hardware::Gpu;
use hardware::description::GpuState;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlFieldValue_t, nvmlValue_t};

use crate::answer::{No, calls};

/// The most fields that one call may ask for.
const MOST: usize = 1024;

/// NVML's types of values that occur here.
const UNSIGNED: u32 = 1;
const LONG: u32 = 3;

/// A field's value and its type.
fn value(gpu: &Gpu, state: &GpuState, field: u32) -> Result<(u64, u32), No> {
    let ecc = || gpu.ecc.filter(|ecc| ecc.enabled).ok_or(No::NotSupported);
    let number = |value: u32| Ok((u64::from(value), UNSIGNED));
    match field {
        1 | 2 => Ok((
            u64::from(gpu.ecc.ok_or(No::NotSupported)?.enabled),
            UNSIGNED,
        )),
        // Corrected and not, since the driver was loaded and in the card's life.
        3 | 5 => Ok((ecc()?.corrected, LONG)),
        4 | 6 => Ok((ecc()?.uncorrected, LONG)),
        // Errors on all NVLinks, by kind.
        38 | 45 | 52 | 59 => {
            let kind = [38, 45, 52, 59].iter().position(|known| *known == field);
            let all = state.nvlink_errors.ok_or(No::NotSupported)?;
            Ok((all[kind.unwrap_or(0)], LONG))
        }
        82 => number(state.memory_celsius.ok_or(No::NotSupported)?),
        83 => Ok((state.energy_mj.ok_or(No::NotSupported)?, LONG)),
        94 => number(state.pcie_replays),
        // Over NVLinks, KiB: sent and received.
        138 | 139 => {
            let both = state.nvlink_kib.ok_or(No::NotSupported)?;
            Ok(((both + u64::from(field == 138)) / 2, LONG))
        }
        142 => number(ecc().map(|_| state.remapped[0])?),
        143 => number(ecc().map(|_| state.remapped[1])?),
        144 => number(ecc().map(|_| u32::from(state.remap_pending))?),
        145 => number(ecc().map(|_| u32::from(state.remap_failed))?),
        230 if state.old_driver => Err(No::NotSupported),
        230 => number(state.recovery),
        _ => Err(No::NotSupported),
    }
}

calls! {
    nvmlDeviceGetFieldValues(world | device: nvmlDevice_t, count: c_int, values: *mut nvmlFieldValue_t) {
        let (gpu, card) = world.card(device)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST);
        let count = count.ok_or(No::InvalidArgument)?;
        if values.is_null() {
            return Err(No::InvalidArgument);
        }
        for place in 0..count {
            let field = &mut *values.add(place);
            field.timestamp = 0;
            field.latencyUsec = 0;
            match value(gpu, &card.state, field.fieldId) {
                Ok((value, kind)) => {
                    field.nvmlReturn = 0;
                    field.valueType = kind;
                    field.value = nvmlValue_t { ullVal: value };
                }
                Err(no) => field.nvmlReturn = no as u32,
            }
        }
        Ok(())
    }
}
