//! Containers as processes, on the real kernel. They need root, for cgroups and users; run
//! by another user each says so and passes.

/// Leaves the test unless this is root.
macro_rules! needs_root {
    () => {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not root: nothing tested");
            return;
        }
    };
}

mod devices;
mod isolation;
mod lifecycle;
mod limits;
mod logging;
mod recovery;
mod volumes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::TryStreamExt;
use runtime::{
    Config, ContainerExit, ContainerId, ContainerSpec, ContainerStatus, LogRead, ProcessRuntime,
};

/// No wait in these tests is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A runtime in a directory of its own, with a cgroup of its own.
pub(crate) struct House {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) cgroup: String,
    pub(crate) runtime: ProcessRuntime,
}

impl House {
    pub(crate) async fn new() -> House {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // Unique among tests that run at once, in this process and others.
        let name = dir.path().file_name().expect("it has a name");
        let cgroup = format!("muster-test{}", name.to_string_lossy());
        let runtime = open(dir.path(), &cgroup).await;
        House {
            dir,
            cgroup,
            runtime,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A container that runs a shell script.
    pub(crate) fn shell(&self, name: &str, script: &str) -> ContainerSpec {
        let id = ContainerId::new(name).expect("a good id");
        let command = ["/bin/sh", "-c", script].map(str::to_string).to_vec();
        ContainerSpec::new(id, command, self.path(&format!("{name}.log")))
    }

    pub(crate) async fn start(&self, spec: ContainerSpec) -> ContainerStatus {
        within(self.runtime.start(spec)).await.expect("a start")
    }

    /// Runs to the end; its end and its output.
    pub(crate) async fn run(&self, spec: ContainerSpec) -> (ContainerExit, String) {
        let id = spec.id.clone();
        self.start(spec).await;
        let exit = within(self.runtime.wait(&id)).await.expect("an end");
        (exit, self.output(&id).await)
    }

    pub(crate) async fn output(&self, id: &ContainerId) -> String {
        let stream = self
            .runtime
            .logs(id, LogRead::default())
            .expect("a known container");
        let chunks: Vec<_> = within(stream.try_collect()).await.expect("a readable log");
        String::from_utf8(chunks.concat()).expect("text")
    }

    /// Waits until the container has written `text`.
    pub(crate) async fn says(&self, id: &ContainerId, text: &str) {
        within(async {
            while !self.output(id).await.contains(text) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Another runtime over the same containers, as an agent that starts again has.
    pub(crate) async fn reopen(&mut self) -> Vec<ContainerStatus> {
        self.runtime = open(self.dir.path(), &self.cgroup).await;
        self.runtime.recover().await.expect("a recovery")
    }
}

impl Drop for House {
    fn drop(&mut self) {
        for mount in std::fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
        {
            let _ = std::fs::remove_dir(mount.path().join(&self.cgroup));
        }
        let _ = std::fs::remove_dir(Path::new("/sys/fs/cgroup").join(&self.cgroup));
    }
}

pub(crate) async fn open(dir: &Path, cgroup: &str) -> ProcessRuntime {
    let shim = vec![env!("CARGO_BIN_EXE_runtime-test-shim").into()];
    let mut config = Config::new(dir.join("containers"), shim);
    config.cgroup_parent = cgroup.into();
    ProcessRuntime::new(config).await.expect("a runtime")
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .expect("done in time")
}

pub(crate) fn alive(pid: i32) -> bool {
    runtime::proc::stat(pid).is_some_and(|stat| stat.state != 'Z')
}
