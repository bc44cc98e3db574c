//! PriorityClass.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "scheduling.k8s.io",
    version: "v1",
    kind: "PriorityClass",
    plural: "priorityclasses",
    singular: "priorityclass",
    list_kind: "PriorityClassList",
    namespaced: false,
    schema: "io.k8s.api.scheduling.v1.PriorityClass",
    ..Kind::BASE
};
