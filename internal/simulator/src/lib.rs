//! The production scheduler over simulated time, and plain reference schedulers beside it: what
//! would become of this work on this cluster? Pure: it reads no clock and no file, writes none,
//! and the same input gives the same output.
//!
//! `read` makes a [`Scenario`] of manifests or a trace, [`run`] simulates it under a policy,
//! [`Summary`] sums the [`Outcome`] up, `report` writes it for people.

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
