//! Web pages inside pods: by `pods/NAME:PORT/proxy` and `services/NAME:PORT/proxy` with kubectl, by `muster open`, and at
//! hosts of their own, with real programs in pods and in a real browser; and what hostile clients, pages and programs try.
//! This file starts pods and asks their pages; the modules test each way to them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod browser;
mod hostile;
mod kubectl_proxy;
mod open_command;
mod own_hosts;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use std::time::Duration;

use e2e::Platform;

use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// A port on which no process listens now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A pod with the tests' web server.
fn web(name: &str, port: u16) -> String {
    let script = include_str!("../../clients/pod_server.py");
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "command": ["/usr/bin/python3", "-c", script, port.to_string()],
            "ports": [{"name": "http", "containerPort": port}],
            "readinessProbe": {"exec": {"command": ["/bin/bash", "-c", connect]}, "periodSeconds": 1},
        }]},
    })
    .to_string()
}

fn started(platform: &Platform, name: &str) -> u16 {
    let port = free_port();
    platform.apply(&web(name, port));
    platform.until_ready(name);
    port
}

fn token(platform: &Platform, user: &str) -> String {
    let token = platform.cli(&["token", "create", "--user", user]).ok();
    token.trim().to_owned()
}

/// An answer.
struct Reply {
    code: u16,
    head: String,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> &str {
        let begin = format!("{name}: ");
        let mut lines = self.head.lines();
        lines
            .find_map(|line| line.strip_prefix(&begin))
            .unwrap_or_default()
    }

    fn json(&self) -> Value {
        let (begin, end) = (self.body.find('{').unwrap(), self.body.rfind('}').unwrap());
        serde_json::from_str(&self.body[begin..=end]).unwrap()
    }

    /// A header as the pod got it.
    fn header_of_pod(&self, name: &str) -> Option<String> {
        let request = self.json();
        let headers = request["headers"].as_array().unwrap().iter();
        let mut found = headers.filter(|pair| pair[0] == name);
        found
            .next()
            .map(|pair| pair[1].as_str().unwrap().to_owned())
    }
}

/// Sends these bytes and reads to the end of the connection.
fn exchange(platform: &Platform, bytes: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(&platform.listen).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // A server that refuses may close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut whole = Vec::new();
    let _ = stream.read_to_end(&mut whole);
    let whole = String::from_utf8_lossy(&whole).into_owned();
    let code = whole.split(' ').nth(1).and_then(|code| code.parse().ok());
    let (head, body) = whole.split_once("\r\n\r\n").unwrap_or((&whole, ""));
    Reply {
        code: code.unwrap_or_else(|| panic!("no answer: {whole:?}")),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// A request with these further lines.
fn send(platform: &Platform, host: &str, request: &str, lines: &[&str], body: &str) -> Reply {
    let mut text = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    for line in lines {
        text.push_str(line);
        text.push_str("\r\n");
    }
    exchange(platform, format!("{text}\r\n{body}").as_bytes())
}

/// A page that a user has opened.
struct Opened {
    host: String,
    cookie: String,
}

impl Opened {
    fn send(&self, platform: &Platform, request: &str, lines: &[&str], body: &str) -> Reply {
        let cookie = format!("Cookie: mine=1; {}", self.cookie);
        send(
            platform,
            &self.host,
            request,
            &[&[cookie.as_str()], lines].concat(),
            body,
        )
    }
}

/// The address of a port's own host, with a ticket.
fn ticket(platform: &Platform, token: &str, path: &str) -> Reply {
    let own = format!("localhost:{}", platform.listen.rsplit(':').next().unwrap());
    let bearer = format!("Authorization: Bearer {token}");
    send(
        platform,
        &own,
        &format!("GET /proxy/{path}"),
        &[&bearer],
        "",
    )
}

fn open(platform: &Platform, token: &str, path: &str) -> Opened {
    let reply = ticket(platform, token, path);
    assert_eq!(reply.code, 303, "{}{}", reply.head, reply.body);
    let location = reply.header("location").strip_prefix("http://").unwrap();
    let (host, path) = location.split_once('/').unwrap();
    let entered = send(platform, host, &format!("GET /{path}"), &[], "");
    assert_eq!(entered.code, 200, "{}{}", entered.head, entered.body);
    let cookie = entered.header("set-cookie").to_owned();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.to_lowercase().contains("domain="), "{cookie}");
    Opened {
        host: host.to_owned(),
        cookie: cookie.split(';').next().unwrap().to_owned(),
    }
}
