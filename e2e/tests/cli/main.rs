//! The command line, against a real server with a real agent: what each command prints,
//! and the exit status that it ends with.

mod configuration;
mod errors;
mod jobs;
mod listings;
mod log;
mod setup;

use std::time::Duration;

use e2e::{Platform, Ran, repository};

const SOON: Duration = Duration::from_secs(60);

const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {app: x}}\ndata: {a: '1'}\n";

/// A server with one node of four described GPUs.
fn platform() -> Platform {
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    Platform::up(&["--machine", &machine.display().to_string()])
}

/// Runs a command that must end with this status.
#[track_caller]
fn ends(platform: &Platform, code: i32, arguments: &[&str]) -> Ran {
    let ran = platform.cli(arguments);
    assert_eq!(ran.code, Some(code), "muster {arguments:?}: {ran:?}");
    let raw = ["Status {", "ApiError", "ServiceError", "\u{1b}["];
    for part in raw {
        let dumped = ran.out.contains(part) || ran.err.contains(part);
        assert!(!dumped, "muster {arguments:?} shows {part:?}: {ran:?}");
    }
    ran
}

#[track_caller]
fn holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

/// The words of the line that begins with this one.
#[track_caller]
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let mut lines = table.lines().map(|line| line.split("   "));
    let words = lines.find(|words| words.clone().next().map(str::trim) == Some(name));
    let words = words.unwrap_or_else(|| panic!("no line {name:?} in\n{table}"));
    words.map(str::trim).filter(|w| !w.is_empty()).collect()
}
