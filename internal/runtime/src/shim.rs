//! The shim: a small process of this same program, one for each container, that watches
//! over it so that the agent may die and come back.
//!
//! Its [`main`] runs in one of four stages, which [`STAGE`] in the environment distinguishes:
//! the shim itself ([`supervise`]), the process that becomes the container ([`start`]), one
//! that joins a running container to run a command in it ([`exec`]), and one that tries
//! what this machine allows ([`probe`]). All four must run before any thread is started.
//!
//! Owns the container's directory while it runs. Never talks to the agent but by files.

mod attach;
mod changes;
mod error;
pub mod exec;
mod privileges;
pub mod probe;
mod processes;
mod record;
mod seccomp;
pub mod start;
mod streams;
pub mod supervise;

use std::path::Path;
use std::process::{Command, ExitCode};

/// The environment variable that names the stage; absent for the shim itself.
pub const STAGE: &str = "MUSTER_SHIM_STAGE";
/// The stage that becomes the container.
pub const STAGE_START: &str = "start";
/// The stage that runs a command in a running container.
pub const STAGE_EXEC: &str = "exec";
/// The stage that tries what works.
pub const STAGE_PROBE: &str = "probe";

/// What `muster shim DIR` does; `DIR` is a container's directory. Call it first thing:
/// before an async runtime, a logger with a thread, or anything else that starts one.
pub fn main(dir: &Path) -> ExitCode {
    match std::env::var(STAGE).as_deref() {
        Err(_) => supervise::run(dir),
        Ok(STAGE_START) => start::run(dir),
        Ok(STAGE_EXEC) => exec::run(dir),
        Ok(STAGE_PROBE) => probe::run(),
        Ok(other) => {
            eprintln!("{STAGE}={other} is not a stage of the shim; do not set it");
            ExitCode::from(2)
        }
    }
}

/// This same program with this same command line, in another stage.
fn again(stage: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).env(STAGE, stage);
    command
}
