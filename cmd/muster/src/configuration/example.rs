//! A configuration file with every key, commented out.

use clap::Arg;

use super::sections::{self, GLOBAL, Shape, value_name};
use super::show::toml_of;

/// The width of the comments.
const WIDTH: usize = 100;

const HEAD: &str = "\
# Configuration of Muster's server and agent. Every option of `muster server`, `muster agent` and `muster up` can stand
# here, below its command's section, under its long name. Files conf.d/*.toml beside this one are read after it, by
# name; a later value replaces an earlier one. Environment variables come before the files, and the command line before
# both.
#
#   muster config check             checks the files
#   muster config show --origin     prints the effective settings, and where each comes from
#
# Every user of this machine can read this file: the agent's join token belongs in /etc/default/muster-agent, which only
# root can read. After a change: systemctl restart muster-server muster-agent
";

/// The text of the file.
pub fn text(command: &clap::Command) -> String {
    let mut text = HEAD.to_owned();
    let mut described: Vec<(String, String)> = Vec::new();
    for (section, options) in sections::all(command) {
        text += &format!("\n[{section}]\n");
        if section == GLOBAL {
            text += "# For all sections, unless they have the key themselves.\n";
        }
        for option in options {
            let Some(key) = option.get_long() else {
                continue;
            };
            let help = help(option);
            // The global options are listed once; the same option of a further command is described once.
            let known = described.iter().find(|(known, _)| *known == id(key, &help));
            match known.map(|(_, first)| first.clone()) {
                Some(first) if first == GLOBAL => continue,
                Some(first) => text += &format!("\n# As in [{first}].\n"),
                None => {
                    described.push((id(key, &help), section.clone()));
                    text.push('\n');
                    text += &comment(&help);
                }
            }
            let shape = Shape::of(option);
            text += &format!(
                "#{key} = {}\n",
                toml_of(shape, &values(option, shape, &help))
            );
        }
    }
    text
}

/// What makes two options the same: key and meaning.
fn id(key: &str, help: &str) -> String {
    format!("{key}\n{help}")
}

fn help(option: &Arg) -> String {
    let help = option.get_long_help().or_else(|| option.get_help());
    let mut help = help.map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = option
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    if !values.is_empty() && Shape::of(option) != Shape::Flag {
        help += &format!(" (values: {})", values.join(", "));
    }
    help
}

/// The default, or else a placeholder of the key's type.
fn values(option: &Arg, shape: Shape, help: &str) -> Vec<String> {
    let defaults: Vec<String> = option
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    if !defaults.is_empty() {
        return defaults;
    }
    let possible = option.get_possible_values();
    let placeholder = match shape {
        Shape::Flag => "false".to_owned(),
        Shape::Number => documented_number(help),
        Shape::Text | Shape::List => match possible.first() {
            Some(first) => first.get_name().to_owned(),
            None => value_name(option),
        },
    };
    vec![placeholder]
}

/// The number in `[default: 40]` of a help text.
fn documented_number(help: &str) -> String {
    let after = help.split_once("[default: ").map_or("", |(_, rest)| rest);
    let digits = after.chars().take_while(char::is_ascii_digit);
    let digits: String = digits.collect();
    if digits.is_empty() {
        "1".to_owned()
    } else {
        digits
    }
}

/// A text as comment lines.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH && line.len() > 1 {
            lines += &line;
            lines.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line += word;
    }
    if line.len() > 1 {
        lines += &line;
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory as _;

    use super::super::check::check;
    use super::super::file::ConfigurationSource;
    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn the_example_is_valid_and_sets_nothing() {
        let source = ConfigurationSource {
            path: PathBuf::from("example.toml"),
            text: text(&Arguments::command()),
            world_readable: true,
        };
        let checked = check(&Arguments::command(), &[source]).unwrap();
        assert_eq!(checked.settings.len(), 0);
    }

    #[test]
    fn every_key_is_in_the_example_with_a_value_of_its_type() {
        let command = Arguments::command();
        let example = text(&command);
        // As if an administrator had uncommented all keys.
        let keys: String = example
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') && !rest.is_empty() => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let table: toml::Table = keys
            .parse()
            .unwrap_or_else(|error| panic!("{error}\n{keys}"));
        let global = table[GLOBAL].as_table().unwrap();
        for (section, options) in sections::all(&command) {
            let mut inner = &table;
            for name in section.split('.') {
                inner = inner[name].as_table().unwrap();
            }
            for option in options {
                let key = option.get_long().unwrap();
                let value = inner.get(key).or_else(|| global.get(key));
                let value = value.unwrap_or_else(|| panic!("{section}.{key} is missing"));
                let fine = match Shape::of(option) {
                    Shape::Flag => value.is_bool(),
                    Shape::Number => value.is_integer(),
                    Shape::Text => value.is_str(),
                    Shape::List => value.is_array(),
                };
                assert!(fine, "{section}.{key} = {value}");
            }
        }
    }
}
