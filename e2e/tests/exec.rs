//! `kubectl exec` and `kubectl cp` with kubectl 1.34, and the Python client's `stream`, against the embedded engine:
//! commands run in the pod's container, with its user and limits, and end with their client.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::{Platform, eventually, kubectl, python, repository, run};

const SOON: Duration = Duration::from_secs(60);

fn sleeper(name: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "command": ["sleep", "600"],
                "env": [{"name": "GREETING", "value": "hello"}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    })
    .to_string()
}

/// Runs kubectl with an input.
fn with_input(platform: &Platform, arguments: &[&str], input: &[u8]) -> (Option<i32>, String) {
    let mut child = platform
        .command(&kubectl(), arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl starts");
    let mut stdin = child.stdin.take().expect("its input is a pipe");
    stdin.write_all(input).expect("kubectl reads its input");
    drop(stdin);
    let ended = child.wait_with_output().expect("kubectl ends");
    (
        ended.status.code(),
        String::from_utf8_lossy(&ended.stdout).into_owned(),
    )
}

#[test]
fn kubectl_runs_commands_in_a_pod_with_input_output_and_exit_code() {
    let platform = Platform::up(&[]);
    platform.apply(&sleeper("box"));
    platform.until_ready("box");
    let exec = |command: &str| platform.kubectl(&["exec", "box", "--", "/bin/sh", "-c", command]);

    let ran = exec("echo $GREETING; echo wrong >&2; exit 7");
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(7), "hello\n"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("wrong"), "{}", ran.err);

    // The container's own view: its processes, its user, no more privileges.
    let seen =
        exec("id -u; ps -e | grep -c '[s]leep 600' || ps -e; grep NoNewPrivs /proc/self/status")
            .ok();
    let inside = exec("cat /proc/1/comm").ok();
    assert_eq!(inside, "muster-init\n");
    let user = platform
        .pod_process("box")
        .map(|pid| format!("/proc/{pid}"));
    let owner = run(Command::new("stat").args(["-c", "%u", &user.unwrap()])).ok();
    assert_eq!(seen.lines().next(), owner.lines().next(), "{seen}");
    assert!(seen.contains("NoNewPrivs:\t1"), "{seen}");

    // Input to its end, and more of it than any buffer holds.
    let line = "0123456789abcdef".repeat(256);
    let input = format!("{line}\n").repeat(1024);
    let (code, out) = with_input(
        &platform,
        &["exec", "-i", "box", "--", "wc", "-c"],
        input.as_bytes(),
    );
    assert_eq!(
        (code, out.trim()),
        (Some(0), input.len().to_string().as_str())
    );
    let (code, out) = with_input(
        &platform,
        &["exec", "-i", "box", "--", "cat"],
        input.as_bytes(),
    );
    assert_eq!((code, out.len()), (Some(0), input.len()));
    assert!(out == input, "cat changed its input");

    // kubectl cp is tar over exec, both ways.
    let file = platform.manifest("payload", &input);
    let file = file.display().to_string();
    platform
        .kubectl(&["cp", &file, "box:/scratch/payload"])
        .ok();
    let back = platform.manifest("back", "");
    platform
        .kubectl(&["cp", "box:/scratch/payload", &back.display().to_string()])
        .ok();
    assert!(
        std::fs::read_to_string(&back).unwrap() == input,
        "the copy differs"
    );

    let missing = exec("nonsense-command");
    assert_eq!(missing.code, Some(127), "{}", missing.err);
    let missing = platform.kubectl(&["exec", "box", "-c", "other", "--", "true"]);
    assert!(
        missing
            .err
            .contains("container other is not valid for pod box"),
        "{}",
        missing.err
    );
}

#[test]
fn a_terminal_has_a_size_and_job_control() {
    let platform = Platform::up(&[]);
    platform.apply(&sleeper("box"));
    platform.until_ready("box");
    let lines = [
        "tty",
        "stty size",
        "sleep 100 & jobs",
        "kill %1; echo ended",
        "exit 5",
    ];
    let ran = platform.kubectl_in_terminal("exec -it box -- /bin/bash --norc -i", &lines);
    let out = &ran.out;
    assert!(out.contains("/dev/pts/"), "{out}");
    assert!(out.contains("33 111"), "{out}");
    assert!(out.contains("[1]+  Running"), "{out}");
    assert!(!out.contains("no job control"), "{out}");
    assert_eq!(ran.code, Some(5), "{out}");
}

#[test]
fn a_command_ends_with_its_client_and_a_hundred_run_side_by_side() {
    let platform = Platform::up(&[]);
    platform.apply(&sleeper("box"));
    platform.until_ready("box");
    let count = || {
        let out = platform.kubectl(&[
            "exec",
            "box",
            "--",
            "/bin/sh",
            "-c",
            "ps -e -o args= | grep -c '^sleep 30[0-9]'",
        ]);
        out.out.trim().parse::<usize>().unwrap_or_default()
    };
    let mut clients: Vec<_> = (0..100)
        .map(|_| {
            platform
                .command(&kubectl(), &["exec", "box", "--", "sleep", "300"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let begun = Instant::now();
    eventually("a hundred commands run", SOON * 2, || {
        (count() == 100).then_some(())
    });
    eprintln!("a hundred commands ran after {:?}", begun.elapsed());
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    eventually("all of them end with their clients", SOON, || {
        (count() == 0).then_some(())
    });
    assert!(platform.get("node", "box").is_null());
    platform.until_ready("box");
}

#[test]
fn the_python_client_talks_to_a_command() {
    let platform = Platform::up(&[]);
    platform.apply(&sleeper("box"));
    platform.until_ready("box");
    let script = repository()
        .join("e2e/clients/exec_stream.py")
        .display()
        .to_string();
    let out = run(&mut platform.command(&python(), &[&script])).ok();
    assert!(out.contains("exec stream done"), "{out}");
}

#[test]
fn only_those_who_may_run_commands_in_a_pod() {
    let platform = Platform::up(&[]);
    platform.apply(&sleeper("box"));
    platform.until_ready("box");
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    k(&["create", "serviceaccount", "viewer"]);
    k(&[
        "create",
        "role",
        "view-exec",
        "--verb=get",
        "--resource=pods,pods/exec",
    ]);
    k(&[
        "create",
        "rolebinding",
        "viewer",
        "--role=view-exec",
        "--serviceaccount=default:viewer",
    ]);
    k(&["create", "serviceaccount", "member"]);
    k(&[
        "create",
        "rolebinding",
        "member",
        "--clusterrole=muster:member",
        "--serviceaccount=default:member",
    ]);
    let by = |account: &str, pod: &str| {
        let token = k(&["create", "token", account]);
        platform.kubectl_by(token.trim(), &["exec", pod, "--", "id", "-u"])
    };
    // To read a pod is not to run commands in it.
    let refused = by("viewer", "box");
    assert!(
        refused.code != Some(0) && refused.err.contains("forbidden"),
        "{refused:?}"
    );
    // The pod runs for the administrator, with the administrator's limits and account.
    let refused = by("member", "box");
    assert!(
        refused
            .err
            .contains("only this user may run commands in it"),
        "{refused:?}"
    );
    let mut own: serde_json::Value = serde_json::from_str(&sleeper("own")).unwrap();
    own["metadata"]["annotations"]["muster.io/user"] =
        "system:serviceaccount:default:member".into();
    platform.apply(&own.to_string());
    platform.until_ready("own");
    assert_eq!(by("member", "own").code, Some(0));

    // A client that speaks SPDY alone is told what to do.
    let spdy = platform
        .command(&kubectl(), &["exec", "box", "--", "true"])
        .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&spdy.stderr).into_owned();
    assert!(
        !spdy.status.success() && words.contains("use kubectl 1.31 or later"),
        "{words}"
    );
}
