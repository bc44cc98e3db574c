//! The scheduler's configuration and its defaults. `settings` reads it from a file.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1 as k8s;

use crate::evict::DefragmentationBudget;
use crate::queue::Decay;
use crate::repartition::RepartitionBudget;
use crate::share::GpuOrder;

/// The scheduler's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `schedulerName` values whose pods it places. Other pods are only accounted.
    pub scheduler_names: Vec<String>,
    /// What plans may do.
    pub actions: Actions,
    /// How long a gang may run with fewer members than its minimum before it is evicted.
    pub stale_after: SignedDuration,
    /// May preemption and reclaim violate a PodDisruptionBudget if nothing else makes room? Moves
    /// never do.
    pub break_budgets: bool,
    /// Which GPU a pod gets that requests a part of one.
    pub gpus: GpuOrder,
    /// How much defragmentation may move, and for what gain.
    pub defragmentation: DefragmentationBudget,
    /// MIG repartitioning of idle GPUs; `None`: users choose the configurations.
    pub repartition: Option<RepartitionBudget>,
    /// How queues' past use counts in their entitlements; `None`: not at all.
    pub usage: Option<Decay>,
    /// Node labels that name network domains, widest first. Single hosts are always the narrowest
    /// level, whether `kubernetes.io/hostname` is listed or not.
    pub topology: Vec<String>,
    /// Which nodes are taken first.
    pub placement: PlacementStrategy,
    /// How long a gang waits before capacity is reserved for it, if its queue sets no
    /// `muster.io/reserve-after`; six times as long while the run times of most running gangs are
    /// neither stated nor learnt.
    pub reserve_after: SignedDuration,
    /// Which waiting gang capacity is reserved for.
    pub lead: Lead,
    /// Whether evictions must save more waiting time than they lose work, if both are known.
    pub weigh_losses: bool,
    /// The age at which a node's reported load is ignored.
    pub load_age: SignedDuration,
    /// True if events report all claims, volumes and storage classes: then an unknown one does not
    /// exist, and pods that need it wait. False: an unknown one imposes nothing.
    pub volumes_told: bool,
    /// The expected pods: each kind with its number; names and times do not matter. Empty: future
    /// pods are expected to be like the known ones.
    pub expected: Vec<(k8s::Pod, u64)>,
}

/// What plans may do, in the order in which they do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Place gangs on free capacity.
    pub allocate: bool,
    /// Move pods so that a gang fits, if each of them has another place.
    pub consolidate: bool,
    /// Take back from other queues what they hold beyond their share.
    pub reclaim: bool,
    /// Evict gangs of lower priority in the same queue.
    pub preempt: bool,
    /// Start gangs out of order if that delays no gang before them.
    pub backfill: bool,
    /// Move movable pods so that whole nodes become free.
    pub defragment: bool,
}

impl Actions {
    /// No action.
    pub(crate) const NONE: Actions = Actions {
        allocate: false,
        consolidate: false,
        reclaim: false,
        preempt: false,
        backfill: false,
        defragment: false,
    };
}

impl Default for Actions {
    fn default() -> Actions {
        Actions {
            allocate: true,
            consolidate: false,
            reclaim: true,
            preempt: true,
            backfill: true,
            defragment: false,
        }
    }
}

/// The default of `stale_after`.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// Which of several waiting gangs of the highest priority capacity is reserved for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lead {
    /// The gang whose queue holds the smallest part of its share.
    Share,
    /// The gang that has waited longest.
    Age,
    /// The gang with the largest product of waiting time and size: small gangs find room without
    /// reservation.
    Size,
    /// The gang with the highest response ratio (waiting time over expected run time). Of gangs
    /// that arrived together the shortest is first; the longest becomes first once it has waited
    /// long enough. This shortens total waiting and keeps long gangs from being left to the end
    /// (`make bench-frontier`).
    #[default]
    Response,
}

/// The default of `reserve_after`.
const RESERVE_AFTER: SignedDuration = SignedDuration::from_hours(4);
/// The default of `load_age`: eight times the usual scrape interval.
const LOAD_AGE: SignedDuration = SignedDuration::from_secs(120);

/// Which nodes are taken first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlacementStrategy {
    /// As few nodes as possible, the fullest first, so that whole nodes stay free.
    Pack,
    /// The emptiest node for each pod.
    Spread,
    /// The node that leaves the most capacity usable by expected pods, if one node suffices and
    /// several would do; likewise the GPU of a node, for a pod that requests a part. In all other
    /// cases, and while no expected pods are known, the same as `Pack`.
    #[default]
    Fragmentation,
}

/// The default topology levels, widest first.
const LEVELS: [&str; 5] = [
    "topology.kubernetes.io/zone",
    "muster.io/spine",
    "muster.io/leaf",
    "muster.io/rack",
    "muster.io/nvlink-domain",
];

impl Default for Config {
    fn default() -> Config {
        let names = ["muster", "default-scheduler", "volcano", ""];
        Config {
            scheduler_names: names.map(str::to_owned).to_vec(),
            actions: Actions::default(),
            stale_after: STALE_AFTER,
            break_budgets: false,
            defragmentation: DefragmentationBudget::default(),
            gpus: GpuOrder::default(),
            repartition: None,
            usage: None,
            topology: LEVELS.map(str::to_owned).to_vec(),
            placement: PlacementStrategy::default(),
            reserve_after: RESERVE_AFTER,
            lead: Lead::default(),
            weigh_losses: true,
            load_age: LOAD_AGE,
            volumes_told: false,
            expected: Vec::new(),
        }
    }
}
