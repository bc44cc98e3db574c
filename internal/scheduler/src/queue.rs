//! Queues: what each holds, its share, its bounds, and what is kept for it. Says how much more a
//! queue may take; who gets it is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use resources::amounts::Amounts;
use resources::kinds::{Queue as Object, QueueState};
use resources::names::DEFAULT_QUEUE;

use crate::line::LineKey;
use crate::resource::{Demand, Ix, Names, PODS, Room};

/// A share is counted in these parts of the whole cluster, so that comparing is exact.
const SHARE_PARTS: i128 = 1_000_000_000_000;

/// One queue, or the place of one that gangs name but that is not there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) rules: Option<Rules>,
    /// What its gangs hold.
    pub(crate) allocated: Room,
    /// What gangs that were let in and have not started said they need.
    pub(crate) expected: Room,
    /// The gangs that wait.
    pub(crate) line: BTreeSet<LineKey>,
    /// Gangs that name it.
    pub(crate) gangs: usize,
}

/// What a Queue object says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rules {
    pub(crate) weight: i64,
    pub(crate) priority: i32,
    pub(crate) capability: Vec<(Ix, i64)>,
    pub(crate) guarantee: Demand,
    pub(crate) open: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            weight: 1,
            priority: 0,
            capability: Vec::new(),
            guarantee: Demand::default(),
            open: true,
        }
    }
}

impl Rules {
    pub(crate) fn read(queue: &Object, names: &mut Names) -> Rules {
        let spec = &queue.spec;
        let capability = spec
            .capability
            .as_ref()
            .map(Amounts::from_k8s)
            .unwrap_or_default();
        let guarantee = spec
            .guaranteed_resources()
            .map(Amounts::from_k8s)
            .unwrap_or_default();
        let state = queue.status.as_ref().and_then(|status| status.state);
        Rules {
            weight: i64::from(spec.weight.unwrap_or(1).max(1)),
            priority: spec.priority.unwrap_or(0),
            capability: capability
                .iter()
                .map(|(name, n)| (names.intern(name), n))
                .collect(),
            guarantee: names.demand(&guarantee),
            open: !matches!(state, Some(QueueState::Closed | QueueState::Closing)),
        }
    }
}

/// What keeps a queue from taking more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// Its own capability.
    Capability {
        resource: Ix,
        allowed: i64,
        held: i64,
    },
    /// What is kept for other queues.
    Guarantees { resource: Ix, idle: i64, kept: i64 },
}

/// All queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    table: BTreeMap<String, Queue>,
    /// What is guaranteed to queues that do not hold it yet.
    kept: Room,
}

impl Queues {
    pub(crate) fn get(&self, name: &str) -> Option<&Queue> {
        self.table.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Queue)> {
        self.table.iter()
    }

    /// The queue's rules. The default queue takes work even before somebody wrote it down.
    pub(crate) fn rules(&self, name: &str) -> Option<Rules> {
        let written = self.table.get(name).and_then(|queue| queue.rules.clone());
        written.or_else(|| (name == DEFAULT_QUEUE).then(Rules::default))
    }

    pub(crate) fn entry(&mut self, name: &str) -> &mut Queue {
        if !self.table.contains_key(name) {
            self.table.insert(name.to_owned(), Queue::default());
        }
        self.table.get_mut(name).expect("it was just put there")
    }

    pub(crate) fn set_rules(&mut self, name: &str, rules: Option<Rules>) {
        self.keep(name, -1);
        self.entry(name).rules = rules;
        self.keep(name, 1);
        self.tidy(name);
    }

    /// Forgets a queue that neither exists nor is named by a gang.
    pub(crate) fn tidy(&mut self, name: &str) {
        if self
            .table
            .get(name)
            .is_some_and(|queue| queue.rules.is_none() && queue.gangs == 0)
        {
            self.table.remove(name);
        }
    }

    /// Puts so many demands on the queue's account; a negative number takes them off.
    pub(crate) fn charge(&mut self, name: &str, demand: &Demand, times: i64) {
        let queue = self.entry(name);
        let guarded = queue
            .rules
            .as_ref()
            .is_some_and(|rules| !rules.guarantee.0.is_empty());
        if guarded {
            self.keep(name, -1);
        }
        self.entry(name).allocated.add(demand, times);
        if guarded {
            self.keep(name, 1);
        }
    }

    pub(crate) fn charge_room(&mut self, name: &str, room: &Room, times: i64) {
        self.keep(name, -1);
        self.entry(name).allocated.add_room(room, times);
        self.keep(name, 1);
    }

    fn keep(&mut self, name: &str, times: i64) {
        let Some(queue) = self.table.get(name) else {
            return;
        };
        let unmet = unmet(queue);
        self.kept.add(&unmet, times);
    }

    /// How many times the queue may take a demand more, and what allows no more than that.
    pub(crate) fn allows(
        &self,
        name: &str,
        demand: &Demand,
        idle: impl Fn(Ix) -> i64,
    ) -> (u32, Option<Bound>) {
        let Some(queue) = self.table.get(name) else {
            return (u32::MAX, None);
        };
        let mut least = (i64::from(u32::MAX), None);
        let capability = queue.rules.iter().flat_map(|rules| &rules.capability);
        for (ix, allowed) in capability {
            let asked = demand.get(*ix);
            if asked == 0 {
                continue;
            }
            let held = queue.allocated.get(*ix);
            let times = (allowed - held).max(0) / asked;
            if times < least.0 {
                let bound = Bound::Capability {
                    resource: *ix,
                    allowed: *allowed,
                    held,
                };
                least = (times, Some(bound));
            }
        }
        let own = unmet(queue);
        for (ix, asked) in &demand.0 {
            let kept = self.kept.get(*ix) - own.get(*ix);
            if kept <= 0 {
                continue;
            }
            let times = (idle(*ix) - kept).max(0) / asked;
            if times < least.0 {
                let bound = Bound::Guarantees {
                    resource: *ix,
                    idle: idle(*ix),
                    kept,
                };
                least = (times, Some(bound));
            }
        }
        (least.0 as u32, least.1)
    }

    /// The queue's dominant share of the cluster over its weight, and of which resource.
    pub(crate) fn share(&self, name: &str, total: &Room) -> i128 {
        let Some(queue) = self.table.get(name) else {
            return 0;
        };
        let weight = queue.rules.as_ref().map_or(1, |rules| rules.weight);
        let parts = queue
            .allocated
            .iter()
            .filter(|(ix, _)| *ix != PODS)
            .map(|(ix, held)| match total.get(ix) {
                ..=0 => 0,
                all => i128::from(held) * SHARE_PARTS / i128::from(all),
            });
        parts.max().unwrap_or(0) / i128::from(weight)
    }
}

fn unmet(queue: &Queue) -> Demand {
    let guarantee = queue.rules.iter().flat_map(|rules| &rules.guarantee.0);
    let short = guarantee.map(|(ix, amount)| (*ix, amount - queue.allocated.get(*ix).max(0)));
    Demand(short.filter(|(_, amount)| *amount > 0).collect())
}
