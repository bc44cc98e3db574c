//! The environment files of the services' units: systemd's `KEY=VALUE` lines with comments. They hold the secrets.
//! [`write`] is the only function that changes one; all other lines stay as the administrator wrote them.

use std::path::Path;

use anyhow::{Result, bail};

use super::files::{self, text_of};

/// The key of the join token: a file with it is readable by its owner only.
pub const TOKEN: &str = "MUSTER_JOIN_TOKEN";

/// The value of a key; `None` if the file does not set it, or does not exist.
///
/// # Errors
/// The file exists and can't be read.
pub fn read(path: &Path, key: &str) -> Result<Option<String>> {
    Ok(value_of(&text_of(path)?, key).filter(|value| !value.is_empty()))
}

/// Sets a key durably; returns false if the file had this value already, and writes nothing then.
///
/// # Errors
/// The value can't be written as one line without quotes, or the file can't be read or written.
pub fn write(path: &Path, key: &str, value: &str) -> Result<bool> {
    let fits = |letter: char| !letter.is_control() && !matches!(letter, '"' | '\'' | '\\' | '`');
    if !value.chars().all(fits) || value.trim() != value {
        bail!(
            "{key}: {value:?} is not usable; write it on one line, without quotes, backslashes and spaces around it"
        );
    }
    let text = text_of(path)?;
    if value_of(&text, key).as_deref() == Some(value) {
        return Ok(false);
    }
    files::replace(path, &with(&text, key, value), key == TOKEN)?;
    Ok(true)
}

/// The value that systemd takes: that of the last line with the key, without quotes around it.
fn value_of(text: &str, key: &str) -> Option<String> {
    let value = text.lines().rev().find_map(|line| assigned(line, key))?;
    let value = value.trim();
    let quoted = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    Some(quoted.unwrap_or(value).to_owned())
}

fn assigned<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.trim_start().strip_prefix(key)?.strip_prefix('=')
}

/// The text with the key set: in the last line that sets it, else after the last comment that shows it, else at the
/// end.
fn with(text: &str, key: &str, value: &str) -> String {
    let line = format!("{key}={value}");
    let mut lines: Vec<&str> = text.lines().collect();
    let commented = |other: &&str| {
        let inner = other.trim_start().strip_prefix('#');
        inner.is_some_and(|inner| assigned(inner, key).is_some())
    };
    if let Some(at) = lines
        .iter()
        .rposition(|other| assigned(other, key).is_some())
    {
        lines[at] = &line;
    } else if let Some(at) = lines.iter().rposition(commented) {
        lines.insert(at + 1, &line);
    } else {
        lines.push(&line);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_set_in_its_place_and_all_other_lines_stay() {
        let cases = [
            ("", "A=1\n"),
            ("A=0\n", "A=1\n"),
            ("# note\n#A=0\n\nB=2\n", "# note\n#A=0\nA=1\n\nB=2\n"),
            ("A=0\nA=3 # kept\nAB=4", "A=0\nA=1\nAB=4\n"),
            ("  A=\"0\"\nB=2\n", "A=1\nB=2\n"),
            ("AB=4\n", "AB=4\nA=1\n"),
        ];
        for (before, after) in cases {
            assert_eq!(with(before, "A", "1"), after, "{before:?}");
            assert_eq!(with(after, "A", "1"), after, "{before:?}, again");
            assert_eq!(value_of(after, "A").as_deref(), Some("1"));
        }
    }

    #[test]
    fn the_last_value_counts_without_its_quotes() {
        let cases = [
            ("A=1\nA=2", Some("2")),
            ("A=\"x y\"", Some("x y")),
            ("A='x'", Some("x")),
            ("A=", Some("")),
            ("#A=1", None),
            ("AB=1", None),
        ];
        for (text, value) in cases {
            assert_eq!(value_of(text, "A").as_deref(), value, "{text:?}");
        }
    }

    #[test]
    fn a_second_write_of_a_value_changes_nothing_and_a_token_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("muster-agent");
        assert_eq!(read(&path, "A").unwrap(), None);
        assert!(write(&path, "A", "1").unwrap());
        assert!(!write(&path, "A", "1").unwrap());
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o644);
        assert!(write(&path, TOKEN, "id.secret@sha256:00").unwrap());
        assert_eq!(mode(), 0o600);
        assert_eq!(read(&path, "A").unwrap().as_deref(), Some("1"));
        for bad in ["a\nb", "a\"b", " a", "a\\"] {
            assert!(write(&path, "A", bad).is_err(), "{bad:?}");
        }
    }
}
