//! The platform's faces: REST under `/api/v1` for what is not a resource, and the web UI.
//!
//! Both read and write through the resource API in the caller's own name, so what a
//! person may see or do is decided there and only there.

mod board;
mod problem;
mod rest;
mod state;
mod views;

pub use board::Board;
pub use problem::Problem;
pub use state::{AskProblem, Hooks, JoinToken, LogProblem, LogQuery, LogStream, Portal, Previewed};

/// Every route of the platform's REST API and of the web UI.
pub fn router(portal: Portal) -> axum::Router {
    rest::routes().merge(views::routes()).with_state(portal)
}
