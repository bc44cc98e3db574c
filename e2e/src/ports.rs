//! Ports for the programs that tests start.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which the kernel assigns ports to outgoing connections (32768 and up), so
/// that no connection takes a port between its choice and its use.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Tests are concurrent processes: a lock on a file named after a port reserves it until the
/// process ends. Without the lock, two tests could get the same port while neither listens yet.
static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Number of ports that this process has tried.
static LOOKED: AtomicU16 = AtomicU16::new(0);

/// An unused address of this machine, reserved against other tests.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A port without a listener at any address of this machine; it stays reserved for this process.
pub(crate) fn free_port() -> u16 {
    let locks = std::env::temp_dir().join("muster-ports");
    std::fs::create_dir_all(&locks).expect("a folder for the ports' locks");
    let wide = RANGE.end - RANGE.start;
    // Processes start far apart, or each would try all ports that the others hold.
    let start = (u64::from(std::process::id()) * 7919 % u64::from(wide)) as u16;
    for _ in RANGE {
        let step = LOOKED.fetch_add(1, Ordering::Relaxed);
        let port = RANGE.start + (start + step % wide) % wide;
        let lock = File::create(locks.join(port.to_string())).expect("a port's lock");
        if lock.try_lock().is_ok() && TcpListener::bind(("0.0.0.0", port)).is_ok() {
            TAKEN.lock().expect("no test panics here").push(lock);
            return port;
        }
    }
    panic!("no port of {RANGE:?} is free");
}
