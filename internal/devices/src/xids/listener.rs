//! Threads that read XIDs from the driver and from the kernel's log. A thread ends when the last
//! reader of its results is gone. This module judges nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hardware::kmsg::Tail;
use hardware::{GpuEvents, InventorySources};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{XidMonitor, XidReporter};

/// How long a thread waits at a time, and so the longest time it outlives the agent.
const WAIT: Duration = Duration::from_secs(1);
/// Pause between two attempts to listen, also to GPUs that did not answer.
const AGAIN: Duration = Duration::from_secs(10);

/// Starts listening.
pub fn open(xids: &Arc<Mutex<XidMonitor>>, source: InventorySources, kmsg: Option<PathBuf>) {
    let monitor = Arc::downgrade(xids);
    spawn("xids", move || listen_to_driver(&monitor, &source));
    if let Some(path) = kmsg {
        let monitor = Arc::downgrade(xids);
        spawn("xids-kmsg", move || listen_to_kernel(&monitor, &path));
    }
}

fn spawn(name: &str, hear: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.to_owned());
    if let Err(error) = thread.spawn(hear) {
        tracing::warn!(%error, "the agent could not start a thread that receives XIDs");
    }
}

fn listen_to_driver(monitor: &Weak<Mutex<XidMonitor>>, source: &InventorySources) {
    let mut events: Option<GpuEvents> = None;
    let mut tried: Option<std::time::Instant> = None;
    while let Some(xids) = monitor.upgrade() {
        let complete = events.as_ref().is_some_and(GpuEvents::complete);
        if !complete && tried.is_none_or(|tried| tried.elapsed() >= AGAIN) {
            // The old event set is dropped first. XIDs between the two sets are missed; the next
            // read of the driver's recovery action shows them.
            drop(events.take());
            events = GpuEvents::listen(source);
            tried = Some(std::time::Instant::now());
            match events {
                Some(_) => xids.lock().begins(XidReporter::Driver),
                None => xids.lock().ends(),
            }
        }
        // The lock is released during the wait, so that the last owner can drop it and end this
        // thread.
        drop(xids);
        let Some(listening) = &mut events else {
            std::thread::sleep(WAIT);
            continue;
        };
        match (listening.wait(WAIT), monitor.upgrade()) {
            (Ok(Some(xid)), Some(xids)) => {
                if let Some(slice) = xid.instance {
                    tracing::warn!(
                        gpu = xid.gpu,
                        xid = xid.number,
                        slice,
                        "an XID of a slice's"
                    );
                }
                let mut xids = xids.lock();
                xids.note(&xid.gpu, xid.number, XidReporter::Driver, Instant::now());
            }
            (Ok(_), _) => {}
            (Err(_), _) => {
                events = None;
                std::thread::sleep(WAIT);
            }
        }
    }
}

fn listen_to_kernel(monitor: &Weak<Mutex<XidMonitor>>, path: &Path) {
    let mut tail: Option<Tail> = None;
    let mut logged = false;
    while let Some(xids) = monitor.upgrade() {
        if tail.is_none() {
            match Tail::open(path) {
                Ok(opened) => {
                    tail = Some(opened);
                    xids.lock().begins(XidReporter::Kernel);
                }
                Err(error) if !logged => {
                    logged = true;
                    let path = path.display();
                    tracing::info!(
                        "--kmsg: {path} cannot be read ({error}): the agent receives XIDs from the driver only"
                    );
                }
                Err(_) => {}
            }
        }
        match tail.as_mut().map(Tail::read) {
            Some(Ok(lines)) => {
                let mut xids = xids.lock();
                for line in lines {
                    xids.note_at(&line.place, line.number, Instant::now());
                }
            }
            Some(Err(_)) => tail = None,
            None => {}
        }
        drop(xids);
        let wait = if tail.is_some() { WAIT } else { AGAIN };
        std::thread::sleep(wait);
    }
}
