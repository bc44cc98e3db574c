//! EndpointSlice.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "discovery.k8s.io",
    version: "v1",
    kind: "EndpointSlice",
    plural: "endpointslices",
    singular: "endpointslice",
    list_kind: "EndpointSliceList",
    namespaced: true,
    schema: "io.k8s.api.discovery.v1.EndpointSlice",
    ..Kind::BASE
};
