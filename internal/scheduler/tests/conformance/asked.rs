//! What a case asks of a scheduler, and the scheduler's answers, in terms that every engine shares.

/// What a case asks of the scheduler as a whole.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Node label keys, widest first.
    pub topology: Vec<String>,
    /// Fuller nodes first, emptier ones first, or the default.
    pub placing: Placing,
    /// Sharers go to the emptiest GPU of a node.
    pub spread_gpus: bool,
    /// The only actions to run; all that are on by default where empty.
    pub actions: Vec<Action>,
}

/// Which nodes go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placing {
    /// The scheduler's default.
    #[default]
    Default,
    /// Fuller nodes.
    Pack,
    /// Emptier nodes.
    Spread,
}

/// One of the steps of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allocate,
    Consolidate,
    Reclaim,
    Preempt,
}

/// A pod and the room it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub pod: String,
    pub node: String,
    /// The annotation's value; empty where nothing was chosen.
    pub devices: String,
}

/// A pod that must go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    pub pod: String,
    /// The reason's name.
    pub why: String,
}

/// What one plan decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    pub binds: Vec<Placed>,
    pub evictions: Vec<Evicted>,
    /// Room held for pods while others leave.
    pub nominated: Vec<Placed>,
    /// Why the rest waits: group and sentence.
    pub waits: Vec<(String, String)>,
}
