//! The gate in front of every request: authenticates the caller and stores it in the request's
//! extensions. It refuses wrong credentials; a request without credentials continues without a
//! caller, and the router behind decides whether it is permitted.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use resources::access::{BrowserSession, Caller, Credential, bearer_token};

use crate::audit::CallerSlot;
use crate::bearer::BearerRefusal;
use crate::identities::Identity;

/// The cookie that carries a browser's session.
pub const SESSION_COOKIE: &str = "muster_session";
/// The same over TLS: browsers take a cookie with this prefix from the server's own host alone (RFC 6265bis, section
/// 4.1.3.2), so that no host beside it, such as a pod's, can replace it.
pub const SECURE_SESSION_COOKIE: &str = "__Host-muster_session";

/// Middleware for `axum::middleware::from_fn_with_state(identity, require_caller)`.
///
/// A [`Caller`] that the listener has already set from a client certificate stays. A bearer token
/// takes precedence over a cookie. A request with only a cookie may change state, or open a WebSocket, only if the
/// browser reports that it comes from the server's own pages; a request that the browser reports to come from a script,
/// a frame or an image of another origin is refused altogether. Origins of pods may be of the same site, for which
/// `SameSite` keeps no cookie back.
pub async fn require_caller(
    State(identity): State<Identity>,
    mut request: Request,
    next: Next,
) -> Response {
    let slot = request.extensions().get::<CallerSlot>().cloned();
    if let Some(caller) = request.extensions().get::<Caller>() {
        if let Some(slot) = &slot {
            slot.fill(caller);
        }
        return next.run(request).await;
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let from = peer.map(|peer| peer.0.ip().to_canonical());
    if let Some(secret) = bearer(request.headers()) {
        let (caller, info) = match identity.authenticate(secret, from) {
            Ok(known) => known,
            Err(refusal) => return refused(&refusal, slot.as_ref()),
        };
        let credential = credential(&identity, secret, from);
        if let Some(slot) = &slot {
            slot.fill(&caller);
        }
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(info);
        request.extensions_mut().insert(credential);
    } else if let Some(secret) = cookie(request.headers())
        && let Ok((caller, info)) = identity.authenticate(secret, from)
    {
        let headers = request.headers();
        let changes = is_write(request.method()) || headers.contains_key(header::UPGRADE);
        if (changes && !same_origin(headers, request.uri())) || is_foreign_script(headers) {
            return refuse(
                StatusCode::FORBIDDEN,
                "Forbidden",
                "a request that changes something, or comes from a script, and carries a session cookie must come from \
                 Muster's own pages",
            );
        }
        let credential = credential(&identity, secret, from);
        if let Some(slot) = &slot {
            slot.fill(&caller);
        }
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(info);
        request.extensions_mut().insert(credential);
        request.extensions_mut().insert(BrowserSession);
    }
    next.run(request).await
}

/// The credential with this secret, to be checked while a request from this address lasts.
fn credential(identity: &Identity, secret: &str, from: Option<IpAddr>) -> Credential {
    let (identity, secret) = (identity.clone(), secret.to_owned());
    Credential::new(move || {
        let known = identity.verify(&secret, from, Timestamp::now());
        known.ok().map(|(caller, _)| caller)
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    bearer_token(headers.get(header::AUTHORIZATION)?.to_str().ok()?)
}

/// The session's secret in the cookies. The cookie that only this server can set takes precedence.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<&str> {
    cookie_named(headers, SECURE_SESSION_COOKIE).or_else(|| cookie_named(headers, SESSION_COOKIE))
}

/// The value of the first cookie of this name.
pub fn cookie_named<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(name, value)| (name == wanted).then_some(value))
}

/// True if the browser reports that a page of another origin sends the request other than by a link that the user
/// follows.
fn is_foreign_script(headers: &HeaderMap) -> bool {
    let word = |name| {
        let value = headers.get(header::HeaderName::from_static(name))?;
        value.to_str().ok()
    };
    let foreign =
        word("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none");
    let link = word("sec-fetch-mode") == Some("navigate")
        && word("sec-fetch-dest").is_none_or(|target| target == "document");
    foreign && !link
}

fn is_write(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// True if `Origin`, which browsers send with every mutating request, is the requested host. HTTP/2
/// has the host in the URI instead of `Host`.
fn same_origin(headers: &HeaderMap, uri: &Uri) -> bool {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let host = text(header::HOST).or_else(|| uri.authority().map(|host| host.as_str()));
    match (text(header::ORIGIN), host) {
        (Some(origin), Some(host)) => origin
            .split_once("://")
            .is_some_and(|(_, from)| from.eq_ignore_ascii_case(host)),
        (None, _) => text(header::HeaderName::from_static("sec-fetch-site")) == Some("same-origin"),
        (Some(_), None) => false,
    }
}

/// True if the browser reports that another site's page sends the request. A sign-in by such a
/// request would continue under a name that the other site chose.
pub fn is_cross_site(headers: &HeaderMap, uri: &Uri) -> bool {
    let site = headers.get(header::HeaderName::from_static("sec-fetch-site"));
    let says = headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != "none");
    says && !same_origin(headers, uri)
}

/// The answer to a bearer token that is refused. The audit log names the user whose token is used from elsewhere.
fn refused(refusal: &BearerRefusal, slot: Option<&CallerSlot>) -> Response {
    let message = refusal.to_string();
    match refusal {
        BearerRefusal::Mistyped | BearerRefusal::Unknown => {
            refuse(StatusCode::UNAUTHORIZED, "Unauthorized", &message)
        }
        BearerRefusal::Elsewhere { caller, .. } => {
            if let Some(slot) = slot {
                slot.fill(caller);
            }
            refuse(StatusCode::FORBIDDEN, "Forbidden", &message)
        }
    }
}

fn refuse(code: StatusCode, reason: &str, message: &str) -> Response {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16(),
    });
    (code, axum::Json(status)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::headers;

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let h = headers(&[
            ("cookie", "theme=dark; muster_session=abc"),
            ("cookie", "x=y"),
        ]);
        assert_eq!(cookie(&h), Some("abc"));
        assert_eq!(cookie(&headers(&[("cookie", "muster_sessions=abc")])), None);
    }

    #[test]
    fn the_cookie_that_no_other_host_can_set_takes_precedence() {
        let h = headers(&[(
            "cookie",
            "muster_session=tossed; __Host-muster_session=own; muster_session=other",
        )]);
        assert_eq!(cookie(&h), Some("own"));
    }

    #[test]
    fn scripts_frames_and_images_of_other_origins_are_known() {
        let of = |site, mode, target| {
            is_foreign_script(&headers(&[
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", target),
            ]))
        };
        assert!(of("same-site", "cors", "empty"));
        assert!(of("cross-site", "no-cors", "image"));
        assert!(of("same-site", "navigate", "iframe"));
        assert!(!of("same-site", "navigate", "document"));
        assert!(!of("same-origin", "cors", "empty"));
        assert!(!of("none", "navigate", "document"));
        assert!(!is_foreign_script(&headers(&[("cookie", "a=b")])));
    }

    #[test]
    fn only_our_own_pages_are_of_the_same_origin() {
        let path: Uri = "/ui/sign-out".parse().unwrap();
        let own = [("host", "gpu1:8443"), ("origin", "https://gpu1:8443")];
        assert!(same_origin(&headers(&own), &path));
        let other = [("host", "gpu1:8443"), ("origin", "https://evil.example")];
        assert!(!same_origin(&headers(&other), &path));
        assert!(!same_origin(&headers(&[("host", "gpu1:8443")]), &path));
        let null = [("host", "gpu1:8443"), ("origin", "null")];
        assert!(!same_origin(&headers(&null), &path));
        // HTTP/2 names the host in the URI.
        let whole: Uri = "https://gpu1:8443/ui/sign-out".parse().unwrap();
        assert!(same_origin(&headers(&own[1..]), &whole));
        assert!(!same_origin(&headers(&other[1..]), &whole));
    }

    #[test]
    fn another_sites_page_cannot_sign_in_a_user() {
        let path: Uri = "/ui/sign-in".parse().unwrap();
        let host = ("host", "gpu1:8443");
        for own in [
            vec![host],
            vec![host, ("origin", "https://gpu1:8443")],
            vec![host, ("sec-fetch-site", "same-origin")],
            vec![host, ("sec-fetch-site", "none")],
        ] {
            assert!(!is_cross_site(&headers(&own), &path), "{own:?}");
        }
        for other in [
            vec![host, ("origin", "https://evil.example")],
            vec![host, ("origin", "null")],
            vec![host, ("sec-fetch-site", "cross-site")],
        ] {
            assert!(is_cross_site(&headers(&other), &path), "{other:?}");
        }
    }
}
