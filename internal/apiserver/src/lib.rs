//! The embedded resource API: Kubernetes' REST conventions over Muster's store, served by an axum router and by
//! an in-process `kube::Client`.
//!
//! `resources::registry` drives it completely: a kind registered there is served with every verb,
//! validated, printed as a table, discovered and explained, without code here. This crate must not
//! depend on the purpose of a kind, beyond the few subresources that Kubernetes gives to pods,
//! namespaces and service accounts.

mod admission;
mod aggregation;
mod audit;
mod authority;
mod authorization;
mod binding;
mod bootstrap;
mod bounded;
mod call;
mod client;
mod core_kinds;
mod create;
mod decode;
mod delete;
mod delete_collection;
mod delete_options;
mod discovery;
mod dispatch;
#[cfg(test)]
#[path = "../../resources/testing/documents.rs"]
mod documents;
mod escalation;
mod eviction;
mod exec;
mod exec_opener;
mod exec_places;
mod fields;
mod finalize;
#[cfg(test)]
#[path = "../../resources/testing/headers.rs"]
mod headers;
mod impersonation;
mod initial_list;
pub mod limits;
mod list;
mod log_opener;
mod logs;
mod namespace;
mod namespace_room;
mod negotiate;
mod network_policies;
mod node_authorizer;
mod node_restriction;
mod object;
mod openapi;
mod patch;
mod path;
mod pod_proxy;
mod pod_security;
mod prepare;
mod priority_classes;
mod protobuf;
mod quota;
mod read;
mod refusal;
mod request;
mod reserved;
mod respond;
mod review;
mod rewrite;
mod router;
mod scale;
mod select;
mod server;
mod service_account;
mod services;
#[cfg(test)]
#[path = "../testing/start.rs"]
mod start;
mod status;
mod stored;
mod table;
mod token_key;
mod training_progress;
mod update;
mod usage_metrics;
mod usage_source;
mod users;
mod verb;
mod versions;
mod watch;
mod watch_frames;
mod watch_places;
mod watch_rights;
mod work_threads;
mod yaml;

pub use audit::{AuditAnnotations, Auditor};
pub use decode::ManifestsError;
pub use exec_opener::{
    ExecAction, ExecError, ExecEvent, ExecInput, ExecOpener, ExecRequest, ExecStreams,
};
pub use impersonation::{authenticate, impersonate};
pub use log_opener::{LogError, LogOpener, LogRequest};
pub use pod_proxy::{PROXY, PodProxy, ProxiedRequest, is_proxied};
pub use router::paths;
pub use server::{ApiConfig, ApiError, ApiServer};
pub use status::too_many_requests;
pub use usage_source::{MeasuredUsage, UsageOf, UsageSource};
pub use users::Users;
