//! A port's own host: takes tickets for its cookie, and passes requests with the cookie to the pod.

use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use percent_encoding::percent_decode_str;

use crate::answers::{document, escaped, redirect, text};
use crate::host::{self, ENTER};
use crate::http::{PublicOrigin, WebPort};
use crate::openings::{OPENING_LIFE, Opening};
use crate::refusal::WebRefusal;
use crate::sender::{self, Sender};
use crate::state::{Scheme, WebProxy};

/// The cookie of a port's host. Over TLS its prefix keeps other hosts of the domain from setting it.
const SECURE_COOKIE: &str = "__Host-muster_proxy";
const PLAIN_COOKIE: &str = "muster_proxy";

/// Answers a request for a port's own host.
pub async fn answer(proxy: &WebProxy, request: Request<Body>) -> Response {
    let label = host::label(&request, proxy.domain());
    let Some((label, authority)) = label.zip(host::authority(&request)) else {
        return text(
            StatusCode::BAD_REQUEST,
            "Host: the request must name one host",
        );
    };
    let scheme = Scheme::of(request.extensions());
    let cookie = cookie(request.headers(), scheme).and_then(OpeningCookie::read);
    if request.uri().path() == ENTER {
        return enter(proxy, &label, request.uri(), cookie.as_ref(), scheme);
    }
    match sender::of(request.method(), request.headers(), authority.as_str()) {
        Sender::Own => {}
        Sender::ForeignLink => return open_again(cookie.as_ref(), &request, scheme),
        Sender::Foreign => {
            return text(
                StatusCode::FORBIDDEN,
                "pages of other addresses cannot send requests to a port of a pod; open it in a window of its own",
            );
        }
    }
    let found = cookie.as_ref().and_then(|cookie| {
        let opening = (proxy.openings().lock()).find(&cookie.secret, &label, Instant::now())?;
        let caller = opening.credential.caller();
        if caller.is_none() {
            proxy.openings().lock().end(&cookie.secret);
        }
        Some((opening, caller?))
    });
    let Some((opening, caller)) = found else {
        return open_again(cookie.as_ref(), &request, scheme);
    };
    let origin = PublicOrigin {
        scheme: scheme.word(),
        authority: authority.to_string(),
    };
    let Opening {
        port,
        uid,
        credential,
        ..
    } = opening;
    let navigates = is_navigation(request.method(), request.headers());
    let again = open_again(cookie.as_ref(), &request, scheme);
    let forwarded = proxy
        .pods()
        .forward(&caller, Some(credential), (&port, &uid), &origin, request)
        .await;
    match forwarded {
        Ok(answer) => answer,
        // Another pod of the same name has another host.
        Err(WebRefusal { status, .. }) if status == StatusCode::CONFLICT && navigates => again,
        Err(WebRefusal { status, message }) => text(status, &message),
    }
}

fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    let accepts = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let mode = headers.get(HeaderName::from_static("sec-fetch-mode"));
    *method == Method::GET
        && mode.is_none_or(|mode| mode == "navigate")
        && accepts.is_some_and(|accept| accept.contains("text/html"))
}

/// Leads to the entry, where the sign-in and the rights are checked; a script's request is refused.
fn open_again<B>(
    cookie: Option<&OpeningCookie>,
    request: &axum::http::Request<B>,
    scheme: Scheme,
) -> Response {
    if let Some(cookie) = cookie.filter(|_| is_navigation(request.method(), request.headers())) {
        let path = request
            .uri()
            .path_and_query()
            .map_or("/", |path| path.as_str());
        let from = &cookie.from;
        let entry = cookie.port.entry_path();
        return redirect(&format!("{}://{from}{entry}{path}", scheme.word()));
    }
    text(
        StatusCode::UNAUTHORIZED,
        "this page of a pod is not open in this browser, or the sign-in behind it has ended; open it again from the job's \
         page in Muster, or with `muster open`",
    )
}

fn enter(
    proxy: &WebProxy,
    label: &str,
    uri: &Uri,
    cookie: Option<&OpeningCookie>,
    scheme: Scheme,
) -> Response {
    let parameter = |name: &str| {
        let pairs = uri.query().unwrap_or_default().split('&');
        let mut values = pairs.filter_map(|pair| pair.split_once('='));
        let (_, value) = values.find(|(key, _)| *key == name)?;
        let decoded = percent_decode_str(value).decode_utf8().ok()?;
        Some(decoded.into_owned())
    };
    let to = parameter("to").filter(|to| is_own_path(to));
    let to = to.unwrap_or_else(|| "/".to_owned());
    let ticket = parameter("ticket").unwrap_or_default();
    let entered = proxy
        .openings()
        .lock()
        .enter(&ticket, label, Instant::now());
    let cookie = match entered {
        Err(error) => return text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        Ok(Some((secret, opening))) => Some(OpeningCookie {
            secret,
            port: opening.port,
            from: opening.from,
        }),
        // The address of a ticket that was used, in a browser that used it.
        Ok(None) => {
            let open = cookie.is_some_and(|cookie| {
                let openings = proxy.openings().lock();
                openings
                    .find(&cookie.secret, label, Instant::now())
                    .is_some()
            });
            if !open {
                return text(
                    StatusCode::FORBIDDEN,
                    "this link to a page of a pod was used before, or is older than a minute; open the page again from \
                     the job's page in Muster, or with `muster open`",
                );
            }
            None
        }
    };
    // A page and no redirect: only so does the next request count as one of this host's own, and has the cookie.
    let head = format!(
        "<meta http-equiv=\"refresh\" content=\"0; url={}\">",
        escaped(&to)
    );
    let body = format!("<p><a href=\"{}\">Open the page</a></p>", escaped(&to));
    let mut answer = document(StatusCode::OK, "A page of a pod", &head, &body);
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(cookie) = cookie
        && let Ok(value) = HeaderValue::from_str(&cookie.header(scheme))
    {
        headers.insert(header::SET_COOKIE, value);
    }
    answer
}

/// True if a text is a path at the same host.
fn is_own_path(to: &str) -> bool {
    to.starts_with('/')
        && !to.starts_with("//")
        && !to.contains('\\')
        && !to.contains(char::is_control)
}

/// What a port's host keeps in a browser. The secret alone gives access; the rest says where the page can be opened
/// again once the server does not know the secret any more.
#[derive(Debug, PartialEq, Eq)]
struct OpeningCookie {
    secret: String,
    port: WebPort,
    /// The host, and the port if any, of Muster's own address.
    from: String,
}

impl OpeningCookie {
    fn read(value: &str) -> Option<OpeningCookie> {
        let parts: Vec<&str> = value.split('/').collect();
        let [secret, kind, namespace, name, port, from] = parts.as_slice() else {
            return None;
        };
        let name_like = |text: &&str| {
            let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
            !text.is_empty() && text.bytes().all(inside)
        };
        let fine = [secret, kind, namespace, name, port]
            .into_iter()
            .all(name_like)
            && from
                .parse::<Authority>()
                .is_ok_and(|from| !from.as_str().contains('@'));
        fine.then(|| OpeningCookie {
            secret: (*secret).to_owned(),
            port: WebPort {
                kind: (*kind).to_owned(),
                namespace: (*namespace).to_owned(),
                name: (*name).to_owned(),
                port: (*port).to_owned(),
            },
            from: (*from).to_owned(),
        })
    }

    fn header(&self, scheme: Scheme) -> String {
        let WebPort {
            kind,
            namespace,
            name,
            port,
        } = &self.port;
        let value = format!(
            "{}/{kind}/{namespace}/{name}/{port}/{}",
            self.secret, self.from
        );
        let (cookie, secure) = match scheme {
            Scheme::Https => (SECURE_COOKIE, "; Secure"),
            Scheme::Http => (PLAIN_COOKIE, ""),
        };
        let seconds = OPENING_LIFE.as_secs();
        format!("{cookie}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }
}

fn cookie(headers: &HeaderMap, scheme: Scheme) -> Option<&str> {
    let wanted = match scheme {
        Scheme::Https => SECURE_COOKIE,
        Scheme::Http => PLAIN_COOKIE,
    };
    let values = headers.get_all(header::COOKIE).into_iter();
    let pairs = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(name, value)| (name == wanted).then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie_of(from: &str) -> OpeningCookie {
        OpeningCookie {
            secret: "5ec".into(),
            port: WebPort {
                kind: "pods".into(),
                namespace: "team-a".into(),
                name: "p.1".into(),
                port: "80".into(),
            },
            from: from.into(),
        }
    }

    #[test]
    fn the_cookie_is_one_hosts_alone_and_out_of_reach_for_scripts() {
        for from in ["gpu1.example:8443", "127.0.0.1:8443", "[::1]:8443", "gpu1"] {
            let cookie = cookie_of(from);
            let header = cookie.header(Scheme::Https);
            assert!(header.starts_with("__Host-muster_proxy="), "{header}");
            for part in ["; Path=/;", "; HttpOnly", "; SameSite=Strict", "; Secure"] {
                assert!(header.contains(part), "{header}");
            }
            assert!(!header.to_ascii_lowercase().contains("domain"));
            let value = header.split_once('=').unwrap().1.split(';').next().unwrap();
            assert_eq!(OpeningCookie::read(value), Some(cookie));
        }
        let mut headers = HeaderMap::new();
        headers.insert("cookie", "a=b; muster_proxy=x".parse().unwrap());
        assert_eq!(cookie(&headers, Scheme::Http), Some("x"));
        // Another host of the domain could have set it.
        assert_eq!(cookie(&headers, Scheme::Https), None);
    }

    #[test]
    fn a_cookie_that_leads_elsewhere_is_none() {
        for wrong in [
            "",
            "s/pods/a/p/80",
            "s/pods/a/p/80/user@evil",
            "s/pods/a/../p/80/h",
            "s/po ds/a/p/80/h",
            "s/pods/a/p/80/",
            "s/pods/a/p/80/h/x",
        ] {
            assert_eq!(OpeningCookie::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_ticket_leads_to_the_same_host_only() {
        assert!(is_own_path("/x?y=//z"));
        for other in ["", "x", "//evil", "/\\evil", "https://evil", "/a\nb"] {
            assert!(!is_own_path(other), "{other}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_cookie_panics(value in "[ -~]{0,60}", to in "\\PC{0,30}") {
            let _ = OpeningCookie::read(&value);
            let mut headers = HeaderMap::new();
            headers.insert("cookie", value.parse().unwrap());
            cookie(&headers, Scheme::Https);
            is_own_path(&to);
            redirect(&to);
        }
    }
}
