//! The resources of Muster's API: their types, names, defaults, validation, printing and the arithmetic of quantities.
//! Pure: no clock, no randomness, no I/O, no async; the current time is a parameter.
//!
//! Objects as users wrote them are `serde_json::Value`: the API stores them as given, and the functions of [`registry`]
//! read and change such values of any shape without panics. Typed views (`k8s_openapi`'s types and [`kinds`]) are for
//! code that decides about admitted objects.

pub mod access;
pub mod admission;
pub mod alerts;
pub mod amounts;
pub mod audit;
pub mod budget;
pub mod crds;
pub mod defragmentation;
pub mod devices;
pub mod exposition;
pub mod failure;
pub mod field;
pub mod go_duration;
pub mod hang;
pub mod idle_gpus;
pub mod inert_kinds;
pub mod invalid_value;
pub mod jobset;
mod json;
pub mod kinds;
pub mod leader_worker_set;
pub mod load;
pub mod mapping;
pub mod mig;
pub mod names;
pub mod network_policies;
pub mod node_conditions;
pub mod node_event;
pub mod node_match;
pub mod numbers;
pub mod parts;
pub mod pattern;
pub mod pod_ranges;
mod pod_security_level;
pub mod quantity;
pub mod query_time;
pub mod queue_status;
pub mod quota_refusal;
pub mod ray_program;
pub mod rbac;
pub mod record;
pub mod registry;
pub mod release;
pub mod report;
pub mod schedule;
pub mod selector;
pub mod serve_config;
pub mod services;
pub mod span;
pub mod splitmix;
pub mod syntax;
pub mod times;
pub mod trainer;
pub mod training;
pub mod training_progress;
pub mod upgrade;
pub mod volcano;
