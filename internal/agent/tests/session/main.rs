//! The agent and the server's end of it together: the real resource API over a real store, the real
//! fleet behind real TLS on loopback, the real agent. Only the container runtime is a stand-in, so
//! that the tests control when containers end.

#![allow(clippy::unwrap_used, reason = "a test's surprise is its failure")]

mod bounds;
mod server;
mod spans;
mod stand_in;
mod walks;
