//! The addresses of ports at Muster's own origin: they check who opens a port and lead to its own host.

use std::time::Instant;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use resources::access::{Caller, Credential};
use resources::audit::Recorded;
use serde::Deserialize;
use serde_json::json;

use crate::answers::{document, escaped, redirect, text};
use crate::audit::record;
use crate::host::{self, ENTER};
use crate::http::WebPort;
use crate::openings::Opening;
use crate::refusal::WebRefusal;
use crate::sender::{self, Sender};
use crate::state::{Scheme, WebProxy};

/// Characters of a query's value that need no escape.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');
/// The segments of an entry's path before the pod's own path: `/proxy/NAMESPACE/KIND/NAME/PORT`.
const SEGMENTS: usize = 5;

/// The address of a port.
#[derive(Deserialize)]
pub struct Address {
    namespace: String,
    kind: String,
    name: String,
    port: String,
}

impl Address {
    fn port(self) -> WebPort {
        WebPort {
            kind: self.kind,
            namespace: self.namespace,
            name: self.name,
            port: self.port,
        }
    }
}

/// Answers `GET /proxy`: the domain of ports' hosts for this client, or null.
pub async fn information(State(proxy): State<WebProxy>, request: Request<Body>) -> Response {
    let host = host::authority(&request);
    let domain =
        host.and_then(|host| host::domain_for(proxy.domain(), host.host()).map(str::to_owned));
    axum::Json(json!({"domain": domain})).into_response()
}

/// Answers `GET /proxy/NAMESPACE/KIND/NAME/PORT`, also with a path below it.
pub async fn open(
    State(proxy): State<WebProxy>,
    Path(address): Path<Address>,
    request: Request<Body>,
) -> Response {
    opened(&proxy, address.port(), request).await
}

/// The pod's own path and query in an entry's address.
fn below(uri: &axum::http::Uri) -> String {
    let path = uri.path();
    let rest = path.match_indices('/').nth(SEGMENTS);
    let rest = rest.map_or("/", |(at, _)| &path[at..]);
    match uri.query() {
        Some(query) => format!("{rest}?{query}"),
        None => rest.to_owned(),
    }
}

fn value(text: &str) -> String {
    utf8_percent_encode(text, VALUE).to_string()
}

async fn opened(proxy: &WebProxy, port: WebPort, request: Request<Body>) -> Response {
    let (parts, _) = request.into_parts();
    let request = axum::http::Request::from_parts(parts, ());
    let Some(authority) = host::authority(&request) else {
        return text(
            StatusCode::BAD_REQUEST,
            "Host: the request must name one host",
        );
    };
    let sender = sender::of(request.method(), request.headers(), authority.as_str());
    if sender != Sender::Own {
        return confirmation(&port, request.uri());
    }
    let Some(caller) = request.extensions().get::<Caller>().cloned() else {
        let asked = request.uri().path_and_query();
        let asked = asked.map_or("/", |path| path.as_str());
        return redirect(&format!("/ui/sign-in?next={}", value(asked)));
    };
    let found = proxy.pods().find(&caller, &port);
    let found = match found {
        Ok(found) => found,
        Err(WebRefusal { status, message }) => {
            let mut answer = text(status, &message);
            if status == StatusCode::FORBIDDEN {
                record(proxy.pods().api(), &request, &port, status).await;
                answer.extensions_mut().insert(Recorded);
            }
            return answer;
        }
    };
    let Some(domain) = host::domain_for(proxy.domain(), authority.host()) else {
        let words = format!(
            "this server has no domain for pages of pods, which must not share its own address. Either run\n\n    muster \
             open {}/{} --port {} -n {}\n\non your machine, which opens the port there, or ask an administrator to start \
             the server with --proxy-domain",
            if port.kind == "pods" {
                "pod"
            } else {
                "service"
            },
            port.name,
            port.port,
            port.namespace
        );
        return text(StatusCode::NOT_IMPLEMENTED, &words);
    };
    let port = WebPort {
        port: found.port.to_string(),
        ..port
    };
    let label = host::label_of(&port, &found.uid);
    let credential = request.extensions().get::<Credential>().cloned();
    let opening = Opening {
        uid: found.uid,
        label: label.clone(),
        user: caller.user.clone(),
        credential: credential.unwrap_or_else(|| Credential::new(move || Some(caller.clone()))),
        from: authority.to_string(),
        port: port.clone(),
    };
    let ticket = proxy.openings().lock().ticket(opening, Instant::now());
    let ticket = match ticket {
        Ok(ticket) => ticket,
        Err(error) => return text(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    record(proxy.pods().api(), &request, &port, StatusCode::SEE_OTHER).await;
    let scheme = Scheme::of(request.extensions()).word();
    let number = authority
        .port_u16()
        .map_or(String::new(), |port| format!(":{port}"));
    let to = value(&below(request.uri()));
    let mut answer = redirect(&format!(
        "{scheme}://{label}.{domain}{number}{ENTER}?ticket={ticket}&to={to}"
    ));
    answer.extensions_mut().insert(Recorded);
    answer
}

/// Another origin's page may send a browser here, but only a click on Muster's own page opens the port: an address of the
/// pod may do something.
fn confirmation(port: &WebPort, uri: &axum::http::Uri) -> Response {
    let href = uri.path_and_query().map_or("/", |path| path.as_str());
    let body = format!(
        "<h1>Open a page of {what} {name}?</h1><p>A page outside of Muster leads to port {port} of {name} in namespace \
         {namespace}:</p><p><code>{shown}</code></p><p><a href=\"{href}\">Open it</a></p>",
        what = if port.kind == "pods" {
            "pod"
        } else {
            "Service"
        },
        name = escaped(&port.name),
        namespace = escaped(&port.namespace),
        port = escaped(&port.port),
        shown = escaped(&below(uri)),
        href = escaped(href),
    );
    let mut answer = document(StatusCode::OK, "Open a page of a pod", "", &body);
    answer
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_own_path_keeps_its_escapes_and_its_query() {
        let of = |text: &str| below(&text.parse().unwrap());
        assert_eq!(of("/proxy/a/pods/p/80"), "/");
        assert_eq!(of("/proxy/a/pods/p/80/"), "/");
        assert_eq!(of("/proxy/a/pods/p/80/x%2Fy//z?q=1&r"), "/x%2Fy//z?q=1&r");
        assert_eq!(of("/proxy/a/pods/p/80?q"), "/?q");
    }
}
