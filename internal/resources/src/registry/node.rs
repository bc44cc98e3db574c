//! Node.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Node",
    plural: "nodes",
    singular: "node",
    list_kind: "NodeList",
    namespaced: false,
    schema: "io.k8s.api.core.v1.Node",
    status: true,
    ..Kind::BASE
};
