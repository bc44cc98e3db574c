//! GPUs are partitioned and made whole again, by calls that the wrapper lacks.

use std::mem::zeroed;

use hardware::mig::profiles;
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t,
};

use crate::standin::StandIn;
use crate::tree;

const IN_USE: u32 = 19;
const NO_ROOM: u32 = 23;

/// The driver's raw calls on one GPU.
struct Raw<'a> {
    nvml: &'a Nvml,
    gpu: nvmlDevice_t,
}

// SAFETY, in all of these: the handles belong to the library, and its output pointers are valid.
impl Raw<'_> {
    fn of(nvml: &Nvml, index: u32) -> Raw<'_> {
        let gpu = unsafe { nvml.device_by_index(index).unwrap().handle() };
        Raw { nvml, gpu }
    }

    fn mode(&self, on: bool) -> u32 {
        let mut activation = 0;
        unsafe { (self.nvml.lib()).nvmlDeviceSetMigMode(self.gpu, on.into(), &raw mut activation) }
    }

    fn make(&self, profile: u32) -> Result<nvmlGpuInstance_t, u32> {
        let mut made: nvmlGpuInstance_t = std::ptr::null_mut();
        let code = unsafe {
            (self.nvml.lib()).nvmlDeviceCreateGpuInstance(self.gpu, profile, &raw mut made)
        };
        if code == 0 { Ok(made) } else { Err(code) }
    }

    fn make_compute(
        &self,
        of: nvmlGpuInstance_t,
        shape: u32,
    ) -> Result<nvmlComputeInstance_t, u32> {
        let mut made: nvmlComputeInstance_t = std::ptr::null_mut();
        let code = unsafe {
            (self.nvml.lib()).nvmlGpuInstanceCreateComputeInstance(of, shape, &raw mut made)
        };
        if code == 0 { Ok(made) } else { Err(code) }
    }

    fn room(&self, profile: u32) -> u32 {
        let mut room = 0;
        let lib = self.nvml.lib();
        let code = unsafe {
            lib.nvmlDeviceGetGpuInstanceRemainingCapacity(self.gpu, profile, &raw mut room)
        };
        assert_eq!(code, 0);
        room
    }

    fn info(&self, of: nvmlGpuInstance_t) -> nvmlGpuInstanceInfo_t {
        let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
        assert_eq!(
            unsafe { self.nvml.lib().nvmlGpuInstanceGetInfo(of, &raw mut info) },
            0
        );
        info
    }

    fn remove(&self, of: nvmlGpuInstance_t) -> u32 {
        unsafe { self.nvml.lib().nvmlGpuInstanceDestroy(of) }
    }

    fn remove_compute(&self, of: nvmlComputeInstance_t) -> u32 {
        unsafe { self.nvml.lib().nvmlComputeInstanceDestroy(of) }
    }
}

#[test]
fn a_gpu_is_cut_seen_so_and_made_whole_again() {
    let standin = StandIn::of("hgx-h100.toml");
    tree::make(&standin.root(), &standin.described().inventory);
    let mut machine = standin.machine();
    let mut slices = || machine.observe().unwrap().gpus[3].slices.clone();
    let nvml = standin.nvml();
    let raw = Raw::of(&nvml, 3);
    assert_eq!(slices(), None);
    assert_eq!(raw.mode(true), 0);
    assert_eq!(slices(), Some(vec![]));
    // 3g.40gb (9), then as many 1g.10gb (19) as the driver reports room for.
    let half = raw.make(9).unwrap();
    assert_eq!(
        (
            raw.info(half).placement.start,
            raw.info(half).placement.size
        ),
        (0, 4)
    );
    assert_eq!((raw.room(9), raw.room(5), raw.room(19)), (1, 0, 3));
    let small: Vec<_> = (0..3).map(|_| raw.make(19).unwrap()).collect();
    assert_eq!(raw.make(19), Err(NO_ROOM));
    // Programs see a GPU instance once it has a compute instance.
    assert_eq!(slices(), Some(vec![]));
    let whole = raw.make_compute(half, 2).unwrap();
    let first = raw.make_compute(small[0], 0).unwrap();
    // The driver lists the second slice's device files in proc.
    let access = standin
        .root()
        .join("proc/driver/nvidia/capabilities/gpu3/mig");
    let access = access.join(format!("gi{}", raw.info(small[0]).id));
    std::fs::create_dir_all(access.join("ci0")).unwrap();
    std::fs::write(access.join("access"), "DeviceFileMinor: 66\n").unwrap();
    std::fs::write(access.join("ci0/access"), "DeviceFileMinor: 67\n").unwrap();
    let seen = slices().unwrap();
    assert_eq!(seen[0].capabilities, Vec::<u32>::new());
    assert_eq!(seen[1].capabilities, [66, 67]);
    let told: Vec<(&str, u64)> = (seen.iter())
        .map(|slice| (slice.profile.as_str(), slice.memory_mib))
        .collect();
    assert_eq!(told, [("3g.40gb", 40_448), ("1g.10gb", 9984)]);
    let device = nvml.device_by_uuid(seen[1].id.as_str()).unwrap();
    assert!(device.mig_is_mig_device_handle().unwrap());
    assert_eq!(device.mig_parent_device().unwrap().index().unwrap(), 3);
    assert_eq!(device.attributes().unwrap().multiprocessor_count, 16);
    // No used instance can be removed.
    assert_eq!((raw.remove(half), raw.mode(false)), (IN_USE, IN_USE));
    assert_eq!((raw.remove_compute(whole), raw.remove(half)), (0, 0));
    assert_eq!(slices().unwrap().len(), 1);
    assert_eq!(raw.remove_compute(first), 0);
    for instance in small {
        assert_eq!(raw.remove(instance), 0);
    }
    assert_eq!(raw.mode(false), 0);
    assert_eq!(slices(), None);
}

#[test]
fn profiles_and_placements_are_the_products() {
    let standin = StandIn::of("dgx-a100.toml");
    let nvml = standin.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    for profile in profiles("NVIDIA A100-SXM4-80GB") {
        let info = gpu.profile_info(profile.shape).unwrap();
        assert_eq!((info.id, info.slice_count), (profile.id, profile.slices));
        assert_eq!(
            (info.memory_size_mb, info.instance_count),
            (profile.memory_mib, profile.most())
        );
        // The wrapper's own call for these always returns an empty list.
        let mut count = 16;
        let mut places: [nvmlGpuInstancePlacement_t; 16] = unsafe { zeroed() };
        let code = unsafe {
            let (lib, handle) = (nvml.lib(), gpu.handle());
            let places = places.as_mut_ptr();
            lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                handle,
                profile.id,
                places,
                &raw mut count,
            )
        };
        assert_eq!(code, 0);
        let starts: Vec<u32> = places[..count as usize]
            .iter()
            .map(|place| place.start)
            .collect();
        assert_eq!(starts, profile.starts, "{}", profile.name);
        assert!(gpu.possible_placements(profile.id).unwrap().is_empty());
    }
    assert!(gpu.profile_info(5).is_err());
}

#[test]
fn an_instance_may_hold_several_that_compute() {
    let standin = StandIn::of("hgx-h100.toml");
    standin.with("[[state]]\ngpu = 0\nmig = []\n");
    let nvml = standin.nvml();
    let raw = Raw::of(&nvml, 0);
    let half = raw.make(9).unwrap();
    raw.make_compute(half, 0).unwrap();
    raw.make_compute(half, 1).unwrap();
    assert_eq!(raw.make_compute(half, 0), Err(NO_ROOM));
    let gpu = nvml.device_by_index(0).unwrap();
    let names: Vec<String> = (0..2)
        .map(|index| gpu.mig_device_by_index(index).unwrap().name().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb",
            "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb"
        ]
    );
}
