//! Random requests to the resource API, in process: bodies in every format, patches and applies,
//! every field of every kind at its boundary values, parameters, paths and headers. No response is
//! an internal error, each is well formed, and stored objects can be read and written back.

#![expect(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

mod bodies;
mod ends;
#[path = "../../../resources/testing/fields.rs"]
mod fields;
mod ground;
mod patches;
mod requests;
mod roles;
#[path = "../../testing/start.rs"]
mod start;
mod texts;

use apiserver::{ApiConfig, ApiServer};
