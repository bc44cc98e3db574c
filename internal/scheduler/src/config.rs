//! What the scheduler is told once, when it is made, and what holds where nothing is told. Reading it
//! from a file is `settings`'s.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1 as k8s;

use crate::cutting::Cutting;
use crate::evict::Tidying;
use crate::queue::Decay;
use crate::share::GpuOrder;

/// What the scheduler is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `schedulerName` values it answers to. Other pods are accounted, never placed.
    pub scheduler_names: Vec<String>,
    /// What plans may do.
    pub actions: Actions,
    /// How long a gang may run with fewer members than it needs before it is evicted whole.
    pub stale_after: SignedDuration,
    /// May preemption and reclaim break a PodDisruptionBudget where nothing else makes room? Moves
    /// never do.
    pub break_budgets: bool,
    /// Which GPU a pod gets that shares one.
    pub gpus: GpuOrder,
    /// How much defragmentation may move, and for how much.
    pub tidying: Tidying,
    /// For whom idle GPUs are cut (MIG); none: people say how GPUs are cut.
    pub cutting: Option<Cutting>,
    /// How queues' past use counts in their entitlements; none: it does not.
    pub usage: Option<Decay>,
    /// Node labels that name network domains, widest first. Single hosts are the narrowest level,
    /// listed (as `kubernetes.io/hostname`) or not.
    pub topology: Vec<String>,
    /// Which nodes are taken first.
    pub placement: Strategy,
    /// How long a gang waits for room before room is reserved for it, where its queue does not say
    /// (`muster.io/reserve-after`); six times as long while of most that run it is neither said nor
    /// learnt how long they do.
    pub reserve_after: SignedDuration,
    /// Which of several gangs room is reserved for.
    pub lead: Lead,
    /// Whether evictions must save more waiting than they lose work, where both are known.
    pub weigh_losses: bool,
    /// How old what is known of a node's load may be; after that it is not known.
    pub load_age: SignedDuration,
    /// Claims, volumes and storage classes are all told of: one that is not is not there, and pods that
    /// need it wait. Else it asks for nothing.
    pub volumes_told: bool,
    /// Such pods are to come, so many of each, as far as placement is concerned; their names and
    /// times do not matter. None: they are expected to be like the pods there are.
    pub expected: Vec<(k8s::Pod, u64)>,
}

/// What plans may do. Actions come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Place gangs in free room.
    pub allocate: bool,
    /// Move pods so that a gang fits, where each of them has another place.
    pub consolidate: bool,
    /// Take back from other queues what they hold beyond their share.
    pub reclaim: bool,
    /// Take from gangs of lower priority in the same queue.
    pub preempt: bool,
    /// Start gangs out of order where nobody before them starts later for it.
    pub backfill: bool,
    /// Move work that allows it so that nodes become whole.
    pub defragment: bool,
}

impl Actions {
    /// Plans may do nothing.
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

/// How long a gang below its minimum is left running unless configured otherwise.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// Which of several gangs that wait for room it is reserved for, among those of the highest
/// priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lead {
    /// The one whose queue holds the smallest part of its share.
    Share,
    /// The one that has waited longest.
    Age,
    /// The one that has waited longest for most: small gangs find room by themselves.
    Size,
    /// The one that has waited longest in relation to how long it is expected to run (the highest
    /// response ratio): of those that came together the shortest, and the longest once it has waited
    /// for longer than all that are shorter. Frees much waiting soon, and keeps the longest from
    /// being what is left at the end (`make bench-frontier`).
    #[default]
    Response,
}

/// How long a gang waits for room before room is reserved for it, unless configured otherwise.
const RESERVE_AFTER: SignedDuration = SignedDuration::from_hours(4);
/// How long a node's load is gone by unless configured otherwise: eight times the usual scrape.
const LOAD_AGE: SignedDuration = SignedDuration::from_secs(120);

/// Which nodes are taken first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// As few nodes as can be, the fullest first, so that whole nodes stay free.
    Pack,
    /// The emptiest node for each pod.
    Spread,
    /// The node that leaves most to the pods to come, where one suffices and several would do; and
    /// of its GPUs, for a pod that shares one, the one that does. Otherwise, and while nothing is
    /// known of the pods to come, the same as `Pack`.
    #[default]
    Fragmentation,
}

/// The levels that are read unless others are given, widest first.
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
            tidying: Tidying::default(),
            gpus: GpuOrder::default(),
            cutting: None,
            usage: None,
            topology: LEVELS.map(str::to_owned).to_vec(),
            placement: Strategy::default(),
            reserve_after: RESERVE_AFTER,
            lead: Lead::default(),
            weigh_losses: true,
            load_age: LOAD_AGE,
            volumes_told: false,
            expected: Vec::new(),
        }
    }
}
