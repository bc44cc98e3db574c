//! Runs the production scheduler, and plain reference schedulers for comparison, over simulated
//! time: how would this work fare on this cluster? Pure: it reads no clock and no file, writes
//! none, and the same input gives the same output.
//!
//! `read` turns manifests or a trace into a [`Scenario`], [`run`] simulates it under a policy,
//! [`Summary`] aggregates the [`Outcome`], `report` renders it.

mod decision;
mod engine;
mod error;
pub mod openb;
mod outcome;
mod policy;
pub mod read;
mod reference;
pub mod report;
mod scenario;
pub mod settings;
pub mod shape;
mod summary;
pub mod synthetic;
pub mod what_if;

pub use decision::{Decision, What};
pub use engine::{Options, run};
pub use error::{Place, SimulatorError};
pub use outcome::{GangOutcome, Outcome, Point};
pub use policy::Policy;
pub use scenario::{Job, Scenario, Seconds, Shape, Storage, Work};
pub use settings::Settings;
pub use summary::{Distribution, QueueSummary, SizeSummary, Summary};
