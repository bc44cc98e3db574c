//! Licences of virtual GPUs.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGridLicensableFeature_t, nvmlGridLicensableFeatures_t,
    nvmlGridLicenseExpiry_t,
};

use crate::answer::{array, calls, put};

/// NVML's number for the licensed feature of a virtual GPU.
const VGPU: c_uint = 1;

/// The licence, valid without end or absent.
fn feature(code: c_uint, licensed: bool) -> nvmlGridLicensableFeature_t {
    nvmlGridLicensableFeature_t {
        featureCode: code,
        featureState: licensed.into(),
        licenseInfo: array(""),
        productName: array(""),
        featureEnabled: licensed.into(),
        licenseExpiry: nvmlGridLicenseExpiry_t {
            year: 0,
            month: 0,
            day: 0,
            hour: 0,
            min: 0,
            sec: 0,
            status: 0,
        },
    }
}

calls! {
    nvmlDeviceGetGridLicensableFeatures_v4(world | device: nvmlDevice_t, out: *mut nvmlGridLicensableFeatures_t) {
        let licensed = world.card(device)?.1.state.licensed;
        put(out, nvmlGridLicensableFeatures_t {
            isGridLicenseSupported: licensed.into(),
            licensableFeaturesCount: licensed.into(),
            gridLicensableFeatures: [feature(VGPU, licensed), feature(0, false), feature(0, false)],
        })
    }
}
