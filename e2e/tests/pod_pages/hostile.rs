//! What hostile clients and programs try.

use std::io::Write as _;

use std::net::TcpStream;

use e2e::{Platform, eventually};

use super::{SOON, exchange, open, send, started, token};

#[test]
fn hostile_clients_and_programs_harm_neither_each_other_nor_the_server() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    let admin = token(&platform, "admin");
    let page = open(&platform, &admin, &format!("default/pods/web/{port}/"));
    let raw = |text: String| exchange(&platform, text.as_bytes());
    let begin = |request: &str| {
        format!(
            "{request} HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\nConnection: close\r\n",
            page.host, page.cookie
        )
    };

    // A request within a request: by two lengths, or by one in a header that only one side reads.
    let both = format!(
        "{}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        begin("POST /echo")
    );
    let reply = raw(both);
    assert!(
        reply.code == 400
            || (reply.code == 200 && reply.body.contains("Transfer-Encoding 5 hello")),
        "{}{}",
        reply.head,
        reply.body
    );
    assert_eq!(reply.body.matches("HTTP/1.1").count(), 0, "{}", reply.body);
    let twice = format!(
        "{}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        begin("POST /echo")
    );
    assert_eq!(raw(twice).code, 400);
    let hidden = format!(
        "{}Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\nhello",
        begin("POST /echo")
    );
    assert_eq!(raw(hidden).code, 400);
    let named = format!(
        "{}Content-Length: 5\r\n\r\nhello",
        begin("POST /echo").replace(
            "Connection: close",
            "Connection: close, Content-Length, Cookie, Host"
        )
    );
    let reply = raw(named);
    assert!(
        reply.body.contains("POST /echo Content-Length 5 hello"),
        "{}",
        reply.body
    );
    let split = raw(format!(
        "{}X: a\rGET /b HTTP/1.1\r\n\r\n",
        begin("GET /headers")
    ));
    assert_eq!(split.code, 400);
    let two = format!("{}Host: localhost\r\n\r\n", begin("GET /headers"));
    assert_ne!(raw(two).code, 200);
    for method in ["CONNECT", "TRACE"] {
        let reply = raw(format!("{}\r\n", begin(&format!("{method} /headers"))));
        assert!(
            matches!(reply.code, 400 | 401 | 404 | 405),
            "{method}: {}",
            reply.code
        );
    }
    // Headers beyond the bounds, of the client and of the pod.
    let large = format!(
        "{}X: {}\r\n\r\n",
        begin("GET /headers"),
        "x".repeat(100_000)
    );
    assert_eq!(raw(large).code, 431);
    assert_eq!(page.send(&platform, "GET /large-header", &[], "").code, 502);
    // A client that leaves in the middle of its body.
    let mut stream = TcpStream::connect(&platform.listen).unwrap();
    stream
        .write_all(format!("{}Content-Length: 1000\r\n\r\nbegin", begin("POST /echo")).as_bytes())
        .unwrap();
    drop(stream);
    // A large body both ways.
    let body = "0123456789abcdef".repeat(1 << 18);
    let reply = page.send(&platform, "POST /echo", &[], &body);
    assert!(
        reply.body.contains(&format!("{} 0123", body.len())),
        "{}",
        reply.body
    );
    // A pod that ends in the middle of an answer.
    let cut = page.send(&platform, "GET /end", &[], "");
    assert!(cut.code == 200 && cut.body.len() < 1000, "{}", cut.body);
    eventually("the pod has ended", SOON, || {
        (platform.phase("web") == "Failed").then_some(())
    });
    let ended = page.send(&platform, "GET /headers", &[], "");
    assert_eq!(ended.code, 503, "{}", ended.body);
    assert!(ended.body.contains("has ended"), "{}", ended.body);
    // The server is well.
    assert_eq!(
        send(&platform, &platform.listen, "GET /livez", &[], "").code,
        200
    );
}
