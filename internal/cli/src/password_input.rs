//! Passwords from a file or a terminal. Standard input that is no terminal is read like a file, so that scripts work.

use std::io::{BufRead, IsTerminal, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The most bytes of a line with a password; the server takes 1024.
const LINE_MAX: u64 = 4096;

/// The password on the first line of a file.
pub fn from_file(file: &Path) -> Result<String> {
    let text = std::fs::File::open(file)
        .with_context(|| format!("the password file {} cannot be read", file.display()))?;
    let mut line = String::new();
    std::io::BufReader::new(text.take(LINE_MAX))
        .read_line(&mut line)
        .with_context(|| format!("the password file {} cannot be read", file.display()))?;
    password_of(&line).with_context(|| {
        format!(
            "the first line of the password file {} is empty; write the password there",
            file.display()
        )
    })
}

/// The next line of standard input. A terminal gets the question, and does not show what is typed.
pub fn ask(question: &str) -> Result<String> {
    let terminal = std::io::stdin().is_terminal();
    let _hidden = terminal.then(|| {
        eprint!("{question}: ");
        HiddenInput::begin()
    });
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .take(LINE_MAX)
        .read_line(&mut line)
        .context("standard input cannot be read")?;
    if terminal {
        eprintln!();
    }
    match password_of(&line) {
        Some(password) => Ok(password),
        None => bail!("{question}: a line with the password is needed on standard input"),
    }
}

fn password_of(line: &str) -> Option<String> {
    let password = line.strip_suffix('\n').unwrap_or(line);
    let password = password.strip_suffix('\r').unwrap_or(password);
    (!password.is_empty()).then(|| password.to_owned())
}

/// A terminal that does not show what is typed, until this is dropped.
struct HiddenInput;

impl HiddenInput {
    fn begin() -> HiddenInput {
        stty("-echo");
        HiddenInput
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        stty("echo");
    }
}

/// Sets the terminal of standard input. Without the program `stty`, the terminal goes on showing what is typed.
fn stty(mode: &str) {
    let set = Command::new("stty")
        .arg(mode)
        .stdin(Stdio::inherit())
        .stderr(Stdio::null())
        .status();
    if !set.is_ok_and(|status| status.success()) && mode == "-echo" {
        eprint!("(the terminal shows what you type) ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_a_files_first_line_with_its_inner_spaces() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            from_file(&file)
        };
        assert_eq!(
            read(" four random words \r\nmore").unwrap(),
            " four random words "
        );
        assert_eq!(read("one").unwrap(), "one");
        let empty = read("\nmore\n").unwrap_err().to_string();
        assert!(empty.contains("first line"), "{empty}");
        assert!(from_file(&dir.path().join("none")).is_err());
    }
}
