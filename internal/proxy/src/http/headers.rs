//! The headers of proxied requests and answers. Pure.
//!
//! A pod is told that it is asked at `localhost:PORT`, as through a forwarded port: many programs refuse other hosts, and
//! compare `Origin` with `Host`. `X-Forwarded-*` have the browser's address. Nothing that belongs to Muster's own
//! sign-in reaches a pod, and nothing that a pod answers changes the browser's state of another origin.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Extensions, Method, StatusCode};

/// Muster's cookies: of the web UI, and of origins of pods. With the prefix of cookies that no other host can set.
pub(super) const OWN_COOKIES: [&str; 4] = [
    "muster_session",
    "__Host-muster_session",
    "muster_proxy",
    "__Host-muster_proxy",
];

/// Headers of one connection (RFC 9110, section 7.6.1), and those that the next connection sets itself.
const OF_CONNECTION: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers by which a proxy names the user of a request; a client's own values do not count.
const FORWARDED: [&str; 9] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
];

/// Headers of answers that change more than the page's own origin, or how a browser reaches it.
const REACHING_FURTHER: [&str; 7] = [
    "alt-svc",
    "clear-site-data",
    "nel",
    "public-key-pins",
    "report-to",
    "service-worker-allowed",
    "strict-transport-security",
];

/// The origin of a port's pages, as the browser sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicOrigin {
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The host and, if it is not the scheme's own, the port.
    pub authority: String,
}

impl PublicOrigin {
    fn text(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

/// Where a client sees the port.
#[derive(Clone, Copy, Debug)]
pub(super) enum View<'a> {
    /// Below the API's path, which ends before the pod's own path; the client's credentials are the API's.
    Api { prefix: &'a str },
    /// At an origin of its own; `Authorization` and cookies are the pod's.
    Own(&'a PublicOrigin),
}

/// The address that a request came from.
pub(super) fn peer(extensions: &Extensions) -> Option<String> {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>()?;
    Some(peer.0.ip().to_canonical().to_string())
}

fn has_token(headers: &HeaderMap, name: HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter();
    let mut tokens = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    tokens.any(|one| one.trim().eq_ignore_ascii_case(token))
}

/// True if the request asks for a WebSocket.
pub(super) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    has_token(headers, header::CONNECTION, "upgrade")
        && has_token(headers, header::UPGRADE, "websocket")
}

/// Removes what belongs to one connection, and what `Connection` names.
fn remove_of_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in OF_CONNECTION {
        headers.remove(name);
    }
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// A pod's own host, as requests name it.
pub(super) fn pod_host(port: u16) -> String {
    format!("localhost:{port}")
}

/// The headers of a request to a pod's port.
pub(super) fn of_request(
    client: &HeaderMap,
    view: View<'_>,
    port: u16,
    peer: Option<&str>,
) -> HeaderMap {
    let mut headers = client.clone();
    let websocket = asks_for_websocket(client);
    remove_of_connection(&mut headers);
    for name in FORWARDED {
        headers.remove(name);
    }
    let impersonation: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    for name in impersonation {
        headers.remove(name);
    }
    if websocket {
        set(&mut headers, "connection", "Upgrade");
        set(&mut headers, "upgrade", "websocket");
    }
    let host = client.get(header::HOST).cloned();
    set(&mut headers, "host", &pod_host(port));
    if let Some(peer) = peer {
        set(&mut headers, "x-forwarded-for", peer);
    }
    match view {
        View::Api { prefix } => {
            headers.remove(header::AUTHORIZATION);
            headers.remove(header::COOKIE);
            set(&mut headers, "x-forwarded-proto", "https");
            set(&mut headers, "x-forwarded-prefix", prefix);
            if let Some(host) = host {
                headers.insert("x-forwarded-host", host);
            }
        }
        View::Own(origin) => {
            keep_pods_cookies(&mut headers);
            set(&mut headers, "x-forwarded-proto", origin.scheme);
            set(&mut headers, "x-forwarded-host", &origin.authority);
            let (public, inside) = (origin.text(), format!("http://{}", pod_host(port)));
            for name in ["origin", "referer"] {
                let value = headers.get(name).and_then(|value| value.to_str().ok());
                let rest = value.and_then(|value| value.strip_prefix(public.as_str()));
                let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with('/'));
                if let Some(rest) = rest.map(str::to_owned) {
                    set(&mut headers, name, &format!("{inside}{rest}"));
                }
            }
        }
    }
    headers
}

fn is_own_cookie(name: &str) -> bool {
    OWN_COOKIES
        .iter()
        .any(|own| own.eq_ignore_ascii_case(name.trim()))
}

/// Removes Muster's own cookies.
fn keep_pods_cookies(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = headers
        .get_all(header::COOKIE)
        .into_iter()
        .cloned()
        .collect();
    headers.remove(header::COOKIE);
    // HTTP/1.1 has one such header; browsers split it on HTTP/2.
    let mut kept: Vec<u8> = Vec::new();
    for value in &values {
        for pair in value.as_bytes().split(|byte| *byte == b';') {
            let pair = pair.trim_ascii();
            let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
            if pair.is_empty() || is_own_cookie(&String::from_utf8_lossy(name)) {
                continue;
            }
            if !kept.is_empty() {
                kept.extend_from_slice(b"; ");
            }
            kept.extend_from_slice(pair);
        }
    }
    if !kept.is_empty()
        && let Ok(value) = HeaderValue::from_bytes(&kept)
    {
        headers.insert(header::COOKIE, value);
    }
}

/// The headers of a pod's answer.
pub(super) fn of_answer(
    pod: &HeaderMap,
    view: View<'_>,
    port: u16,
    method: &Method,
    status: StatusCode,
) -> HeaderMap {
    let mut headers = pod.clone();
    let upgraded = status == StatusCode::SWITCHING_PROTOCOLS;
    // The length of an answer without a body is of the body that GET would have.
    let length = (*method == Method::HEAD || status == StatusCode::NOT_MODIFIED)
        .then(|| headers.get(header::CONTENT_LENGTH).cloned())
        .flatten();
    remove_of_connection(&mut headers);
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length);
    }
    if upgraded {
        set(&mut headers, "connection", "Upgrade");
        set(&mut headers, "upgrade", "websocket");
    }
    for name in REACHING_FURTHER {
        headers.remove(name);
    }
    match view {
        View::Api { .. } => {
            headers.remove(header::SET_COOKIE);
            let cross: Vec<HeaderName> = headers
                .keys()
                .filter(|name| name.as_str().starts_with("access-control-"))
                .cloned()
                .collect();
            for name in cross {
                headers.remove(name);
            }
        }
        View::Own(_) => scope_cookies(&mut headers),
    }
    let location = headers.get(header::LOCATION);
    let location = location.and_then(|value| value.to_str().ok());
    if let Some(location) = location.and_then(|text| public_location(text, view, port)) {
        set(&mut headers, "location", &location);
    }
    headers
}

/// A pod's cookies are those of its own host, and none of them is Muster's.
fn scope_cookies(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = (headers.get_all(header::SET_COOKIE).into_iter())
        .cloned()
        .collect();
    headers.remove(header::SET_COOKIE);
    for value in values {
        let bytes = value.as_bytes();
        let mut parts = bytes.split(|byte| *byte == b';');
        let pair = parts.next().unwrap_or_default();
        let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
        if is_own_cookie(&String::from_utf8_lossy(name)) {
            continue;
        }
        let kept: Vec<&[u8]> = parts
            .filter(|attribute| {
                let name = attribute.split(|byte| *byte == b'=').next();
                let name = name.unwrap_or_default().trim_ascii();
                !name.eq_ignore_ascii_case(b"domain")
            })
            .collect();
        let mut cookie = pair.to_vec();
        for attribute in kept {
            cookie.push(b';');
            cookie.extend_from_slice(attribute);
        }
        if let Ok(cookie) = HeaderValue::from_bytes(&cookie) {
            headers.append(header::SET_COOKIE, cookie);
        }
    }
}

/// Where a redirect of the pod leads the client; none if it stays as it is.
fn public_location(location: &str, view: View<'_>, port: u16) -> Option<String> {
    let hosts = ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"];
    let inside = hosts.iter().find_map(|host| {
        let rest = location
            .strip_prefix("http://")
            .or_else(|| location.strip_prefix("https://"))?;
        let rest = rest.strip_prefix(&format!("{host}:{port}"))?;
        (rest.is_empty() || rest.starts_with(['/', '?', '#'])).then_some(rest)
    });
    let path = match inside {
        Some(rest) if rest.starts_with('/') => rest.to_owned(),
        Some(rest) => format!("/{rest}"),
        // An absolute path, and no other host's.
        None if location.starts_with('/') && !location.starts_with("//") => location.to_owned(),
        None => return None,
    };
    match view {
        // `//` would be another host.
        View::Own(_) => inside.map(|_| format!("/{}", path.trim_start_matches('/'))),
        View::Api { prefix } => Some(format!("{prefix}{path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn origin() -> PublicOrigin {
        PublicOrigin {
            scheme: "https",
            authority: "web-80-ab.proxy.example:8443".into(),
        }
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
        headers.get(name).map(|value| value.to_str().unwrap())
    }

    const API: View<'static> = View::Api {
        prefix: "/api/v1/namespaces/a/pods/p:80/proxy",
    };

    #[test]
    fn a_pod_gets_nothing_of_the_connection_and_nothing_of_musters_sign_in() {
        let client = map(&[
            ("host", "web-80-ab.proxy.example:8443"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("upgrade", "h2c"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("impersonate-user", "admin"),
            ("authorization", "token of-the-app"),
            ("cookie", "muster_session=s; a=b; __Host-muster_proxy=t"),
            ("cookie", "MUSTER_PROXY=u; c=d"),
            ("origin", "https://web-80-ab.proxy.example:8443"),
            ("referer", "https://web-80-ab.proxy.example:8443/x?y"),
        ]);
        let origin = origin();
        let sent = of_request(&client, View::Own(&origin), 8080, Some("192.0.2.1"));
        for (name, wanted) in [
            ("host", Some("localhost:8080")),
            ("connection", None),
            ("x-hop", None),
            ("transfer-encoding", None),
            ("content-length", None),
            ("te", None),
            ("expect", None),
            ("upgrade", None),
            ("forwarded", None),
            ("impersonate-user", None),
            ("authorization", Some("token of-the-app")),
            ("cookie", Some("a=b; c=d")),
            ("origin", Some("http://localhost:8080")),
            ("referer", Some("http://localhost:8080/x?y")),
            ("x-forwarded-for", Some("192.0.2.1")),
            ("x-forwarded-host", Some("web-80-ab.proxy.example:8443")),
            ("x-forwarded-proto", Some("https")),
        ] {
            assert_eq!(text(&sent, name), wanted, "{name}");
        }
        let sent = of_request(&client, API, 8080, None);
        for name in ["authorization", "cookie", "x-forwarded-for"] {
            assert_eq!(text(&sent, name), None, "{name}");
        }
    }

    #[test]
    fn another_pages_origin_stays_as_it_is() {
        let foreign = map(&[("origin", "https://web-80-ab.proxy.example:84430")]);
        let origin = origin();
        let sent = of_request(&foreign, View::Own(&origin), 80, None);
        assert_eq!(
            text(&sent, "origin"),
            Some("https://web-80-ab.proxy.example:84430")
        );
    }

    #[test]
    fn a_websocket_is_asked_for_anew() {
        let client = map(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "k"),
        ]);
        assert!(asks_for_websocket(&client));
        let sent = of_request(&client, API, 80, None);
        assert_eq!(text(&sent, "connection"), Some("Upgrade"));
        assert_eq!(text(&sent, "upgrade"), Some("websocket"));
        assert_eq!(text(&sent, "sec-websocket-key"), Some("k"));
        assert!(!asks_for_websocket(&map(&[
            ("connection", "upgrade"),
            ("upgrade", "h2c")
        ])));
    }

    #[test]
    fn a_pods_cookies_stay_with_its_own_host_and_none_is_musters() {
        let pod = map(&[
            ("set-cookie", "a=b; Path=/x; Domain=example.org; HttpOnly"),
            ("set-cookie", "muster_session=evil; Path=/ui"),
            ("set-cookie", "__host-muster_proxy=evil"),
            ("set-cookie", "c=d; domain=.proxy.example"),
            ("clear-site-data", "\"*\""),
            ("strict-transport-security", "max-age=1; includeSubDomains"),
            ("service-worker-allowed", "/"),
            ("transfer-encoding", "chunked"),
        ]);
        let origin = origin();
        let of = |view| of_answer(&pod, view, 80, &Method::GET, StatusCode::OK);
        let answer = of(View::Own(&origin));
        let cookies: Vec<&str> = (answer.get_all("set-cookie").into_iter())
            .map(|value| value.to_str().unwrap())
            .collect();
        assert_eq!(cookies, ["a=b; Path=/x; HttpOnly", "c=d"]);
        for name in [
            "clear-site-data",
            "strict-transport-security",
            "service-worker-allowed",
            "transfer-encoding",
        ] {
            assert_eq!(text(&answer, name), None, "{name}");
        }
        assert_eq!(text(&of(API), "set-cookie"), None);
    }

    #[test]
    fn redirects_lead_to_where_the_client_sees_the_port() {
        let origin = origin();
        let own = View::Own(&origin);
        let api = |path: &str| Some(format!("/api/v1/namespaces/a/pods/p:80/proxy{path}"));
        let some = |text: &str| Some(text.to_owned());
        for (location, in_own, in_api) in [
            ("/login?next=x", None, api("/login?next=x")),
            ("http://localhost:80/a", some("/a"), api("/a")),
            ("https://127.0.0.1:80", some("/"), api("/")),
            ("http://localhost:80?q", some("/?q"), api("/?q")),
            ("http://localhost:80//evil", some("/evil"), api("//evil")),
            ("http://localhost:8080/a", None, None),
            ("http://localhost:80.evil/", None, None),
            ("https://evil.example/", None, None),
            ("//evil.example/", None, None),
            ("relative", None, None),
        ] {
            assert_eq!(public_location(location, own, 80), in_own, "{location}");
            assert_eq!(public_location(location, API, 80), in_api, "{location}");
        }
    }

    #[test]
    fn an_answer_to_head_keeps_the_length_of_its_body() {
        let pod = map(&[("content-length", "7")]);
        let length = |method: Method, status| {
            let answer = of_answer(&pod, API, 80, &method, status);
            text(&answer, "content-length").map(str::to_owned)
        };
        assert_eq!(length(Method::HEAD, StatusCode::OK).as_deref(), Some("7"));
        assert_eq!(length(Method::GET, StatusCode::OK), None);
    }

    proptest::proptest! {
        #[test]
        fn no_header_panics(value in "[ -~]{0,40}", location in "(http://localhost:80|/|//)?[ -~]{0,30}") {
            let headers = map(&[("cookie", &value), ("set-cookie", &value), ("connection", &value), ("location", &location)]);
            let origin = origin();
            for view in [View::Own(&origin), API] {
                of_request(&headers, view, 80, None);
                let answer = of_answer(&headers, view, 80, &Method::GET, StatusCode::FOUND);
                if let View::Api { prefix } = view
                    && location.starts_with('/') && !location.starts_with("//")
                {
                    proptest::prop_assert!(text(&answer, "location").unwrap().starts_with(prefix));
                }
            }
        }
    }
}
