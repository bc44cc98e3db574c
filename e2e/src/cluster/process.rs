//! One program of a cluster: started with its log beside it, ended when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;

/// Lines of a log that a failure shows.
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
        self.command.stdin(Stdio::null()).stdout(log).stderr(err);
        let child = spawned(&self.name, &mut self.command);
        Process {
            child: Mutex::new(child),
            started,
            what: Box::new(What {
                name: self.name,
                command: Mutex::new(self.command),
                log: self.log,
            }),
        }
    }
}

fn spawned(name: &str, command: &mut Command) -> Child {
    let child = command.spawn();
    child.unwrap_or_else(|error| panic!("{name} did not start: {error}"))
}

/// A running program.
pub(super) struct Process {
    child: Mutex<Child>,
    /// The start time.
    pub(super) started: Timestamp,
    what: Box<What>,
}

/// The command of a program.
struct What {
    name: String,
    command: Mutex<Command>,
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

    /// Fails with the log's end if the program has ended.
    #[track_caller]
    pub(super) fn must_run(&self) {
        let ended = self.child().try_wait();
        if let Ok(Some(status)) = ended {
            panic!("{} ended ({status}):\n{}", self.what.name, self.log_end());
        }
    }

    /// The log's last lines.
    pub(super) fn log_end(&self) -> String {
        let text = std::fs::read(&self.what.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN)..].join("\n")
    }

    /// Resident memory, in MiB.
    pub(super) fn resident_mib(&self) -> f64 {
        crate::resident_mib(self.pid())
    }

    /// Whether this is its name.
    pub(super) fn is(&self, name: &str) -> bool {
        self.what.name == name
    }

    /// The resources that it has used so far.
    pub(super) fn cost(&self) -> super::Cost {
        let pid = self.pid();
        super::Cost {
            cpu: crate::cpu_seconds(pid),
            peak_mib: crate::peak_resident_mib(pid),
        }
    }

    /// Kills it.
    pub(super) fn kill(&self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Starts it again with the same command, once it has ended.
    pub(super) fn start_again(&self) {
        let command = self.what.command.lock();
        let mut command = command.unwrap_or_else(|broken| broken.into_inner());
        let child = spawned(&self.what.name, &mut command);
        *self.child() = child;
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.child().id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- the end of {}'s log:\n{}",
                self.what.name,
                self.log_end()
            );
        }
        self.kill();
    }
}
