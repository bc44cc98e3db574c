//! Known failures of other schedulers that are about size: time and memory that grow with the
//! cluster where only a pod has come. Counted in allocations, which are the same on every machine
//! and at any load: code that copies or walks a cluster allocates for it.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use scheduler::Scheduler;
use serde_json::json;
use support::*;

thread_local! {
    /// Bytes allocated by this thread, ever, and what of it was given back.
    static BYTES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(allocated: usize, freed: usize) {
    // A thread that is ending counts no more.
    let _ = BYTES.try_with(|bytes| {
        let (all, back) = bytes.get();
        bytes.set((all + allocated as u64, back + freed as u64));
    });
}

// SAFETY: hands every call on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes allocated meanwhile, and those of them that are still held.
fn measured<T>(what: impl FnOnce() -> T) -> (T, u64, i64) {
    let (before, back_before) = BYTES.get();
    let result = what();
    let (after, back_after) = BYTES.get();
    let (all, back) = (after - before, back_after - back_before);
    (result, all, all as i64 - back as i64)
}

/// So many nodes of 8 GPUs, each with 28 running pods, all GPUs taken.
fn full(nodes: usize) -> Scheduler {
    let mut s = scheduler();
    for n in 0..nodes {
        let name = format!("n{n:04}");
        s.apply(node(&name, 8));
        for i in 0..28 {
            s.apply(pod_with(
                &format!("p{n}-{i}"),
                None,
                i64::from(i < 8),
                |pod| {
                    pod["spec"]["nodeName"] = json!(name);
                    pod["status"] = json!({"phase": "Running"});
                },
            ));
        }
    }
    s.plan(now());
    // The first pod that is placed has what is expected of others worked out.
    s.apply(lone("first", 0));
    s.plan(now());
    s.apply(pod_gone("first"));
    s.plan(now());
    s
}

/// What a plan allocates after one pod has come that finds no GPU, and one that does without.
fn arrivals(nodes: usize) -> u64 {
    let mut s = full(nodes);
    let come = |s: &mut Scheduler, name: &str, gpus: i64| {
        s.apply(lone(name, gpus));
        measured(|| s.plan(now())).1
    };
    // The first of a kind is judged on every node.
    come(&mut s, "first", 1);
    come(&mut s, "plain", 0);
    come(&mut s, "second", 1) + come(&mut s, "another", 0)
}

/// 2.2 seconds went into a snapshot of 4 thousand nodes for 0.3 seconds of work.
#[test]
fn kai_315_what_a_plan_looks_at_does_not_grow_with_the_cluster() {
    let (small, large) = (arrivals(25), arrivals(400));
    assert!(
        large < small * 2 + 4096,
        "{small} bytes with 25 nodes, {large} with 400"
    );
}

/// 35 GB had been allocated for 287 MB that were alive.
#[test]
fn kai_1653_plans_allocate_little_beside_what_the_state_holds() {
    let (mut s, _, held) = measured(|| full(200));
    let ((), allocated, kept) = measured(|| {
        for i in 0..200 {
            let name = format!("comes{i}");
            s.apply(lone(&name, 0));
            s.plan(now());
            s.apply(pod_gone(&name));
            s.plan(now());
        }
    });
    assert!(
        allocated < held as u64 * 2,
        "400 plans allocated {allocated} bytes for a state of {held}"
    );
    assert!(kept < held / 50, "{kept} bytes more are held than before");
}

/// The verdict took 249.5 seconds, again in every cycle.
#[test]
fn kai_a_verdict_that_stands_is_not_worked_out_again() {
    let mut s = full(100);
    gang(&mut s, "large", 512, 1);
    let (plan, first, _) = measured(|| s.plan(now()));
    assert_eq!(report(&plan, "large").members_wanted, 512);
    // Now more are expected: what that means for the nodes is worked out once.
    s.apply(lone("before", 0));
    s.plan(now());
    s.apply(lone("other", 0));
    let (plan, again, _) = measured(|| s.plan(now()));
    assert_eq!(report(&plan, "large").members_wanted, 512);
    assert!(
        again < first / 2,
        "{first} bytes the first time, {again} again"
    );
}

/// Cycles of 40 seconds over what waits. Here a gang that waits costs a plan what is said of it,
/// however many pods it has: they are not gone through because some other pod came.
#[test]
fn kueue_13148_a_pods_arrival_does_not_look_at_the_pods_that_wait() {
    let waiting = |members: usize| {
        let mut s = full(20);
        for i in 0..50 {
            gang(&mut s, &format!("w{i:04}"), members, 1);
        }
        s.plan(now());
        s.apply(lone("first", 0));
        s.plan(now());
        s.apply(lone("other", 0));
        measured(|| s.plan(now()).binds.len()).1
    };
    // Fewer pods are expected to have fewer kinds after them.
    let (small, large) = (waiting(16), waiting(256));
    assert!(
        large < small * 5 / 4,
        "{small} bytes with 800 pods that wait, {large} with 12800"
    );
}
