//! From start to end: codes, signals, environment, users, stopping, commands inside.

use std::time::Duration;

use runtime::{ContainerState, ExecOutcome, ExitReason, ProcessUser, RuntimeError};

use super::*;

#[tokio::test]
async fn a_command_that_ends_well_is_completed() {
    let house = House::new().await;
    let (exit, output) = house.run(house.shell("a", "echo out; echo err >&2")).await;
    assert_eq!(
        (exit.code, exit.signal, exit.reason),
        (0, None, ExitReason::Completed)
    );
    assert!(exit.started_at.expect("it started") <= exit.finished_at);
    // Two outputs have no order between them.
    assert!(output == "out\nerr\n" || output == "err\nout\n", "{output}");
}

#[tokio::test]
async fn an_exit_code_is_kept() {
    let house = House::new().await;
    let (exit, _) = house.run(house.shell("a", "exit 42")).await;
    assert_eq!((exit.code, exit.reason), (42, ExitReason::Error));
}

#[tokio::test]
async fn a_signal_is_told_apart_from_a_code() {
    let house = House::new().await;
    let (exit, _) = house.run(house.shell("a", "kill -SEGV $$")).await;
    assert_eq!(
        (exit.code, exit.signal, exit.reason),
        (139, Some(11), ExitReason::Error)
    );
    assert!(exit.message.contains("SIGSEGV"), "{}", exit.message);
}

#[tokio::test]
async fn the_environment_is_exactly_the_one_given() {
    let house = House::new().await;
    let mut spec = house.shell("a", "");
    spec.command = vec!["env".into()];
    spec.env = vec![
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("RANK".into(), "3".into()),
        ("EMPTY".into(), String::new()),
    ];
    let (_, output) = house.run(spec).await;
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["EMPTY=", "PATH=/usr/bin:/bin", "RANK=3"]);
}

#[tokio::test]
async fn arguments_and_the_working_directory_arrive() {
    let house = House::new().await;
    let mut spec = house.shell("a", "echo \"$PWD $0 $1\"");
    spec.args = vec!["zero".into(), "a b".into()];
    spec.cwd = Some("/usr".into());
    assert_eq!(house.run(spec).await.1, "/usr zero a b\n");
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let house = House::new().await;
    let mut missing = house.shell("missing", "");
    missing.command = vec!["no-such-program".into()];
    let mut nowhere = house.shell("nowhere", "");
    nowhere.cwd = Some("/no/such/directory".into());
    for (spec, word) in [
        (missing, "no-such-program"),
        (nowhere, "/no/such/directory"),
    ] {
        let status = house.start(spec).await;
        let exit = status.exit().expect("it ended");
        assert_eq!(
            (exit.code, exit.reason, exit.started_at),
            (128, ExitReason::StartError, None)
        );
        assert!(exit.message.contains(word), "{}", exit.message);
    }
}

#[tokio::test]
async fn a_container_runs_as_its_user_with_its_groups_and_can_reopen_its_output() {
    needs_root!();
    let house = House::new().await;
    let mut spec = house.shell("a", "id -u; id -g; id -G; echo again > /dev/stdout");
    spec.user = ProcessUser {
        uid: Some(12345),
        gid: Some(23456),
        groups: vec![34567],
    };
    let (exit, output) = house.run(spec).await;
    assert_eq!(exit.code, 0);
    assert_eq!(output, "12345\n23456\n23456 34567\nagain\n");
}

#[tokio::test]
async fn a_stop_lets_it_end_by_itself_within_its_grace() {
    let house = House::new().await;
    let spec = house.shell(
        "a",
        "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done",
    );
    let id = spec.id.clone();
    assert!(matches!(
        house.start(spec).await.state,
        ContainerState::Running { .. }
    ));
    house.says(&id, "ready").await;
    let exit = within(house.runtime.stop(&id, PATIENCE)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (7, None));
    assert!(house.output(&id).await.contains("bye\n"));
}

#[tokio::test]
async fn what_ignores_the_stop_is_killed_with_all_it_started() {
    let house = House::new().await;
    let script = "trap '' TERM; sh -c 'echo child $$; sleep 1000' & setsid sh -c 'echo child $$; sleep 1000' & \
                  while :; do sleep 0.05; done";
    let spec = house.shell("a", script);
    let id = spec.id.clone();
    house.start(spec).await;
    within(async {
        while house.output(&id).await.lines().count() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let exit = within(house.runtime.stop(&id, Duration::from_millis(200)))
        .await
        .unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    for line in house.output(&id).await.lines() {
        let pid = line.trim_start_matches("child ").parse().unwrap();
        assert!(!alive(pid), "{line} is left");
    }
}

#[tokio::test]
async fn what_a_finished_container_left_behind_is_killed_and_does_not_delay_its_end() {
    let house = House::new().await;
    let (exit, output) = house
        .run(house.shell("a", "setsid sleep 1000 & echo $!; exit 3"))
        .await;
    assert_eq!(exit.code, 3);
    assert!(!alive(output.trim().parse().unwrap()));
}

#[tokio::test]
async fn a_later_stop_shortens_the_time_left() {
    let house = House::new().await;
    let spec = house.shell(
        "a",
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
    );
    let id = spec.id.clone();
    house.start(spec).await;
    house.says(&id, "ready").await;
    house
        .runtime
        .request_stop(&id, Duration::from_secs(3600))
        .await
        .unwrap();
    let exit = within(house.runtime.kill(&id)).await.unwrap();
    assert_eq!(exit.code, 137);
    // Stopping what has ended is no fault.
    assert_eq!(
        within(house.runtime.stop(&id, Duration::ZERO))
            .await
            .unwrap(),
        exit
    );
}

#[tokio::test]
async fn an_id_is_used_once_until_it_is_removed() {
    let house = House::new().await;
    let spec = house.shell("a", "sleep 1000");
    let id = spec.id.clone();
    house.start(spec.clone()).await;
    assert!(matches!(
        house.runtime.start(spec.clone()).await,
        Err(RuntimeError::Exists(_))
    ));
    assert!(matches!(
        house.runtime.remove(&id).await,
        Err(RuntimeError::StillRunning(_))
    ));
    within(house.runtime.kill(&id)).await.unwrap();
    house.runtime.remove(&id).await.unwrap();
    assert!(house.runtime.status(&id).is_none());
    assert!(matches!(
        house.runtime.remove(&id).await,
        Err(RuntimeError::NotFound(_))
    ));
    // Again and again: nothing of an earlier run is taken for a later one.
    for _ in 0..5 {
        assert!(house.start(spec.clone()).await.is_running());
        assert_eq!(within(house.runtime.kill(&id)).await.unwrap().code, 137);
        house.runtime.remove(&id).await.unwrap();
    }
}

#[tokio::test]
async fn changes_are_told_in_order() {
    let house = House::new().await;
    let mut changes = house.runtime.changes();
    house.run(house.shell("a", "exit 5")).await;
    let mut seen = Vec::new();
    while seen
        .last()
        .is_none_or(|status: &ContainerStatus| status.exit().is_none())
    {
        seen.push(within(changes.recv()).await.unwrap());
    }
    assert_eq!(seen.pop().unwrap().exit().unwrap().code, 5);
    // It may have ended before anyone saw it run, but not the other way round.
    let running = seen.iter().position(ContainerStatus::is_running);
    assert!(
        running.is_none_or(|place| place + 1 == seen.len()),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_command_inside_sees_what_the_container_sees() {
    needs_root!();
    let house = House::new().await;
    let mut spec = house.shell("a", "echo ready; exec sleep 1000");
    spec.hostname = Some("rank-0".into());
    spec.env.push(("ROLE".into(), "master".into()));
    spec.user.uid = Some(12345);
    spec.cwd = Some("/usr".into());
    spec.mounts = vec![runtime::Mount::bind(
        house.path("volume"),
        "/data-inside/volume",
    )];
    std::fs::create_dir(house.path("volume")).unwrap();
    std::fs::write(house.path("volume/file"), "in the volume\n").unwrap();
    let id = spec.id.clone();
    house.start(spec).await;
    let exec = |script: &str, limit| {
        house.runtime.exec(
            &id,
            ["/bin/sh", "-c", script].map(str::to_string).to_vec(),
            limit,
        )
    };
    let outcome = within(exec(
        "hostname; echo $ROLE; id -u; pwd; cat /data-inside/volume/file; exit 9",
        PATIENCE,
    ))
    .await
    .unwrap();
    let output = b"rank-0\nmaster\n12345\n/usr\nin the volume\n".to_vec();
    assert_eq!(outcome, ExecOutcome::Exited { code: 9, output });
    assert_eq!(
        within(exec("sleep 1000", Duration::from_millis(100)))
            .await
            .unwrap(),
        ExecOutcome::TimedOut
    );
    let missing = within(
        house
            .runtime
            .exec(&id, vec!["no-such-program".into()], PATIENCE),
    )
    .await
    .unwrap();
    assert!(
        matches!(missing, ExecOutcome::Exited { code: 126, .. }),
        "{missing:?}"
    );
    within(house.runtime.kill(&id)).await.unwrap();
    assert!(matches!(
        exec("true", PATIENCE).await,
        Err(RuntimeError::NotRunning(_))
    ));
}

#[tokio::test]
async fn a_container_is_not_protected_from_the_oom_killer_as_the_agent_is() {
    needs_root!();
    if std::fs::write("/proc/self/oom_score_adj", "-500").is_err() {
        eprintln!("no right to lower the OOM score: nothing tested");
        return;
    }
    let house = House::new().await;
    let spec = house.shell(
        "a",
        "echo score $(cat /proc/self/oom_score_adj); exec sleep 1000",
    );
    let id = spec.id.clone();
    house.start(spec).await;
    house.says(&id, "score ").await;
    assert_eq!(house.output(&id).await, "score 0\n");
    let command = ["cat", "/proc/self/oom_score_adj"].map(str::to_string);
    let outcome = within(house.runtime.exec(&id, command.to_vec(), PATIENCE)).await;
    let output = b"0\n".to_vec();
    assert_eq!(outcome.unwrap(), ExecOutcome::Exited { code: 0, output });
    within(house.runtime.kill(&id)).await.unwrap();
}

#[tokio::test]
async fn a_container_begins_with_no_signal_blocked_or_ignored() {
    let house = House::new().await;
    let mut spec = house.shell("a", "");
    spec.command = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]
        .map(Into::into)
        .to_vec();
    let (_, output) = house.run(spec).await;
    assert_eq!(output.lines().count(), 2, "{output}");
    for line in output.lines() {
        let mask = line.split_whitespace().last().unwrap();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        // Signals above 31 are the C library's own.
        assert_eq!(mask & 0x7fff_ffff, 0, "{line}");
    }
}

#[tokio::test]
async fn a_stop_ends_a_command_that_knows_nothing_of_signals_at_once() {
    let house = House::new().await;
    let mut spec = house.shell("a", "");
    spec.command = ["sleep", "600"].map(Into::into).to_vec();
    let id = spec.id.clone();
    house.start(spec).await;
    let exit = within(house.runtime.stop(&id, PATIENCE)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (143, Some(15)));
}
