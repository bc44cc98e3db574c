//! The resource API as its clients see it, in process: one file for each verb or theme.

#![expect(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

mod harness;

mod admission;
mod applying;
mod binding;
mod creating;
mod deleting;
mod discovery;
mod eviction;
mod listing;
mod logs;
mod patching;
mod quotas;
mod scaling;
mod tables;
mod through_kube;
mod updating;
mod watching;
