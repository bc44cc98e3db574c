//! The driver's calls for MIG instances. Most are raw: the wrapper has none for instances, and its own call for
//! placements returns an empty list.

use std::mem::zeroed;
use std::ptr::null_mut;

use nvml_wrapper::Nvml;
use nvml_wrapper::device::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t,
    nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use super::{Card, ChangeEffect};
use crate::mig;
use crate::partition::{GpuInstance, InstanceProfile, PartitionStep};

/// The second version of the driver's structure for profiles: its size, with the version in the bits above.
const PROFILE_INFO_V2: u32 = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as u32 | 2 << 24;
/// Room for a GPU's instances of one kind: a GPU has at most eight slices.
const ROOM: usize = 16;

/// Calls a function of the driver's library that the wrapper lacks.
macro_rules! call {
    ($lib:expr, $name:ident($($argument:expr),*)) => {{
        let function = nvml_sym($lib.$name.as_ref())?;
        // SAFETY: handles belong to the driver and are used while its library is open; output pointers are valid, as
        // large as the call requires, and unused after it returns.
        nvml_try(unsafe { function($($argument),*) })?;
    }};
}

/// A GPU and its partitioning.
pub fn card(nvml: &Nvml, device: &Device<'_>, index: u32) -> Result<Card, NvmlError> {
    let mut card = Card {
        id: device.uuid()?,
        index,
        model: device.name()?,
        device: device.pci_info()?.pci_device_id,
        ..Card::default()
    };
    let processes = device.running_compute_processes()?.into_iter();
    card.processes = processes.map(|it| (it.pid, it.gpu_instance_id)).collect();
    let mode = match device.mig_mode() {
        Ok(mode) => mode,
        // The GPU cannot be partitioned, or its driver predates MIG.
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => return Ok(card),
        Err(error) => return Err(error),
    };
    card.capable = true;
    card.layout.enabled = mode.current == 1;
    card.waits = mode.current != mode.pending;
    card.profiles = profiles(nvml, device, &card.model)?;
    if card.layout.enabled {
        for profile in &card.profiles {
            (card.layout.instances).extend(instances(nvml, device, profile.id)?);
        }
        card.layout.instances.sort_by_key(|instance| instance.id);
        for place in 0..device.mig_device_count()? {
            // The call returns the maximum number: unused places do not answer.
            let Ok(slice) = device.mig_device_by_index(place) else {
                continue;
            };
            let mut instance = 0;
            call!(
                nvml.lib(),
                nvmlDeviceGetGpuInstanceId(slice.handle(), &raw mut instance)
            );
            card.slices.insert(slice.uuid()?, instance);
        }
    }
    Ok(card)
}

/// A product's profiles. The driver numbers them by shape, and a product has some of the shapes.
fn profiles(
    nvml: &Nvml,
    device: &Device<'_>,
    model: &str,
) -> Result<Vec<InstanceProfile>, NvmlError> {
    let mut all = Vec::new();
    for shape in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        let info = match profile_info(nvml, device, shape) {
            Ok(info) => info,
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => continue,
            Err(error) => return Err(error),
        };
        let characters = info.name.iter().map(|it| it.cast_unsigned());
        let name: Vec<u8> = characters.take_while(|byte| *byte != 0).collect();
        let name = String::from_utf8_lossy(&name);
        let name = name.strip_prefix("MIG ").unwrap_or(&name);
        let (starts, size) = match (placements(nvml, device, info.id), mig::profile(model, name)) {
            (Ok(possible), _) if !possible.0.is_empty() => possible,
            (_, Some(known)) => (known.starts.to_vec(), known.size),
            _ => (Vec::new(), 0),
        };
        all.push(InstanceProfile {
            name: name.to_owned(),
            id: info.id,
            slices: info.sliceCount,
            memory_mib: info.memorySizeMB,
            size,
            starts,
            most: info.instanceCount,
            engines: info.ofaCount,
        });
    }
    Ok(all)
}

fn profile_info(
    nvml: &Nvml,
    device: &Device<'_>,
    shape: u32,
) -> Result<nvmlGpuInstanceProfileInfo_v2_t, NvmlError> {
    // SAFETY: plain numbers and characters, for which zero is a value.
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
    info.version = PROFILE_INFO_V2;
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstanceProfileInfoV(device.handle(), shape, &raw mut info)
    );
    Ok(info)
}

/// The start positions of a profile's instances, and their size in memory slices.
fn placements(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: u32,
) -> Result<(Vec<u32>, u32), NvmlError> {
    let mut places = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; ROOM];
    let mut count = ROOM as u32;
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(
            device.handle(),
            profile,
            places.as_mut_ptr(),
            &raw mut count
        )
    );
    let places = &places[..ROOM.min(count as usize)];
    let mut starts: Vec<u32> = places.iter().map(|place| place.start).collect();
    starts.sort_unstable();
    Ok((starts, places.first().map_or(0, |place| place.size)))
}

/// The GPU instances of a profile.
fn instances(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: u32,
) -> Result<Vec<GpuInstance>, NvmlError> {
    let mut handles: [nvmlGpuInstance_t; ROOM] = [null_mut(); ROOM];
    let mut count = ROOM as u32;
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstances(
            device.handle(),
            profile,
            handles.as_mut_ptr(),
            &raw mut count
        )
    );
    let handles = &handles[..ROOM.min(count as usize)];
    let one = |handle: &nvmlGpuInstance_t| {
        // SAFETY: plain numbers and a handle that may be null.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
        call!(nvml.lib(), nvmlGpuInstanceGetInfo(*handle, &raw mut info));
        let computes = computes(nvml, *handle)?;
        Ok(GpuInstance {
            id: info.id,
            profile,
            start: info.placement.start,
            computes: computes.iter().map(|it| (it.id, it.slices)).collect(),
        })
    };
    handles.iter().map(one).collect()
}

/// A compute instance.
struct ComputeInstance {
    handle: nvmlComputeInstance_t,
    id: u32,
    slices: u32,
}

/// The compute instances of a GPU instance.
fn computes(nvml: &Nvml, instance: nvmlGpuInstance_t) -> Result<Vec<ComputeInstance>, NvmlError> {
    let mut all = Vec::new();
    for profile in compute_profiles(nvml, instance)? {
        let mut handles: [nvmlComputeInstance_t; ROOM] = [null_mut(); ROOM];
        let mut count = ROOM as u32;
        call!(
            nvml.lib(),
            nvmlGpuInstanceGetComputeInstances(
                instance,
                profile.id,
                handles.as_mut_ptr(),
                &raw mut count
            )
        );
        for handle in &handles[..ROOM.min(count as usize)] {
            // SAFETY: plain numbers and handles that may be null.
            let mut info: nvmlComputeInstanceInfo_t = unsafe { zeroed() };
            call!(
                nvml.lib(),
                nvmlComputeInstanceGetInfo_v2(*handle, &raw mut info)
            );
            all.push(ComputeInstance {
                handle: *handle,
                id: info.id,
                slices: profile.sliceCount,
            });
        }
    }
    all.sort_by_key(|compute| compute.id);
    Ok(all)
}

/// The profiles of compute instances that a GPU instance may have.
fn compute_profiles(
    nvml: &Nvml,
    instance: nvmlGpuInstance_t,
) -> Result<Vec<nvmlComputeInstanceProfileInfo_t>, NvmlError> {
    let one = |shape| {
        // SAFETY: plain numbers, for which zero is a value.
        let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
        call!(
            nvml.lib(),
            nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance,
                shape,
                NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                &raw mut info
            )
        );
        Ok(info)
    };
    let all = (0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT).map(one);
    let there =
        all.filter(|found| !matches!(found, Err(NvmlError::NotSupported | NvmlError::InvalidArg)));
    there.collect()
}

fn instance(nvml: &Nvml, device: &Device<'_>, id: u32) -> Result<nvmlGpuInstance_t, NvmlError> {
    let mut handle: nvmlGpuInstance_t = null_mut();
    call!(
        nvml.lib(),
        nvmlDeviceGetGpuInstanceById(device.handle(), id, &raw mut handle)
    );
    Ok(handle)
}

/// Executes a step.
pub fn take(
    nvml: &Nvml,
    device: &Device<'_>,
    step: &PartitionStep,
) -> Result<ChangeEffect, NvmlError> {
    match step {
        PartitionStep::RemoveCompute {
            instance: id,
            compute,
        } => {
            let all = computes(nvml, instance(nvml, device, *id)?)?;
            let found = all.iter().find(|it| it.id == *compute);
            let handle = found.ok_or(NvmlError::NotFound)?.handle;
            call!(nvml.lib(), nvmlComputeInstanceDestroy(handle));
        }
        PartitionStep::Remove { instance: id } => {
            let handle = instance(nvml, device, *id)?;
            call!(nvml.lib(), nvmlGpuInstanceDestroy(handle));
        }
        PartitionStep::Switch { on } => {
            // If another program has the GPU open, the call succeeds, and its second result is meaningless.
            let status = device.set_mig_mode(*on)?;
            let mode = device.mig_mode()?;
            if mode.current == u32::from(*on) {
                return Ok(ChangeEffect::Now);
            }
            if mode.pending == u32::from(*on) {
                return Ok(ChangeEffect::AfterReset);
            }
            nvml_try(status)?;
            return Err(NvmlError::Unknown);
        }
        PartitionStep::Make {
            profile,
            start,
            size,
            ..
        } => {
            let place = nvmlGpuInstancePlacement_t {
                start: *start,
                size: *size,
            };
            let mut handle: nvmlGpuInstance_t = null_mut();
            call!(
                nvml.lib(),
                nvmlDeviceCreateGpuInstanceWithPlacement(
                    device.handle(),
                    *profile,
                    &raw const place,
                    &raw mut handle
                )
            );
            fill(nvml, handle)?;
        }
        PartitionStep::MakeCompute { instance: id } => fill(nvml, instance(nvml, device, *id)?)?,
    }
    Ok(ChangeEffect::Now)
}

/// Creates a compute instance of a whole GPU instance: the largest possible one.
fn fill(nvml: &Nvml, instance: nvmlGpuInstance_t) -> Result<(), NvmlError> {
    let all = compute_profiles(nvml, instance)?;
    // Of several compute profiles of the whole instance, the first is the plain one.
    let whole = all.iter().rev().max_by_key(|it| it.sliceCount);
    let whole = whole.ok_or(NvmlError::NotSupported)?;
    let mut handle: nvmlComputeInstance_t = null_mut();
    call!(
        nvml.lib(),
        nvmlGpuInstanceCreateComputeInstance(instance, whole.id, &raw mut handle)
    );
    Ok(())
}
