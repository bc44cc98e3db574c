//! Event sets for XIDs, which appear as the description's lists grow.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlReturn_t};

use crate::answer::{No, NvmlResult, calls, code, put};
use crate::world::{self, World, handle};

/// An XID happened.
const XID: c_ulonglong = 8;
/// The supported events: memory errors of one bit or two, and XIDs.
const SUPPORTED: c_ulonglong = 1 | 2 | XID;
/// Interval at which the description is read during a wait.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// NVML's value for an event without a slice.
const NO_INSTANCE: c_uint = u32::MAX;

/// The existing event sets.
#[derive(Default)]
pub struct Sets {
    made: usize,
    /// By number: each registered GPU, with the number of its reported XIDs.
    open: BTreeMap<usize, BTreeMap<usize, usize>>,
}

fn set_of(world: &mut World, set: nvmlEventSet_t) -> Result<&mut BTreeMap<usize, usize>, No> {
    (world.sets.open)
        .get_mut(&(set as usize))
        .ok_or(No::InvalidArgument)
}

/// The next XID that a set has not reported, if there is one.
fn next(world: &mut World, set: nvmlEventSet_t) -> Result<Option<nvmlEventData_t>, No> {
    let reported: Vec<Vec<u64>> = (world.machine.cards.iter())
        .map(|card| card.state.xids.clone())
        .collect();
    for (place, told) in set_of(world, set)? {
        let Some(xids) = reported.get(*place) else {
            continue;
        };
        // A list that became shorter means that the driver was reloaded.
        *told = (*told).min(xids.len());
        if let Some(xid) = xids.get(*told) {
            *told += 1;
            return Ok(Some(nvmlEventData_t {
                device: handle(*place),
                eventType: XID,
                eventData: *xid,
                gpuInstanceId: NO_INSTANCE,
                computeInstanceId: NO_INSTANCE,
            }));
        }
    }
    Ok(None)
}

calls! {
    nvmlEventSetCreate(world | out: *mut nvmlEventSet_t) {
        world.sets.made += 1;
        let number = world.sets.made;
        world.sets.open.insert(number, BTreeMap::new());
        put(out, number as nvmlEventSet_t)
    }

    nvmlEventSetFree(world | set: nvmlEventSet_t) {
        let known = world.sets.open.remove(&(set as usize));
        known.map(|_| ()).ok_or(No::InvalidArgument)
    }

    nvmlDeviceGetSupportedEventTypes(world | device: nvmlDevice_t, out: *mut c_ulonglong) {
        world.whole(device)?;
        put(out, SUPPORTED)
    }

    nvmlDeviceRegisterEvents(world | device: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t) {
        let (gpu, card) = world.card(device)?;
        let (place, past) = (gpu.index as usize, card.state.xids.len());
        if types & !SUPPORTED != 0 {
            return Err(No::NotSupported);
        }
        let listened = set_of(world, set)?;
        if types & XID != 0 {
            // Earlier XIDs are not reported.
            listened.entry(place).or_insert(past);
        }
        Ok(())
    }
}

/// Waits for the next event within the given time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    out: *mut nvmlEventData_t,
    milliseconds: c_uint,
) -> nvmlReturn_t {
    let until = Instant::now() + Duration::from_millis(milliseconds.into());
    loop {
        let mut found = None;
        let asked: NvmlResult = world::with(|world| {
            found = next(world, set)?;
            Ok(())
        });
        if asked.is_err() {
            return code(asked);
        }
        if let Some(event) = found {
            // SAFETY: the caller's pointer is writable, by NVML's reference.
            return code(unsafe { put(out, event) });
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return code(Err(No::Timeout));
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}
