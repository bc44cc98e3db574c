//! Service.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Service",
    plural: "services",
    singular: "service",
    list_kind: "ServiceList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.Service",
    status: true,
    ..Kind::BASE
};
