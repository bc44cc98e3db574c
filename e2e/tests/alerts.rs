//! Alerts that the server judges: a lost node is told once to each receiver, also to a real Alertmanager, whatever is
//! killed meanwhile, and so is its return.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e::{Platform, eventually, free_address, get, run};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(150);
/// The key in the specification of Standard Webhooks.
const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that a receiver got.
#[derive(Clone, Debug)]
struct Taken {
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Taken {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map_or("", |(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Receivers of webhooks on one address. Each path refuses its first request.
struct Hooks {
    address: String,
    refused: Arc<Mutex<Vec<String>>>,
    taken: Arc<Mutex<Vec<Taken>>>,
}

impl Hooks {
    fn start() -> Hooks {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hooks = Hooks {
            address: listener.local_addr().unwrap().to_string(),
            refused: Arc::default(),
            taken: Arc::default(),
        };
        let (refused, taken) = (hooks.refused.clone(), hooks.taken.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(request) = read(&stream) else {
                    continue;
                };
                let mut refused = refused.lock().unwrap();
                let first = !refused.contains(&request.path);
                let status = if first { "503 Busy" } else { "200 OK" };
                if first {
                    refused.push(request.path);
                } else {
                    taken.lock().unwrap().push(request);
                }
                let mut stream = stream;
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nbusy\n"
                );
            }
        });
        hooks
    }

    fn of(&self, path: &str) -> Vec<Taken> {
        let taken = self.taken.lock().unwrap();
        taken
            .iter()
            .filter(|one| one.path == path)
            .cloned()
            .collect()
    }
}

fn read(stream: &TcpStream) -> Option<Taken> {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length")?;
    let mut body = vec![0; length.1.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some(Taken {
        path,
        headers,
        body: String::from_utf8(body).ok()?,
    })
}

/// Debian's Alertmanager, in its own directory.
struct Alertmanager {
    child: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Alertmanager {
    fn start() -> Alertmanager {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("alertmanager.yml");
        std::fs::write(
            &file,
            "route: {receiver: none}\nreceivers: [{name: none}]\n",
        )
        .unwrap();
        let address = free_address();
        let child = Command::new("prometheus-alertmanager")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.path={}", directory.path().display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--cluster.listen-address=")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus-alertmanager, from Debian's package");
        let manager = Alertmanager {
            child,
            address,
            _directory: directory,
        };
        eventually("Alertmanager is ready", SOON, || {
            let ready = get(&manager.address, "/-/ready").ok()?;
            (ready.0 == 200).then_some(())
        });
        manager
    }

    fn alerts(&self) -> Vec<Value> {
        let (status, body) = get(&self.address, "/api/v2/alerts").unwrap();
        assert_eq!(status, 200, "{body}");
        // The body may be sent in chunks.
        let begin = body.find('[').unwrap();
        let end = body.rfind(']').unwrap();
        serde_json::from_str(&body[begin..=end]).unwrap()
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks a signature by another implementation of HMAC.
fn is_signed(request: &Taken) -> bool {
    let script = "import base64, hashlib, hmac, os, sys\n\
                  key = base64.b64decode(os.environ['KEY'].removeprefix('whsec_'))\n\
                  text = f\"{os.environ['ID']}.{os.environ['TIME']}.{sys.stdin.read()}\"\n\
                  want = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()\n\
                  print(os.environ['SIGNATURE'] == 'v1,' + want)";
    let mut python = Command::new("python3");
    let mut child = python
        .args(["-c", script])
        .env("KEY", KEY)
        .env("ID", request.header("webhook-id"))
        .env("TIME", request.header("webhook-timestamp"))
        .env("SIGNATURE", request.header("webhook-signature"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(request.body.as_bytes()).unwrap();
    drop(input);
    let out = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&out.stdout).trim() == "True"
}

#[test]
fn a_lost_node_is_told_once_to_each_receiver_and_so_is_its_return() {
    let (hooks, manager) = (Hooks::start(), Alertmanager::start());
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("key"), KEY).unwrap();
    std::fs::write(at("chat.url"), format!("http://{}/chat\n", hooks.address)).unwrap();
    let receivers = format!(
        "[[receiver]]\nname = \"ops\"\nkind = \"webhook\"\nurl = \"http://{hooks}/ops\"\nkey-file = \"{key}\"\n\
         [[receiver]]\nname = \"chat\"\nkind = \"slack\"\nurl-file = \"{chat}\"\nrules = [\"NodeLost\"]\n\
         [[receiver]]\nname = \"manager\"\nkind = \"alertmanager\"\nurl = \"http://{manager}\"\n",
        hooks = hooks.address,
        key = at("key").display(),
        chat = at("chat.url").display(),
        manager = manager.address,
    );
    let file = at("receivers.toml");
    std::fs::write(&file, receivers).unwrap();
    let file = file.display().to_string();
    let mut platform = Platform::server(&["--alert-receivers", &file, "--node-grace", "10"]);
    let mut agent = platform.agent("gpu7", None, &[]);
    platform.await_nodes(1);

    // A test tells how the receiver answered: the first request to each path is refused.
    let refused = platform.cli(&["alerts", "test", "ops"]);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .err
            .contains("the receiver answered 503 Service Unavailable: busy"),
        "{}",
        refused.err
    );
    assert_eq!(
        platform.cli(&["alerts", "test", "ops"]).ok(),
        "receiver ops took the test\n"
    );
    let unknown = platform.cli(&["alerts", "test", "mail"]);
    assert!(
        unknown.err.contains("the receivers are ops, chat, manager"),
        "{}",
        unknown.err
    );
    let test = &hooks.of("/ops")[0];
    assert!(is_signed(test), "{test:?}");
    let mut forged = test.clone();
    forged.body.push(' ');
    assert!(!is_signed(&forged));

    agent.kill();
    let told = eventually("the webhook is told", SOON, || {
        hooks.of("/ops").get(1).cloned()
    });
    assert!(is_signed(&told));
    let alert = &told.json()["alerts"][0];
    assert_eq!(alert["labels"]["alertname"], "NodeLost");
    assert_eq!(alert["labels"]["node"], "gpu7");
    assert_eq!(alert["status"], "firing");
    // The chat refused the first request, and gets it again.
    let chat = eventually("the chat is told", SOON, || {
        hooks.of("/chat").first().cloned()
    });
    let text = chat.json()["text"].as_str().unwrap().to_owned();
    assert!(
        text.starts_with("[CRITICAL] NodeLost: the agent of node gpu7 does not answer"),
        "{text}"
    );
    let of_manager = eventually("Alertmanager has it", SOON, || {
        manager.alerts().first().cloned()
    });
    assert_eq!(of_manager["labels"]["alertname"], "NodeLost");
    assert_eq!(of_manager["status"]["state"], "active");
    let listed = platform.cli(&["alerts"]).ok();
    assert!(
        listed.contains("NodeLost") && listed.contains("systemctl status muster-agent"),
        "{listed}"
    );

    // A server that was killed does not tell it again.
    platform.kill();
    platform.restart();
    let silence = platform
        .cli(&[
            "alerts",
            "silence",
            "--on",
            "gpu7",
            "--for",
            "10m",
            "--comment",
            "repair",
        ])
        .ok();
    assert!(silence.starts_with("silence "), "{silence}");
    eventually("the alert is listed as silenced", SOON, || {
        platform
            .cli(&["alerts"])
            .ok()
            .contains("critical (silenced)")
            .then_some(())
    });
    let listed = platform.cli(&["alerts", "silences"]).ok();
    assert!(
        listed.contains("gpu7") && listed.contains("repair") && listed.contains("admin"),
        "{listed}"
    );

    // The end is told, because the beginning was.
    agent.restart();
    platform.await_nodes(1);
    let ended = eventually("the webhook is told of the end", SOON, || {
        hooks.of("/ops").get(2).cloned()
    });
    assert_eq!(ended.json()["status"], "resolved");
    assert_eq!(
        ended.json()["alerts"][0]["fingerprint"],
        alert["fingerprint"]
    );
    eventually("Alertmanager has no active alert", SOON, || {
        let active = |one: &Value| one["status"]["state"] == "active";
        (!manager.alerts().iter().any(active)).then_some(())
    });
    assert_eq!(platform.cli(&["alerts"]).ok(), "");
    assert_eq!(hooks.of("/ops").len(), 3, "{:#?}", hooks.of("/ops"));
    let shown = platform.cli(&["alerts", "receivers"]).ok();
    assert_eq!(shown.matches("taken").count(), 3, "{shown}");
}

#[test]
fn members_see_alerts_of_nodes_and_change_no_silence_and_a_bad_file_keeps_the_server_from_starting()
{
    let platform = Platform::server(&[]);
    platform
        .cli(&[
            "user",
            "create",
            "mia",
            "--role",
            "member",
            "--namespaces",
            "default",
        ])
        .ok();
    let token = platform.cli(&["token", "create", "--user", "mia"]).ok();
    let token = token.trim();
    let seen = platform
        .kubectl_by(token, &["get", "--raw", "/api/v1/alerts"])
        .ok();
    assert_eq!(seen.trim(), "{\"items\":[]}");
    let refused = platform.kubectl_by(token, &["get", "--raw", "/api/v1/alert-receivers"]);
    assert!(
        refused.err.contains("Forbidden") || refused.err.contains("forbidden"),
        "{}",
        refused.err
    );
    let delete = ["delete", "--raw", "/api/v1/alert-silences/1"];
    let refused = platform.kubectl_by(token, &delete);
    assert!(
        refused.err.contains("Forbidden") || refused.err.contains("forbidden"),
        "{}",
        refused.err
    );
    assert!(platform.cli(&["alerts", "silences"]).ok().is_empty());

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("receivers.toml");
    std::fs::write(
        &file,
        "[[receiver]]\nname = \"ops\"\nkind = \"slack\"\nurl = \"hooks\"\n",
    )
    .unwrap();
    let data = directory.path().join("data");
    let mut server = Command::new(e2e::muster());
    server
        .arg("--data")
        .arg(&data)
        .arg("server")
        .args(["--listen", &free_address()]);
    let ran = run(server.arg("--alert-receivers").arg(&file));
    assert_ne!(ran.code, Some(0));
    assert!(
        ran.err
            .contains("receiver ops: url: it is not a URL such as https://"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("--alert-receivers = "), "{}", ran.err);
}
