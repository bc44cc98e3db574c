//! Pods that attack other namespaces' files and processes, the platform's secrets, devices, and
//! the machine's resources. They print their results, which the tests judge; no secret is printed.

use std::path::Path;
use std::time::Duration;

use e2e::{Mounts, Platform, device_files, eventually, free_kib, nvml_standin, repository, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);

/// The victim's secret, for which attackers search.
const TREASURE: &str = "treasure-4711";

/// A pod without an image in a namespace, which runs a shell script.
fn pod(namespace: &str, name: &str, script: &str, more: &Value) -> String {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "main", "command": ["/bin/sh", "-c", script],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}});
    if let Some(more) = more.as_object() {
        let container = &mut pod["spec"]["containers"][0];
        for (field, value) in more {
            container[field] = value.clone();
        }
    }
    pod.to_string()
}

/// Runs an attacker to its end and returns its output.
fn attack(platform: &Platform, name: &str, script: &str) -> String {
    attack_with(platform, name, script, &Value::Null)
}

fn attack_with(platform: &Platform, name: &str, script: &str, more: &Value) -> String {
    let script = format!("{script}; echo over");
    platform.apply(&pod("attackers", name, &script, more));
    eventually(&format!("{name} is over"), SOON, || {
        let log = platform.cli(&["-n", "attackers", "logs", name]).out;
        log.strip_suffix("over\n").map(str::to_owned)
    })
}

fn two_namespaces() -> Platform {
    e2e::require_root();
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let machine = machine.display().to_string();
    // A low limit, so that a fork bomb reaches it before the test times out.
    let platform = Platform::up(&["--machine", &machine, "--pod-pids-limit", "64"]);
    for name in ["attackers", "victims"] {
        platform.apply(&format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"
        ));
    }
    platform
}

/// A pod of another namespace that has the secret in its environment, its command, its temporary
/// directory and a volume, and keeps running.
fn victim(platform: &Platform) -> u32 {
    let script = "echo $TREASURE > /tmp/held; echo $TREASURE > /held/file; chmod -R a+rwX /tmp/held /held; \
                  echo ready; exec sleep 600";
    let more = json!({"env": [{"name": "TREASURE", "value": TREASURE}],
        "volumeMounts": [{"name": "held", "mountPath": "/held"}]});
    let mut manifest: Value =
        serde_json::from_str(&pod("victims", "victim", script, &more)).expect("JSON");
    manifest["spec"]["volumes"] = json!([{"name": "held", "emptyDir": {}}]);
    platform.apply(&manifest.to_string());
    eventually("the victim runs", SOON, || {
        let log = platform.cli(&["-n", "victims", "logs", "victim"]).out;
        (log == "ready\n").then_some(())
    });
    let mut found = None;
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let words = String::from_utf8_lossy(&environment);
        if pid.is_some() && words.contains(&format!("TREASURE={TREASURE}")) {
            found = pid;
        }
    }
    found.expect("the victim's process")
}

#[test]
fn a_pod_reads_no_other_namespaces_files_environment_or_processes_and_ends_none() {
    let platform = two_namespaces();
    let process = victim(&platform);
    let data = platform.data.display();
    let look = format!(
        "grep -rs {TREASURE} /tmp /var/tmp /dev/shm {data} && echo found; \
         cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -q TREASURE= && echo found; \
         ls -d /proc/[0-9]* | wc -l; \
         kill -9 {process} 2>/dev/null && echo killed"
    );
    let log = attack(&platform, "looks", &look);
    assert!(!log.contains("found") && !log.contains("killed"), "{log}");
    let seen: usize = log
        .lines()
        .find_map(|line| line.trim().parse().ok())
        .expect("a count");
    assert!(seen < 10, "it sees {seen} processes");
    let ends_all = pod(
        "attackers",
        "ends-all",
        "kill -9 -1; exec sleep 0",
        &Value::Null,
    );
    platform.apply(&ends_all);
    eventually("it has ended", SOON, || {
        let phase = platform.kubectl(&[
            "-n",
            "attackers",
            "get",
            "pod",
            "ends-all",
            "-o",
            "jsonpath={.status.phase}",
        ]);
        ["Succeeded", "Failed"]
            .contains(&phase.out.trim())
            .then_some(())
    });
    assert!(std::path::Path::new(&format!("/proc/{process}")).exists());
    assert!(std::path::Path::new(&format!("/proc/{}", platform.pid())).exists());
}

#[test]
fn a_pod_reaches_neither_the_store_nor_a_key_and_is_nobody_on_the_machine() {
    let platform = two_namespaces();
    let data = platform.data.display();
    let log = attack(
        &platform,
        "reads",
        &format!(
            "id -u; for it in server/ca.key server/admin.kubeconfig server/first-password store agent/identity \
             agent/pods agent/containers; do cat {data}/$it >/dev/null 2>&1 && echo read $it; \
             ls {data}/$it >/dev/null 2>&1 && echo listed $it; done; \
             find / -xdev -name ca.key -readable 2>/dev/null | sed 's/^/key /'; \
             cat /etc/shadow >/dev/null 2>&1 && echo shadow; \
             touch /etc/attacker /usr/attacker /root/attacker 2>/dev/null && echo wrote; \
             mount -t tmpfs x /mnt 2>/dev/null && echo mounted; \
             unshare -Urm true 2>/dev/null && echo unshared; \
             (echo 1 > /proc/sys/kernel/sysrq) 2>/dev/null && echo sysrq; \
             mkdir /sys/fs/cgroup/pids/attacker 2>/dev/null && echo cgroup"
        ),
    );
    let mut lines = log.lines();
    let user: u32 = lines
        .next()
        .and_then(|line| line.parse().ok())
        .expect("a user");
    assert!(user >= 1000, "it is user {user}");
    assert_eq!(lines.collect::<Vec<_>>(), [""; 0]);
    // Two namespaces are two users.
    platform.apply(&pod("victims", "other", "id -u", &Value::Null));
    let other = eventually("the other says who it is", SOON, || {
        let log = platform.cli(&["-n", "victims", "logs", "other"]).out;
        log.trim().parse::<u32>().ok()
    });
    assert_ne!(user, other);
}

#[test]
fn a_pod_forks_within_its_bound_and_fills_its_own_room_alone() {
    let platform = two_namespaces();
    let bomb = "echo ready; f() { f | f & }; f; sleep 600";
    platform.apply(&pod("attackers", "forks", bomb, &Value::Null));
    eventually("it forks", SOON, || {
        let log = platform.cli(&["-n", "attackers", "logs", "forks"]).out;
        // A shell that cannot fork says so.
        log.contains("fork").then_some(())
    });
    // The machine and its server keep working, and the fork bomb can be ended.
    platform.cli(&["get", "pods", "-A"]).ok();
    platform
        .kubectl(&[
            "-n",
            "attackers",
            "delete",
            "pod",
            "forks",
            "--grace-period=1",
            "--wait=false",
        ])
        .ok();
    eventually("it is gone", SOON, || {
        let left = platform.kubectl(&["-n", "attackers", "get", "pod", "forks"]);
        left.err.contains("NotFound").then_some(())
    });
    let free = || free_kib(Path::new("/var/tmp"));
    let before = free();
    let more = json!({"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}}});
    let fill = "for dir in /tmp /var/tmp /dev/shm; do head -c 4000000000 /dev/zero > $dir/fill 2>/dev/null; \
                rm -f $dir/fill; done";
    platform.apply(&pod("attackers", "fills", fill, &more));
    eventually("it is over", SOON, || {
        let phase = platform.kubectl(&[
            "-n",
            "attackers",
            "get",
            "pod",
            "fills",
            "-o",
            "jsonpath={.status.phase}",
        ]);
        ["Succeeded", "Failed"]
            .contains(&phase.out.trim())
            .then_some(())
    });
    let room = before.saturating_sub(free());
    assert!(room < 1 << 20, "{room} KiB of the machine's disk are gone");
}

/// The phase, the reason and the message of an attacker's pod, once it has failed.
fn failed(platform: &Platform, name: &str) -> [String; 3] {
    eventually(&format!("{name} has failed"), SOON, || {
        let status = platform.kubectl(&["-n", "attackers", "get", "pod", name, "-o", "json"]);
        let pod: Value = serde_json::from_str(&status.out).ok()?;
        let said = ["phase", "reason", "message"]
            .map(|field| pod["status"][field].as_str().unwrap_or_default().to_owned());
        (said[0] == "Failed").then_some(said)
    })
}

#[test]
fn a_pod_that_fills_the_disk_is_evicted_and_what_it_wrote_is_gone() {
    let platform = two_namespaces();
    let volume = |name: &str, limit: Value, script: &str| {
        let more = json!({"volumeMounts": [{"name": "held", "mountPath": "/held"}]});
        let manifest = pod(
            "attackers",
            name,
            &format!("{script}; exec sleep 600"),
            &more,
        );
        let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
        manifest["spec"]["volumes"] = json!([{"name": "held", "emptyDir": {}}]);
        if limit.get("sizeLimit").is_some() {
            manifest["spec"]["volumes"][0]["emptyDir"] = limit;
        } else {
            manifest["spec"]["containers"][0]["resources"]["limits"] = limit;
        }
        platform.apply(&manifest.to_string());
    };
    let megabytes = |count: u32, file: &str| format!("head -c {count}000000 /dev/zero > {file}");
    volume("small", json!({"sizeLimit": "1Mi"}), "echo x > /held/file");
    volume(
        "volume",
        json!({"sizeLimit": "1Mi"}),
        &megabytes(5, "/held/file"),
    );
    volume(
        "words",
        json!({"ephemeral-storage": "1Mi"}),
        &megabytes(5, "/dev/termination-log"),
    );
    // Deeper than a path can be long, where a naive count would not follow.
    let deep = "cd /held; i=0; while [ $i -lt 900 ]; do mkdir inside && cd -P inside || break; i=$((i+1)); done; \
                head -c 5000000 /dev/zero > file; cd /; sleep 600";
    volume("deep", json!({"sizeLimit": "1Mi"}), deep);
    let [_, reason, message] = failed(&platform, "volume");
    assert_eq!(reason, "Evicted");
    assert_eq!(
        message,
        "Usage of EmptyDir volume \"held\" exceeds the limit \"1Mi\". "
    );
    let [_, reason, message] = failed(&platform, "words");
    assert_eq!(reason, "Evicted");
    assert_eq!(
        message,
        "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "
    );
    let [_, reason, message] = failed(&platform, "deep");
    assert_eq!(reason, "Evicted");
    assert!(message.contains("EmptyDir volume \"held\""), "{message}");
    // A neighbour within its limit keeps running.
    let log = platform.kubectl(&[
        "-n",
        "attackers",
        "get",
        "pod",
        "small",
        "-o",
        "jsonpath={.status.phase}",
    ]);
    assert_eq!(log.out, "Running");
    let pods = platform.data.join("agent/pods");
    let left = || {
        let found = run(std::process::Command::new("find")
            .arg(&pods)
            .args(["-size", "+1000k"]));
        found
            .out
            .lines()
            .filter(|line| line.contains("/volumes/"))
            .count()
    };
    eventually("their volumes are removed", SOON, || {
        (left() == 0).then_some(())
    });
}

#[test]
fn a_pod_writes_to_no_directory_of_the_machine_that_everybody_may_write_to() {
    let platform = two_namespaces();
    let shared = platform.shared("open");
    std::fs::write(shared.join("read"), "words\n").expect("a file");
    let script = format!(
        "cat {0}/read; touch {0}/written 2>/dev/null && echo wrote; \
         for dir in $(find / -xdev -type d -perm -0002 2>/dev/null); do \
         case $dir in /tmp*|/var/tmp*|/dev/shm*|/proc*) ;; \
         *) (: > $dir/attacker) 2>/dev/null && echo wrote $dir;; esac; done",
        shared.display()
    );
    assert_eq!(attack(&platform, "writes", &script), "words\n");
    assert!(!shared.join("written").exists());
    let own = "for dir in /tmp /var/tmp /dev/shm; do echo x > $dir/file && cat $dir/file; done; echo last > /dev/termination-log";
    assert_eq!(attack(&platform, "own", own), "x\nx\nx\n");
}

#[test]
fn a_pod_asks_for_no_more_than_its_namespace_permits() {
    let platform = two_namespaces();
    for (name, context, words) in [
        ("root", json!({"runAsUser": 0}), ["runAsUser", "root"]),
        ("other", json!({"runAsUser": 65534}), ["runAsUser", "65534"]),
        (
            "all",
            json!({"privileged": true}),
            ["privileged", "privileged"],
        ),
        (
            "admin",
            json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
            ["SYS_ADMIN", "capabilities"],
        ),
    ] {
        let manifest = pod(
            "attackers",
            name,
            "id -u",
            &json!({"securityContext": context}),
        );
        let file = platform.manifest(&format!("{name}.json"), &manifest);
        let made = platform.kubectl(&["create", "-f", &file.display().to_string()]);
        if made.code != Some(0) {
            // The namespace's standard refuses it already.
            assert!(
                words.iter().any(|word| made.err.contains(word)),
                "{}",
                made.err
            );
            continue;
        }
        let why = eventually(&format!("{name} is held back"), SOON, || {
            let path = "jsonpath={.status.containerStatuses[0].state.waiting}";
            let state = platform.kubectl(&["-n", "attackers", "get", "pod", name, "-o", path]);
            state
                .out
                .contains("CreateContainerConfigError")
                .then_some(state.out)
        });
        assert!(why.contains(words[0]), "{why}");
    }
}

#[test]
fn a_pod_without_a_gpu_opens_none() {
    let platform = two_namespaces();
    let script = "echo gpus=$CUDA_VISIBLE_DEVICES; for it in /dev/nvidia[0-9]*; do (: < $it) 2>/dev/null && echo opened $it; done; \
                  echo ids=$NVIDIA_VISIBLE_DEVICES; mknod /tmp/gpu c 195 0 2>/dev/null && echo made";
    let more = json!({"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2,3"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]});
    let log = attack_with(&platform, "opens", script, &more);
    assert_eq!(log, "gpus=\nids=void\n");
}

/// Adds the files of four GPUs. No driver serves them: an open that is permitted ends in ENXIO, and one that is refused
/// in another error.
const GPU_FILES: &str = r#"for minor in 0 1 2 3; do
        rm -f "$DIR/dev/nvidia$minor"; mknod -m 666 "$DIR/dev/nvidia$minor" c 195 "$minor"
    done"#;

#[test]
fn a_pod_with_a_gpu_opens_that_one_and_no_other() {
    e2e::require_root();
    let directory = tempfile::tempdir().expect("a directory");
    let mounts = Mounts::new(directory.path(), &device_files(GPU_FILES));
    let platform = Platform::server(&[]);
    platform.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: attackers}\n");
    // The stand-in for the driver's library tells which file is which GPU's.
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let library = directory.path().join("library");
    nvml_standin(&library);
    let _agent = platform.agent_with_gpus("gpus", &mounts, &library, &machine);
    platform.await_nodes(1);
    let script = "echo own $CUDA_VISIBLE_DEVICES; for n in 0 1 2 3; do \
                  error=$(cat /dev/nvidia$n 2>&1) && echo opened $n; \
                  case $error in *'No such device or address'*) echo permitted $n;; esac; done; \
                  mknod /tmp/gpu c 195 3 2>/dev/null && echo made; \
                  mount -t devtmpfs x /mnt 2>/dev/null && echo mounted";
    let more = json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}});
    // Two pods with a GPU each, the first while the second keeps its own.
    let keeps = json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}});
    platform.apply(&pod(
        "attackers",
        "keeps",
        "echo ready; exec sleep 600",
        &keeps,
    ));
    eventually("the other pod has its GPU", SOON, || {
        let log = platform.cli(&["-n", "attackers", "logs", "keeps"]).out;
        (log == "ready\n").then_some(())
    });
    let log = attack_with(&platform, "opens-another", script, &more);
    let devices = platform.kubectl(&[
        "-n",
        "attackers",
        "get",
        "pod",
        "opens-another",
        "-o",
        r"jsonpath={.metadata.annotations.muster\.io/devices}",
    ]);
    let permitted: Vec<&str> = log
        .lines()
        .filter_map(|line| line.strip_prefix("permitted "))
        .collect();
    assert_eq!(permitted.len(), 1, "{log}");
    assert!(
        !log.contains("opened") && !log.contains("made") && !log.contains("mounted"),
        "{log}"
    );
    // The file that it may open is that of the GPU that it was given.
    let kept = platform.kubectl(&[
        "-n",
        "attackers",
        "get",
        "pod",
        "keeps",
        "-o",
        r"jsonpath={.metadata.annotations.muster\.io/devices}",
    ]);
    assert_ne!(devices.out, kept.out);
    assert!(log.starts_with(&format!("own {}\n", permitted[0])), "{log}");
}
