//! Running a pod's containers on this machine.
//!
//! Owns: processes in cgroups and namespaces of their own, each watched over by a
//! shim process so that the caller may die and come back ([`process`], [`shim`]);
//! the mounts, limits and devices such a process sees; containers of images through a
//! container runtime's socket ([`cri`]); log files and their readers ([`logs`]).
//!
//! Must not: know about pods beyond their names, talk to the server, decide
//! restarts. That is the agent's.

mod attach_protocol;
pub mod capabilities;
pub mod cgroup;
pub mod cri;
mod environment;
pub mod error;
pub mod logs;
pub mod mounts;
pub mod proc;
pub mod process;
pub mod shim;
pub mod spec;
pub mod state;
mod umask;
pub mod usage;
pub mod volumes;
mod waiting;

pub use capabilities::{Capabilities, Support};
pub use cri::{CriConfig, CriRuntime, WritableLayer};
pub use environment::SERVICE_MANAGER_VARIABLES;
pub use error::{RuntimeError, StartFault};
pub use logs::{LogRead, read_logs};
pub use process::{
    AttachInput, AttachOutput, AttachSession, Config, ExecCommand, ExecInput, ExecOutcome,
    ExecOutput, ExecSession, ProcessRuntime, Stats, Terminal,
};
pub use spec::{
    ContainerId, ContainerSpec, DevicePolicy, Isolation, LogSettings, Mount, MountSource,
    PodIdentity, ProcessUser, PullPolicy, ResourceLimits, SpecError,
};
pub use state::{ContainerExit, ContainerState, ContainerStatus, ExitReason};
pub use umask::with_usual_umask;
