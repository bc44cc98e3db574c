//! Namespace.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    list_kind: "NamespaceList",
    namespaced: false,
    schema: "io.k8s.api.core.v1.Namespace",
    status: true,
    ..Kind::BASE
};
