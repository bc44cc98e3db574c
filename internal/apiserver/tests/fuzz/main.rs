//! Whatever is sent to the resource API, in process: bodies in every format, patches and applies, every field of every
//! kind at its ends, parameters, paths and headers. No answer is a fault of the server's own, each is well formed,
//! and what was stored can be read and written back.

#![expect(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

mod bodies;
mod ends;
#[path = "../../../resources/testing/fields.rs"]
mod fields;
mod ground;
mod patches;
mod requests;
mod texts;
