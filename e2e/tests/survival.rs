//! Survival of killed agents and servers: their acknowledged state is kept.

use std::time::Duration;

use e2e::{Platform, eventually, run};

const SOON: Duration = Duration::from_secs(90);
const TWO_MINUTES: Duration = Duration::from_secs(120);

/// A pod that counts, and succeeds when its file exists.
fn counting(name: &str, flag: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  restartPolicy: Never
  containers:
    - name: c
      command: [/bin/sh, -c, "i=0; while [ ! -e {flag} ]; do i=$((i+1)); echo count $i; sleep 0.2; done; echo end"]
      resources:
        requests: {{cpu: 50m, memory: 16Mi}}
"#
    )
}

#[test]
fn a_pod_runs_on_while_its_agent_is_dead_and_is_found_again() {
    let platform = Platform::server(&[]);
    let mut agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    let flag = platform.data.with_file_name("go");
    platform.apply(&counting("steady", &flag.display().to_string()));
    eventually("it runs", SOON, || {
        (platform.phase("steady") == "Running").then_some(())
    });
    let before = platform.started_at("steady");
    let lines = || platform.cli(&["logs", "steady"]).out.lines().count();

    agent.kill();
    let alive = run(std::process::Command::new("pgrep").args(["-f", "count \\$i; sleep 0.2"]));
    assert!(!alive.out.is_empty(), "the pod died with its agent");
    agent.restart();
    let then = eventually("its log is read again", SOON, || {
        Some(lines()).filter(|count| *count > 0)
    });
    eventually("it counts on", SOON, || (lines() > then).then_some(()));
    assert_eq!(
        platform.started_at("steady"),
        before,
        "the container was started again"
    );
    let status = platform.get("pod", "steady");
    assert_eq!(status["status"]["containerStatuses"][0]["restartCount"], 0);

    // Pods that end while the agent is dead are reported when it is back.
    agent.kill();
    std::fs::write(&flag, "").unwrap();
    eventually("the process ended", SOON, || {
        let alive = run(std::process::Command::new("pgrep").args(["-f", "count \\$i; sleep 0.2"]));
        alive.out.is_empty().then_some(())
    });
    agent.restart();
    eventually("it succeeded", SOON, || {
        (platform.phase("steady") == "Succeeded").then_some(())
    });
    let log = platform.cli(&["logs", "steady", "--tail", "1"]).ok();
    assert_eq!(log, "end\n");
}

#[test]
fn work_goes_on_while_the_server_is_dead_and_nothing_is_lost() {
    let mut platform = Platform::server(&[]);
    let _agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    let flag = platform.data.with_file_name("go");
    platform.apply(&counting("steady", &flag.display().to_string()));
    eventually("it runs", SOON, || {
        (platform.phase("steady") == "Running").then_some(())
    });
    let before = platform.started_at("steady");

    platform.kill();
    std::fs::write(&flag, "").unwrap();
    platform.restart();
    eventually("it succeeded", SOON, || {
        (platform.phase("steady") == "Succeeded").then_some(())
    });
    let pod = platform.get("pod", "steady");
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["startedAt"].as_str().unwrap(), before);
    assert_eq!(ended["exitCode"], 0);
}

#[test]
fn a_backup_taken_while_the_server_runs_fills_another_one() {
    let mut platform = Platform::server(&[]);
    platform.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\ndata: {a: b}\n");
    let file = platform.data.with_file_name("backup");
    platform.cli(&["backup", &file.display().to_string()]).ok();
    platform.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: later}\ndata: {a: b}\n");
    platform.stop();
    std::fs::remove_dir_all(platform.data.join("store")).unwrap();
    platform.cli(&["restore", &file.display().to_string()]).ok();
    platform.restart();
    assert_eq!(platform.get("configmap", "kept")["data"]["a"], "b");
    assert!(platform.get("configmap", "later").is_null());
}

#[test]
fn the_server_takes_backups_by_itself_and_the_newest_brings_its_objects_back() {
    let mut platform = Platform::server(&["--backup-every", "1m", "--backup-keep", "1"]);
    platform.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\ndata: {a: b}\n");
    let directory = platform.data.join("backups");
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(&directory).into_iter().flatten();
        let paths = entries.map(|entry| entry.unwrap().path().display().to_string());
        paths.filter(|path| path.ends_with(".backup")).collect()
    };
    let first = eventually("a backup is taken", TWO_MINUTES, || files().pop());
    let next = eventually("the next one replaces it", TWO_MINUTES, || {
        let now = files();
        (now.len() == 1 && now[0] != first).then(|| now[0].clone())
    });
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&next).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    platform.stop();
    std::fs::remove_dir_all(platform.data.join("store")).unwrap();
    platform.cli(&["restore", &next]).ok();
    platform.restart();
    assert_eq!(platform.get("configmap", "kept")["data"]["a"], "b");
}

#[test]
fn a_sealed_backup_brings_server_and_nodes_back_on_a_machine_that_has_nothing_else() {
    let mut platform = Platform::server(&[]);
    let _agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    platform.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\ndata: {a: b}\n");
    let secret = platform.manifest("passphrase", "correct horse battery\n");
    let secret = secret.display().to_string();
    let file = platform.data.with_file_name("backup");
    let path = file.display().to_string();
    let open = platform.cli(&["backup", &path]);
    assert!(open.err.contains("not encrypted"), "{}", open.err);
    let sealed = platform.cli(&["backup", "--passphrase-file", &secret, &path]);
    assert!(!sealed.err.contains("not encrypted"), "{}", sealed.err);
    sealed.ok();
    let authority = std::fs::read(platform.data.join("server/ca.pem")).unwrap();
    // Another process cannot read a store in use.
    let busy = platform.cli(&["store", "check"]);
    assert_ne!(busy.code, Some(0));
    assert!(busy.err.contains("another process"), "{}", busy.err);

    platform.stop();
    for directory in ["store", "server", "decisions"] {
        std::fs::remove_dir_all(platform.data.join(directory)).unwrap();
    }
    let refused = platform.cli(&["restore", &path]);
    assert!(refused.err.contains("--passphrase-file"), "{}", refused.err);
    platform
        .cli(&["restore", "--passphrase-file", &secret, &path])
        .ok();
    let checked = platform.cli(&["store", "check"]);
    assert!(checked.out.contains("nothing is damaged"), "{checked:?}");
    checked.ok();
    platform.restart();
    assert_eq!(platform.get("configmap", "kept")["data"]["a"], "b");
    let back = std::fs::read(platform.data.join("server/ca.pem")).unwrap();
    assert_eq!(back, authority);
    // The returned server accepts the node's certificate: the agent reconnects by itself.
    platform.apply(&counting("after", "/etc/passwd"));
    eventually("the node runs a pod", SOON, || {
        (platform.phase("after") == "Succeeded").then_some(())
    });
}

#[test]
fn a_full_disk_refuses_writes_clearly_and_reads_and_deletions_go_on() {
    e2e::require_root();
    let mount = tempfile::tempdir().unwrap();
    let path = mount.path().display().to_string();
    let tmpfs = ["-t", "tmpfs", "-o", "size=160m", "tmpfs", &path];
    run(std::process::Command::new("mount").args(tmpfs)).ok();
    let platform = Platform::server_in(mount.path(), &[]);
    platform.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\ndata: {a: b}\n");
    platform.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: spare}\ndata: {a: b}\n");
    let file = platform.manifest(
        "x.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: refused}\n",
    );
    let filler = mount.path().join("filler");
    run(std::process::Command::new("dd").args([
        "if=/dev/zero",
        &format!("of={}", filler.display()),
        "bs=1M",
    ]));
    let refused = platform.kubectl(&["create", "-f", &file.display().to_string()]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.err.contains("free"), "{}", refused.err);
    assert_eq!(platform.get("configmap", "kept")["data"]["a"], "b");
    // On a full disk, deletions and new sessions are accepted, so that users can free space.
    platform.kubectl(&["delete", "configmap", "spare"]).ok();
    assert!(platform.get("configmap", "spare").is_null());
    platform.cli(&["token", "create", "--label", "robot"]).ok();
    let refused = platform.kubectl(&["create", "-f", &file.display().to_string()]);
    assert_ne!(
        refused.code,
        Some(0),
        "the reserve is not for ordinary writes"
    );
    std::fs::remove_file(&filler).unwrap();
    eventually("writes are taken again", SOON, || {
        let taken = platform.kubectl(&["create", "-f", &file.display().to_string()]);
        (taken.code == Some(0)).then_some(())
    });
    drop(platform);
    run(std::process::Command::new("umount").arg(mount.path()));
}

#[test]
fn what_was_decided_is_told_by_the_server_that_comes_after_one_that_was_killed() {
    let mut platform = Platform::server(&[]);
    let _agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    let flag = platform.data.with_file_name("go");
    let placed = counting("placed", &flag.display().to_string());
    platform.apply(&placed);
    platform.apply(&counting("vast", "/never").replace("50m", "5000"));
    eventually("one runs", SOON, || {
        (platform.phase("placed") == "Running").then_some(())
    });
    let told = |platform: &Platform, pod: &str| -> serde_json::Value {
        let ran = platform.cli(&["explain", pod, "--history", "-o", "json"]);
        serde_json::from_str(&ran.ok()).expect("the answer is JSON")
    };
    eventually("the other is told to wait", SOON, || {
        let waits = told(&platform, "vast")["items"][0]["decision"] == "pending";
        waits.then_some(())
    });
    // A deleted object still has its history.
    platform.cli(&["delete", "pod", "placed"]).ok();
    let before = ["placed", "vast"].map(|pod| told(&platform, pod));
    assert_eq!(before[0]["items"][0]["decision"], "bound", "{before:?}");
    let kept = platform.data.join("decisions/db");
    eventually("both are on the disk", SOON, || {
        let bytes = std::fs::read(&kept).unwrap_or_default();
        let has = |words: &str| bytes.windows(words.len()).any(|w| w == words.as_bytes());
        let both = has("1 pod placed: placed on n1") && has("\"group\":\"vast\"");
        both.then_some(())
    });

    platform.kill();
    platform.restart();
    let after = ["placed", "vast"].map(|pod| told(&platform, pod));
    assert_eq!(after[0], before[0], "what ended is told as it was");
    let first = |told: &serde_json::Value| told["items"][0]["at"].clone();
    assert_eq!(first(&after[1]), first(&before[1]), "{after:?}");
    assert_eq!(after[1]["items"][0]["decision"], "pending", "{after:?}");

    // New decisions follow the old ones, and a stopping server writes its last ones.
    platform.apply(&placed);
    eventually("it is placed again", SOON, || {
        let twice = told(&platform, "placed")["items"].as_array()?.len() == 2;
        twice.then_some(())
    });
    let before = told(&platform, "placed");
    platform.stop();
    platform.restart();
    assert_eq!(told(&platform, "placed"), before);
    std::fs::write(&flag, "").expect("a file can be written");
}
