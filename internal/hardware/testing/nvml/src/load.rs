//! The load of GPUs: utilisation, clocks, power, temperatures, throttling.

use std::ffi::{c_uint, c_ulonglong};

use hardware::description::GpuState;
use nvml_wrapper_sys::bindings::{
    nvmlClockType_t, nvmlDevice_t, nvmlPcieUtilCounter_t, nvmlPerfPolicyType_t, nvmlPstates_t,
    nvmlTemperatureSensors_t, nvmlUtilization_t, nvmlViolationTime_t,
};

use crate::answer::{No, calls, put};
use crate::world::World;

/// The sampling period, microseconds.
const SAMPLED: c_uint = 167_000;
/// Every reason for low clocks that NVML knows.
const REASONS: c_ulonglong = 0x1ff;

fn state(world: &World, device: nvmlDevice_t) -> Result<&GpuState, No> {
    Ok(&world.card(device)?.1.state)
}

/// A clock in MHz, by NVML's number: 0 is graphics, 1 the multiprocessors', 2 the memory's, 3
/// video's.
fn clock(world: &World, device: nvmlDevice_t, kind: nvmlClockType_t) -> Result<u32, No> {
    let state = state(world, device)?;
    match kind {
        0 | 1 | 3 => state.sm_mhz.ok_or(No::NotSupported),
        2 => state.memory_mhz.ok_or(No::NotSupported),
        _ => Err(No::InvalidArgument),
    }
}

calls! {
    nvmlDeviceGetUtilizationRates(world | device: nvmlDevice_t, out: *mut nvmlUtilization_t) {
        let gpu = world.whole(device)?.load.percent.ok_or(No::NotSupported)?;
        let memory = state(world, device)?.memory_utilisation.unwrap_or(0);
        put(out, nvmlUtilization_t { gpu, memory })
    }

    nvmlDeviceGetEncoderUtilization(world | device: nvmlDevice_t, out: *mut c_uint, period: *mut c_uint) {
        put(out, state(world, device)?.encoder.ok_or(No::NotSupported)?)?;
        put(period, SAMPLED)
    }

    nvmlDeviceGetDecoderUtilization(world | device: nvmlDevice_t, out: *mut c_uint, period: *mut c_uint) {
        put(out, state(world, device)?.decoder.ok_or(No::NotSupported)?)?;
        put(period, SAMPLED)
    }

    nvmlDeviceGetTemperature(world | device: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, out: *mut c_uint) {
        if sensor != 0 {
            return Err(No::InvalidArgument);
        }
        put(out, world.whole(device)?.load.celsius.ok_or(No::NotSupported)?)
    }

    nvmlDeviceGetPowerUsage(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, world.whole(device)?.load.milliwatts.ok_or(No::NotSupported)?)
    }

    nvmlDeviceGetEnforcedPowerLimit(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, world.whole(device)?.load.milliwatts_limit.ok_or(No::NotSupported)?)
    }

    nvmlDeviceGetPowerManagementLimit(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, world.whole(device)?.load.milliwatts_limit.ok_or(No::NotSupported)?)
    }

    nvmlDeviceGetTotalEnergyConsumption(world | device: nvmlDevice_t, out: *mut c_ulonglong) {
        put(out, state(world, device)?.energy_mj.ok_or(No::NotSupported)?)
    }

    nvmlDeviceGetClockInfo(world | device: nvmlDevice_t, kind: nvmlClockType_t, out: *mut c_uint) {
        put(out, clock(world, device, kind)?)
    }

    nvmlDeviceGetMaxClockInfo(world | device: nvmlDevice_t, kind: nvmlClockType_t, out: *mut c_uint) {
        put(out, clock(world, device, kind)?)
    }

    nvmlDeviceGetPerformanceState(world | device: nvmlDevice_t, out: *mut nvmlPstates_t) {
        let idle = state(world, device)?.throttle & 1 == 1;
        put(out, if idle { 8 } else { 0 })
    }

    nvmlDeviceGetCurrentClocksThrottleReasons(world | device: nvmlDevice_t, out: *mut c_ulonglong) {
        put(out, state(world, device)?.throttle)
    }

    nvmlDeviceGetSupportedClocksThrottleReasons(world | device: nvmlDevice_t, out: *mut c_ulonglong) {
        state(world, device)?;
        put(out, REASONS)
    }

    nvmlDeviceGetViolationStatus(world | device: nvmlDevice_t, _policy: nvmlPerfPolicyType_t, out: *mut nvmlViolationTime_t) {
        state(world, device)?;
        put(out, nvmlViolationTime_t { referenceTime: 0, violationTime: 0 })
    }

    nvmlDeviceGetPcieReplayCounter(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, state(world, device)?.pcie_replays)
    }

    nvmlDeviceGetPcieThroughput(world | device: nvmlDevice_t, _counter: nvmlPcieUtilCounter_t, out: *mut c_uint) {
        state(world, device)?;
        put(out, 0)
    }
}
