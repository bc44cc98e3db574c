//! The resource API from its clients' view, in process: one file for each verb or topic.

#![expect(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

mod harness;

mod access;
mod admission;
mod applying;
mod audit;
mod binding;
mod bounds;
mod creating;
mod deleting;
mod discovery;
mod eviction;
mod listing;
mod logs;
mod matrix;
mod network_policies;
mod nodes;
mod patching;
mod pod_security;
mod quotas;
mod reserved;
mod scaling;
mod services;
mod tables;
mod through_kube;
mod tokens;
mod updating;
mod watch_rights;
mod watching;
