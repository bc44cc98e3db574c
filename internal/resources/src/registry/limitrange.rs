//! LimitRange.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "LimitRange",
    plural: "limitranges",
    singular: "limitrange",
    list_kind: "LimitRangeList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.LimitRange",
    ..Kind::BASE
};
