//! PyTorchJob.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "kubeflow.org",
    version: "v1",
    kind: "PyTorchJob",
    plural: "pytorchjobs",
    singular: "pytorchjob",
    list_kind: "PyTorchJobList",
    namespaced: true,
    schema: "org.kubeflow.v1.PyTorchJob",
    status: true,
    ..Kind::BASE
};
