//! From when on there is room for gangs of several sizes, where the network topology does not
//! matter: the same answers as computing one shadow for each gang (`shadow`), at the cost of the
//! shadow of the largest. For gangs that are asked about one after the other while nothing changes.
//! Only declared and learnt ends count.
//!
//! Test: `room_grows_as_shadows_say_in_any_order_of_requests` compares both on random clusters.

use std::collections::BTreeMap;
use std::ops::Bound;

use jiff::Timestamp;

use super::shadow::{Ends, HeadDemand, take_from};
use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::resource::Room;
use crate::state::Scheduler;

/// How the room for members of several classes grows. Valid at one time, until a gang is placed or
/// ends.
#[derive(Debug, Default)]
pub(crate) struct RoomGrowth {
    classes: BTreeMap<ClassIx, Steps>,
}

/// How the room for one class grows.
#[derive(Debug)]
struct Steps {
    /// How many members each node holds, and all nodes together.
    holds: Vec<u32>,
    all: u64,
    /// What the gangs that end by then give back, by node.
    given: Vec<Room>,
    /// The members that there is room for, and from when on, where that is more than before.
    found: Vec<(u64, i64)>,
    /// The last end that is counted.
    last: Option<(i64, GangKey)>,
}

impl Scheduler {
    /// The earliest time, in seconds, at which a request fits. None if no known end gives it room.
    pub(super) fn first_room(
        &mut self,
        ask: &HeadDemand,
        now: Timestamp,
        growth: &mut RoomGrowth,
    ) -> Option<i64> {
        if ask.level.is_some() {
            return Some(self.compute_shadow(ask, now, Ends::Known)?.at);
        }
        self.update_timeline(now);
        if self.timeline.known == 0 {
            return None;
        }
        self.refresh(ask.class);
        let view = self.views.get(&ask.class)?;
        if view.room >= ask.need {
            return Some(now.as_second());
        }
        let steps = growth.classes.entry(ask.class).or_insert_with(|| Steps {
            holds: (0..self.nodes.len()).map(|at| view.holds(at)).collect(),
            all: view.room,
            given: vec![Room::default(); self.nodes.len()],
            found: Vec::new(),
            last: None,
        });
        let after = steps.last.clone();
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let ends = self.timeline.ends.range((after, Bound::Unbounded));
        let class = self.classes.get(ask.class);
        for (end, run) in ends {
            if steps.all >= ask.need {
                break;
            }
            steps.last = Some(end.clone());
            if !run.known {
                continue;
            }
            let before = steps.all;
            let mut withheld = self.withheld(&end.1, run, class);
            for (node, held, count) in run.held.iter() {
                let room = &mut steps.given[*node];
                room.add(self.classes.get(*held).demand(), i64::from(*count));
                take_from(room, withheld.remove(node));
                if view.empty_at(*node) > 0 {
                    let then = self.holds_then(*node, class, room);
                    steps.all += u64::from(then.saturating_sub(steps.holds[*node]));
                    steps.holds[*node] = steps.holds[*node].max(then);
                }
            }
            if steps.all > before {
                steps.found.push((steps.all, end.0));
            }
        }
        let at = steps.found.partition_point(|(room, _)| *room < ask.need);
        let (_, then) = steps.found.get(at)?;
        Some((*then).max(now.as_second()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Config;
    use crate::event::Event;

    const NOW: i64 = 10_000;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
        Box::new(serde_json::from_value(value).unwrap())
    }

    fn pod(name: &str, gpus: i64) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": {}},
            "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
        })
    }

    /// Three nodes of four GPUs, and running pods, some of which declare their walltime.
    fn world(running: &[(usize, i64, i64, Option<i64>)]) -> Scheduler {
        let mut s = Scheduler::new(Config::default());
        for i in 0..3 {
            s.apply(Event::NodeChanged(read(json!({
                "metadata": {"name": format!("n{i}")},
                "status": {"allocatable": {"cpu": "64", "pods": "110", "nvidia.com/gpu": "4"}},
            }))));
        }
        for (nth, (node, gpus, ran, walltime)) in running.iter().enumerate() {
            let mut pod = pod(&format!("old{nth}"), *gpus);
            if let Some(walltime) = walltime {
                pod["metadata"]["annotations"] =
                    json!({"muster.io/walltime": walltime.to_string()});
            }
            let start = Timestamp::from_second(NOW - ran).unwrap().to_string();
            pod["spec"]["nodeName"] = json!(format!("n{node}"));
            pod["status"] = json!({"phase": "Running", "startTime": start});
            s.apply(Event::PodChanged(read(pod)));
        }
        s
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn room_grows_as_shadows_say_in_any_order_of_requests(
            running in proptest::collection::vec(
                (0..3usize, 1..4i64, 0..1000i64, proptest::option::of(1..2000i64)), 0..8),
            asked in proptest::collection::vec((1..5i64, 1..14u64), 1..6),
        ) {
            let mut s = world(&running);
            for (nth, (gpus, _)) in asked.iter().enumerate() {
                s.apply(Event::PodChanged(read(pod(&format!("new{nth}"), *gpus))));
            }
            let now = Timestamp::from_second(NOW).unwrap();
            s.rank_nodes();
            let mut growth = RoomGrowth::default();
            for (nth, (_, need)) in asked.iter().enumerate() {
                let key = crate::pod::PodKey::new("ns", &format!("new{nth}"));
                let ask = HeadDemand { class: s.pods[&key].class, need: *need, level: None };
                let cast = s.compute_shadow(&ask, now, Ends::Known).map(|shadow| shadow.at);
                prop_assert_eq!(s.first_room(&ask, now, &mut growth), cast);
            }
        }
    }
}
