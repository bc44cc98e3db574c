//! The CustomResourceDefinitions of the custom kinds, generated from their types. `api/crds/*.yaml` is their text; a
//! test compares, and rewrites the files when run with `MUSTER_BLESS=1`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::kept;
use crate::kinds::{
    KnativeService, PodGroup, PyTorchJob, Queue, RayCluster, ScaledObject, VolcanoJob,
};

/// All CustomResourceDefinitions, in name order.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        PodGroup::crd(),
        PyTorchJob::crd(),
        Queue::crd(),
        kept_kind(RayCluster::crd()),
        kept_kind(also_v1beta1(VolcanoJob::crd())),
        kept_kind(ScaledObject::crd()),
        kept_kind(KnativeService::crd()),
    ];
    all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    all
}

/// Adds Muster's label, which distinguishes the definition from another operator's of the same kind.
fn kept_kind(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let labels = crd.metadata.labels.get_or_insert_default();
    labels.insert(kept::LABEL.0.to_owned(), kept::LABEL.1.to_owned());
    crd
}

/// Serves the same schema under the version that some manifests use; objects are stored under the first version.
fn also_v1beta1(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    if let Some(mut version) = crd.spec.versions.first().cloned() {
        version.name = "v1beta1".to_owned();
        version.storage = false;
        crd.spec.versions.push(version);
    }
    crd
}
