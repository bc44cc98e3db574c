//! Ports that are down: what is to be done, and whether one is to be up.

use hardware::Inventory;
use hardware::rdma::{CheckOutcome, RdmaCheck};

use crate::tree::{INFINIBAND, PORT, ROCE, Tree, others_than};

/// The first port's check with these values in its files.
fn state(tree: &Tree, state: &str, physical: &str, expected: Option<&Inventory>) -> RdmaCheck {
    tree.write(&format!("{PORT}/state"), state);
    tree.write(&format!("{PORT}/phys_state"), physical);
    let mut checks = tree.checks(expected).into_iter();
    let is = |check: &RdmaCheck| check.name == "port state" && check.place == "mlx5_0/1";
    checks.find(is).unwrap()
}

#[test]
fn a_port_that_is_down_says_what_is_to_be_done() {
    for (text, files, words) in [
        (INFINIBAND, ("2: INIT", "5: LinkUp"), "subnet manager"),
        (INFINIBAND, ("1: DOWN", "2: Polling"), "other end"),
        (INFINIBAND, ("1: DOWN", "3: Disabled"), "ibportstate"),
        (ROCE, ("1: DOWN", "3: Disabled"), "ip link set"),
        (ROCE, ("1: DOWN", "6: LinkErrorRecovery"), "cable"),
    ] {
        let tree = Tree::of(text);
        let (itself, _) = tree.observe();
        let found = state(&tree, files.0, files.1, Some(&itself));
        assert_eq!(found.answer, CheckOutcome::Fail, "{found:?}");
        assert!(found.advice.contains(words), "{found:?}");
        // The rate does not matter while the port is down.
        assert!(
            tree.checks(None)
                .iter()
                .all(|check| check.name != "rate" || check.place != "mlx5_0/1")
        );
    }
    let tree = Tree::of(ROCE);
    tree.remove(&format!("{PORT}/phys_state"));
    tree.remove(&format!("{PORT}/state"));
    let found = tree.checks(None);
    let unknown = others_than(&found, CheckOutcome::Pass);
    assert!(unknown.contains(&("port state", "mlx5_0/1", CheckOutcome::Unknown)));
}

#[test]
fn whether_a_port_is_to_be_up_is_told_by_its_like_or_by_a_description() {
    let down = ("1: DOWN", "3: Disabled");
    let one = Tree::of(ROCE);
    let (itself, _) = one.observe();
    // One of two ports is down: the correct one is unknown.
    assert_eq!(
        state(&one, down.0, down.1, None).answer,
        CheckOutcome::Unknown
    );
    let (unused, _) = one.observe();
    assert_eq!(
        state(&one, down.0, down.1, Some(&itself)).answer,
        CheckOutcome::Fail
    );
    assert_eq!(
        state(&one, down.0, down.1, Some(&unused)).answer,
        CheckOutcome::Pass
    );
    // No port is up: RDMA does not work here.
    one.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
    assert_eq!(state(&one, down.0, down.1, None).answer, CheckOutcome::Fail);
}
