//! The CPUs and the memory near a GPU.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{nvmlAffinityScope_t, nvmlDevice_t};

use crate::answer::{No, NvmlResult, calls};
use crate::world::World;

/// Writes a set of numbers as bits.
///
/// # Safety
///
/// `out` is null, or has room for `size` words.
unsafe fn put_bits(out: *mut c_ulong, size: c_uint, numbers: &[u32]) -> NvmlResult {
    let (bits, size) = (c_ulong::BITS, size as usize);
    if out.is_null() || size == 0 {
        return Err(No::InvalidArgument);
    }
    let mut words = vec![0; size];
    for number in numbers {
        let word = words.get_mut((number / bits) as usize);
        *word.ok_or(No::InsufficientSize)? |= 1 << (number % bits);
    }
    // SAFETY: there is room for so many words.
    unsafe { out.copy_from_nonoverlapping(words.as_ptr(), size) };
    Ok(())
}

fn cpus(world: &World, device: nvmlDevice_t) -> Result<Vec<u32>, No> {
    let numa = world.whole(device)?.numa;
    let nodes = world.machine.inventory.numa_nodes.iter();
    let near = nodes.filter(|node| numa.is_none_or(|numa| numa == node.id));
    Ok(near.flat_map(|node| node.cpus.iter().copied()).collect())
}

calls! {
    nvmlDeviceGetCpuAffinity(world | device: nvmlDevice_t, size: c_uint, out: *mut c_ulong) {
        let cpus = cpus(world, device)?;
        put_bits(out, size, &cpus)
    }

    nvmlDeviceGetCpuAffinityWithinScope(world | device: nvmlDevice_t, size: c_uint, out: *mut c_ulong, _scope: nvmlAffinityScope_t) {
        let cpus = cpus(world, device)?;
        put_bits(out, size, &cpus)
    }

    nvmlDeviceGetMemoryAffinity(world | device: nvmlDevice_t, size: c_uint, out: *mut c_ulong, _scope: nvmlAffinityScope_t) {
        let node = world.whole(device)?.numa.ok_or(No::NotSupported)?;
        put_bits(out, size, &[node])
    }
}
