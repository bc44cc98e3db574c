//! Ports of pods and services with kubectl, as Kubernetes names them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use std::process::Stdio;

use e2e::{Platform, kubectl};
use serde_json::{Value, json};

use super::{SOON, send, started};

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
        let reply: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(reply["path"], "/headers?q=%2F&r=1", "{object}");
        let names: Vec<&str> = (reply["headers"].as_array().unwrap().iter())
            .map(|pair| pair[0].as_str().unwrap())
            .collect();
        assert!(
            !names.contains(&"authorization") && !names.contains(&"cookie"),
            "{names:?}"
        );
        let prefix = json!(["x-forwarded-prefix", format!("{base}/{object}/proxy")]);
        assert!(
            reply["headers"].as_array().unwrap().contains(&prefix),
            "{reply}"
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
