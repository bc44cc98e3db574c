//! The standard streams of a container: pipes, or one terminal for all. Owns how they are made, and how the
//! starting stage finds its input.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::libc;
use nix::pty::{OpenptyResult, Winsize, openpty};

use super::attach::ContainerInput;
use super::error::ShimError;
use crate::logs::line::OutputStream;
use crate::logs::write::LineSplitter;
use crate::spec::ContainerSpec;

/// The size asked for the output pipes: room for a burst while the disk is slow.
const PIPE_BYTES: i32 = 1024 * 1024;
/// The environment variable with the number of the open file that is the container's input. The container does
/// not see it.
const INPUT: &str = "MUSTER_SHIM_INPUT";

/// One of the container's outputs.
pub(super) struct Stream {
    pub(super) pipe: File,
    pub(super) output: OutputStream,
    pub(super) splitter: LineSplitter,
    pub(super) open: bool,
}

/// The shim's ends.
pub(super) struct Streams {
    pub(super) outputs: Vec<Stream>,
    pub(super) input: ContainerInput,
    /// The container's end of its input: closed once the starting stage runs.
    pub(super) of_container: Option<OwnedFd>,
}

/// Gives the starting stage the container's streams.
pub(super) fn give(command: &mut Command, spec: &ContainerSpec) -> Result<Streams, ShimError> {
    match spec.tty {
        true => give_terminal(command, spec),
        false => give_pipes(command, spec),
    }
}

fn give_pipes(command: &mut Command, spec: &ContainerSpec) -> Result<Streams, ShimError> {
    let pipe = || io::pipe().map_err(ShimError::Pipe);
    let ((out, out_end), (err, err_end)) = (pipe()?, pipe()?);
    for end in [&out, &err] {
        // Refused beyond a user's share of pipe memory; the default serves too.
        let _ = fcntl(end.as_fd(), FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    }
    command.stdout(out_end).stderr(err_end);
    let mut input = ContainerInput {
        file: None,
        tty: false,
        once: spec.stdin_once,
    };
    let mut of_container = None;
    if spec.stdin {
        let (end, writing) = pipe()?;
        let end = OwnedFd::from(end);
        fcntl(&end, FcntlArg::F_SETFD(FdFlag::empty()))
            .map_err(call_failed("cannot pass the input"))?;
        command.env(INPUT, end.as_raw_fd().to_string());
        let writing = OwnedFd::from(writing);
        do_not_wait(&writing)?;
        input.file = Some(File::from(writing));
        of_container = Some(end);
    }
    let file = |end: io::PipeReader| File::from(OwnedFd::from(end));
    Ok(Streams {
        outputs: vec![
            stream(file(out), OutputStream::Stdout),
            stream(file(err), OutputStream::Stderr),
        ],
        input,
        of_container,
    })
}

fn give_terminal(command: &mut Command, spec: &ContainerSpec) -> Result<Streams, ShimError> {
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let OpenptyResult { master, slave } =
        openpty(Some(&size), None).map_err(call_failed("cannot make a terminal"))?;
    for end in [&master, &slave] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
            .map_err(call_failed("cannot keep a terminal"))?;
    }
    do_not_wait(&master)?;
    let again = |end: &OwnedFd| end.try_clone().map_err(ShimError::Pipe);
    let writing = File::from(again(&master)?);
    command.stdout(again(&slave)?).stderr(Stdio::from(slave));
    Ok(Streams {
        outputs: vec![stream(File::from(master), OutputStream::Stdout)],
        // Without `stdin` it takes no input, but sizes.
        input: ContainerInput {
            file: Some(writing),
            tty: true,
            once: spec.stdin && spec.stdin_once,
        },
        of_container: None,
    })
}

fn stream(pipe: File, output: OutputStream) -> Stream {
    Stream {
        pipe,
        output,
        splitter: LineSplitter::default(),
        open: true,
    }
}

fn do_not_wait(end: &OwnedFd) -> Result<(), ShimError> {
    let flags = fcntl(end, FcntlArg::F_GETFL).map_err(call_failed("cannot read a pipe's flags"))?;
    let flags = OFlag::from_bits_truncate(flags) | OFlag::O_NONBLOCK;
    fcntl(end, FcntlArg::F_SETFL(flags)).map_err(call_failed("cannot set a pipe's flags"))?;
    Ok(())
}

fn call_failed(what: &'static str) -> impl Fn(Errno) -> ShimError {
    move |source| ShimError::Call { what, source }
}

/// In the starting stage: the container's input. At a terminal it becomes this session's.
pub(super) fn input(spec: &ContainerSpec) -> io::Result<Stdio> {
    if spec.tty {
        // SAFETY: it changes which terminal this process's session has, and no memory.
        if unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCSCTTY, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        return Ok(Stdio::from(io::stdout().as_fd().try_clone_to_owned()?));
    }
    let Ok(number) = std::env::var(INPUT) else {
        return Ok(Stdio::null());
    };
    let number: RawFd = number.parse().map_err(io::Error::other)?;
    // SAFETY: the shim opened it for this process, in which nothing else owns it.
    Ok(Stdio::from(unsafe { OwnedFd::from_raw_fd(number) }))
}
