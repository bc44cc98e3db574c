//! Tables of which nodes are cut, and a comparison with trying every set of nodes for random gangs.

use proptest::prelude::*;

use super::*;

/// `nvidia.com/mig-1g.10gb`, `nvidia.com/mig-3g.40gb`, and processors.
const SMALL: Ix = 4;
const LARGE: Ix = 5;
const CPU: Ix = 0;
const DEVICES: ResourceSet = 1 << GPU | 1 << SMALL | 1 << LARGE;
const UNIT: i64 = crate::resource::GPU_UNIT;

fn cut(name: &str, gives: &[(Ix, i64)]) -> GpuConfiguration {
    GpuConfiguration {
        name: name.into(),
        gives: gives.to_vec(),
    }
}

/// The configurations of a GPU of seven slices, for that many GPUs.
fn cuts(gpus: i64) -> Vec<GpuConfiguration> {
    vec![
        cut("all-1g.10gb", &[(SMALL, 7 * gpus)]),
        cut("all-3g.40gb", &[(LARGE, 2 * gpus)]),
        cut("all-balanced", &[(SMALL, 2 * gpus), (LARGE, gpus)]),
        cut("all-disabled", &[(GPU, gpus * UNIT)]),
    ]
}

fn room(all: &[(Ix, i64)]) -> Room {
    let mut room = Room::default();
    all.iter().for_each(|(ix, amount)| room.set(*ix, *amount));
    room
}

/// An idle node of `gpus` GPUs cut in this configuration.
fn idle(gpus: i64, now: &str) -> CandidateNode {
    let all = cuts(gpus);
    let gives = all
        .iter()
        .find(|cut| *cut.name == *now)
        .map(|cut| cut.gives.clone());
    let mut has = room(&gives.unwrap_or_default());
    has.set(CPU, 64);
    CandidateNode {
        room: has.clone(),
        empty: has,
        cuts: all.into_iter().filter(|cut| *cut.name != *now).collect(),
        open: true,
    }
}

/// A node all of whose GPUs are in use.
fn busy(gpus: i64, now: &str) -> CandidateNode {
    let site = idle(gpus, now);
    CandidateNode {
        room: room(&[(CPU, 64)]),
        open: false,
        ..site
    }
}

fn want(all: &[(Ix, i64, u64)]) -> WaitingSliceGang {
    let members = all.iter().map(|(ix, each, count)| MemberGroup {
        each: Demand(vec![(*ix, *each)]),
        count: *count,
        sites: (0..8).collect(),
    });
    WaitingSliceGang {
        members: members.collect(),
        cuts: true,
    }
}

/// Which nodes are cut how, as `place name`.
fn chosen(mut wants: Vec<WaitingSliceGang>, sites: &[CandidateNode]) -> Vec<String> {
    let within = |kind: &mut MemberGroup| kind.sites.retain(|at| *at < sites.len());
    wants
        .iter_mut()
        .flat_map(|want| &mut want.members)
        .for_each(within);
    let all = choose(&wants, sites, DEVICES).into_iter();
    all.map(|one| format!("{} {}", one.site, sites[one.site].cuts[one.cut].name))
        .collect()
}

#[test]
fn idle_nodes_are_cut_for_waiting_gangs_and_no_more_than_needed() {
    let whole = || idle(2, "all-disabled");
    let small = |count| want(&[(SMALL, 1, count)]);
    type Case = (
        &'static str,
        Vec<WaitingSliceGang>,
        Vec<CandidateNode>,
        Vec<&'static str>,
    );
    let table: Vec<Case> = vec![
        ("no gang waits", vec![], vec![whole()], vec![]),
        (
            "one slice",
            vec![small(1)],
            vec![whole(), whole()],
            vec!["0 all-1g.10gb"],
        ),
        (
            "slices of one node",
            vec![small(14)],
            vec![whole(), whole()],
            vec!["0 all-1g.10gb"],
        ),
        (
            "slices of two",
            vec![small(15)],
            vec![whole(), whole(), whole()],
            vec!["0 all-1g.10gb", "1 all-1g.10gb"],
        ),
        (
            "the larger node",
            vec![small(14)],
            vec![idle(1, "all-disabled"), whole()],
            vec!["1 all-1g.10gb"],
        ),
        (
            "more than there can be",
            vec![small(29)],
            vec![whole(), whole()],
            vec![],
        ),
        (
            "what is there serves",
            vec![small(3)],
            vec![whole(), idle(1, "all-1g.10gb")],
            vec![],
        ),
        (
            "a node in use is left alone",
            vec![small(1)],
            vec![busy(2, "all-disabled")],
            vec![],
        ),
        (
            "a gang of two profiles",
            vec![want(&[(SMALL, 1, 2), (LARGE, 1, 1)])],
            vec![whole(), whole()],
            vec!["0 all-balanced"],
        ),
        (
            "two gangs on one node",
            vec![small(1), want(&[(LARGE, 1, 1)])],
            vec![whole(), whole()],
            vec!["0 all-balanced"],
        ),
        (
            "whole again for a gang that waits for GPUs",
            vec![want(&[(GPU, 2 * UNIT, 1)])],
            vec![idle(2, "all-1g.10gb"), busy(2, "all-disabled")],
            vec!["0 all-disabled"],
        ),
        (
            "the first gang keeps what it waits for",
            vec![want(&[(GPU, 2 * UNIT, 2)]), small(1)],
            vec![whole(), busy(2, "all-disabled")],
            vec![],
        ),
        (
            "a gang that can never start keeps nothing",
            vec![want(&[(GPU, 2 * UNIT, 3)]), small(1)],
            vec![whole(), busy(2, "all-disabled")],
            vec!["0 all-1g.10gb"],
        ),
    ];
    for (what, wants, sites, expected) in table {
        assert_eq!(chosen(wants, &sites), expected, "{what}");
    }
}

#[test]
fn a_configuration_that_leaves_gpus_whole_is_taken_before_one_that_cuts_them_all() {
    let mut node = idle(2, "all-disabled");
    node.cuts.push(cut("one", &[(GPU, UNIT), (SMALL, 7)]));
    assert_eq!(
        chosen(vec![want(&[(SMALL, 1, 3)])], std::slice::from_ref(&node)),
        ["0 one"]
    );
    assert_eq!(
        chosen(vec![want(&[(SMALL, 1, 9)])], &[node]),
        ["0 all-1g.10gb"]
    );
}

#[test]
fn nothing_is_cut_where_other_resources_are_short_or_cutting_is_not_allowed() {
    let mut hungry = want(&[(SMALL, 1, 1)]);
    hungry.members[0].each = Demand(vec![(CPU, 65), (SMALL, 1)]);
    let node = idle(1, "all-disabled");
    assert!(chosen(vec![hungry], std::slice::from_ref(&node)).is_empty());
    let mut elsewhere = want(&[(SMALL, 1, 1)]);
    elsewhere.members[0].sites.clear();
    assert!(chosen(vec![elsewhere], std::slice::from_ref(&node)).is_empty());
    let mut other = want(&[(SMALL, 1, 1)]);
    other.cuts = false;
    assert!(chosen(vec![other], &[node]).is_empty());
}

/// Nodes of one to three GPUs, each idle or in use, in some configuration.
fn nodes() -> impl Strategy<Value = Vec<CandidateNode>> {
    let node = (1..4_i64, 0..4_usize, any::<bool>()).prop_map(|(gpus, now, used)| {
        let now = cuts(gpus)[now].name.clone();
        if used {
            busy(gpus, &now)
        } else {
            idle(gpus, &now)
        }
    });
    proptest::collection::vec(node, 1..5)
}

/// The fewest idle nodes that must be cut to serve one kind of members, if any set serves it: every
/// set of nodes is tried, each node cut in the best way.
fn fewest(kind: &MemberGroup, sites: &[CandidateNode]) -> Option<u32> {
    let sets = 0..1_u32 << sites.len();
    let good = sets.filter(|set| {
        let of = |(at, site): (usize, &CandidateNode)| {
            let as_is = fits(&kind.each, &site.room);
            if set & 1 << at == 0 {
                return as_is;
            }
            let fits_by_cut = site.cuts.iter().filter(|_| site.open);
            let fits_by_cut =
                fits_by_cut.map(|cut| fits(&kind.each, &cut_as(&site.room, cut, DEVICES)));
            fits_by_cut.max().unwrap_or(0)
        };
        sites.iter().enumerate().map(of).sum::<u64>() >= kind.count
    });
    good.map(u32::count_ones).min()
}

proptest! {
    #[test]
    fn a_gang_of_members_that_are_alike_is_served_on_the_fewest_nodes_where_it_can_be(
        sites in nodes(), ix in prop_oneof![Just(SMALL), Just(LARGE), Just(GPU)], count in 1..40_u64,
    ) {
        let each = if ix == GPU { UNIT } else { 1 };
        let mut want = want(&[(ix, each, count)]);
        want.members[0].sites = (0..sites.len()).collect();
        let chosen = choose(std::slice::from_ref(&want), &sites, DEVICES);
        match fewest(&want.members[0], &sites) {
            None => prop_assert!(chosen.is_empty(), "{chosen:?} for a gang that cannot start"),
            Some(least) => prop_assert_eq!(chosen.len(), least as usize),
        }
    }

    #[test]
    fn no_node_in_use_is_cut_none_twice_and_none_for_a_served_gang(
        sites in nodes(), counts in proptest::collection::vec((0..3_usize, 1..12_u64), 0..5),
    ) {
        let kinds = [(SMALL, 1), (LARGE, 1), (GPU, UNIT)];
        let wants: Vec<WaitingSliceGang> = counts.iter().map(|(kind, count)| {
            let (ix, each) = kinds[*kind];
            let mut want = want(&[(ix, each, *count)]);
            want.members[0].sites = (0..sites.len()).collect();
            want
        }).collect();
        let chosen = choose(&wants, &sites, DEVICES);
        let mut seen = BTreeSet::new();
        for one in &chosen {
            prop_assert!(sites[one.site].open, "node {} is in use", one.site);
            prop_assert!(seen.insert(one.site), "node {} is cut twice", one.site);
        }
        // Afterwards every gang that a node was cut for is served, and no more is cut for it.
        let mut after = sites.clone();
        for one in &chosen {
            let cut = &sites[one.site].cuts[one.cut];
            after[one.site].room = cut_as(&sites[one.site].room, cut, DEVICES);
        }
        let served: Vec<WaitingSliceGang> = wants.iter().enumerate()
            .filter(|(at, _)| chosen.iter().any(|one| one.want == *at))
            .map(|(_, want)| want.clone()).collect();
        prop_assert_eq!(choose(&served, &after, DEVICES), vec![]);
    }
}
