//! JupyterLab and TensorBoard in pods, opened through the server in a real browser: the example of the documentation with
//! a cell that runs in its kernel, and a curve of a training.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually, part, python, repository, run};
use serde_json::json;

const SOON: Duration = Duration::from_secs(120);

/// Writes a curve as a training does, and shows it.
const TENSORBOARD: &str = r#"
import os, sys, time
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter("/tmp/runs/one")
for step in range(5):
    value = Summary.Value(tag="training_loss", simple_value=1.0 / (step + 1))
    writer.add_event(Event(step=step, wall_time=time.time(), summary=Summary(value=[value])))
writer.close()
os.execvp("tensorboard", ["tensorboard", "--logdir", "/tmp/runs", "--host", "127.0.0.1", "--port", sys.argv[1]])
"#;

fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

fn log_has(platform: &Platform, pod: &str, words: &str) -> String {
    eventually(&format!("{words:?} in the log of {pod}"), SOON, || {
        let log = platform.cli(&["logs", pod]).out;
        log.contains(words).then_some(log)
    })
}

#[test]
fn a_cell_runs_in_jupyterlab_and_tensorboard_shows_a_curve_through_the_server() {
    let platform = Platform::up(&[]);
    let programs = part("notebooks/bin").display().to_string();
    let path = format!("{programs}:/usr/bin:/bin");

    // The example, with a free port and the programs of the tests.
    let example =
        std::fs::read_to_string(repository().join("packaging/examples/jupyter.yaml")).unwrap();
    let port = free_port();
    let example = example.replace("8888", &port).replace(
        "- {name: HOME, value: /tmp}",
        &format!("- {{name: HOME, value: /tmp}}\n    - {{name: PATH, value: \"{path}\"}}"),
    );
    let example = example.replace("[jupyter, lab", &format!("[\"{programs}/jupyter\", lab"));
    platform.apply(&example);
    let board = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "board"}, "spec": {
        "restartPolicy": "Never", "containers": [{"name": "board", "workingDir": "/tmp",
            "command": [format!("{programs}/python"), "-c", TENSORBOARD, free_port()],
            "env": [{"name": "PATH", "value": path}, {"name": "HOME", "value": "/tmp"}]}]}});
    let board_port = board["spec"]["containers"][0]["command"][3]
        .as_str()
        .unwrap();
    platform.apply(&board.to_string());

    let log = log_has(&platform, "notebook", "/lab?token=");
    let token = log.split("/lab?token=").nth(1).unwrap();
    let token = token.split_whitespace().next().unwrap();
    log_has(&platform, "board", "TensorBoard 2");
    let lab = platform.cli(&["open", "notebook", "--print"]).ok();
    let tensorboard = platform
        .cli(&["open", "board", "--port", board_port, "--print"])
        .ok();
    let script = repository()
        .join("e2e/clients/notebooks.py")
        .display()
        .to_string();
    let (url, password) = (format!("http://{}", platform.listen), platform.password());
    let words = [
        script.as_str(),
        &url,
        &password,
        lab.trim(),
        token,
        tensorboard.trim(),
    ];
    let out = run(&mut platform.command(&python(), &words)).ok();
    assert!(out.contains("notebooks done"), "{out}");
}
