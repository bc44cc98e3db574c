//! Faults of a cluster's own programs: killed, paused, restarted, and a compaction of etcd's
//! history. The test decides when and how often.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::Cluster;
use crate::run;

/// How long etcd may take to answer a request other than a watch.
const ANSWER: Duration = Duration::from_secs(30);

impl Cluster {
    /// Kills one of the cluster's programs, as a crash would.
    #[track_caller]
    pub fn kill(&self, program: &str) {
        self.program(program).kill();
    }

    /// Restarts it: on the same ports, with its data.
    #[track_caller]
    pub fn start_again(&self, program: &str) {
        self.program(program).start_again();
    }

    /// Pauses a program: it keeps its connections and does nothing.
    #[track_caller]
    pub fn pause(&self, program: &str) {
        signal(self.program(program).pid(), "STOP");
    }

    /// Resumes a program.
    #[track_caller]
    pub fn resume(&self, program: &str) {
        signal(self.program(program).pid(), "CONT");
    }

    /// The end of a program's log.
    pub fn log_end(&self, program: &str) -> String {
        self.program(program).log_end()
    }

    /// etcd's host and port.
    pub fn etcd_address(&self) -> &str {
        &self.etcd_address
    }

    /// Compacts etcd's history up to this revision: a watch that continues from an earlier
    /// revision gets an error. None if etcd does not answer.
    pub fn compact(&self, revision: i64) -> Option<Value> {
        let body = json!({"revision": revision.to_string(), "physical": true}).to_string();
        let mut stream = TcpStream::connect(&self.etcd_address).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        let request = post("/v3/kv/compaction", &self.etcd_address, &body);
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }
}

/// A request whose answer ends with the connection.
pub(crate) fn post(path: &str, host: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Sends a signal to a process by the signal's name.
fn signal(pid: u32, name: &str) {
    run(Command::new("kill").args([format!("-{name}"), pid.to_string()])).ok();
}
