//! Held containers: what is left of root's rights, what they see, and that supervision goes on.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use runtime::{ContainerState, ExecOutcome, ExitReason, Isolation, ProcessUser};

use super::*;

/// A user that owns nothing.
const HELD: u32 = 2_000_000_123;

fn held(house: &House, name: &str, script: &str) -> ContainerSpec {
    let mut spec = house.shell(name, script);
    spec.user = ProcessUser {
        uid: Some(HELD),
        gid: Some(HELD),
        groups: Vec::new(),
    };
    spec.isolation = Some(Isolation {
        own_processes: true,
        seccomp: true,
        locked_memory: Some(1 << 20),
        ..Isolation::default()
    });
    spec
}

/// The value of a line of /proc/PID/status.
fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_default().trim()
}

#[tokio::test]
async fn a_held_process_has_a_user_no_capabilities_no_new_privileges_and_a_filter() {
    needs_root!();
    let house = House::new().await;
    let script = "exec cat /proc/self/status /proc/self/limits";
    let (exit, output) = house.run(held(&house, "a", script)).await;
    assert_eq!(exit.code, 0, "{exit:?}");
    let id = HELD.to_string();
    let all = [&*id; 4].join("\t");
    assert_eq!((line(&output, "Uid"), line(&output, "Gid")), (&*all, &*all));
    assert_eq!(line(&output, "Groups"), id);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(line(&output, set), "0000000000000000", "{set}");
    }
    assert_eq!(line(&output, "NoNewPrivs"), "1");
    assert_eq!(line(&output, "Seccomp"), "2");
    let limit = |name: &str| {
        let found = output.lines().find_map(|line| line.strip_prefix(name));
        let mut words = found.unwrap_or_default().split_whitespace();
        words.next().unwrap_or_default().to_owned()
    };
    assert_eq!(limit("Max core file size"), "0");
    assert_eq!(limit("Max locked memory"), (1 << 20).to_string());
}

#[tokio::test]
async fn a_capability_that_is_kept_is_the_only_one() {
    needs_root!();
    let house = House::new().await;
    let mut spec = held(&house, "a", "exec cat /proc/self/status");
    if let Some(isolation) = &mut spec.isolation {
        isolation.capabilities = vec!["NET_BIND_SERVICE".into()];
    }
    let (_, output) = house.run(spec).await;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(line(&output, set), "0000000000000400", "{set}");
    }
}

#[tokio::test]
async fn it_sees_its_own_processes_and_nothing_of_the_nodes() {
    needs_root!();
    let house = House::new().await;
    let script = "cd /proc; echo [0-9]*; cat /proc/1/comm; cat /proc/1/environ || echo closed; \
                  cat /proc/kcore | wc -c; echo x > /proc/sys/kernel/hostname || echo frozen; \
                  kill -9 1; echo alive";
    let (exit, output) = house.run(held(&house, "a", script)).await;
    assert_eq!(exit.code, 0, "{output}");
    let lines: Vec<&str> = output.lines().collect();
    let shown: Vec<i32> = (lines[0].split(' '))
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert!(
        shown.len() <= 3 && shown.iter().all(|pid| *pid < 20),
        "{output}"
    );
    for word in ["muster-init", "closed", "0", "frozen", "alive"] {
        assert!(lines.contains(&word), "{word}: {output}");
    }
}

#[tokio::test]
async fn hidden_directories_are_empty_for_it_and_unchanged_for_the_node() {
    needs_root!();
    let house = House::new().await;
    let (secrets, shown) = (house.path("secrets"), house.path("shown"));
    for dir in [&secrets, &shown] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("file"), "words\n").unwrap();
    }
    open_to_all(house.dir.path());
    let script = format!(
        "cat {0}/file || echo hidden; ls {0} || echo shut; cat {1}/file; cat /volume/file",
        secrets.display(),
        shown.display()
    );
    let mut spec = held(&house, "a", &script);
    // A volume from a hidden directory is shown all the same.
    spec.mounts = vec![runtime::Mount::bind(&secrets, "/volume").read_only()];
    if let Some(isolation) = &mut spec.isolation {
        isolation.hidden = vec![secrets.clone(), "/no/such/directory".into()];
    }
    let (exit, output) = house.run(spec).await;
    assert_eq!(exit.code, 0, "{output}");
    assert_eq!(output.matches("words").count(), 2, "{output}");
    assert!(
        output.contains("hidden\n") && output.contains("shut\n"),
        "{output}"
    );
    assert_eq!(fs::read_to_string(secrets.join("file")).unwrap(), "words\n");
}

#[tokio::test]
async fn a_host_that_is_read_only_is_written_to_through_volumes_and_devices_alone() {
    needs_root!();
    let house = House::new().await;
    let dirs = ["open", "shown", "kept", "below"].map(|name| house.path(name));
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(dir, everybody).unwrap();
    }
    let [open, shown, kept, below] = &dirs;
    open_to_all(house.dir.path());
    let script = format!(
        "touch {0}/file || echo refused; touch {1}/direct || echo refused; touch /kept/file || echo refused; \
         touch /dev/shm/file || echo refused; echo x > /dev/null && echo device; \
         echo x > /proc/self/comm && echo own; touch /new/file /new/below/file /memory/file && echo written",
        open.display(),
        shown.display()
    );
    let mut spec = held(&house, "a", &script);
    spec.mounts = vec![
        runtime::Mount::bind(shown, "/new"),
        runtime::Mount::bind(below, "/new/below"),
        runtime::Mount::bind(kept, "/kept").read_only(),
        runtime::Mount {
            target: "/memory".into(),
            source: runtime::MountSource::Tmpfs(Some(1 << 20)),
            sub_path: None,
            read_only: false,
        },
    ];
    if let Some(isolation) = &mut spec.isolation {
        isolation.read_only_host = true;
    }
    let (exit, output) = house.run(spec).await;
    assert_eq!(exit.code, 0, "{exit:?} {output}");
    assert_eq!(output.matches("refused").count(), 4, "{output}");
    for word in ["device", "own", "written"] {
        assert!(output.lines().any(|line| line == word), "{word}: {output}");
    }
    assert!(shown.join("file").exists() && below.join("file").exists());
    // The host's own view is as it was.
    fs::write(open.join("file"), "words").unwrap();
}

/// Lets everybody into a test's directory, which is its maker's alone at first.
fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
        .expect("the test owns this directory");
}

#[tokio::test]
async fn system_calls_that_reach_the_kernels_depths_are_refused_and_threads_work() {
    needs_root!();
    let house = House::new().await;
    let script = "unshare -U true || echo no namespaces; mount -t tmpfs x /mnt || echo no mounts; \
                  chroot / true || echo no roots; (sleep 0; echo forked) & wait";
    let (_, output) = house.run(held(&house, "a", script)).await;
    for words in ["no namespaces", "no mounts", "no roots", "forked"] {
        assert!(output.contains(words), "{words}: {output}");
    }
}

#[tokio::test]
async fn its_end_is_seen_as_of_any_container_and_nothing_of_it_is_left() {
    needs_root!();
    let house = House::new().await;
    let cases = [
        ("exit 42", 42, None, ExitReason::Error),
        ("kill -SEGV $$", 139, Some(11), ExitReason::Error),
        ("true", 0, None, ExitReason::Completed),
    ];
    for (number, (script, code, signal, reason)) in cases.into_iter().enumerate() {
        let spec = held(&house, &format!("end{number}"), script);
        let (exit, _) = house.run(spec).await;
        assert_eq!(
            (exit.code, exit.signal, exit.reason),
            (code, signal, reason)
        );
    }
    let spec = held(
        &house,
        "orphans",
        "setsid sleep 1000 & echo ready; exec sleep 1000",
    );
    let id = spec.id.clone();
    let status = house.start(spec).await;
    let ContainerState::Running { process, .. } = status.state else {
        panic!("{status:?}")
    };
    house.says(&id, "ready").await;
    let space = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = space(process.pid).expect("it runs");
    let inside = || {
        let all = runtime::proc::all().into_iter();
        all.filter(|(pid, stat)| stat.state != 'Z' && space(*pid).as_ref() == Some(&own))
            .count()
    };
    // Its init, itself, and what it left in another session.
    assert_eq!(inside(), 3);
    let exit = within(house.runtime.stop(&id, PATIENCE)).await.unwrap();
    // A command that knows nothing of signals is ended by one all the same.
    assert_eq!((exit.code, exit.signal), (143, Some(15)));
    assert_eq!(inside(), 0);
}

#[tokio::test]
async fn it_dies_with_its_shim_and_is_found_again_by_the_next_agent() {
    needs_root!();
    let mut house = House::new().await;
    let spec = held(
        &house,
        "a",
        "setsid sleep 1000 & echo ready; exec sleep 1000",
    );
    let id = spec.id.clone();
    house.start(spec).await;
    house.says(&id, "ready").await;
    let found = house.reopen().await;
    let [status] = &found[..] else {
        panic!("{found:?}")
    };
    let ContainerState::Running { process, .. } = status.state else {
        panic!("{status:?}")
    };
    assert!(process.is_alive());
    let shim = runtime::proc::stat(process.pid).expect("it runs").parent;
    let space = fs::read_link(format!("/proc/{}/ns/pid", process.pid)).unwrap();
    kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();
    let exit = within(house.runtime.wait(&id)).await.unwrap();
    assert_eq!(exit.reason, ExitReason::ContainerStatusUnknown);
    within(async {
        let left = |(pid, stat): &(i32, runtime::proc::Stat)| {
            let of = fs::read_link(format!("/proc/{pid}/ns/pid"));
            stat.state != 'Z' && of.is_ok_and(|of| of == space)
        };
        // The kernel ends them all, a moment later.
        while runtime::proc::all().iter().any(left) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_command_inside_is_held_as_the_container_is() {
    needs_root!();
    let house = House::new().await;
    let spec = held(&house, "a", "echo ready; exec sleep 1000");
    let id = spec.id.clone();
    house.start(spec).await;
    house.says(&id, "ready").await;
    let exec = |script: &str, limit| {
        let command = ["/bin/sh", "-c", script].map(str::to_string).to_vec();
        house.runtime.exec(&id, command, limit)
    };
    let outcome = within(exec("cat /proc/self/status /proc/1/comm; exit 9", PATIENCE)).await;
    let ExecOutcome::Exited { code, output } = outcome.unwrap() else {
        panic!("it took too long")
    };
    let output = String::from_utf8(output).unwrap();
    assert_eq!(code, 9, "{output}");
    assert!(
        line(&output, "Uid").starts_with(&HELD.to_string()),
        "{output}"
    );
    assert_eq!(line(&output, "CapBnd"), "0000000000000000");
    assert_eq!(
        (line(&output, "NoNewPrivs"), line(&output, "Seccomp")),
        ("1", "2")
    );
    assert!(output.ends_with("muster-init\n"), "{output}");
    let outcome = within(exec("kill -9 $$", PATIENCE)).await.unwrap();
    assert!(
        matches!(outcome, ExecOutcome::Exited { code: 137, .. }),
        "{outcome:?}"
    );
    let slow = within(exec("sleep 1000", Duration::from_millis(100))).await;
    assert_eq!(slow.unwrap(), ExecOutcome::TimedOut);
}

#[tokio::test]
async fn an_outline_of_what_holds_it_is_among_what_the_machine_allows() {
    let house = House::new().await;
    let capabilities = house.runtime.capabilities();
    assert!(capabilities.to_string().contains("isolation of pods"));
    // Where these tests are root they need it; another user's agent holds nothing, and says so.
    let root = nix::unistd::geteuid().is_root();
    assert_eq!(
        capabilities.isolation.works(),
        root,
        "{}",
        capabilities.isolation
    );
    assert_eq!(capabilities.unfit(true), None);
}

#[tokio::test]
async fn a_capability_that_nobody_knows_is_the_containers_own_fault() {
    needs_root!();
    let house = House::new().await;
    let mut spec = held(&house, "a", "true");
    if let Some(isolation) = &mut spec.isolation {
        isolation.capabilities = vec!["FLY".into()];
    }
    let (exit, _) = house.run(spec).await;
    assert_eq!(exit.reason, ExitReason::StartError);
    assert!(exit.message.contains("FLY"), "{}", exit.message);
}

#[tokio::test]
async fn its_groups_are_the_nodes_whatever_lies_over_the_nodes_files() {
    needs_root!();
    let house = House::new().await;
    open_to_all(house.dir.path());
    let (users, groups) = (house.path("passwd"), house.path("group"));
    fs::write(&users, format!("eve:x:{HELD}:{HELD}::/:/bin/sh\n")).unwrap();
    fs::write(&groups, "root:x:0:eve\ndisk:x:6:eve\n").unwrap();
    let script = "cat /proc/self/status; echo ready; exec sleep 1000";
    let mut spec = held(&house, "a", script);
    let id = spec.id.clone();
    spec.mounts = vec![
        runtime::Mount::bind(&users, "/etc/passwd"),
        runtime::Mount::bind(&groups, "/etc/group"),
    ];
    house.start(spec).await;
    house.says(&id, "ready").await;
    let output = house.output(&id).await;
    assert_eq!(line(&output, "Groups"), HELD.to_string());
    let command = ["cat", "/proc/self/status"].map(str::to_string).to_vec();
    let outcome = within(house.runtime.exec(&id, command, PATIENCE)).await;
    let ExecOutcome::Exited { output, .. } = outcome.unwrap() else {
        panic!("it took too long")
    };
    let output = String::from_utf8(output).unwrap();
    assert_eq!(line(&output, "Groups"), HELD.to_string());
}

#[tokio::test]
async fn it_has_no_open_file_but_its_own_and_a_command_inside_no_terminal() {
    needs_root!();
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    let house = House::new().await;
    let left = fs::File::open("/").unwrap();
    fcntl(&left, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let script = "echo ready; ls /proc/self/fd; echo done; exec sleep 1000";
    let spec = held(&house, "a", script);
    let id = spec.id.clone();
    house.start(spec).await;
    house.says(&id, "done").await;
    // The last is the one that lists them.
    assert_eq!(house.output(&id).await, "ready\n0\n1\n2\n3\ndone\n");
    let script = "ls /proc/self/fd; cut -d ' ' -f 5,6,7 /proc/self/stat; ulimit -c";
    let command = ["/bin/sh", "-c", script].map(str::to_string).to_vec();
    let outcome = within(house.runtime.exec(&id, command, PATIENCE)).await;
    let ExecOutcome::Exited { output, .. } = outcome.unwrap() else {
        panic!("it took too long")
    };
    // Group and session are those of a process outside, and there is no terminal.
    let output = String::from_utf8(output).unwrap();
    assert_eq!(output, "0\n1\n2\n3\n0 0 0\n0\n");
}
