//! Endpoints.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Endpoints",
    plural: "endpoints",
    singular: "endpoints",
    list_kind: "EndpointsList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.Endpoints",
    ..Kind::BASE
};
