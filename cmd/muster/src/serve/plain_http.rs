//! The hostnames that plain HTTP accepts. Plain HTTP serves only this machine's own browsers, but a foreign page can
//! make its own hostname resolve to a loopback address (DNS rebinding) and then read this server's responses as if
//! they were its own. Such a request has the page's hostname in `Host`, so that the hostname decides.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};

/// Marks a request that came over plain HTTP.
#[derive(Clone, Copy)]
struct PlainHttp;

/// The routes for a connection over plain HTTP.
pub fn marked(routes: Router) -> Router {
    Router::new()
        .fallback_service(routes)
        .layer(Extension(PlainHttp))
        .layer(Extension(proxy::Scheme::Http))
}

/// The names and addresses of this server, beside `localhost` and the loopback addresses.
#[derive(Clone)]
pub struct AllowedHosts(Arc<[String]>);

impl AllowedHosts {
    /// Stores names in the form in which they are compared.
    pub fn new(names: &[String], addresses: &[IpAddr]) -> AllowedHosts {
        let names = names.iter().map(|name| canonical(name));
        let addresses = addresses.iter().map(IpAddr::to_string);
        AllowedHosts(names.chain(addresses).collect())
    }

    fn has(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let host = canonical(authority.host());
        let address: Option<IpAddr> = host.parse().ok();
        host == "localhost"
            || address.is_some_and(|address| address.is_loopback())
            || self.0.contains(&host)
    }
}

/// In lower case, without a final dot, and an IPv6 address without its brackets.
fn canonical(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Middleware: refuses a request over plain HTTP for another host. A request without a host passes, because browsers
/// always send one.
pub async fn refuse_other_hosts(
    State(names): State<AllowedHosts>,
    request: Request,
    next: Next,
) -> Response {
    if request.extensions().get::<PlainHttp>().is_some()
        && let Some(host) = foreign_host(&names, &request)
    {
        return refused(&host);
    }
    next.run(request).await
}

/// The first host in a request that is not this server.
fn foreign_host(names: &AllowedHosts, request: &Request) -> Option<String> {
    let headers = request.headers().get_all(header::HOST).iter();
    let named = headers.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    let in_uri = request.uri().authority().map(Authority::to_string);
    in_uri
        .into_iter()
        .chain(named)
        .find(|host| !names.has(host))
}

fn refused(host: &str) -> Response {
    let shown: String = host.chars().take(255).collect();
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!(
            "Host: Invalid value: {shown:?}: plain HTTP answers to localhost and to this server's own names only; \
             use localhost, or https, or name the host with --advertise"
        ),
        "reason": "MisdirectedRequest", "code": 421,
    });
    (StatusCode::MISDIRECTED_REQUEST, axum::Json(status)).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::middleware;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    fn names() -> AllowedHosts {
        let ip = "192.0.2.7".parse().unwrap();
        AllowedHosts::new(&["GPU1.example.org".to_owned()], &[ip])
    }

    async fn asked(plain: bool, hosts: &[&str]) -> u16 {
        let routes = Router::new().route("/", get(async || "ok"));
        let routes = routes.layer(middleware::from_fn_with_state(names(), refuse_other_hosts));
        let routes = if plain { marked(routes) } else { routes };
        let mut request = Request::get("/");
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let request = request.body(Body::empty()).unwrap();
        routes.oneshot(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn plain_http_answers_to_this_machines_names_only() {
        let own = [
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:8080",
            "gpu1.example.org:80",
            "GPU1.example.org.",
            "192.0.2.7",
        ];
        for host in own {
            assert_eq!(asked(true, &[host]).await, 200, "{host}");
        }
        let foreign = [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "192.0.2.8",
            "[2001:db8::1]",
            "127.0.0.1.evil.example",
            "",
            "a b",
            "xlocalhost",
        ];
        for host in foreign {
            assert_eq!(asked(true, &[host]).await, 421, "{host}");
        }
        assert_eq!(asked(true, &["localhost", "evil.example"]).await, 421);
    }

    #[tokio::test]
    async fn a_request_without_a_host_or_over_tls_passes() {
        assert_eq!(asked(true, &[]).await, 200);
        assert_eq!(asked(false, &["anything.example"]).await, 200);
    }
}
