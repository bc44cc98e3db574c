//! The container runtime interface, generated from `api/proto/cri`. Owns nothing by hand.
#![allow(missing_docs, clippy::all, reason = "generated from api/proto/cri")]

tonic::include_proto!("runtime.v1");
