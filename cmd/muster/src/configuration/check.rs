//! Entries of files to settings: each key is an option, and its value goes through the option's own parser.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;

use clap::Arg;
use clap::error::{ContextKind, ContextValue};

use super::file::{ConfigurationSource, Entry, Place, Value, entries};
use super::sections::{self, GLOBAL, REFUSED, Shape, is_secret};
use crate::arguments::Section;

/// An option's values in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSetting {
    /// The values, as the command line has them; several for a list, none for an empty one.
    pub values: Vec<String>,
    /// Where they stand.
    pub place: Place,
}

/// The valid settings of all files.
#[derive(Debug, Default)]
pub struct Settings {
    /// By section and key.
    by_key: BTreeMap<(String, String), FileSetting>,
}

impl Settings {
    /// The setting of a section's key: the section's own, else that of the section `global`.
    pub fn get(&self, section: Section, key: &str) -> Option<&FileSetting> {
        let of = |section: String| self.by_key.get(&(section, key.to_owned()));
        of(section.name()).or_else(|| of(GLOBAL.to_owned()))
    }

    /// Number of settings.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }
}

/// What the files say.
#[derive(Debug, Default)]
pub struct CheckedConfiguration {
    /// The settings.
    pub settings: Settings,
    /// What is valid and should be changed all the same.
    pub warnings: Vec<String>,
}

/// Something invalid in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationMistake {
    /// Where it stands.
    pub place: Place,
    /// What is invalid.
    pub mistake: Mistake,
}

impl fmt::Display for ConfigurationMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.mistake)
    }
}

/// What is invalid in a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// The file is not TOML.
    #[error("not valid TOML: {0}")]
    Syntax(String),
    /// No such section.
    #[error("[{name}]: unknown section; use one of {}", .known.join(", "))]
    UnknownSection {
        /// The section.
        name: String,
        /// The known sections.
        known: Vec<String>,
    },
    /// A key outside of all sections.
    #[error(
        "{key} = {value}: the key is in no section; write it below [global] or a command's section like [server]"
    )]
    NoSection {
        /// The key.
        key: String,
        /// Its value.
        value: String,
    },
    /// No such key.
    #[error("{section}.{key} = {value}: unknown key; {hint}")]
    UnknownKey {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Where the key is known, or how to find the known ones.
        hint: String,
    },
    /// An option that cannot be set in a file.
    #[error("{section}.{key}: --{key} cannot be set in a file: {reason}")]
    Refused {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// Why not.
        reason: &'static str,
    },
    /// A value of another type.
    #[error("{section}.{key} = {value}: the value is {found}; use {form}")]
    WrongType {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The value's type.
        found: &'static str,
        /// The valid form.
        form: String,
    },
    /// A value that the option's parser refuses.
    #[error("{section}.{key} = {value}: invalid value: {reason}; use {form}")]
    Invalid {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What the parser reports.
        reason: String,
        /// The valid form.
        form: String,
    },
}

/// Checks files against the definition of the command line; of several files with the same key, the last one counts.
///
/// # Errors
/// All that is invalid, in the order of files and lines.
pub fn check(
    command: &clap::Command,
    sources: &[ConfigurationSource],
) -> Result<CheckedConfiguration, Vec<ConfigurationMistake>> {
    let known = sections::all(command);
    let names: Vec<String> = known.iter().map(|(name, _)| name.clone()).collect();
    let mut checked = CheckedConfiguration::default();
    let mut problems = Vec::new();
    for source in sources {
        let entries = match entries(source, &names) {
            Ok(entries) => entries,
            Err((place, reason)) => {
                let mistake = Mistake::Syntax(reason);
                problems.push(ConfigurationMistake { place, mistake });
                continue;
            }
        };
        for entry in entries {
            let place = entry.place.clone();
            let (option, values) = match setting(&known, &entry) {
                Ok(found) => found,
                Err(mistake) => {
                    problems.push(ConfigurationMistake { place, mistake });
                    continue;
                }
            };
            if is_secret(option) && source.world_readable {
                checked.warnings.push(format!(
                    "{place}: {}.{} is a secret, and every user of this machine can read the file: chmod o= {}",
                    entry.section,
                    entry.key,
                    source.path.display()
                ));
            }
            let setting = FileSetting { values, place };
            let settings = &mut checked.settings.by_key;
            settings.insert((entry.section, entry.key), setting);
        }
    }
    if problems.is_empty() {
        Ok(checked)
    } else {
        Err(problems)
    }
}

/// The option that an entry sets, and its values.
fn setting<'a>(
    known: &[(String, Vec<&'a Arg>)],
    entry: &Entry,
) -> Result<(&'a Arg, Vec<String>), Mistake> {
    let (section, key) = (entry.section.clone(), entry.key.clone());
    let named = |options: &[&'a Arg]| -> Option<&'a Arg> {
        let mut options = options.iter().copied();
        options.find(|option| option.get_long() == Some(entry.key.as_str()))
    };
    let options = known.iter().find(|(name, _)| *name == section);
    let option = options.and_then(|(_, options)| named(options));
    let Some(option) = option else {
        let value = entry.value.to_string();
        if entry.value == Value::Table {
            let name = match section.as_str() {
                "" => key,
                outer => format!("{outer}.{key}"),
            };
            let known = known.iter().map(|(name, _)| format!("[{name}]")).collect();
            return Err(Mistake::UnknownSection { name, known });
        }
        if let Some(&(_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == key) {
            return Err(Mistake::Refused {
                section,
                key,
                reason,
            });
        }
        if options.is_none() {
            return Err(Mistake::NoSection { key, value });
        }
        let elsewhere = known.iter().filter(|(_, options)| named(options).is_some());
        let elsewhere: Vec<String> = elsewhere.map(|(name, _)| format!("[{name}]")).collect();
        let hint = if elsewhere.is_empty() {
            "`muster config example` prints all keys".to_owned()
        } else {
            format!("it is a key of {}", elsewhere.join(", "))
        };
        return Err(Mistake::UnknownKey {
            section,
            key,
            value,
            hint,
        });
    };
    let shown = |value: &Value| {
        if is_secret(option) {
            "(hidden)".to_owned()
        } else {
            value.to_string()
        }
    };
    let shape = Shape::of(option);
    let values = values(shape, &entry.value).map_err(|value| Mistake::WrongType {
        section: section.clone(),
        key: key.clone(),
        value: shown(value),
        found: value.kind(),
        form: shape.form(option),
    })?;
    if shape != Shape::Flag {
        for value in &values {
            if let Some(reason) = refusal(option, value) {
                let value = match shape {
                    Shape::Number => value.clone(),
                    _ => shown(&Value::Text(value.clone())),
                };
                return Err(Mistake::Invalid {
                    section,
                    key,
                    value,
                    reason,
                    form: shape.form(option),
                });
            }
        }
    }
    Ok((option, values))
}

/// A value as the command line has it, or the part of it that has another type.
fn values(shape: Shape, value: &Value) -> Result<Vec<String>, &Value> {
    match (shape, value) {
        (Shape::Flag, Value::Flag(flag)) => Ok(vec![flag.to_string()]),
        (Shape::Number, Value::Number(number)) => Ok(vec![number.to_string()]),
        (Shape::Text, Value::Text(text)) => Ok(vec![text.clone()]),
        (Shape::List, Value::List(values)) => values
            .iter()
            .map(|value| match value {
                Value::Text(text) => Ok(text.clone()),
                other => Err(other),
            })
            .collect(),
        (_, other) => Err(other),
    }
}

/// Why an option refuses a value; None if it takes it. The option is parsed alone, by the parser of the command line.
fn refusal(option: &Arg, value: &str) -> Option<String> {
    let key = option.get_long()?;
    let alone = option.clone().required(false).global(false);
    let words = ["muster".to_owned(), format!("--{key}={value}")];
    let parsed = clap::Command::new("muster")
        .arg(alone)
        .try_get_matches_from(words);
    let error = parsed.err()?;
    if let Some(source) = error.source() {
        return Some(source.to_string());
    }
    Some(match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) if !valid.is_empty() => {
            format!("must be one of {}", valid.join(", "))
        }
        _ => "it must not be empty".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory as _;

    use super::*;
    use crate::arguments::Arguments;

    fn source(text: &str) -> ConfigurationSource {
        ConfigurationSource {
            path: PathBuf::from("f.toml"),
            text: text.to_owned(),
            world_readable: true,
        }
    }

    fn problem(text: &str) -> String {
        let problems = check(&Arguments::command(), &[source(text)]).unwrap_err();
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        all.join("\n")
    }

    #[test]
    fn every_mistake_names_file_line_key_value_and_the_valid_form() {
        let cases: &[(&str, &[&str])] = &[
            ("[server\n", &["f.toml:1: not valid TOML"]),
            (
                "\n[sever]\n",
                &["f.toml:2: [sever]: unknown section", "[server]"],
            ),
            (
                "[agent.kubernetse]\n",
                &["[agent.kubernetse]: unknown section", "[agent.kubernetes]"],
            ),
            (
                "listen = \"x\"\n",
                &["f.toml:1: listen = \"x\"", "in no section"],
            ),
            (
                "[server]\n\nnode-grase = 60\n",
                &[
                    "f.toml:3: server.node-grase = 60: unknown key",
                    "muster config example",
                ],
            ),
            (
                "[agent]\nnode-grace = 60\n",
                &["agent.node-grace = 60: unknown key; it is a key of [server], [up]"],
            ),
            (
                "[server]\nhelp = true\n",
                &["--help cannot be set in a file"],
            ),
            (
                "[server]\nversion = true\n",
                &["--version cannot be set in a file"],
            ),
            (
                "[agent]\nconfig = \"/x\"\n",
                &["--config cannot be set in a file"],
            ),
            (
                "[up]\nnamespace = \"x\"\n",
                &["--namespace cannot be set in a file"],
            ),
            (
                "[server]\nnode-grace = \"60\"\n",
                &[
                    "server.node-grace = \"60\": the value is a string",
                    "node-grace = SECONDS",
                ],
            ),
            (
                "[server]\nnode-grace = 1.5\n",
                &["= 1.5: the value is a float"],
            ),
            (
                "[server]\nnode-grace = -1\n",
                &["server.node-grace = -1: invalid value"],
            ),
            (
                "[server]\nnode-grace = 2\n",
                &["f.toml:2: server.node-grace = 2: invalid value: 2 is not in 10.."],
            ),
            (
                "[server]\nadvertise = \"a\"\n",
                &["the value is a string; use advertise = [\"NAME\", ...]"],
            ),
            (
                "[server]\nadvertise = [1]\n",
                &["server.advertise = 1: the value is an integer"],
            ),
            (
                "[server]\nlisten = \"x\"\n",
                &["server.listen = \"x\": invalid value", "listen = \"ADDR\""],
            ),
            (
                "[up]\nhost-images = \"yes\"\n",
                &["host-images = true or host-images = false"],
            ),
            (
                "[up]\nmetrics = \"9400\"\n",
                &["up.metrics = \"9400\"", "use IP:PORT"],
            ),
            (
                "[server.kubernetes]\nkinds = [\"none\", \"Pod\"]\n",
                &[
                    "server.kubernetes.kinds = \"Pod\"",
                    "must be one of PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob, MPIJob, none",
                ],
            ),
            (
                "[global]\nlog-format = \"xml\"\n",
                &["must be one of text, json"],
            ),
            (
                "[global]\nlog-levels = \"info,x=loud\"\n",
                &["does not list log levels"],
            ),
            (
                "[global]\ndata = \"\"\n",
                &["global.data = \"\"", "must not be empty"],
            ),
            (
                "[agent]\ntoken = 5\n",
                &["agent.token = (hidden): the value is an integer"],
            ),
            (
                "[[server]]\nlisten = \"x\"\n",
                &["f.toml:1: server = ", "in no section"],
            ),
        ];
        for (text, parts) in cases {
            let problem_text = problem(text);
            for part in *parts {
                assert!(
                    problem_text.contains(part),
                    "{part:?} is missing for {text:?}: {problem_text}"
                );
            }
        }
    }

    #[test]
    fn all_mistakes_of_all_files_are_listed() {
        let files = [source("[server]\nx = 1\ny = 2\n"), source("[up]\nz = 3\n")];
        let problems = check(&Arguments::command(), &files).unwrap_err();
        assert_eq!(problems.len(), 3);
    }

    #[test]
    fn a_secret_that_every_user_can_read_is_a_warning() {
        let mut file = source("[agent]\ntoken = \"t\"\nserver = \"https://s\"\n");
        let checked = check(&Arguments::command(), std::slice::from_ref(&file)).unwrap();
        assert_eq!(checked.warnings.len(), 1);
        assert!(checked.warnings[0].starts_with("f.toml:2: agent.token "));
        file.world_readable = false;
        let checked = check(&Arguments::command(), &[file]).unwrap();
        assert!(checked.warnings.is_empty());
    }
}
