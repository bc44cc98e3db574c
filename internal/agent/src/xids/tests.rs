//! Who is out for which XID, and until when.

use hardware::Signs;

use super::*;

/// Two GPUs: whether the first answers, and what the driver wants done about it.
fn found(healthy: bool, recovery: Option<Recovery>) -> Inventory {
    let gpu = |id: &str, pci: &str, healthy: bool, recovery| Gpu {
        id: id.to_owned(),
        pci: pci.to_owned(),
        healthy,
        problem: if healthy { "" } else { "it is silent" }.to_owned(),
        signs: Signs {
            recovery,
            ..Signs::default()
        },
        ..Gpu::default()
    };
    Inventory {
        gpus: vec![
            gpu("GPU-a", "0000:01:00.0", healthy, recovery),
            gpu("GPU-b", "0000:C2:00.0", true, Some(Recovery::None)),
        ],
        ..Inventory::default()
    }
}

fn judged(xids: &mut Xids, mut machine: Inventory, now: Instant) -> Gpu {
    xids.judge(&mut machine, now);
    assert!(machine.gpus[1].healthy, "one bad GPU is out alone");
    machine.gpus.remove(0)
}

fn xids(now: Instant) -> Xids {
    Xids::new(Policy::default(), None, now)
}

const QUIET: Duration = Duration::from_secs(30);

#[test]
fn an_applications_xid_takes_no_gpu_out() {
    let now = Instant::now();
    let mut xids = xids(now);
    xids.note("GPU-a", 94, Teller::Driver, now);
    let gpu = judged(&mut xids, found(true, None), now);
    assert!(gpu.healthy && gpu.problem.is_empty() && !gpu.failed);
    assert_eq!(xids.last("GPU-a", now), None, "nobody listens");
    xids.begins(Teller::Driver);
    assert_eq!(xids.last("GPU-a", now), Some(94));
    assert_eq!(xids.last("GPU-a", now + RECENT), Some(0));
    assert_eq!(xids.last("GPU-b", now), Some(0));
    assert_eq!(xids.counts("GPU-a").collect::<Vec<_>>(), [(94, 1)]);
}

#[test]
fn a_gpu_comes_back_once_it_is_quiet_and_the_driver_wants_nothing() {
    let start = Instant::now();
    let mut xids = xids(start);
    xids.note("GPU-a", 48, Teller::Driver, start);
    let reset = found(true, Some(Recovery::Reset));
    let gpu = judged(&mut xids, reset.clone(), start + QUIET);
    assert!(!gpu.healthy && gpu.failed);
    for word in ["XID 48", "double-bit", "--gpu-reset"] {
        assert!(gpu.problem.contains(word), "{}", gpu.problem);
    }
    // Well too soon: another may follow.
    let well = found(true, Some(Recovery::None));
    assert!(!judged(&mut xids, well.clone(), start + QUIET / 2).healthy);
    assert!(!xids.known()[0].1);
    assert!(judged(&mut xids, well, start + QUIET).healthy);
    assert!(xids.known()[0].1);
    let gpu = judged(&mut xids, reset, start + QUIET);
    assert!(gpu.healthy, "it is the driver's to say then");
}

#[test]
fn where_the_driver_does_not_say_a_gpu_must_have_been_gone() {
    let start = Instant::now();
    let mut xids = xids(start);
    xids.note("GPU-a", 79, Teller::Driver, start);
    assert!(!judged(&mut xids, found(true, None), start + 2 * QUIET).healthy);
    let gone = judged(&mut xids, found(false, None), start + 2 * QUIET);
    assert!(gone.problem.contains("it is silent; before, XID 79"));
    assert!(judged(&mut xids, found(true, None), start + 3 * QUIET).healthy);
}

#[test]
fn what_runs_on_a_gpu_that_is_drained_may_go_on() {
    let start = Instant::now();
    let mut xids = xids(start);
    xids.note("GPU-a", 54, Teller::Driver, start);
    let gpu = judged(&mut xids, found(true, Some(Recovery::None)), start);
    assert!(!gpu.healthy && !gpu.failed);
}

#[test]
fn what_driver_and_kernel_both_tell_is_counted_once() {
    let start = Instant::now();
    let mut xids = xids(start);
    // The kernel's log names places, which are known from the first look on.
    xids.note_at("0000:c2:00", 63, start);
    judged(&mut xids, found(true, None), start);
    xids.note("GPU-b", 63, Teller::Driver, start);
    xids.note("GPU-b", 63, Teller::Driver, start);
    xids.note_at("0000:c2:00", 63, start);
    assert_eq!(xids.counts("GPU-b").collect::<Vec<_>>(), [(63, 2)]);
    // What the driver missed while nobody listened is not waited for.
    xids.note_at("0000:c2:00", 63, start);
    xids.begins(Teller::Driver);
    xids.note("GPU-b", 63, Teller::Driver, start);
    assert_eq!(xids.counts("GPU-b").collect::<Vec<_>>(), [(63, 4)]);
    xids.note_at("0000:ff:00", 79, start);
    assert!(xids.counts("GPU-a").next().is_none());
}

#[test]
fn another_agent_knows_who_is_out() {
    let dir = tempfile::tempdir().unwrap();
    let state = Some(dir.path().join("agent").join("xids.json"));
    let start = Instant::now();
    let mut first = Xids::new(Policy::default(), state.clone(), start);
    judged(&mut first, found(true, None), start);
    first.note("GPU-a", 79, Teller::Driver, start);
    drop(first);
    let mut second = Xids::new(Policy::default(), state.clone(), start);
    let gpu = judged(&mut second, found(true, None), start + 2 * QUIET);
    assert!(gpu.problem.contains("XID 79"), "{}", gpu.problem);
    // It was reset: the next agent has nothing to remember.
    judged(&mut second, found(false, None), start + 2 * QUIET);
    assert!(judged(&mut second, found(true, None), start + 3 * QUIET).healthy);
    let mut third = Xids::new(Policy::default(), state, start);
    assert!(judged(&mut third, found(true, None), start).healthy);
}
