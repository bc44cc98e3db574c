//! RuntimeClass.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "node.k8s.io",
    version: "v1",
    kind: "RuntimeClass",
    plural: "runtimeclasses",
    singular: "runtimeclass",
    list_kind: "RuntimeClassList",
    namespaced: false,
    schema: "io.k8s.api.node.v1.RuntimeClass",
    ..Kind::BASE
};
