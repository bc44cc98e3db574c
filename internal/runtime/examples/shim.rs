//! The shim as a program of its own, for this crate's tests: `shim DIR`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(dir) => runtime::shim::main(&PathBuf::from(dir)),
        None => {
            eprintln!("usage: shim DIR");
            ExitCode::from(2)
        }
    }
}
