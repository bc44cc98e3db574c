//! The container runtime interface, generated from `api/proto/cri`. Owns nothing by hand.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("runtime.v1");
