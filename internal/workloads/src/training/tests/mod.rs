//! The reconciliation of training jobs, by scenario and by property, against a simulated namespace that
//! carries out the actions.

mod elastic;
mod environment;
mod gang;
mod kinds;
mod lifecycle;
mod mpi;
mod properties;
mod recovery;
mod restarts;
mod world;
