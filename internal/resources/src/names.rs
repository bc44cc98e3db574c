//! The labels, annotations, namespaces and well-known names that Muster's components share. Constants only.

/// Annotation on a pod: the PodGroup (gang) in its namespace that it belongs to. Volcano's.
pub const GROUP_NAME: &str = "scheduling.k8s.io/group-name";
/// Annotation on a pod: its task in the gang (the replica type in lower case), which `minTaskMember` counts. Volcano's.
pub const TASK_SPEC: &str = "volcano.sh/task-spec";
/// Label or annotation on a job or pod: its queue. On a namespace: the default queue of its work. Volcano's.
pub const QUEUE_NAME: &str = "scheduling.volcano.sh/queue-name";
/// The queue of work that names no queue; created at start.
pub const DEFAULT_QUEUE: &str = "default";

/// Annotation on a PodGroup, or a pod without one: the time that it runs at least before it may be evicted, in seconds
/// or as `1h30m`.
pub const MIN_RUNTIME: &str = "muster.io/min-runtime";

/// Label on a training job's pods and services: the job's name. Kubeflow's.
pub const JOB_NAME: &str = "training.kubeflow.org/job-name";
/// Label on a training job's pods and services: the controller that made them. Kubeflow's.
pub const OPERATOR_NAME: &str = "training.kubeflow.org/operator-name";
/// Label on a training job's pods and services: `master` or `worker`.
pub const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
/// Label on a training job's pods and services: the index within the replica type.
pub const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
/// Label on a training job's master pod, with the value `master`.
pub const JOB_ROLE: &str = "training.kubeflow.org/job-role";

/// Annotation on a pod (and on the Binding that puts it there): the devices chosen, JSON of
/// [`crate::devices::ChosenDevices`].
pub const DEVICES: &str = "muster.io/devices";
/// Annotation on a node: JSON of [`crate::devices::NodeInventory`].
pub const INVENTORY: &str = "muster.io/inventory";
/// Annotation on a node: the number of its agent's sessions, which orders two sessions.
pub const SESSION: &str = "muster.io/session";
/// Label on a RayCluster's pods and services: the cluster's name. KubeRay's.
pub const RAY_CLUSTER: &str = "ray.io/cluster";
/// Label on a RayCluster's pods and services: `head` or `worker`.
pub const RAY_NODE_TYPE: &str = "ray.io/node-type";
/// Label on what a RayJob or RayService creates: its name. KubeRay's.
pub const RAY_ORIGIN_NAME: &str = "ray.io/originated-from-cr-name";
/// Label on what a RayJob or RayService creates: its kind. KubeRay's.
pub const RAY_ORIGIN_KIND: &str = "ray.io/originated-from-crd";
/// Annotation on a RayJob in InteractiveMode: the name in Ray of the job that the user submitted. KubeRay's.
pub const RAY_SUBMISSION_ID: &str = "ray.io/ray-job-submission-id";
/// Annotation on a RayCluster: with `true`, a head that has started is not replaced by another one. KubeRay's.
pub const RAY_KEEP_HEAD: &str = "ray.io/disable-provisioned-head-restart";
/// The container that submits a RayJob's program: of the submitting pod, and in SidecarMode of the head. KubeRay's name.
pub const RAY_SUBMITTER: &str = "ray-job-submitter";
/// Label on a RayService's pods: `true` if the pod takes requests for its applications, else `false`. KubeRay's.
pub const RAY_SERVE: &str = "ray.io/serve";
/// Annotation on a RayService's RayCluster: the hash of the spec that it was made from, without the numbers of workers.
/// KubeRay's.
pub const RAY_SPEC_HASH: &str = "ray.io/hash-without-replicas-and-workers-to-delete";
/// Annotation on a RayService's RayCluster: how many worker groups the spec had. KubeRay's.
pub const RAY_WORKER_GROUPS: &str = "ray.io/num-worker-groups";
/// Annotation on an autoscaled RayCluster: for each group the lowest number that no worker has had (JSON), so that no
/// worker's name is used twice.
pub const RAY_REPLICAS: &str = "muster.io/ray-replicas";
/// Label on a RayCluster's pods: the group's name. KubeRay's.
pub const RAY_GROUP: &str = "ray.io/group";
/// Label on a RayCluster's workers: the replica's number in its group. KubeRay's.
pub const RAY_REPLICA_INDEX: &str = "ray.io/worker-group-replica-index";
/// The ports that heads of RayClusters get where pods share their node's address. Apart from the ports of the training
/// kinds.
pub const RAY_PORTS: std::ops::RangeInclusive<u16> = 14_000..=14_999;
/// The ports that the embedded engine allocates to the plugins of Volcano Jobs, first and last.
pub const VOLCANO_PORTS: std::ops::RangeInclusive<u16> = 13_000..=13_999;
/// The ports that TrainJobs get where pods share their node's address, one each.
pub const TRAINER_PORTS: std::ops::RangeInclusive<u16> = 12_000..=12_999;
/// Annotation on a TrainJob's JobSet: the hash of the template that it was made from.
pub const TEMPLATE_HASH: &str = "muster.io/template-hash";
/// Annotation on a pod, with the value `true`: containers without an image see Muster's command line at
/// [`COMMAND_LINE_PATH`].
pub const COMMAND_LINE: &str = "muster.io/command-line";
/// Where containers of such a pod see the `muster` program.
pub const COMMAND_LINE_PATH: &str = "/run/muster/muster";
/// Annotation on a training job or RayCluster: its port, or the first of them, in the embedded engine.
pub const RENDEZVOUS_PORT: &str = "muster.io/rendezvous-port";
/// Annotation on a training job: its restarts by replica type (JSON), so that `backoffLimit` survives a restart of the
/// controller.
pub const RESTARTS: &str = "muster.io/restarts";
/// Annotation on a Job: the results of its ended attempts (JSON), so that `backoffLimit` survives a restart of the
/// controller.
pub const ATTEMPTS: &str = "muster.io/attempts";
/// Annotation on a job: what follows a failure of one of its ranks, by the failure's class (`failure::OnFailure`).
pub const ON_FAILURE: &str = "muster.io/on-failure";
/// Annotation on a job: the first rank that failed last, and why (`failure::FailureRecord`).
pub const FAILURE: &str = "muster.io/failure";
/// Annotation on a job with [`ON_FAILURE`]: its attempts, what it has spent of its budget, the nodes it keeps off.
pub const RECOVERY: &str = "muster.io/recovery";
/// Annotation on a job: how long its running pods may write no log line and do no work before it counts as hung. A time
/// from 1m to 7d.
pub const HANG_AFTER: &str = "muster.io/hang-after";
/// Annotation on a job with [`HANG_AFTER`]: what happens when it hangs, `report` or `restart`. Defaults to `report`.
pub const ON_HANG: &str = "muster.io/on-hang";
/// Annotation on a job that hangs: since when, and what was observed (`hang::HangRecord`). The server writes and removes it.
pub const HUNG: &str = "muster.io/hung";
/// The condition of a pod that the platform ends: a lost node, an eviction, a drain. Kubernetes'.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";
/// The reason of this condition on a pod that the scheduler evicts. Kubernetes'.
pub const PREEMPTION_BY_SCHEDULER: &str = "PreemptionByScheduler";
/// Annotation on an Eviction: why the scheduler evicts the pod. The embedded engine says it in the pod's condition
/// `DisruptionTarget` from the beginning.
pub const EVICTION_REASON: &str = "muster.io/eviction-reason";
/// Label on a pod of a job with [`ON_FAILURE`]: the attempt that it is part of.
pub const ATTEMPT: &str = "muster.io/attempt";
/// The rendezvous ports that the embedded engine allocates, first and last.
pub const RENDEZVOUS_PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// Annotation on a pod of the embedded engine: the Pod Security Standard that was enforced at its creation
/// (`privileged`, `baseline` or `restricted`; `privileged` for an exempt pod). Admission writes it, and it never
/// changes; the agent reads it to choose the user of the pod's processes.
pub const POD_SECURITY_LEVEL: &str = "muster.io/pod-security-level";

/// Node label (`true` or `false`): the node runs pods as processes.
pub const RUNTIME_PROCESS: &str = "muster.io/runtime.process";
/// Node label (`own` or `host`): whether the node's pods without images have networks of their own.
pub const POD_NETWORK: &str = "muster.io/pod-network";
/// The value of [`POD_NETWORK`] on a node whose pods have networks of their own.
pub const POD_NETWORK_OWN: &str = "own";
/// Node label (`true` or `false`): the node has a CRI container runtime.
pub const RUNTIME_CRI: &str = "muster.io/runtime.cri";
/// Node label (`true` or `false`): an administrator permits pods that name an image to run their commands on the host.
pub const RUNTIME_HOST_IMAGES: &str = "muster.io/runtime.host-images";

/// The API group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// Extended resource: NVIDIA GPUs by count.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// The prefix of resources that are GPU slices (MIG), by profile: `nvidia.com/mig-1g.10gb`.
pub const NVIDIA_MIG: &str = "nvidia.com/mig-";
/// The namespace of Muster's own Secrets and ConfigMaps (users, tokens, certificates).
pub const SYSTEM_NAMESPACE: &str = "muster-system";
/// The namespace of the nodes' leases.
pub const NODE_LEASES: &str = "kube-node-lease";
/// The ConfigMap of every namespace with the certificate of the server's authority (`ca.crt`), as in Kubernetes.
pub const ROOT_CA_CONFIG_MAP: &str = "kube-root-ca.crt";
/// Where a container finds its service account's token, the authority's certificate and its namespace.
pub const API_ACCESS_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The namespaces created at the first start.
pub const FIRST_NAMESPACES: [&str; 5] = [
    "default",
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "muster-system",
];
/// Namespace label: with the value `true`, pods of the namespace may have the classes of
/// [`crate::admission::SYSTEM_CLASSES`].
pub const CRITICAL_PODS: &str = "muster.io/critical-pods";
/// Namespace label that only administrators set: the Unix account for the namespace's pods on nodes of the embedded
/// engine. Each agent's `--accounts` maps its value to an account on that node.
pub const UNIX_ACCOUNT: &str = "muster.io/unix-account";
/// Those of [`FIRST_NAMESPACES`] that belong to the system: only administrators may use them.
pub const SYSTEM_NAMESPACES: [&str; 4] =
    ["kube-system", "kube-public", NODE_LEASES, SYSTEM_NAMESPACE];
/// The prefix of a node's user name; the node's name follows.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// The group of nodes.
pub const NODES_GROUP: &str = "system:nodes";
/// The `schedulerName` of pods that Muster places.
pub const SCHEDULER: &str = "muster";
/// `status.reason` of a pod whose node was lost.
pub const NODE_LOST: &str = "NodeLost";
/// `status.reason` of a pod that its node could not start because of a fault of the node: it counts against no limit of
/// the job.
pub const NODE_UNFIT: &str = "NodeUnfit";
/// `status.reason` of a pod that its node evicted; the kubelet uses the same.
pub const EVICTED: &str = "Evicted";

/// Kubernetes' label on a Job's pods: the job's name.
pub const BATCH_JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Kubernetes' label on a Job's pods: the job's uid.
pub const BATCH_CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// The older spelling of [`BATCH_JOB_NAME`], set beside it.
pub const LEGACY_JOB_NAME: &str = "job-name";
/// The older spelling of [`BATCH_CONTROLLER_UID`], set beside it.
pub const LEGACY_CONTROLLER_UID: &str = "controller-uid";
/// Annotation and label on an Indexed Job's pods: the completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Annotation on a Queue, JSON of resource to quantity: the most that it may borrow above its own `deserved`.
pub const BORROWING_LIMIT: &str = "muster.io/borrowing-limit";
/// Annotation on a Queue, JSON of resource to quantity: the part of its `deserved` that it lends while idle.
pub const LENDING_LIMIT: &str = "muster.io/lending-limit";
/// Annotation on a Queue: its weight in sharing the surplus beyond all queues' `deserved`; a quantity, or JSON of
/// resource to quantity. Defaults to the queue's weight; 0 excludes the queue.
pub const SURPLUS_WEIGHT: &str = "muster.io/surplus-weight";
/// Annotation on a Queue, JSON: which gangs its gangs may evict (`withinQueue`, `reclaim`, `borrow`, `fair`).
pub const PREEMPTION: &str = "muster.io/preemption";
/// Annotation on a Queue: the order of its gangs: `priority`, `fifo`, `sjf`, `round-robin` or `fair`.
pub const QUEUE_POLICY: &str = "muster.io/policy";
/// Annotation on a Queue: how long its gangs wait before they get a reservation; seconds, or a time such as `1h30m`.
pub const RESERVE_AFTER: &str = "muster.io/reserve-after";
/// Annotation on a Queue, JSON of resource to quantity: the most that one user may hold in it.
pub const USER_LIMIT: &str = "muster.io/user-limit";
/// Annotation or label on a PodGroup or pod: the user it runs for.
pub const USER: &str = "muster.io/user";
/// The annotation by which a cancelled job names the user that cancelled it. A cancelled job is suspended; its record
/// stays until a user deletes it.
pub const CANCELLED_BY: &str = "muster.io/cancelled-by";
/// The annotation by which a job that a policy cancelled says why; the rest of a sentence after "because".
pub const CANCELLED_BECAUSE: &str = "muster.io/cancelled-because";
/// The label of jobs that `muster dev` created.
pub const DEV: &str = "muster.io/dev";
/// Annotation on a Namespace: how long the GPUs of a job there may do nothing; on a job or a pod without one: the same for
/// itself, after which it is cancelled. A time from 1m to 90d.
pub const IDLE_GPU_LIMIT: &str = "muster.io/idle-gpu-limit";
/// Annotation on a Namespace: what happens to a job at the limit, `warn` or `cancel`. Defaults to `warn`.
pub const IDLE_GPU_ACTION: &str = "muster.io/idle-gpu-action";
/// Annotation on a Namespace: users whose jobs its limit does not concern, separated by commas.
pub const IDLE_GPU_EXEMPT_USERS: &str = "muster.io/idle-gpu-exempt-users";
/// Annotation on a Namespace: names of jobs that its limit does not concern, separated by commas.
pub const IDLE_GPU_EXEMPT_JOBS: &str = "muster.io/idle-gpu-exempt-jobs";
/// Annotation on a Queue, JSON of resource to quantity: the most that one team may hold in it.
pub const TEAM_LIMIT: &str = "muster.io/team-limit";
/// Annotation or label on a PodGroup or pod: the team it runs for.
pub const TEAM: &str = "muster.io/team";
/// Annotation on a PodGroup or pod (`true` or `false`): whether it may be evicted for other gangs. Defaults to `true`.
pub const PREEMPTIBLE: &str = "muster.io/preemptible";
/// Volcano's name for the same; read if [`PREEMPTIBLE`] is absent.
pub const VOLCANO_PREEMPTABLE: &str = "volcano.sh/preemptable";
/// Annotation on a PodGroup or pod (`true` or `false`): whether it may be moved to another node. `false`: never.
/// `true`: also for defragmentation. Absent: for waiting gangs, and for defragmentation if [`CHECKPOINT`] is set.
pub const MOVABLE: &str = "muster.io/movable";
/// Annotation on a PodGroup or pod: the interval of its checkpoints, in seconds or as `1h30m`. Work that has one may be
/// moved for defragmentation unless [`MOVABLE`] is `false`.
pub const CHECKPOINT: &str = "muster.io/checkpoint";
/// Annotation on a PodGroup or pod: the time that it needs to save a checkpoint before it stops: seconds, or like
/// `10m`; at most an hour. An eviction grants that time after SIGTERM (and its preStop hook) if its own grace period is
/// shorter.
pub const CHECKPOINT_GRACE: &str = "muster.io/checkpoint-grace";
/// Pod annotation written before an eviction of a pod with a [`CHECKPOINT_GRACE`]: the time (RFC 3339) by which it must
/// have saved its checkpoint.
pub const CHECKPOINT_BY: &str = "muster.io/checkpoint-by";
/// Annotation on a PodGroup or pod: the longest time that it runs: seconds, or like `1h30m`. The annotation of a
/// PyTorchJob or Job, or else its `activeDeadlineSeconds`, applies to its gang or pods.
pub const WALLTIME: &str = "muster.io/walltime";

/// Pod annotation: the fraction of one GPU that it requests, like `0.5`, with or without `nvidia.com/gpu: 1`. With more
/// than one GPU, that fraction of each.
pub const GPU_FRACTION: &str = "muster.io/gpu-fraction";
/// Pod annotation: the memory on one GPU that it requests, in MiB, in place of a fraction.
pub const GPU_MEMORY: &str = "muster.io/gpu-memory";
/// Pod annotation: the number of GPUs on which it requests its part; defaults to the GPUs that it requests, or one.
pub const GPU_COUNT: &str = "muster.io/gpu-count";
/// Pod annotation of KAI: the same as [`GPU_FRACTION`].
pub const KAI_GPU_FRACTION: &str = "gpu-fraction";
/// Pod annotation of KAI: the same as [`GPU_MEMORY`].
pub const KAI_GPU_MEMORY: &str = "gpu-memory";
/// Pod annotation of KAI: the same as [`GPU_COUNT`].
pub const KAI_GPU_COUNT: &str = "gpu-fraction-num-devices";
/// Pod annotation of KAI: the container that gets the GPU.
pub const KAI_GPU_CONTAINER: &str = "gpu-fraction-container-name";
/// Extended resource of Aliyun's device plugin: memory of one GPU, in GiB; on a node, of all its GPUs.
pub const ALIYUN_GPU_MEMORY: &str = "aliyun.com/gpu-mem";
/// Extended resource of Aliyun's device plugin: percents of one GPU, or hundreds for several whole ones.
pub const ALIYUN_GPU_CORE: &str = "aliyun.com/gpu-core";
/// The newer spelling of [`ALIYUN_GPU_CORE`].
pub const ALIYUN_GPU_CORE_PERCENTAGE: &str = "aliyun.com/gpu-core.percentage";
/// Node label of NVIDIA's feature discovery: the memory of each GPU, in MiB.
pub const NVIDIA_GPU_MEMORY: &str = "nvidia.com/gpu.memory";
/// Pod annotation: the GPU models that it accepts: words of a product's name, like `H100` or `A100-80GB`; several with
/// commas.
pub const GPU_MODEL: &str = "muster.io/gpu-model";
/// Pod annotation: the minimum memory of each of its GPUs, in MiB or as a quantity, like `40Gi`.
pub const GPU_MIN_MEMORY: &str = "muster.io/gpu-min-memory";
/// Pod annotation: the minimum CUDA compute capability, like `8.0`.
pub const GPU_MIN_COMPUTE: &str = "muster.io/gpu-min-compute";
/// Pod annotation: the minimum GPU driver version, like `535.104`.
pub const GPU_MIN_DRIVER: &str = "muster.io/gpu-min-driver";
/// The prefix of resources that count the GPUs of one model, as in `nvidia.com/gpu.H100`: queues may have amounts of
/// them. Any words of a product's name may follow the prefix.
pub const GPU_OF_MODEL: &str = "nvidia.com/gpu.";
/// A resource of NVIDIA's device plugin that has this prefix but is not a model.
pub const GPU_SHARED: &str = "nvidia.com/gpu.shared";
/// Node label of NVIDIA's feature discovery: the product name of its GPUs.
pub const NVIDIA_GPU_PRODUCT: &str = "nvidia.com/gpu.product";
/// Node labels of NVIDIA's feature discovery: the CUDA compute capability before and after the dot.
pub const NVIDIA_COMPUTE_MAJOR: &str = "nvidia.com/gpu.compute.major";
/// See [`NVIDIA_COMPUTE_MAJOR`].
pub const NVIDIA_COMPUTE_MINOR: &str = "nvidia.com/gpu.compute.minor";
/// Node label of NVIDIA's feature discovery: the driver's version.
pub const NVIDIA_DRIVER: &str = "nvidia.com/cuda.driver-version.full";
/// The driver's version in three labels, as newer and older releases of feature discovery write them.
pub const NVIDIA_DRIVER_PARTS: [&[&str]; 2] = [
    &[
        "nvidia.com/cuda.driver-version.major",
        "nvidia.com/cuda.driver-version.minor",
        "nvidia.com/cuda.driver-version.revision",
    ],
    &[
        "nvidia.com/cuda.driver.major",
        "nvidia.com/cuda.driver.minor",
        "nvidia.com/cuda.driver.rev",
    ],
];

/// Annotation on a PodGroup or pod: its topology constraints, JSON: `{"required": level, "preferred": level, "slices":
/// [{"level": level, "size": n}]}`. Levels are node label keys.
pub const TOPOLOGY: &str = "muster.io/topology";
/// Annotation on a PodGroup: its sub-groups, JSON: `[{"name", "parent"?, "minMember"?, "topology"?}]`.
pub const SUB_GROUPS: &str = "muster.io/sub-groups";
/// Label or annotation on a pod: its sub-group within the gang.
pub const SUB_GROUP: &str = "muster.io/sub-group";
/// Label or annotation on a pod: its rank in the gang; pods with adjacent ranks are placed close on the network.
pub const RANK: &str = "muster.io/rank";
/// Pod annotation of Kueue: all pods of the task in one domain of this level.
pub const KUEUE_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";
/// Pod annotation of Kueue: in one domain of this level if possible.
pub const KUEUE_PREFERRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-preferred-topology";
/// Pod annotation of Kueue: in any domain.
pub const KUEUE_UNCONSTRAINED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
/// Pod annotation of Kueue: every domain of this level holds whole slices.
pub const KUEUE_SLICE_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-slice-required-topology";
/// Pod annotation of Kueue: the number of pods in a slice.
pub const KUEUE_SLICE_SIZE: &str = "kueue.x-k8s.io/podset-slice-size";
/// Pod annotation of Kueue: tasks of the same name are placed in one domain together.
pub const KUEUE_GROUP_NAME: &str = "kueue.x-k8s.io/podset-group-name";
/// Annotation that `muster simulate` reads: when the object arrives, as seconds from the start, a span (`1h30m`) or a
/// time.
pub const ARRIVAL: &str = "muster.io/arrival";
/// Annotation that `muster simulate` reads: how long the work runs once all its members run, in seconds or as `1h30m`.
pub const DURATION: &str = "muster.io/duration";

/// A node condition: `True` means that the node has a fault that does not stop it yet. Pods are placed elsewhere if
/// possible.
pub const SUSPECT: &str = "muster.io/suspect";
/// A node condition: `True` means that the node's RDMA fails. Gangs of several pods with GPUs are not placed there;
/// other gangs are.
pub const FABRIC_FAILED: &str = "muster.io/fabric-failed";
/// The resource for a node's disk space that pods use through volumes and logs.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// The condition of a node whose disk is too full for more pods; the kubelet writes the same.
pub const DISK_PRESSURE: &str = "DiskPressure";
/// A node condition: `True` means that the node's MIG strategy is `single` but its slices have several profiles.
pub const MIG_NOT_UNIFORM: &str = "muster.io/mig-not-uniform";
/// A node condition: `True` means that some of the devices described to the node's agent are unhealthy, or that their
/// health is unknown. They are not allocated.
pub const DEVICES_UNHEALTHY: &str = "muster.io/devices-unhealthy";

/// The node's condition while the server refuses its agent's version.
pub const VERSION_REFUSED: &str = "muster.io/version-refused";
/// A node label: the MIG configuration requested for the node's GPUs (NVIDIA's MIG manager's).
pub const MIG_CONFIG: &str = "nvidia.com/mig.config";
/// A node label: the progress of the MIG configuration: `pending`, `rebooting`, `success` or `failed`.
pub const MIG_CONFIG_STATE: &str = "nvidia.com/mig.config.state";
/// The value of [`MIG_CONFIG_STATE`] while the GPUs are partitioned, or while their pods have not ended yet.
pub const MIG_PENDING: &str = "pending";
/// The value of [`MIG_CONFIG_STATE`] while a GPU must be reset, or the machine restarted, first.
pub const MIG_REBOOTING: &str = "rebooting";
/// The value of [`MIG_CONFIG_STATE`] once the GPUs are partitioned as [`MIG_CONFIG`] requests.
pub const MIG_SUCCESS: &str = "success";
/// A node annotation of an agent that partitions GPUs: the possible configurations, JSON of [`crate::mig::Possible`].
pub const MIG_CONFIGURATIONS: &str = "muster.io/mig-configurations";
/// A node annotation of the scheduler that wrote [`MIG_CONFIG`]: its reason, JSON of [`crate::mig::ChosenConfiguration`].
pub const MIG_CHOICE: &str = "muster.io/mig-choice";
/// A node condition: `True` means that the GPUs can't be partitioned as [`MIG_CONFIG`] requests, and gives the reason.
pub const MIG_FAILED: &str = "muster.io/mig-config-failed";
/// A node label: `true` reserves the node for pods that replace members lost with their node.
pub const SPARE: &str = "muster.io/spare";
/// A pod label: `true` marks a pod that replaces a member lost with its node.
pub const REPLACES_LOST: &str = "muster.io/replaces-lost";
/// A node annotation with the utilisation of its GPUs and the time of the measurement: JSON of
/// [`crate::load::NodeLoad`].
pub const LOAD: &str = "muster.io/load";
/// A node annotation with the firing alerts of its GPUs: a JSON list of [`crate::alerts::Alert`].
pub const ALERTS: &str = "muster.io/alerts";
/// A node annotation that asks the node's agent to take part in an RDMA check between two nodes of a Kubernetes
/// cluster: JSON of `hardware::rdma::pair::StoredRequest`.
pub const RDMA_ASK: &str = "muster.io/rdma-ask";
/// A node annotation with the agent's answer to [`RDMA_ASK`]: JSON of `hardware::rdma::pair::Reply`.
pub const RDMA_ANSWER: &str = "muster.io/rdma-answer";
/// A node label: the node's idle power draw in watts.
pub const IDLE_WATTS: &str = "muster.io/idle-watts";
