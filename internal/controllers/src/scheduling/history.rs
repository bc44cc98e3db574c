//! The decisions on each gang, kept in memory for later questions. There is a limit per gang and a
//! limit in total; the oldest are dropped first. The submodule hands the records to storage.

mod stored_records;

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use resources::record::{DecisionKind, DecisionRecord, PODS_MAX, PodOnNode, pods_words};
use resources::report::PlacementReport;
use scheduler::{Bind, Eviction, GangReservation, GroupRef, Plan, ReservationKind};
use stored_records::Unwritten;
pub(super) use stored_records::{bytes, lines};

/// The limit of records per gang.
const OF_ONE_MAX: usize = 64;
/// The limit of records in total: about 50 MB at most.
const IN_ALL_MAX: usize = 65_536;

/// Namespace and name of a gang.
type GangName = (String, String);

/// The records.
#[derive(Default)]
pub(super) struct DecisionHistory {
    gangs: BTreeMap<GangName, VecDeque<(u64, DecisionRecord)>>,
    /// The gang of each record in order, the oldest first; records dropped since are skipped.
    order: VecDeque<(u64, GangName)>,
    kept: usize,
    next: u64,
    /// The changes not yet handed to storage, if records are stored.
    unwritten: Option<Unwritten>,
}

impl DecisionHistory {
    /// A gang's records, the oldest first.
    pub(super) fn of(&self, namespace: &str, group: &str) -> Vec<DecisionRecord> {
        let key = (namespace.to_owned(), group.to_owned());
        let records = self.gangs.get(&key).into_iter().flatten();
        records.map(|(_, record)| record.clone()).collect()
    }

    /// Records that gangs wait; `reports` holds the reports that changed.
    pub(super) fn wait<'a>(
        &mut self,
        reports: impl Iterator<Item = &'a PlacementReport>,
        now: Timestamp,
    ) {
        for report in reports {
            let key = (report.namespace.clone(), report.group.clone());
            self.put(key, DecisionRecord::pending(report, now));
        }
    }

    /// Records a plan's decisions.
    pub(super) fn decide(&mut self, plan: &Plan, now: Timestamp) {
        for (group, record) in reserved(&plan.reservations, now) {
            self.put(group, record);
        }
        for (group, record) in evicted(&plan.evictions, now) {
            self.put(group, record);
        }
        for (group, record) in bound(&plan.binds, now) {
            self.put(group, record);
        }
    }

    /// Records that the API refused a decision.
    pub(super) fn refuse(
        &mut self,
        group: &GroupRef,
        pod: &str,
        node: &str,
        what: &str,
        now: Timestamp,
    ) {
        let record = DecisionRecord {
            at: now,
            decision: DecisionKind::Refused,
            sentence: what.to_owned(),
            pods: vec![spot(pod, node)],
            count: 1,
            ..DecisionRecord::default()
        };
        self.put(key(group), record);
    }

    fn put(&mut self, key: GangName, record: DecisionRecord) {
        let records = self.gangs.entry(key.clone()).or_default();
        // An ongoing state continues beside other ongoing states, until an action is recorded.
        let mut lasting = records
            .iter_mut()
            .rev()
            .take_while(|(_, r)| r.decision.lasts());
        let gone_on = lasting.find_map(|(n, last)| last.goes_on(&record).then_some(*n));
        if let Some(number) = gone_on {
            if let Some(unwritten) = &mut self.unwritten {
                unwritten.went_on(number, &key);
            }
            return;
        }
        self.next += 1;
        self.kept += 1;
        records.push_back((self.next, record));
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.came(self.next, &key);
        }
        if records.len() > OF_ONE_MAX
            && let Some((number, _)) = records.pop_front()
        {
            self.dropped(number);
        }
        self.order.push_back((self.next, key));
        self.forget();
    }

    /// Drops the oldest records of all while there are too many.
    fn forget(&mut self) {
        while self.kept > IN_ALL_MAX || self.order.len() > 2 * IN_ALL_MAX {
            let Some((number, key)) = self.order.pop_front() else {
                return;
            };
            let Some(records) = self.gangs.get_mut(&key) else {
                continue;
            };
            let kept = records.front().is_some_and(|(first, _)| *first == number);
            if kept {
                records.pop_front();
            }
            if records.is_empty() {
                self.gangs.remove(&key);
            }
            if kept {
                self.dropped(number);
            }
        }
    }

    /// A record was dropped.
    fn dropped(&mut self, number: u64) {
        self.kept -= 1;
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.gone(number);
        }
    }
}

fn key(group: &GroupRef) -> GangName {
    (group.namespace.clone(), group.name.clone())
}

fn spot(pod: &str, node: &str) -> PodOnNode {
    PodOnNode {
        pod: pod.to_owned(),
        node: node.to_owned(),
    }
}

/// A record of pods, with the first of them by name.
fn of_pods(decision: DecisionKind, mut pods: Vec<PodOnNode>, now: Timestamp) -> DecisionRecord {
    pods.sort_by(|a, b| a.pod.cmp(&b.pod));
    let count = pods.len();
    pods.truncate(PODS_MAX);
    DecisionRecord {
        at: now,
        decision,
        pods,
        count,
        ..DecisionRecord::default()
    }
}

fn many(count: usize) -> String {
    match count {
        1 => "1 pod".to_owned(),
        _ => format!("{count} pods"),
    }
}

fn bound(binds: &[Bind], now: Timestamp) -> Vec<(GangName, DecisionRecord)> {
    let mut groups: BTreeMap<GangName, Vec<PodOnNode>> = BTreeMap::new();
    for bind in binds {
        let own = groups.entry(key(&bind.group)).or_default();
        own.push(spot(&bind.pod.name, &bind.node));
    }
    let record = |(key, pods): (GangName, Vec<PodOnNode>)| {
        let mut record = of_pods(DecisionKind::Bound, pods, now);
        let words = pods_words(&record.pods, record.count);
        record.sentence = format!("{} placed: {words}", many(record.count));
        (key, record)
    };
    groups.into_iter().map(record).collect()
}

fn reserved(reservations: &[GangReservation], now: Timestamp) -> Vec<(GangName, DecisionRecord)> {
    let mut all = Vec::new();
    for GangReservation {
        group, pods, kind, ..
    } in reservations
    {
        let spots = pods
            .iter()
            .map(|(pod, node)| spot(&pod.name, node))
            .collect();
        let decision = match kind {
            ReservationKind::Nominated => DecisionKind::Nominated,
            ReservationKind::Planned { .. } => DecisionKind::Reserved,
        };
        let mut record = of_pods(decision, spots, now);
        let words = pods_words(&record.pods, record.count);
        record.sentence = match kind {
            ReservationKind::Nominated => format!(
                "nodes are nominated for {} until terminating pods release them: {words}",
                many(record.count)
            ),
            ReservationKind::Planned { at } => format!(
                "capacity is reserved for {} from {at} on: {words}",
                many(record.count)
            ),
        };
        all.push((key(group), record));
    }
    all
}

fn evicted(evictions: &[Eviction], now: Timestamp) -> Vec<(GangName, DecisionRecord)> {
    type Victims<'a> = BTreeMap<(GangName, &'static str, &'a str), Vec<PodOnNode>>;
    let mut victims: Victims<'_> = BTreeMap::new();
    let mut winners: BTreeMap<(GangName, &'static str), Vec<PodOnNode>> = BTreeMap::new();
    for eviction in evictions {
        let why = eviction.why.as_str();
        let own = (key(&eviction.group), why, eviction.message.as_str());
        let spots = victims.entry(own).or_default();
        spots.push(spot(&eviction.pod.name, &eviction.node));
        if let Some(by) = &eviction.by {
            let pod = format!("{}/{}", eviction.pod.namespace, eviction.pod.name);
            let spots = winners.entry((key(by), why)).or_default();
            spots.push(spot(&pod, &eviction.node));
        }
    }
    let mut all = Vec::new();
    for ((key, why, message), pods) in victims {
        let mut record = of_pods(DecisionKind::Evicted, pods, now);
        let words = pods_words(&record.pods, record.count);
        record.sentence = format!("{why}: {message}: {words}");
        all.push((key, record));
    }
    for ((key, why), pods) in winners {
        let mut record = of_pods(DecisionKind::Evicts, pods, now);
        let words = pods_words(&record.pods, record.count);
        record.sentence = format!(
            "{} of others evicted for it ({why}): {words}",
            many(record.count)
        );
        all.push((key, record));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler::{EvictionReason, PodRef};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn group(name: &str) -> GroupRef {
        GroupRef {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            lone: false,
        }
    }

    fn pod(name: &str) -> PodRef {
        PodRef {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: name.to_owned(),
        }
    }

    fn bind(gang: &str, name: &str) -> Bind {
        Bind {
            pod: pod(name),
            group: group(gang),
            node: "n1".to_owned(),
            devices: BTreeMap::new(),
            volumes: Vec::new(),
        }
    }

    fn report(gang: &str, binding: &str) -> PlacementReport {
        PlacementReport {
            namespace: "ns".to_owned(),
            group: gang.to_owned(),
            binding: binding.to_owned(),
            ..PlacementReport::default()
        }
    }

    #[test]
    fn a_gangs_records_from_waiting_to_eviction_are_in_order() {
        let mut history = DecisionHistory::default();
        history.wait(
            [report("g", "no room"), report("g", "less room")].iter(),
            at(1),
        );
        let plan = Plan {
            binds: vec![bind("g", "g-1"), bind("g", "g-0"), bind("other", "o-0")],
            ..Plan::default()
        };
        history.decide(&plan, at(2));
        let eviction = Eviction {
            grace: None,
            pod: pod("g-0"),
            group: group("g"),
            node: "n1".to_owned(),
            why: EvictionReason::Preempted,
            by: Some(group("boss")),
            message: "for ns/boss".to_owned(),
        };
        let plan = Plan {
            evictions: vec![eviction],
            ..Plan::default()
        };
        history.decide(&plan, at(3));
        let told = |name: &str| {
            let records = history.of("ns", name);
            let words = records
                .iter()
                .map(|r| (r.decision.as_str(), r.sentence.clone()));
            words.collect::<Vec<_>>()
        };
        let own = told("g");
        assert_eq!(own[0], ("pending", "less room.".to_owned()));
        assert_eq!(
            own[1],
            ("bound", "2 pods placed: g-0 on n1, g-1 on n1".to_owned())
        );
        assert_eq!(
            own[2],
            ("evicted", "Preempted: for ns/boss: g-0 on n1".to_owned())
        );
        assert_eq!(own.len(), 3);
        assert_eq!(
            told("boss"),
            [(
                "evicts",
                "1 pod of others evicted for it (Preempted): ns/g-0 on n1".to_owned()
            )]
        );
    }

    #[test]
    fn records_are_limited_and_the_oldest_is_dropped_first() {
        let mut history = DecisionHistory::default();
        let mut plan = Plan::default();
        for second in 0..200 {
            plan.binds = vec![bind("g", &format!("g-{second}"))];
            history.decide(&plan, at(second));
        }
        let records = history.of("ns", "g");
        assert_eq!(records.len(), OF_ONE_MAX);
        assert_eq!(records[0].at, at(200 - OF_ONE_MAX as i64));
        for number in 0..IN_ALL_MAX {
            plan.binds = vec![bind(&format!("x{number}"), "p")];
            history.decide(&plan, at(1000));
        }
        assert!(history.of("ns", "g").is_empty());
        assert_eq!(history.kept, IN_ALL_MAX);
        assert!(history.order.len() <= 2 * IN_ALL_MAX);
    }
}
