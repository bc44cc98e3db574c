//! The resources that everything in Muster speaks: their types, names, defaults, validation, printing and the
//! arithmetic of quantities. Pure: no clock, no randomness, no I/O, no async; what is the time is a parameter.
//!
//! Objects as users wrote them are `serde_json::Value`: the API keeps what it was given, and the functions of
//! [`registry`] read and change such values without ever panicking on their shape. Typed views (`k8s_openapi`'s
//! types and [`kinds`]) are for those who decide about objects that were accepted.

pub mod access;
pub mod admission;
pub mod alerts;
pub mod amounts;
pub mod audit;
pub mod budget;
pub mod crds;
pub mod devices;
pub mod field;
mod json;
pub mod kept;
pub mod kinds;
pub mod load;
pub mod mapping;
pub mod mig;
pub mod names;
pub mod node_event;
pub mod numbers;
pub mod parts;
pub mod quantity;
pub mod rbac;
pub mod record;
pub mod registry;
pub mod report;
pub mod selector;
pub mod span;
pub mod splitmix;
pub mod standing;
pub mod syntax;
pub mod tidying;
pub mod times;
pub mod trouble;
