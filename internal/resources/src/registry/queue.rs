//! Queue.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "scheduling.volcano.sh",
    version: "v1beta1",
    kind: "Queue",
    plural: "queues",
    singular: "queue",
    list_kind: "QueueList",
    namespaced: false,
    schema: "sh.volcano.scheduling.v1beta1.Queue",
    status: true,
    ..Kind::BASE
};
