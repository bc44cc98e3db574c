//! A page's own host: what the pod and Muster see of each other.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use e2e::{Platform, eventually};
use serde_json::json;

use super::{SOON, open, started, token};

#[test]
fn a_page_has_a_host_of_its_own_and_its_pod_sees_nothing_of_musters() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    let admin = token(&platform, "admin");
    let page = open(&platform, &admin, &format!("default/pods/web/{port}/"));
    let answer = page.send(
        &platform,
        "GET /headers?x=%2F",
        &[
            "Authorization: token of-the-app",
            "X-Forwarded-For: 6.6.6.6",
            "TE: trailers",
        ],
        "",
    );
    assert_eq!(answer.json()["path"], "/headers?x=%2F");
    for (name, wanted) in [
        ("cookie", Some("mine=1".to_owned())),
        ("authorization", Some("token of-the-app".to_owned())),
        ("host", Some(format!("localhost:{port}"))),
        ("x-forwarded-host", Some(page.host.clone())),
        ("x-forwarded-for", Some("127.0.0.1".to_owned())),
        ("x-forwarded-proto", Some("http".to_owned())),
        ("te", None),
    ] {
        assert_eq!(answer.header_of_pod(name), wanted, "{name}");
    }
    let set = page.send(&platform, "GET /cookie", &[], "");
    let cookies: Vec<&str> = (set.head.lines())
        .filter(|line| line.starts_with("set-cookie"))
        .collect();
    assert_eq!(cookies, ["set-cookie: app=1; Path=/; HttpOnly"]);
    assert!(
        !set.head.contains("x-secret") && !set.head.contains("clear-site-data"),
        "{}",
        set.head
    );
    let redirect = page.send(&platform, "GET /redirect", &[], "");
    assert_eq!(redirect.header("location"), "/headers?from=redirect");
    let head = page.send(&platform, "HEAD /headers", &[], "");
    assert!(head.code == 200 && head.body.is_empty() && head.header("content-length") != "0");

    // A Service's page, and by the names of ports.
    platform.apply(
        &json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "ui", "port": 80, "targetPort": "http"}]},
        })
        .to_string(),
    );
    for path in ["default/services/front/ui/", "default/pods/web/http/"] {
        let page = open(&platform, &admin, path);
        assert_eq!(page.send(&platform, "GET /", &[], "").code, 200, "{path}");
    }

    // A body streams: its begin is here before its end is sent.
    let mut stream = TcpStream::connect(&platform.listen).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let request = format!(
        "GET /stream HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\n\r\n",
        page.host, page.cookie
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut until = |word: &str| {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "no {word}");
        }
    };
    until("one");
    page.send(&platform, "GET /next", &[], "");
    until("two");

    // A WebSocket.
    let mut socket = TcpStream::connect(&platform.listen).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: {host}\r\nCookie: {}\r\nOrigin: http://{host}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        page.cookie,
        host = page.host
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 101 "), "{line}");
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    // A masked text "hi" with a mask of zeros.
    socket
        .write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i'])
        .unwrap();
    let mut frame = [0; 9];
    reader.read_exact(&mut frame).unwrap();
    assert_eq!(&frame[2..], b"echo hi");

    // The opening is in the audit log, and each request of the page is not.
    let opened = eventually("each opening is recorded", SOON, || {
        let opened = platform.audited("\"subresource\":\"proxy\"");
        (opened.len() == 3).then_some(opened)
    });
    let first = &opened[0];
    assert_eq!(first["verb"], "create", "{first}");
    assert_eq!(first["objectRef"]["name"], "web", "{first}");
    assert_eq!(first["user"]["username"], "admin", "{first}");
    assert!(!platform.audit_log().contains("ticket="));
}
