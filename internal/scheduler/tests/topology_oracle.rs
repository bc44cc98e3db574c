//! Gangs of several parts, judged by trying every way: parts with domains of their own, within a
//! domain of the gang's, are placed whole and within their domains, and only where there is a way.
//! Where all pods are of one size they are placed exactly if there is one; sizes that differ make
//! it a packing problem, for which a way may be missed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use proptest::prelude::*;
use scheduler::{Config, Scheduler};
use serde_json::{Value, json};
use support::*;

const LEVELS: [&str; 3] = ["zone", "rack", "kubernetes.io/hostname"];

#[derive(Clone, Debug)]
struct Host {
    zone: usize,
    rack: usize,
    gpus: i64,
}

#[derive(Clone, Debug)]
struct Part {
    level: Option<usize>,
    members: usize,
    gpus: i64,
}

fn host() -> impl Strategy<Value = Host> {
    (0..2usize, 0..2usize, 0..5i64).prop_map(|(zone, rack, gpus)| Host { zone, rack, gpus })
}

fn part() -> impl Strategy<Value = Part> {
    (proptest::option::of(0..3usize), 1..4usize, 1..4i64).prop_map(|(level, members, gpus)| Part {
        level,
        members,
        gpus,
    })
}

/// The hosts of each domain of a level; all of them in one where no level is asked for.
fn domains(hosts: &[Host], level: Option<usize>) -> Vec<Vec<usize>> {
    let name = |at: usize| match level {
        None => (0, 0, 0),
        Some(0) => (hosts[at].zone, 0, 0),
        Some(1) => (hosts[at].zone, hosts[at].rack, 0),
        Some(_) => (0, 0, at),
    };
    let mut found: Vec<((usize, usize, usize), Vec<usize>)> = Vec::new();
    for at in 0..hosts.len() {
        match found.iter_mut().find(|(other, _)| *other == name(at)) {
            Some((_, list)) => list.push(at),
            None => found.push((name(at), vec![at])),
        }
    }
    found.into_iter().map(|(_, list)| list).collect()
}

/// Is there any way to place the parts from this one on?
fn fits(hosts: &[Host], free: &mut [i64], inside: &[usize], parts: &[Part]) -> bool {
    let Some((part, rest)) = parts.split_first() else {
        return true;
    };
    domains(hosts, part.level).into_iter().any(|domain| {
        let here: Vec<usize> = domain
            .into_iter()
            .filter(|at| inside.contains(at))
            .collect();
        spread(hosts, free, inside, rest, part, &here, part.members)
    })
}

/// Any way to put so many pods of a part on these hosts, and the rest of the parts anywhere?
fn spread(
    hosts: &[Host],
    free: &mut [i64],
    inside: &[usize],
    rest: &[Part],
    part: &Part,
    here: &[usize],
    left: usize,
) -> bool {
    if left == 0 {
        return fits(hosts, free, inside, rest);
    }
    let Some((at, others)) = here.split_first() else {
        return false;
    };
    let most = ((free[*at] / part.gpus) as usize).min(left);
    (0..=most).rev().any(|n| {
        free[*at] -= part.gpus * n as i64;
        let found = spread(hosts, free, inside, rest, part, others, left - n);
        free[*at] += part.gpus * n as i64;
        found
    })
}

fn tell(s: &mut Scheduler, hosts: &[Host], required: Option<usize>, parts: &[Part]) {
    for (at, host) in hosts.iter().enumerate() {
        s.apply(node_with(&format!("n{at}"), host.gpus, |node| {
            node["metadata"]["labels"]["zone"] = json!(format!("z{}", host.zone));
            let rack = format!("r{}-{}", host.zone, host.rack);
            node["metadata"]["labels"]["rack"] = json!(rack);
        }));
    }
    let level = |at: usize| LEVELS[at];
    let listed: Vec<Value> = parts
        .iter()
        .enumerate()
        .map(|(at, part)| {
            let mut listed = json!({"name": format!("p{at}"), "minMember": part.members});
            if let Some(own) = part.level {
                listed["topology"] = json!({"required": level(own)});
            }
            listed
        })
        .collect();
    let members: usize = parts.iter().map(|part| part.members).sum();
    s.apply(group_with("g", members as i32, |group| {
        let mut notes = json!({"muster.io/sub-groups": json!(listed).to_string()});
        if let Some(required) = required {
            let wish = json!({"required": level(required)});
            notes["muster.io/topology"] = json!(wish.to_string());
        }
        group["metadata"]["annotations"] = notes;
    }));
    for (at, part) in parts.iter().enumerate() {
        for i in 0..part.members {
            let name = format!("p{at}-{i}");
            s.apply(pod_with(&name, Some("g"), part.gpus, |pod| {
                pod["metadata"]["annotations"]["muster.io/sub-group"] = json!(format!("p{at}"));
            }));
        }
    }
}

/// Plans, and checks what comes of it. How many are placed, and is there a way to place all?
fn check(
    hosts: &[Host],
    required: Option<usize>,
    parts: &[Part],
) -> Result<(usize, bool), TestCaseError> {
    let mut s = Scheduler::new(Config {
        topology: LEVELS.map(str::to_owned).to_vec(),
        ..Config::default()
    });
    tell(&mut s, hosts, required, parts);
    let plan = s.plan(now());
    let mut free: Vec<i64> = hosts.iter().map(|host| host.gpus).collect();
    let whole = domains(hosts, required);
    let possible = whole
        .iter()
        .any(|inside| fits(hosts, &mut free, inside, parts));
    let members: usize = parts.iter().map(|part| part.members).sum();
    prop_assert!([0, members].contains(&plan.binds.len()));
    prop_assert!(possible || plan.binds.is_empty());
    prop_assert_eq!(plan.reports.len(), usize::from(plan.binds.is_empty()));
    // Nobody is on more than there is, and no part is in two domains.
    for bind in &plan.binds {
        let at: usize = bind.node[1..].parse().unwrap();
        let part: usize = bind.pod.name[1..]
            .split('-')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        free[at] -= parts[part].gpus;
        prop_assert!(free[at] >= 0);
        let mates = plan
            .binds
            .iter()
            .filter(|other| other.pod.name.starts_with(&format!("p{part}-")));
        for mate in mates {
            let other: usize = mate.node[1..].parse().unwrap();
            let together = domains(hosts, parts[part].level)
                .iter()
                .any(|d| d.contains(&at) && d.contains(&other));
            prop_assert!(together);
        }
    }
    Ok((plan.binds.len(), possible))
}

fn exactly(hosts: &[Host], required: Option<usize>, parts: &[Part]) -> Result<(), TestCaseError> {
    let (placed, possible) = check(hosts, required, parts)?;
    prop_assert_eq!(placed > 0, possible);
    Ok(())
}

#[test]
fn an_earlier_part_makes_way_for_a_later_one() {
    // The first part would take the tightest rack, which is the only one that holds the second.
    let hosts = [
        Host {
            zone: 0,
            rack: 0,
            gpus: 2,
        },
        Host {
            zone: 0,
            rack: 0,
            gpus: 1,
        },
        Host {
            zone: 0,
            rack: 1,
            gpus: 4,
        },
    ];
    let part = |level, members, gpus| Part {
        level,
        members,
        gpus,
    };
    let parts = [part(Some(1), 3, 1), part(Some(1), 2, 2)];
    exactly(&hosts, None, &parts).unwrap();
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn a_gang_of_parts_of_one_size_is_placed_exactly_if_there_is_a_way(
        hosts in proptest::collection::vec(host(), 1..6),
        required in proptest::option::of(0..2usize),
        gpus in 1..3i64,
        parts in proptest::collection::vec(part(), 1..4),
    ) {
        let parts: Vec<Part> = parts.into_iter().map(|part| Part { gpus, ..part }).collect();
        exactly(&hosts, required, &parts)?;
    }

    #[test]
    fn a_gang_of_parts_of_any_size_is_placed_whole_and_within_its_domains_or_not_at_all(
        hosts in proptest::collection::vec(host(), 1..6),
        required in proptest::option::of(0..2usize),
        parts in proptest::collection::vec(part(), 1..4),
    ) {
        check(&hosts, required, &parts)?;
    }
}
