//! The settings that a command would run with, as TOML.

use clap::{Arg, ArgMatches};

use super::check::Settings;
use super::origin::SettingOrigin;
use super::sections::{self, Shape, is_secret};
use crate::arguments::Section;

/// The column of the origins.
const COLUMN: usize = 48;

/// A text as a TOML string.
pub fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Values in the form of an option's key.
pub fn toml_of(shape: Shape, values: &[String]) -> String {
    let first = values.first().map(String::as_str).unwrap_or_default();
    match shape {
        Shape::Flag | Shape::Number => first.to_owned(),
        Shape::Text => quoted(first),
        Shape::List => {
            let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            format!("[{}]", values.join(", "))
        }
    }
}

/// A section with its effective settings, a line for each. `matches` are those of the whole command line.
pub fn text(
    command: &clap::Command,
    section: Section,
    settings: &Settings,
    matches: &ArgMatches,
    origins: bool,
) -> String {
    let mut inner = matches;
    for name in section.path() {
        inner = inner.subcommand_matches(name).unwrap_or(inner);
    }
    let mut text = format!("[{}]\n", section.name());
    for option in sections::options(command, section) {
        let origin = SettingOrigin::of(option, inner, section, settings);
        let line = line(option, inner, &origin);
        text += &if origins && origin != SettingOrigin::Unset {
            format!("{line:<COLUMN$} # {origin}\n")
        } else {
            format!("{line}\n")
        };
    }
    text
}

fn line(option: &Arg, matches: &ArgMatches, origin: &SettingOrigin) -> String {
    let key = option.get_long().unwrap_or_default();
    if *origin == SettingOrigin::Unset {
        return format!("# {key} is not set");
    }
    if is_secret(option) {
        return format!("{key} = \"(hidden)\"");
    }
    let values = matches.get_raw(option.get_id().as_str());
    let values: Vec<String> = values
        .into_iter()
        .flatten()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    format!("{key} = {}", toml_of(Shape::of(option), &values))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory as _;

    use super::super::check::check;
    use super::super::file::ConfigurationSource;
    use super::super::{with_settings, without_requirements};
    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn each_line_has_its_value_and_its_origin() {
        let source = ConfigurationSource {
            path: PathBuf::from("f.toml"),
            text: "[agent]\nnode-name = \"a \\\"b\\\"\"\ntoken = \"secret\"\nlabel = [\"a=b\", \"c=d\"]\nvendor = []\npod-pids-limit = 64\nhost-images = true\n"
                .to_owned(),
            world_readable: false,
        };
        let definition = Arguments::command();
        let settings = check(&definition, &[source]).unwrap().settings;
        let command = without_requirements(Arguments::command());
        let matches = with_settings(command, Section::Agent, &settings)
            .try_get_matches_from(["muster", "agent", "--over-share", "end"])
            .unwrap();
        let shown = text(&definition, Section::Agent, &settings, &matches, true);
        let mut lines = shown.lines();
        assert_eq!(lines.next(), Some("[agent]"));
        let line = |key: &str| {
            let found = shown.lines().find(|line| line.starts_with(key));
            found.unwrap_or_else(|| panic!("no {key} in\n{shown}"))
        };
        for (key, end) in [
            ("node-name = ", "# f.toml:2"),
            ("token = \"(hidden)\" ", "# f.toml:3"),
            ("label = [\"a=b\", \"c=d\"] ", "# f.toml:4"),
            ("vendor = [] ", "# f.toml:5"),
            ("pod-pids-limit = 64 ", "# f.toml:6"),
            ("host-images = true ", "# f.toml:7"),
            ("over-share = \"end\" ", "# command line"),
            ("mps-control = ", "# default"),
        ] {
            assert!(line(key).ends_with(end), "{}", line(key));
        }
        assert_eq!(line("# ca "), "# ca is not set");
        assert!(!shown.contains("secret"), "{shown}");
        // What is printed can be read as a file.
        let again: toml::Table = shown.parse().unwrap();
        assert_eq!(again["agent"]["node-name"].as_str(), Some("a \"b\""));
    }
}
