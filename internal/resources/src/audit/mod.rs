//! The audit log's events (audit.k8s.io/v1) and the policy that selects the level of each request. Decides and formats;
//! `identity` writes the log.

mod event;
mod facts;
mod policy;

pub use event::{
    API_VERSION, Event, Impersonated, ObjectReference, Recorded, ResponseStatus, Stage, UserInfo,
};
pub use facts::{Facts, LONGEST_TEXT, shortened};
pub use policy::{Level, Policy, PolicyError, Request};
