//! HTTP to ports of pods: [`PodHttp`] finds the pod and the port, checks the rights, and carries requests out on
//! connections through the pods' nodes, as forwarded ports. It serves two views of a port: pages with an origin of
//! their own ([`PodHttp::forward`]), and `pods/NAME:PORT/proxy/PATH` and `services/NAME:PORT/proxy/PATH` of the API
//! ([`PodHttp::handler`]).
//!
//! The API's origin is Muster's own, where a page of a pod must not run: these subresources refuse browsers' sessions,
//! and their answers set no cookie and are sandboxed.

mod body;
mod exchange;
mod headers;
mod places;
mod stream;
mod target;

use std::sync::Arc;
use std::time::Duration;

use apiserver::{ApiServer, ExecOpener, PodProxy, ProxiedRequest};
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use resources::access::{BrowserSession, Caller, Credential, RequestAttributes};
use resources::admission::enter_work;
use serde_json::Value;

use crate::refusal::WebRefusal;
use crate::rights::{Wanted, verb};

pub use headers::PublicOrigin;
pub use target::WebPort;

use exchange::{ANSWER, Exchange, SILENCE};
use headers::View;
use places::ProxyPlaces;
use target::{PortName, ProxyTarget};

/// How often the right to a stream is checked again, as that to a watch.
const RECHECK: Duration = Duration::from_secs(10);

/// The times of requests to pods.
#[derive(Clone, Copy, Debug)]
pub struct ProxyTimes {
    /// How long a pod may take until it begins its answer.
    pub answer: Duration,
    /// How long its answer, or a WebSocket in both directions, may be silent.
    pub silence: Duration,
    /// How often the right to a stream is checked again.
    pub recheck: Duration,
}

impl Default for ProxyTimes {
    fn default() -> ProxyTimes {
        ProxyTimes {
            answer: ANSWER,
            silence: SILENCE,
            recheck: RECHECK,
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

/// HTTP to ports of pods. Clones share one state.
#[derive(Clone)]
pub struct PodHttp(Arc<Inner>);

struct Inner {
    api: ApiServer,
    opener: ExecOpener,
    times: ProxyTimes,
    places: ProxyPlaces,
}

impl PodHttp {
    /// `opener` reaches the nodes.
    pub fn new(api: ApiServer, opener: ExecOpener, times: ProxyTimes) -> PodHttp {
        PodHttp(Arc::new(Inner {
            api,
            opener,
            times,
            places: ProxyPlaces::default(),
        }))
    }

    /// The resource API.
    pub fn api(&self) -> &ApiServer {
        &self.0.api
    }

    /// The port that a page is to be opened of, if this caller may open it.
    ///
    /// # Errors
    /// The caller lacks the right `get` or `create` on `pods/proxy` or `services/proxy`, the pod runs for another user,
    /// or there is no such pod, Service or port.
    pub fn find(&self, caller: &Caller, port: &WebPort) -> Result<FoundPort, WebRefusal> {
        let name = PortName::parse(&port.port)?;
        for verb in ["get", "create"] {
            wanted(port, verb)?.require(&self.0.api, caller)?;
        }
        let target = self.target(caller, &wanted(port, "get")?, &port.name, &name)?;
        // An address of a pod that does not run is not opened.
        target.request(&port.namespace)?;
        Ok(FoundPort {
            port: target.asked,
            uid: target.uid,
        })
    }

    /// Carries out one request to a port that was opened before: the pod or Service must still have this uid. The
    /// rights are checked anew.
    ///
    /// # Errors
    /// As [`PodHttp::find`]; 409 if the uid is another one; 429, 502, 503 and 504 if the pod cannot be reached.
    pub async fn forward(
        &self,
        caller: &Caller,
        credential: Option<Credential>,
        (port, uid): (&WebPort, &str),
        origin: &PublicOrigin,
        request: Request<Body>,
    ) -> Result<Response<Body>, WebRefusal> {
        let (parts, body) = request.into_parts();
        let upgrades = headers::asks_for_websocket(&parts.headers);
        let wanted = wanted(port, verb(&parts.method, upgrades))?;
        wanted.require(&self.0.api, caller)?;
        let name = PortName::parse(&port.port)?;
        let target = self.target(caller, &wanted, &port.name, &name)?;
        if target.uid != uid {
            return Err(WebRefusal::replaced(format!(
                "{} {:?} is not the one whose page was opened: it was replaced; open it again",
                wanted.kind.singular, port.name
            )));
        }
        let path = parts.uri.path_and_query();
        let path = path.map_or("/", |path| path.as_str()).to_owned();
        let view = View::Own(origin);
        self.exchange(
            &target,
            wanted,
            caller,
            credential,
            (&parts, path, view),
            body,
        )
        .await
    }

    /// What carries out the API's requests below `pods/NAME/proxy` and `services/NAME/proxy`.
    pub fn handler(&self) -> PodProxy {
        let pods = self.clone();
        Arc::new(move |request| {
            let pods = pods.clone();
            Box::pin(async move {
                let answer = pods.subresource(request).await;
                answer.unwrap_or_else(WebRefusal::into_status)
            })
        })
    }

    async fn subresource(&self, request: ProxiedRequest) -> Result<Response<Body>, WebRefusal> {
        let ProxiedRequest {
            parts,
            body,
            kind,
            namespace,
            object,
            below,
            caller,
            credential,
        } = request;
        if parts.extensions.get::<BrowserSession>().is_some() {
            return Err(WebRefusal::forbidden(
                "a browser's session cannot open a page of a pod at the API's own address, where the page could act as \
                 the user; open /proxy/NAMESPACE/pods/NAME/PORT/ instead",
            ));
        }
        if below.is_empty() {
            return Ok(with_slash(&parts));
        }
        let (name, port) = PortName::of_object(&object)?;
        let upgrades = headers::asks_for_websocket(&parts.headers);
        let wanted = Wanted {
            kind,
            namespace,
            // Rights name the object as the path does.
            name: object.clone(),
            verb: verb(&parts.method, upgrades),
        };
        // The API has checked the right to the method's verb, which for a WebSocket is not enough.
        wanted.require(&self.0.api, &caller)?;
        let target = self.target(&caller, &wanted, name, &port)?;
        let prefix = parts.uri.path().strip_suffix(&below).unwrap_or_default();
        let view = View::Api { prefix };
        let path = match parts.uri.query() {
            Some(query) => format!("{below}?{query}"),
            None => below.clone(),
        };
        let asked = (&parts, path, view);
        let exchange = self.exchange(&target, wanted, &caller, credential, asked, body);
        let mut answer = exchange.await?;
        sandbox(&mut answer);
        Ok(answer)
    }

    async fn exchange(
        &self,
        target: &ProxyTarget,
        wanted: Wanted,
        caller: &Caller,
        credential: Option<Credential>,
        (parts, path, view): (&Parts, String, View<'_>),
        body: Body,
    ) -> Result<Response<Body>, WebRefusal> {
        let request = target.request(&wanted.namespace)?;
        let Inner {
            api,
            opener,
            times,
            places,
        } = &*self.0;
        let place = places.take(&caller.user).await?;
        let right_lost = wanted.lost(api.clone(), caller.clone(), credential, times.recheck);
        let exchange = Exchange {
            request,
            port: target.port,
            path,
            view,
            method: parts.method.clone(),
            headers: &parts.headers,
            upgrade: parts.extensions.get::<OnUpgrade>().cloned(),
            peer: headers::peer(&parts.extensions),
            times: *times,
        };
        exchange
            .carry_out(body, opener, place, Box::pin(right_lost))
            .await
    }

    /// The pod and its port.
    fn target(
        &self,
        caller: &Caller,
        wanted: &Wanted,
        name: &str,
        port: &PortName,
    ) -> Result<ProxyTarget, WebRefusal> {
        target::find(&self.0.api, wanted, name, port, |pod| {
            self.may_enter(caller, pod)
        })
    }

    /// The same rule as for commands in a pod: a page of a pod acts as the pod's user.
    fn may_enter(&self, caller: &Caller, pod: &Value) -> Result<(), WebRefusal> {
        let impersonates = |user: &str| {
            let wanted = RequestAttributes {
                verb: "impersonate",
                resource: "users",
                name: Some(user),
                ..RequestAttributes::default()
            };
            self.0.api.permits(caller, &wanted)
        };
        enter_work(caller, impersonates, pod)
            .map_err(|error| WebRefusal::forbidden(error.to_string()))
    }
}

fn wanted(port: &WebPort, verb: &'static str) -> Result<Wanted, WebRefusal> {
    Ok(Wanted {
        kind: target::kind(&port.kind)?,
        namespace: port.namespace.clone(),
        name: port.name.clone(),
        verb,
    })
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
    let query = parts.uri.query();
    let query = query.map_or(String::new(), |query| format!("?{query}"));
    let location = format!("/{}/{query}", parts.uri.path().trim_matches('/'));
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&location) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}
