//! Shell completions and man pages, generated from the command line's definition.

use std::io::{Result, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::arguments::Arguments;
use cli::ExitCause;

/// Prints completions for a shell.
pub fn completions(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "muster", &mut script);
    match std::io::stdout().write_all(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::from(ExitCause::ClosedPipe.code())
        }
        Err(error) => {
            eprintln!("muster: the completions were not written: {error}");
            ExitCode::from(ExitCause::Failed.code())
        }
    }
}

/// Writes `muster.1` and a page for each command to a directory.
pub fn pages(directory: &Path) -> ExitCode {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let written = std::fs::create_dir_all(directory).and_then(|()| all(&command, directory));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "muster: man pages were not written to {}: {error}",
                directory.display()
            );
            ExitCode::from(ExitCause::Failed.code())
        }
    }
}

fn all(command: &clap::Command, directory: &Path) -> Result<()> {
    for inner in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        all(inner, directory)?;
    }
    let mut text = Vec::new();
    let name = page(command, &mut text)?;
    std::fs::write(directory.join(name), text)
}

/// One page, and its file name.
fn page(command: &clap::Command, text: &mut Vec<u8>) -> Result<String> {
    let man = Man::new(command.clone());
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    man.render_options_section(text)?;
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        man.render_subcommands_section(text)?;
    }
    let after = command.get_after_help().map(ToString::to_string);
    sections(&after.unwrap_or_default()).to_writer(text)?;
    Ok(man.get_filename())
}

/// The text after the options as sections: an unindented line that ends with a colon begins a
/// section.
fn sections(after: &str) -> Roff {
    let mut roff = Roff::new();
    let mut filled = true;
    for line in after.lines() {
        match line.strip_suffix(':') {
            Some(heading) if !heading.starts_with(' ') => {
                if !filled {
                    roff.control("fi", []);
                }
                roff.control("SH", [heading.to_uppercase().as_str()]);
                roff.control("nf", []);
                filled = false;
            }
            _ if line.is_empty() => {}
            _ => {
                let line = line.strip_prefix("  ").unwrap_or(line);
                roff.text([roman(line)]);
            }
        }
    }
    if !filled {
        roff.control("fi", []);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_page_has_a_section_for_the_exit_status() {
        let mut text = Vec::new();
        assert_eq!(page(&Arguments::command(), &mut text).unwrap(), "muster.1");
        let text = String::from_utf8(text).unwrap();
        let (_, section) = text.split_once(".SH \"EXIT STATUS\"\n").unwrap();
        assert!(section.contains("\n124  a wait"), "{section}");
    }
}
