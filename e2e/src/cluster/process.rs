//! One program of a cluster: started with its log beside it, ended when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;

/// How much of a log a failure shows.
const SHOWN: usize = 40;

/// A program that is about to be started.
pub(super) struct Starting {
    name: String,
    command: Command,
    log: PathBuf,
}

impl Starting {
    /// `--name=value`.
    pub(super) fn flag(mut self, name: &str, value: &str) -> Starting {
        self.command.arg(format!("--{name}={value}"));
        self
    }

    pub(super) fn start(mut self) -> Process {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.expect("the log can be written");
        let err = log.try_clone().expect("a file can be shared");
        let started = Timestamp::now();
        let child = (self.command.stdin(Stdio::null()).stdout(log).stderr(err)).spawn();
        let child = child.unwrap_or_else(|error| panic!("{} did not start: {error}", self.name));
        Process {
            name: self.name,
            child: Mutex::new(child),
            started,
            log: self.log,
        }
    }
}

/// A running program.
pub(super) struct Process {
    name: String,
    child: Mutex<Child>,
    /// When it was started.
    pub(super) started: Timestamp,
    log: PathBuf,
}

impl Process {
    /// One of the built parts, with its log in `directory`.
    pub(super) fn part(name: &str, directory: &Path) -> Starting {
        Process::of(name, Command::new(crate::part(name)), directory)
    }

    /// Any command, under a name.
    pub(super) fn of(name: &str, command: Command, directory: &Path) -> Starting {
        Starting {
            name: name.to_string(),
            command,
            log: directory.join(format!("{name}.log")),
        }
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }

    /// Fails with the log's end when the program has ended.
    #[track_caller]
    pub(super) fn must_run(&self) {
        let ended = self.child().try_wait();
        if let Ok(Some(status)) = ended {
            panic!("{} ended ({status}):\n{}", self.name, self.log_end());
        }
    }

    /// The log's last lines.
    pub(super) fn log_end(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }

    /// Resident memory, in MiB.
    pub(super) fn resident_mib(&self) -> f64 {
        crate::resident_mib(self.child().id())
    }

    /// Is this its name?
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    /// What it has taken so far.
    pub(super) fn cost(&self) -> super::Cost {
        let pid = self.child().id();
        super::Cost {
            cpu: crate::cpu_seconds(pid),
            peak_mib: crate::peak_resident_mib(pid),
        }
    }

    /// Ends it at once.
    pub(super) fn kill(&self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of {}'s log:\n{}", self.name, self.log_end());
        }
        self.kill();
    }
}
