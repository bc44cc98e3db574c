//! The ports without authentication of a server for a Kubernetes cluster: which routes they have, which methods each
//! route answers to anybody, and that no other path or method is answered. The routes are read from the sources; a
//! route without a row fails the test by its name.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use e2e::{free_address, repository};

use crate::ground::Ground;

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// A route: the source file, the method, and the path.
#[rustfmt::skip]
const ROUTES: [(&str, &str, &str); 7] = [
    ("health.rs", "GET", "/healthz"),
    ("health.rs", "GET", "/readyz"),
    ("health.rs", "GET", "/metrics"),
    // Every client that reaches the extender's address can bind waiting pods. By default the extender has no address,
    // and the server warns about one that other machines reach.
    ("extender.rs", "POST", "/filter"),
    ("extender.rs", "POST", "/prioritize"),
    ("extender.rs", "POST", "/preempt"),
    ("extender.rs", "POST", "/bind"),
];

/// Every route that a source file adds, as `.route("PATH", method(`.
fn routes(file: &str) -> BTreeSet<(String, String)> {
    let path = repository().join("cmd/muster/src/serve").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]").next().unwrap();
    for other in [".route_service(", ".nest(", ".nest_service(", ".merge("] {
        assert!(!code.contains(other), "{file} adds routes with {other}");
    }
    let added = code.split(".route(").skip(1);
    let read = added.map(|rest| {
        let path = rest.split('"').nth(1).unwrap();
        let (_, rest) = rest.split_once(&format!("\"{path}\",")).unwrap();
        let method = rest.split('(').next().unwrap().trim().to_uppercase();
        (method, path.to_owned())
    });
    read.collect()
}

/// The status of the answer to a request without credentials.
fn status(address: &str, method: &str, path: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = if method == "POST" { "{}" } else { "" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: muster\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("{method} {path}: {answer:?}"))
}

#[test]
fn the_open_ports_answer_their_routes_and_nothing_else() {
    for file in ["health.rs", "extender.rs"] {
        let rows = ROUTES.iter().filter(|row| row.0 == file);
        let rows: BTreeSet<_> = rows
            .map(|row| (row.1.to_owned(), row.2.to_owned()))
            .collect();
        assert_eq!(
            routes(file),
            rows,
            "the routes of {file}, and those with a row in ROUTES"
        );
    }
    let ground = Ground::start();
    let extender = free_address();
    let server = ground.server("server", &["--extender", &extender]);
    server.until_leading();
    let mut requests = 0;
    for (file, own, path) in ROUTES {
        let address = match file {
            "health.rs" => server.address(),
            _ => extender.as_str(),
        };
        for method in METHODS {
            let code = status(address, method, path);
            let want = match (own, method) {
                ("GET", "GET" | "HEAD") => 200,
                // A question without a pod.
                ("POST", "POST") => 422,
                _ => 405,
            };
            assert_eq!(code, want, "{method} {path}");
            requests += 1;
        }
        for strange in ["/", "/api", &format!("{path}/x"), "/%2e%2e/etc/passwd"] {
            for method in METHODS {
                assert_eq!(status(address, method, strange), 404, "{method} {strange}");
                requests += 1;
            }
        }
    }
    println!(
        "open ports: {} routes, {} methods, {requests} requests",
        ROUTES.len(),
        METHODS.len()
    );
}
