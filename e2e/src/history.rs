//! The writes in a cluster in their order: etcd's own record, followed from its first revision,
//! across restarts of etcd and of kube-apiserver. Owns the reading; the test interprets it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::cluster::post;

/// The followed prefix: all objects of kube-apiserver.
const FROM: &str = "/registry/";
const TO: &str = "/registry0";
/// Interval of retries while etcd does not answer, and of checks whether to stop.
const PACE: Duration = Duration::from_millis(20);

/// One write.
#[derive(Debug)]
pub struct Change {
    /// etcd's revision: the object's `resourceVersion`.
    pub revision: i64,
    /// The time at which it was received, some milliseconds after the write.
    pub at: Instant,
    /// The object's key: `/registry/pods/NAMESPACE/NAME`, `/registry/minions/NAME`.
    pub key: String,
    /// The object after the write; none if it was deleted. Null if it is not stored as JSON.
    pub object: Option<Value>,
}

/// Follows a cluster with [`crate::Setup::plain_json`], until it is dropped.
pub struct History {
    seen: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
    follower: Option<JoinHandle<()>>,
}

impl History {
    /// Reports every change, including earlier ones, from its own thread.
    pub fn follow(etcd: &str, mut tell: impl FnMut(Change) + Send + 'static) -> History {
        let seen = Arc::new(AtomicI64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let follower = {
            let (etcd, seen, stop) = (etcd.to_owned(), seen.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if watch(&etcd, &seen, &stop, &mut tell).is_none() {
                        std::thread::sleep(PACE);
                    }
                }
            })
        };
        History {
            seen,
            stop,
            follower: Some(follower),
        }
    }

    /// The last reported revision: a compaction up to it loses no change.
    pub fn seen(&self) -> i64 {
        self.seen.load(Ordering::Relaxed)
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(follower) = self.follower.take() {
            let _ = follower.join();
        }
    }
}

/// One watch until it ends; then none.
fn watch(
    etcd: &str,
    seen: &AtomicI64,
    stop: &AtomicBool,
    tell: &mut impl FnMut(Change),
) -> Option<()> {
    let word = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let next = seen.load(Ordering::Relaxed) + 1;
    let request = json!({"create_request": {
        "key": word(FROM), "range_end": word(TO), "start_revision": next.to_string(),
    }});
    let mut stream = TcpStream::connect(etcd).ok()?;
    stream.set_read_timeout(Some(PACE)).ok()?;
    let request = post("/v3/watch", etcd, &request.to_string());
    stream.write_all(request.as_bytes()).ok()?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match lines.read_until(b'\n', &mut line) {
            Ok(0) => return None,
            Ok(_) if line.ends_with(b"\n") => {
                take(&line, seen, tell);
                line.clear();
            }
            // The stream broke off within a line.
            Ok(_) => return None,
            // The partial line is kept.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    None
}

/// One line of the answer: the header, or some changes.
fn take(line: &[u8], seen: &AtomicI64, tell: &mut impl FnMut(Change)) {
    let Ok(mut said) = serde_json::from_slice::<Value>(line) else {
        return;
    };
    assert!(
        said["result"]["canceled"].is_null(),
        "the record has a gap: {said}"
    );
    let at = Instant::now();
    let Some(events) = said["result"]["events"].as_array_mut() else {
        return;
    };
    let bytes = |value: &mut Value| {
        let text: Option<ByteString> = serde_json::from_value(value.take()).ok();
        text.map(|text| text.0).unwrap_or_default()
    };
    let mut last = seen.load(Ordering::Relaxed);
    for event in events {
        let deleted = event["type"] == "DELETE";
        let kept = &mut event["kv"];
        let revision = kept["mod_revision"].as_str().and_then(|n| n.parse().ok());
        let revision = revision.unwrap_or_default();
        let key = String::from_utf8(bytes(&mut kept["key"])).unwrap_or_default();
        let object = || serde_json::from_slice(&bytes(&mut kept["value"])).unwrap_or_default();
        let object = (!deleted).then(object);
        tell(Change {
            revision,
            at,
            key,
            object,
        });
        last = last.max(revision);
    }
    // Stored after the report, so that a caller may rely on having received it.
    seen.store(last, Ordering::Relaxed);
}
