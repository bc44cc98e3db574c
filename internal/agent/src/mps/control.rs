//! One GPU's MPS control daemon: started, asked, ended through NVIDIA's control program. Owns the
//! daemon's directories; decides nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use runtime::proc::ProcessId;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::shares::Limit;

/// How long the control program may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What it says a daemon's number in, below the directory in which that listens.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// What the daemon was told, so that an agent that finds one knows what it is.
const TOLD_FILE: &str = "told";

/// Why a control daemon can't be started, asked or ended.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The daemon's directory or a file in it can't be used.
    #[error("{}: {source}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The control program does not start a daemon.
    #[error("{} -d: {status}; see {}", program.display(), log.display())]
    NotStarted {
        /// The control program.
        program: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// Where the daemon writes its log.
        log: PathBuf,
    },
    /// The control program can't be run.
    #[error(
        "{}: {source}; it comes with NVIDIA's driver (--mps-control says where it is)",
        program.display()
    )]
    NotRun {
        /// The control program.
        program: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The control program takes too long.
    #[error("{} did not answer within {} s", program.display(), PATIENCE.as_secs())]
    Silent {
        /// The control program.
        program: PathBuf,
    },
    /// The daemon was started, and is gone.
    #[error("its control daemon ended at once; see {}", log.display())]
    Ended {
        /// Where the daemon writes its log.
        log: PathBuf,
    },
    /// The daemon refuses a command.
    #[error("its control daemon refuses {command:?}: {status}")]
    Refused {
        /// The command.
        command: String,
        /// How the control program ended.
        status: ExitStatus,
    },
}

/// A GPU's control daemon, whether it runs or not.
#[derive(Clone, Debug)]
pub struct Control {
    program: PathBuf,
    gpu: String,
    directory: PathBuf,
}

impl Control {
    /// Of the GPU of this UUID, by this program, with what it needs below a directory of all daemons.
    pub fn new(program: &Path, gpu: &str, all: &Path) -> Control {
        Control {
            program: program.to_owned(),
            gpu: gpu.to_owned(),
            directory: all.join(gpu),
        }
    }

    /// Where it listens.
    pub fn pipe(&self) -> PathBuf {
        self.directory.join("pipe")
    }

    /// The daemon's process, if it runs.
    pub fn process(&self) -> Option<ProcessId> {
        let text = std::fs::read_to_string(self.pipe().join(PID_FILE)).ok()?;
        let process = ProcessId::of(text.trim().parse().ok()?)?;
        process.is_alive().then_some(process)
    }

    /// The daemon that an agent before this one left, with what it was told: one that answers.
    pub async fn found(&self) -> Option<(ProcessId, String)> {
        let process = self.process()?;
        let told = std::fs::read_to_string(self.directory.join(TOLD_FILE)).ok()?;
        self.tell("get_default_active_thread_percentage")
            .await
            .ok()?;
        Some((process, told))
    }

    /// Starts it, and tells it what any process may have.
    pub async fn start(&self, limit: &Limit) -> Result<ProcessId, ControlError> {
        let failed = |source: io::Error| ControlError::Directory {
            directory: self.directory.clone(),
            source,
        };
        for directory in [self.pipe(), self.log()] {
            // Its clients run as whoever containers run as.
            runtime::volumes::open_dir(&directory).map_err(failed)?;
        }
        // That of one which died would be taken for this one's.
        match std::fs::remove_file(self.pipe().join(PID_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut command = self.command();
        // It outlives the agent, and with it whatever it had of the agent's.
        command.arg("-d").stdin(Stdio::null()).stdout(Stdio::null());
        let status = timeout(PATIENCE, command.stderr(Stdio::null()).status());
        match status.await {
            Ok(Ok(status)) if status.success() => {}
            Ok(Ok(status)) => {
                return Err(ControlError::NotStarted {
                    program: self.program.clone(),
                    status,
                    log: self.log(),
                });
            }
            Ok(Err(error)) => return Err(self.not_run(error)),
            Err(_) => return Err(self.silent()),
        }
        for command in commands(limit) {
            self.tell(&command).await?;
        }
        let told = told(limit);
        std::fs::write(self.directory.join(TOLD_FILE), told).map_err(failed)?;
        self.process()
            .ok_or_else(|| ControlError::Ended { log: self.log() })
    }

    /// Whether no process uses it.
    pub async fn idle(&self) -> bool {
        let Ok(servers) = self.tell("get_server_list").await else {
            return true;
        };
        for server in numbers(&servers) {
            let clients = self.tell(&format!("get_client_list {server}")).await;
            if clients.is_ok_and(|clients| numbers(&clients).next().is_some()) {
                return false;
            }
        }
        true
    }

    /// Ends it. It goes once nobody uses it any more.
    pub async fn stop(&self) -> Result<(), ControlError> {
        self.tell("quit").await.map(|_| ())
    }

    /// Says one of its commands to the daemon; its answer.
    async fn tell(&self, words: &str) -> Result<String, ControlError> {
        let ran = async {
            let mut command = self.command();
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::null()).spawn()?;
            if let Some(mut input) = child.stdin.take() {
                input.write_all(format!("{words}\n").as_bytes()).await?;
            }
            child.wait_with_output().await
        };
        match timeout(PATIENCE, ran).await {
            Ok(Ok(output)) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Ok(Ok(output)) => Err(ControlError::Refused {
                command: words.to_owned(),
                status: output.status,
            }),
            Ok(Err(error)) => Err(self.not_run(error)),
            Err(_) => Err(self.silent()),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_VISIBLE_DEVICES", &self.gpu)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .env("CUDA_MPS_LOG_DIRECTORY", self.log())
            .kill_on_drop(true);
        runtime::with_usual_umask(&mut command);
        command
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn not_run(&self, source: io::Error) -> ControlError {
        ControlError::NotRun {
            program: self.program.clone(),
            source,
        }
    }

    fn silent(&self) -> ControlError {
        ControlError::Silent {
            program: self.program.clone(),
        }
    }
}

/// What a daemon is told of what any process may have. It sees one GPU, which it counts as 0.
fn commands(limit: &Limit) -> Vec<String> {
    let memory = limit.memory_mib;
    let memory = memory.map(|mib| format!("set_default_device_pinned_mem_limit 0 {mib}M"));
    let percent = limit.percent;
    let percent = percent.map(|part| format!("set_default_active_thread_percentage {part}"));
    memory.into_iter().chain(percent).collect()
}

/// The same as it is kept.
pub fn told(limit: &Limit) -> String {
    commands(limit).join("\n")
}

/// The process numbers in an answer.
fn numbers(answer: &str) -> impl Iterator<Item = u32> {
    answer
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_told_what_any_process_may_have_of_its_only_gpu() {
        assert_eq!(
            told(&Limit::of_replica(4, 81_559)),
            "set_default_device_pinned_mem_limit 0 20389M\nset_default_active_thread_percentage 25"
        );
        assert_eq!(told(&Limit::default()), "");
    }

    #[test]
    fn numbers_are_read_from_lines_and_words_are_passed_over() {
        let found: Vec<u32> = numbers("12\n345\nno clients\n").collect();
        assert_eq!(found, [12, 345]);
    }
}
