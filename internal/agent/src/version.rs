//! The version that the agent reports.

/// The agent version that the node reports.
pub const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"), "+muster");
