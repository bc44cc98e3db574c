//! LeaderWorkerSet as its controller and the checks name it. Source: leaderworkerset.x-k8s.io/v1.

/// The API group.
pub const GROUP: &str = "leaderworkerset.x-k8s.io";
/// The kind.
pub const KIND: &str = "LeaderWorkerSet";

/// Label on pods: the set's name.
pub const NAME: &str = "leaderworkerset.sigs.k8s.io/name";
/// Label on pods: the number of their group.
pub const GROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// Label on pods: their number in the group; the leader's is 0.
pub const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// Label on pods: the SHA-1 of the leader's namespace and name.
pub const GROUP_KEY: &str = "leaderworkerset.sigs.k8s.io/group-key";
/// Label on pods and revisions: the hash of the templates that they have.
pub const REVISION: &str = "leaderworkerset.sigs.k8s.io/template-revision-hash";
/// Label on pods: the number of their subgroup.
pub const SUBGROUP_INDEX: &str = "leaderworkerset.sigs.k8s.io/subgroup-index";
/// Label on pods: the SHA-1 of the leader's name and their subgroup.
pub const SUBGROUP_KEY: &str = "leaderworkerset.sigs.k8s.io/subgroup-key";
/// Annotation on pods: the pods of their group.
pub const SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
/// Annotation on workers: their leader's name.
pub const LEADER_NAME: &str = "leaderworkerset.sigs.k8s.io/leader-name";
/// Annotation on pods: the pods of a subgroup.
pub const SUBGROUP_SIZE: &str = "leaderworkerset.sigs.k8s.io/subgroup-size";
/// Annotation on pods: whether the leader belongs to a subgroup.
pub const SUBGROUP_POLICY: &str = "leaderworkerset.sigs.k8s.io/subgroup-policy-type";
/// Annotations on a set that ask for a topology domain for each group or subgroup. Muster does not follow them.
pub const EXCLUSIVE: [&str; 2] = [
    "leaderworkerset.sigs.k8s.io/exclusive-topology",
    "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology",
];

/// The variable with the leader's name in the network.
pub const LEADER_ADDRESS: &str = "LWS_LEADER_ADDRESS";
/// The variable with the pods of the group.
pub const GROUP_SIZE: &str = "LWS_GROUP_SIZE";
/// The variable with the pod's number in the group.
pub const WORKER_NUMBER: &str = "LWS_WORKER_INDEX";

/// A group is created anew if one of its pods is, or a container of one is started again.
pub const RECREATE_ON_RESTART: &str = "RecreateGroupOnPodRestart";
/// The same once all pods of the group have started.
pub const RECREATE_AFTER_START: &str = "RecreateGroupAfterStart";
/// Pods are replaced one by one.
pub const NO_RECREATION: &str = "None";
/// All restart policies; the last one is an old name of [`NO_RECREATION`].
pub const RESTART_POLICIES: [&str; 4] = [
    RECREATE_ON_RESTART,
    RECREATE_AFTER_START,
    NO_RECREATION,
    "Default",
];
/// Workers are created with their leader.
pub const LEADER_CREATED: &str = "LeaderCreated";
/// Workers are created once their leader is ready.
pub const LEADER_READY: &str = "LeaderReady";
/// All groups have the set's name as their subdomain.
pub const SHARED: &str = "Shared";
/// Each group has its leader's name as its subdomain.
pub const UNIQUE: &str = "UniquePerReplica";
/// The leader is in the first subgroup.
pub const LEADER_WORKER: &str = "LeaderWorker";
/// The leader is in no subgroup.
pub const LEADER_EXCLUDED: &str = "LeaderExcluded";
