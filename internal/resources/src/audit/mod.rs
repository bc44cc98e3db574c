//! The audit log's words: events (audit.k8s.io/v1) and the policy that says which requests are recorded and how
//! much of each. Decides and describes; writing the log is `identity`'s.

mod event;
mod facts;
mod policy;

pub use event::{
    API_VERSION, Event, Impersonated, ObjectReference, Recorded, ResponseStatus, Stage, UserInfo,
};
pub use facts::{Facts, LONGEST_TEXT, shortened};
pub use policy::{Level, Policy, PolicyError, Request};
