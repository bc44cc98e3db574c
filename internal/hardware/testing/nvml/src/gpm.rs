//! Performance monitoring: samples, and the values between two samples.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use hardware::description::Metric;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};

use crate::answer::{No, calls, put};
use crate::world::World;

/// The allocated samples, by number; each is empty until it is taken.
#[derive(Default)]
pub struct Samples {
    made: usize,
    open: BTreeMap<usize, Option<Vec<Metric>>>,
}

/// Whether a GPU has these counters: GPUs from Hopper on have them.
fn has(world: &World, device: nvmlDevice_t) -> Result<bool, No> {
    let capability = &world.whole(device)?.compute_capability;
    let major = capability
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    Ok(major.is_some_and(|major| major >= 9))
}

/// Takes a sample of a GPU's counters.
fn take(world: &mut World, device: nvmlDevice_t, sample: nvmlGpmSample_t) -> Result<(), No> {
    if !has(world, device)? {
        return Err(No::NotSupported);
    }
    let shown = world.card(device)?.1.state.gpm.clone();
    let taken = world.samples.open.get_mut(&(sample as usize));
    *taken.ok_or(No::InvalidArgument)? = Some(shown);
    Ok(())
}

calls! {
    nvmlGpmSampleAlloc(world | out: *mut nvmlGpmSample_t) {
        world.samples.made += 1;
        let number = world.samples.made;
        world.samples.open.insert(number, None);
        put(out, number as nvmlGpmSample_t)
    }

    nvmlGpmSampleFree(world | sample: nvmlGpmSample_t) {
        let known = world.samples.open.remove(&(sample as usize));
        known.map(|_| ()).ok_or(No::InvalidArgument)
    }

    nvmlGpmSampleGet(world | device: nvmlDevice_t, sample: nvmlGpmSample_t) {
        take(world, device, sample)
    }

    nvmlGpmMigSampleGet(world | device: nvmlDevice_t, instance: c_uint, sample: nvmlGpmSample_t) {
        let place = world.whole(device)?.index as usize;
        world.cuts.get(place).ok_or(No::InvalidArgument)?.instance(instance)?;
        take(world, device, sample)
    }

    nvmlGpmQueryDeviceSupport(world | device: nvmlDevice_t, out: *mut nvmlGpmSupport_t) {
        let supported = c_uint::from(has(world, device)?);
        if out.is_null() {
            return Err(No::InvalidArgument);
        }
        put(&raw mut (*out).isSupportedDevice, supported)
    }

    nvmlGpmMetricsGet(world | request: *mut nvmlGpmMetricsGet_t) {
        if request.is_null() {
            return Err(No::InvalidArgument);
        }
        let request = &mut *request;
        let sample = |sample: nvmlGpmSample_t| {
            let taken = world.samples.open.get(&(sample as usize));
            taken.and_then(Option::as_ref).ok_or(No::InvalidArgument)
        };
        // Both must have been taken; the later sample has the values in between.
        sample(request.sample1)?;
        let shown = sample(request.sample2)?;
        let count = request.numMetrics as usize;
        let metrics = request.metrics.get_mut(..count).ok_or(No::InvalidArgument)?;
        for metric in metrics {
            let found = shown.iter().find(|shown| shown.metric == metric.metricId);
            metric.nvmlReturn = found.map_or(No::NotSupported as u32, |_| 0);
            metric.value = found.map_or(0.0, |found| found.value);
        }
        Ok(())
    }
}
