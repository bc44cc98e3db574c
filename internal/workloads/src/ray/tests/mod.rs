//! Tests of RayCluster: pods as they are created, and a cluster's life.

mod lifecycle;
mod pods;
mod world;
