//! Opening, closing, versions, and the names of errors and processes.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::answer::{No, calls, code, put, put_text};
use crate::world;

/// Opens the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    code(world::open())
}

/// Opens the library; the flags concern machines without GPUs, where it does the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    code(world::open())
}

/// Closes the library for one of its users.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    code(world::close())
}

/// The text of a code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        15 => c"GPU is lost",
        19 => c"In use by another client",
        23 => c"Insufficient Resources",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// `550.54` of `550.54.15`.
fn library_version(driver: &str) -> String {
    format!("12.{driver}")
}

calls! {
    nvmlSystemGetDriverVersion(world | out: *mut c_char, size: c_uint) {
        let driver = world.gpus().first().map_or("", |gpu| &gpu.driver);
        put_text(out, size, driver)
    }

    nvmlSystemGetNVMLVersion(world | out: *mut c_char, size: c_uint) {
        let driver = world.gpus().first().map_or("", |gpu| &gpu.driver);
        put_text(out, size, &library_version(driver))
    }

    nvmlSystemGetCudaDriverVersion_v2(world | out: *mut c_int) {
        let version = world.machine.inventory.cuda.split_once('.');
        let number = |text: &str| text.parse::<c_int>().map_err(|_| No::NotSupported);
        let (major, minor) = version.ok_or(No::NotSupported)?;
        put(out, number(major)? * 1000 + number(minor)? * 10)
    }

    nvmlSystemGetProcessName(world | pid: c_uint, out: *mut c_char, size: c_uint) {
        let processes = world.machine.cards.iter().flat_map(|card| &card.state.processes);
        let mut named = processes.filter(|process| !process.name.is_empty());
        let process = named.find(|process| process.pid == pid).ok_or(No::NotFound)?;
        put_text(out, size, &process.name)
    }
}
