//! Web pages inside pods: by `pods/NAME:PORT/proxy` and `services/NAME:PORT/proxy` with kubectl, by `muster open`, and at
//! hosts of their own, with real programs in pods and in a real browser; and what hostile clients, pages and programs try.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use e2e::{Platform, eventually, kubectl, muster, python, repository, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// A port on which no process listens now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A pod with the tests' web server.
fn web(name: &str, port: u16) -> String {
    let script = include_str!("../clients/pod_server.py");
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
    fn told(&self, name: &str) -> Option<String> {
        let told = self.json();
        let headers = told["headers"].as_array().unwrap().iter();
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

#[test]
fn kubectl_reaches_ports_of_pods_and_services_as_kubernetes_names_them() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    platform.apply(
        &json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "ui", "port": 80, "targetPort": "http"}]},
        })
        .to_string(),
    );
    let base = "/api/v1/namespaces/default";
    let raw = |path: &str| platform.kubectl(&["get", "--raw", &format!("{base}/{path}")]);
    for object in [
        format!("pods/web:{port}"),
        "pods/web:http".to_owned(),
        "pods/http:web:http".to_owned(),
        "pods/web".to_owned(),
        "services/front:80".to_owned(),
        "services/front:ui".to_owned(),
        "services/front".to_owned(),
    ] {
        let out = raw(&format!("{object}/proxy/headers?q=%2F&r=1")).ok();
        let told: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(told["path"], "/headers?q=%2F&r=1", "{object}");
        let names: Vec<&str> = (told["headers"].as_array().unwrap().iter())
            .map(|pair| pair[0].as_str().unwrap())
            .collect();
        assert!(
            !names.contains(&"authorization") && !names.contains(&"cookie"),
            "{names:?}"
        );
        let prefix = json!(["x-forwarded-prefix", format!("{base}/{object}/proxy")]);
        assert!(
            told["headers"].as_array().unwrap().contains(&prefix),
            "{told}"
        );
    }
    for (path, words) in [
        ("pods/web:9/proxy/", "no process of pod"),
        ("pods/web:nothing/proxy/", "its ports are:"),
        ("pods/none:80/proxy/", "not found"),
        ("services/front:81/proxy/", "its ports are: 80 (ui)"),
        ("pods/https:web:443/proxy/", "speaks http to pods"),
    ] {
        let refused = raw(path);
        assert!(
            refused.code != Some(0) && refused.err.contains(words),
            "{path}: {refused:?}"
        );
    }

    // `kubectl proxy`: redirects, bodies and WebSockets through it.
    let mut child = platform
        .command(&kubectl(), &["proxy", "--port=0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line.rsplit(' ').next().unwrap().trim().to_owned();
    let by_proxy = |bytes: String| -> String {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        let mut whole = String::new();
        stream.read_to_string(&mut whole).unwrap();
        whole
    };
    let own = format!("{base}/pods/web:{port}/proxy");
    let redirected = by_proxy(format!(
        "GET {own}/redirect HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    ));
    assert!(
        redirected.contains(&format!("{own}/headers?from=redirect")),
        "{redirected}"
    );
    assert!(
        redirected.contains("sandbox; default-src 'none'"),
        "{redirected}"
    );
    let posted = by_proxy(format!(
        "POST {own}/echo HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n"
    ));
    assert!(posted.contains(" 5 hello"), "{posted}");
    child.kill().unwrap();
    child.wait().unwrap();

    // A browser's session opens no page of a pod at the API's own address.
    let password = platform.password();
    let form = format!("user=admin&password={password}");
    let kind = "Content-Type: application/x-www-form-urlencoded";
    let signed_in = send(
        &platform,
        &platform.listen,
        "POST /ui/sign-in",
        &[kind],
        &form,
    );
    let session = signed_in.header("set-cookie").split(';').next().unwrap();
    let cookie = format!("Cookie: {session}");
    let page = send(
        &platform,
        &platform.listen,
        &format!("GET {own}/"),
        &[&cookie],
        "",
    );
    assert_eq!(page.code, 403, "{}", page.body);
    assert!(
        page.body.contains("/proxy/NAMESPACE/pods/NAME/PORT/"),
        "{}",
        page.body
    );
}

#[test]
fn a_page_has_a_host_of_its_own_and_its_pod_sees_nothing_of_musters() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    let admin = token(&platform, "admin");
    let page = open(&platform, &admin, &format!("default/pods/web/{port}/"));
    let told = page.send(
        &platform,
        "GET /headers?x=%2F",
        &[
            "Authorization: token of-the-app",
            "X-Forwarded-For: 6.6.6.6",
            "TE: trailers",
        ],
        "",
    );
    assert_eq!(told.json()["path"], "/headers?x=%2F");
    for (name, wanted) in [
        ("cookie", Some("mine=1".to_owned())),
        ("authorization", Some("token of-the-app".to_owned())),
        ("host", Some(format!("localhost:{port}"))),
        ("x-forwarded-host", Some(page.host.clone())),
        ("x-forwarded-for", Some("127.0.0.1".to_owned())),
        ("x-forwarded-proto", Some("http".to_owned())),
        ("te", None),
    ] {
        assert_eq!(told.told(name), wanted, "{name}");
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

#[test]
fn only_who_may_opens_a_page_and_only_for_as_long() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    let path = format!("default/pods/web/{port}/");
    // Without a sign-in.
    let nobody = send(
        &platform,
        &platform.listen,
        &format!("GET /proxy/{path}"),
        &[],
        "",
    );
    assert_eq!(nobody.code, 303);
    assert!(
        nobody
            .header("location")
            .starts_with("/ui/sign-in?next=/proxy/default/"),
        "{}",
        nobody.head
    );
    // Another team's member, a viewer, and a member of the team whose pod it is not.
    for (user, role, namespace) in [
        ("eve", "member", "other"),
        ("vi", "viewer", "default"),
        ("mo", "member", "default"),
    ] {
        let words = [
            "user",
            "create",
            user,
            "--role",
            role,
            "--namespaces",
            namespace,
        ];
        platform.cli(&words).ok();
        let refused = ticket(&platform, &token(&platform, user), &path);
        assert_eq!(refused.code, 403, "{user}: {}", refused.body);
    }
    eventually("each refusal is recorded", SOON, || {
        let mut refused = platform.audited("\"subresource\":\"proxy\"");
        refused.retain(|event| event["responseStatus"]["code"] == 403);
        (refused.len() == 3).then_some(())
    });

    let admin = token(&platform, "admin");
    let page = open(&platform, &admin, &path);
    let code = |opened: &Opened| opened.send(&platform, "GET /headers", &[], "").code;
    assert_eq!(code(&page), 200);
    // Another port's host takes neither the cookie nor the ticket.
    let other_port = started(&platform, "second");
    let other = open(
        &platform,
        &admin,
        &format!("default/pods/second/{other_port}/"),
    );
    assert_ne!(page.host, other.host);
    let mixed = Opened {
        host: other.host.clone(),
        cookie: page.cookie.clone(),
    };
    assert_eq!(code(&mixed), 401);
    let reply = ticket(&platform, &admin, &path);
    let location = reply.header("location").strip_prefix("http://").unwrap();
    let (host, rest) = location.split_once('/').unwrap();
    assert_eq!(
        send(&platform, &other.host, &format!("GET /{rest}"), &[], "").code,
        403
    );
    // It was used, though at the wrong host.
    assert_eq!(
        send(&platform, host, &format!("GET /{rest}"), &[], "").code,
        403
    );
    assert_eq!(
        send(&platform, &page.host, "GET /headers", &[], "").code,
        401
    );
    // Pages of other origins.
    for lines in [
        vec!["Origin: http://evil.example"],
        vec!["Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors"],
        vec![
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Mode: navigate",
            "Sec-Fetch-Dest: iframe",
        ],
    ] {
        assert_eq!(
            page.send(&platform, "GET /headers", &lines, "").code,
            403,
            "{lines:?}"
        );
    }
    let links = [
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Mode: navigate",
        "Sec-Fetch-Dest: document",
        "Accept: text/html",
    ];
    let link = page.send(&platform, "GET /delete?all", &links, "");
    assert_eq!(link.code, 303);
    let entry = format!("/proxy/default/pods/web/{port}/delete?all");
    assert!(link.header("location").ends_with(&entry), "{}", link.head);
    let bearer = format!("Authorization: Bearer {admin}");
    let asked = send(
        &platform,
        &platform.listen,
        &format!("GET {entry}"),
        &[&links[..], &[bearer.as_str()]].concat(),
        "",
    );
    assert!(
        asked.code == 200 && asked.body.contains("Open a page of pod web?"),
        "{}",
        asked.body
    );

    // A pod of the same name is another pod.
    platform
        .kubectl(&["delete", "pod", "web", "--wait=true"])
        .ok();
    platform.apply(&web("web", port));
    platform.until_ready("web");
    assert_eq!(code(&page), 409);
    let again = open(&platform, &admin, &path);
    assert_ne!(again.host, page.host);
    assert_eq!(code(&again), 200);
    // The token behind it is revoked.
    let list = platform.cli(&["token", "list"]).ok();
    for line in list.lines().skip(1) {
        let id = line.split_whitespace().next().unwrap();
        if admin.contains(id) {
            platform.cli(&["token", "revoke", id]).ok();
        }
    }
    assert_eq!(code(&again), 401);
    assert_eq!(code(&other), 401);
}

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

#[test]
fn muster_open_prints_the_address_or_leads_a_local_port_there() {
    let platform = Platform::up(&[]);
    let port = started(&platform, "web");
    let out = platform.cli(&["open", "web", "--print"]).ok();
    let server = &platform.listen;
    assert_eq!(
        out,
        format!("http://{server}/proxy/default/pods/web/{port}/\n")
    );
    let named = platform
        .cli(&["open", "pod/web", "--port", "http", "--print"])
        .ok();
    assert_eq!(named, out);
    let number = platform
        .cli(&["open", "web", "--port", "1234", "--print"])
        .ok();
    assert!(number.ends_with("/pods/web/1234/\n"), "{number}");
    let wrong = platform.cli(&["open", "web", "--port", "ui"]);
    assert!(
        wrong.err.contains(&format!("its ports are {port} (http)")),
        "{wrong:?}"
    );
    let none = platform.cli(&["open", "nothing"]);
    assert!(
        none.err.contains("no pod, job, RayCluster or Service"),
        "{none:?}"
    );

    let mut child = platform
        .command(&muster(), &["open", "web", "--forward", "--print"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let address = line
        .trim()
        .strip_prefix("http://")
        .unwrap()
        .trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
        .write_all(b"GET /headers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut whole = String::new();
    stream.read_to_string(&mut whole).unwrap();
    assert!(whole.contains("\"/headers\""), "{whole}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Walks through the pages in a browser. `url` is Muster's address, and `site` what all hosts share.
fn walk(platform: &Platform, url: &str, site: &str, others: &[&str]) {
    let port = started(platform, "web").to_string();
    let other = started(platform, "other").to_string();
    let path = repository().join("e2e/clients/pod_pages.py");
    let (path, password) = (path.display().to_string(), platform.password());
    let words = [path.as_str(), url, &password, &port, &other, site];
    let out = run(&mut platform.command(&python(), &[&words[..], others].concat())).ok();
    assert!(out.contains("pod pages done"), "{out}");
}

#[test]
fn in_a_browser_on_the_servers_machine_pages_work_and_hostile_ones_get_nothing() {
    let platform = Platform::up(&[]);
    let port = platform.listen.rsplit(':').next().unwrap();
    let local = format!("http://localhost:{port}");
    walk(
        &platform,
        &format!("http://{}", platform.listen),
        "localhost",
        &[&local],
    );
}

#[test]
fn in_a_browser_elsewhere_pages_of_one_site_with_muster_get_nothing() {
    let words = [
        "--advertise",
        "muster.site.example",
        "--proxy-domain",
        "pods.site.example",
    ];
    let platform = Platform::up(&words);
    let port = platform.listen.rsplit(':').next().unwrap();
    let url = format!("https://muster.site.example:{port}");
    walk(&platform, &url, "site.example", &[]);
}
