//! `make mutants`: plants each bug of the list into a copy of the sources and runs the test that
//! must turn red. Prints a table; fails if a bug goes unnoticed. `MUTANTS_ONLY` picks those whose
//! property contains one of its words, with commas between them. Minutes: each bug is one build of
//! the scheduler.

mod list;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use list::{MUTANTS, Mutant};

/// What can go wrong beside a bug that nobody notices.
type MutantFailure = Box<dyn std::error::Error>;

/// What became of one.
enum MutantOutcome {
    /// The test failed, after so many cases where that is known.
    Red(Option<u64>),
    /// It passed.
    Green,
    /// It could not be told.
    Broken(String),
}

fn main() -> Result<ExitCode, MutantFailure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(given) => root.join(given),
        None => root.join("target"),
    };
    let (copy, built) = (target.join("mutants/tree"), target.join("mutants/target"));
    copy_sources(&root, &copy)?;
    let only = std::env::var("MUTANTS_ONLY").unwrap_or_default();
    let chosen: Vec<&Mutant> = MUTANTS
        .iter()
        .filter(|m| only.split(',').any(|word| m.property.contains(word)))
        .collect();
    println!("| planted bug against | turns red | cases until then |\n|---|---|---|");
    let mut unnoticed = 0;
    for mutant in chosen {
        let verdict = plant(mutant, &copy, &built)?;
        let (binary, test) = mutant.test;
        let outcome = match verdict {
            MutantOutcome::Red(Some(cases)) => format!("`{binary}`: {test} | {cases}"),
            MutantOutcome::Red(None) => format!("`{binary}`: {test} | "),
            MutantOutcome::Green => format!("nothing: `{binary}`: {test} stays green | "),
            MutantOutcome::Broken(ref why) => format!("not run: {why} | "),
        };
        unnoticed += usize::from(!matches!(verdict, MutantOutcome::Red(_)));
        println!("| {} | {outcome} |", mutant.property);
    }
    Ok(if unnoticed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the repository holds, as it stands; files that did not change keep their time, so that
/// only what must be is built again.
fn copy_sources(root: &Path, copy: &Path) -> Result<(), MutantFailure> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "--cached",
            "--others",
            "--exclude-standard",
            "-z",
        ])
        .current_dir(root)
        .output()?;
    for name in String::from_utf8(listed.stdout)?
        .split('\0')
        .filter(|name| !name.is_empty())
    {
        let (from, to) = (root.join(name), copy.join(name));
        let Ok(text) = std::fs::read(&from) else {
            continue;
        };
        if std::fs::read(&to).is_ok_and(|there| there == text) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&to, text)?;
    }
    Ok(())
}

fn plant(mutant: &Mutant, copy: &Path, built: &Path) -> Result<MutantOutcome, MutantFailure> {
    let file: PathBuf = copy.join("internal/scheduler").join(mutant.file);
    let sound = std::fs::read_to_string(&file)?;
    if sound.matches(mutant.find).count() != 1 {
        let why = format!("{:?} is not in {} once", mutant.find, mutant.file);
        return Ok(MutantOutcome::Broken(why));
    }
    std::fs::write(&file, sound.replace(mutant.find, mutant.replace))?;
    let (binary, test) = mutant.test;
    let ran = Command::new(env!("CARGO"))
        .args([
            "test",
            "--offline",
            "-p",
            "scheduler",
            "--test",
            binary,
            "--",
            test,
        ])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", built)
        // Past what a property finds by luck.
        .env("PROPTEST_CASES", "2048")
        .env("PROPTEST_MAX_SHRINK_ITERS", "64")
        .env("RUST_BACKTRACE", "0")
        .output();
    std::fs::write(&file, sound)?;
    let ran = ran?;
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    if text.contains(&format!("test {test} ... FAILED")) {
        return Ok(MutantOutcome::Red(cases(&text)));
    }
    if ran.status.success() && text.contains(&format!("test {test} ... ok")) {
        return Ok(MutantOutcome::Green);
    }
    let errors = String::from_utf8_lossy(&ran.stderr);
    let first = errors.lines().find(|line| line.starts_with("error"));
    Ok(MutantOutcome::Broken(
        first.unwrap_or("the test did not run").to_owned(),
    ))
}

/// Cases up to the one that failed, as proptest counts them.
fn cases(text: &str) -> Option<u64> {
    let at = text.find("successes: ")? + "successes: ".len();
    let digits: String = text[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    Some(digits.parse::<u64>().ok()? + 1)
}
