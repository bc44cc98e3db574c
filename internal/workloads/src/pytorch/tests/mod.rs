//! PyTorchJob's reconciliation, by scenario and by property, against a small world that
//! carries the actions out.

mod elastic;
mod environment;
mod gang;
mod lifecycle;
mod properties;
mod restarts;
mod world;
