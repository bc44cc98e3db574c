//! A client of a running container's own input and output: `kubectl attach`. Owns the connection with the
//! container's shim; the shim's side is `shim::attach`.

use std::fs::File;
use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::ProcessRuntime;
use crate::attach_protocol::{self as frames, FrameKind, SOCKET, socket_path};
use crate::error::RuntimeError;
use crate::proc;
use crate::spec::{ContainerId, SpecError};
use crate::state::{ContainerState, StateFile, load_state};

/// Bytes read from a shim at once.
const READ_BYTES: usize = 32 * 1024;

/// An attached client; dropping both halves detaches it.
pub struct AttachSession {
    /// What the container writes from now on.
    pub output: AttachOutput,
    /// Where its input and the size of its terminal go.
    pub input: AttachInput,
}

/// What a container writes.
pub struct AttachOutput {
    from_shim: OwnedReadHalf,
    received: Vec<u8>,
}

impl AttachOutput {
    /// The next piece, and whether it is of the standard error; none once the container has ended.
    ///
    /// # Errors
    /// If the shim ended the connection before, or it carries something else than the shim's messages.
    pub async fn next(&mut self) -> io::Result<Option<(bool, Vec<u8>)>> {
        loop {
            match frames::take(&mut self.received).map_err(io::Error::other)? {
                Some((FrameKind::Output, piece)) => return Ok(Some((false, piece))),
                Some((FrameKind::Errors, piece)) => return Ok(Some((true, piece))),
                Some((FrameKind::Ended, _)) => return Ok(None),
                Some(_) => continue,
                None => {}
            }
            let mut buffer = vec![0; READ_BYTES];
            let read = self.from_shim.read(&mut buffer).await?;
            if read == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the container's shim ended the connection: the output was read too slowly, or too many clients \
                     are attached",
                ));
            }
            self.received.extend_from_slice(&buffer[..read]);
        }
    }
}

/// A container's input.
pub struct AttachInput(OwnedWriteHalf);

impl AttachInput {
    /// Sends a piece of the input; waits while the container does not read.
    ///
    /// # Errors
    /// If the shim is gone.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send(FrameKind::Input, bytes).await
    }

    /// Sends the end of this client's input.
    ///
    /// # Errors
    /// If the shim is gone.
    pub async fn end(&mut self) -> io::Result<()> {
        self.send(FrameKind::InputEnd, b"").await
    }

    /// Sends the terminal's size in characters.
    ///
    /// # Errors
    /// If the shim is gone.
    pub async fn resize(&mut self, width: u16, height: u16) -> io::Result<()> {
        let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
        self.send(FrameKind::Resize, &size).await
    }

    async fn send(&mut self, kind: FrameKind, content: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(content.len() + 16);
        frames::put(&mut message, kind, content);
        self.0.write_all(&message).await
    }
}

impl ProcessRuntime {
    /// Attaches a client to a running container; with `stdin` the client sends its input.
    ///
    /// # Errors
    /// If the container does not run here, has no input to send, or its shim takes no clients.
    pub async fn attach(
        &self,
        id: &ContainerId,
        stdin: bool,
    ) -> Result<AttachSession, RuntimeError> {
        let spec = {
            let table = self.shared.table();
            let known = table.known.get(id);
            let known = known.ok_or_else(|| RuntimeError::NotFound(id.clone()))?;
            if !known.status.is_running() {
                return Err(RuntimeError::NotRunning(id.clone()));
            }
            known.spec.clone()
        };
        if stdin && !spec.stdin {
            return Err(RuntimeError::Spec(SpecError {
                field: "stdin".into(),
                value: "true".into(),
                detail: format!(
                    "container {:?} has no input; attach without it, or set stdin: true in the container",
                    spec.name
                ),
            }));
        }
        let dir = self.shared.dir(id);
        // A shim of an earlier version has no socket.
        let socket = dir.join(SOCKET);
        let failed = || RuntimeError::io("attach by", &socket);
        let connected = async {
            let directory = File::open(&dir)?;
            UnixStream::connect(socket_path(&directory)).await
        };
        let (from_shim, to_shim) = connected.await.map_err(failed())?.into_split();
        let mut input = AttachInput(to_shim);
        if stdin {
            input
                .send(FrameKind::HoldsInput, b"")
                .await
                .map_err(failed())?;
        }
        Ok(AttachSession {
            output: AttachOutput {
                from_shim,
                received: Vec::new(),
            },
            input,
        })
    }

    /// The numbers of a running container's processes on this node; none if it does not run.
    pub fn processes(&self, id: &ContainerId) -> Vec<i32> {
        let Ok(Some(StateFile { state, cgroup, .. })) = load_state(&self.shared.dir(id)) else {
            return Vec::new();
        };
        let ContainerState::Running { process, .. } = state else {
            return Vec::new();
        };
        let counted = cgroup.processes();
        if !counted.is_empty() {
            return counted;
        }
        // Without a cgroup: the processes of the container's session.
        let all = proc::all().into_iter();
        all.filter(|(_, stat)| stat.session == process.pid)
            .map(|(pid, _)| pid)
            .collect()
    }
}
