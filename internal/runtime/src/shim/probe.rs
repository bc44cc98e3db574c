//! The stage that tries what this machine allows and prints the answer as JSON. Owns the
//! trying of namespaces; cgroups are tried by the agent itself.

use std::path::Path;
use std::process::ExitCode;

use nix::unistd::geteuid;

use super::start::isolate;
use crate::capabilities::Support;
use crate::mounts::apply::hide_device;

/// Runs the stage.
pub fn run() -> ExitCode {
    let answer = match isolate().and_then(|()| hide_device(Path::new("/dev/null"))) {
        Ok(()) if geteuid().is_root() => Support::Yes("mount, UTS and IPC namespaces".into()),
        Ok(()) => Support::Yes("mount, UTS and IPC namespaces inside a user namespace".into()),
        Err(reason) => Support::No(reason),
    };
    match serde_json::to_string(&answer) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
