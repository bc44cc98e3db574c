//! Pods in an image that attack, through a real containerd: they are held as processes are.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::time::Duration;

use e2e::{Agent, Containerd, IMAGE, Platform, eventually, free_kib};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);

/// The victim's secret, for which attackers search.
const TREASURE: &str = "treasure-4712";

struct Site {
    platform: Platform,
    _agent: Agent,
    _daemon: Containerd,
}

impl Site {
    fn new() -> Site {
        e2e::require_root();
        let daemon = Containerd::start();
        let platform = Platform::server(&[]);
        let socket = daemon.socket().display().to_string();
        let arguments = ["--cri", &socket, "--pod-pids-limit", "64"];
        let agent = platform.agent("boxes", None, &arguments);
        platform.await_nodes(1);
        for name in ["attackers", "victims"] {
            platform.apply(&format!(
                "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"
            ));
        }
        Site {
            platform,
            _agent: agent,
            _daemon: daemon,
        }
    }

    fn log(&self, namespace: &str, name: &str) -> String {
        self.platform.cli(&["-n", namespace, "logs", name]).out
    }

    fn start(&self, namespace: &str, name: &str, script: &str, container: &Value, pod: &Value) {
        let mut manifest = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", script],
                    "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]}});
        for (target, more) in [("/spec", pod), ("/spec/containers/0", container)] {
            let fields = manifest
                .pointer_mut(target)
                .unwrap()
                .as_object_mut()
                .unwrap();
            fields.extend(more.as_object().cloned().unwrap_or_default());
        }
        self.platform.apply(&manifest.to_string());
    }

    /// Runs an attacker to its end and returns its output.
    fn attack(&self, name: &str, script: &str) -> String {
        let script = format!("{script}; echo over");
        self.start("attackers", name, &script, &json!({}), &json!({}));
        eventually(&format!("{name} is over"), SOON, || {
            let log = self.log("attackers", name);
            log.strip_suffix("over\n").map(str::to_owned)
        })
    }

    fn phase(&self, name: &str) -> String {
        let path = "jsonpath={.status.phase}";
        let arguments = ["-n", "attackers", "get", "pod", name, "-o", path];
        self.platform.kubectl(&arguments).out
    }
}

/// A process of the machine, by a variable of its environment.
fn process_with(variable: &str) -> u32 {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut found = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        variables
            .any(|one| one == variable.as_bytes())
            .then_some(pid)
    });
    found.next().unwrap()
}

#[test]
fn a_container_reads_nothing_of_others_ends_none_and_is_nobody_on_the_machine() {
    let site = Site::new();
    let held = json!({"env": [{"name": "TREASURE", "value": TREASURE}],
        "volumeMounts": [{"name": "held", "mountPath": "/held"}]});
    let volume = json!({"volumes": [{"name": "held", "emptyDir": {}}]});
    let script = "echo $TREASURE > /held/file; chmod -R a+rwX /held; echo ready; exec sleep 600";
    site.start("victims", "victim", script, &held, &volume);
    eventually("the victim runs", SOON, || {
        (site.log("victims", "victim") == "ready\n").then_some(())
    });
    let process = process_with(&format!("TREASURE={TREASURE}"));
    let data = site.platform.data.display();
    let look = format!(
        "busybox id -u; busybox ls -d /proc/[0-9]* | busybox wc -l; \
         busybox grep -rs {TREASURE} /held /tmp /dev/shm /run /var {data} && echo found; \
         busybox cat /proc/[0-9]*/environ 2>/dev/null | busybox tr '\\0' '\\n' | busybox grep -q TREASURE= && echo found; \
         busybox ls {data} >/dev/null 2>&1 && echo listed; \
         busybox kill -9 {process} 2>/dev/null && echo killed; \
         (echo x > /etc/passwd) 2>/dev/null && busybox su -c 'busybox id -u' 2>/dev/null; \
         busybox mount -t tmpfs x /mnt 2>/dev/null && echo mounted; \
         busybox mknod /tmp/disk b 254 0 2>/dev/null && echo made; \
         busybox unshare -Urm true 2>/dev/null && echo unshared; \
         busybox chroot / true 2>/dev/null && echo chrooted; \
         (echo 1 > /proc/sys/kernel/sysrq) 2>/dev/null && echo sysrq; \
         busybox mkdir /sys/fs/cgroup/attacker /sys/fs/cgroup/pids/attacker 2>/dev/null && echo cgroup; \
         busybox dmesg 2>/dev/null | busybox grep -q . && echo dmesg; \
         busybox ls /dev | busybox grep -E '^(sd|vd|nvme|kmsg|mem|nvidia)' | busybox sed 's/^/device /'"
    );
    let log = site.attack("looks", &look);
    let mut lines = log.lines();
    let user: u32 = lines.next().unwrap().trim().parse().unwrap();
    assert!(user >= 1000, "it is user {user}");
    let seen: usize = lines.next().unwrap().trim().parse().unwrap();
    assert!(seen < 10, "it sees {seen} processes");
    assert_eq!(lines.collect::<Vec<_>>(), [""; 0]);
    assert!(std::path::Path::new(&format!("/proc/{process}")).exists());

    // It does not become more by asking for it.
    for (name, context) in [
        ("root", json!({"runAsUser": 0})),
        ("privileged", json!({"privileged": true})),
        ("admin", json!({"capabilities": {"add": ["SYS_ADMIN"]}})),
    ] {
        let manifest = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "attackers", "name": name},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": IMAGE,
                "command": ["/bin/sh", "-c", "echo started"], "securityContext": context}]}});
        let file = site
            .platform
            .manifest(&format!("{name}.json"), &manifest.to_string());
        let made = site
            .platform
            .kubectl(&["create", "-f", &file.display().to_string()]);
        if made.code != Some(0) {
            assert!(made.err.contains("violates PodSecurity"), "{}", made.err);
            continue;
        }
        eventually(&format!("{name} is held back"), SOON, || {
            let path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
            let arguments = ["-n", "attackers", "get", "pod", name, "-o", path];
            let reason = site.platform.kubectl(&arguments).out;
            (reason == "CreateContainerConfigError").then_some(())
        });
        assert_eq!(site.log("attackers", name), "");
    }
}

#[test]
fn a_container_forks_within_its_bound_and_is_evicted_when_it_fills_the_disk() {
    let site = Site::new();
    let bomb = "echo ready; f() { f | f & }; f; busybox sleep 600";
    site.start("attackers", "forks", bomb, &json!({}), &json!({}));
    eventually("it forks", SOON, || {
        // A shell that cannot fork says so.
        site.log("attackers", "forks")
            .contains("fork")
            .then_some(())
    });
    site.platform.cli(&["get", "pods", "-A"]).ok();
    let delete = [
        "-n",
        "attackers",
        "delete",
        "pod",
        "forks",
        "--grace-period=1",
    ];
    site.platform.kubectl(&delete).ok();

    let free = || free_kib(Path::new("/var/tmp"));
    let before = free();
    let volume = json!({"volumes": [{"name": "held", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let mount = json!({"volumeMounts": [{"name": "held", "mountPath": "/held"}]});
    let script = "busybox head -c 5000000 /dev/zero > /held/file; exec busybox sleep 600";
    site.start("attackers", "fills", script, &mount, &volume);
    eventually("it is evicted", SOON, || {
        (site.phase("fills") == "Failed").then_some(())
    });
    let path = "jsonpath={.status.reason}: {.status.message}";
    let arguments = ["-n", "attackers", "get", "pod", "fills", "-o", path];
    assert_eq!(
        site.platform.kubectl(&arguments).out,
        "Evicted: Usage of EmptyDir volume \"held\" exceeds the limit \"1Mi\". "
    );
    let room = before.saturating_sub(free());
    assert!(room < 1 << 20, "{room} KiB of the machine's disk are gone");
}
