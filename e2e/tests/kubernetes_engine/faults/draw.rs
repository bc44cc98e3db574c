//! Draws a round from its seed alone: nodes, work and its arrival, other schedulers, faults and their times. The
//! nodes can hold all the work however it is spread.

use std::fmt;
use std::time::Duration;

use resources::splitmix::SplitMix;

/// Room in cores, GiB, GPUs and pods.
pub type Room = [i64; 4];
/// The index of GPUs.
pub const GPUS: usize = 2;
/// The index of pods.
pub const PODS: usize = 3;
/// Their names.
pub const NAMES: [&str; 4] = ["cpu", "memory", "nvidia.com/gpu", "pods"];

/// How long work keeps arriving and faults happen, in milliseconds.
const LONG: u64 = 6_000;
/// Fill level of the nodes' guaranteed capacity, in percent.
const FILLED: i64 = 90;
/// Number of attempts to add work that fits.
const TRIES: usize = 40;
/// How long a paused leader sleeps: longer than its lease lasts.
const SLEEP: u64 = 13_000;
/// How long there is no room: longer than a gang may be half bound.
const SQUEEZED: u64 = 12_000;

/// Random numbers from a seed.
#[derive(Clone, Debug)]
pub struct Draw(SplitMix);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        Draw(SplitMix::new(seed))
    }

    /// A number from `low` to below `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low)
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.0.below(100) < percent
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.within(0, all.len() as u64) as usize]
    }
}

/// The placer of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placer {
    Muster,
    /// kube-scheduler.
    Stock,
    /// A plain client that binds wherever it sees room.
    Rival,
}

impl Placer {
    pub fn scheduler_name(self) -> &'static str {
        match self {
            Placer::Muster => "muster",
            Placer::Stock => "default-scheduler",
            Placer::Rival => "rival",
        }
    }
}

/// Pods that arrive together.
#[derive(Clone, Debug)]
pub struct Work {
    pub name: String,
    pub comes: Duration,
    pub placer: Placer,
    /// The number of members, and for a gang the number that must start together.
    pub size: usize,
    pub minimum: Option<usize>,
    /// Whether the owner creates a PyTorchJob, from which Muster makes the gang.
    pub job: bool,
    /// The request of each pod.
    pub asks: Room,
    /// The time from the start of all its pods to its end and removal.
    pub runs: Option<Duration>,
    /// The time at which it is cancelled, in any state.
    pub cancelled: Option<Duration>,
}

impl Work {
    /// The names of its pods.
    pub fn members(&self) -> Vec<String> {
        let name = |at: usize| match (self.job, at) {
            (false, at) => format!("{}-{at}", self.name),
            (true, 0) => format!("{}-master-0", self.name),
            (true, at) => format!("{}-worker-{}", self.name, at - 1),
        };
        (0..self.size).map(name).collect()
    }

    /// Whether it still exists at the end of the round.
    pub fn stays(&self) -> bool {
        self.runs.is_none() && self.cancelled.is_none()
    }
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Killed, and restarted after a while.
    Killed(&'static str),
    /// kube-apiserver and etcd at once.
    BothKilled,
    /// Paused for a while.
    Paused(&'static str),
    /// The servers are paused while etcd's history is compacted and kube-apiserver restarts: no watch can continue.
    WatchesExpired,
    /// Nodes with bindings in progress are deleted, and come back after a while.
    NodesVanish(usize),
    /// Nodes are cordoned for a while.
    NodesCordoned(usize),
    /// Nodes are filled with pods that no scheduler placed, for a while.
    Crowd(usize),
    /// All nodes are filled, and a node with a running gang is deleted: the gang's lost members find no room, so that
    /// the whole gang must be evicted.
    Squeezed,
    /// The leading server is killed, and restarted after a while.
    LeaderKilled,
    /// The leading server is paused until another one has taken over, and resumes.
    LeaderSleeps,
}

/// A fault with its time and duration.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub at: Duration,
    pub lasts: Duration,
    pub fault: Fault,
}

/// A round.
#[derive(Clone, Debug)]
pub struct Round {
    pub seed: u64,
    pub nodes: usize,
    /// The room of each node.
    pub room: Room,
    pub work: Vec<Work>,
    pub events: Vec<Event>,
    pub servers: usize,
    /// How often, in percent of its looks, the rival binds one of Muster's pods.
    pub thieving: u64,
    /// Writes per second to objects that others also write.
    pub meddling: u32,
    /// The generator that decides only which gangs belong to jobs.
    jobs: Draw,
}

impl Round {
    pub fn drawn(seed: u64) -> Round {
        let mut draw = Draw::new(seed);
        let room = draw.one_of(&[[64, 512, 8, 20], [32, 96, 4, 16], [64, 192, 8, 10]]);
        let mut round = Round {
            seed,
            nodes: draw.within(12, 29) as usize,
            room,
            work: Vec::new(),
            events: Vec::new(),
            servers: 1 + usize::from(draw.chance(35)),
            thieving: draw.one_of(&[0, 0, 30]),
            meddling: draw.one_of(&[0, 20, 60]),
            jobs: Draw::new(seed ^ 0x006a_6f62),
        };
        let others = draw.one_of(&[
            &[][..],
            &[Placer::Stock],
            &[Placer::Rival],
            &[Placer::Stock, Placer::Rival],
        ]);
        for _ in 0..TRIES {
            round.add_work(&mut draw, others);
        }
        round.add_events(&mut draw);
        round
    }

    /// Adds work as long as the nodes can certainly hold it.
    fn add_work(&mut self, draw: &mut Draw, others: &[Placer]) {
        let placer = match draw.chance(25) && !others.is_empty() {
            true => draw.one_of(others),
            false => Placer::Muster,
        };
        let gang = placer == Placer::Muster && draw.chance(75);
        let size = if gang {
            draw.one_of(&[2, 3, 4, 6, 8, 12, 20])
        } else {
            draw.within(1, 6) as usize
        };
        let gpus = draw.one_of(&[1, 1, 1, 2, 2, 0]);
        let cores = draw.one_of(&[1, 2, 4]);
        let gib = draw.one_of(&[1, 4, 8]);
        let all = u64::from(draw.chance(70));
        let minimum = if all == 1 {
            size
        } else {
            size.div_ceil(2).max(2)
        };
        let fate = draw.within(0, 100);
        let comes = draw.within(0, LONG * 4 / 5);
        let work = Work {
            name: format!("w{}", self.work.len()),
            comes: Duration::from_millis(comes),
            placer,
            size,
            minimum: gang.then_some(minimum),
            job: gang && self.jobs.chance(50),
            asks: [cores, gib, gpus, 1],
            runs: (fate < 12).then(|| Duration::from_millis(draw.within(200, 2_000))),
            cancelled: (fate > 92)
                .then(|| Duration::from_millis(comes + draw.within(100, LONG / 2))),
        };
        self.work.push(work);
        if !self.surely_fits() {
            self.work.pop();
        }
    }

    /// Whether all the work fits however it is spread. A node rejects a pod only if it has less room than the largest
    /// pod requests; if all nodes rejected it, more room would be used than all the work requests.
    fn surely_fits(&self) -> bool {
        let mut shut = 0.0;
        for (at, has) in self.room.iter().enumerate() {
            let asked = |work: &Work| work.asks[at] * work.size as i64;
            let all: i64 = self.work.iter().map(asked).sum();
            let largest = self.work.iter().map(|work| work.asks[at]).max();
            let least = has - largest.unwrap_or(0) + 1;
            shut += all as f64 / least as f64;
        }
        shut * 100.0 < (self.nodes as i64 * FILLED) as f64
    }

    fn add_events(&mut self, draw: &mut Draw) {
        let mut kinds = vec![
            Fault::Killed("kube-apiserver"),
            Fault::Killed("kube-apiserver"),
            Fault::Killed("etcd"),
            Fault::BothKilled,
            Fault::Paused("kube-apiserver"),
            Fault::Paused("etcd"),
            Fault::WatchesExpired,
            Fault::NodesVanish(1 + draw.within(0, 3) as usize),
            Fault::NodesVanish(1 + draw.within(0, 3) as usize),
            Fault::NodesCordoned(1 + draw.within(0, 4) as usize),
            Fault::Crowd(self.nodes / 2),
            Fault::Squeezed,
            Fault::LeaderKilled,
        ];
        if self.servers > 1 {
            kinds.extend([Fault::LeaderKilled, Fault::LeaderSleeps]);
        }
        for _ in 0..draw.within(2, 5) {
            let fault = draw.one_of(&kinds);
            let lasts = match fault {
                Fault::LeaderSleeps => SLEEP,
                Fault::Squeezed => SQUEEZED,
                Fault::Paused(_) => draw.within(200, 4_000),
                Fault::NodesVanish(_) | Fault::NodesCordoned(_) => draw.within(300, 3_000),
                Fault::Crowd(_) => draw.within(1_000, 9_000),
                _ => draw.within(0, 2_500),
            };
            self.events.push(Event {
                at: Duration::from_millis(draw.within(200, LONG)),
                lasts: Duration::from_millis(lasts),
                fault,
            });
        }
        self.events.sort_by_key(|event| event.at);
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Fault::Killed(program) => write!(f, "{program} killed")?,
            Fault::BothKilled => write!(f, "kube-apiserver and etcd killed")?,
            Fault::Paused(program) => write!(f, "{program} held up")?,
            Fault::WatchesExpired => write!(f, "watches expired")?,
            Fault::NodesVanish(nodes) => write!(f, "{nodes} nodes vanish")?,
            Fault::NodesCordoned(nodes) => write!(f, "{nodes} nodes cordoned")?,
            Fault::Crowd(nodes) => write!(f, "{nodes} nodes crowded")?,
            Fault::Squeezed => write!(f, "all nodes crowded and one gone")?,
            Fault::LeaderKilled => write!(f, "leader killed")?,
            Fault::LeaderSleeps => write!(f, "leader sleeps")?,
        }
        write!(
            f,
            " at {:.1} s for {:.1} s",
            self.at.as_secs_f64(),
            self.lasts.as_secs_f64()
        )
    }
}

#[test]
fn a_seed_says_all_of_a_round_and_rounds_differ() {
    let shown = |seed: u64| format!("{:?}", Round::drawn(seed));
    assert_eq!(shown(7), shown(7));
    assert_ne!(shown(7), shown(8));
    let mut faults = std::collections::BTreeSet::new();
    let (mut jobs, mut gangs) = (0, 0);
    for seed in 0..100 {
        let round = Round::drawn(seed);
        assert!(
            round.surely_fits() && round.work.iter().any(Work::stays),
            "{seed}"
        );
        jobs += round.work.iter().filter(|work| work.job).count();
        gangs += round
            .work
            .iter()
            .filter(|work| work.minimum.is_some())
            .count();
        let named = |event: &Event| format!("{event}").replace(char::is_numeric, "");
        faults.extend(round.events.iter().map(named));
    }
    assert_eq!(
        faults.len(),
        12,
        "a hundred rounds have every fault: {faults:?}"
    );
    assert!(jobs > 0 && jobs < gangs, "{jobs} of {gangs}");
}
