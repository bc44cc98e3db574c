//! A containerd for one test, with one image made of busybox.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{Mounts, Ran, part, require_root, run};

/// The image that it holds.
pub const IMAGE: &str = "localhost/muster-test:1";

/// The names of busybox in the image.
const NAMES: &str = "sh sleep cat echo grep hostname touch ls env true ip nc wget";

/// Settings that differ between containerds.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Further lines of its CRI section, about the pods' network.
    pub network: String,
    /// The directory of its CDI files. Debian's containerd does not support CDI: this one is built
    /// from its Go module.
    pub cdi: Option<PathBuf>,
}

/// A daemon with its own state; it and its containers end when it is dropped.
pub struct Containerd {
    directory: PathBuf,
    inside: Option<PathBuf>,
    daemon: Child,
    _keep: Option<tempfile::TempDir>,
}

impl Containerd {
    /// A containerd in its own directory whose pods share the host's network.
    pub fn start() -> Containerd {
        let keep = tempfile::tempdir().expect("a directory");
        let mut containerd = Containerd::start_in(keep.path(), None, &Variant::default());
        containerd._keep = Some(keep);
        containerd
    }

    /// Like `start`, inside a mount namespace, given by its file.
    pub fn start_inside(namespace: &Path) -> Containerd {
        let keep = tempfile::tempdir().expect("a directory");
        let variant = Variant::default();
        let mut containerd = Containerd::start_in(keep.path(), Some(namespace), &variant);
        containerd._keep = Some(keep);
        containerd
    }

    /// A containerd in `directory`, inside a mount namespace (its file) if one is given.
    pub fn start_in(directory: &Path, inside: Option<&Path>, variant: &Variant) -> Containerd {
        require_root();
        let at = |name: &str| directory.join(name).display().to_string();
        let config = format!(
            r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
{cdi}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
{more}
[plugins."io.containerd.nri.v1.nri"]
  # Its socket has one path for the whole machine, where two daemons that start at once meet.
  disable = true
"#,
            root = at("root"),
            state = at("state"),
            more = variant.network,
            cdi = (variant.cdi.as_ref()).map_or(String::new(), |specs| format!(
                "  enable_cdi = true\n  cdi_spec_dirs = [\"{}\"]",
                specs.display()
            )),
            socket = at("socket"),
        );
        std::fs::write(at("config.toml"), config).expect("a config file");
        let log = std::fs::File::create(at("containerd.log")).expect("a log file");
        let mut daemon = match &variant.cdi {
            None => command_inside(inside, "containerd"),
            Some(_) => {
                let newer = part("containerd");
                let mut daemon =
                    command_inside(inside, &newer.join("containerd").display().to_string());
                // Its own shim takes precedence over Debian's.
                let path = std::env::var("PATH").unwrap_or_default();
                daemon.env("PATH", format!("{}:{path}", newer.display()));
                daemon
            }
        };
        let daemon = daemon
            .args(["--config", &at("config.toml")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("containerd, from Debian's package");
        let containerd = Containerd {
            directory: directory.to_path_buf(),
            inside: inside.map(Path::to_path_buf),
            daemon,
            _keep: None,
        };
        containerd.import_image();
        containerd
    }

    /// The directory of its state, also for the test's own files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The socket of the container runtime interface.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn script(&self, script: &str) -> Ran {
        let mut shell = command_inside(self.inside.as_deref(), "sh");
        // nsenter starts at the root of its target, which tests share.
        shell
            .args(["-c", &format!("cd \"$DIR\" || exit 1\n{script}")])
            .env("DIR", &self.directory)
            .env("IMAGE", IMAGE)
            .env("NAMES", NAMES)
            .env("SOCKET", self.socket());
        run(&mut shell)
    }

    /// A docker archive of one layer: busybox and its names.
    fn import_image(&self) {
        let ran = self.script(
            r#"
            set -e
            mkdir -p layer/bin layer/tmp layer/etc && cp /bin/busybox layer/bin/
            for name in $NAMES; do ln -sf busybox layer/bin/$name; done
            tar -C layer -cf layer.tar .
            printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin","FROM_IMAGE=yes"],"Cmd":["/bin/sh","-c","trap exit TERM; while :; do sleep 1; done"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
                $(sha256sum layer.tar | cut -d' ' -f1) > config.json
            printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$IMAGE" > manifest.json
            tar -cf image.tar manifest.json config.json layer.tar
            for try in $(seq 600); do ctr -a "$SOCKET" version >/dev/null 2>&1 && break; sleep 0.1; done
            ctr -a "$SOCKET" -n k8s.io images import --snapshotter native image.tar
        "#,
        );
        let log = std::fs::read_to_string(self.directory.join("containerd.log"));
        let log = log.unwrap_or_default();
        assert_eq!(ran.code, Some(0), "{log}\n{}", ran.err);
    }

    /// The ids of all containers, including sandboxes.
    pub fn containers(&self) -> Vec<String> {
        let ran = self.script("ctr -a \"$SOCKET\" -n k8s.io containers ls -q");
        ran.ok().lines().map(String::from).collect()
    }
}

/// A command, inside a mount namespace if one is given.
pub(crate) fn command_inside(namespace: Option<&Path>, program: &str) -> Command {
    match namespace {
        Some(file) => Mounts::command_in(file, program),
        None => Command::new(program),
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Ends the containers that a failed test left, and their mounts.
        self.script("ctr -a \"$SOCKET\" -n k8s.io tasks ls -q | xargs -r -n1 ctr -a \"$SOCKET\" -n k8s.io tasks rm -f");
        run(Command::new("kill").arg(self.daemon.id().to_string()));
        let _ = self.daemon.wait();
        // The sandboxes of a newer daemon keep their shims, whose arguments name the daemon's
        // socket.
        self.script("pgrep -f -- \"-address $SOCKET\" | xargs -r kill -9");
        self.script("for mount in $(cut -d' ' -f5 /proc/self/mountinfo | grep \"^$DIR/\" | sort -r); do umount -l \"$mount\"; done");
    }
}
