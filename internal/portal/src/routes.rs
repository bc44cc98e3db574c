//! The portal's routes: a router together with the list of its methods and paths, which tests
//! compare with the access rules. A route cannot be in only one of the two. Owns no handler.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};

use crate::state::Portal;

/// The routes and their list.
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

    /// Answers POST with a body of at most this many bytes.
    pub fn post_small<H, T>(self, path: &'static str, bytes: usize, handler: H) -> Self
    where
        H: Handler<T, Portal>,
        T: 'static,
    {
        let bounded = handler.layer(DefaultBodyLimit::max(bytes));
        self.on(Method::POST, MethodFilter::POST, path, bounded)
    }

    /// Answers PATCH.
    pub fn patch<H, T>(self, path: &'static str, handler: H) -> Self
    where
        H: Handler<T, Portal>,
        T: 'static,
    {
        self.on(Method::PATCH, MethodFilter::PATCH, path, handler)
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
