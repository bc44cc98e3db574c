//! What the entry and the ports' hosts share.

use std::sync::Arc;

use axum::http::Extensions;
use parking_lot::Mutex;

use crate::host::ProxyDomain;
use crate::http::PodHttp;
use crate::openings::Openings;

/// How a request reached the server; the listener's wiring sets it in the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS, on this machine alone.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// The scheme of an address.
    pub fn word(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// That of a request.
    pub fn of(extensions: &Extensions) -> Scheme {
        extensions.get().copied().unwrap_or(Scheme::Https)
    }
}

/// The pages of ports. Clones share one state.
#[derive(Clone)]
pub struct WebProxy(Arc<Inner>);

struct Inner {
    pods: PodHttp,
    domain: Option<ProxyDomain>,
    openings: Mutex<Openings>,
}

impl WebProxy {
    /// Without a domain, only browsers on the server's own machine can open pages.
    pub fn new(pods: PodHttp, domain: Option<ProxyDomain>) -> WebProxy {
        WebProxy(Arc::new(Inner {
            pods,
            domain,
            openings: Mutex::default(),
        }))
    }

    /// What reaches the pods.
    pub fn pods(&self) -> &PodHttp {
        &self.0.pods
    }

    /// The domain of the ports' hosts.
    pub fn domain(&self) -> Option<&ProxyDomain> {
        self.0.domain.as_ref()
    }

    /// What is open.
    pub fn openings(&self) -> &Mutex<Openings> {
        &self.0.openings
    }
}
