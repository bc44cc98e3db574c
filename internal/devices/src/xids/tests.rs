//! Which GPUs are withheld for which XID, and until when.

use hardware::Signs;

use super::*;

/// Two GPUs; the arguments give the first one's health and the driver's recovery action for it.
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

fn judged(xids: &mut XidMonitor, mut machine: Inventory, now: Instant) -> Gpu {
    xids.assess(&mut machine, now);
    assert!(machine.gpus[1].healthy, "one bad GPU is out alone");
    machine.gpus.remove(0)
}

fn xids(now: Instant) -> XidMonitor {
    XidMonitor::new(XidPolicy::default(), None, now)
}

const QUIET: Duration = Duration::from_secs(30);

#[test]
fn an_applications_xid_takes_no_gpu_out() {
    let now = Instant::now();
    let mut xids = xids(now);
    xids.note("GPU-a", 94, XidReporter::Driver, now);
    let gpu = judged(&mut xids, found(true, None), now);
    assert!(gpu.healthy && gpu.problem.is_empty() && !gpu.failed);
    assert_eq!(xids.last("GPU-a", now), None, "nobody listens");
    xids.begins(XidReporter::Driver);
    assert_eq!(xids.last("GPU-a", now), Some(94));
    assert_eq!(xids.last("GPU-a", now + RECENT), Some(0));
    assert_eq!(xids.last("GPU-b", now), Some(0));
    assert_eq!(xids.counts("GPU-a").collect::<Vec<_>>(), [(94, 1)]);
}

#[test]
fn a_gpu_comes_back_once_it_is_quiet_and_the_driver_wants_nothing() {
    let start = Instant::now();
    let mut xids = xids(start);
    xids.note("GPU-a", 48, XidReporter::Driver, start);
    let reset = found(true, Some(Recovery::Reset));
    let gpu = judged(&mut xids, reset.clone(), start + QUIET);
    assert!(!gpu.healthy && gpu.failed);
    for word in ["XID 48", "double-bit", "--gpu-reset"] {
        assert!(gpu.problem.contains(word), "{}", gpu.problem);
    }
    // Healthy too soon: another XID may follow.
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
    xids.note("GPU-a", 79, XidReporter::Driver, start);
    assert!(!judged(&mut xids, found(true, None), start + 2 * QUIET).healthy);
    let gone = judged(&mut xids, found(false, None), start + 2 * QUIET);
    assert!(gone.problem.contains("it is silent; before, XID 79"));
    assert!(judged(&mut xids, found(true, None), start + 3 * QUIET).healthy);
}

#[test]
fn work_on_a_drained_gpu_may_continue() {
    let start = Instant::now();
    let mut xids = xids(start);
    xids.note("GPU-a", 54, XidReporter::Driver, start);
    let gpu = judged(&mut xids, found(true, Some(Recovery::None)), start);
    assert!(!gpu.healthy && !gpu.failed);
}

#[test]
fn an_xid_from_both_driver_and_kernel_is_counted_once() {
    let start = Instant::now();
    let mut xids = xids(start);
    // The kernel's log gives PCI addresses, which are known after the first inventory.
    xids.note_at("0000:c2:00", 63, start);
    judged(&mut xids, found(true, None), start);
    xids.note("GPU-b", 63, XidReporter::Driver, start);
    xids.note("GPU-b", 63, XidReporter::Driver, start);
    xids.note_at("0000:c2:00", 63, start);
    assert_eq!(xids.counts("GPU-b").collect::<Vec<_>>(), [(63, 2)]);
    // An XID that the driver missed before it was read is not waited for.
    xids.note_at("0000:c2:00", 63, start);
    xids.begins(XidReporter::Driver);
    xids.note("GPU-b", 63, XidReporter::Driver, start);
    assert_eq!(xids.counts("GPU-b").collect::<Vec<_>>(), [(63, 4)]);
    xids.note_at("0000:ff:00", 79, start);
    assert!(xids.counts("GPU-a").next().is_none());
}

#[test]
fn a_restarted_agent_knows_the_withheld_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let state = Some(dir.path().join("agent").join("xids.json"));
    let start = Instant::now();
    let mut first = XidMonitor::new(XidPolicy::default(), state.clone(), start);
    judged(&mut first, found(true, None), start);
    first.note("GPU-a", 79, XidReporter::Driver, start);
    drop(first);
    let mut second = XidMonitor::new(XidPolicy::default(), state.clone(), start);
    let gpu = judged(&mut second, found(true, None), start + 2 * QUIET);
    assert!(gpu.problem.contains("XID 79"), "{}", gpu.problem);
    // The GPU was reset: the next agent has no entry for it.
    judged(&mut second, found(false, None), start + 2 * QUIET);
    assert!(judged(&mut second, found(true, None), start + 3 * QUIET).healthy);
    let mut third = XidMonitor::new(XidPolicy::default(), state, start);
    assert!(judged(&mut third, found(true, None), start).healthy);
}
