//! Answers of calls: codes, output through callers' pointers, and the common form of all exports.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

/// Why a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum No {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Timeout = 10,
    GpuIsLost = 15,
    InUse = 19,
    InsufficientResources = 23,
    VersionMismatch = 25,
}

/// The result of every call.
pub type NvmlResult = Result<(), No>;

/// As NVML's code.
pub fn code(answer: NvmlResult) -> nvmlReturn_t {
    match answer {
        Ok(()) => 0,
        Err(no) => no as nvmlReturn_t,
    }
}

/// Writes a value for the caller.
///
/// # Safety
///
/// `out` is null, or may be written.
pub unsafe fn put<T>(out: *mut T, value: T) -> NvmlResult {
    if out.is_null() {
        return Err(No::InvalidArgument);
    }
    // SAFETY: the caller says that it may be written.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a text and its end for the caller, who has room for `size` bytes.
///
/// # Safety
///
/// `out` is null, or so many bytes may be written.
pub unsafe fn put_text(out: *mut c_char, size: c_uint, text: &str) -> NvmlResult {
    if out.is_null() {
        return Err(No::InvalidArgument);
    }
    if text.len() >= size as usize {
        return Err(No::InsufficientSize);
    }
    // SAFETY: the text and its end fit in what the caller says may be written.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// Writes a list for the caller, by NVML's protocol for lists: `count` holds the caller's room and
/// receives the list's length; if the room is too small, the result is `InsufficientSize` and only
/// `count` is written.
///
/// # Safety
///
/// `count` is null or may be read and written; `out` is null or has room for `count` items.
pub unsafe fn put_list<T: Copy>(out: *mut T, count: *mut c_uint, list: &[T]) -> NvmlResult {
    if count.is_null() {
        return Err(No::InvalidArgument);
    }
    let there = c_uint::try_from(list.len()).unwrap_or(c_uint::MAX);
    // SAFETY: not null, so it may be read and written.
    let room = unsafe { count.replace(there) };
    if room < there || (out.is_null() && there > 0) {
        return Err(No::InsufficientSize);
    }
    if there > 0 {
        // SAFETY: the caller's room is at least the list's length.
        unsafe { out.copy_from_nonoverlapping(list.as_ptr(), list.len()) };
    }
    Ok(())
}

/// A text in an array of a structure, truncated if necessary.
pub fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, byte) in array.iter_mut().zip(text.bytes()).take(N.saturating_sub(1)) {
        *to = byte as c_char;
    }
    array
}

/// Exports calls under the driver's names. In each, the name before the bar is the world in its
/// currently described state.
macro_rules! calls {
    ($($(#[$note:meta])* $name:ident($world:ident | $($argument:ident: $kind:ty),*) $body:block)*) => {$(
        $(#[$note])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::answer::code($crate::world::with(|$world| {
                // SAFETY: callers follow NVML's reference: pointers are writable, and lists have
                // the stated length.
                #[allow(unused_unsafe, reason = "some bodies write nothing themselves")]
                unsafe { $body }
            }))
        }
    )*};
}
pub(crate) use calls;
