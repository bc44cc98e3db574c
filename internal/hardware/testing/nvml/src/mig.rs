//! MIG: the mode, profiles and placements, creating and removing instances, and slices as devices.
//! A change holds until the description changes the GPU's slices.

use std::ffi::c_uint;

use hardware::Gpu;
use hardware::description::MAX_SLICES;
use hardware::mig::{MigProfile, profiles};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t, nvmlDevice_t,
    nvmlDeviceAttributes_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlReturn_t,
};

use crate::answer::{No, NvmlResult, array, calls, code, put};
use crate::cut::{GpuPartitioning, SimulatedComputeInstance, SimulatedGpuInstance};
use crate::world::{HandleTarget, World, handle, number, parts, slice_handle};

/// The bit in the handles of instances, so that none is null.
const INSTANCE: usize = 1 << 30;
/// Slices of compute instances' profiles, by NVML's numbers of these.
const COMPUTE: [u32; 5] = [1, 2, 3, 4, 7];

/// The handle of a GPU instance, or of a compute instance in it.
fn instance_handle(place: usize, instance: u32, compute: u32) -> usize {
    INSTANCE | number(place, instance, compute)
}

/// The numbers in an instance's handle.
fn named(handle: usize) -> Result<(usize, u32, u32), No> {
    if handle & INSTANCE == 0 {
        return Err(No::InvalidArgument);
    }
    Ok(parts(handle & !INSTANCE))
}

fn cut(world: &World, place: usize) -> Result<&GpuPartitioning, No> {
    world.present(place)?;
    world.cuts.get(place).ok_or(No::InvalidArgument)
}

/// A GPU instance by its handle, with its GPU's place.
fn instance(
    world: &World,
    handle: nvmlGpuInstance_t,
) -> Result<(usize, &SimulatedGpuInstance), No> {
    let (place, instance, _) = named(handle as usize)?;
    Ok((place, cut(world, place)?.instance(instance)?))
}

/// The first profile of a product for which `is` holds.
fn profile_of(gpu: &Gpu, is: impl Fn(&MigProfile) -> bool) -> Result<&'static MigProfile, No> {
    let mut known = profiles(&gpu.model).iter();
    known.find(|profile| is(profile)).ok_or(No::NotSupported)
}

/// The compute profile of number `shape`, if it fits in an instance at all: its slices, and the
/// share of multiprocessors.
fn compute_profile(instance: &SimulatedGpuInstance, shape: c_uint) -> Result<(u32, u32), No> {
    let profile = instance.profile.ok_or(No::NotSupported)?;
    let slices = COMPUTE.get(shape as usize).copied();
    let slices = slices.filter(|slices| *slices <= profile.slices);
    let slices = slices.ok_or(No::NotSupported)?;
    Ok((slices, profile.multiprocessors * slices / profile.slices))
}

/// Writes a list and its length; the caller knows the needed room from the profile.
///
/// # Safety
///
/// `out` has room for so many, `count` may be written, or they are null.
unsafe fn put_all<T: Copy>(out: *mut T, count: *mut c_uint, list: &[T]) -> NvmlResult {
    if out.is_null() {
        return Err(No::InvalidArgument);
    }
    // SAFETY: the caller's own.
    unsafe {
        put(count, c_uint::try_from(list.len()).unwrap_or(0))?;
        out.copy_from_nonoverlapping(list.as_ptr(), list.len());
    }
    Ok(())
}

/// The GPU instance and compute instance of a slice's handle.
fn ids(
    world: &World,
    device: nvmlDevice_t,
) -> Result<(&SimulatedGpuInstance, &SimulatedComputeInstance), No> {
    let HandleTarget::Slice(gpu, slice) = world.target(device)? else {
        return Err(No::InvalidArgument);
    };
    let cut = cut(world, gpu.index as usize)?;
    let mut all = cut.all();
    all.find(|(_, compute)| compute.slice.id == slice.id)
        .ok_or(No::NotFound)
}

calls! {
    nvmlDeviceGetMigMode(world | device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) {
        let gpu = world.whole(device)?;
        let cut = cut(world, gpu.index as usize)?;
        if !cut.enabled && profiles(&gpu.model).is_empty() {
            return Err(No::NotSupported);
        }
        put(current, c_uint::from(cut.enabled))?;
        put(pending, c_uint::from(cut.pending.unwrap_or(cut.enabled)))
    }

    nvmlDeviceSetMigMode(world | device: nvmlDevice_t, mode: c_uint, activation: *mut nvmlReturn_t) {
        let gpu = world.whole(device)?;
        if profiles(&gpu.model).is_empty() {
            return Err(No::NotSupported);
        }
        if mode > 1 {
            return Err(No::InvalidArgument);
        }
        let place = gpu.index as usize;
        if world.card(device)?.1.state.mig_waits {
            put(activation, code(Err(No::InUse)))?;
            return world.recut(place, |cut| cut.switch_later(mode == 1));
        }
        let switched = world.recut(place, |cut| cut.switch(mode == 1));
        put(activation, code(switched))?;
        switched
    }

    nvmlDeviceGetMaxMigDeviceCount(world | device: nvmlDevice_t, out: *mut c_uint) {
        let gpu = world.whole(device)?;
        let can = gpu.slices.is_some() || !profiles(&gpu.model).is_empty();
        put(out, if can { MAX_SLICES as c_uint } else { 0 })
    }

    nvmlDeviceGetMigDeviceHandleByIndex(world | device: nvmlDevice_t, index: c_uint, out: *mut nvmlDevice_t) {
        let place = world.whole(device)?.index as usize;
        if index as usize >= MAX_SLICES {
            return Err(No::InvalidArgument);
        }
        let cut = cut(world, place)?;
        let (instance, compute) = cut.all().nth(index as usize).ok_or(No::NotFound)?;
        put(out, slice_handle(place, instance.id, compute.id))
    }

    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(world | device: nvmlDevice_t, out: *mut nvmlDevice_t) {
        match world.target(device)? {
            HandleTarget::Slice(gpu, _) => put(out, handle(gpu.index as usize)),
            HandleTarget::Whole(_) => Err(No::InvalidArgument),
        }
    }

    nvmlDeviceIsMigDeviceHandle(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, c_uint::from(matches!(world.target(device)?, HandleTarget::Slice(..))))
    }

    nvmlDeviceGetGpuInstanceId(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, ids(world, device)?.0.id)
    }

    nvmlDeviceGetComputeInstanceId(world | device: nvmlDevice_t, out: *mut c_uint) {
        put(out, ids(world, device)?.1.id)
    }

    nvmlDeviceGetAttributes_v2(world | device: nvmlDevice_t, out: *mut nvmlDeviceAttributes_t) {
        let (instance, compute) = ids(world, device)?;
        let profile = instance.profile.ok_or(No::NotSupported)?;
        put(out, nvmlDeviceAttributes_t {
            multiprocessorCount: profile.multiprocessors * compute.slices / profile.slices,
            sharedCopyEngineCount: profile.copiers,
            sharedDecoderCount: profile.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: c_uint::from(profile.media),
            sharedOfaCount: c_uint::from(profile.media),
            gpuInstanceSliceCount: profile.slices,
            computeInstanceSliceCount: compute.slices,
            memorySizeMB: profile.memory_mib,
        })
    }

    nvmlDeviceGetGpuInstanceProfileInfo(world | device: nvmlDevice_t, shape: c_uint, out: *mut nvmlGpuInstanceProfileInfo_t) {
        let profile = profile_of(world.whole(device)?, |profile| profile.shape == shape)?;
        put(out, nvmlGpuInstanceProfileInfo_t {
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.most(),
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.copiers,
            decoderCount: profile.decoders,
            encoderCount: 0,
            jpegCount: c_uint::from(profile.media),
            ofaCount: c_uint::from(profile.media),
            memorySizeMB: profile.memory_mib,
        })
    }

    nvmlDeviceGetGpuInstanceProfileInfoV(world | device: nvmlDevice_t, shape: c_uint, out: *mut nvmlGpuInstanceProfileInfo_v2_t) {
        let profile = profile_of(world.whole(device)?, |profile| profile.shape == shape)?;
        let version = version::<nvmlGpuInstanceProfileInfo_v2_t>(out.cast())?;
        put(out, nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: profile.id,
            isP2pSupported: 0,
            sliceCount: profile.slices,
            instanceCount: profile.most(),
            multiprocessorCount: profile.multiprocessors,
            copyEngineCount: profile.copiers,
            decoderCount: profile.decoders,
            encoderCount: 0,
            jpegCount: c_uint::from(profile.media),
            ofaCount: c_uint::from(profile.media),
            memorySizeMB: profile.memory_mib,
            name: array(&format!("MIG {}", profile.name)),
        })
    }

    nvmlDeviceGetGpuInstancePossiblePlacements_v2(world | device: nvmlDevice_t, id: c_uint, out: *mut nvmlGpuInstancePlacement_t, count: *mut c_uint) {
        let profile = profile_of(world.whole(device)?, |profile| profile.id == id)?;
        let places = profile.starts.iter().map(|start| nvmlGpuInstancePlacement_t {
            start: *start,
            size: profile.size,
        });
        let places: Vec<_> = places.collect();
        if out.is_null() {
            // A caller without room asks for the number only, and the call succeeds.
            return put(count, c_uint::try_from(places.len()).unwrap_or(0));
        }
        put_all(out, count, &places)
    }

    nvmlDeviceGetGpuInstanceRemainingCapacity(world | device: nvmlDevice_t, id: c_uint, out: *mut c_uint) {
        let gpu = world.whole(device)?;
        let profile = profile_of(gpu, |profile| profile.id == id)?;
        put(out, profile.room(&cut(world, gpu.index as usize)?.placed()))
    }

    nvmlDeviceCreateGpuInstance(world | device: nvmlDevice_t, id: c_uint, out: *mut nvmlGpuInstance_t) {
        let gpu = world.whole(device)?;
        let (place, profile) = (gpu.index as usize, profile_of(gpu, |profile| profile.id == id)?);
        let made = world.recut(place, |cut| cut.make(profile, None))?;
        put(out, instance_handle(place, made, 0) as nvmlGpuInstance_t)
    }

    nvmlDeviceCreateGpuInstanceWithPlacement(world | device: nvmlDevice_t, id: c_uint, at: *const nvmlGpuInstancePlacement_t, out: *mut nvmlGpuInstance_t) {
        let (gpu, card) = world.card(device)?;
        let (place, profile) = (gpu.index as usize, profile_of(gpu, |profile| profile.id == id)?);
        if card.state.mig_refused.iter().any(|refused| refused == profile.name) {
            return Err(No::InsufficientResources);
        }
        if at.is_null() {
            return Err(No::InvalidArgument);
        }
        let start = at.read().start;
        let made = world.recut(place, |cut| cut.make(profile, Some(start)))?;
        put(out, instance_handle(place, made, 0) as nvmlGpuInstance_t)
    }

    nvmlDeviceGetGpuInstances(world | device: nvmlDevice_t, id: c_uint, out: *mut nvmlGpuInstance_t, count: *mut c_uint) {
        let gpu = world.whole(device)?;
        let (place, profile) = (gpu.index as usize, profile_of(gpu, |profile| profile.id == id)?);
        let all = cut(world, place)?.instances.iter();
        let these = all.filter(|instance| instance.profile == Some(profile));
        let handles: Vec<_> = these
            .map(|instance| instance_handle(place, instance.id, 0) as nvmlGpuInstance_t)
            .collect();
        put_all(out, count, &handles)
    }

    nvmlDeviceGetGpuInstanceById(world | device: nvmlDevice_t, id: c_uint, out: *mut nvmlGpuInstance_t) {
        let place = world.whole(device)?.index as usize;
        let instance = cut(world, place)?.instance(id)?;
        put(out, instance_handle(place, instance.id, 0) as nvmlGpuInstance_t)
    }

    nvmlGpuInstanceDestroy(world | of: nvmlGpuInstance_t) {
        let (place, id, _) = named(of as usize)?;
        world.recut(place, |cut| cut.remove(id))
    }

    nvmlGpuInstanceGetInfo(world | of: nvmlGpuInstance_t, out: *mut nvmlGpuInstanceInfo_t) {
        let (place, instance) = instance(world, of)?;
        let profile = instance.profile.ok_or(No::NotSupported)?;
        put(out, nvmlGpuInstanceInfo_t {
            device: handle(place),
            id: instance.id,
            profileId: profile.id,
            placement: nvmlGpuInstancePlacement_t {
                start: instance.start,
                size: profile.size,
            },
        })
    }

    nvmlGpuInstanceGetComputeInstanceProfileInfo(world | of: nvmlGpuInstance_t, shape: c_uint, _engines: c_uint, out: *mut nvmlComputeInstanceProfileInfo_t) {
        let (_, instance) = instance(world, of)?;
        let (slices, multiprocessors) = compute_profile(instance, shape)?;
        let profile = instance.profile.ok_or(No::NotSupported)?;
        put(out, nvmlComputeInstanceProfileInfo_t {
            id: shape,
            sliceCount: slices,
            instanceCount: profile.slices / slices,
            multiprocessorCount: multiprocessors,
            sharedCopyEngineCount: profile.copiers,
            sharedDecoderCount: profile.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: c_uint::from(profile.media),
            sharedOfaCount: c_uint::from(profile.media),
        })
    }

    nvmlGpuInstanceGetComputeInstanceProfileInfoV(world | of: nvmlGpuInstance_t, shape: c_uint, _engines: c_uint, out: *mut nvmlComputeInstanceProfileInfo_v2_t) {
        let (_, instance) = instance(world, of)?;
        let (slices, multiprocessors) = compute_profile(instance, shape)?;
        let profile = instance.profile.ok_or(No::NotSupported)?;
        let version = version::<nvmlComputeInstanceProfileInfo_v2_t>(out.cast())?;
        put(out, nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: shape,
            sliceCount: slices,
            instanceCount: profile.slices / slices,
            multiprocessorCount: multiprocessors,
            sharedCopyEngineCount: profile.copiers,
            sharedDecoderCount: profile.decoders,
            sharedEncoderCount: 0,
            sharedJpegCount: c_uint::from(profile.media),
            sharedOfaCount: c_uint::from(profile.media),
            name: array(&format!("MIG {slices}c.{}", profile.name)),
        })
    }

    nvmlGpuInstanceCreateComputeInstance(world | of: nvmlGpuInstance_t, shape: c_uint, out: *mut nvmlComputeInstance_t) {
        let (place, found) = instance(world, of)?;
        let (id, (slices, _)) = (found.id, compute_profile(found, shape)?);
        let made = world.recut(place, |cut| cut.make_compute(id, slices))?;
        put(out, instance_handle(place, id, made) as nvmlComputeInstance_t)
    }

    nvmlGpuInstanceGetComputeInstances(world | of: nvmlGpuInstance_t, shape: c_uint, out: *mut nvmlComputeInstance_t, count: *mut c_uint) {
        let (place, instance) = instance(world, of)?;
        let (slices, _) = compute_profile(instance, shape)?;
        let these = instance.computes.iter().filter(|compute| compute.slices == slices);
        let handles: Vec<_> = these
            .map(|it| instance_handle(place, instance.id, it.id) as nvmlComputeInstance_t)
            .collect();
        put_all(out, count, &handles)
    }

    nvmlGpuInstanceGetComputeInstanceById(world | of: nvmlGpuInstance_t, id: c_uint, out: *mut nvmlComputeInstance_t) {
        let (place, instance) = instance(world, of)?;
        let known = instance.computes.iter().any(|compute| compute.id == id);
        if !known {
            return Err(No::NotFound);
        }
        put(out, instance_handle(place, instance.id, id) as nvmlComputeInstance_t)
    }

    nvmlComputeInstanceDestroy(world | of: nvmlComputeInstance_t) {
        let (place, instance, id) = named(of as usize)?;
        world.recut(place, |cut| cut.remove_compute(instance, id))
    }

    nvmlComputeInstanceGetInfo_v2(world | of: nvmlComputeInstance_t, out: *mut nvmlComputeInstanceInfo_t) {
        let (place, id, compute) = named(of as usize)?;
        let instance = cut(world, place)?.instance(id)?;
        let before = instance.computes.iter().take_while(|other| other.id != compute);
        let start = before.map(|other| other.slices).sum();
        let compute = cut(world, place)?.compute(id, compute)?;
        let shape = COMPUTE.iter().position(|slices| *slices == compute.slices);
        put(out, nvmlComputeInstanceInfo_t {
            device: handle(place),
            gpuInstance: instance_handle(place, id, 0) as nvmlGpuInstance_t,
            id: compute.id,
            profileId: shape.and_then(|shape| shape.try_into().ok()).unwrap_or(0),
            placement: nvmlComputeInstancePlacement_t {
                start,
                size: compute.slices,
            },
        })
    }
}

/// The version in a caller's structure, if it is the second.
///
/// # Safety
///
/// `out` is null, or begins with a version.
unsafe fn version<T>(out: *const c_uint) -> Result<c_uint, No> {
    if out.is_null() {
        return Err(No::InvalidArgument);
    }
    // SAFETY: not null, so a version is there.
    let version = unsafe { out.read() };
    if version != size_of::<T>() as c_uint | 2 << 24 {
        return Err(No::VersionMismatch);
    }
    Ok(version)
}
