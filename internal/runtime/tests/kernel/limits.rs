//! Bounds: memory, CPU, processes; and what is counted.

use runtime::{ExitReason, ResourceLimits};

use super::*;

/// Doubles a shell variable until memory is short.
const GROW: &str = "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done";

#[tokio::test]
async fn a_container_over_its_memory_limit_is_oom_killed() {
    needs_root!();
    let house = House::new().await;
    if !house.runtime.capabilities().memory.works() {
        return;
    }
    let mut spec = house.shell("a", GROW);
    spec.limits = ResourceLimits {
        memory_limit_bytes: Some(32 << 20),
        ..ResourceLimits::default()
    };
    let (exit, _) = house.run(spec).await;
    assert_eq!(
        (exit.oom_killed, exit.reason, exit.signal),
        (true, ExitReason::OomKilled, Some(9)),
        "{exit:?}"
    );
}

#[tokio::test]
async fn a_child_that_is_oom_killed_makes_a_failed_container_oom_killed() {
    needs_root!();
    let house = House::new().await;
    if !house.runtime.capabilities().memory.works() {
        return;
    }
    let mut spec = house.shell("a", &format!("sh -c '{GROW}'; exit 1"));
    spec.limits = ResourceLimits {
        memory_limit_bytes: Some(32 << 20),
        ..ResourceLimits::default()
    };
    let (exit, _) = house.run(spec).await;
    assert_eq!(
        (exit.oom_killed, exit.reason),
        (true, ExitReason::OomKilled),
        "{exit:?}"
    );
}

#[tokio::test]
async fn bounds_are_in_the_cgroup_and_usage_is_counted_and_all_is_removed() {
    needs_root!();
    let house = House::new().await;
    if house
        .runtime
        .capabilities()
        .missing()
        .iter()
        .any(|line| line.contains("limits"))
    {
        return;
    }
    let mut spec = house.shell("a", "cat /proc/self/cgroup; x=0; while [ $x -lt 20000 ]; do x=$((x+1)); done; echo ready; exec sleep 1000");
    spec.limits = ResourceLimits {
        cpu_request_milli: Some(500),
        cpu_limit_milli: Some(1500),
        memory_limit_bytes: Some(256 << 20),
        pids_max: Some(50),
    };
    let id = spec.id.clone();
    let status = house.start(spec).await;
    assert_eq!(status.notes, Vec::<String>::new());
    house.says(&id, "ready").await;
    assert!(house.output(&id).await.contains(&house.cgroup));
    let stats = house.runtime.stats(&id).await.unwrap();
    assert!(
        stats.cpu_nanos > 0 && stats.memory_working_set > 0 && stats.processes == 1,
        "{stats:?}"
    );
    let first = Path::new("/sys/fs/cgroup/cpu")
        .join(&house.cgroup)
        .join("a");
    if first.exists() {
        let read = |file: &str| {
            std::fs::read_to_string(first.join(file))
                .unwrap()
                .trim()
                .to_string()
        };
        assert_eq!(
            (read("cpu.shares"), read("cpu.cfs_quota_us")),
            ("512".into(), "150000".into())
        );
    }
    within(house.runtime.kill(&id)).await.unwrap();
    assert!(!first.exists());
    assert!(house.runtime.stats(&id).await.is_err());
}

#[tokio::test]
async fn a_fork_bomb_is_bounded_and_dies_at_once() {
    needs_root!();
    let house = House::new().await;
    if !house.runtime.capabilities().pids.works() {
        return;
    }
    let mut spec = house.shell("a", "f() { f | f & }; f; echo ready; sleep 1000");
    spec.limits.pids_max = Some(40);
    let id = spec.id.clone();
    house.start(spec).await;
    within(house.runtime.kill(&id)).await.unwrap();
}

#[tokio::test]
async fn what_this_machine_allows_is_said() {
    let house = House::new().await;
    let text = house.runtime.capabilities().to_string();
    for word in [
        "cpu limits",
        "memory limits",
        "volumes and host names",
        "device access control",
    ] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_cgroup_of_version_two_is_joined_killed_and_removed() {
    needs_root!();
    use runtime::cgroup::{Cgroup, HierarchyLayout};
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let Some(root) = roots
        .map(Path::new)
        .into_iter()
        .find(|root| root.join("cgroup.controllers").exists())
    else {
        eprintln!("cgroup version 2 is not mounted: nothing tested");
        return;
    };
    let name = format!("muster-test-{}", std::process::id());
    let (cgroup, notes) = Cgroup::create(
        &HierarchyLayout::V2(root.into()),
        &name,
        "a",
        &ResourceLimits::default(),
        &runtime::DevicePolicy::default(),
    );
    assert_eq!(notes, Vec::<String>::new());
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    cgroup.join(child.id()).unwrap();
    assert_eq!(cgroup.processes(), [i32::try_from(child.id()).unwrap()]);
    cgroup.kill_once();
    assert_eq!(child.wait().unwrap().code(), None);
    assert!(cgroup.kill_all() && cgroup.remove());
    std::fs::remove_dir(root.join(name)).unwrap();
}
