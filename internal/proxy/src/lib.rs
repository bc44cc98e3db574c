//! Web pages inside jobs, in a browser that is signed in: each opened port of a pod or Service has a host name of its
//! own, and so an origin of its own. A page of a pod is another user's code. As a page of Muster's own origin it could act
//! as its viewer; as a page of an origin that it shares with other pods it could act on their pages.
//!
//! - [`PodHttp`] speaks HTTP with programs in pods, for the API's subresources `proxy` too, which work by token alone.
//! - `/proxy/NAMESPACE/pods/NAME/PORT/PATH` at Muster's own address ([`entry`]) checks the sign-in and the rights, makes a
//!   ticket that works once ([`openings`]), and leads to the port's own host ([`host`]).
//! - The port's own host ([`pages`]) takes the ticket for a cookie of that host alone, and passes requests with the
//!   cookie to the pod. Each request is checked: the sign-in behind the cookie still lasts, the user has the right, the
//!   pod is the same, and no page of another origin sends it ([`sender`]).
//!
//! The host names are below a domain whose names all lead to the server (`--proxy-domain`); without one, browsers on the
//! server's own machine use `localhost`, below which they resolve every name to the machine itself.

mod answers;
mod audit;
mod entry;
mod host;
mod http;
mod openings;
mod pages;
mod refusal;
mod rights;
mod sender;
mod state;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;

pub use host::{DomainError, ProxyDomain};
pub use http::{FoundPort, PodHttp, ProxyTimes, PublicOrigin, WebPort};
pub use refusal::WebRefusal;
pub use state::{Scheme, WebProxy};

/// The paths of the routes at Muster's own address, which answer GET.
pub const PATHS: [&str; 4] = [
    "/proxy",
    "/proxy/{namespace}/{kind}/{name}/{port}",
    "/proxy/{namespace}/{kind}/{name}/{port}/",
    "/proxy/{namespace}/{kind}/{name}/{port}/{*path}",
];

impl WebProxy {
    /// The routes at Muster's own address.
    pub fn routes(&self) -> Router {
        let [information, top, with_slash, below] = PATHS;
        Router::new()
            .route(information, get(entry::information))
            .route(top, get(entry::open))
            .route(with_slash, get(entry::open))
            .route(below, get(entry::open))
            .with_state(self.clone())
    }

    /// True if the request is for a port's own host.
    pub fn owns<B>(&self, request: &axum::http::Request<B>) -> bool {
        host::label(request, self.domain()).is_some()
    }

    /// Answers a request for a port's own host.
    pub async fn answer(&self, request: Request<Body>) -> Response {
        pages::answer(self, request).await
    }
}
