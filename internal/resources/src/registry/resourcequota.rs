//! ResourceQuota.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "ResourceQuota",
    plural: "resourcequotas",
    singular: "resourcequota",
    list_kind: "ResourceQuotaList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.ResourceQuota",
    status: true,
    ..Kind::BASE
};
