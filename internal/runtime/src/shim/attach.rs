//! Clients that are attached to a running container: the shim sends each of them a copy of the outputs
//! from now on, and takes the container's input from them. Owns the socket in the container's directory and
//! the shim's end of the input. A client that does not read is sent away; it never delays the container.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::Winsize;
use nix::sys::stat::{Mode, umask};

use crate::attach_protocol::{self as frames, FrameKind, socket_path};
use crate::logs::line::OutputStream;

/// Maximum number of clients of one container at the same time; more are turned away.
pub const CLIENTS_MAX: usize = 16;
/// Output that waits for one client, in bytes; a client that is further behind is sent away.
pub const UNSENT_BYTES_MAX: usize = 1024 * 1024;
/// Input that waits for the container, in bytes; beyond it clients are not read.
const INPUT_WAITING_MAX: usize = 64 * 1024;
/// Bytes read from a client at once.
const READ_BYTES: usize = 16 * 1024;
/// How long clients may take the last output after the container's end.
const GOODBYE: Duration = Duration::from_secs(1);
/// The byte that types Control-D: at a terminal the end of the input.
const END_OF_TRANSMISSION: u8 = 4;

/// The shim's end of a container's standard input.
pub(super) struct ContainerInput {
    /// The pipe's writing end, or the terminal; none once it is closed.
    pub(super) file: Option<File>,
    /// Whether it is a terminal.
    pub(super) tty: bool,
    /// Whether it ends with the first client that holds it.
    pub(super) once: bool,
}

/// Where clients attach.
pub(super) struct AttachPoint {
    listener: UnixListener,
    clients: Vec<Client>,
    input: ContainerInput,
    waiting: VecDeque<u8>,
    /// No more input follows what waits.
    input_over: bool,
}

struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    unsent: Vec<u8>,
    holds_input: bool,
    gone: bool,
}

impl AttachPoint {
    /// Listens in a container's directory.
    pub(super) fn open(directory: &Path, input: ContainerInput) -> io::Result<AttachPoint> {
        let directory = File::open(directory)?;
        // Only this user may attach. This process has one thread.
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(socket_path(&directory));
        umask(before);
        let listener = listener?;
        listener.set_nonblocking(true)?;
        Ok(AttachPoint {
            listener,
            clients: Vec::new(),
            input,
            waiting: VecDeque::new(),
            input_over: false,
        })
    }

    /// What the loop waits for.
    pub(super) fn wanted(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut wanted = vec![(self.listener.as_fd(), PollFlags::POLLIN)];
        let room = self.waiting.len() < INPUT_WAITING_MAX;
        for client in &self.clients {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, room);
            flags.set(PollFlags::POLLOUT, !client.unsent.is_empty());
            // The next round takes a client that is gone off the list.
            wanted.push((client.stream.as_fd(), flags));
        }
        if let Some(file) = &self.input.file
            && !self.waiting.is_empty()
        {
            wanted.push((file.as_fd(), PollFlags::POLLOUT));
        }
        wanted
    }

    /// Takes and sends what can be without waiting.
    pub(super) fn serve(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            // More are turned away by closing their connection.
            if self.clients.len() < CLIENTS_MAX && stream.set_nonblocking(true).is_ok() {
                self.clients.push(Client {
                    stream,
                    received: Vec::new(),
                    unsent: Vec::new(),
                    holds_input: false,
                    gone: false,
                });
            }
        }
        let mut clients = std::mem::take(&mut self.clients);
        for client in &mut clients {
            client.flush();
            self.take_from(client);
        }
        for client in clients
            .iter()
            .filter(|client| client.gone && client.holds_input)
        {
            drop(client.stream.shutdown(std::net::Shutdown::Both));
            self.end_input();
        }
        clients.retain(|client| !client.gone);
        self.clients = clients;
        self.feed();
    }

    /// Sends a piece of an output to every client.
    pub(super) fn output(&mut self, output: OutputStream, bytes: &[u8]) {
        let kind = match output {
            OutputStream::Stdout => FrameKind::Output,
            OutputStream::Stderr => FrameKind::Errors,
        };
        for client in &mut self.clients {
            frames::put(&mut client.unsent, kind, bytes);
            client.flush();
            if client.unsent.len() > UNSENT_BYTES_MAX {
                // The next round takes it off the list.
                client.gone = true;
                drop(client.stream.shutdown(std::net::Shutdown::Both));
            }
        }
    }

    /// Sends the last output, for as long as [`GOODBYE`].
    pub(super) fn finish(mut self) {
        let until = Instant::now() + GOODBYE;
        for client in &mut self.clients {
            frames::put(&mut client.unsent, FrameKind::Ended, b"");
        }
        loop {
            self.clients.iter_mut().for_each(Client::flush);
            self.clients
                .retain(|client| !client.gone && !client.unsent.is_empty());
            let left = until.saturating_duration_since(Instant::now());
            if self.clients.is_empty() || left.is_zero() {
                return;
            }
            let mut polled: Vec<PollFd> = (self.clients.iter())
                .map(|client| PollFd::new(client.stream.as_fd(), PollFlags::POLLOUT))
                .collect();
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let _ = poll(&mut polled, timeout);
        }
    }

    fn take_from(&mut self, client: &mut Client) {
        if self.waiting.len() >= INPUT_WAITING_MAX {
            // It is not read now, so its end is seen only so.
            client.gone = client.gone || client.hung_up();
            return;
        }
        let mut buffer = [0; READ_BYTES];
        while !client.gone && self.waiting.len() < INPUT_WAITING_MAX {
            match client.stream.read(&mut buffer) {
                Ok(0) => client.gone = true,
                Ok(read) => client.received.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => client.gone = true,
            }
            self.take_messages(client);
        }
    }

    fn take_messages(&mut self, client: &mut Client) {
        loop {
            match frames::take(&mut client.received) {
                Ok(None) => return,
                Ok(Some((FrameKind::HoldsInput, _))) => client.holds_input = true,
                Ok(Some((FrameKind::Input, bytes))) => {
                    if self.input.file.is_some() && !self.input_over {
                        self.waiting.extend(bytes);
                    }
                }
                Ok(Some((FrameKind::InputEnd, _))) => {
                    if client.holds_input {
                        client.holds_input = false;
                        self.end_input();
                    }
                }
                Ok(Some((FrameKind::Resize, size))) => self.resize(&size),
                Ok(Some((FrameKind::Output | FrameKind::Errors | FrameKind::Ended, _)))
                | Err(_) => {
                    client.gone = true;
                    return;
                }
            }
        }
    }

    /// The input of a client that held it is over: the container's too, if one client's is all it gets.
    fn end_input(&mut self) {
        if !self.input.once || self.input_over {
            return;
        }
        self.input_over = true;
        if self.input.tty {
            self.waiting.push_back(END_OF_TRANSMISSION);
        }
    }

    /// Passes on to the container what it takes now.
    fn feed(&mut self) {
        while let Some(file) = &mut self.input.file {
            if self.waiting.is_empty() {
                break;
            }
            match file.write(self.waiting.as_slices().0) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The container has closed its input.
                Err(_) => {
                    self.input.file = None;
                    self.waiting.clear();
                }
            }
        }
        if self.input_over && self.waiting.is_empty() {
            self.input.file = None;
        }
    }

    fn resize(&self, size: &[u8]) {
        let (Some(file), &[w1, w0, h1, h0]) = (&self.input.file, size) else {
            return;
        };
        if !self.input.tty {
            return;
        }
        let size = Winsize {
            ws_col: u16::from_be_bytes([w1, w0]),
            ws_row: u16::from_be_bytes([h1, h0]),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the kernel reads one winsize, which outlives the call.
        unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    }
}

impl Client {
    fn hung_up(&self) -> bool {
        let mut polled = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
        matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
    }

    fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.gone {
            match self.stream.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.gone = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach_protocol::SOCKET;

    fn input(file: Option<File>, once: bool) -> ContainerInput {
        ContainerInput {
            file,
            tty: false,
            once,
        }
    }

    fn connect(directory: &Path) -> UnixStream {
        UnixStream::connect(directory.join(SOCKET)).unwrap()
    }

    #[test]
    fn a_client_that_does_not_read_is_sent_away_and_the_others_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut point = AttachPoint::open(directory.path(), input(None, false)).unwrap();
        let (deaf, mut reader) = (connect(directory.path()), connect(directory.path()));
        reader.set_nonblocking(true).unwrap();
        point.serve();
        assert_eq!(point.clients.len(), 2);
        let (piece, mut seen, mut buffer) = (vec![1; 32 * 1024], 0, vec![0; 1024 * 1024]);
        for _ in 0..128 {
            point.output(OutputStream::Stdout, &piece);
            while let Ok(read) = reader.read(&mut buffer) {
                seen += read;
            }
        }
        point.serve();
        assert_eq!(point.clients.len(), 1);
        assert!(seen > 128 * piece.len() - UNSENT_BYTES_MAX);
        drop(deaf);
    }

    #[test]
    fn a_container_has_a_bounded_number_of_clients() {
        let directory = tempfile::tempdir().unwrap();
        let mut point = AttachPoint::open(directory.path(), input(None, false)).unwrap();
        let mut all: Vec<UnixStream> = (0..=CLIENTS_MAX)
            .map(|_| connect(directory.path()))
            .collect();
        point.serve();
        assert_eq!(point.clients.len(), CLIENTS_MAX);
        let mut turned_away = all.pop().unwrap();
        assert_eq!(turned_away.read(&mut [0]).unwrap(), 0);
        drop(all);
        point.serve();
        assert!(point.clients.is_empty());
    }

    #[test]
    fn a_container_that_does_not_read_has_a_bounded_input_and_its_client_is_let_go() {
        let directory = tempfile::tempdir().unwrap();
        let (_reading, writing) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writing));
        nix::fcntl::fcntl(
            &file,
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )
        .unwrap();
        let mut point = AttachPoint::open(directory.path(), input(Some(file), true)).unwrap();
        let mut client = connect(directory.path());
        client.set_nonblocking(true).unwrap();
        let (mut bytes, mut sent) = (Vec::new(), 0);
        frames::put(&mut bytes, FrameKind::Input, &vec![1; 4 << 20]);
        for _ in 0..200 {
            sent += client.write(&bytes[sent..]).unwrap_or(0);
            point.serve();
            assert!(point.waiting.len() < INPUT_WAITING_MAX + frames::CONTENT_BYTES_MAX);
        }
        assert!(sent < bytes.len());
        assert_eq!(point.clients.len(), 1);
        drop(client);
        point.serve();
        assert!(point.clients.is_empty());
    }

    #[test]
    fn the_input_reaches_the_container_and_ends_with_its_client_where_the_container_asks_for_it() {
        for once in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let (mut reading, writing) = io::pipe().unwrap();
            let file = File::from(std::os::fd::OwnedFd::from(writing));
            let mut point = AttachPoint::open(directory.path(), input(Some(file), once)).unwrap();
            let mut client = connect(directory.path());
            let mut bytes = Vec::new();
            frames::put(&mut bytes, FrameKind::HoldsInput, b"");
            frames::put(&mut bytes, FrameKind::Input, b"hello");
            client.write_all(&bytes).unwrap();
            point.serve();
            let mut got = [0; 5];
            reading.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"hello");
            drop(client);
            point.serve();
            assert_eq!(point.input.file.is_none(), once);
        }
    }
}
