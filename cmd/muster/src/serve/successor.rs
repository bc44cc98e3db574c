//! The change of this process to another binary of muster: with the same arguments, environment and
//! process id, so that the service manager notices nothing, and with the same children.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Where the kernel lists this process's children.
const CHILDREN: &str = "/proc/self/task";
/// How often inherited children are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Becomes the binary; returns only if the kernel refuses. Open files close, since all of them are
/// marked so; the other threads end.
pub fn become_binary(binary: &Path) -> Error {
    tracing::info!(binary = %binary.display(), "this process becomes another binary");
    let mut command = std::process::Command::new(binary);
    let refused = command.args(std::env::args_os().skip(1)).exec();
    Error::new(refused).context(format!("{} can't be started", binary.display()))
}

/// Reaps the children that this process had before it became this binary, the shims of pods that ran
/// then: their parent must. Only these: those of this binary are waited for where they are started.
///
/// # Errors
/// No thread can be started.
pub fn reap_inherited() -> Result<()> {
    let mut left = children();
    if left.is_empty() {
        return Ok(());
    }
    tracing::info!(
        children = left.len(),
        "this process has children of the binary before"
    );
    std::thread::Builder::new()
        .name("inherited".to_owned())
        .spawn(move || {
            while !left.is_empty() {
                let runs = |pid: &Pid| {
                    let state = waitpid(*pid, Some(WaitPidFlag::WNOHANG));
                    matches!(state, Ok(WaitStatus::StillAlive))
                };
                left.retain(runs);
                std::thread::sleep(LOOK);
            }
        })
        .context("the thread that waits for inherited processes did not start")?;
    Ok(())
}

fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir(CHILDREN).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let mut found = Vec::new();
    for list in lists {
        let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
        found.extend(pids.map(Pid::from_raw));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_until_it_is_reaped() {
        let mut command = std::process::Command::new("cat");
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        assert!(children().contains(&pid));
        // Closes its input, at the end of which it ends.
        assert!(child.wait().unwrap().success());
        assert!(!children().contains(&pid));
    }
}
