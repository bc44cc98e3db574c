//! Requests to the server's own pages and REST over plain HTTP, as a browser on the server's machine sends them.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::Platform;

/// The answer to one request.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub code: u16,
    /// The head and the body as they came.
    pub whole: String,
}

impl Reply {
    /// What follows the head.
    pub fn body(&self) -> &str {
        let parts = self.whole.split_once("\r\n\r\n");
        parts.map_or("", |(_, body)| body)
    }

    /// The body as JSON; null if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(self.body()).unwrap_or_default()
    }

    /// Where a redirect leads; empty if the answer is none.
    pub fn location(&self) -> &str {
        let mut lines = self.whole.lines();
        let found = lines.find_map(|line| line.strip_prefix("location: "));
        found.unwrap_or_default()
    }

    /// The session that the answer begins.
    pub fn session(&self) -> Option<String> {
        let mut lines = self.whole.lines();
        let value = lines.find_map(|line| line.strip_prefix("set-cookie: muster_session="))?;
        value.split(';').next().map(str::to_owned)
    }

    /// Whether the answer has these words.
    pub fn has(&self, words: &str) -> bool {
        self.whole.contains(words)
    }
}

/// Sends a request, such as `POST /ui/sign-in`, with these further lines of its head. A body is JSON if it begins as an
/// object, else a form.
#[track_caller]
pub fn send(platform: &Platform, request: &str, lines: &[String], body: &str) -> Reply {
    let media = match body.starts_with('{') {
        true => "application/json",
        false => "application/x-www-form-urlencoded",
    };
    let mut text = format!(
        "{request} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {media}\r\nContent-Length: {}\r\n",
        platform.listen,
        body.len()
    );
    for line in lines {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text.push_str(body);
    let mut stream = TcpStream::connect(&platform.listen).expect("the server listens");
    stream
        .write_all(text.as_bytes())
        .expect("the server reads the request");
    let mut whole = String::new();
    stream
        .read_to_string(&mut whole)
        .expect("the server answers");
    let code = whole.split(' ').nth(1).and_then(|code| code.parse().ok());
    Reply {
        code: code.unwrap_or_else(|| panic!("no answer: {whole:?}")),
        whole,
    }
}
