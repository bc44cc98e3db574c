//! Ports for what the tests start.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range of which the kernel gives ports to outgoing connections (32768 and up),
/// so that none of those takes one between its choice and its use.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Tests are processes side by side: a port is taken by a lock on a file of its name, which
/// ends with the process. Without it two tests are given the same one while neither listens.
static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// How many ports this process has looked at.
static LOOKED: AtomicU16 = AtomicU16::new(0);

/// An address of this machine that nobody listens on, and no other test will.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

/// A port that nobody listens on at any address of this machine; it stays this process's.
pub(crate) fn free_port() -> u16 {
    let locks = std::env::temp_dir().join("muster-ports");
    std::fs::create_dir_all(&locks).expect("a folder for the ports' locks");
    let wide = RANGE.end - RANGE.start;
    // Processes start far from one another, or each would try all that the others have.
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
