//! The portal's routes as they are written down: a router, and beside it the list of what the router answers, which
//! tests hold against who may ask what. A route can't be in one and not in the other. Owns no handler.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};

use crate::state::Portal;

/// Routes, and the list of them.
#[derive(Default)]
pub struct Routes {
    router: Router<Portal>,
    list: Vec<(Method, &'static str)>,
}

impl Routes {
    /// Answers GET.
    pub fn get<H, T>(self, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Portal>,
        T: 'static,
    {
        self.on(Method::GET, MethodFilter::GET, path, handler)
    }

    /// Answers POST.
    pub fn post<H, T>(self, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Portal>,
        T: 'static,
    {
        self.on(Method::POST, MethodFilter::POST, path, handler)
    }

    /// Answers DELETE.
    pub fn delete<H, T>(self, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Portal>,
        T: 'static,
    {
        self.on(Method::DELETE, MethodFilter::DELETE, path, handler)
    }

    fn on<H, T>(
        mut self,
        method: Method,
        filter: MethodFilter,
        path: &'static str,
        handler: H,
    ) -> Self
    where
        H: Handler<T, Portal>,
        T: 'static,
    {
        self.router = self.router.route(path, on(filter, handler));
        self.list.push((method, path));
        self
    }

    /// The router.
    pub fn into_router(self) -> Router<Portal> {
        self.router
    }

    /// The methods and paths that the router answers.
    pub fn into_list(self) -> Vec<(Method, &'static str)> {
        self.list
    }
}
