//! Tests of RayCluster: pods as they are created, and a cluster's life.

mod autoscaling;
mod lifecycle;
mod pods;
mod world;
