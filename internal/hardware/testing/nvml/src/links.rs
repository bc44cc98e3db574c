//! PCIe and NVLink: the connections between GPUs.

use std::ffi::c_uint;

use hardware::description::NvlinkEnd;
use hardware::pcie::{PcieLocation, PcieTree};
use hardware::{FabricState, Gpu, LinkKind};
use nvml_wrapper_sys::bindings::{
    NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_STATE_IN_PROGRESS, nvmlDevice_t,
    nvmlEnableState_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t, nvmlGpuP2PCapsIndex_t,
    nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t, nvmlIntNvLinkDeviceType_t, nvmlNvLinkCapability_t,
    nvmlNvLinkErrorCounter_t, nvmlPciInfo_t,
};

use crate::answer::{No, array, calls, put, put_list};
use crate::device::pci_info;
use crate::world::{World, handle};

/// The other end of a link to a switch if the driver hides the switches.
const HIDDEN: &str = "FFFFFFFF:FF:FF.0";

fn place(gpu: &Gpu) -> PcieLocation<'_> {
    PcieLocation {
        under: &gpu.under,
        numa: gpu.numa,
        link: gpu.pcie,
    }
}

/// NVML's number for the PCIe path between two GPUs.
fn level(world: &World, one: &Gpu, other: &Gpu) -> nvmlGpuTopologyLevel_t {
    if one.index == other.index {
        return 0;
    }
    match PcieTree::of(&world.machine.inventory)
        .path(place(one), place(other))
        .0
    {
        LinkKind::Nvl | LinkKind::Nvs | LinkKind::Pix => 10,
        LinkKind::Pxb => 20,
        LinkKind::Phb => 30,
        LinkKind::Node => 40,
        LinkKind::Sys => 50,
    }
}

/// A GPU's NVLink of this number.
fn end(world: &World, device: nvmlDevice_t, link: c_uint) -> Result<NvlinkEnd, No> {
    let (_, card) = world.card(device)?;
    if card.nvlinks.is_empty() {
        return Err(No::NotSupported);
    }
    let end = card.nvlinks.get(link as usize);
    end.copied().ok_or(No::InvalidArgument)
}

calls! {
    nvmlDeviceGetTopologyCommonAncestor(world | one: nvmlDevice_t, other: nvmlDevice_t, out: *mut nvmlGpuTopologyLevel_t) {
        let found = level(world, world.whole(one)?, world.whole(other)?);
        put(out, found)
    }

    nvmlDeviceGetTopologyNearestGpus(world | device: nvmlDevice_t, wanted: nvmlGpuTopologyLevel_t, count: *mut c_uint, out: *mut nvmlDevice_t) {
        let gpu = world.whole(device)?;
        let others = world.gpus().iter().filter(|other| other.index != gpu.index);
        let near = others.filter(|other| level(world, gpu, other) <= wanted);
        let handles: Vec<nvmlDevice_t> = near.map(|other| handle(other.index as usize)).collect();
        match put_list(out, count, &handles) {
            // A first call without room asks for the number.
            Err(No::InsufficientSize) if out.is_null() => Ok(()),
            answer => answer,
        }
    }

    nvmlDeviceGetP2PStatus(world | one: nvmlDevice_t, other: nvmlDevice_t, _caps: nvmlGpuP2PCapsIndex_t, out: *mut nvmlGpuP2PStatus_t) {
        world.whole(one)?;
        world.whole(other)?;
        put(out, 0)
    }

    nvmlDeviceGetCurrPcieLinkGeneration(world | device: nvmlDevice_t, out: *mut c_uint) {
        known(out, world.whole(device)?.pcie.generation)
    }

    nvmlDeviceGetMaxPcieLinkGeneration(world | device: nvmlDevice_t, out: *mut c_uint) {
        known(out, world.whole(device)?.pcie.max_generation)
    }

    nvmlDeviceGetCurrPcieLinkWidth(world | device: nvmlDevice_t, out: *mut c_uint) {
        known(out, world.whole(device)?.pcie.width)
    }

    nvmlDeviceGetMaxPcieLinkWidth(world | device: nvmlDevice_t, out: *mut c_uint) {
        known(out, world.whole(device)?.pcie.max_width)
    }

    nvmlDeviceGetNvLinkState(world | device: nvmlDevice_t, link: c_uint, out: *mut nvmlEnableState_t) {
        put(out, nvmlEnableState_t::from(end(world, device, link)?.up))
    }

    nvmlDeviceGetNvLinkVersion(world | device: nvmlDevice_t, link: c_uint, out: *mut c_uint) {
        end(world, device, link)?;
        let version = match world.whole(device)?.compute_capability.split('.').next() {
            Some("6") => 1,
            Some("7") => 2,
            Some("8") => 3,
            Some("9") => 4,
            _ => 5,
        };
        put(out, version)
    }

    nvmlDeviceGetNvLinkCapability(world | device: nvmlDevice_t, link: c_uint, _capability: nvmlNvLinkCapability_t, out: *mut c_uint) {
        end(world, device, link)?;
        put(out, 1)
    }

    nvmlDeviceGetNvLinkRemotePciInfo_v2(world | device: nvmlDevice_t, link: c_uint, out: *mut nvmlPciInfo_t) {
        let info = match end(world, device, link)?.to {
            Some(other) => pci_info(&world.gpus()[other].pci),
            None => nvmlPciInfo_t {
                busIdLegacy: array("FFFF:FF:FF.0"),
                domain: 0xffff_ffff,
                bus: 0xff,
                device: 0xff,
                pciDeviceId: 0,
                pciSubSystemId: 0,
                busId: array(HIDDEN),
            },
        };
        put(out, info)
    }

    nvmlDeviceGetNvLinkRemoteDeviceType(world | device: nvmlDevice_t, link: c_uint, out: *mut nvmlIntNvLinkDeviceType_t) {
        // 0 is a GPU, 2 a switch.
        put(out, if end(world, device, link)?.to.is_some() { 0 } else { 2 })
    }

    nvmlDeviceGetNvLinkErrorCounter(world | device: nvmlDevice_t, link: c_uint, _counter: nvmlNvLinkErrorCounter_t, out: *mut u64) {
        end(world, device, link)?;
        put(out, 0)
    }

    nvmlDeviceGetGpuFabricInfoV(world | device: nvmlDevice_t, out: *mut nvmlGpuFabricInfoV_t) {
        let gpu = world.whole(device)?;
        let out: *mut nvmlGpuFabricInfo_v2_t = out.cast();
        if out.is_null() {
            return Err(No::InvalidArgument);
        }
        let size = std::mem::size_of::<nvmlGpuFabricInfo_v2_t>() as u32;
        let version = (&raw const (*out).version).read();
        if version != (size | 2 << 24) {
            return Err(No::VersionMismatch);
        }
        let state = match gpu.fabric {
            FabricState::None => return Err(No::NotSupported),
            FabricState::Starting => NVML_GPU_FABRIC_STATE_IN_PROGRESS,
            FabricState::Completed => NVML_GPU_FABRIC_STATE_COMPLETED,
        };
        put(out, nvmlGpuFabricInfo_v2_t {
            version,
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: state as u8,
            healthMask: 0,
        })
    }
}

/// Writes a number; 0 stands for an unknown one.
///
/// # Safety
///
/// `out` is null, or may be written.
unsafe fn known(out: *mut c_uint, number: u32) -> Result<(), No> {
    if number == 0 {
        return Err(No::NotSupported);
    }
    // SAFETY: the caller's own.
    unsafe { put(out, number) }
}
