//! Shell completions and man pages, generated from the command line's definition.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::arguments::Arguments;

/// Prints completions for a shell.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    clap_complete::generate(
        shell,
        &mut Arguments::command(),
        "muster",
        &mut std::io::stdout(),
    );
    ExitCode::SUCCESS
}

/// Writes `muster.1` and a page for each command to a directory.
pub fn pages(directory: &Path) -> ExitCode {
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "muster: man pages were not written to {}: {error}",
                directory.display()
            );
            ExitCode::from(crate::COULD_NOT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
