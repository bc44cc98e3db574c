//! The terminal of this process, for commands that run at one elsewhere: keys pass uninterpreted, and its size.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::libc;
use nix::pty::Winsize;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// A terminal that passes keys uninterpreted until this is dropped.
pub struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Sets the terminal on the standard input.
    ///
    /// # Errors
    /// If that is no terminal.
    pub fn set() -> io::Result<RawTerminal> {
        let input = io::stdin();
        let before = tcgetattr(input.as_fd())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(input.as_fd(), SetArg::TCSADRAIN, &raw)?;
        Ok(RawTerminal { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSADRAIN, &self.before);
    }
}

/// Columns and rows of the terminal on the standard output; none if that is no terminal.
pub fn size() -> Option<(u16, u16)> {
    size_of(io::stdout().as_fd())
}

fn size_of(terminal: BorrowedFd<'_>) -> Option<(u16, u16)> {
    let mut size = Winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the kernel writes one winsize, which outlives the call.
    let read = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (read == 0 && size.ws_col > 0).then_some((size.ws_col, size.ws_row))
}
