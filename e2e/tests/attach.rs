//! `kubectl attach`, `kubectl run -i` and `kubectl port-forward` with kubectl 1.34, and the Python client's
//! `portforward`, against the embedded engine.

#![expect(clippy::unwrap_used, reason = "what a test cannot unwrap fails it")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use e2e::{Platform, eventually, kubectl, python, repository, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

fn pod(name: &str, script: &str, more: Value) -> String {
    let mut container = json!({"name": "main", "command": ["/bin/bash", "-c", script]});
    let fields = container.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    })
    .to_string()
}

fn exit_code(platform: &Platform, name: &str) -> Value {
    let ended = eventually("the container has ended", SOON, || {
        let pod = platform.get("pod", name);
        let state = pod["status"]["containerStatuses"][0]["state"]["terminated"].clone();
        (!state.is_null()).then_some(state)
    });
    ended["exitCode"].clone()
}

#[test]
fn attach_shows_both_outputs_and_carries_input_until_the_container_ends() {
    let platform = Platform::up(&[]);
    let script = "echo before; while read line; do echo got $line; echo also $line >&2; \
                  [ $line = end ] && exit 3; done";
    platform.apply(&pod("talker", script, json!({"stdin": true})));
    platform.apply(&pod("mute", "sleep 600", json!({})));
    platform.until_ready("talker");
    platform.until_ready("mute");
    let attach = |arguments: &[&str]| {
        platform
            .command(&kubectl(), &[&["attach", "talker"], arguments].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    // The input stays open when a client leaves.
    let mut first = attach(&["-i"]);
    first.stdin.take().unwrap().write_all(b"one\n").unwrap();
    let mut seen = String::new();
    let mut out = BufReader::new(first.stdout.take().unwrap());
    while !seen.contains("got one") {
        assert!(out.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    assert!(!seen.contains("before"), "{seen}");
    first.kill().unwrap();
    first.wait().unwrap();

    let mut second = attach(&["-i"]);
    second
        .stdin
        .take()
        .unwrap()
        .write_all(b"two\nend\n")
        .unwrap();
    let ended = second.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ended.stdout).into_owned(),
        String::from_utf8_lossy(&ended.stderr).into_owned(),
    );
    assert!(ended.status.success(), "{err}");
    assert!(out.contains("got two\ngot end\n"), "{out}{err}");
    assert!(err.contains("also two\n"), "{out}{err}");
    assert_eq!(exit_code(&platform, "talker"), 3);
    // The log has all of it.
    let log = platform.kubectl(&["logs", "talker"]).ok();
    assert!(
        log.contains("before\n") && log.contains("also end\n"),
        "{log}"
    );

    let late = platform.kubectl(&["attach", "talker"]);
    assert!(late.err.contains("completed pod"), "{late:?}");
    let refused = platform.kubectl(&["attach", "mute", "-i"]);
    assert!(refused.code != Some(0), "{refused:?}");
}

#[test]
fn run_with_input_answers_and_removes_the_pod() {
    let platform = Platform::up(&["--host-images"]);
    let mut child = platform
        .command(
            &kubectl(),
            &[
                "run",
                "greeter",
                "-i",
                "--rm",
                "--restart=Never",
                "--image=any",
                "--command",
                "--",
                "/bin/bash",
                "-c",
                "cat; echo end of input; exit 4",
            ],
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let ended = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&ended.stdout).into_owned();
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    // With stdinOnce the input ends with its client's.
    assert!(out.contains("hello\nend of input\n"), "{out}{err}");
    assert_eq!(ended.status.code(), Some(4), "{out}{err}");
    assert!(platform.get("pod", "greeter").is_null());
}

#[test]
fn an_attached_terminal_has_a_size_and_job_control() {
    let platform = Platform::up(&[]);
    platform.apply(&pod(
        "shell",
        "exec /bin/bash --norc -i",
        json!({"stdin": true, "tty": true}),
    ));
    platform.until_ready("shell");
    let ran = platform.kubectl_in_terminal(
        "attach -it shell",
        &["tty", "stty size", "sleep 100 & jobs", "exit 5"],
    );
    let out = ran.out;
    assert!(out.contains("/dev/pts/"), "{out}");
    assert!(out.contains("33 111"), "{out}");
    assert!(out.contains("[1]+  Running"), "{out}");
    assert!(!out.contains("no job control"), "{out}");
    assert_eq!(exit_code(&platform, "shell"), 5);
}

/// A port on which no process listens now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn server(port: u16) -> String {
    let script = format!(
        "cd $(mktemp -d); echo hello from the pod > page; head -c 20000000 /dev/zero > large; \
         exec /usr/bin/python3 -m http.server {port} --bind 127.0.0.1"
    );
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let probe = json!({"exec": {"command": ["/bin/bash", "-c", connect]}, "periodSeconds": 1});
    pod("web", &script, json!({"readinessProbe": probe}))
}

/// `kubectl port-forward` of a port of pod web, and the local port.
struct Forwarding {
    child: Child,
    port: u16,
    /// kubectl writes a line for each connection, and ends when it cannot.
    _out: BufReader<ChildStdout>,
}

impl Forwarding {
    fn begin(platform: &Platform, port: u16) -> Forwarding {
        let wanted = format!(":{port}");
        Forwarding::by(&mut platform.command(&kubectl(), &["port-forward", "pod/web", &wanted]))
    }

    fn by(command: &mut Command) -> Forwarding {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        // Forwarding from 127.0.0.1:40000 -> 8080
        let local = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let Some(local) = local.and_then(|port| port.parse().ok()) else {
            let mut error = String::new();
            let mut err = child.stderr.take().unwrap();
            err.read_to_string(&mut error).unwrap();
            panic!("no port is forwarded: {line}{error}");
        };
        Forwarding {
            child,
            port: local,
            _out: out,
        }
    }

    /// The answer to a request, to the end of the connection.
    fn get(&self, path: &str) -> Vec<u8> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        let mut answer = Vec::new();
        if connection.write_all(request.as_bytes()).is_ok() {
            let _ = connection.read_to_end(&mut answer);
        }
        answer
    }

    /// Ends kubectl once it has written this to its standard error.
    fn end_with(mut self, text: &str) {
        let mut error = BufReader::new(self.child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.contains(text) {
            assert!(error.read_line(&mut seen).unwrap() > 0, "{seen}");
        }
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_pods_port_is_forwarded_and_no_other_of_its_node() {
    let platform = Platform::up(&[]);
    let (port, unused) = (free_port(), free_port());
    platform.apply(&server(port));
    platform.until_ready("web");
    let forwarding = Forwarding::begin(&platform, port);
    let page = forwarding.get("/page");
    assert!(
        page.ends_with(b"hello from the pod\n"),
        "{}",
        String::from_utf8_lossy(&page)
    );
    let large = forwarding.get("/large");
    assert!(
        large.len() > 20_000_000 && large.ends_with(&[0; 1000]),
        "{}",
        large.len()
    );
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| forwarding.get("/page")))
            .collect();
        for one in all {
            assert!(one.join().unwrap().ends_with(b"hello from the pod\n"));
        }
    });
    drop(forwarding);

    // A service of the node, which the pod's user must not reach by the pod.
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    service.set_nonblocking(true).unwrap();
    let of_node = service.local_addr().unwrap().port();
    for refused in [of_node, unused] {
        let forwarding = Forwarding::begin(&platform, refused);
        assert_eq!(forwarding.get("/page"), b"");
        forwarding.end_with(&format!("listens on port {refused}"));
    }
    assert!(
        service.accept().is_err(),
        "the node's service got a connection"
    );

    let script = repository()
        .join("e2e/clients/port_forward.py")
        .display()
        .to_string();
    let words = [script, port.to_string(), of_node.to_string()];
    let out = run(&mut platform.command(&python(), &words)).ok();
    assert!(out.contains("port forward done"), "{out}");
    assert!(
        service.accept().is_err(),
        "the node's service got a connection"
    );
}

#[test]
fn only_a_users_own_pods_are_attached_to_and_forwarded() {
    let platform = Platform::up(&[]);
    let port = free_port();
    platform.apply(&server(port));
    platform.until_ready("web");
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    for account in ["viewer", "member"] {
        k(&["create", "serviceaccount", account]);
        let role = format!("--clusterrole=muster:{account}");
        let subject = format!("--serviceaccount=default:{account}");
        k(&["create", "rolebinding", account, &role, &subject]);
    }
    let wanted = format!(":{port}");
    let requests: [&[&str]; 2] = [&["attach", "web"], &["port-forward", "pod/web", &wanted]];
    for (account, reason) in [("viewer", "forbidden"), ("member", "only this user")] {
        let token = k(&["create", "token", account]);
        for request in requests {
            let refused = platform.kubectl_by(token.trim(), request);
            assert!(
                refused.code != Some(0) && refused.err.contains(reason),
                "{refused:?}"
            );
        }
    }
    // A client that speaks SPDY alone is told what to do.
    for (request, variable) in requests.iter().zip([
        "KUBECTL_REMOTE_COMMAND_WEBSOCKETS",
        "KUBECTL_PORT_FORWARD_WEBSOCKETS",
    ]) {
        let spdy = platform
            .command(&kubectl(), request)
            .env(variable, "false")
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&spdy.stderr).into_owned();
        assert!(
            !spdy.status.success() && words.contains("use kubectl 1.31 or later"),
            "{words}"
        );
    }
}

#[test]
fn streams_leave_no_process_behind() {
    let platform = Platform::up(&[]);
    platform.apply(&pod(
        "reader",
        "cat > /dev/null",
        json!({"stdin": true, "stdinOnce": true}),
    ));
    platform.until_ready("reader");
    let mut child = platform
        .command(&kubectl(), &["attach", "-i", "reader"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // More than all buffers together hold, then the client goes away without a word.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![b'x'; 4 << 20]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    assert_eq!(exit_code(&platform, "reader"), 0);
}

#[test]
fn muster_runs_commands_in_a_rank_of_a_job_and_forwards_its_port() {
    let platform = Platform::up(&[]);
    let port = free_port();
    let script = format!(
        "cd $(mktemp -d); echo rank > page; exec /usr/bin/python3 -m http.server $(({port} + RANK)) --bind 127.0.0.1"
    );
    let container = json!({"name": "pytorch", "command": ["/bin/bash", "-c", script]});
    let replica = json!({"replicas": 1, "template": {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}});
    platform.apply(
        &json!({
            "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"},
            "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}},
        })
        .to_string(),
    );
    platform.until_ready("train-worker-0");
    let exec = |arguments: &[&str]| platform.cli(&[&["exec", "train"], arguments].concat());
    let ran = exec(&[
        "--rank",
        "1",
        "--",
        "/bin/sh",
        "-c",
        "echo $RANK; echo wrong >&2; exit 7",
    ]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(7), "1\n"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("wrong"), "{}", ran.err);
    assert_eq!(exec(&["--", "/bin/sh", "-c", "echo $RANK"]).ok(), "0\n");
    let missing = exec(&["--rank", "2", "--", "true"]);
    assert_eq!(missing.code, Some(3), "{}", missing.err);

    let wanted = format!(":{}", port + 1);
    let words = ["port-forward", "train", "--rank", "1", &wanted];
    let forwarding = Forwarding::by(&mut platform.command(&e2e::muster(), &words));
    let page = eventually("the server answers", SOON, || {
        let page = forwarding.get("/page");
        (!page.is_empty()).then_some(page)
    });
    assert!(
        page.ends_with(b"rank\n"),
        "{}",
        String::from_utf8_lossy(&page)
    );
}
