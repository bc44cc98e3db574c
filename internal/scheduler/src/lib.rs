//! The scheduler's decisions: cluster state fed by events, and `plan(now)`, which returns what to
//! bind and why the rest waits. Pure: it reads no clock, does no I/O and uses no randomness, and
//! the same events in any order give the same plan. The caller carries out the decisions.
//!
//! An event costs what it changes; a plan costs what is pending. What a class of identical pods may
//! use is kept for each node and updated from the nodes that changed (module `fit`), so no plan
//! walks the whole cluster.

mod alike;
mod apply;
mod beside;
mod class;
mod config;
mod cutting;
mod devices;
mod event;
mod evict;
mod expect;
mod fabric;
mod few;
mod filter;
mod fit;
pub mod fragment;
mod gang;
mod gpu;
mod health;
mod home;
mod labels;
mod line;
mod links;
mod listed;
mod named;
mod newcomers;
mod node;
mod noted;
mod phase;
mod place;
mod plan;
mod pod;
mod queue;
mod report;
mod resource;
mod said;
mod score;
pub mod settings;
mod share;
mod state;
mod table;
mod terms;
mod timeline;
mod topology;
mod trial;
mod view;
mod what_if;

pub use beside::{NoPlace, PREFERENCE_MAX};
pub use config::{Actions, Config, Lead, Strategy};
pub use cutting::{Cutting, Recut};
pub use event::Event;
pub use evict::{Move, Proposal, Tidying};
pub use plan::{
    Bind, ClaimStep, Eviction, EvictionReason, GroupCondition, GroupRef, GroupUpdate, Plan, PodRef,
    Reservation, ReservationKind, Unscheduled, VolumeSource, VolumesReady,
};
pub use queue::Decay;
pub use said::Reports;
pub use share::GpuOrder;
pub use state::Scheduler;
pub use trial::Trial;
pub use view::{ClusterView, NodeView, PodView, QueueView};
pub use what_if::WhatIf;
