//! Event.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Event",
    plural: "events",
    singular: "event",
    list_kind: "EventList",
    namespaced: true,
    schema: "io.k8s.api.core.v1.Event",
    ..Kind::BASE
};
