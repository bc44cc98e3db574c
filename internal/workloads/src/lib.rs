//! The reconcilers of the workload kinds: given the observed state of a job and the time, they
//! decide the actions to take and the job's status. Pure: no clock, no I/O, no randomness. The
//! control loops in `controllers` observe, call them and carry out the actions.

mod account_rights;
mod action;
pub mod apps;
pub mod autoscaling;
pub mod cronjob;
mod failure;
mod gang;
pub mod job;
pub mod jobset;
pub mod leaderworkerset;
mod mpi;
mod ownership;
mod pod_facts;
mod pod_names;
mod pod_room;
pub mod ray;
pub mod rayjob;
pub mod rayservice;
mod terms;
pub mod training;
pub mod trainjob;
pub mod volcano;

pub use pod_room::{GANG_FLOOR, PodQuota, PodRoom, WAITING_FLOOR};

pub use action::{
    Action, Dependent, DependentKind, EventNote, NoteKind, ReconcileOutcome, SshKeys,
};
