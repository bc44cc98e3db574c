//! The training kinds of `kubeflow.org`, each described once: names, replica types, the container that trains, its
//! port, and defaults. Admission, the registry, the controllers, the CLI and the pages read these descriptions. Source:
//! Kubeflow's training operator 1.9, and its MPI operator 0.8 for MPIJob.

use std::ops::RangeInclusive;

use serde_json::Value;

use crate::json;
use crate::kinds::RestartPolicy;
use crate::names;

/// The API group of all training kinds.
pub const GROUP: &str = "kubeflow.org";

/// A type of replica. The order is that of ranks: rank 0 is the first replica of the first type that a job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaType {
    /// TensorFlow's chief: the worker that also saves checkpoints.
    Chief,
    /// The replica whose address the others use.
    Master,
    /// MPI's launcher: the replica that runs `mpirun`, which starts the ranks on the workers.
    Launcher,
    /// A replica that trains.
    Worker,
    /// TensorFlow's parameter server.
    Ps,
    /// TensorFlow's evaluator.
    Evaluator,
}

impl ReplicaType {
    /// All types, in the order of ranks.
    pub const ALL: [ReplicaType; 6] = [
        ReplicaType::Chief,
        ReplicaType::Master,
        ReplicaType::Launcher,
        ReplicaType::Worker,
        ReplicaType::Ps,
        ReplicaType::Evaluator,
    ];

    /// The type as a key of the spec and the status.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            ReplicaType::Chief => "Chief",
            ReplicaType::Master => "Master",
            ReplicaType::Launcher => "Launcher",
            ReplicaType::Worker => "Worker",
            ReplicaType::Ps => "PS",
            ReplicaType::Evaluator => "Evaluator",
        }
    }

    /// The type in names and labels.
    #[must_use]
    pub fn lower(self) -> &'static str {
        match self {
            ReplicaType::Chief => "chief",
            ReplicaType::Master => "master",
            ReplicaType::Launcher => "launcher",
            ReplicaType::Worker => "worker",
            ReplicaType::Ps => "ps",
            ReplicaType::Evaluator => "evaluator",
        }
    }

    /// Whether a job has at most one replica of this type.
    #[must_use]
    pub fn is_single(self) -> bool {
        matches!(
            self,
            ReplicaType::Chief | ReplicaType::Master | ReplicaType::Launcher
        )
    }

    /// The name of a job's pod: `<job>-<type>-<index>`, and `<job>-launcher`.
    #[must_use]
    pub fn pod_name(self, job: &str, index: u32) -> String {
        match self {
            ReplicaType::Launcher => format!("{job}-launcher"),
            _ => format!("{job}-{}-{index}", self.lower()),
        }
    }

    /// The index of a job's pod, if a pod of this type has this name.
    #[must_use]
    pub fn index_in(self, job: &str, pod: &str) -> Option<u32> {
        let rest = pod.strip_prefix(job)?.strip_prefix('-')?;
        let rest = rest.strip_prefix(self.lower())?;
        if self == ReplicaType::Launcher {
            return rest.is_empty().then_some(0);
        }
        let digits = rest.strip_prefix('-')?;
        let index: u32 = digits.parse().ok()?;
        (index.to_string() == digits).then_some(index)
    }
}

/// The description of one training kind.
#[derive(Debug)]
pub struct TrainingKind {
    /// `PyTorchJob`.
    pub kind: &'static str,
    /// The version under which its objects are stored.
    pub version: &'static str,
    /// `pytorchjobs`.
    pub plural: &'static str,
    /// `pytorchjob`.
    pub singular: &'static str,
    /// `PyTorchJobList`.
    pub list_kind: &'static str,
    /// The member of `spec` that holds the replicas: `pytorchReplicaSpecs`.
    pub replicas_field: &'static str,
    /// The replica types that a job may have, in the order of ranks.
    pub roles: &'static [ReplicaType],
    /// The name of the container that trains, if a pod has several.
    pub container: &'static str,
    /// The name of the container port by which a user chooses the port.
    pub port_name: &'static str,
    /// The port, if the user chooses none and every pod has its own address.
    pub port: u16,
    /// The ports that are given to jobs of this kind where pods share their node's address. Each kind has a range of its
    /// own, so that no controller needs to know the ports of another one.
    pub shared_ports: RangeInclusive<u16>,
    /// Where pods share their node's address: true if every replica needs a port of its own, false if the job's first
    /// replica is the only one that listens on the port.
    pub port_for_each_replica: bool,
    /// The value of the label [`names::OPERATOR_NAME`] on pods.
    pub operator: &'static str,
    /// The restart policy of a replica that names none.
    pub restart_policy: RestartPolicy,
}

/// PyTorchJob.
pub static PYTORCH_JOB: TrainingKind = TrainingKind {
    kind: "PyTorchJob",
    version: "v1",
    plural: "pytorchjobs",
    singular: "pytorchjob",
    list_kind: "PyTorchJobList",
    replicas_field: "pytorchReplicaSpecs",
    roles: &[ReplicaType::Master, ReplicaType::Worker],
    container: "pytorch",
    port_name: "pytorchjob-port",
    port: 23_456,
    shared_ports: names::RENDEZVOUS_PORTS,
    port_for_each_replica: false,
    operator: "pytorchjob-controller",
    restart_policy: RestartPolicy::OnFailure,
};

/// TFJob.
pub static TF_JOB: TrainingKind = TrainingKind {
    kind: "TFJob",
    version: "v1",
    plural: "tfjobs",
    singular: "tfjob",
    list_kind: "TFJobList",
    replicas_field: "tfReplicaSpecs",
    roles: &[
        ReplicaType::Chief,
        ReplicaType::Master,
        ReplicaType::Worker,
        ReplicaType::Ps,
        ReplicaType::Evaluator,
    ],
    container: "tensorflow",
    port_name: "tfjob-port",
    port: 2222,
    shared_ports: 16_000..=18_999,
    port_for_each_replica: true,
    operator: "tfjob-controller",
    restart_policy: RestartPolicy::Never,
};

/// XGBoostJob.
pub static XGBOOST_JOB: TrainingKind = TrainingKind {
    kind: "XGBoostJob",
    version: "v1",
    plural: "xgboostjobs",
    singular: "xgboostjob",
    list_kind: "XGBoostJobList",
    replicas_field: "xgbReplicaSpecs",
    roles: &[ReplicaType::Master, ReplicaType::Worker],
    container: "xgboost",
    port_name: "xgboostjob-port",
    port: 9999,
    shared_ports: 15_000..=15_299,
    port_for_each_replica: false,
    operator: "xgboostjob-controller",
    restart_policy: RestartPolicy::Never,
};

/// PaddleJob.
pub static PADDLE_JOB: TrainingKind = TrainingKind {
    kind: "PaddleJob",
    version: "v1",
    plural: "paddlejobs",
    singular: "paddlejob",
    list_kind: "PaddleJobList",
    replicas_field: "paddleReplicaSpecs",
    roles: &[ReplicaType::Master, ReplicaType::Worker],
    container: "paddle",
    port_name: "master",
    port: 36_543,
    shared_ports: 15_300..=15_599,
    port_for_each_replica: false,
    operator: "paddlejob-controller",
    restart_policy: RestartPolicy::OnFailure,
};

/// JAXJob.
pub static JAX_JOB: TrainingKind = TrainingKind {
    kind: "JAXJob",
    version: "v1",
    plural: "jaxjobs",
    singular: "jaxjob",
    list_kind: "JAXJobList",
    replicas_field: "jaxReplicaSpecs",
    roles: &[ReplicaType::Worker],
    container: "jax",
    port_name: "jaxjob-port",
    port: 6666,
    shared_ports: 15_600..=15_899,
    port_for_each_replica: false,
    operator: "jaxjob-controller",
    restart_policy: RestartPolicy::Never,
};

/// MPIJob, stored as the MPI operator's `v2beta1` and also served as `v1`.
pub static MPI_JOB: TrainingKind = TrainingKind {
    kind: "MPIJob",
    version: "v2beta1",
    plural: "mpijobs",
    singular: "mpijob",
    list_kind: "MPIJobList",
    replicas_field: "mpiReplicaSpecs",
    roles: &[ReplicaType::Launcher, ReplicaType::Worker],
    container: "mpi",
    port_name: "mpijob-port",
    port: 22,
    // MPI's processes agree on ports by themselves: a job is given none.
    shared_ports: 15_900..=15_900,
    port_for_each_replica: false,
    operator: "mpi-operator",
    restart_policy: RestartPolicy::Never,
};

/// What the workers of an MPIJob, or of a Volcano Job with the mpi plugin, run where `mpirun` has its commands run by the
/// API: nothing, until they are stopped.
pub const MPI_WORKER_COMMAND: [&str; 3] = [
    "/bin/sh",
    "-c",
    "trap 'exit 0' TERM INT; sleep infinity & wait",
];

/// All training kinds, in the order in which a bare job name is looked up.
pub static ALL: [&TrainingKind; 6] = [
    &PYTORCH_JOB,
    &TF_JOB,
    &XGBOOST_JOB,
    &PADDLE_JOB,
    &JAX_JOB,
    &MPI_JOB,
];

/// The description of a kind by its group and name.
#[must_use]
pub fn find(group: &str, kind: &str) -> Option<&'static TrainingKind> {
    let found = ALL.iter().find(|known| known.kind == kind);
    found.copied().filter(|_| group == GROUP)
}

/// The description of a kind by its plural name.
#[must_use]
pub fn by_plural(plural: &str) -> Option<&'static TrainingKind> {
    ALL.iter().copied().find(|known| known.plural == plural)
}

impl TrainingKind {
    /// The version of its objects with the group: `kubeflow.org/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        format!("{GROUP}/{}", self.version)
    }

    /// The restart policy of a replica that names none.
    #[must_use]
    pub fn default_restart(&self, role: ReplicaType) -> RestartPolicy {
        match role {
            ReplicaType::Launcher => RestartPolicy::OnFailure,
            _ => self.restart_policy,
        }
    }

    /// The replica type of a key of the spec, in any case of its letters.
    #[must_use]
    pub fn role(&self, key: &str) -> Option<ReplicaType> {
        let mut roles = self.roles.iter().copied();
        roles.find(|role| role.key().eq_ignore_ascii_case(key))
    }

    /// The replicas of a job as written, with their keys; none of another type.
    pub fn replica_specs<'a>(
        &self,
        job: &'a Value,
    ) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        json::members(json::at(job, &["spec", self.replicas_field]), &[])
    }

    /// The pods of a job's ranks, in order, as names. An elastic job has the ranks of its most workers. The number of
    /// names is at most `limit`.
    #[must_use]
    pub fn rank_names(&self, job: &Value, limit: usize) -> Vec<String> {
        let name = json::text(job, &["metadata", "name"]);
        let most = json::int(job, &["spec", "elasticPolicy", "maxReplicas"]).unwrap_or(0);
        let mut names = Vec::new();
        for role in self.roles {
            let mut specs = self.replica_specs(job);
            let Some((_, spec)) = specs.find(|(key, _)| self.role(key) == Some(*role)) else {
                continue;
            };
            let count = json::int(spec, &["replicas"]).unwrap_or(1);
            let count = match role {
                ReplicaType::Worker => count.max(most),
                _ => count,
            };
            let room = u32::try_from(limit.saturating_sub(names.len())).unwrap_or(u32::MAX);
            let count = u32::try_from(count.max(0)).unwrap_or(u32::MAX).min(room);
            names.extend((0..count).map(|index| role.pod_name(name, index)));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    #[test]
    fn each_description_agrees_with_its_registration() {
        for one in ALL {
            let kind =
                registry::find(GROUP, one.version, one.plural).expect("the kind is registered");
            assert_eq!(kind.kind, one.kind);
            assert_eq!(kind.singular, one.singular);
            assert_eq!(kind.list_kind, one.list_kind);
            assert!(std::ptr::eq(kind.training().unwrap(), one));
            assert!(
                one.roles.is_sorted(),
                "{}: roles are in the order of ranks",
                one.kind
            );
        }
        assert!(find("batch", "PyTorchJob").is_none());
    }

    #[test]
    fn no_two_kinds_share_a_port() {
        for (at, one) in ALL.iter().enumerate() {
            for other in &ALL[at + 1..] {
                let apart = one.shared_ports.end() < other.shared_ports.start()
                    || other.shared_ports.end() < one.shared_ports.start();
                assert!(apart, "{} and {}", one.kind, other.kind);
            }
        }
    }

    #[test]
    fn ranks_count_the_chief_then_workers_then_parameter_servers() {
        let job = json!({"metadata": {"name": "j"}, "spec": {"tfReplicaSpecs": {
            "PS": {"replicas": 2}, "Worker": {"replicas": 2}, "Chief": {}}}});
        assert_eq!(
            TF_JOB.rank_names(&job, 100),
            ["j-chief-0", "j-worker-0", "j-worker-1", "j-ps-0", "j-ps-1"]
        );
        assert_eq!(TF_JOB.rank_names(&job, 2).len(), 2);
        let many = json!({"metadata": {"name": "j"}, "spec": {"tfReplicaSpecs": {"Worker": {"replicas": i64::MAX}}}});
        assert_eq!(TF_JOB.rank_names(&many, 3).len(), 3);
    }

    #[test]
    fn an_mpi_job_has_one_launcher_before_its_workers() {
        let job = json!({"metadata": {"name": "j"}, "spec": {"mpiReplicaSpecs": {
            "Worker": {"replicas": 2}, "Launcher": {}}}});
        assert_eq!(
            MPI_JOB.rank_names(&job, 100),
            ["j-launcher", "j-worker-0", "j-worker-1"]
        );
        let index = |role: ReplicaType, pod: &str| role.index_in("j", pod);
        assert_eq!(index(ReplicaType::Launcher, "j-launcher"), Some(0));
        for pod in ["j-launcher-0", "j-launcher-x", "k-launcher", "j-worker-0"] {
            assert_eq!(index(ReplicaType::Launcher, pod), None, "{pod}");
        }
        assert_eq!(index(ReplicaType::Worker, "j-worker-11"), Some(11));
        assert_eq!(index(ReplicaType::Worker, "j-worker-01"), None);
    }

    #[test]
    fn an_elastic_job_has_the_ranks_of_its_most_workers() {
        let job = json!({"metadata": {"name": "j"}, "spec": {"elasticPolicy": {"maxReplicas": 3},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}});
        assert_eq!(PYTORCH_JOB.rank_names(&job, 100).len(), 3);
    }
}
