//! Settings of the process that a server or agent makes first.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

/// The number of files that a process may open if the system does not say.
const OPEN_FILES: u64 = 1024;

/// Makes new files and directories accessible to their owner only, unless the code sets other
/// permissions. Containers get the usual umask back from their shim.
pub fn keep_files_private() {
    umask(Mode::from_bits_truncate(0o077));
}

/// Raises the limit on open files as far as the system allows; returns the limit.
pub fn raise_open_files() -> u64 {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok(hard)
    });
    match raised {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files was not raised");
            getrlimit(Resource::RLIMIT_NOFILE).map_or(OPEN_FILES, |(soft, _)| soft)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_may_be_open_as_the_system_allows() {
        let files = raise_open_files();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!((soft, files), (hard, hard));
    }
}
