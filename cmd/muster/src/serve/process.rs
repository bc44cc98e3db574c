//! What a server or agent asks of its own process before it does anything else.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

/// Files that a process may open where the system doesn't say.
const OPEN_FILES: u64 = 1024;

/// Makes every file and directory that is made from now on its owner's alone, unless the code that
/// makes it says otherwise. Containers get the usual umask back from their shim.
pub fn keep_files_private() {
    umask(Mode::from_bits_truncate(0o077));
}

/// Raises the number of files that may be open as far as the system allows; how many that is.
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
