//! Questions on a terminal.

use std::io::{BufRead, IsTerminal, Read, Write};

use anyhow::{Context, Result, bail};

/// The most bytes of an answer; a join token has about a hundred.
const ANSWER_MAX: u64 = 4096;

/// Whether a user can answer: standard input and output are a terminal.
pub fn can_answer() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// The answer to a question; `usual` for an empty one.
///
/// # Errors
/// The input ended, or the answer is empty and there is no usual one.
pub fn text(question: &str, usual: Option<&str>) -> Result<String> {
    let answer = line(question, usual)?;
    match (answer.is_empty(), usual) {
        (false, _) => Ok(answer),
        (true, Some(usual)) => Ok(usual.to_owned()),
        (true, None) => bail!("{question}: an answer is needed"),
    }
}

/// Like [`text`], for an answer that may be empty and has no usual one.
///
/// # Errors
/// The input ended.
pub fn optional(question: &str) -> Result<Option<String>> {
    let answer = line(question, None)?;
    Ok((!answer.is_empty()).then_some(answer))
}

/// Whether the answer is yes, which is the usual one.
///
/// # Errors
/// The input ended.
pub fn yes(question: &str) -> Result<bool> {
    let answer = line(question, Some("yes"))?.to_ascii_lowercase();
    Ok(matches!(answer.as_str(), "" | "y" | "yes"))
}

fn line(question: &str, usual: Option<&str>) -> Result<String> {
    let mut out = std::io::stdout().lock();
    match usual {
        Some(usual) => write!(out, "{question} [{usual}]: ")?,
        None => write!(out, "{question}: ")?,
    }
    out.flush()?;
    let mut answer = String::new();
    let read = std::io::stdin()
        .lock()
        .take(ANSWER_MAX)
        .read_line(&mut answer)
        .context("the answer cannot be read")?;
    if read == 0 {
        bail!("{question}: the input ended; give the options and --yes instead");
    }
    Ok(answer.trim().to_owned())
}
