//! The umask of programs that are not Muster's own: servers and agents run with a strict one, so
//! that no other user can read what they write.

use nix::sys::stat::{Mode, umask};
use tokio::process::Command;

/// What most programs expect.
const USUAL: Mode = Mode::from_bits_truncate(0o022);

/// Has the command run with the usual umask, whatever this process has.
pub fn with_usual_umask(command: &mut Command) {
    // SAFETY: between fork and exec only umask is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            umask(USUAL);
            Ok(())
        });
    }
}
