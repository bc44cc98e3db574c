//! Owns HTTP to ports of pods: `pods/NAME:PORT/proxy/PATH` and `services/NAME:PORT/proxy/PATH`, as kube-apiserver
//! names them, and [`ApiServer::forward_web`] for pages that have an origin of their own. A request goes to the pod on
//! a connection through its node's agent, as a forwarded port does.
//!
//! The subresources share the API's origin, where a page of a pod must not run: they refuse browsers' sessions, and
//! their answers set no cookie and are sandboxed.

mod body;
mod exchange;
mod headers;
mod places;
mod stream;
mod target;

use axum::body::Body;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use resources::access::{BrowserSession, Caller, Credential, RequestAttributes};
use resources::admission::enter_work;
use resources::registry::Kind;
use serde_json::Value;

use crate::call::Call;
use crate::dispatch::Verb;
use crate::exec::ExecRequest;
use crate::object;
use crate::path;
use crate::server::ApiServer;
use crate::status::Failure;
use crate::watch_rights::Rights;

pub use exchange::ProxyLimits;
pub use headers::PublicOrigin;
pub(crate) use places::ProxyPlaces;
pub use target::WebPort;

use exchange::Exchange;
use target::{PortName, ProxyTarget};

/// The subresource.
pub(crate) const PROXY: &str = "proxy";

/// Why a port's page is refused: the HTTP status, and a text for its reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WebRefusal {
    /// The HTTP status.
    pub status: StatusCode,
    /// The problem and its remedy.
    pub message: String,
}

impl From<Failure> for WebRefusal {
    fn from(failure: Failure) -> WebRefusal {
        WebRefusal {
            status: failure.code(),
            message: failure.message().to_owned(),
        }
    }
}

/// A port that a page can be opened of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPort {
    /// The uid of the pod or Service; a later one of the same name has another.
    pub uid: String,
    /// The number of the pod's or Service's port.
    pub port: u16,
}

/// The caller of a proxied request, and what ends its right to go on.
struct ProxyCaller<'a> {
    caller: &'a Caller,
    credential: Option<Credential>,
}

/// True if a path is below `pods/NAME/proxy` or `services/NAME/proxy`.
pub fn is_proxied(path: &str) -> bool {
    let below = path::below_proxy(path).is_some();
    below
        && matches!(path::parse(path), path::RequestTarget::Resource(target)
            if target.subresource.as_deref() == Some(PROXY))
}

/// Answers a request below `pods/NAME/proxy` or `services/NAME/proxy`. The dispatcher has checked the right to its verb.
pub(crate) async fn subresource(
    call: &Call,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, Failure> {
    if parts.extensions.get::<BrowserSession>().is_some() {
        return Err(Failure::forbidden(
            call.kind,
            call.object_name(),
            "a browser's session cannot open a page of a pod at the API's own address, where the page could act as the \
             user; open /proxy/NAMESPACE/pods/NAME/PORT/ instead",
        ));
    }
    let path = path::below_proxy(parts.uri.path());
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Ok(with_slash(parts));
    };
    let (name, port) = PortName::of_object(call.object_name())?;
    let wanted = Wanted {
        kind: call.kind,
        namespace: call.namespace.clone().unwrap_or_default(),
        name: name.to_owned(),
        port,
        // Rights name the object as the path does.
        named: call.object_name().to_owned(),
    };
    let by = ProxyCaller {
        caller: &call.caller,
        credential: call.credential.clone(),
    };
    let prefix = parts.uri.path();
    let prefix = &prefix[..prefix.len() - path.len()];
    let path = match parts.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let (found, target) = call.server.proxy_target(&by, &wanted)?;
    let exchange = Exchange {
        server: &call.server,
        request: found,
        port: target.port,
        path,
        view: headers::View::Api { prefix },
        method: parts.method.clone(),
        headers: &parts.headers,
        upgrade: parts.extensions.get::<OnUpgrade>().cloned(),
        peer: headers::peer(&parts.extensions),
        user: call.caller.user.clone(),
        rights: call
            .server
            .rights_to_proxy(&by, &wanted, verb(&parts.method, false)),
    };
    let mut answer = exchange.carry_out(body).await?;
    sandbox(&mut answer);
    Ok(answer)
}

/// A page of a pod that a browser shows under the API's address runs no scripts and has an origin of its own.
fn sandbox(answer: &mut Response<Body>) {
    answer.headers_mut().insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'"),
    );
}

/// As kube-apiserver: relative links in the answer need the final slash.
fn with_slash(parts: &Parts) -> Response<Body> {
    let query = parts
        .uri
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let location = format!("/{}/{query}", parts.uri.path().trim_matches('/'));
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&location) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

/// The verb that a request needs: the method's own, and `create` for a WebSocket, which begins with GET but carries
/// commands, as an exec does.
fn verb(method: &Method, upgrades: bool) -> Verb {
    match *method {
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        Method::GET | Method::HEAD | Method::OPTIONS if !upgrades => Verb::Get,
        // Also methods of WebDAV and the like.
        _ => Verb::Create,
    }
}

/// The port of a pod or Service that a request is for.
struct Wanted {
    kind: &'static Kind,
    namespace: String,
    name: String,
    port: PortName,
    /// The object's name for authorisation.
    named: String,
}

impl Wanted {
    fn of(web: &WebPort) -> Result<Wanted, Failure> {
        Ok(Wanted {
            kind: target::kind(&web.kind)?,
            namespace: web.namespace.clone(),
            name: web.name.clone(),
            port: PortName::parse(&web.port)?,
            named: web.name.clone(),
        })
    }
}

impl ApiServer {
    /// The port that a page is to be opened of, if this caller may open it.
    ///
    /// # Errors
    /// The caller lacks the right `get` or `create` on `pods/proxy` or `services/proxy`, the pod runs for another user,
    /// or there is no such pod, Service or port.
    pub fn find_web_port(
        &self,
        caller: &Caller,
        wanted: &WebPort,
    ) -> Result<FoundPort, WebRefusal> {
        let wanted = Wanted::of(wanted)?;
        for verb in [Verb::Get, Verb::Create] {
            self.require_proxy(caller, &wanted, verb)?;
        }
        let by = ProxyCaller {
            caller,
            credential: None,
        };
        let (_, target) = self.proxy_target(&by, &wanted)?;
        Ok(FoundPort {
            uid: target.uid,
            port: target.asked,
        })
    }

    /// Carries out one request to a port that was opened before: the pod or Service must still have this uid. The
    /// rights are checked anew.
    ///
    /// # Errors
    /// As [`ApiServer::find_web_port`]; 409 if the uid is another one; 429, 502, 503 and 504 if the pod cannot be reached.
    pub async fn forward_web(
        &self,
        caller: &Caller,
        credential: Option<Credential>,
        wanted: &WebPort,
        uid: &str,
        origin: &PublicOrigin,
        request: Request<Body>,
    ) -> Result<Response<Body>, WebRefusal> {
        let wanted = Wanted::of(wanted)?;
        let (parts, body) = request.into_parts();
        let verb = verb(&parts.method, headers::asks_for_websocket(&parts.headers));
        self.require_proxy(caller, &wanted, verb)?;
        let by = ProxyCaller { caller, credential };
        let (found, target) = self.proxy_target(&by, &wanted)?;
        if target.uid != uid {
            return Err(WebRefusal {
                status: StatusCode::CONFLICT,
                message: format!(
                    "{} {:?} is not the one whose page was opened: it was replaced; open it again",
                    wanted.kind.singular, wanted.name
                ),
            });
        }
        let exchange = Exchange {
            server: self,
            request: found,
            port: target.port,
            path: parts
                .uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
            view: headers::View::Own(origin),
            method: parts.method.clone(),
            headers: &parts.headers,
            upgrade: parts.extensions.get::<OnUpgrade>().cloned(),
            peer: headers::peer(&parts.extensions),
            user: caller.user.clone(),
            rights: self.rights_to_proxy(&by, &wanted, verb),
        };
        Ok(exchange.carry_out(body).await?)
    }

    fn require_proxy(&self, caller: &Caller, wanted: &Wanted, verb: Verb) -> Result<(), Failure> {
        let attributes = RequestAttributes {
            verb: verb.word(),
            group: wanted.kind.group,
            resource: wanted.kind.plural,
            subresource: Some(PROXY),
            namespace: Some(&wanted.namespace),
            name: Some(&wanted.named),
        };
        self.require_selected(caller, &attributes, "")
    }

    fn rights_to_proxy(&self, by: &ProxyCaller<'_>, wanted: &Wanted, verb: Verb) -> Option<Rights> {
        Rights::to_proxy(
            self,
            by.caller,
            by.credential.clone(),
            wanted.kind,
            verb,
            (&wanted.namespace, &wanted.named),
        )
    }

    /// The pod and its port, and the way to its node.
    fn proxy_target(
        &self,
        by: &ProxyCaller<'_>,
        wanted: &Wanted,
    ) -> Result<(ExecRequest, ProxyTarget), Failure> {
        let target = target::find(self, wanted, |pod| self.may_enter_for_proxy(by.caller, pod))?;
        let request = target.request(&wanted.namespace)?;
        Ok((request, target))
    }

    /// The same rule as for commands in a pod: a page of a pod acts as the pod's user.
    fn may_enter_for_proxy(&self, caller: &Caller, pod: &Value) -> Result<(), Failure> {
        let impersonates = |user: &str| {
            let wanted = RequestAttributes {
                verb: "impersonate",
                resource: "users",
                name: Some(user),
                ..RequestAttributes::default()
            };
            self.permits(caller, &wanted)
        };
        enter_work(caller, impersonates, pod).map_err(|error| {
            Failure::forbidden(target::pods(), object::name(pod), &error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_websocket_needs_the_right_to_create() {
        assert_eq!(verb(&Method::GET, false), Verb::Get);
        assert_eq!(verb(&Method::GET, true), Verb::Create);
        assert_eq!(verb(&Method::OPTIONS, false), Verb::Get);
        assert_eq!(verb(&Method::POST, false), Verb::Create);
        assert_eq!(verb(&Method::DELETE, false), Verb::Delete);
    }
}
