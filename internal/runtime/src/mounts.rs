//! What a container sees of the file system: a plan made by a pure function ([`plan`]) and
//! its execution by the kernel ([`apply`]).
//!
//! A volume may be mounted where the node has no such path. Then the deepest directory
//! that does exist is *hollowed*: a small memory file system takes its place, and every
//! entry of the real one is bound into it, so that all is there as before and there is room
//! for the mount point. The node itself is never changed.
//!
//! What of the kernel's own file systems is shown is [`kernel`]'s. Where the host is to be read-only, its mounts are
//! made so before the volumes are mounted, which keep what they were copied with.

pub mod apply;
mod calls;
mod error;
pub mod kernel;
pub mod plan;

pub use error::{BeneathError, MountError};
