//! The training kinds: the training operator's defaults and checks, except two: a container need not have the kind's
//! name (the first container trains), and it need not name an image.

mod checks;
mod elastic;
mod mpi;

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::columns::{AGE, NAME, of, or_none, wide};
use super::meta;
use super::{Kind, ScalePaths, Source, TableColumn};
use crate::json;
use crate::kinds;
use crate::names;
use crate::training::{
    self, JAX_JOB, MPI_JOB, PADDLE_JOB, PYTORCH_JOB, TF_JOB, TrainingKind, XGBOOST_JOB,
};

const COLUMNS: &[TableColumn] = &[
    NAME,
    of(
        "State",
        "string",
        "The state of the job.",
        Source::Approximated(
            |job, _| Value::from(state(job)),
            ".status.conditions[-1:].type",
        ),
    ),
    AGE,
    wide(
        "Ready",
        "string",
        "Replicas that run or are done, of all.",
        |job, _| Value::from(ready(job)),
    ),
    wide("Queue", "string", "The queue it waits in.", |job, _| {
        or_none(queue(job))
    }),
];

/// What the registrations of all training kinds share.
const BASE: Kind = Kind {
    group: training::GROUP,
    categories: &["all"],
    status: true,
    generation: true,
    prepare: meta::without_status,
    columns: COLUMNS,
    ..Kind::BASE
};

pub(super) const PYTORCH: Kind = Kind {
    kind: PYTORCH_JOB.kind,
    plural: PYTORCH_JOB.plural,
    singular: PYTORCH_JOB.singular,
    list_kind: PYTORCH_JOB.list_kind,
    definition: Some(kinds::PyTorchJob::crd),
    schema: "org.kubeflow.v1.PyTorchJob",
    scale: Some(ScalePaths {
        spec_replicas: ".spec.pytorchReplicaSpecs.Worker.replicas",
        status_replicas: ".status.replicaStatuses.Worker.active",
        label_selector: Some(".status.replicaStatuses.Worker.selector"),
    }),
    default: |job| {
        default(&PYTORCH_JOB, job);
        elastic::default_torch(job);
    },
    validate: |new, old| checks::validate(&PYTORCH_JOB, new, old),
    ..BASE
};

pub(super) const TF: Kind = Kind {
    kind: TF_JOB.kind,
    plural: TF_JOB.plural,
    singular: TF_JOB.singular,
    list_kind: TF_JOB.list_kind,
    definition: Some(kinds::TFJob::crd),
    schema: "org.kubeflow.v1.TFJob",
    default: |job| default(&TF_JOB, job),
    validate: |new, old| checks::validate(&TF_JOB, new, old),
    ..BASE
};

pub(super) const XGBOOST: Kind = Kind {
    kind: XGBOOST_JOB.kind,
    plural: XGBOOST_JOB.plural,
    singular: XGBOOST_JOB.singular,
    list_kind: XGBOOST_JOB.list_kind,
    definition: Some(kinds::XGBoostJob::crd),
    schema: "org.kubeflow.v1.XGBoostJob",
    default: |job| default(&XGBOOST_JOB, job),
    validate: |new, old| checks::validate(&XGBOOST_JOB, new, old),
    ..BASE
};

pub(super) const PADDLE: Kind = Kind {
    kind: PADDLE_JOB.kind,
    plural: PADDLE_JOB.plural,
    singular: PADDLE_JOB.singular,
    list_kind: PADDLE_JOB.list_kind,
    definition: Some(kinds::PaddleJob::crd),
    schema: "org.kubeflow.v1.PaddleJob",
    scale: Some(ScalePaths {
        spec_replicas: ".spec.paddleReplicaSpecs.Worker.replicas",
        status_replicas: ".status.replicaStatuses.Worker.active",
        label_selector: Some(".status.replicaStatuses.Worker.selector"),
    }),
    default: |job| {
        default(&PADDLE_JOB, job);
        elastic::default_bounds(&PADDLE_JOB, job);
    },
    validate: |new, old| checks::validate(&PADDLE_JOB, new, old),
    ..BASE
};

pub(super) const JAX: Kind = Kind {
    kind: JAX_JOB.kind,
    plural: JAX_JOB.plural,
    singular: JAX_JOB.singular,
    list_kind: JAX_JOB.list_kind,
    definition: Some(kinds::JAXJob::crd),
    schema: "org.kubeflow.v1.JAXJob",
    default: |job| default(&JAX_JOB, job),
    validate: |new, old| checks::validate(&JAX_JOB, new, old),
    ..BASE
};

pub(super) const MPI: Kind = Kind {
    kind: MPI_JOB.kind,
    version: MPI_JOB.version,
    plural: MPI_JOB.plural,
    singular: MPI_JOB.singular,
    list_kind: MPI_JOB.list_kind,
    short_names: &["mj"],
    definition: Some(kinds::MPIJob::crd),
    schema: "org.kubeflow.v2beta1.MPIJob",
    default: |job| {
        mpi::default(job);
        default(&MPI_JOB, job);
    },
    validate: |new, old| {
        let mut errors = checks::validate(&MPI_JOB, new, old);
        mpi::check(new, &mut errors);
        errors
    },
    ..BASE
};

/// The same kind under the version of the training operator.
pub(super) const MPI_V1: Kind = Kind {
    version: "v1",
    schema: "org.kubeflow.v1.MPIJob",
    stored: Some(MPI_JOB.version),
    ..MPI
};

fn default(kind: &TrainingKind, job: &mut Value) {
    let Some(spec) = json::object(job, "spec") else {
        return;
    };
    if let Some(policy) = json::object(spec, "runPolicy") {
        // An MPIJob's policy depends on whether the user names one.
        if kind.kind != MPI_JOB.kind {
            json::fill_text(policy, "cleanPodPolicy", "None");
        }
        json::fill(policy, "suspend", false);
        if let Some(scheduling) = json::child(policy, "schedulingPolicy") {
            json::canonical_quantities(scheduling, "minResources");
        }
    }
    let specs = spec.get_mut(kind.replicas_field);
    let Some(specs) = specs.and_then(Value::as_object_mut) else {
        return;
    };
    for role in kind.roles {
        let right = role.key();
        let written = specs
            .keys()
            .find(|key| key.eq_ignore_ascii_case(right) && key.as_str() != right)
            .cloned();
        if let Some(written) = written
            && !specs.contains_key(right)
            && let Some(value) = specs.remove(&written)
        {
            specs.insert(right.to_owned(), value);
        }
    }
    for (key, replica) in specs.iter_mut() {
        let restart = match kind.role(key) {
            Some(role) => kind.default_restart(role),
            None => kind.restart_policy,
        };
        let policy = match restart {
            kinds::RestartPolicy::Never => "Never",
            _ => "OnFailure",
        };
        json::fill(replica, "replicas", 1);
        json::fill_text(replica, "restartPolicy", policy);
    }
}

fn state(job: &Value) -> &str {
    let conditions = json::items(job, &["status", "conditions"]);
    let last = conditions
        .iter()
        .rev()
        .find(|c| json::text(c, &["status"]) == "True")
        .or(conditions.last());
    last.map_or("", |c| json::text(c, &["type"]))
}

fn ready(job: &Value) -> String {
    let wanted: i64 = training::ALL
        .iter()
        .flat_map(|kind| kind.replica_specs(job))
        .map(|(_, r)| json::int(r, &["replicas"]).unwrap_or(1))
        .fold(0, i64::saturating_add);
    let there: i64 = json::members(job, &["status", "replicaStatuses"])
        .map(|(_, s)| {
            let count = |key: &str| json::int(s, &[key]).unwrap_or(0);
            count("active").saturating_add(count("succeeded"))
        })
        .fold(0, i64::saturating_add);
    format!("{there}/{wanted}")
}

/// A job's queue: its scheduling policy's, else its label's or annotation's, else the default.
fn queue(job: &Value) -> &str {
    let asked = [
        json::text(job, &["spec", "runPolicy", "schedulingPolicy", "queue"]),
        json::text(job, &["metadata", "labels", names::QUEUE_NAME]),
        json::text(job, &["metadata", "annotations", names::QUEUE_NAME]),
    ];
    asked
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or(names::DEFAULT_QUEUE)
}
