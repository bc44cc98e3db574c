//! The CustomResourceDefinitions of the custom kinds, generated from their types. `api/crds/*.yaml` is their text; a
//! test compares, and rewrites the files when run with `MUSTER_BLESS=1`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::kinds::{PodGroup, PyTorchJob, Queue};

/// All of them, in name order.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all = vec![PodGroup::crd(), PyTorchJob::crd(), Queue::crd()];
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all
}
