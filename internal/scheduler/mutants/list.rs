//! Planted bugs: for each property of plans, one that must turn it red. A line of the source is
//! found by what it says, so that the list is wrong, and a test says so, when the line changes.

/// One bug.
pub struct Mutant {
    /// What it breaks.
    pub property: &'static str,
    /// The source, from this crate's folder.
    pub file: &'static str,
    /// What stands there, once.
    pub find: &'static str,
    /// What stands there instead.
    pub replace: &'static str,
    /// The test that must fail: binary and function.
    pub test: (&'static str, &'static str),
}

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        property: "all or nothing: a gang starts with its minimum or not at all",
        file: "src/place/mod.rs",
        find: "                self.undo_placements(&mut run, 0);
                Attempt::Blocked(obstacle)",
        replace: "                self.assume(key, &run.placed);
                Attempt::Placed(run.placed, Some(obstacle))",
        test: ("properties", SOUND),
    },
    Mutant {
        property: "capacity: no node holds more than it has",
        file: "src/fit.rs",
        find: "None => free(ix).max(0) / amount,",
        replace: "None => (free(ix).max(0) + amount - 1) / amount,",
        test: ("properties", SOUND),
    },
    Mutant {
        property: "quota: no queue goes beyond its bounds",
        file: "src/queue/limits.rs",
        find: "let times = bound.leaves().max(0) / (*asked).max(1);",
        replace: "let times = bound.leaves().max(0) / (*asked).max(1) + 1;",
        test: (
            "queues_properties",
            "no_rule_is_broken_and_nothing_that_fits_waits",
        ),
    },
    Mutant {
        property: "guarantees: a queue gets the room that is kept for it",
        file: "src/queue/rules.rs",
        find: "guarantee.max(unlent).max(0)",
        replace: "guarantee.max(unlent).max(0) / 2",
        test: (
            "queues_properties",
            "no_rule_is_broken_and_nothing_that_fits_waits",
        ),
    },
    Mutant {
        property: "by itself: no container gets several GPUs of a kind of which it may have one",
        file: "src/share/pick.rs",
        find: "node.held.of(id) == 0 && !(apart && devices.is_alone(id));",
        replace: "node.held.of(id) == 0;",
        test: (
            "sharing_properties",
            "no_gpu_is_given_beyond_what_it_has_and_nobody_waits_beside_room",
        ),
    },
    Mutant {
        property: "work conservation: no gang waits that fits within its queue's bounds",
        file: "src/fit.rs",
        find: "None => free(ix).max(0) / amount,",
        replace: "None => (free(ix) - 1).max(0) / amount,",
        test: ("properties", SOUND),
    },
    Mutant {
        property: "planning twice changes nothing, and says nothing new",
        file: "src/report_cache.rs",
        find: "if new || self.changed_gangs.contains(key) {",
        replace: "self.changed_gangs.insert(key);
        if new || self.changed_gangs.contains(key) {",
        test: ("properties", SOUND),
    },
    Mutant {
        property: "same input, same plan, whatever the order of events",
        file: "src/state.rs",
        find: "let places: Vec<NodeIx> = self.node_index.values().copied().collect();",
        replace: "let places: Vec<NodeIx> = (0..self.nodes.len()).collect();",
        test: (
            "topology_properties",
            "the_order_in_which_nodes_are_told_of_decides_nothing",
        ),
    },
    Mutant {
        property: "state kept along the way equals state built from scratch",
        file: "src/queue/account.rs",
        find: "queue.sum.allocated.add(demand, times);",
        replace: "queue.sum.allocated.add(demand, times.max(0));",
        test: (
            "queues_properties",
            "sums_kept_along_the_way_are_those_counted_from_the_pods",
        ),
    },
    Mutant {
        property: "the victim set is minimal: no victim can be left out",
        file: "src/evict/search.rs",
        find: SPARED,
        replace: SPARED_NEVER,
        test: ("evictions_properties", EVICTIONS),
    },
    Mutant {
        property: "no pod is evicted unless the preemptor then starts",
        file: "src/evict/search.rs",
        find: "        let Some(mut placed) = placed else {
            self.undo(transaction);
            return None;
        };",
        replace: "        let Some(mut placed) = placed else {
            return (!units.is_empty()).then_some(Found {
                units,
                placed: Vec::new(),
                places: Vec::new(),
                first: false,
                transaction,
            });
        };",
        test: ("evictions_properties", EVICTIONS),
    },
    Mutant {
        property: "evictions come to rest: a gang that started by an eviction is not evicted in turn",
        file: "src/evict/candidates.rs",
        find: "CandidateScope::Below(priority) => next.priority >= priority,",
        replace: "CandidateScope::Below(priority) => next.priority > priority,",
        test: ("evictions_properties", EVICTIONS),
    },
    Mutant {
        property: "backfill: no gang that starts ahead of the head delays it",
        file: "src/timeline/backfill.rs",
        find: "} else if !self.subtract_from_shadow(&mut shadow, &placed.members) {",
        replace: "} else if placed.members.is_empty() {",
        test: ("timeline_properties", "no_backfilled_gang_delays_the_head"),
    },
    Mutant {
        property: "promises: the head starts by its reserved time, whatever the estimates learn",
        file: "src/timeline/shadow.rs",
        find: "Ends::Latest => &self.latest_ends,",
        replace: "Ends::Latest => &self.ends,",
        test: (
            "timeline_properties",
            "the_head_starts_when_promised_if_no_gang_exceeds_its_walltime",
        ),
    },
    Mutant {
        property: "estimates: no report has a start before the true durations allow it",
        file: "src/timeline/shadow.rs",
        find: "                        at = end;",
        replace: "                        at = now + (end - now) / 2;",
        test: (
            "timeline_properties",
            "no_estimate_is_earlier_than_running_gangs_can_make_room",
        ),
    },
    Mutant {
        property: "guarantees: a queue gets what it deserves where any permitted victims make room",
        file: "src/evict/reclaim.rs",
        find: "victim_queue.cursor.rewind();",
        replace: "",
        test: (
            "evictions_oracle",
            "one_pod_gets_its_deserved_amount_if_any_victims_make_room_and_none_is_evicted_in_vain",
        ),
    },
    Mutant {
        property: "the victim set is minimal, by brute force: no subset of the victims would do",
        file: "src/evict/search.rs",
        find: SPARED,
        replace: SPARED_NEVER,
        test: ("evictions_oracle", NO_MORE),
    },
];

const NO_MORE: &str = "a_gang_evicts_no_more_than_it_needs";
const SOUND: &str = "whatever_happens_every_plan_is_sound_and_depends_on_the_state_alone";
const EVICTIONS: &str = "evictions_are_minimal_permitted_and_converge";

/// Where a victim is left out whose going is not needed, and the bug that never leaves one out.
const SPARED: &str = "        units[at].shrinks
            && units";
const SPARED_NEVER: &str = "        at < units.len()
            || units[at].shrinks
            && units";
