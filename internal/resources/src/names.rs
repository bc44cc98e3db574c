//! The labels, annotations, namespaces and well-known names that Muster's parts agree on. Constants only.

/// Annotation on a pod: the PodGroup (gang) in its namespace that it belongs to. Volcano's.
pub const GROUP_NAME: &str = "scheduling.k8s.io/group-name";
/// Annotation on a pod: its task in the gang (the replica type in lower case), which `minTaskMember` counts. Volcano's.
pub const TASK_SPEC: &str = "volcano.sh/task-spec";
/// Label or annotation on a job or pod: the queue it asks for. On a namespace: the queue of its work that
/// names none. Volcano's.
pub const QUEUE_NAME: &str = "scheduling.volcano.sh/queue-name";
/// The queue that takes whatever names no other; created at start.
pub const DEFAULT_QUEUE: &str = "default";

/// Annotation on a PodGroup, or a pod without one: how long it runs at least before it may be evicted, in seconds or as `1h30m`.
pub const MIN_RUNTIME: &str = "muster.io/min-runtime";

/// Label on a training job's pods and services: the job's name. Kubeflow's.
pub const JOB_NAME: &str = "training.kubeflow.org/job-name";
/// Label on a training job's pods and services: the controller that made them. Kubeflow's.
pub const OPERATOR_NAME: &str = "training.kubeflow.org/operator-name";
/// Value of [`OPERATOR_NAME`] for PyTorchJobs.
pub const PYTORCH_OPERATOR: &str = "pytorchjob-controller";
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
/// Annotation on a node: counts its agent's sessions, so that two of them can be put in order.
pub const SESSION: &str = "muster.io/session";
/// Annotation on a PyTorchJob: its rendezvous port in the embedded engine.
pub const RENDEZVOUS_PORT: &str = "muster.io/rendezvous-port";
/// Annotation on a PyTorchJob: restarts counted by replica type (JSON), so that `backoffLimit` survives the controller.
pub const RESTARTS: &str = "muster.io/restarts";
/// Annotation on a Job: how its ended attempts ended (JSON), so that `backoffLimit` survives the controller.
pub const ATTEMPTS: &str = "muster.io/attempts";
/// The rendezvous ports that the embedded engine gives out, first and last.
pub const RENDEZVOUS_PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;
/// The container port name that says which port a PyTorchJob's rendezvous uses. Kubeflow's.
pub const PYTORCH_PORT_NAME: &str = "pytorchjob-port";
/// The rendezvous port that Kubeflow's operator gives where pods have a network of their own.
pub const PYTORCH_DEFAULT_PORT: u16 = 23_456;

/// Annotation on a pod of the embedded engine: the Pod Security Standard that was enforced when it was made
/// (`privileged`, `baseline` or `restricted`; `privileged` where it was exempt). Admission writes it, and
/// it never changes; the agent reads it to decide which user runs the pod's processes.
pub const POD_SECURITY_LEVEL: &str = "muster.io/pod-security-level";

/// Node label (`true` or `false`): the node runs pods as processes.
pub const RUNTIME_PROCESS: &str = "muster.io/runtime.process";
/// Node label (`true` or `false`): the node has a CRI container runtime.
pub const RUNTIME_CRI: &str = "muster.io/runtime.cri";
/// Node label (`true` or `false`): an administrator lets commands of pods that name an image run on the host.
pub const RUNTIME_HOST_IMAGES: &str = "muster.io/runtime.host-images";

/// Extended resource: NVIDIA GPUs by count.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// What the resources begin with that are slices of GPUs (MIG), by their profile: `nvidia.com/mig-1g.10gb`.
pub const NVIDIA_MIG: &str = "nvidia.com/mig-";
/// The namespace of Muster's own Secrets and ConfigMaps (users, tokens, certificates).
pub const SYSTEM_NAMESPACE: &str = "muster-system";
/// The namespace of the nodes' leases.
pub const NODE_LEASES: &str = "kube-node-lease";
/// The namespaces that exist from the start.
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
/// Namespace label that only administrators set: the Unix account that the namespace's pods want on
/// nodes of the embedded engine. Each agent's `--accounts` says which account a value means on its node.
pub const UNIX_ACCOUNT: &str = "muster.io/unix-account";
/// Those of [`FIRST_NAMESPACES`] that are the system's own: what runs there, or lies there, is administrators'.
pub const SYSTEM_NAMESPACES: [&str; 4] =
    ["kube-system", "kube-public", NODE_LEASES, SYSTEM_NAMESPACE];
/// What a node's user name starts with; the node's name follows.
pub const NODE_USER_PREFIX: &str = "system:node:";
/// The group that nodes are in.
pub const NODES_GROUP: &str = "system:nodes";
/// The `schedulerName` of pods that are Muster's to place.
pub const SCHEDULER: &str = "muster";
/// `status.reason` of a pod whose node was lost.
pub const NODE_LOST: &str = "NodeLost";
/// `status.reason` of a pod that its node could not start for a fault of the node's own: it counts against no limit
/// of the job.
pub const NODE_UNFIT: &str = "NodeUnfit";
/// `status.reason` of a pod that its node evicted, as the kubelet's.
pub const EVICTED: &str = "Evicted";

/// Job labels of Kubernetes: the job's name.
pub const BATCH_JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Job labels of Kubernetes: the job's uid.
pub const BATCH_CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// The older spelling of [`BATCH_JOB_NAME`], set beside it.
pub const LEGACY_JOB_NAME: &str = "job-name";
/// The older spelling of [`BATCH_CONTROLLER_UID`], set beside it.
pub const LEGACY_CONTROLLER_UID: &str = "controller-uid";
/// Annotation and label on an Indexed Job's pods: the completion index.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Annotation on a Queue, JSON of resource to quantity: how far above its own `deserved` it may go.
pub const BORROWING_LIMIT: &str = "muster.io/borrowing-limit";
/// Annotation on a Queue, JSON of resource to quantity: how much of its `deserved` others may use while it is idle.
pub const LENDING_LIMIT: &str = "muster.io/lending-limit";
/// Annotation on a Queue: its weight in sharing what is beyond everybody's `deserved`; a quantity, or JSON of resource
/// to quantity. The queue's weight unless given; 0 for no share of it.
pub const SURPLUS_WEIGHT: &str = "muster.io/surplus-weight";
/// Annotation on a Queue, JSON: whom its gangs may evict (`withinQueue`, `reclaim`, `borrow`, `fair`).
pub const PREEMPTION: &str = "muster.io/preemption";
/// Annotation on a Queue: how its gangs follow each other: `priority`, `fifo`, `sjf`, `round-robin` or `fair`.
pub const QUEUE_POLICY: &str = "muster.io/policy";
/// Annotation on a Queue: how long its gangs wait for room before room is reserved for them; seconds, or a time such as `1h30m`.
pub const RESERVE_AFTER: &str = "muster.io/reserve-after";
/// Annotation on a Queue, JSON of resource to quantity: the most that one user may hold in it.
pub const USER_LIMIT: &str = "muster.io/user-limit";
/// Annotation or label on a PodGroup or pod: the user it runs for.
pub const USER: &str = "muster.io/user";
/// Annotation on a Queue, JSON of resource to quantity: the most that one team may hold in it.
pub const TEAM_LIMIT: &str = "muster.io/team-limit";
/// Annotation or label on a PodGroup or pod: the team it runs for.
pub const TEAM: &str = "muster.io/team";
/// Annotation on a PodGroup or pod (`true` or `false`): may it be evicted for others? True unless given.
pub const PREEMPTIBLE: &str = "muster.io/preemptible";
/// The same in Volcano's word; read where [`PREEMPTIBLE`] is not given.
pub const VOLCANO_PREEMPTABLE: &str = "volcano.sh/preemptable";
/// Annotation on a PodGroup or pod (`true` or `false`): may it be moved to another node? `false`: never. `true`: also to
/// make nodes whole. Not given: for others who wait, and to make nodes whole where
/// [`CHECKPOINT`] is given.
pub const MOVABLE: &str = "muster.io/movable";
/// Annotation on a PodGroup or pod: how often it saves itself, in seconds or as `1h30m`. What has one may be moved to
/// make nodes whole unless [`MOVABLE`] says no.
pub const CHECKPOINT: &str = "muster.io/checkpoint";
/// Annotation on a PodGroup or pod: how long it needs to save itself once it is told to go: seconds, or like `10m`; at
/// most an hour. An eviction gives it that long after SIGTERM (and its preStop hook), where its own grace period is
/// shorter.
pub const CHECKPOINT_GRACE: &str = "muster.io/checkpoint-grace";
/// Pod annotation written before an eviction of a pod with a [`CHECKPOINT_GRACE`]: the time (RFC 3339) by which it must
/// have saved itself.
pub const CHECKPOINT_BY: &str = "muster.io/checkpoint-by";
/// Annotation on a PodGroup or pod: how long it runs at most: seconds, or like `1h30m`. A PyTorchJob's or Job's goes
/// for its gang or pods, and its `activeDeadlineSeconds` where it has none.
pub const WALLTIME: &str = "muster.io/walltime";

/// Pod annotation: the part of one GPU that it asks for, like `0.5`, with or without `nvidia.com/gpu: 1`. With more than
/// one GPU, that part of each.
pub const GPU_FRACTION: &str = "muster.io/gpu-fraction";
/// Pod annotation: the memory on one GPU that it asks for, in MiB, in place of a fraction.
pub const GPU_MEMORY: &str = "muster.io/gpu-memory";
/// Pod annotation: on how many GPUs it asks for its part; one, unless it says otherwise or asks for more GPUs.
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
/// Pod annotation: which GPUs it may have: words of a product's name, like `H100` or `A100-80GB`; several with commas.
pub const GPU_MODEL: &str = "muster.io/gpu-model";
/// Pod annotation: the least memory of each GPU that it gets, in MiB or as a quantity, like `40Gi`.
pub const GPU_MIN_MEMORY: &str = "muster.io/gpu-min-memory";
/// Pod annotation: the least CUDA compute capability, like `8.0`.
pub const GPU_MIN_COMPUTE: &str = "muster.io/gpu-min-compute";
/// Pod annotation: the oldest GPU driver, like `535.104`.
pub const GPU_MIN_DRIVER: &str = "muster.io/gpu-min-driver";
/// What the name of a resource begins with that is the GPUs of one model, as in `nvidia.com/gpu.H100`: queues may have
/// amounts of it, any words of a product's name may follow.
pub const GPU_OF_MODEL: &str = "nvidia.com/gpu.";
/// A resource of NVIDIA's device plugin, and no model.
pub const GPU_SHARED: &str = "nvidia.com/gpu.shared";
/// Node label of NVIDIA's feature discovery: the product that its GPUs are.
pub const NVIDIA_GPU_PRODUCT: &str = "nvidia.com/gpu.product";
/// Node labels of NVIDIA's feature discovery: the CUDA compute capability before and after the dot.
pub const NVIDIA_COMPUTE_MAJOR: &str = "nvidia.com/gpu.compute.major";
/// See [`NVIDIA_COMPUTE_MAJOR`].
pub const NVIDIA_COMPUTE_MINOR: &str = "nvidia.com/gpu.compute.minor";
/// Node label of NVIDIA's feature discovery: the driver's version.
pub const NVIDIA_DRIVER: &str = "nvidia.com/cuda.driver-version.full";
/// The same in three labels, as newer and as older versions of it write them.
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

/// Annotation on a PodGroup or pod: what it asks of the network, JSON:
/// `{"required": level, "preferred": level, "slices": [{"level": level, "size": n}]}`. Levels are node label keys.
pub const TOPOLOGY: &str = "muster.io/topology";
/// Annotation on a PodGroup: its sub-groups, JSON: `[{"name", "parent"?, "minMember"?, "topology"?}]`.
pub const SUB_GROUPS: &str = "muster.io/sub-groups";
/// Label or annotation on a pod: its sub-group within the gang.
pub const SUB_GROUP: &str = "muster.io/sub-group";
/// Label or annotation on a pod: its rank in the gang; neighbours in rank are placed close on the network.
pub const RANK: &str = "muster.io/rank";
/// Pod annotation of Kueue: all pods of the task in one domain of this level.
pub const KUEUE_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";
/// Pod annotation of Kueue: in one domain of this level if possible.
pub const KUEUE_PREFERRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-preferred-topology";
/// Pod annotation of Kueue: anywhere.
pub const KUEUE_UNCONSTRAINED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
/// Pod annotation of Kueue: every domain of this level holds whole slices.
pub const KUEUE_SLICE_REQUIRED_TOPOLOGY: &str = "kueue.x-k8s.io/podset-slice-required-topology";
/// Pod annotation of Kueue: pods of one slice.
pub const KUEUE_SLICE_SIZE: &str = "kueue.x-k8s.io/podset-slice-size";
/// Pod annotation of Kueue: tasks of the same name are placed in one domain together.
pub const KUEUE_GROUP_NAME: &str = "kueue.x-k8s.io/podset-group-name";
/// Annotation that `muster simulate` reads: when the object arrives, as seconds from the start, a span (`1h30m`) or a time.
pub const ARRIVAL: &str = "muster.io/arrival";
/// Annotation that `muster simulate` reads: how long the work runs once it is whole, in seconds or as `1h30m`.
pub const DURATION: &str = "muster.io/duration";

/// A node condition: `True` says that something is wrong there that does not stop it yet. Pods go
/// elsewhere where there is room.
pub const SUSPECT: &str = "muster.io/suspect";
/// A node condition: `True` says that the node's RDMA fails. Gangs of several pods with GPUs are not
/// placed there; others are.
pub const FABRIC_FAILED: &str = "muster.io/fabric-failed";
/// The resource that is a node's disk, as pods use it by volumes and logs.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// The condition of a node whose disk is too full for more pods, as the kubelet writes it.
pub const DISK_PRESSURE: &str = "DiskPressure";
/// A node condition: `True` says that the MIG strategy is `single` there and the slices are of several profiles.
pub const MIG_NOT_UNIFORM: &str = "muster.io/mig-not-uniform";
/// A node condition: `True` says that some of the devices that the node's agent was given descriptions of are not well,
/// or not known to be. Nobody is given them.
pub const DEVICES_UNHEALTHY: &str = "muster.io/devices-unhealthy";
/// A node label: the configuration by which the node's GPUs are to be cut (NVIDIA's MIG manager's).
pub const MIG_CONFIG: &str = "nvidia.com/mig.config";
/// A node label: how far they are: `pending`, `rebooting`, `success` or `failed`.
pub const MIG_CONFIG_STATE: &str = "nvidia.com/mig.config.state";
/// The value of [`MIG_CONFIG_STATE`] while the GPUs are cut, or who has them is waited for.
pub const MIG_PENDING: &str = "pending";
/// The value of [`MIG_CONFIG_STATE`] while a GPU must be reset, or the machine restarted, first.
pub const MIG_REBOOTING: &str = "rebooting";
/// The value of [`MIG_CONFIG_STATE`] once the GPUs are cut as [`MIG_CONFIG`] says.
pub const MIG_SUCCESS: &str = "success";
/// A node annotation of its agent's, where that cuts GPUs: what they can be made into, JSON of
/// [`crate::mig::Possible`].
pub const MIG_CONFIGURATIONS: &str = "muster.io/mig-configurations";
/// A node annotation of a scheduler's that wrote [`MIG_CONFIG`]: for whom, JSON of [`crate::mig::Choice`].
pub const MIG_CHOICE: &str = "muster.io/mig-choice";
/// A node condition: `True` says that the GPUs can't be cut as [`MIG_CONFIG`] says, and why.
pub const MIG_FAILED: &str = "muster.io/mig-config-failed";
/// A node label: `true` keeps the node for pods that replace ones lost with their node.
pub const SPARE: &str = "muster.io/spare";
/// A pod label: `true` says that the pod replaces one that was lost with its node.
pub const REPLACES_LOST: &str = "muster.io/replaces-lost";
/// A node annotation with what its GPUs are doing, and when that was seen: JSON of
/// [`crate::load::NodeLoad`].
pub const LOAD: &str = "muster.io/load";
/// A node annotation with the alerts that stand on its GPUs: a JSON list of
/// [`crate::alerts::Alert`].
pub const ALERTS: &str = "muster.io/alerts";
/// A node annotation with which the node's agent is asked for its part in a check of RDMA between two nodes, in a
/// Kubernetes cluster: JSON of `hardware::rdma::pair::Question`.
pub const RDMA_ASK: &str = "muster.io/rdma-ask";
/// A node annotation with what its agent answers to [`RDMA_ASK`]: JSON of `hardware::rdma::pair::Reply`.
pub const RDMA_ANSWER: &str = "muster.io/rdma-answer";
/// A node label: what the node draws when nothing runs on it, in watts.
pub const IDLE_WATTS: &str = "muster.io/idle-watts";
