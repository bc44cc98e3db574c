//! A hundred agents that join at the same moment by one token, as `pdsh` starts them on a hundred nodes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Platform, eventually, muster, require_root};

/// The nodes, which is also the uses that the token has.
const NODES: usize = 100;

/// How long all of them may take to join and to be Ready, on a busy machine with two cores.
const SOON: Duration = Duration::from_secs(240);

/// Agents that are ended with the test.
struct Agents(Vec<Child>);

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

#[test]
fn a_hundred_nodes_join_at_once_by_one_token_and_the_next_one_is_refused() {
    require_root();
    let platform = Platform::server(&[]);
    let uses = NODES.to_string();
    let token = platform.cli(&["token", "join", "--uses", &uses]).ok();
    let token = token.trim();
    let directory = tempfile::tempdir().unwrap();
    let agent = |name: &str| {
        let mut command = Command::new(muster());
        command
            .args(["agent", "--metrics", "off", "--node-name", name])
            .args(["--server", &format!("https://{}", platform.listen)])
            .arg("--data")
            .arg(directory.path().join(name))
            .env("MUSTER_JOIN_TOKEN", token)
            .stdin(Stdio::null());
        command
    };
    let names: Vec<String> = (1..=NODES).map(|n| format!("node{n:03}")).collect();
    let started = names.iter().map(|name| {
        let log = std::fs::File::create(directory.path().join(format!("{name}.log"))).unwrap();
        agent(name).stderr(log).stdout(Stdio::null()).spawn()
    });
    let mut agents = Agents(started.collect::<Result<_, _>>().unwrap());
    let ready = || {
        let lines = platform.cli(&["get", "nodes"]).ok();
        lines.lines().filter(|line| line.contains(" Ready")).count()
    };
    eventually("all nodes are Ready", SOON, || {
        (ready() == NODES).then_some(())
    });
    for (agent, name) in agents.0.iter_mut().zip(&names) {
        assert!(agent.try_wait().unwrap().is_none(), "{name} has ended");
    }

    // The token is used up: it is gone from the list, and one more node gets the reason.
    let listed = platform.cli(&["token", "list"]).ok();
    let id = token.split('.').next().unwrap();
    assert!(!listed.contains(id), "{listed}");
    let refused = agent("node101").output().unwrap();
    assert!(!refused.status.success());
    let reason = String::from_utf8_lossy(&refused.stderr);
    assert!(reason.contains("muster token join"), "{reason}");
    assert_eq!(ready(), NODES);
}
