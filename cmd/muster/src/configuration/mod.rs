//! Configuration files of `muster server`, `muster agent` and `muster up`, and `muster config`.
//!
//! Problem: every option of these commands can stand in a file, and a value that the command line would refuse must be
//! refused there too. Method: the options of the command line are the only definition. A section of a file is a
//! command, a key is an option's long name (`[server]` and `node-grace = 60`), and each value goes through the option's
//! own parser. What is valid replaces the option's default before the command line is parsed, so that the command line
//! comes before the environment, the environment before the files, and these before the defaults.
//!
//! - `sections`: which keys a section has, and the type of each key's values.
//! - `file`: finds and reads the files; text to entries with their lines.
//! - `check`: entries to settings, or to what is wrong with them.
//! - `origin`: where an effective value comes from.
//! - `show`, `example`: what `muster config` prints.

mod check;
mod example;
mod file;
mod origin;
mod sections;
mod show;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use cli::ExitCause;

use crate::arguments::{Arguments, ConfigCommand, Section, TlsOptions, words_of_process};
use crate::serve;
use check::{CheckedConfiguration, Settings};
use file::ConfigurationFileError;

/// Reads this process's command line, and the configuration files if its command has a section in them. Prints help, or
/// an error of the command line, and exits if there is nothing to run.
///
/// # Errors
/// A file cannot be read, or is invalid.
pub fn arguments_of_process() -> Result<Arguments, ConfigurationFileError> {
    let words = words_of_process();
    let arguments = parsed(Arguments::command(), &words).or_else(|error| {
        // A file may have what is missing on the command line.
        if error.kind() == ErrorKind::MissingRequiredArgument {
            parsed(without_requirements(Arguments::command()), &words)
        } else {
            Err(error)
        }
    });
    let arguments = arguments.unwrap_or_else(|error| error.exit());
    let Some(command) = command_with_files(&arguments)? else {
        return Ok(arguments);
    };
    let arguments = parsed(command, &words).unwrap_or_else(|error| error.exit());
    arguments.command.check_combinations()?;
    Ok(arguments)
}

/// The command line with the files' settings as defaults, if the command has a section in them.
fn command_with_files(
    arguments: &Arguments,
) -> Result<Option<clap::Command>, ConfigurationFileError> {
    let Some((section, path)) = arguments.command.configuration() else {
        return Ok(None);
    };
    let settings = settings(path)?;
    let command = with_settings(Arguments::command(), section, &settings);
    Ok(Some(command))
}

/// Reads the options of the server's certificate as a start of this process would take them now, from its command line,
/// its environment and the files.
///
/// # Errors
/// A file cannot be read, or is invalid; or the process is no server.
pub fn tls_options_of_process() -> anyhow::Result<TlsOptions> {
    let words = words_of_process();
    let arguments = parsed(without_requirements(Arguments::command()), &words)?;
    let command = command_with_files(&arguments)?;
    let command = command.context("this command reads no configuration files")?;
    let arguments = parsed(command, &words)?;
    arguments.command.check_combinations()?;
    let tls = arguments.command.tls_options();
    tls.cloned().context("this command serves no certificate")
}

/// Runs a command of `muster config`.
pub fn run(command: ConfigCommand) -> ExitCode {
    let printed = match command {
        ConfigCommand::Check { file } => checked(file.as_deref()),
        ConfigCommand::Show {
            section,
            origin,
            file,
            options,
        } => shown(section, origin, file.as_deref(), &options),
        ConfigCommand::Example => Ok(example::text(&Arguments::command())),
    };
    match printed {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("muster: {error}");
            ExitCode::from(ExitCause::Usage.code())
        }
    }
}

/// Checks the configuration files, of this path or the usual ones, and names them; warnings go to standard error.
///
/// # Errors
/// A file cannot be read, or is invalid.
pub fn checked(path: Option<&Path>) -> Result<String, ConfigurationFileError> {
    let sources = file::sources(path)?;
    let checked = read(&sources)?;
    if sources.is_empty() {
        return Ok(format!(
            "there is no {}/muster.toml and no {}/conf.d/*.toml: all settings are defaults\n",
            file::DIRECTORY,
            file::DIRECTORY,
        ));
    }
    check_sections(&checked.settings)?;
    let names: Vec<String> = sources
        .iter()
        .map(|source| source.path.display().to_string())
        .collect();
    Ok(format!(
        "valid: {} ({} settings)\n",
        names.join(", "),
        checked.settings.len(),
    ))
}

/// Checks as a start does that the options of each section fit together, and the files of the server's certificate and of
/// OpenID Connect. An option of the command line may still replace a file's value.
fn check_sections(settings: &Settings) -> Result<(), ConfigurationFileError> {
    for section in Section::ALL {
        let command = with_settings(
            without_requirements(Arguments::command()),
            section,
            settings,
        );
        let words = std::iter::once(&"muster").chain(section.path());
        let words: Vec<OsString> = words.map(OsString::from).collect();
        let Ok(arguments) = parsed(command, &words) else {
            // A variable of the environment is invalid; a start names it.
            continue;
        };
        let fits = arguments.command.check_combinations();
        fits.map_err(|error| ConfigurationFileError::SectionCombination {
            section: section.name(),
            error,
        })?;
        let Some(tls) = arguments.command.tls_options() else {
            continue;
        };
        serve::check_certificate(tls).map_err(ConfigurationFileError::Certificate)?;
        if let Some(oidc) = arguments.command.oidc_flags() {
            serve::check_oidc(oidc).map_err(ConfigurationFileError::Oidc)?;
        }
    }
    Ok(())
}

fn shown(
    section: Option<Section>,
    origins: bool,
    path: Option<&Path>,
    options: &[OsString],
) -> Result<String, ConfigurationFileError> {
    let settings = settings(path)?;
    let sections = section.map_or(Section::ALL.to_vec(), |section| vec![section]);
    let definition = Arguments::command();
    let mut text = String::new();
    for section in sections {
        let command = without_requirements(Arguments::command());
        let command = with_settings(command, section, &settings);
        let words = std::iter::once(OsString::from("muster"))
            .chain(section.path().iter().map(OsString::from))
            .chain(options.iter().cloned());
        let matches = command
            .try_get_matches_from(words)
            .unwrap_or_else(|error| error.exit());
        if !text.is_empty() {
            text.push('\n');
        }
        text += &show::text(&definition, section, &settings, &matches, origins);
    }
    Ok(text)
}

/// The settings of the files; warnings go to standard error.
fn settings(path: Option<&Path>) -> Result<Settings, ConfigurationFileError> {
    Ok(read(&file::sources(path)?)?.settings)
}

fn read(
    sources: &[file::ConfigurationSource],
) -> Result<CheckedConfiguration, ConfigurationFileError> {
    let checked =
        check::check(&Arguments::command(), sources).map_err(ConfigurationFileError::Invalid)?;
    for warning in &checked.warnings {
        eprintln!("muster: warning: {warning}");
    }
    Ok(checked)
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::from(ExitCause::ClosedPipe.code())
        }
        Err(error) => {
            eprintln!("muster: the configuration was not printed: {error}");
            ExitCode::from(ExitCause::Failed.code())
        }
    }
}

fn parsed(mut command: clap::Command, words: &[OsString]) -> Result<Arguments, clap::Error> {
    let mut matches = command.try_get_matches_from_mut(words)?;
    Arguments::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Changes the command at a path of subcommands.
fn at(
    command: clap::Command,
    path: &[&str],
    change: &dyn Fn(clap::Command) -> clap::Command,
) -> clap::Command {
    match path.split_first() {
        None => change(command),
        Some((first, rest)) => command.mut_subcommand(first, |inner| at(inner, rest, change)),
    }
}

/// The command line, with no option required of the commands that read files.
fn without_requirements(command: clap::Command) -> clap::Command {
    Section::ALL.into_iter().fold(command, |command, section| {
        at(command, section.path(), &|inner| {
            inner.mut_args(|option| option.required(false))
        })
    })
}

/// The command line, with a section's settings as its command's defaults.
fn with_settings(
    mut command: clap::Command,
    section: Section,
    settings: &Settings,
) -> clap::Command {
    let given: Vec<(String, bool, Vec<String>)> = sections::options(&command, section)
        .into_iter()
        .filter_map(|option| {
            let setting = settings.get(section, option.get_long()?)?;
            let id = option.get_id().to_string();
            Some((id, option.is_global_set(), setting.values.clone()))
        })
        .collect();
    for (id, global, values) in given {
        let path: &[&str] = if global { &[] } else { section.path() };
        command = at(command, path, &|inner| {
            inner.mut_arg(&id, |option| {
                option.default_values(values.clone()).required(false)
            })
        });
    }
    command
}

#[cfg(test)]
mod fuzz_tests;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::arguments::Command;

    fn source(name: &str, text: &str) -> file::ConfigurationSource {
        file::ConfigurationSource {
            path: PathBuf::from(name),
            text: text.to_owned(),
            world_readable: false,
        }
    }

    fn started(files: &[&str], line: &str) -> Arguments {
        let sources: Vec<file::ConfigurationSource> =
            files.iter().map(|text| source("f.toml", text)).collect();
        let checked = check::check(&Arguments::command(), &sources).unwrap();
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let relaxed = parsed(without_requirements(Arguments::command()), &words).unwrap();
        let (section, _) = relaxed.command.configuration().unwrap();
        let command = with_settings(Arguments::command(), section, &checked.settings);
        parsed(command, &words).unwrap()
    }

    fn server(arguments: Arguments) -> Box<crate::arguments::Server> {
        match arguments.command {
            Command::Server(server) => server,
            _ => panic!("not a server"),
        }
    }

    #[test]
    fn the_command_line_comes_before_later_files_and_these_before_earlier_ones() {
        let files = [
            "[server]\nnode-grace = 50\naudit-log-maxsize = 5\nadvertise = [\"a\", \"b\"]\n",
            "[server]\nnode-grace = 60\naudit-log-maxsize = 6\n",
        ];
        let of = server(started(&files, "muster server --audit-log-maxsize 7")).server;
        assert_eq!(of.node_grace, Some(60));
        assert_eq!(of.audit.audit_log_maxsize, 7);
        assert_eq!(of.audit.audit_log_maxbackup, 10);
        assert_eq!(of.advertise, ["a", "b"]);
        let of = server(started(&files, "muster server --advertise c")).server;
        assert_eq!(of.advertise, ["c"]);
    }

    #[test]
    fn a_section_comes_before_global_and_is_of_its_own_command_only() {
        let files = [
            "[global]\ndata = \"/g\"\nlog-format = \"json\"\n[server]\ndata = \"/s\"\nnode-grace = 50\n[server.kubernetes]\nkinds = [\"none\"]\n",
        ];
        if std::env::var_os("MUSTER_DATA").is_none() {
            let arguments = started(&files, "muster server");
            assert_eq!(arguments.global.data, Some(PathBuf::from("/s")));
            let arguments = started(&files, "muster up");
            assert_eq!(arguments.global.data, Some(PathBuf::from("/g")));
        }
        let of = server(started(&files, "muster server kubernetes"));
        assert_eq!(of.server.node_grace, None);
        let Some(crate::arguments::ServerEngine::Kubernetes(of)) = of.engine else {
            panic!("the engine")
        };
        assert_eq!(of.kinds, [crate::arguments::ControlledKind::None]);
        assert_eq!(format!("{:?}", of.log.log_format), "Json");
    }

    #[test]
    fn a_required_option_and_a_flag_can_stand_in_a_file() {
        let files = ["[agent]\nserver = \"https://s:8443\"\nhost-images = true\n"];
        let Command::Agent(agent) = started(&files, "muster agent").command else {
            panic!("an agent")
        };
        assert!(agent.embedded.pods.host_images);
        if std::env::var_os("MUSTER_SERVER").is_none() {
            assert_eq!(agent.embedded.server.as_deref(), Some("https://s:8443"));
        }
        let files = ["[up]\nhost-images = true\n", "[up]\nhost-images = false\n"];
        let Command::Up(up) = started(&files, "muster up").command else {
            panic!("up")
        };
        assert!(!up.pods.host_images);
    }

    #[test]
    fn no_option_excludes_or_needs_another() {
        // A value of a file is a default, and clap does not hold conflicts of defaults against anything.
        let command = Arguments::command();
        for section in Section::ALL {
            let mut inner = &command;
            for name in section.path() {
                inner = inner.find_subcommand(name).unwrap();
            }
            for option in inner.get_arguments() {
                let conflicts = inner.get_arg_conflicts_with(option);
                assert!(conflicts.is_empty(), "{}", option.get_id());
            }
        }
    }
}
