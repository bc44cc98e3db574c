//! The notification protocol of systemd (sd_notify(3)): a service of `Type=notify` informs the service manager over a
//! datagram socket that it is ready, that it stops, its status, and that it still works (the watchdog).
//!
//! The crate `sd-notify` 0.5 (MIT or Apache-2.0) was examined first. It cannot send to a socket in Linux's abstract
//! namespace, it takes the address from the process's environment only, and it sets no bound on a send. Without these
//! three, what remains is one line of formatting for each state.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The environment variable with the address of the service manager's socket.
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The environment variable with the watchdog's timeout in microseconds.
pub const WATCHDOG_USEC: &str = "WATCHDOG_USEC";
/// The environment variable with the process id that the watchdog is meant for.
pub const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// The longest status, in bytes; the rest is cut off.
const STATUS_MAX: usize = 512;

/// How long a send may wait for room in the service manager's queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// One statement to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    /// The service has started and does its work.
    Ready,
    /// The service has begun to stop.
    Stopping,
    /// The service still works; restarts the watchdog's timeout.
    Watchdog,
    /// A line for people, which `systemctl status` prints.
    Status(&'a str),
}

/// Why the service manager could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The address is neither a path nor an abstract name.
    #[error(
        "NOTIFY_SOCKET: Invalid value: {0:?}: must be an absolute path, or @ and an abstract name"
    )]
    Address(OsString),
    /// The socket cannot be made, or nothing receives from it.
    #[error("NOTIFY_SOCKET: {address:?}: {source}")]
    Socket {
        /// The address.
        address: OsString,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A variable of the watchdog is no number, or 0.
    #[error(
        "{variable}: Invalid value: {value:?}: must be a number from 1 to {}",
        u64::MAX
    )]
    Number {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
}

/// The text of one datagram: a line for each state. Control characters of a status become spaces, so that a status
/// cannot state anything else, and a status longer than 512 bytes is cut.
pub fn message(states: &[State<'_>]) -> String {
    let mut text = String::new();
    for state in states {
        let line = match state {
            State::Ready => "READY=1",
            State::Stopping => "STOPPING=1",
            State::Watchdog => "WATCHDOG=1",
            State::Status(status) => {
                let _ = writeln!(text, "STATUS={}", one_line(status));
                continue;
            }
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

fn one_line(status: &str) -> String {
    let mut line = String::new();
    for character in status.chars() {
        if line.len() + character.len_utf8() > STATUS_MAX {
            break;
        }
        line.push(if character.is_control() {
            ' '
        } else {
            character
        });
    }
    line
}

/// The watchdog's timeout, from the values of `WATCHDOG_USEC` and `WATCHDOG_PID`: none without the first, or if the
/// second names another process than `own`.
///
/// # Errors
/// One of the values is no number from 1.
pub fn watchdog_timeout(
    usec: Option<&str>,
    pid: Option<&str>,
    own: u32,
) -> Result<Option<Duration>, NotifyError> {
    let Some(usec) = usec else {
        return Ok(None);
    };
    let timeout = number(WATCHDOG_USEC, usec)?;
    if let Some(pid) = pid
        && number(WATCHDOG_PID, pid)? != u64::from(own)
    {
        return Ok(None);
    }
    Ok(Some(Duration::from_micros(timeout)))
}

fn number(variable: &'static str, value: &str) -> Result<u64, NotifyError> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| NotifyError::Number {
        variable,
        value: value.to_owned(),
    })
}

/// The watchdog's timeout for this process, from its environment.
///
/// # Errors
/// As [`watchdog_timeout`].
pub fn watchdog_from_environment() -> Result<Option<Duration>, NotifyError> {
    let text =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    watchdog_timeout(
        text(WATCHDOG_USEC).as_deref(),
        text(WATCHDOG_PID).as_deref(),
        std::process::id(),
    )
}

/// Sends states to one service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
    name: OsString,
}

impl Notifier {
    /// The service manager that started this process; none if no service manager waits for its states.
    ///
    /// # Errors
    /// As [`Notifier::to`].
    pub fn from_environment() -> Result<Option<Notifier>, NotifyError> {
        let name = std::env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty());
        name.map(|name| Notifier::to(&name)).transpose()
    }

    /// The service manager at a socket: an absolute path, or `@` and a name in the abstract namespace.
    ///
    /// # Errors
    /// The address has another form, or the socket cannot be made.
    pub fn to(name: &OsStr) -> Result<Notifier, NotifyError> {
        let failed = |source| NotifyError::Socket {
            address: name.to_owned(),
            source,
        };
        let address = match name.as_bytes() {
            [b'@', abstract_name @ ..] if !abstract_name.is_empty() => {
                SocketAddr::from_abstract_name(abstract_name).map_err(failed)?
            }
            [b'/', ..] => SocketAddr::from_pathname(name).map_err(failed)?,
            _ => return Err(NotifyError::Address(name.to_owned())),
        };
        let socket = UnixDatagram::unbound().map_err(failed)?;
        socket
            .set_write_timeout(Some(SEND_TIMEOUT))
            .map_err(failed)?;
        Ok(Notifier {
            socket,
            address,
            name: name.to_owned(),
        })
    }

    /// Sends states in one datagram. Waits at most one second, for room in the queue of a service manager that is
    /// busy.
    ///
    /// # Errors
    /// Nothing receives from the socket, or the queue stayed full.
    pub fn send(&self, states: &[State<'_>]) -> Result<(), NotifyError> {
        let text = message(states);
        let sent = self.socket.send_to_addr(text.as_bytes(), &self.address);
        // A datagram is sent as a whole or not at all.
        sent.map(drop).map_err(|source| NotifyError::Socket {
            address: self.name.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_a_line_and_a_status_cannot_forge_another() {
        for (states, text) in [
            (&[State::Ready][..], "READY=1\n"),
            (&[State::Stopping], "STOPPING=1\n"),
            (&[State::Watchdog], "WATCHDOG=1\n"),
            (
                &[State::Ready, State::Status("at 127.0.0.1:8443")],
                "READY=1\nSTATUS=at 127.0.0.1:8443\n",
            ),
            (&[State::Status("x\nMAINPID=1\r")], "STATUS=x MAINPID=1 \n"),
            (&[], ""),
        ] {
            assert_eq!(message(states), text, "{states:?}");
        }
        let cut = message(&[State::Status(&"é".repeat(STATUS_MAX))]);
        assert_eq!(cut.len(), "STATUS=\n".len() + STATUS_MAX);
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_it_names() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (usec, pid, expected) in [
            (None, None, None),
            (None, Some("x"), None),
            (Some("30000000"), None, seconds(30)),
            (Some("30000000"), Some("7"), seconds(30)),
            (Some("30000000"), Some("8"), None),
        ] {
            let timeout = watchdog_timeout(usec, pid, 7).unwrap();
            assert_eq!(timeout, expected, "{usec:?} {pid:?}");
        }
        for (usec, pid, variable) in [
            ("0", None, "WATCHDOG_USEC"),
            ("-1", None, "WATCHDOG_USEC"),
            ("5s", None, "WATCHDOG_USEC"),
            ("1", Some(""), "WATCHDOG_PID"),
        ] {
            let error = watchdog_timeout(Some(usec), pid, 7).unwrap_err();
            assert!(error.to_string().starts_with(variable), "{error}");
        }
    }

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn states_arrive_at_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::to(path.as_os_str()).unwrap();
        notifier.send(&[State::Ready, State::Status("up")]).unwrap();
        notifier.send(&[State::Watchdog]).unwrap();
        assert_eq!(received(&manager), "READY=1\nSTATUS=up\n");
        assert_eq!(received(&manager), "WATCHDOG=1\n");
    }

    #[test]
    fn states_arrive_at_an_abstract_name() {
        let name = format!("muster-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notifier = Notifier::to(OsStr::new(&format!("@{name}"))).unwrap();
        notifier.send(&[State::Stopping]).unwrap();
        assert_eq!(received(&manager), "STOPPING=1\n");
    }

    #[test]
    fn other_addresses_are_refused_and_a_missing_manager_is_an_error() {
        for bad in ["", "notify", "@", "vsock:2:1"] {
            let error = Notifier::to(OsStr::new(bad)).unwrap_err();
            assert!(matches!(error, NotifyError::Address(_)), "{bad}: {error}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("missing");
        let notifier = Notifier::to(path.as_os_str()).unwrap();
        let error = notifier.send(&[State::Ready]).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }
}
