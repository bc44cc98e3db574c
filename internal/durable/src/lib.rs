//! Owns the durable file write: a file is replaced as a whole, and it is on the disk when the call
//! returns. It does not interpret the content and does not retry. [`disk_space()`] reads a file system's
//! free space.
//!
//! The method: write a new file in the same directory, sync it, rename it over the old one, sync
//! the directory. Without the first sync a power cut may leave an empty file under the right name;
//! without the second one it may leave the old file although the write was reported as done.
//! Cost: two syncs. `tests/power.rs` cuts the power after every step, with every subset of the
//! unsynced operations lost.

mod disk;
mod disk_space;
mod replace;
mod sweep;

pub use disk::{Disk, System};
pub use disk_space::{DiskSpace, disk_space};
pub use replace::{
    DurableStep, Error, PRIVATE, publish, remove, remove_on, replace, replace_on,
    replace_with_mode, sync_directory,
};
pub use sweep::sweep;
