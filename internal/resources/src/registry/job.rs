//! Job.

use super::Kind;

pub(super) const KIND: Kind = Kind {
    group: "batch",
    version: "v1",
    kind: "Job",
    plural: "jobs",
    singular: "job",
    list_kind: "JobList",
    namespaced: true,
    schema: "io.k8s.api.batch.v1.Job",
    status: true,
    ..Kind::BASE
};
