//! The scheduler's decisions: cluster state fed by events, and `plan(now)`, which returns what to
//! bind and why the rest waits. Pure: it reads no clock, does no I/O and uses no randomness, and
//! the same events in any order give the same plan. The caller carries out the decisions.
//!
//! An event costs what it changes; a plan costs what is pending. What a class of identical pods may
//! use is kept for each node and updated from the nodes that changed (module `fit`), so no plan
//! walks the whole cluster.

mod apply;
mod class;
mod config;
mod devices;
mod dirty_set;
mod event;
mod evict;
mod expected_pods;
mod extender;
mod fabric;
mod filter;
mod fit;
pub mod fragment;
mod gang;
mod gpu;
mod health;
mod incremental;
mod job_annotations;
mod labels;
mod links;
mod listed_devices;
mod name_table;
mod namespaced_name;
mod node;
mod phase;
mod place;
mod plan;
mod pod;
mod queue;
mod queue_access;
mod queue_assignment;
mod queue_order;
mod repartition;
mod report;
mod report_cache;
mod resource;
mod score;
pub mod settings;
mod share;
mod small_map;
mod spec_cache;
mod state;
mod timeline;
mod topology;
mod trial;
mod view;
mod what_if;

pub use config::{Actions, Config, Lead, PlacementStrategy};
pub use event::Event;
pub use evict::{DefragmentationBudget, DefragmentationProposal, Move};
pub use extender::{Infeasible, PREFERENCE_MAX};
pub use plan::{
    Bind, ClaimStep, Eviction, EvictionReason, GangReservation, GroupCondition, GroupRef,
    GroupUpdate, Plan, PodRef, ReservationKind, Unscheduled, VolumeSource, VolumesReady,
};
pub use queue::Decay;
pub use repartition::{Repartition, RepartitionBudget};
pub use report_cache::QueueOrderReports;
pub use share::GpuOrder;
pub use state::Scheduler;
pub use trial::Trial;
pub use view::{ClusterView, NodeView, PodView, QueueView};
pub use what_if::WhatIf;
