//! `--pod-network own` on two nodes that a bridge connects: pods have addresses of their own, listen on the same port,
//! and reach each other, their node and the server; what clients and probes do with pods goes on, also over a restart
//! of the agent; nothing is left on the node when the pods have gone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{NodeNamespace, Platform, eventually, kubectl, run, two_nodes};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
/// The time that a small distributed job may take.
const JOB: Duration = Duration::from_secs(240);
/// The port of all pods: without an address of its own no process of a pod could listen on it.
const PORT: u16 = 80;

/// A pod with a web server that answers with the pod's name, checked by all kinds of probes.
fn web(name: &str, node: &str, more: Value) -> String {
    let script = format!(
        "import http.server\n\
         class Handler(http.server.BaseHTTPRequestHandler):\n    \
             def do_GET(self):\n        \
                 self.send_response(200)\n        \
                 self.end_headers()\n        \
                 self.wfile.write(b'{name} to ' + self.client_address[0].encode())\n\
         http.server.ThreadingHTTPServer(('', {PORT}), Handler).serve_forever()\n"
    );
    let mut spec = json!({
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main",
            "command": ["/usr/bin/python3", "-u", "-c", script],
            "env": [{"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
            "startupProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 60},
            "livenessProbe": {"exec": {"command": ["grep", "-q", "eth0", "/proc/net/dev"]}, "periodSeconds": 1},
        }],
    });
    let fields = spec.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// What a request to an address from inside of a pod got.
fn fetched(platform: &Platform, from: &str, address: &str) -> String {
    let script = format!(
        "import urllib.request; print(urllib.request.urlopen('http://{address}:{PORT}', timeout=20).read().decode())"
    );
    let command = ["exec", from, "--", "/usr/bin/python3", "-c", &script];
    platform.kubectl(&command).ok().trim().to_owned()
}

fn address(platform: &Platform, pod: &str) -> String {
    let object = platform.get("pod", pod);
    object["status"]["podIP"].as_str().unwrap().to_owned()
}

/// The devices of pods on a node.
fn devices(node: &NodeNamespace) -> usize {
    let list = ["-n", &node.name, "-o", "link", "show", "type", "veth"];
    let ran = run(Command::new("ip").args(list)).ok();
    ran.lines().filter(|line| line.contains("muster:")).count()
}

#[test]
fn pods_have_addresses_of_their_own_on_two_nodes() {
    let (network, platform, mut agents) = two_nodes(&[]);
    // The namespace's standard refuses the node's network, as pods of these nodes have their own.
    let host = web("host", "node-1", json!({"hostNetwork": true}));
    let file = platform.manifest("host.yaml", &host).display().to_string();
    let refused = platform.cli(&["apply", "-f", &file]).err;
    assert!(
        refused.contains("hostNetwork=true where pods have networks of their own"),
        "{refused}"
    );
    platform
        .kubectl(&[
            "label",
            "ns",
            "default",
            "pod-security.kubernetes.io/enforce=privileged",
        ])
        .ok();
    for (name, node) in [("a", "node-0"), ("b", "node-0"), ("c", "node-1")] {
        platform.apply(&web(name, node, json!({})));
    }
    platform.apply(&host);
    for name in ["a", "b", "c"] {
        platform.until_ready(name);
    }
    let own: Vec<String> = ["a", "b", "c"].map(|name| address(&platform, name)).into();
    assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), 3, "{own:?}");
    let range = |index: usize| {
        let node = platform.get("node", &format!("node-{index}"));
        let range = node["spec"]["podCIDR"].as_str().unwrap().to_owned();
        range.strip_suffix("0/24").unwrap().to_owned()
    };
    assert!(
        own[0].starts_with(&range(0)) && own[1].starts_with(&range(0)),
        "{own:?}"
    );
    assert!(
        own[2].starts_with(&range(1)) && range(0) != range(1),
        "{own:?}"
    );
    let seen = platform
        .kubectl(&[
            "exec",
            "a",
            "--",
            "/bin/sh",
            "-c",
            "echo $ADDRESS; cat /etc/hosts",
        ])
        .ok();
    assert!(
        seen.starts_with(&own[0]) && seen.contains(&format!("{}\ta", own[0])),
        "{seen}"
    );

    // One node, two nodes, and the node's own network; a pod is known by its address.
    assert_eq!(fetched(&platform, "a", &own[1]), format!("b to {}", own[0]));
    assert_eq!(fetched(&platform, "a", &own[2]), format!("c to {}", own[0]));
    assert_eq!(fetched(&platform, "c", &own[1]), format!("b to {}", own[2]));
    eventually("the pod of the node's network runs", SOON, || {
        (platform.phase("host") == "Running").then_some(())
    });
    assert_eq!(address(&platform, "host"), network.nodes[1].address);

    forwarded(&platform, "a");
    let conditions = platform.get("node", "node-0")["status"]["conditions"].to_string();
    assert!(
        conditions.contains("pods with hostNetwork, and those that a container runtime"),
        "{conditions}"
    );

    // A restarted agent keeps the networks, and gives none of their addresses to others.
    agents[0].kill();
    agents[0].restart();
    eventually("the restarted agent runs commands in the pod", SOON, || {
        (platform.kubectl(&["exec", "a", "--", "true"]).code == Some(0)).then_some(())
    });
    platform.apply(&web("d", "node-0", json!({})));
    platform.until_ready("d");
    assert!(!own.contains(&address(&platform, "d")));
    assert_eq!(
        fetched(&platform, "d", &own[0]),
        format!("a to {}", address(&platform, "d"))
    );
    assert_eq!(devices(&network.nodes[0]), 3);

    platform
        .kubectl(&["delete", "pods", "--all", "--timeout=60s"])
        .ok();
    eventually("the pods' devices are removed", SOON, || {
        (devices(&network.nodes[0]) + devices(&network.nodes[1]) == 0).then_some(())
    });
}

/// A request through `kubectl port-forward`.
fn forwarded(platform: &Platform, pod: &str) {
    let words = ["port-forward", &format!("pod/{pod}"), &format!(":{PORT}")];
    let mut command = platform.command(&kubectl(), &words);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let local = line
        .split("127.0.0.1:")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let port: u16 = local.unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.contains(&format!("{pod} to ")), "{answer}");
}

#[test]
fn a_distributed_job_runs_to_its_end_across_the_nodes() {
    let (_network, platform, _agents) = two_nodes(&[]);
    let script = "import os, socket, torch, torch.distributed as dist\n\
        dist.init_process_group('gloo')\n\
        total = torch.tensor([float(dist.get_rank() + 1)])\n\
        dist.all_reduce(total)\n\
        print('sum', int(total), 'master', socket.gethostbyname(os.environ['MASTER_ADDR']), flush=True)\n";
    let replica = |node: &str| {
        json!({
            "replicas": 1,
            "restartPolicy": "Never",
            "template": {"spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [{
                    "name": "pytorch",
                    "command": ["/usr/bin/python3", "-u", "-c", script],
                    "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                }],
            }},
        })
    };
    let job = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "sum"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica("node-0"), "Worker": replica("node-1")}},
    });
    platform.apply(&job.to_string());
    let seconds = JOB.as_secs().to_string();
    let waited = platform.cli(&["wait", "pytorchjob/sum", "--timeout", &seconds]);
    assert_eq!(waited.code, Some(0), "{waited:?}");
    let master = address(&platform, "sum-master-0");
    assert!(master.starts_with("10.250."), "{master}");
    for rank in ["0", "1"] {
        let log = platform.cli(&["logs", "sum", "--rank", rank]).ok();
        assert!(log.contains(&format!("sum 3 master {master}")), "{log}");
    }
}

#[test]
fn an_agent_names_what_pods_networks_lack() {
    let platform = Platform::server(&[]);
    let data = platform.shared("unfit");
    let server = format!("https://{}", platform.listen);
    let token = platform.join_token();
    let agent = |mut command: Command| {
        command.args([
            "--data",
            data.to_str().unwrap(),
            "agent",
            "--server",
            &server,
        ]);
        command.args([
            "--token",
            &token,
            "--node-name",
            "unfit",
            "--pod-network",
            "own",
        ]);
        let ran = run(&mut command);
        assert_ne!(ran.code, Some(0), "{ran:?}");
        format!("{}{}", ran.out, ran.err)
    };
    let mut without = Command::new("setpriv");
    without.args(["--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]);
    without.arg(e2e::muster());
    let said = agent(without);
    assert!(
        said.contains("--pod-network own: this machine gives no pod a network"),
        "{said}"
    );
    assert!(
        said.contains("CAP_NET_ADMIN") && said.contains("--pod-network host"),
        "{said}"
    );
}
