//! PVC.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "PersistentVolumeClaim",
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    list_kind: "PersistentVolumeClaimList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.PersistentVolumeClaim",
    status: true,
    ..Kind::BASE
};
