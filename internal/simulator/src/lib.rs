//! Runs the production scheduler, and plain reference schedulers for comparison, over simulated
//! time: how would this work fare on this cluster? Pure: it reads no clock and no file, writes
//! none, and the same input gives the same output.
//!
//! `read` turns manifests or a trace into a [`Scenario`], [`run`] simulates it under a policy,
//! [`Summary`] aggregates the [`SimulationOutcome`], `report` renders it.

mod decision;
mod engine;
mod error;
mod gang;
pub mod openb;
mod outcome;
mod planner;
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

pub use decision::{Decision, DecisionDetail};
pub use engine::{SimulationOptions, run};
pub use error::{InputLocation, SimulatorError};
pub use outcome::{GangOutcome, Point, SimulationOutcome};
pub use policy::Policy;
pub use scenario::{Job, JobWork, PodShape, Scenario, Seconds, Storage};
pub use settings::Settings;
pub use summary::{Distribution, QueueSummary, SizeSummary, Summary};
