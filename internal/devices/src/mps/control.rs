//! One GPU's MPS control daemon: started, queried and ended through NVIDIA's control program. Owns
//! the daemon's directories; decides nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use runtime::proc::ProcessId;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::share::ShareLimit;

/// How long the control program may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The file with a daemon's process id, below the directory in which it listens.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// The file with the daemon's settings, so that a restarted agent knows them.
const TOLD_FILE: &str = "told";

/// Why a control daemon can't be started, queried or ended.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The daemon's directory or a file in it can't be used.
    #[error("{}: {source}", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The control program did not start a daemon.
    #[error("{} -d: {status}; see {}", program.display(), log.display())]
    NotStarted {
        /// The control program.
        program: PathBuf,
        /// Its exit status.
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
        /// The operating system's error.
        source: io::Error,
    },
    /// The control program takes too long.
    #[error("{} did not answer within {} s", program.display(), PATIENCE.as_secs())]
    Silent {
        /// The control program.
        program: PathBuf,
    },
    /// The daemon was started and has ended since.
    #[error("its control daemon ended at once; see {}", log.display())]
    Ended {
        /// Where the daemon writes its log.
        log: PathBuf,
    },
    /// The daemon refused a command.
    #[error("its control daemon refuses {command:?}: {status}")]
    Refused {
        /// The command.
        command: String,
        /// The control program's exit status.
        status: ExitStatus,
    },
}

/// A GPU's control daemon, running or not.
#[derive(Clone, Debug)]
pub struct Control {
    program: PathBuf,
    gpu: String,
    directory: PathBuf,
}

impl Control {
    /// For the GPU of this UUID, with this program; `all` is the directory of all daemons.
    pub fn new(program: &Path, gpu: &str, all: &Path) -> Control {
        Control {
            program: program.to_owned(),
            gpu: gpu.to_owned(),
            directory: all.join(gpu),
        }
    }

    /// The directory in which it listens.
    pub fn pipe(&self) -> PathBuf {
        self.directory.join("pipe")
    }

    /// The daemon's process, if it runs.
    pub fn process(&self) -> Option<ProcessId> {
        let text = std::fs::read_to_string(self.pipe().join(PID_FILE)).ok()?;
        let process = ProcessId::of(text.trim().parse().ok()?)?;
        process.is_alive().then_some(process)
    }

    /// The running daemon of an earlier agent that answers, with its settings.
    pub async fn found(&self) -> Option<(ProcessId, String)> {
        let process = self.process()?;
        let settings = std::fs::read_to_string(self.directory.join(TOLD_FILE)).ok()?;
        self.notify("get_default_active_thread_percentage")
            .await
            .ok()?;
        Some((process, settings))
    }

    /// Starts it, and sets the limits of each process.
    pub async fn start(&self, limit: &ShareLimit) -> Result<ProcessId, ControlError> {
        let failed = |source: io::Error| ControlError::Directory {
            directory: self.directory.clone(),
            source,
        };
        for directory in [self.pipe(), self.log()] {
            // Its clients run as the users of containers.
            runtime::volumes::open_dir(&directory).map_err(failed)?;
        }
        // The file of a dead daemon would be taken for this one's.
        match std::fs::remove_file(self.pipe().join(PID_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut command = self.command();
        // The daemon outlives the agent and must not inherit the agent's files.
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
            self.notify(&command).await?;
        }
        let settings = settings(limit);
        std::fs::write(self.directory.join(TOLD_FILE), settings).map_err(failed)?;
        self.process()
            .ok_or_else(|| ControlError::Ended { log: self.log() })
    }

    /// Whether no process uses it.
    pub async fn idle(&self) -> bool {
        let Ok(servers) = self.notify("get_server_list").await else {
            return true;
        };
        for server in numbers(&servers) {
            let clients = self.notify(&format!("get_client_list {server}")).await;
            if clients.is_ok_and(|clients| numbers(&clients).next().is_some()) {
                return false;
            }
        }
        true
    }

    /// Ends it. It exits once no process uses it.
    pub async fn stop(&self) -> Result<(), ControlError> {
        self.notify("quit").await.map(|_| ())
    }

    /// Sends a command to the daemon; returns its answer.
    async fn notify(&self, words: &str) -> Result<String, ControlError> {
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
        for name in runtime::SERVICE_MANAGER_VARIABLES {
            command.env_remove(name);
        }
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

/// The commands that set the limits of each process. The daemon sees one GPU, with index 0.
fn commands(limit: &ShareLimit) -> Vec<String> {
    let memory = limit.memory_mib;
    let memory = memory.map(|mib| format!("set_default_device_pinned_mem_limit 0 {mib}M"));
    let percent = limit.percent;
    let percent = percent.map(|part| format!("set_default_active_thread_percentage {part}"));
    memory.into_iter().chain(percent).collect()
}

/// The same as saved to the file.
pub fn settings(limit: &ShareLimit) -> String {
    commands(limit).join("\n")
}

/// The process ids in an answer.
fn numbers(answer: &str) -> impl Iterator<Item = u32> {
    answer
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_gets_the_limits_of_each_process_on_its_only_gpu() {
        assert_eq!(
            settings(&ShareLimit::of_replica(4, 81_559)),
            "set_default_device_pinned_mem_limit 0 20389M\nset_default_active_thread_percentage 25"
        );
        assert_eq!(settings(&ShareLimit::default()), "");
    }

    #[test]
    fn numbers_are_read_from_lines_and_words_are_passed_over() {
        let found: Vec<u32> = numbers("12\n345\nno clients\n").collect();
        assert_eq!(found, [12, 345]);
    }
}
