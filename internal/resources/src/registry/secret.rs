//! Secret.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    list_kind: "SecretList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.Secret",
    ..Kind::BASE
};
