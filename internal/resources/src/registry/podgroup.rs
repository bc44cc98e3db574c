//! PodGroup.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "scheduling.volcano.sh",
    version: "v1beta1",
    kind: "PodGroup",
    plural: "podgroups",
    singular: "podgroup",
    list_kind: "PodGroupList",
    namespaced: true,
    schema: "sh.volcano.scheduling.v1beta1.PodGroup",
    status: true,
    ..Kind::BASE
};
