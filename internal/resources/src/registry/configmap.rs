//! ConfigMap.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    list_kind: "ConfigMapList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.ConfigMap",
    ..Kind::BASE
};
