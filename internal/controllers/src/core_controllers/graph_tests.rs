//! Tables of garbage collection: the graph's objects, and the steps that follow.

use super::*;

fn owner(uid: &str, blocks: bool) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: uid.to_owned(),
        uid: uid.to_owned(),
        block_owner_deletion: Some(blocks),
        controller: None,
    }
}

fn node(uid: &str, owners: &[OwnerReference]) -> GraphNode {
    GraphNode {
        uid: uid.to_owned(),
        kind: registry::by_kind("", "v1", "Pod").unwrap(),
        namespace: "ns".to_owned(),
        name: uid.to_owned(),
        resource_version: "1".to_owned(),
        owners: owners.to_vec(),
        finalizers: Vec::new(),
        deleting: false,
    }
}

fn going(uid: &str, owners: &[OwnerReference], finalizer: &str) -> GraphNode {
    GraphNode {
        finalizers: vec![finalizer.to_owned()],
        deleting: true,
        ..node(uid, owners)
    }
}

fn graph(nodes: &[GraphNode]) -> OwnerGraph {
    let mut graph = OwnerGraph::default();
    for node in nodes {
        graph.apply(node.clone());
    }
    graph
}

fn absent(uids: &[&str]) -> BTreeSet<Uid> {
    uids.iter().map(|uid| (*uid).to_owned()).collect()
}

fn drop_owners(uid: &str, owners: &[&str]) -> GraphStep {
    GraphStep::DropOwners(
        uid.to_owned(),
        owners.iter().map(|o| (*o).to_owned()).collect(),
    )
}

fn delete(uid: &str, cascade: Cascade) -> GraphStep {
    GraphStep::Delete(uid.to_owned(), cascade)
}

/// The case's name, the graph's objects, the absent owners, the expected steps.
type Case = (&'static str, Vec<GraphNode>, BTreeSet<Uid>, Vec<GraphStep>);

#[test]
fn steps_that_follow_from_the_owners() {
    let foreign = OwnerReference {
        api_version: "example.com/v1".to_owned(),
        kind: "Thing".to_owned(),
        ..owner("foreign", true)
    };
    let cases: Vec<Case> = vec![
        ("no owners", vec![node("d", &[])], absent(&[]), vec![]),
        (
            "an owner that is there",
            vec![node("o", &[]), node("d", &[owner("o", true)])],
            absent(&[]),
            vec![],
        ),
        (
            "an owner nobody has seen is asked for",
            vec![node("d", &[owner("o", true)])],
            absent(&[]),
            vec![GraphStep::AskOwner(owner("o", true))],
        ),
        (
            "all owners gone",
            vec![node("d", &[owner("o", true), owner("p", true)])],
            absent(&["o", "p"]),
            vec![delete("d", Cascade::Background)],
        ),
        (
            "one of two owners gone",
            vec![
                node("p", &[]),
                node("d", &[owner("o", true), owner("p", true)]),
            ],
            absent(&["o"]),
            vec![drop_owners("d", &["o"])],
        ),
        (
            "an owner that waits for its dependents",
            vec![going("o", &[], FOREGROUND), node("d", &[owner("o", true)])],
            absent(&[]),
            vec![delete("d", Cascade::Background)],
        ),
        (
            "the same, with dependents of its own",
            vec![
                going("o", &[], FOREGROUND),
                node("d", &[owner("o", true)]),
                node("e", &[owner("d", true)]),
            ],
            absent(&[]),
            vec![delete("d", Cascade::Foreground)],
        ),
        (
            "an owner that is deleted in the background is there until it is gone",
            vec![
                going("o", &[], "example.com/mine"),
                node("d", &[owner("o", true)]),
            ],
            absent(&[]),
            vec![],
        ),
        (
            "an owner of a kind that is not ours",
            vec![node("d", &[foreign])],
            absent(&[]),
            vec![],
        ),
        (
            "an owner in another namespace is none",
            vec![
                GraphNode {
                    namespace: "other".to_owned(),
                    ..node("o", &[])
                },
                node("d", &[owner("o", true)]),
            ],
            absent(&[]),
            vec![delete("d", Cascade::Background)],
        ),
        (
            "dependents of its own that are to be orphaned",
            vec![GraphNode {
                finalizers: vec![ORPHAN.to_owned()],
                ..node("d", &[owner("o", true)])
            }],
            absent(&["o"]),
            vec![delete("d", Cascade::Orphan)],
        ),
        (
            "a ring of owners lets itself go",
            vec![
                going("a", &[owner("d", true)], FOREGROUND),
                node("d", &[owner("a", true)]),
            ],
            absent(&[]),
            vec![
                GraphStep::Unblock("d".to_owned()),
                delete("d", Cascade::Foreground),
            ],
        ),
    ];
    for (name, nodes, absent, expected) in cases {
        assert_eq!(graph(&nodes).decide("d", &absent), expected, "{name}");
    }
}

#[test]
fn steps_for_an_object_that_is_being_deleted() {
    let cases: Vec<(&str, Vec<GraphNode>, Vec<GraphStep>)> = vec![
        (
            "foreground without dependents",
            vec![going("o", &[], FOREGROUND)],
            vec![GraphStep::DropFinalizer("o".to_owned(), FOREGROUND)],
        ),
        (
            "foreground with one that blocks",
            vec![going("o", &[], FOREGROUND), node("d", &[owner("o", true)])],
            vec![],
        ),
        (
            "foreground with one that does not block",
            vec![going("o", &[], FOREGROUND), node("d", &[owner("o", false)])],
            vec![GraphStep::DropFinalizer("o".to_owned(), FOREGROUND)],
        ),
        (
            "orphan with dependents",
            vec![
                going("o", &[], ORPHAN),
                node("d", &[owner("o", true)]),
                node("e", &[owner("o", false), owner("p", true)]),
            ],
            vec![drop_owners("d", &["o"]), drop_owners("e", &["o"])],
        ),
        (
            "orphan without dependents",
            vec![going("o", &[], ORPHAN)],
            vec![GraphStep::DropFinalizer("o".to_owned(), ORPHAN)],
        ),
        (
            "a finalizer of others",
            vec![going("o", &[], "example.com/mine")],
            vec![],
        ),
    ];
    for (name, nodes, expected) in cases {
        assert_eq!(graph(&nodes).decide("o", &absent(&[])), expected, "{name}");
    }
}

#[test]
fn changes_return_the_objects_to_process() {
    let mut graph = graph(&[node("o", &[]), node("d", &[owner("o", true)])]);
    // The owner begins to wait: it and its dependents are processed.
    assert_eq!(graph.apply(going("o", &[], FOREGROUND)), ["o", "d"]);
    // When a dependent no longer blocks, and when it is no dependent at all, the owner is
    // processed.
    assert_eq!(graph.apply(node("d", &[owner("o", false)])), ["d", "o"]);
    assert_eq!(graph.apply(node("d", &[])), ["o"]);
    assert_eq!(graph.apply(node("d", &[owner("o", true)])), ["d"]);
    // When a dependent goes, its owner is processed; when an owner goes, its dependents.
    assert_eq!(graph.remove("d"), ["o"]);
    graph.apply(node("d", &[owner("o", true)]));
    assert_eq!(graph.remove("o"), ["d"]);
    assert!(graph.remove("o").is_empty());
}

#[test]
fn a_deleted_tree_collapses_to_nothing_in_every_mode() {
    for cascade in [Cascade::Background, Cascade::Foreground] {
        let mut graph = graph(&[
            node("job", &[]),
            node("pod-0", &[owner("job", true)]),
            node("pod-1", &[owner("job", true)]),
            node("claim", &[owner("pod-0", true), owner("pod-1", true)]),
        ]);
        let mut absent = absent(&[]);
        let mut look = match cascade {
            Cascade::Foreground => graph.apply(going("job", &[], FOREGROUND)),
            _ => graph.remove("job"),
        };
        let mut steps = 0;
        while let Some(uid) = look.pop() {
            for step in graph.decide(&uid, &absent) {
                steps += 1;
                assert!(steps < 100, "it does not come to an end");
                match step {
                    GraphStep::AskOwner(owner) => {
                        absent.insert(owner.uid);
                        look.push(uid.clone());
                    }
                    GraphStep::Delete(uid, Cascade::Foreground) => {
                        let owners = graph.get(&uid).unwrap().owners.clone();
                        look.extend(graph.apply(going(&uid, &owners, FOREGROUND)));
                    }
                    GraphStep::Delete(uid, _) | GraphStep::DropFinalizer(uid, _) => {
                        look.extend(graph.remove(&uid));
                    }
                    GraphStep::DropOwners(uid, gone) => {
                        let mut node = graph.get(&uid).unwrap().clone();
                        node.owners.retain(|owner| !gone.contains(&owner.uid));
                        look.extend(graph.apply(node));
                    }
                    GraphStep::Unblock(_) => panic!("there is no ring"),
                }
            }
        }
        assert!(
            graph.nodes.is_empty(),
            "{cascade:?}: {:?}",
            graph.nodes.keys()
        );
        assert!(graph.dependents.is_empty());
    }
}
