//! For this crate's tests: `runtime-test-shim DIR` is the shim, and `runtime-test-shim
//! agent ROOT CGROUP LOG SCRIPT` is an agent that starts one container, says so, and waits
//! to be killed.

use std::path::PathBuf;
use std::process::ExitCode;

use runtime::{Config, ContainerId, ContainerSpec, ProcessRuntime};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["agent", root, cgroup, log, script] => agent(root, cgroup, log, script),
        [dir] => runtime::shim::main(&PathBuf::from(dir)),
        _ => ExitCode::from(2),
    }
}

fn agent(root: &str, cgroup: &str, log: &str, script: &str) -> ExitCode {
    let started = async {
        let shim = std::env::current_exe().expect("a running program has a path");
        let mut config = Config::new(root.into(), vec![shim.into()]);
        config.cgroup_parent = cgroup.into();
        let runtime = ProcessRuntime::new(config).await.expect("a runtime");
        let id = ContainerId::new("orphan").expect("a good id");
        let command = ["/bin/sh", "-c", script].map(str::to_string).to_vec();
        let status = runtime
            .start(ContainerSpec::new(id, command, log.into()))
            .await;
        println!("{}", if status.is_ok() { "started" } else { "failed" });
        std::future::pending::<()>().await;
    };
    tokio::runtime::Runtime::new()
        .expect("threads")
        .block_on(started);
    ExitCode::SUCCESS
}
