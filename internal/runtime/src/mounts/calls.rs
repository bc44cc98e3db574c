//! The system calls for whole trees of mounts that `nix` lacks: copying a tree, putting the copy in its place,
//! and making a tree read-only. Linux has all of them since 5.12. Owns the foreign calls and their constants;
//! decides nothing.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;

/// `OPEN_TREE_CLONE` of linux/mount.h.
const OPEN_TREE_CLONE: libc::c_int = 1;
/// `MOVE_MOUNT_F_EMPTY_PATH`: the source is the descriptor itself.
const FROM_DESCRIPTOR: libc::c_int = 0x04;
/// `MOVE_MOUNT_T_EMPTY_PATH`: the target is the descriptor itself.
const ONTO_DESCRIPTOR: libc::c_int = 0x40;
/// `MOUNT_ATTR_RDONLY` of linux/mount.h.
const READ_ONLY: u64 = 1;

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A copy of the mounts at and below what is open, which is mounted nowhere yet and keeps the attributes that
/// they have now. It is gone with its descriptor unless it is mounted before.
pub(super) fn copy_tree(of: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC | libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the descriptor is open and the path is a C string; the kernel writes no memory.
    let copied = unsafe { libc::syscall(libc::SYS_open_tree, of.as_raw_fd(), c"".as_ptr(), flags) };
    let number = libc::c_int::try_from(Errno::result(copied)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Mounts a copy of [`copy_tree`] on what is open.
pub(super) fn mount_copy(copy: &OwnedFd, onto: &OwnedFd) -> Result<(), Errno> {
    let empty = c"".as_ptr();
    // SAFETY: both descriptors are open and the paths are C strings; the kernel writes no memory.
    let moved = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            copy.as_raw_fd(),
            empty,
            onto.as_raw_fd(),
            empty,
            FROM_DESCRIPTOR | ONTO_DESCRIPTOR,
        )
    };
    Errno::result(moved).map(drop)
}

/// Makes the mount at a path and every mount below it read-only, in this mount namespace alone.
pub(super) fn make_read_only(top: &CStr) -> Result<(), Errno> {
    let attributes = MountAttributes {
        set: READ_ONLY,
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    // SAFETY: the path is a C string, and the attributes are of the size that is given.
    let made = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            top.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    Errno::result(made).map(drop)
}
