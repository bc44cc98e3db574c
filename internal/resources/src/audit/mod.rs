//! The audit log's events (audit.k8s.io/v1) and the policy that selects the level of each request. Decides and formats;
//! `identity` writes the log.

mod event;
mod facts;
mod policy;

pub use event::{
    API_VERSION, AuditEvent, AuditStage, Impersonated, ObjectReference, Recorded, ResponseStatus,
    UserInfo,
};
pub use facts::{LONGEST_TEXT, RequestFacts, shortened};
pub use policy::{AuditLevel, AuditPolicy, AuditedRequest, PolicyError};
