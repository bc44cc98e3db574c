//! Containers of images, on a real containerd with runc, started for the test with an image
//! made of busybox.

#![allow(clippy::unwrap_used, reason = "one test whose steps are functions")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures::TryStreamExt;
use runtime::{
    ContainerExit, ContainerId, ContainerSpec, CriConfig, CriRuntime, ExecOutcome, ExitReason,
    LogRead, Mount, PodIdentity, PullPolicy, ResourceLimits, RuntimeError,
};

const PATIENCE: Duration = Duration::from_secs(120);
const IMAGE: &str = "localhost/muster-test:1";

/// A containerd of the test's own.
struct Containerd {
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Containerd {
    fn start() -> Containerd {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| dir.path().join(name);
        let config = format!(
            r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"#,
            root = at("root").display(),
            state = at("state").display(),
            socket = at("socket").display(),
        );
        fs::write(at("config.toml"), config).expect("a config file");
        let log = fs::File::create(at("containerd.log")).expect("a log file");
        let daemon = Command::new("containerd")
            .arg("--config")
            .arg(at("config.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("containerd, from Debian's package");
        let daemon = Containerd { dir, daemon };
        daemon.import_image();
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// A docker archive of one layer: busybox and its names.
    fn import_image(&self) {
        let script = r#"
            set -e
            mkdir -p layer/bin layer/tmp layer/etc && cp /bin/busybox layer/bin/
            for name in sh sleep cat echo id hostname touch ls env true; do ln -sf busybox layer/bin/$name; done
            tar -C layer -cf layer.tar .
            printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin","FROM_IMAGE=1"],"Cmd":["/bin/sh","-c","trap exit TERM; while :; do sleep 1; done"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
                $(sha256sum layer.tar | cut -d' ' -f1) > config.json
            printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$IMAGE" > manifest.json
            tar -cf image.tar manifest.json config.json layer.tar
            for try in $(seq 300); do ctr -a "$SOCKET" version >/dev/null 2>&1 && break; sleep 0.1; done
            ctr -a "$SOCKET" -n k8s.io images import --snapshotter native image.tar
        "#;
        let output = Command::new("sh")
            .args(["-c", script])
            .current_dir(self.dir.path())
            .env("IMAGE", IMAGE)
            .env("SOCKET", self.socket())
            .output()
            .expect("a shell");
        let log = fs::read_to_string(self.dir.path().join("containerd.log")).unwrap_or_default();
        assert!(
            output.status.success(),
            "{}\n{log}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    async fn connect(&self) -> CriRuntime {
        let config = CriConfig {
            socket: self.socket(),
            owner: "node-1".into(),
            runtime_handler: String::new(),
            sub_paths: self.dir.path().join("sub-paths"),
        };
        within(CriRuntime::connect(config))
            .await
            .expect("a runtime")
    }

    fn shell(&self, pod: &str, name: &str, script: &str) -> ContainerSpec {
        let id = ContainerId::of(pod, name, 0).expect("a good id");
        let log = self.dir.path().join(format!("logs/{pod}/{name}/0.log"));
        let mut spec = ContainerSpec::new(id, ["sh", "-c", script].map(String::from).to_vec(), log);
        spec.env.clear();
        spec.pod = PodIdentity {
            namespace: "team".into(),
            name: format!("name-{pod}"),
            uid: pod.into(),
        };
        spec.name = name.into();
        spec.image = Some(IMAGE.into());
        spec.pull = PullPolicy::Never;
        spec
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // What a failed test left running, and what is still mounted.
        let script = r#"
            ctr -a "$SOCKET" -n k8s.io tasks ls -q | xargs -r -n1 ctr -a "$SOCKET" -n k8s.io tasks rm -f
            kill "$DAEMON"
            for mount in $(cut -d' ' -f5 /proc/self/mountinfo | grep "^$DIR/" | sort -r); do umount -l "$mount"; done
        "#;
        let _ = Command::new("sh")
            .args(["-c", script])
            .env("SOCKET", self.socket())
            .env("DIR", self.dir.path())
            .env("DAEMON", self.daemon.id().to_string())
            .output();
        let _ = self.daemon.wait();
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .expect("done in time")
}

async fn output(runtime: &CriRuntime, id: &ContainerId) -> String {
    let stream = runtime
        .logs(id, LogRead::default())
        .expect("a known container");
    let chunks: Vec<_> = within(stream.try_collect()).await.expect("a readable log");
    String::from_utf8(chunks.concat()).expect("text")
}

async fn says(runtime: &CriRuntime, id: &ContainerId, text: &str) {
    within(async {
        while !output(runtime, id).await.contains(text) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn run(runtime: &CriRuntime, spec: ContainerSpec) -> (ContainerExit, String) {
    let id = spec.id.clone();
    within(runtime.start(spec)).await.expect("a start");
    let exit = within(runtime.wait(&id)).await.expect("an end");
    (exit, output(runtime, &id).await)
}

/// One containerd serves all that follows: starting one takes seconds.
#[tokio::test]
#[ignore = "needs root, containerd, runc and busybox-static"]
async fn containers_of_images_live_on_a_real_containerd() {
    let daemon = Containerd::start();
    let runtime = daemon.connect().await;
    assert!(
        runtime.version().starts_with("containerd://"),
        "{}",
        runtime.version()
    );
    a_container_sees_its_image_its_volumes_and_its_environment(&daemon, &runtime).await;
    ends_are_told(&daemon, &runtime).await;
    faults_are_told(&daemon, &runtime).await;
    commands_run_inside_and_a_stop_ends_it(&daemon, &runtime).await;
    a_log_rotates_under_a_running_container(&daemon, &runtime).await;
    another_agent_finds_the_containers(&daemon, &runtime).await;
    what_is_removed_behind_our_back_is_noticed(&daemon, &runtime).await;
    for pod in ["see", "ends", "faults", "inside", "rotate", "found", "gone"] {
        within(runtime.release(pod)).await.expect("a release");
    }
    assert_eq!(runtime.list(), []);
}

async fn a_container_sees_its_image_its_volumes_and_its_environment(
    daemon: &Containerd,
    runtime: &CriRuntime,
) {
    let (volume, hosts) = (
        daemon.dir.path().join("volume"),
        daemon.dir.path().join("hosts"),
    );
    fs::create_dir_all(volume.join("sub")).unwrap();
    fs::write(volume.join("sub/file"), "in the volume\n").unwrap();
    fs::write(&hosts, "10.0.0.1 peer\n").unwrap();
    let mut spec = daemon.shell("see", "main", "cat /data/file /etc/hosts; id -u; echo $FROM_IMAGE $RANK; ls /bin/busybox; echo err >&2; touch /data/x 2>/dev/null || echo refused");
    spec.mounts = vec![Mount {
        sub_path: Some("sub".into()),
        ..Mount::bind(&volume, "/data").read_only()
    }];
    spec.hosts_file = Some(hosts);
    spec.env = vec![("RANK".into(), "3".into())];
    spec.user.uid = Some(1234);
    let (exit, text) = run(runtime, spec).await;
    assert_eq!((exit.code, exit.reason), (0, ExitReason::Completed));
    assert!(exit.started_at.unwrap() <= exit.finished_at);
    // Two outputs have no order between them.
    assert!(text.contains("err\n"), "{text}");
    let text = text.replace("err\n", "");
    assert_eq!(
        text,
        "in the volume\n10.0.0.1 peer\n1234\n1 3\n/bin/busybox\nrefused\n"
    );
    assert!(!volume.join("sub/x").exists());
    let places = fs::read_dir(daemon.dir.path().join("sub-paths")).unwrap();
    assert_eq!(places.count(), 0, "a started container needs none");
    // A second container of the pod shares its sandbox.
    assert_eq!(
        run(runtime, daemon.shell("see", "second", "exit 0"))
            .await
            .0
            .code,
        0
    );
}

async fn ends_are_told(daemon: &Containerd, runtime: &CriRuntime) {
    let (exit, _) = run(runtime, daemon.shell("ends", "code", "exit 42")).await;
    assert_eq!((exit.code, exit.reason), (42, ExitReason::Error));
    let mut spec = daemon.shell(
        "ends",
        "oom",
        "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done",
    );
    spec.limits = ResourceLimits {
        memory_limit_bytes: Some(32 << 20),
        ..ResourceLimits::default()
    };
    let (exit, _) = run(runtime, spec).await;
    assert_eq!(
        (exit.code, exit.reason, exit.oom_killed),
        (137, ExitReason::OomKilled, true)
    );
}

async fn faults_are_told(daemon: &Containerd, runtime: &CriRuntime) {
    let mut missing = daemon.shell("faults", "program", "");
    missing.command = vec!["no-such-program".into()];
    let status = within(runtime.start(missing)).await.unwrap();
    let exit = status.exit().expect("it ended");
    assert_eq!(exit.reason, ExitReason::StartError);
    assert!(exit.message.contains("no-such-program"), "{}", exit.message);
    let mut absent = daemon.shell("faults", "image", "true");
    absent.image = Some("localhost/none:1".into());
    let error = within(runtime.start(absent.clone()))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("ErrImageNeverPull"), "{error}");
    absent.pull = PullPolicy::IfNotPresent;
    let error = within(runtime.start(absent)).await.unwrap_err().to_string();
    assert!(error.contains("ErrImagePull"), "{error}");
    let volume = daemon.dir.path().join("leads-out");
    fs::create_dir(&volume).unwrap();
    std::os::unix::fs::symlink("/etc", volume.join("sub")).unwrap();
    let mut outside = daemon.shell("faults", "outside", "true");
    outside.mounts = vec![Mount {
        sub_path: Some("sub".into()),
        ..Mount::bind(&volume, "/data")
    }];
    let error = within(runtime.start(outside)).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("it leads out of the volume"), "{error}");
}

async fn commands_run_inside_and_a_stop_ends_it(daemon: &Containerd, runtime: &CriRuntime) {
    let spec = daemon.shell(
        "inside",
        "main",
        "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.1; done",
    );
    let id = spec.id.clone();
    assert!(
        within(runtime.start(spec.clone()))
            .await
            .unwrap()
            .is_running()
    );
    assert!(matches!(
        runtime.start(spec).await,
        Err(RuntimeError::Exists(_))
    ));
    says(runtime, &id, "ready").await;
    let exec = |script: &str, limit| {
        runtime.exec(&id, ["sh", "-c", script].map(String::from).to_vec(), limit)
    };
    let outcome = within(exec("echo $FROM_IMAGE; exit 3", PATIENCE))
        .await
        .unwrap();
    assert_eq!(
        outcome,
        ExecOutcome::Exited {
            code: 3,
            output: b"1\n".to_vec()
        }
    );
    assert_eq!(
        within(exec("sleep 1000", Duration::from_secs(1)))
            .await
            .unwrap(),
        ExecOutcome::TimedOut
    );
    let stats = within(runtime.stats(&id)).await.unwrap();
    assert!(stats.memory_working_set > 0, "{stats:?}");
    assert!(matches!(
        runtime.remove(&id).await,
        Err(RuntimeError::StillRunning(_))
    ));
    let exit = within(runtime.stop(&id, PATIENCE)).await.unwrap();
    assert_eq!(exit.code, 7);
    within(runtime.remove(&id)).await.unwrap();
    assert!(runtime.status(&id).is_none());
}

async fn a_log_rotates_under_a_running_container(daemon: &Containerd, runtime: &CriRuntime) {
    let go = daemon.dir.path().join("go");
    fs::create_dir(&go).unwrap();
    let mut spec = daemon.shell(
        "rotate",
        "main",
        "i=0; until [ -e /go/on ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo last $i",
    );
    spec.mounts = vec![Mount::bind(&go, "/go")];
    spec.log.max_bytes = 2000;
    spec.log.max_files = 1000;
    let (id, log) = (spec.id.clone(), spec.log.path.clone());
    within(runtime.start(spec)).await.unwrap();
    let rotated = PathBuf::from(format!("{}.2", log.display()));
    within(async {
        while !rotated.exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    fs::write(go.join("on"), "").unwrap();
    within(runtime.wait(&id)).await.unwrap();
    let text = output(runtime, &id).await;
    let count = text.lines().count() - 1;
    let expected: String = (0..count).map(|i| format!("line {i}\n")).collect();
    assert_eq!(text, format!("{expected}last {count}\n"));
}

async fn another_agent_finds_the_containers(daemon: &Containerd, runtime: &CriRuntime) {
    let spec = daemon.shell("found", "main", "sleep 1000");
    let id = spec.id.clone();
    within(runtime.start(spec.clone())).await.unwrap();
    let next = daemon.connect().await;
    let found = within(next.recover()).await.unwrap();
    let status = found
        .iter()
        .find(|status| status.id == id)
        .expect("it is found");
    assert!(status.is_running());
    assert_eq!(
        (&status.pod, status.name.as_str(), &status.log_path),
        (&spec.pod, "main", &spec.log.path)
    );
    assert_eq!(
        within(next.stop(&id, Duration::ZERO)).await.unwrap().code,
        137
    );
    // And the first one hears of it.
    assert_eq!(within(runtime.wait(&id)).await.unwrap().code, 137);
    // A stranger's containers are not ours.
    let config = CriConfig {
        socket: daemon.socket(),
        owner: "node-2".into(),
        runtime_handler: String::new(),
        sub_paths: daemon.dir.path().join("sub-paths-2"),
    };
    let stranger = within(CriRuntime::connect(config)).await.unwrap();
    assert_eq!(within(stranger.recover()).await.unwrap(), []);
}

async fn what_is_removed_behind_our_back_is_noticed(daemon: &Containerd, runtime: &CriRuntime) {
    let spec = daemon.shell("gone", "main", "sleep 1000");
    let id = spec.id.clone();
    within(runtime.start(spec)).await.unwrap();
    let other = daemon.connect().await;
    within(other.recover()).await.unwrap();
    within(other.release("gone")).await.unwrap();
    let exit = within(runtime.wait(&id)).await.unwrap();
    assert!(
        matches!(
            exit.reason,
            ExitReason::ContainerStatusUnknown | ExitReason::Error
        ),
        "{exit:?}"
    );
}

#[tokio::test]
async fn a_runtime_that_is_not_there_is_named() {
    let config = CriConfig {
        socket: Path::new("/no/such/socket").into(),
        owner: "n".into(),
        runtime_handler: String::new(),
        sub_paths: Path::new("/no/such/place").into(),
    };
    let error = CriRuntime::connect(config).await.err().unwrap().to_string();
    assert!(
        error.contains("/no/such/socket") && error.contains("No such file"),
        "{error}"
    );
}
