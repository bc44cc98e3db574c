//! What was written in a cluster, in the order in which it was: etcd's own record, followed from its
//! first revision on, across restarts of etcd and of kube-apiserver. Owns the reading; what it means
//! is the test's to say.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::cluster::post;

/// What is followed: everything that kube-apiserver keeps.
const FROM: &str = "/registry/";
const TO: &str = "/registry0";
/// How soon an etcd that does not answer is asked again, and how often it is looked whether to stop.
const PACE: Duration = Duration::from_millis(20);

/// One write.
#[derive(Debug)]
pub struct Change {
    /// etcd's revision: the object's `resourceVersion`.
    pub revision: i64,
    /// When it was heard of, some milliseconds after it was written.
    pub at: Instant,
    /// Where the object is kept: `/registry/pods/NAMESPACE/NAME`, `/registry/minions/NAME`.
    pub key: String,
    /// What it says since; none once it is deleted. Null for what is not kept as JSON.
    pub object: Option<Value>,
}

/// Follows a cluster that is [`crate::Setup::plain_json`], until it is dropped.
pub struct History {
    seen: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
    follower: Option<JoinHandle<()>>,
}

impl History {
    /// Tells of every change, those before now included, in a thread of its own.
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

    /// The last revision that was told of: a compaction up to it takes nothing from this record.
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

/// One watch, for as long as it lasts; none once it has ended.
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
            // What there is of a line is kept.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    None
}

/// One line of the answer: the head's, or some changes.
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
    // Told of first: who asks may count on having heard it.
    seen.store(last, Ordering::Relaxed);
}
