//! The user interfaces: REST under `/api/v1` for data that is not a resource, and the web UI.
//!
//! Both read and write through the resource API as the caller, which alone decides on the caller's
//! permissions.

mod board;
#[cfg(test)]
#[path = "../../resources/testing/documents.rs"]
mod documents;
mod failure;
mod job_state;
mod log_tail;
mod log_text;
mod oidc_sign_in;
mod other_kinds;
mod people;
mod problem;
mod ray_service;
mod rest;
mod routes;
mod state;
mod timeline;
mod verdict;
mod views;
mod waiting;

pub use board::{Board, ClusterCounts, GpuHolder, NodeGpus, WatchedJob};
pub use oidc_sign_in::OidcSignIn;
pub use problem::Problem;
pub use rest::explain::api_of;
pub use state::{
    Backends, BackupFailed, BackupRequest, CreatedJoinToken, JudgedIdleJobs, ListedJoinToken,
    LogProblem, LogQuery, LogStream, MeasurementsUnread, NewJoinToken, NodeRequestProblem, Portal,
    Previewed, RolloutRequest, SharedAlerts, SharedIdleJobs, SharedUsage, UnreadableManifests,
    UpgradeBackend, UpgradeRefusal,
};

fn all() -> routes::Routes {
    views::routes(rest::routes(routes::Routes::default()))
}

/// Every route of the platform's REST API and of the web UI.
pub fn router(portal: Portal) -> axum::Router {
    all().into_router().with_state(portal)
}

/// The methods and paths that [`router`] answers. Path parameters are in braces.
pub fn routes() -> Vec<(axum::http::Method, &'static str)> {
    all().into_list()
}
