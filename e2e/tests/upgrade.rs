//! Upgrades with real processes: what a release left behind is taken over, with a way back; and agents
//! are upgraded through the server while their pods run on.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Agent, Platform, eventually, muster, repository, require_root, run};

const SOON: Duration = Duration::from_secs(90);
/// A rollout waits for the agent's own limit on a binary without a session.
const LATER: Duration = Duration::from_secs(300);

/// The kept releases, the oldest first. A release adds a line, after `e2e/tests/releases/keep VERSION
/// MUSTER` has written the archive.
const RELEASES: [&str; 1] = ["0.1.0"];

/// The gRPC method of a session, as the binary has it, and one of the same length that no server has.
const METHOD: &[u8] = b"/muster.agent.v1.Fleet/Session";
const NO_METHOD: &[u8] = b"/muster.agent.v1.Fleet/Sessiom";

fn pod(name: &str, node: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  restartPolicy: Never
  nodeSelector: {{kubernetes.io/hostname: {node}}}
  containers:
    - name: c
      command: [/bin/sh, -c, "i=0; while sleep 0.2; do i=$((i+1)); echo count $i; done"]
      resources:
        requests: {{cpu: 10m, memory: 16Mi}}
"#
    )
}

fn lines(platform: &Platform, pod: &str) -> usize {
    platform.cli(&["logs", pod]).out.lines().count()
}

fn status(platform: &Platform) -> serde_json::Value {
    let text = platform.cli(&["upgrade", "status", "-o", "json"]).ok();
    serde_json::from_str(&text).expect("the state is JSON")
}

/// An executable file with this content.
fn binary(platform: &Platform, name: &str, content: &[u8]) -> PathBuf {
    let path = platform.data.with_file_name(name);
    std::fs::write(&path, content).expect("the binary can be written");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("the binary is the test's");
    path
}

/// The binary under test without its symbols: another file that does the same.
fn stripped(platform: &Platform) -> PathBuf {
    let path = platform.data.with_file_name("stripped");
    run(Command::new("strip").arg("-o").arg(&path).arg(muster())).ok();
    path
}

/// A binary that starts and never gets a session.
fn without_sessions(mut content: Vec<u8>) -> Vec<u8> {
    let found = content.windows(METHOD.len()).enumerate();
    let places: Vec<usize> = found
        .filter(|(_, window)| *window == METHOD)
        .map(|(place, _)| place)
        .collect();
    assert!(!places.is_empty(), "the binary names the method");
    for place in places {
        content[place..place + METHOD.len()].copy_from_slice(NO_METHOD);
    }
    content
}

fn executable(agent: &Agent) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/exe", agent.pid())).expect("the agent runs")
}

#[test]
fn agents_are_upgraded_by_the_server_and_their_pods_run_on() {
    require_root();
    let platform = Platform::server(&[]);
    let names = ["n1", "n2"];
    let agents = names.map(|name| platform.agent(name, None, &["--metrics", "off"]));
    let kept = platform.agent(
        "n3",
        None,
        &["--metrics", "off", "--allow-upgrade", "false"],
    );
    platform.await_nodes(3);
    for name in names {
        platform.apply(&pod(&format!("pod-{name}"), name));
    }
    for name in names {
        eventually("the pod runs", SOON, || {
            (platform.phase(&format!("pod-{name}")) == "Running").then_some(())
        });
    }
    let before = names.map(|name| platform.started_at(&format!("pod-{name}")));
    let pids = [agents[0].pid(), agents[1].pid()];

    // A binary that gets no session: the first agent goes back, and the second is left alone.
    let good = stripped(&platform);
    let content = std::fs::read(&good).expect("the binary can be read");
    let broken = binary(&platform, "broken", &without_sessions(content));
    let upgrade = |file: &Path| {
        let file = file.display().to_string();
        let words = [
            "upgrade",
            "agents",
            "--max-unavailable",
            "1",
            "--binary",
            &file,
        ];
        platform.cli(&words)
    };
    let failed = upgrade(&broken);
    assert_eq!(failed.code, Some(1), "{}\n{}", failed.out, failed.err);
    assert!(
        failed
            .out
            .contains("n1: Failed: it had no session with the server within 20 s"),
        "{}",
        failed.out
    );
    assert!(failed.out.contains("stopped: node n1"), "{}", failed.out);
    assert!(!failed.out.contains("n2:"), "{}", failed.out);
    // What is no muster is refused by the agent before it stops for it.
    let other = upgrade(Path::new("/bin/true"));
    assert!(other.out.contains("it is not muster"), "{}", other.out);

    let done = upgrade(&good).ok();
    assert!(done.contains("2 of 3 done, 1 upgraded otherwise"), "{done}");
    assert!(
        done.contains("n3: Skipped: its option --allow-upgrade is false"),
        "{done}"
    );
    for (agent, pid) in agents.iter().zip(pids) {
        assert_eq!(agent.pid(), pid, "the same process");
        let executable = executable(agent);
        assert!(
            executable.starts_with(&agent.data),
            "{}",
            executable.display()
        );
    }
    assert_eq!(executable(&kept), muster());
    let state = status(&platform);
    assert_eq!(state["rollout"]["state"]["phase"], "done", "{state}");
    // The same again finds nothing to do.
    upgrade(&good).ok();
    for (name, before) in names.iter().zip(&before) {
        let pod = format!("pod-{name}");
        let then = lines(&platform, &pod);
        eventually("it counts on", SOON, || {
            (lines(&platform, &pod) > then).then_some(())
        });
        assert_eq!(
            platform.started_at(&pod),
            *before,
            "{pod} was started again"
        );
        let restarts = &platform.get("pod", &pod)["status"]["containerStatuses"][0]["restartCount"];
        assert_eq!(restarts, 0);
    }
    // After a reboot the installed binary hands over to the upgraded one.
    let [mut first, second] = agents;
    first.kill();
    first.restart();
    eventually("it hands over", SOON, || {
        executable(&first).starts_with(&first.data).then_some(())
    });
    platform.cli(&["delete", "pod", "pod-n1", "pod-n2"]).ok();
    eventually("the pods ended", LATER, || {
        let gone = names
            .iter()
            .all(|name| platform.get("pod", &format!("pod-{name}")).is_null());
        gone.then_some(())
    });
    drop((first, second, kept));
}

/// Unpacks a kept release where it was made; its records hold absolute paths.
fn unpack(version: &str) -> PathBuf {
    let root = Path::new("/var/lib/muster-kept").join(version);
    let _ = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(&root).expect("a directory can be made");
    let open = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(&root, open).expect("the directory is the test's");
    let archive = repository().join(format!("e2e/tests/releases/{version}.tar.gz"));
    run(Command::new("tar")
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(&root))
    .ok();
    root
}

#[test]
fn what_every_release_left_behind_is_taken_over_and_there_is_a_way_back() {
    require_root();
    for version in RELEASES {
        let root = unpack(version);
        let mut platform = Platform::server_in(&root, &[]);
        assert!(
            platform.logged().contains("a snapshot was taken"),
            "{version}"
        );
        let state = |job: &str| {
            let job = platform.get("pytorchjob", job);
            let conditions = job["status"]["conditions"].as_array().cloned();
            let holds = conditions
                .into_iter()
                .flatten()
                .filter(|one| one["status"] == "True");
            let kinds = holds.map(|one| one["type"].as_str().unwrap_or("").to_owned());
            kinds.collect::<Vec<_>>()
        };
        assert!(state("done-job").contains(&"Succeeded".to_owned()));
        assert!(state("paused-job").contains(&"Suspended".to_owned()));
        assert_eq!(platform.get("queue", "research")["spec"]["weight"], 2);
        let settings = platform.cli(&["-n", "team", "get", "configmap", "settings", "-o", "json"]);
        assert!(settings.ok().contains("value"));

        // The agent takes its directory over: what ended is as it was, and what ran is reported.
        let agent = platform.agent("n1", None, &["--metrics", "off"]);
        platform.await_nodes(1);
        eventually("the pod that ran is reported", SOON, || {
            (platform.phase("running") == "Failed").then_some(())
        });
        assert_eq!(platform.phase("finished"), "Succeeded");
        assert_eq!(platform.cli(&["logs", "finished"]).ok(), "finished\n");
        let new = [
            "run", "--name", "new-job", "--cpus", "10m", "--memory", "32Mi",
        ];
        let command = ["--", "/bin/sh", "-c", "echo new"];
        let ran = platform.cli(&[&new[..], &command[..]].concat()).ok();
        assert!(ran.contains("new"), "{ran}");

        let upgrade = status(&platform);
        assert_eq!(
            upgrade["snapshots"].as_array().map(Vec::len),
            Some(1),
            "{upgrade}"
        );
        assert_eq!(upgrade["agents"][0]["node"], "n1");
        platform.cli(&["upgrade", "finalize"]).ok();
        assert_eq!(status(&platform)["store"]["finalized"], true);
        let audit = platform.data.join("audit/audit.log");
        eventually("the audit log has it", SOON, || {
            let log = std::fs::read_to_string(&audit).unwrap_or_default();
            log.contains("/api/v1/upgrade/finalization").then_some(())
        });

        // Back: the commands that rollback prints, with the snapshot.
        platform.stop();
        drop(agent);
        let way = platform.cli(&["upgrade", "rollback"]).ok();
        let line = |begin: &str| {
            let mut lines = way.lines().map(str::trim);
            let found = lines.find(|line| line.starts_with(begin));
            found.unwrap_or_else(|| panic!("{way}")).to_owned()
        };
        run(Command::new("sh").args(["-c", &line("mv ")])).ok();
        let restore = line("muster --data ");
        let words: Vec<&str> = restore.split(' ').skip(1).collect();
        platform.cli(&words).ok();
        platform.restart();
        assert!(platform.get("pytorchjob", "new-job").is_null());
        assert_eq!(platform.get("queue", "research")["spec"]["weight"], 2);
        drop(platform);
        let _ = std::fs::remove_dir_all(&root);
    }
}
