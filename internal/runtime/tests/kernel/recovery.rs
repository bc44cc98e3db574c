//! What outlives the agent, and what is found again.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime::{ContainerState, ExitReason};

use super::*;

#[tokio::test]
async fn a_container_outlives_an_agent_that_is_killed_and_is_found_by_the_next() {
    let mut house = House::new().await;
    let (go, log) = (house.path("go"), house.path("orphan.log"));
    let script = format!(
        "echo one; until [ -e {} ]; do sleep 0.02; done; echo two; exit 6",
        go.display()
    );
    let mut agent = Command::new(env!("CARGO_BIN_EXE_runtime-test-shim"))
        .arg("agent")
        .args([&house.path("containers"), Path::new(&house.cgroup), &log])
        .arg(script)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(agent.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "started\n");
    agent.kill().unwrap();
    agent.wait().unwrap();

    let found = house.reopen().await;
    let [status] = &found[..] else {
        panic!("{found:?}")
    };
    let ContainerState::Running { process, .. } = status.state else {
        panic!("{status:?}")
    };
    assert!(process.is_alive());
    std::fs::write(&go, "").unwrap();
    let exit = within(house.runtime.wait(&status.id)).await.unwrap();
    assert_eq!(exit.code, 6);
    assert_eq!(house.output(&status.id).await, "one\ntwo\n");
}

#[tokio::test]
async fn without_inotify_containers_start_and_stop_all_the_same() {
    needs_root!();
    let mut house = House::new().await;
    let log = house.path("untold.log");
    // In a user namespace of its own the limit is set without touching the machine's.
    let script = "echo 0 > /proc/sys/user/max_inotify_instances; \
                  exec \"$0\" agent \"$@\"";
    let mut agent = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-ec", script])
        .arg(env!("CARGO_BIN_EXE_runtime-test-shim"))
        .args([&house.path("containers"), Path::new(&house.cgroup), &log])
        .arg("echo up; exec sleep 1000")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(agent.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "started\n");
    agent.kill().unwrap();
    agent.wait().unwrap();

    let found = house.reopen().await;
    let [status] = &found[..] else {
        panic!("{found:?}")
    };
    let ContainerState::Running { process, .. } = status.state else {
        panic!("{status:?}")
    };
    let shim = shim_of(process.pid);
    let held = std::fs::read_dir(format!("/proc/{shim}/fd")).unwrap();
    let inotify = held
        .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
        .any(|link| link.to_string_lossy().contains("inotify"));
    assert!(!inotify, "the shim got an instance after all");
    house.says(&status.id, "up").await;
    house
        .runtime
        .request_stop(&status.id, Duration::from_secs(30))
        .await
        .unwrap();
    let exit = within(house.runtime.wait(&status.id)).await.unwrap();
    assert_eq!(exit.signal, Some(15));
}

#[tokio::test]
async fn an_end_that_no_agent_saw_is_found() {
    let mut house = House::new().await;
    let spec = house.shell("a", "exit 4");
    let id = spec.id.clone();
    house.run(spec).await;
    let found = house.reopen().await;
    assert_eq!(found.len(), 1);
    assert_eq!(house.runtime.status(&id).unwrap().exit().unwrap().code, 4);
}

#[tokio::test]
async fn a_stop_goes_on_while_no_agent_is_there() {
    let mut house = House::new().await;
    let spec = house.shell(
        "a",
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
    );
    let id = spec.id.clone();
    house.start(spec).await;
    house.says(&id, "ready").await;
    house
        .runtime
        .request_stop(&id, Duration::from_millis(300))
        .await
        .unwrap();
    house.reopen().await;
    assert_eq!(within(house.runtime.wait(&id)).await.unwrap().code, 137);
}

/// The process that watches over a container: its parent.
fn shim_of(pid: i32) -> Pid {
    Pid::from_raw(runtime::proc::stat(pid).expect("a live process").parent)
}

#[tokio::test]
async fn a_container_does_not_outlive_its_shim_and_its_end_is_told() {
    let house = House::new().await;
    let spec = house.shell("a", "setsid sleep 1000 & echo $!; exec sleep 1000");
    let id = spec.id.clone();
    let status = house.start(spec).await;
    let ContainerState::Running { process, .. } = status.state else {
        panic!("{status:?}")
    };
    house.says(&id, "\n").await;
    kill(shim_of(process.pid), Signal::SIGKILL).unwrap();
    let exit = within(house.runtime.wait(&id)).await.unwrap();
    assert_eq!(
        (exit.code, exit.reason),
        (137, ExitReason::ContainerStatusUnknown)
    );
    assert!(
        exit.message.contains("supervised the container died"),
        "{}",
        exit.message
    );
    assert!(!process.is_alive());
    let orphan = house.output(&id).await.trim().parse().unwrap();
    if house.runtime.capabilities().pids.works() {
        assert!(!alive(orphan));
    } else {
        // Out of reach without a cgroup.
        kill(Pid::from_raw(orphan), Signal::SIGKILL).unwrap();
    }
}

#[tokio::test]
async fn removing_the_directory_of_a_running_container_kills_it() {
    let house = House::new().await;
    let spec = house.shell("a", "exec sleep 1000");
    let status = house.start(spec).await;
    let ContainerState::Running { process, .. } = status.state else {
        panic!("{status:?}")
    };
    let shim = shim_of(process.pid);
    within(async {
        // The shim may write its last state meanwhile, so once may not be enough.
        while process.is_alive() || alive(shim.as_raw()) {
            let _ = std::fs::remove_dir_all(house.path("containers/a"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_shim_that_dies_while_no_agent_is_there_is_noticed_at_recovery() {
    let mut house = House::new().await;
    let spec = house.shell("a", "exec sleep 1000");
    let id = spec.id.clone();
    let status = house.start(spec).await;
    let ContainerState::Running { process, .. } = status.state else {
        panic!("{status:?}")
    };
    let shim = shim_of(process.pid);
    // As if the agent had died first: the old runtime looks at nothing any more.
    std::fs::rename(house.path("containers"), house.path("moved")).unwrap();
    kill(shim, Signal::SIGKILL).unwrap();
    within(async {
        while alive(shim.as_raw()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    std::fs::rename(house.path("moved"), house.path("containers")).unwrap();
    house.reopen().await;
    let exit = within(house.runtime.wait(&id)).await.unwrap();
    assert_eq!(exit.reason, ExitReason::ContainerStatusUnknown);
}

#[tokio::test]
async fn a_container_that_never_got_its_shim_is_as_if_never_asked_for_and_a_late_shim_runs_nothing()
{
    let mut house = House::new().await;
    let spec = house.shell("a", "echo ran");
    let dir = house.path("containers/a");
    std::fs::create_dir(&dir).unwrap();
    runtime::state::save(&dir, runtime::state::SPEC_FILE, &spec).unwrap();
    // Made, and the agent died before it described anything.
    std::fs::create_dir(house.path("containers/b")).unwrap();
    // A shim that was on its way waits for the lock while the agent looks.
    let lock = std::fs::File::create(dir.join(runtime::state::LOCK_FILE)).unwrap();
    lock.lock().unwrap();
    let late = Command::new(env!("CARGO_BIN_EXE_runtime-test-shim"))
        .arg(&dir)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    within(async {
        let opened = || {
            let files = std::fs::read_dir(format!("/proc/{}/fd", late.id()));
            let mut files = files.into_iter().flatten().flatten();
            files.any(|file| {
                let path = std::fs::read_link(file.path()).unwrap_or_default();
                path == dir.join(runtime::state::LOCK_FILE)
            })
        };
        while !opened() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    // The agent's own look, which holds the same lock.
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(house.reopen().await.is_empty());
    assert!(!house.path("containers/b").exists());
    // It is made again, while the late shim still waits for the lock of the directory that is gone.
    std::fs::create_dir(&dir).unwrap();
    runtime::state::save(&dir, runtime::state::SPEC_FILE, &spec).unwrap();
    drop(lock);
    let late = late.wait_with_output().unwrap();
    assert!(!late.status.success());
    assert!(!house.path("a.log").exists());
    // Described, and never started: the agent that comes next removes it, and starts it as any other.
    assert!(house.reopen().await.is_empty());
    assert!(!dir.exists());
    let id = spec.id.clone();
    house.start(spec).await;
    let exit = within(house.runtime.wait(&id)).await.unwrap();
    assert_eq!(exit.reason, ExitReason::Completed);
}

#[tokio::test]
async fn a_container_of_another_boot_is_over() {
    let mut house = House::new().await;
    let spec = house.shell("a", "");
    let dir = house.path("containers/a");
    std::fs::create_dir(&dir).unwrap();
    runtime::state::save(&dir, runtime::state::SPEC_FILE, &spec).unwrap();
    // Its process number is now that of an innocent: this test.
    let me = runtime::proc::ProcessId::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    let state = runtime::state::StateFile {
        format: runtime::state::FORMAT,
        boot_id: "another".into(),
        state: ContainerState::Running {
            process: me,
            started_at: jiff::Timestamp::now(),
        },
        cgroup: runtime::cgroup::Cgroup::None,
        notes: vec![],
    };
    runtime::state::save(&dir, runtime::state::STATE_FILE, &state).unwrap();
    let found = house.reopen().await;
    assert!(
        found[0].exit().unwrap().message.contains("restarted"),
        "{found:?}"
    );
}
