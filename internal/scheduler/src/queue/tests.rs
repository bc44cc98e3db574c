//! The tree's arithmetic, as tables: division, bounds, shares, borrowing. Runs without a scheduler.

use resources::kinds::Queue as Object;
use serde_json::{Value, json};

use proptest::prelude::*;

use super::portion::{ShareClaim, UsageWeight, divide, share_out};
use super::*;
use crate::resource::{Demand, GPU_UNIT, Ix, ResourceNames};

/// A resource that is counted in ones, and its number.
const CARDS: &str = "example.com/card";
const CARD: Ix = 4;

struct World {
    names: ResourceNames,
    queues: Queues,
    total: Room,
    used: Room,
}

impl World {
    /// `cards` cards to share, and queues: name, parent, spec fields, annotations.
    fn new(cards: i64, queues: &[(&str, &str, Value, Value)]) -> World {
        let mut total = Room::default();
        total.set(CARD, cards);
        let mut names = ResourceNames::new();
        assert_eq!(names.intern(CARDS), CARD);
        let mut world = World {
            names,
            queues: Queues::default(),
            total,
            used: Room::default(),
        };
        for (name, parent, spec, notes) in queues {
            world.queue(name, parent, spec.clone(), notes.clone());
        }
        world.update_entitlements();
        world
    }

    fn queue(&mut self, name: &str, parent: &str, mut spec: Value, notes: Value) {
        spec["parent"] = json!(parent);
        for list in ["capability", "deserved"] {
            if let Some(cards) = spec.get(list).and_then(Value::as_i64) {
                spec[list] = json!({CARDS: cards.to_string()});
            }
        }
        if let Some(cards) = spec.get("guarantee").and_then(Value::as_i64) {
            spec["guarantee"] = json!({"resource": {CARDS: cards.to_string()}});
        }
        let object: Object = serde_json::from_value(json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
            "metadata": {"name": name, "annotations": notes}, "spec": spec,
        }))
        .unwrap();
        let rules = QueueRules::read(&object, &mut self.names);
        assert_eq!(rules.faults, Vec::<String>::new());
        self.queues.set_rules(name, Some(rules));
    }

    fn update_entitlements(&mut self) {
        self.queues.update_entitlements(&self.total, &self.used);
    }

    fn ix(&self, name: &str) -> QueueIx {
        self.queues.find(name).unwrap()
    }

    fn payer(&mut self, name: &str) -> Payer {
        Payer {
            queue: self.ix(name),
            user: self.queues.user("somebody"),
            team: None,
            fixed: false,
        }
    }

    /// Lets a queue hold `n` more cards.
    fn hold(&mut self, name: &str, n: i64) {
        let payer = self.payer(name);
        self.queues.charge(payer, &cards(1), n);
        self.queues.request(payer.queue, &cards(1), n);
        self.used.add(&cards(1), n);
        self.update_entitlements();
    }

    /// Lets a queue request `n` more cards.
    fn ask(&mut self, name: &str, n: i64) {
        let at = self.ix(name);
        self.queues.request(at, &cards(1), n);
        self.update_entitlements();
    }

    fn entitled(&self, name: &str) -> i64 {
        self.queues.entitled(self.ix(name), CARD)
    }

    fn allows(&mut self, name: &str) -> (u32, Option<LimitingRule>) {
        let payer = self.payer(name);
        let idle = self.total.get(CARD) - self.used.get(CARD);
        self.queues.allows(payer, &cards(1), |_| idle)
    }
}

fn cards(n: i64) -> Demand {
    Demand(vec![(CARD, n)])
}

fn card_note(name: &str, n: i64) -> Value {
    json!({name: json!({CARDS: n.to_string()}).to_string()})
}

fn claim(wants: i64, deserved: i64, weight: i64) -> ShareClaim {
    ShareClaim {
        wants,
        deserved,
        weight,
        ..ShareClaim::default()
    }
}

#[test]
fn capacity_is_divided_by_quota_then_weight_in_whole_units() {
    type Row = (i64, &'static [(i64, i64, i64)], &'static [i64]);
    let table: [Row; 9] = [
        // Within quota every queue gets what it requests.
        (10, &[(3, 4, 1), (2, 4, 1)], &[3, 2]),
        // What one queue does not use of its quota goes to the other.
        (10, &[(8, 4, 1), (2, 4, 1)], &[8, 2]),
        // Beyond quota by weight.
        (12, &[(20, 2, 3), (20, 2, 1)], &[8, 4]),
        // Weight 0: the quota and no more.
        (10, &[(9, 2, 0), (9, 2, 1)], &[2, 8]),
        // Parts are rounded down; the left-over unit goes to the larger remainder, then to the
        // older queue.
        (10, &[(9, 0, 1), (9, 0, 1), (9, 0, 1)], &[4, 3, 3]),
        (8, &[(9, 0, 2), (9, 0, 1)], &[5, 3]),
        // A queue that is satisfied early leaves its part to the others.
        (9, &[(1, 0, 1), (9, 0, 1), (9, 0, 1)], &[1, 4, 4]),
        // Quotas that exceed capacity are cut in proportion.
        (6, &[(8, 8, 1), (4, 4, 1)], &[4, 2]),
        (0, &[(8, 8, 1)], &[0]),
    ];
    for (pool, asks, want) in table {
        let mut claims: Vec<ShareClaim> = asks
            .iter()
            .enumerate()
            .map(|(rank, (wants, deserved, weight))| ShareClaim {
                rank,
                ..claim(*wants, *deserved, *weight)
            })
            .collect();
        share_out(pool, 1, &mut claims, UsageWeight::default());
        let got: Vec<i64> = claims.iter().map(|claim| claim.got).collect();
        assert_eq!(got, want, "{pool} among {asks:?}");
    }
}

proptest! {
    #[test]
    fn with_enough_capacity_dividing_gives_every_request(
        rows in proptest::collection::vec((-2000..5000_i64, 0..3000_i64, 0..3000_i64, 0..3_i64, 0..3_i32), 1..6),
        pool in 0..30_000_i64,
        unit in proptest::sample::select(vec![1, GPU_UNIT]),
    ) {
        let claims: Vec<ShareClaim> = rows
            .iter()
            .enumerate()
            .map(|(rank, (wants, reserved, deserved, weight, priority))| ShareClaim {
                rank,
                reserved: *reserved,
                priority: *priority,
                ..claim(*wants, *deserved, *weight)
            })
            .collect();
        let aside: i64 = claims.iter().map(|claim| (claim.reserved - claim.wants).max(0)).sum();
        let (mut shared, mut divided) = (claims.clone(), claims);
        share_out(pool, unit, &mut shared, UsageWeight::default());
        divide((pool - aside).max(0), unit, &mut divided, UsageWeight::default());
        let got = |claims: &[ShareClaim]| -> Vec<i64> { claims.iter().map(|claim| claim.got).collect() };
        prop_assert_eq!(got(&shared), got(&divided));
    }
}

#[test]
fn gpus_are_divided_in_whole_ones_as_far_as_they_are_asked_for() {
    type Case<'a> = (i64, &'a [(i64, i64, i64)], &'a [i64]);
    let table: [Case; 4] = [
        (3000, &[(9000, 0, 1), (9000, 0, 1)], &[2000, 1000]),
        (2000, &[(500, 0, 1), (9000, 0, 1)], &[500, 1500]),
        (1000, &[(700, 0, 1), (700, 0, 1)], &[700, 300]),
        (1000, &[(1000, 500, 1), (600, 500, 1)], &[500, 500]),
    ];
    for (pool, asks, want) in table {
        let mut claims: Vec<ShareClaim> = asks
            .iter()
            .enumerate()
            .map(|(rank, (wants, deserved, weight))| ShareClaim {
                rank,
                ..claim(*wants, *deserved, *weight)
            })
            .collect();
        share_out(pool, GPU_UNIT, &mut claims, UsageWeight::default());
        let got: Vec<i64> = claims.iter().map(|claim| claim.got).collect();
        assert_eq!(got, want, "{pool} among {asks:?}");
    }
}

#[test]
fn surplus_goes_to_the_higher_priority_first() {
    let mut claims = [claim(8, 2, 1), claim(5, 2, 1)];
    claims[1].priority = 1;
    share_out(10, 1, &mut claims, UsageWeight::default());
    assert_eq!([claims[0].got, claims[1].got], [5, 5]);
}

#[test]
fn past_use_reduces_the_surplus() {
    let memory = |strength| UsageWeight {
        strength,
        total: 10,
    };
    let divided = |strength| {
        let mut claims = [claim(10, 0, 1), claim(10, 0, 1)];
        claims[0].usage = 10;
        share_out(10, 1, &mut claims, memory(strength));
        [claims[0].got, claims[1].got]
    };
    assert_eq!(divided(0), [5, 5]);
    assert_eq!(divided(500), [3, 7]);
    assert_eq!(divided(1000), [0, 10]);
}

#[test]
fn unrequested_reservations_are_set_aside() {
    let mut claims = [claim(0, 0, 1), claim(9, 0, 1)];
    claims[0].reserved = 4;
    share_out(10, 1, &mut claims, UsageWeight::default());
    assert_eq!([claims[0].got, claims[1].got], [0, 6]);
}

#[test]
fn entitlements_are_divided_level_by_level() {
    let weight = |n: i64| json!({"weight": n});
    let mut world = World::new(
        12,
        &[
            ("left", "", weight(2), json!({})),
            ("right", "", weight(1), json!({})),
            ("a", "left", weight(1), json!({})),
            ("b", "left", weight(3), json!({})),
            ("c", "right", weight(1), json!({})),
        ],
    );
    for name in ["a", "b", "c"] {
        world.ask(name, 20);
    }
    let names = ["left", "right", "a", "b", "c"];
    assert_eq!(names.map(|name| world.entitled(name)), [8, 4, 2, 6, 4]);
    world.ask("c", -19);
    assert_eq!(names.map(|name| world.entitled(name)), [11, 1, 3, 8, 1]);
}

#[test]
fn gangs_of_an_inner_queue_share_with_its_children() {
    let none = || json!({});
    let mut world = World::new(
        9,
        &[("dept", "", none(), none()), ("a", "dept", none(), none())],
    );
    world.ask("dept", 9);
    world.ask("a", 9);
    assert_eq!((world.entitled("dept"), world.entitled("a")), (9, 5));
}

#[test]
fn a_circle_or_a_missing_parent_hangs_below_the_root() {
    let none = || json!({});
    let mut world = World::new(
        4,
        &[
            ("a", "b", none(), none()),
            ("b", "c", none(), none()),
            ("c", "a", none(), none()),
            ("d", "a", none(), none()),
            ("e", "nobody", none(), none()),
            ("self", "self", none(), none()),
        ],
    );
    let up = |world: &World, name: &str| -> Vec<String> {
        let path = world.queues.path(world.ix(name));
        path.map(|at| world.queues.name(at).to_owned()).collect()
    };
    assert_eq!(up(&world, "a"), ["a", "root"]);
    assert_eq!(up(&world, "b"), ["b", "root"]);
    assert_eq!(up(&world, "d"), ["d", "a", "root"]);
    assert_eq!(up(&world, "e"), ["e", "root"]);
    assert_eq!(up(&world, "self"), ["self", "root"]);
    world.queue("nobody", "", none(), none());
    world.update_entitlements();
    assert_eq!(up(&world, "e"), ["e", "nobody", "root"]);
}

#[test]
fn the_tightest_bound_on_the_way_to_the_root_binds_and_is_named() {
    let mut world = World::new(
        20,
        &[
            ("dept", "", json!({"capability": 5}), json!({})),
            ("a", "dept", json!({"capability": 4}), json!({})),
            ("b", "dept", json!({}), json!({})),
        ],
    );
    world.hold("b", 2);
    let (times, bound) = world.allows("a");
    assert_eq!(times, 3);
    let dept = world.ix("dept");
    assert!(
        matches!(bound, Some(LimitingRule::Capability { queue, held: 2, .. }) if queue == dept)
    );
    world.hold("b", -2);
    let a = world.ix("a");
    let (times, bound) = world.allows("a");
    assert_eq!(times, 4);
    assert!(matches!(bound, Some(LimitingRule::Capability { queue, .. }) if queue == a));
}

#[test]
fn a_guarantee_is_reserved_for_queues_inside_it() {
    let mut world = World::new(
        10,
        &[
            ("dept", "", json!({"guarantee": 6}), json!({})),
            ("a", "dept", json!({"guarantee": 4}), json!({})),
            ("b", "dept", json!({}), json!({})),
            ("other", "", json!({}), json!({})),
        ],
    );
    let all = |world: &mut World| {
        ["a", "b", "other"].map(|name| {
            let idle = world.total.get(CARD) - world.used.get(CARD);
            i64::from(world.allows(name).0).min(idle)
        })
    };
    // b may use what is reserved for its department, except what a keeps.
    assert_eq!(all(&mut world), [10, 6, 4]);
    world.hold("a", 3);
    assert_eq!(all(&mut world), [7, 6, 4]);
    world.hold("a", 2);
    assert_eq!(all(&mut world), [5, 5, 4]);
    world.hold("b", 2);
    assert_eq!(all(&mut world), [3, 3, 3]);
    world.hold("a", -5);
    assert_eq!(all(&mut world), [8, 4, 4]);
}

#[test]
fn a_borrowing_limit_is_above_what_the_queue_deserves() {
    let mut world = World::new(
        10,
        &[
            (
                "a",
                "",
                json!({"deserved": 3}),
                card_note("muster.io/borrowing-limit", 2),
            ),
            ("b", "", json!({"deserved": 3}), json!({})),
        ],
    );
    assert_eq!((world.allows("a").0, world.allows("b").0), (5, u32::MAX));
    assert!(matches!(
        world.allows("a").1,
        Some(LimitingRule::Borrowing { .. })
    ));
}

#[test]
fn amounts_that_are_not_lent_stay_reserved() {
    let mut world = World::new(
        8,
        &[
            (
                "a",
                "",
                json!({"deserved": 5}),
                card_note("muster.io/lending-limit", 2),
            ),
            ("b", "", json!({"deserved": 3}), json!({})),
        ],
    );
    assert_eq!((world.allows("a").0, world.allows("b").0), (u32::MAX, 5));
    world.hold("a", 1);
    assert_eq!(world.allows("b").0, 5);
    world.ask("b", 9);
    assert_eq!((world.entitled("a"), world.entitled("b")), (1, 5));
}

#[test]
fn non_preemptible_work_stays_within_the_deserved_amount_if_one_is_set() {
    let mut world = World::new(
        10,
        &[
            ("dept", "", json!({"deserved": 3}), json!({})),
            ("a", "dept", json!({"deserved": 4}), json!({})),
            ("free", "", json!({}), json!({})),
        ],
    );
    let fixed = |world: &mut World, name: &str| {
        let payer = Payer {
            fixed: true,
            ..world.payer(name)
        };
        world.queues.allows(payer, &cards(1), |_| 10)
    };
    let (times, bound) = fixed(&mut world, "a");
    let dept = world.ix("dept");
    assert_eq!(times, 3);
    assert!(matches!(bound, Some(LimitingRule::Deserved { queue, .. }) if queue == dept));
    assert_eq!(fixed(&mut world, "free").0, u32::MAX);
    // Preemptible work does not count.
    world.hold("a", 3);
    assert_eq!(fixed(&mut world, "a").0, 3);
    assert_eq!(world.allows("a").0, u32::MAX);
}

#[test]
fn a_user_stays_within_the_user_limit_of_every_queue_above() {
    let mut world = World::new(
        10,
        &[
            ("dept", "", json!({}), card_note("muster.io/user-limit", 3)),
            ("a", "dept", json!({}), json!({})),
            ("b", "dept", json!({}), json!({})),
        ],
    );
    let allows = |world: &mut World, queue: &str, user: &str| {
        let user = world.queues.user(user);
        let payer = Payer {
            user,
            ..world.payer(queue)
        };
        world.queues.allows(payer, &cards(1), |_| 10).0
    };
    world.hold("a", 2);
    assert_eq!(allows(&mut world, "b", "somebody"), 1);
    assert_eq!(allows(&mut world, "b", "another"), 3);
    // The same after a rebuild.
    world.queue("c", "dept", json!({}), json!({}));
    world.update_entitlements();
    assert_eq!(allows(&mut world, "c", "somebody"), 1);
}

#[test]
fn a_team_stays_within_the_team_limit_of_every_queue_above_across_users() {
    let mut world = World::new(
        10,
        &[
            ("dept", "", json!({}), card_note("muster.io/team-limit", 3)),
            ("a", "dept", json!({}), json!({})),
            ("b", "dept", json!({}), json!({})),
        ],
    );
    let payer = |world: &mut World, queue: &str, user: &str, team: Option<&str>| Payer {
        user: world.queues.user(user),
        team: team.map(|team| world.queues.team(team)),
        ..world.payer(queue)
    };
    let vision = payer(&mut world, "a", "ann", Some("vision"));
    world.queues.charge(vision, &cards(1), 2);
    let allows = |world: &mut World, queue: &str, user: &str, team: Option<&str>| {
        let payer = payer(world, queue, user, team);
        world.queues.allows(payer, &cards(1), |_| 10)
    };
    let (times, bound) = allows(&mut world, "b", "bob", Some("vision"));
    assert_eq!(times, 1);
    assert!(
        matches!(bound, Some(LimitingRule::Team { held: 2, .. })),
        "{bound:?}"
    );
    assert_eq!(allows(&mut world, "b", "bob", Some("speech")).0, 3);
    // A gang without a team counts for no team.
    assert_eq!(allows(&mut world, "b", "bob", None).0, u32::MAX);
    // The same after a rebuild.
    world.queue("c", "dept", json!({}), json!({}));
    world.update_entitlements();
    assert_eq!(allows(&mut world, "c", "ann", Some("vision")).0, 1);
    world.queues.charge(vision, &cards(1), -2);
    assert_eq!(allows(&mut world, "c", "ann", Some("vision")).0, 3);
}

#[test]
fn two_queues_are_compared_where_their_ways_part() {
    let none = || json!({});
    let world = World::new(
        4,
        &[
            ("x", "", none(), none()),
            ("y", "", none(), none()),
            ("a", "x", none(), none()),
            ("b", "x", none(), none()),
            ("c", "y", none(), none()),
        ],
    );
    let fork = |a: &str, b: &str| {
        let fork = world.queues.lowest_common_level(world.ix(a), world.ix(b));
        [fork.above, fork.left, fork.right].map(|at| world.queues.name(at).to_owned())
    };
    assert_eq!(fork("a", "b"), ["x", "a", "b"]);
    assert_eq!(fork("a", "c"), ["root", "x", "y"]);
    assert_eq!(fork("x", "b"), ["x", "x", "b"]);
    assert_eq!(fork("a", "a"), ["a", "a", "a"]);
}

#[test]
fn a_queue_is_above_its_share_only_where_others_ask() {
    let quota = |n: i64| json!({"deserved": n});
    let mut world = World::new(
        6,
        &[
            ("a", "", quota(2), json!({})),
            ("b", "", quota(2), json!({})),
        ],
    );
    world.hold("a", 6);
    let (a, b) = (world.ix("a"), world.ix("b"));
    assert_eq!(world.queues.above_share(a), None);
    world.ask("b", 9);
    assert_eq!((world.entitled("a"), world.entitled("b")), (3, 3));
    assert_eq!(world.queues.above_share(a), Some(CARD));
    assert!(world.queues.within_deserved(b, &cards(1), 2));
    assert!(!world.queues.within_deserved(b, &cards(1), 3));
    // A trial: the victims come off the account, the question is asked, they go back.
    let payer = world.payer("a");
    world.queues.charge(payer, &cards(3), -1);
    assert_eq!(world.queues.above_share(a), None);
    world.queues.charge(payer, &cards(3), 1);
    assert_eq!(world.queues.dominant_share(a), QueueShare(2 * share::PARTS));
    let more = {
        let mut room = Room::default();
        room.set(CARD, 3);
        room
    };
    assert_eq!(
        world.queues.dominant_share_with(b, &more),
        QueueShare(share::PARTS)
    );
}

#[test]
fn the_borrowed_share_is_borrowed_over_lendable_over_weight() {
    let quota = |n: i64| json!({"deserved": n});
    let weight = |w: &str| json!({"muster.io/surplus-weight": w});
    let mut world = World::new(
        9,
        &[
            (
                "all",
                "",
                json!({"deserved": 9, "capability": 9}),
                json!({}),
            ),
            ("a", "all", quota(3), weight("2")),
            ("b", "all", quota(3), weight("990m")),
            ("c", "all", quota(3), weight("0")),
        ],
    );
    world.hold("b", 6);
    let [a, b, c] = ["a", "b", "c"].map(|name| world.ix(name));
    let parts = |part: i128, whole: i128| QueueShare(part * share::PARTS / whole);
    assert_eq!(world.queues.borrowed_share(a), QueueShare::NONE);
    // 3 of 9 borrowed, at a weight of 0.99.
    assert_eq!(
        world.queues.borrowed_share(b),
        QueueShare(share::PARTS * 3 / 9 * 1000 / 990)
    );
    assert_eq!(
        world.queues.borrowed_share_with(a, a, &cards(5)),
        QueueShare(share::PARTS * 2 / 9 / 2)
    );
    assert_eq!(
        world.queues.borrowed_share_with(c, c, &cards(3)),
        QueueShare::NONE
    );
    assert_eq!(
        world.queues.borrowed_share_with(c, c, &cards(4)),
        QueueShare::INFINITE
    );
    assert!(parts(1, 9) < world.queues.borrowed_share(b));
    let all = world.ix("all");
    assert_eq!(world.queues.quota_left(all, CARD, a, 2), 1);
}

#[test]
fn amounts_that_are_not_lent_count_as_held_above_and_cannot_be_borrowed() {
    let mut world = World::new(
        12,
        &[
            (
                "cohort",
                "",
                json!({"deserved": 9, "capability": 9}),
                json!({}),
            ),
            (
                "lender",
                "cohort",
                json!({"deserved": 6}),
                card_note("muster.io/lending-limit", 2),
            ),
            ("borrower", "cohort", json!({"deserved": 3}), json!({})),
        ],
    );
    let [cohort, lender, borrower] = ["cohort", "lender", "borrower"].map(|name| world.ix(name));
    // 4 of the lender's 6 are never lent.
    assert_eq!(world.queues.lendable(cohort, CARD), 5);
    assert_eq!(world.queues.potential(borrower, CARD), 5);
    assert_eq!(world.queues.potential(lender, CARD), 9);
    assert_eq!(world.queues.held(cohort, CARD), 4);
    // What fills the reservation takes nothing from the cohort.
    assert_eq!(world.queues.held_with(cohort, CARD, lender, 4), 4);
    assert_eq!(world.queues.held_with(cohort, CARD, lender, 5), 5);
    world.hold("lender", 3);
    assert_eq!(world.queues.held(cohort, CARD), 4);
    world.hold("borrower", 5);
    assert_eq!(world.queues.held(cohort, CARD), 9);
    assert_eq!(world.allows("borrower").0, 0);
    assert_eq!(world.allows("lender").0, 1);
}
