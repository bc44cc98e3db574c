//! Lease.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "coordination.k8s.io",
    version: "v1",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    list_kind: "LeaseList",
    namespaced: true,
    schema: "io.k8s.api.coordination.v1.Lease",
    ..Kind::BASE
};
