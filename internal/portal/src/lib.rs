//! The platform's faces: REST under `/api/v1` for what is not a resource, and the web UI.
//!
//! Both read and write through the resource API in the caller's own name, so what a
//! person may see or do is decided there and only there.

mod board;
mod problem;
mod rest;
mod routes;
mod state;
mod views;

pub use board::Board;
pub use problem::Problem;
pub use state::{
    AskProblem, BackupFailed, BackupRequest, Hooks, JoinToken, ListedJoinToken, LogProblem,
    LogQuery, LogStream, NewJoinToken, Portal, Previewed, UnreadableManifests,
};

fn all() -> routes::Routes {
    views::routes(rest::routes(routes::Routes::default()))
}

/// Every route of the platform's REST API and of the web UI.
pub fn router(portal: Portal) -> axum::Router {
    all().into_router().with_state(portal)
}

/// The methods and paths that [`router`] answers. A path's parameters stand in braces.
pub fn routes() -> Vec<(axum::http::Method, &'static str)> {
    all().into_list()
}
