//! Gangs and the network: one domain where it is required, close together where it is not.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use resources::report::WaitReason;
use scheduler::{Config, Event, Plan, Scheduler};
use serde_json::{Value, json};
use support::*;

const ZONE: &str = "zone";
const RACK: &str = "rack";
const HOST: &str = "kubernetes.io/hostname";

/// Levels zone, rack and host.
fn cluster() -> Scheduler {
    Scheduler::new(Config {
        topology: vec![ZONE.into(), RACK.into(), HOST.into()],
        ..Config::default()
    })
}

/// A node named `zone-rack-n`, with these GPUs.
fn at(zone: &str, rack: &str, n: usize, gpus: i64) -> Event {
    node_with(&format!("{zone}-{rack}-{n}"), gpus, |node| {
        node["metadata"]["labels"][ZONE] = json!(zone);
        node["metadata"]["labels"][RACK] = json!(rack);
    })
}

fn topo(name: &str, min: i32, request: Value) -> Event {
    group_with(name, min, |group| {
        group["metadata"]["annotations"] = json!({"muster.io/topology": request.to_string()});
    })
}

fn topo_gang(s: &mut Scheduler, name: &str, members: usize, gpus: i64, request: Value) {
    s.apply(topo(name, members as i32, request));
    for i in 0..members {
        s.apply(pod(&format!("{name}-{i}"), name, gpus));
    }
}

/// Zones or racks that a gang's pods went to, and how many each got.
fn spots(plan: &Plan, prefix: &str, depth: usize) -> BTreeMap<String, usize> {
    let mut spots = BTreeMap::new();
    for bind in plan
        .binds
        .iter()
        .filter(|bind| bind.pod.name.starts_with(prefix))
    {
        let spot: Vec<&str> = bind.node.split('-').take(depth).collect();
        *spots.entry(spot.join("-")).or_default() += 1;
    }
    spots
}

fn counts(pairs: &[(&str, usize)]) -> BTreeMap<String, usize> {
    pairs
        .iter()
        .map(|(name, n)| ((*name).to_owned(), *n))
        .collect()
}

/// Two zones of two racks of two nodes of four GPUs.
fn square(s: &mut Scheduler) {
    for zone in ["a", "b"] {
        for rack in ["r1", "r2"] {
            for n in 0..2 {
                s.apply(at(zone, rack, n, 4));
            }
        }
    }
}

#[test]
fn a_gang_with_a_required_level_goes_whole_into_one_domain() {
    let mut s = cluster();
    square(&mut s);
    topo_gang(&mut s, "g", 8, 1, json!({"required": RACK}));
    let plan = s.plan(now());
    assert_eq!(spots(&plan, "g", 2), counts(&[("a-r1", 8)]));
}

#[test]
fn a_required_level_takes_the_tightest_domain_that_holds_the_gang() {
    let mut s = cluster();
    square(&mut s);
    s.apply(pod_with("old", None, 2, |pod| {
        pod["spec"]["nodeName"] = json!("b-r2-0")
    }));
    topo_gang(&mut s, "g", 6, 1, json!({"required": RACK}));
    assert_eq!(spots(&s.plan(now()), "g", 2), counts(&[("b-r2", 6)]));
}

#[test]
fn a_gang_that_no_domain_holds_waits_and_says_which_level_binds() {
    let mut s = cluster();
    square(&mut s);
    topo_gang(&mut s, "g", 9, 1, json!({"required": RACK}));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    let report = report(&plan, "g");
    assert_eq!(report.verdict, WaitReason::TopologyUnsatisfied);
    assert_eq!(
        report.binding,
        "9 members of the gang must be in one rack; of 4 the roomiest, a/r1, has room for 8"
    );
    assert_eq!(
        report.would_fit,
        "a larger rack (the largest holds 8 such members when empty), or a wider level"
    );
    assert_eq!(report.members_placed_possible, 8);
}

#[test]
fn a_preferred_level_widens_until_one_domain_holds_the_gang() {
    for (members, zones) in [
        (8, counts(&[("a", 8)])),
        (12, counts(&[("a", 12)])),
        (20, counts(&[("a", 16), ("b", 4)])),
    ] {
        let mut s = cluster();
        square(&mut s);
        topo_gang(&mut s, "g", members, 1, json!({"preferred": RACK}));
        let plan = s.plan(now());
        assert_eq!(spots(&plan, "g", 1), zones, "{members}");
    }
}

#[test]
fn a_required_level_bounds_how_far_a_preferred_one_widens() {
    let mut s = cluster();
    square(&mut s);
    topo_gang(
        &mut s,
        "g",
        17,
        1,
        json!({"required": ZONE, "preferred": RACK}),
    );
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert!(
        report(&plan, "g").binding.contains("one zone"),
        "{}",
        report(&plan, "g").binding
    );
}

#[test]
fn a_gang_that_asks_for_nothing_is_placed_close_together_all_the_same() {
    let mut s = cluster();
    square(&mut s);
    gang(&mut s, "g", 8, 1);
    assert_eq!(spots(&s.plan(now()), "g", 2).len(), 1);
}

#[test]
fn ranks_that_are_neighbours_are_neighbours_on_the_network() {
    let mut s = cluster();
    for rack in ["r1", "r2", "r10"] {
        for n in 0..2 {
            s.apply(at("a", rack, n, 2));
        }
    }
    gang(&mut s, "g", 12, 1);
    let nodes = bound(&s.plan(now()));
    let along: Vec<&str> = (0..12).map(|i| nodes[&format!("g-{i}")].as_str()).collect();
    let mut once = along.clone();
    once.dedup();
    assert_eq!(
        once,
        ["a-r1-0", "a-r1-1", "a-r2-0", "a-r2-1", "a-r10-0", "a-r10-1"]
    );
}

#[test]
fn a_rank_that_pods_state_goes_before_their_names() {
    let mut s = cluster();
    s.apply(at("a", "r1", 0, 1));
    s.apply(at("a", "r2", 0, 1));
    s.apply(group("g", 2));
    for (name, rank) in [("x", "1"), ("y", "0")] {
        s.apply(pod_with(name, Some("g"), 1, |pod| {
            pod["metadata"]["annotations"]["muster.io/rank"] = json!(rank);
        }));
    }
    assert_eq!(bound(&s.plan(now()))["y"], "a-r1-0");
}

#[test]
fn running_members_decide_where_the_rest_goes() {
    let mut s = cluster();
    square(&mut s);
    s.apply(topo("g", 4, json!({"required": RACK})));
    for i in 0..3 {
        s.apply(pod_with(&format!("g-{i}"), Some("g"), 1, |pod| {
            pod["spec"]["nodeName"] = json!("b-r2-1");
            pod["status"] = json!({"phase": "Running"});
        }));
    }
    s.apply(pod("g-3", "g", 4));
    assert_eq!(bound(&s.plan(now()))["g-3"], "b-r2-0");
    s.apply(pod("g-4", "g", 4));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty(), "no room is left in the rack");
}

#[test]
fn a_lost_node_is_replaced_within_the_same_domain_or_not_at_all() {
    let mut s = cluster();
    square(&mut s);
    topo_gang(&mut s, "g", 8, 1, json!({"required": RACK}));
    s.plan(now());
    s.apply(Event::NodeGone("a-r1-0".into()));
    for i in 0..4 {
        s.apply(pod_gone(&format!("g-{i}")));
    }
    for i in 0..4 {
        s.apply(pod(&format!("g-{i}"), "g", 1));
    }
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    let report = report(&plan, "g");
    assert!(
        report.binding.contains("must join the others in rack a/r1"),
        "{}",
        report.binding
    );
    s.apply(at("a", "r1", 7, 4));
    assert_eq!(nodes_used(&s.plan(now()), "g"), ["a-r1-7"]);
}

#[test]
fn slices_do_not_straddle_domains() {
    let mut s = cluster();
    for (rack, gpus) in [("r1", 3), ("r2", 3), ("r3", 2)] {
        for n in 0..2 {
            s.apply(at("a", rack, n, gpus));
        }
    }
    let slices = json!({"slices": [{"level": RACK, "size": 4}]});
    topo_gang(&mut s, "g", 12, 1, slices.clone());
    let plan = s.plan(now());
    assert_eq!(
        spots(&plan, "g", 2),
        counts(&[("a-r1", 4), ("a-r2", 4), ("a-r3", 4)])
    );
    let mut s = cluster();
    for rack in ["r1", "r2", "r3"] {
        s.apply(at("a", rack, 0, 3));
    }
    topo_gang(&mut s, "g", 8, 1, slices);
    let plan = s.plan(now());
    assert!(
        plan.binds.is_empty(),
        "nine GPUs, but no rack holds a slice"
    );
}

#[test]
fn slices_nest() {
    let mut s = cluster();
    for zone in ["a", "b"] {
        for rack in ["r1", "r2", "r3"] {
            s.apply(at(zone, rack, 0, 5));
        }
    }
    let request = json!({"slices": [{"level": ZONE, "size": 8}, {"level": RACK, "size": 4}]});
    topo_gang(&mut s, "g", 16, 1, request);
    let plan = s.plan(now());
    assert_eq!(spots(&plan, "g", 1), counts(&[("a", 8), ("b", 8)]));
    assert!(spots(&plan, "g", 2).values().all(|n| n % 4 == 0));
}

#[test]
fn a_broken_slice_is_made_whole_where_it_is() {
    let mut s = cluster();
    square(&mut s);
    s.apply(topo(
        "g",
        8,
        json!({"slices": [{"level": RACK, "size": 4}]}),
    ));
    for i in 0..7 {
        let node = if i < 4 { "a-r1-0" } else { "b-r2-0" };
        s.apply(pod_with(&format!("g-{i}"), Some("g"), 1, |pod| {
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running"});
        }));
    }
    s.apply(pod("g-7", "g", 1));
    assert_eq!(spots(&s.plan(now()), "g", 2), counts(&[("b-r2", 1)]));
}

fn sub_groups(name: &str, request: Value, groups: Value) -> Event {
    group_with(name, 1, |group| {
        group["metadata"]["annotations"] = json!({
            "muster.io/topology": request.to_string(),
            "muster.io/sub-groups": groups.to_string(),
        });
    })
}

fn in_part(name: &str, group: &str, part: &str, gpus: i64) -> Event {
    pod_with(name, Some(group), gpus, |pod| {
        pod["metadata"]["annotations"]["muster.io/sub-group"] = json!(part);
    })
}

#[test]
fn sub_groups_have_domains_of_their_own_within_the_gangs() {
    let mut s = cluster();
    square(&mut s);
    s.apply(sub_groups(
        "g",
        json!({"required": ZONE}),
        json!([
            {"name": "left", "minMember": 6, "topology": {"required": RACK}},
            {"name": "right", "minMember": 6, "topology": {"required": RACK}},
        ]),
    ));
    for part in ["left", "right"] {
        for i in 0..6 {
            s.apply(in_part(&format!("{part}-{i}"), "g", part, 1));
        }
    }
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 12);
    assert_eq!(spots(&plan, "left", 2).len(), 1);
    assert_eq!(spots(&plan, "right", 2).len(), 1);
    assert_eq!(spots(&plan, "", 1).len(), 1);
}

#[test]
fn a_sub_group_that_does_not_fit_holds_the_whole_gang() {
    let mut s = cluster();
    square(&mut s);
    s.apply(sub_groups(
        "g",
        json!({}),
        json!([{"name": "small", "minMember": 1}, {"name": "large", "minMember": 9, "topology": {"required": RACK}}]),
    ));
    s.apply(in_part("small-0", "g", "small", 1));
    for i in 0..9 {
        s.apply(in_part(&format!("large-{i}"), "g", "large", 1));
    }
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert!(
        report(&plan, "g").binding.contains("sub-group large"),
        "{}",
        report(&plan, "g").binding
    );
}

#[test]
fn nested_sub_groups_need_all_their_children() {
    let mut s = cluster();
    square(&mut s);
    s.apply(sub_groups(
        "g",
        json!({"preferred": ZONE}),
        json!([
            {"name": "replica", "topology": {"required": RACK}},
            {"name": "encoder", "parent": "replica", "minMember": 2},
            {"name": "decoder", "parent": "replica", "minMember": 3},
        ]),
    ));
    for i in 0..2 {
        s.apply(in_part(&format!("encoder-{i}"), "g", "encoder", 1));
    }
    let plan = s.plan(now());
    assert_eq!(
        report(&plan, "g").binding,
        "0 of 3 of sub-group decoder members exist"
    );
    for i in 0..3 {
        s.apply(in_part(&format!("decoder-{i}"), "g", "decoder", 2));
    }
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 5);
    assert_eq!(spots(&plan, "", 2).len(), 1);
}

#[test]
fn members_of_a_sub_group_beyond_its_minimum_stay_in_its_domain() {
    let mut s = cluster();
    square(&mut s);
    s.apply(sub_groups(
        "g",
        json!({}),
        json!([{"name": "p", "minMember": 2, "topology": {"required": RACK}}]),
    ));
    for i in 0..10 {
        s.apply(in_part(&format!("p-{i}"), "g", "p", 1));
    }
    let plan = s.plan(now());
    assert_eq!(spots(&plan, "p", 2), counts(&[("a-r1", 8)]));
    assert_eq!(report(&plan, "g").members_wanted, 1);
}

/// A Volcano gang whose pods form a sub-group for each value of a label.
fn by_label(name: &str, min: i32, size: i32, least: i32, tier: Option<i32>) -> Event {
    group_with(name, min, |group| {
        let mut policy = json!({
            "name": "replicas", "matchLabelKeys": ["replica"], "subGroupSize": size, "minSubGroups": least,
        });
        if let Some(tier) = tier {
            policy["networkTopology"] = json!({"mode": "hard", "highestTierAllowed": tier});
        }
        group["spec"]["subGroupPolicy"] = json!([policy]);
    })
}

fn labelled(name: &str, group: &str, replica: &str, gpus: i64) -> Event {
    pod_with(name, Some(group), gpus, |pod| {
        pod["metadata"]["labels"] = json!({"replica": replica});
    })
}

#[test]
fn volcanos_sub_groups_are_made_of_labels_and_start_whole() {
    let mut s = cluster();
    s.apply(at("a", "r1", 0, 4));
    s.apply(at("a", "r2", 0, 4));
    s.apply(at("a", "r3", 0, 2));
    // The pods may come first.
    for replica in ["x", "y", "z"] {
        for i in 0..3 {
            s.apply(labelled(&format!("{replica}-{i}"), "g", replica, 1));
        }
    }
    s.apply(by_label("g", 6, 3, 2, Some(1)));
    let plan = s.plan(now());
    assert_eq!(
        plan.binds.len(),
        6,
        "two sub-groups fit whole, the third waits whole"
    );
    for replica in ["x", "y"] {
        assert_eq!(spots(&plan, replica, 2).len(), 1, "{replica}");
    }
    let mut s = cluster();
    s.apply(at("a", "r1", 0, 4));
    for replica in ["x", "y"] {
        for i in 0..3 {
            s.apply(labelled(&format!("{replica}-{i}"), "g", replica, 1));
        }
    }
    s.apply(by_label("g", 3, 3, 2, Some(1)));
    assert!(
        s.plan(now()).binds.is_empty(),
        "two must start, and one fits"
    );
}

#[test]
fn volcanos_hard_tier_counts_levels_from_the_narrowest() {
    for (tier, fits) in [(1, false), (2, true)] {
        let mut s = cluster();
        square(&mut s);
        s.apply(group_with("g", 9, |group| {
            group["spec"]["networkTopology"] = json!({"mode": "hard", "highestTierAllowed": tier});
        }));
        for i in 0..9 {
            s.apply(pod(&format!("g-{i}"), "g", 1));
        }
        let plan = s.plan(now());
        assert_eq!(plan.binds.len() == 9, fits, "tier {tier}");
        assert!(spots(&plan, "g", 1).len() <= 1);
    }
}

#[test]
fn a_soft_tier_never_refuses() {
    let mut s = cluster();
    square(&mut s);
    s.apply(group_with("g", 30, |group| {
        group["spec"]["networkTopology"] = json!({"mode": "soft", "highestTierAllowed": 1});
    }));
    for i in 0..30 {
        s.apply(pod(&format!("g-{i}"), "g", 1));
    }
    assert_eq!(s.plan(now()).binds.len(), 30);
}

fn kueue(name: &str, group: &str, task: &str, gpus: i64, annotations: &[(&str, &str)]) -> Event {
    pod_with(name, Some(group), gpus, |pod| {
        let all = &mut pod["metadata"]["annotations"];
        all["volcano.sh/task-spec"] = json!(task);
        for (key, value) in annotations {
            all[format!("kueue.x-k8s.io/podset-{key}")] = json!(value);
        }
    })
}

#[test]
fn a_leader_and_its_workers_go_into_one_domain() {
    let mut s = cluster();
    for (rack, gpus) in [("r1", 4), ("r2", 5)] {
        s.apply(at("a", rack, 0, gpus));
    }
    s.apply(group("g", 5));
    let asks = [("required-topology", RACK), ("group-name", "lws")];
    s.apply(kueue("leader", "g", "leader", 1, &asks));
    for i in 0..4 {
        s.apply(kueue(&format!("worker-{i}"), "g", "worker", 1, &asks));
    }
    let plan = s.plan(now());
    assert_eq!(spots(&plan, "", 2), counts(&[("a-r2", 5)]));
}

#[test]
fn each_task_may_ask_for_a_level_of_its_own() {
    let mut s = cluster();
    square(&mut s);
    s.apply(group("g", 10));
    for i in 0..8 {
        s.apply(kueue(
            &format!("train-{i}"),
            "g",
            "train",
            1,
            &[("required-topology", RACK)],
        ));
    }
    for i in 0..2 {
        s.apply(kueue(
            &format!("load-{i}"),
            "g",
            "load",
            3,
            &[("preferred-topology", HOST)],
        ));
    }
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 10);
    assert_eq!(spots(&plan, "train", 2).len(), 1);
}

#[test]
fn a_level_that_does_not_exist_is_named() {
    let mut s = cluster();
    square(&mut s);
    topo_gang(&mut s, "g", 2, 1, json!({"required": "row"}));
    let plan = s.plan(now());
    assert_eq!(
        report(&plan, "g").binding,
        "row is not a level of the topology; the levels are zone, rack, kubernetes.io/hostname"
    );
    topo_gang(&mut s, "h", 2, 1, json!({"need": "row"}));
    let plan = s.plan(now());
    assert!(report(&plan, "h").binding.contains("unknown field `need`"));
}

#[test]
fn nodes_that_are_relabelled_move_to_their_new_domain() {
    let mut s = cluster();
    s.apply(at("a", "r1", 0, 4));
    s.apply(at("a", "r2", 0, 4));
    topo_gang(&mut s, "g", 8, 1, json!({"required": RACK}));
    assert!(s.plan(now()).binds.is_empty());
    s.apply(node_with("a-r2-0", 4, |node| {
        node["metadata"]["labels"][ZONE] = json!("a");
        node["metadata"]["labels"][RACK] = json!("r1");
    }));
    assert_eq!(s.plan(now()).binds.len(), 8);
}

#[test]
fn a_gang_may_be_required_to_fit_one_host() {
    let mut s = cluster();
    s.apply(at("a", "r1", 0, 3));
    s.apply(at("a", "r1", 1, 6));
    topo_gang(&mut s, "g", 4, 1, json!({"required": HOST}));
    assert_eq!(nodes_used(&s.plan(now()), "g"), ["a-r1-1"]);
    topo_gang(&mut s, "h", 4, 1, json!({"required": HOST}));
    assert!(s.plan(now()).binds.is_empty());
}

#[test]
fn spreading_takes_the_emptiest_node_for_each_pod() {
    let mut s = Scheduler::new(Config {
        placement: scheduler::PlacementStrategy::Spread,
        ..Config::default()
    });
    for name in ["n1", "n2", "n3"] {
        s.apply(node(name, 4));
    }
    gang(&mut s, "g", 6, 1);
    let plan = s.plan(now());
    let per_node: BTreeMap<String, usize> =
        bound(&plan)
            .into_values()
            .fold(BTreeMap::new(), |mut counts, node| {
                *counts.entry(node).or_default() += 1;
                counts
            });
    assert_eq!(per_node.values().copied().collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn a_blocked_gang_is_tried_again_when_room_comes_back_and_not_before() {
    let mut s = cluster();
    square(&mut s);
    topo_gang(&mut s, "first", 8, 1, json!({"required": RACK}));
    s.plan(now());
    topo_gang(&mut s, "big", 32, 1, json!({}));
    let first = s.plan(now());
    assert!(first.binds.is_empty());
    let before = report(&first, "big").clone();
    s.apply(lone("other", 0));
    let plan = s.plan(now());
    let binding = &report(&plan, "big").binding;
    assert!(binding.starts_with(&before.binding), "{binding}");
    for i in 0..8 {
        s.apply(pod_gone(&format!("first-{i}")));
    }
    let started: BTreeSet<String> = bound(&s.plan(now())).into_keys().collect();
    assert_eq!(started.len(), 32);
}

#[test]
fn a_balanced_gang_takes_as_few_hosts_and_none_of_them_much_less_than_others() {
    let mut s = cluster();
    for rack in ["r1", "r2", "r3"] {
        for n in 0..2 {
            s.apply(at("a", rack, n, 4));
        }
    }
    let balanced = json!({"preferred": RACK, "balanced": true});
    topo_gang(&mut s, "g", 14, 1, balanced);
    let plan = s.plan(now());
    assert_eq!(spots(&plan, "g", 2).len(), 2);
    let mut hosts: Vec<usize> = spots(&plan, "g", 3).values().copied().collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [3, 3, 4, 4]);
}

#[test]
fn a_balanced_gang_that_cannot_be_balanced_is_placed_as_others_are() {
    let mut s = cluster();
    s.apply(at("a", "r1", 0, 4));
    s.apply(at("b", "r2", 0, 2));
    // No single zone holds it, so there are no siblings to balance it among.
    let balanced = json!({"preferred": RACK, "balanced": true});
    topo_gang(&mut s, "g", 6, 1, balanced);
    assert_eq!(s.plan(now()).binds.len(), 6);
}
