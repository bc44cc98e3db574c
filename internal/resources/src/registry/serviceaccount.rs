//! ServiceAccount.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "ServiceAccount",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    list_kind: "ServiceAccountList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.ServiceAccount",
    ..Kind::BASE
};
