//! The compute processes of the GPUs.

use std::ffi::{c_uint, c_ulonglong};
use std::time::{SystemTime, UNIX_EPOCH};

use hardware::description::Process;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessUtilizationSample_t};

use crate::answer::{No, calls, put_list};
use crate::world::World;

/// NVML's value for a process without a slice.
const NO_INSTANCE: c_uint = u32::MAX;

/// The time of a sample that is taken now, microseconds since 1970.
fn now() -> c_ulonglong {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros() as c_ulonglong)
}

fn listed(
    world: &World,
    device: nvmlDevice_t,
    which: impl Fn(&Process) -> bool,
) -> Result<Vec<nvmlProcessInfo_t>, No> {
    let (_, card) = world.card(device)?;
    let processes = card.state.processes.iter().filter(|process| which(process));
    Ok(processes
        .map(|process| nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.memory_mib << 20,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        })
        .collect())
}

calls! {
    nvmlDeviceGetComputeRunningProcesses_v3(world | device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let processes = listed(world, device, |process| !process.mps)?;
        put_list(out, count, &processes)
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v3(world | device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let processes = listed(world, device, |process| process.mps)?;
        put_list(out, count, &processes)
    }

    nvmlDeviceGetGraphicsRunningProcesses_v3(world | device: nvmlDevice_t, count: *mut c_uint, out: *mut nvmlProcessInfo_t) {
        let processes = listed(world, device, |_| false)?;
        put_list(out, count, &processes)
    }

    nvmlDeviceGetProcessUtilization(world | device: nvmlDevice_t, out: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, seen: c_ulonglong) {
        let (_, card) = world.card(device)?;
        let now = now();
        let processes = card.state.processes.iter().filter(|_| seen < now);
        let samples: Vec<_> = processes
            .map(|process| nvmlProcessUtilizationSample_t {
                pid: process.pid,
                timeStamp: now,
                smUtil: process.utilisation,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
            })
            .collect();
        if samples.is_empty() {
            // The driver's answer if it took no sample since.
            return Err(No::NotFound);
        }
        put_list(out, count, &samples)
    }
}
