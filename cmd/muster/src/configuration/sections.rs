//! The sections of configuration files and their keys, from the definition of the command line.

use std::any::TypeId;

use clap::{Arg, ArgAction};

use crate::arguments::Section;

/// The section of the options that every other section has too.
pub const GLOBAL: &str = "global";

/// Options that cannot be set in a file, each with the reason.
pub const REFUSED: [(&str, &str); 4] = [
    ("config", "it names the file itself"),
    ("help", "it is for the command line only"),
    ("namespace", "it is an option of client commands"),
    ("version", "it is for the command line only"),
];

/// The type of a key's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// true or false
    Flag,
    /// An integer
    Number,
    /// A string
    Text,
    /// An array of strings
    List,
}

impl Shape {
    /// The shape of an option's values.
    pub fn of(option: &Arg) -> Shape {
        let kind = option.get_value_parser().type_id();
        let numbers = [
            TypeId::of::<u16>(),
            TypeId::of::<u32>(),
            TypeId::of::<u64>(),
            TypeId::of::<usize>(),
        ];
        match option.get_action() {
            ArgAction::SetTrue => Shape::Flag,
            ArgAction::Append => Shape::List,
            _ if numbers.iter().any(|number| kind == *number) => Shape::Number,
            _ => Shape::Text,
        }
    }

    /// The valid form, for errors.
    pub fn form(self, option: &Arg) -> String {
        let key = option.get_long().unwrap_or_default();
        let name = value_name(option);
        match self {
            Shape::Flag => format!("{key} = true or {key} = false"),
            Shape::Number => format!("{key} = {name}, an integer without quotes"),
            Shape::Text => format!("{key} = \"{name}\""),
            Shape::List => format!("{key} = [\"{name}\", ...]"),
        }
    }
}

/// What an option's help calls its value.
pub fn value_name(option: &Arg) -> String {
    let name = option.get_value_names().and_then(<[_]>::first);
    name.map_or_else(|| "VALUE".to_owned(), ToString::to_string)
}

/// True if an option's value must not be printed.
pub fn is_secret(option: &Arg) -> bool {
    option.is_hide_env_values_set()
}

/// The options of a section's command that can stand in a file: its own, and those that every command has.
pub fn options(command: &clap::Command, section: Section) -> Vec<&Arg> {
    let mut inner = command;
    for name in section.path() {
        match inner.find_subcommand(name) {
            Some(found) => inner = found,
            None => return Vec::new(),
        }
    }
    let all = inner.get_arguments().chain(command.get_arguments());
    all.filter(|option| {
        option
            .get_long()
            .is_some_and(|key| REFUSED.iter().all(|(refused, _)| *refused != key))
    })
    .collect()
}

/// The options of the section `global`: those that all sections have.
pub fn shared(command: &clap::Command) -> Vec<&Arg> {
    let mut shared = options(command, Section::Server);
    for section in Section::ALL {
        let others = options(command, section);
        shared.retain(|option| {
            others
                .iter()
                .any(|other| other.get_long() == option.get_long())
        });
    }
    shared
}

/// All sections by name, each with its options.
pub fn all(command: &clap::Command) -> Vec<(String, Vec<&Arg>)> {
    let global = (GLOBAL.to_owned(), shared(command));
    let others = Section::ALL
        .into_iter()
        .map(|section| (section.name(), options(command, section)));
    std::iter::once(global).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn every_option_of_the_commands_is_a_key_and_the_shared_ones_are_global() {
        let command = Arguments::command();
        let keys = |options: Vec<&Arg>| -> Vec<String> {
            let mut keys: Vec<String> = options
                .iter()
                .filter_map(|option| option.get_long().map(str::to_owned))
                .collect();
            keys.sort();
            keys
        };
        assert_eq!(
            keys(shared(&command)),
            ["data", "kubeconfig", "log-format", "log-levels"]
        );
        for (section, key) in [
            (Section::Server, "node-grace"),
            (Section::ServerKubernetes, "kinds"),
            (Section::Agent, "token"),
            (Section::AgentKubernetes, "device-list-strategy"),
            (Section::Up, "host-images"),
        ] {
            assert!(keys(options(&command, section)).contains(&key.to_owned()));
        }
    }

    #[test]
    fn the_shape_follows_the_option() {
        let command = Arguments::command();
        let shape = |section, key: &str| {
            let all = options(&command, section);
            let option = all.into_iter().find(|o| o.get_long() == Some(key));
            Shape::of(option.unwrap())
        };
        for (section, key, wanted) in [
            (Section::Server, "node-grace", Shape::Number),
            (Section::Server, "audit-log-maxsize", Shape::Number),
            (Section::Server, "audit-log-maxbackup", Shape::Number),
            (Section::Server, "listen", Shape::Text),
            (Section::Server, "advertise", Shape::List),
            (Section::ServerKubernetes, "kinds", Shape::List),
            (Section::Agent, "host-images", Shape::Flag),
            (Section::Agent, "label", Shape::List),
            (Section::Agent, "pod-pids-limit", Shape::Number),
            (Section::AgentKubernetes, "pair", Shape::Flag),
        ] {
            assert_eq!(shape(section, key), wanted, "{key}");
        }
    }
}
