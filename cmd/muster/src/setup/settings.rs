//! The settings file of `muster setup`: TOML, one of the configuration files. [`write`] is the only function that
//! changes one; all other keys, sections and comments stay. Both services of a machine share the file.
//!
//! A key is changed in the text: at its value, else after its section's header, else in a new section at the end. The
//! changed text is read again before it is written, so that a form that this does not cover, such as
//! `server = {}`, is an error instead of a broken file.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::files::{self, text_of};

/// The first lines of a new file.
const HEAD: &str = "\
# Written by `muster setup`, which changes its own keys and keeps all other lines. After a change: muster config check
";

/// A key of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The section, which has no dots.
    pub section: &'static str,
    /// The key in it.
    pub name: &'static str,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.section, self.name)
    }
}

/// The text of a key; `None` if the file does not set it to a text, or does not exist.
///
/// # Errors
/// The file exists, and can't be read or is not TOML.
pub fn text(path: &Path, key: Key) -> Result<Option<String>> {
    let value = read(path, key)?;
    Ok(value.and_then(|value| value.as_str().map(str::to_owned)))
}

/// The texts of a list; empty if the file does not set the key to a list, or does not exist.
///
/// # Errors
/// As [`text`].
pub fn list(path: &Path, key: Key) -> Result<Vec<String>> {
    let value = read(path, key)?;
    let values = value.iter().filter_map(Value::as_array).flatten();
    Ok(values
        .filter_map(|value| value.as_str().map(str::to_owned))
        .collect())
}

/// A text as a value.
pub fn of_text(text: &str) -> Value {
    Value::String(text.to_owned())
}

/// A list of texts as a value.
pub fn of_list(texts: &[String]) -> Value {
    Value::Array(texts.iter().map(|text| of_text(text)).collect())
}

/// Sets a key durably; returns false if the file had this value already, and writes nothing then.
///
/// # Errors
/// The file can't be read or written, is not TOML, or has the section in a form that can't be extended.
pub fn write(path: &Path, key: Key, value: &Value) -> Result<bool> {
    let before = text_of(path)?;
    if value_of(&table(path, &before)?, key) == Some(value) {
        return Ok(false);
    }
    let after = with(&before, key, value).map_err(|error| not_toml(path, &error))?;
    let written = after.parse::<Table>().ok();
    if written.and_then(|table| value_of(&table, key).cloned()) != Some(value.clone()) {
        bail!(
            "{}: {key} = {value} cannot be added to the section as it stands; write it there as a line below [{}]",
            path.display(),
            key.section
        );
    }
    files::replace(path, &after, false)?;
    Ok(true)
}

fn read(path: &Path, key: Key) -> Result<Option<Value>> {
    let table = table(path, &text_of(path)?)?;
    Ok(value_of(&table, key).cloned())
}

fn table(path: &Path, text: &str) -> Result<Table> {
    text.parse::<Table>()
        .map_err(|error| not_toml(path, &error))
}

fn not_toml(path: &Path, error: &toml::de::Error) -> anyhow::Error {
    anyhow!(
        "{}: not valid TOML: {}; `muster config check` names the line",
        path.display(),
        error.message()
    )
}

fn value_of(table: &Table, key: Key) -> Option<&Value> {
    table.get(key.section)?.get(key.name)
}

/// The text with the key set.
fn with(text: &str, key: Key, value: &Value) -> Result<String, toml::de::Error> {
    let mut after = text.to_owned();
    if after.is_empty() {
        after.push_str(HEAD);
    }
    if !after.ends_with('\n') {
        after.push('\n');
    }
    let present = span(&after, key)?;
    let line = format!("{} = {value}\n", key.name);
    if let Some(present) = present {
        after.replace_range(present, &value.to_string());
    } else if let Some(end) = header_end(&after, key.section) {
        after.insert_str(end, &line);
    } else {
        after.push_str(&format!("\n[{}]\n{line}", key.section));
    }
    Ok(after)
}

/// The bytes of a key's value in a text.
fn span(text: &str, key: Key) -> Result<Option<Range<usize>>, toml::de::Error> {
    let document = DeTable::parse(text)?;
    for (section, inner) in document.get_ref() {
        let section: &str = section.get_ref();
        let DeValue::Table(inner) = inner.get_ref() else {
            continue;
        };
        if section != key.section {
            continue;
        }
        for (name, value) in inner {
            let name: &str = name.get_ref();
            if name == key.name {
                return Ok(Some(value.span()));
            }
        }
    }
    Ok(None)
}

/// Where the line of a section's header ends, in a text whose lines all end.
fn header_end(text: &str, section: &str) -> Option<usize> {
    let header = format!("[{section}]");
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        let rest = line.trim().strip_prefix(&header).map(str::trim_start);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#')) {
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN: Key = Key {
        section: "server",
        name: "listen",
    };
    const NAMES: Key = Key {
        section: "server",
        name: "advertise",
    };

    #[test]
    fn a_key_is_set_in_its_place_and_all_else_stays() {
        let cases = [
            (
                "[server]\nlisten = 'x' # mine\nnode-grace = 60",
                "[server]\nlisten = \"1:2\" # mine\nnode-grace = 60\n",
            ),
            (
                "# note\n[agent]\nserver = \"s\"\n\n[server] # here\nnode-grace = 60\n",
                "# note\n[agent]\nserver = \"s\"\n\n[server] # here\nlisten = \"1:2\"\nnode-grace = 60\n",
            ),
            (
                "[agent]\nserver = \"s\"\n",
                "[agent]\nserver = \"s\"\n\n[server]\nlisten = \"1:2\"\n",
            ),
            (
                "[server.kubernetes]\nkinds = [\"none\"]\n",
                "[server.kubernetes]\nkinds = [\"none\"]\n\n[server]\nlisten = \"1:2\"\n",
            ),
            ("server.listen = 5\n", "server.listen = \"1:2\"\n"),
            (
                "server = {listen = \"x\", node-grace = 5}\n",
                "server = {listen = \"1:2\", node-grace = 5}\n",
            ),
        ];
        let value = of_text("1:2");
        for (before, after) in cases {
            assert_eq!(with(before, LISTEN, &value).unwrap(), after, "{before:?}");
            assert_eq!(with(after, LISTEN, &value).unwrap(), after, "{before:?}");
        }
        let new = with("", LISTEN, &value).unwrap();
        assert_eq!(new, format!("{HEAD}\n[server]\nlisten = \"1:2\"\n"));
    }

    #[test]
    fn a_list_is_replaced_whole_over_several_lines() {
        let before = "[server]\nadvertise = [\n  \"a\", # first\n]\nlisten = \"1:2\"\n";
        let value = of_list(&["a".to_owned(), "b".to_owned()]);
        let after = with(before, NAMES, &value).unwrap();
        assert_eq!(
            after,
            "[server]\nadvertise = [\"a\", \"b\"]\nlisten = \"1:2\"\n"
        );
    }

    #[test]
    fn a_second_write_changes_nothing_and_a_file_that_cant_be_extended_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf.d/50-setup.toml");
        assert_eq!(text(&path, LISTEN).unwrap(), None);
        assert!(write(&path, LISTEN, &of_text("1:2")).unwrap());
        assert!(!write(&path, LISTEN, &of_text("1:2")).unwrap());
        let names = ["a".to_owned(), "b".to_owned()];
        assert!(write(&path, NAMES, &of_list(&names)).unwrap());
        assert_eq!(text(&path, LISTEN).unwrap().as_deref(), Some("1:2"));
        assert_eq!(list(&path, NAMES).unwrap(), names);
        assert!(list(&path, LISTEN).unwrap().is_empty());
        for (bad, part) in [
            ("[server\n", "not valid TOML"),
            ("server = {}\n", "below [server]"),
            ("server = 5\n", "below [server]"),
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = write(&path, LISTEN, &of_text("1:2")).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
        }
    }
}
