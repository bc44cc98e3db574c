//! A command in a running container whose input and output a client holds: `kubectl exec`. Owns the
//! pipes or the terminal, and the command's end; the stage that joins the container is
//! [`crate::shim::exec`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};

use super::ProcessRuntime;
use super::commands::code_of;
use crate::error::RuntimeError;
use crate::shim::exec::{ExecRequest, REQUEST, REQUEST_BYTES_MAX};
use crate::spec::{ContainerId, SpecError};

/// A command to run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecCommand {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether it has an input.
    pub stdin: bool,
    /// Whether it runs at a terminal of its own.
    pub tty: bool,
}

/// Where a command's input is written.
pub enum ExecInput {
    /// A pipe.
    Pipe(ChildStdin),
    /// The terminal.
    Terminal(Arc<Terminal>),
}

impl ExecInput {
    /// Writes all of it; waits while the command does not read.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            ExecInput::Pipe(pipe) => pipe.write_all(bytes).await,
            ExecInput::Terminal(terminal) => terminal.write_all(bytes).await,
        }
    }
}

/// Where a command's output is read.
pub enum ExecOutput {
    /// Standard output.
    Out(ChildStdout),
    /// Standard error.
    Error(ChildStderr),
    /// The terminal.
    Terminal(Arc<Terminal>),
}

impl ExecOutput {
    /// Reads a piece; 0 at the end.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ExecOutput::Out(pipe) => pipe.read(buffer).await,
            ExecOutput::Error(pipe) => pipe.read(buffer).await,
            ExecOutput::Terminal(terminal) => terminal.read(buffer).await,
        }
    }
}

/// A running command. Dropped, it is killed with its process group.
pub struct ExecSession {
    child: Child,
    group: Option<Pid>,
    /// Its input, if it has one.
    pub input: Option<ExecInput>,
    /// Its standard output, or the terminal.
    pub output: Option<ExecOutput>,
    /// Its standard error; none at a terminal.
    pub errors: Option<ExecOutput>,
    /// Its terminal, if it has one.
    pub terminal: Option<Arc<Terminal>>,
}

impl ExecSession {
    /// Waits for its end; the exit code, 128 + signal if a signal ended it.
    pub async fn wait(&mut self) -> io::Result<i32> {
        let status = self.child.wait().await?;
        // Its number may be another process's from now on.
        self.group = None;
        Ok(code_of(status))
    }
}

impl Drop for ExecSession {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// The agent's end of a terminal.
pub struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    fn new(end: OwnedFd) -> io::Result<Terminal> {
        let flags = OFlag::from_bits_truncate(fcntl(&end, FcntlArg::F_GETFL)?);
        fcntl(&end, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        // SAFETY: an OwnedFd keeps one descriptor open until it is dropped, after its registration ended.
        Ok(Terminal(unsafe { AsyncFd::register(end) }?))
    }

    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            let read = ready.try_io(|end| Ok(nix::unistd::read(end.as_fd(), buffer)?));
            match read {
                // No process has the other end any more.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Ok(0),
                Ok(result) => return result,
                Err(_) => {}
            }
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            match ready.try_io(|end| Ok(nix::unistd::write(end.as_fd(), bytes)?)) {
                Ok(Ok(written)) => bytes = &bytes[written..],
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Sets its size in characters; the foreground processes get SIGWINCH.
    pub fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        let size = window(width, height);
        // SAFETY: the kernel reads one winsize, which outlives the call.
        let set = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

fn window(width: u16, height: u16) -> Winsize {
    Winsize {
        ws_row: height,
        ws_col: width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl ProcessRuntime {
    /// Starts a command inside a running container, in its namespaces and cgroup, as its user and
    /// with its environment.
    ///
    /// # Errors
    /// If the container does not run here, the command is too long, or no process can be made.
    pub fn exec_session(
        &self,
        id: &ContainerId,
        wanted: ExecCommand,
    ) -> Result<ExecSession, RuntimeError> {
        let (stdin, tty) = (wanted.stdin, wanted.tty);
        let request = ExecRequest {
            command: wanted.command,
            stdin,
            tty,
        };
        let (mut shim, request) = self.exec_stage(id, &request)?;
        let failed = |source| self.exec_failed(source);
        if request.len() > REQUEST_BYTES_MAX {
            return Err(RuntimeError::Spec(SpecError {
                field: "command".into(),
                value: format!("{} bytes", request.len()),
                detail: format!("write at most {REQUEST_BYTES_MAX} bytes"),
            }));
        }
        shim.env(REQUEST, request);
        let terminal = match tty {
            true => Some(open_terminal(&mut shim).map_err(failed)?),
            false => {
                let input = if stdin { Stdio::piped() } else { Stdio::null() };
                shim.stdin(input)
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                None
            }
        };
        let mut child = shim.spawn().map_err(failed)?;
        // The other end of the terminal is the command's alone, so that its end is seen.
        drop(shim);
        let group = child.id().and_then(|pid| i32::try_from(pid).ok());
        let of_terminal = || terminal.clone().map(ExecOutput::Terminal);
        let input = match &terminal {
            Some(terminal) => stdin.then(|| ExecInput::Terminal(terminal.clone())),
            None => child.stdin.take().map(ExecInput::Pipe),
        };
        Ok(ExecSession {
            group: group.map(Pid::from_raw),
            input,
            output: child
                .stdout
                .take()
                .map(ExecOutput::Out)
                .or_else(of_terminal),
            errors: child.stderr.take().map(ExecOutput::Error),
            terminal,
            child,
        })
    }
}

/// Gives a command a new terminal; returns this process's end.
fn open_terminal(command: &mut tokio::process::Command) -> io::Result<Arc<Terminal>> {
    let OpenptyResult { master, slave } = openpty(Some(&window(80, 24)), None)?;
    // Only the command gets its end, and only by the standard streams.
    for end in [&master, &slave] {
        fcntl(end, FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    }
    command
        .stdin(slave.try_clone()?)
        .stdout(slave.try_clone()?)
        .stderr(slave);
    Ok(Arc::new(Terminal::new(master)?))
}
