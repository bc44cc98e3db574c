//! Services with addresses on two nodes that a bridge connects: pods find each other by name, a Service's address and
//! node port lead to pods of both nodes, sessions stay with one of them, a Service without endpoints refuses, and what
//! is deleted leaves nothing on the nodes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use e2e::{Network, Platform, eventually, run, two_nodes};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
/// The port of all pods.
const PORT: u16 = 8080;
/// The range of Services' addresses; the nodes of tests have addresses in the usual one.
const SERVICES: &str = "10.251.0.0/16";
const DNS: &str = "10.251.0.10";

/// A pod with a web server that answers with the pod's name.
fn web(name: &str, node: &str, app: &str) -> String {
    let script = format!(
        "import http.server\n\
         class Handler(http.server.BaseHTTPRequestHandler):\n    \
             def do_GET(self):\n        \
                 self.send_response(200)\n        \
                 self.end_headers()\n        \
                 self.wfile.write(b'{name}')\n\
         http.server.ThreadingHTTPServer(('', {PORT}), Handler).serve_forever()\n"
    );
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "hostname": name, "subdomain": "members",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "command": ["/usr/bin/python3", "-u", "-c", script],
                "ports": [{"name": "http", "containerPort": PORT}],
                "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
            }],
        },
    })
    .to_string()
}

fn service(name: &str, spec: Value) -> String {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

/// What Python says in a pod.
fn python(platform: &Platform, pod: &str, script: &str) -> String {
    let command = ["exec", pod, "--", "/usr/bin/python3", "-c", script];
    let ran = platform.kubectl(&command);
    format!("{}{}", ran.out, ran.err).trim().to_owned()
}

/// The addresses of a name, in order.
fn resolved(platform: &Platform, pod: &str, name: &str) -> String {
    let script = format!(
        "import socket\n\
         try: print(*sorted(set(a[4][0] for a in socket.getaddrinfo('{name}', 80, socket.AF_INET))))\n\
         except OSError as error: print(error)\n"
    );
    python(platform, pod, &script)
}

/// Which pods answered some requests to an address.
fn answered(platform: &Platform, pod: &str, to: &str, times: usize) -> BTreeSet<String> {
    let script = format!(
        "import urllib.request\n\
         for _ in range({times}):\n    \
             try: print(urllib.request.urlopen('http://{to}', timeout=10).read().decode())\n    \
             except OSError as error: print('failed', error)\n"
    );
    let lines = python(platform, pod, &script);
    lines.lines().map(str::to_owned).collect()
}

/// The last answer of a question to the DNS server, by its bytes: SRV records that the C library does not ask for.
fn asked(platform: &Platform, pod: &str, name: &str, kind: u16) -> String {
    let script = format!(
        "import socket, struct\n\
         name = b''.join(bytes([len(l)]) + l for l in b'{name}'.split(b'.')) + b'\\0'\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)\n\
         s.sendto(struct.pack('!HHHHHH', 7, 256, 1, 0, 0, 0) + name + struct.pack('!HH', {kind}, 1), ('{DNS}', 53))\n\
         a = s.recv(4096)\n\
         print('code', a[3] & 15, 'answers', struct.unpack('!H', a[6:8])[0], a)\n"
    );
    python(platform, pod, &script)
}

fn table(network: &Network, node: usize) -> String {
    let name = &network.nodes[node].name;
    let words = [
        "netns",
        "exec",
        name,
        "nft",
        "list",
        "table",
        "ip",
        "muster_services",
    ];
    run(Command::new("ip").args(words)).ok()
}

#[test]
fn services_lead_to_pods_of_both_nodes_by_name_address_and_node_port() {
    let (network, platform, mut agents) = two_nodes(&["--service-cidr", SERVICES]);
    for (name, node) in [("a", "node-0"), ("b", "node-1")] {
        platform.apply(&web(name, node, "web"));
    }
    platform.apply(&web("client", "node-0", "client"));
    let ports = json!([{"name": "http", "port": 80, "targetPort": "http"}]);
    let selector = json!({"app": "web"});
    let made = [
        (
            "web",
            json!({"type": "NodePort", "selector": selector, "ports": ports}),
        ),
        (
            "members",
            json!({"clusterIP": "None", "selector": selector, "ports": ports}),
        ),
        (
            "sticky",
            json!({"selector": selector, "ports": ports, "sessionAffinity": "ClientIP"}),
        ),
        ("empty", json!({"selector": {"app": "no"}, "ports": ports})),
        (
            "alias",
            json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}),
        ),
    ];
    for (name, spec) in made {
        platform.apply(&service(name, spec));
    }
    for name in ["a", "b", "client"] {
        platform.until_ready(name);
    }
    let of = |name: &str| platform.get("service", name)["spec"].clone();
    let address = of("web")["clusterIP"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.251."), "{address}");

    // The pods' resolver, and names of every kind.
    let conf = python(
        &platform,
        "client",
        "print(open('/etc/resolv.conf').read())",
    );
    let expected = format!(
        "nameserver {DNS}\nsearch default.svc.cluster.local svc.cluster.local cluster.local"
    );
    assert!(conf.starts_with(&expected), "{conf}");
    assert!(conf.contains("options ndots:5"), "{conf}");
    eventually("the name of the Service resolves", SOON, || {
        (resolved(&platform, "client", "web") == address).then_some(())
    });
    let pod_ip = |name: &str| {
        platform.get("pod", name)["status"]["podIP"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let both = format!("{} {}", pod_ip("a"), pod_ip("b"));
    eventually("the headless Service names both pods", SOON, || {
        let found = resolved(&platform, "client", "members.default");
        let mut parts: Vec<&str> = both.split(' ').collect();
        parts.sort_unstable();
        (found == parts.join(" ")).then_some(())
    });
    assert_eq!(
        resolved(&platform, "client", "b.members.default.svc.cluster.local"),
        pod_ip("b")
    );
    let member = asked(
        &platform,
        "client",
        "b.members.default.svc.cluster.local",
        1,
    );
    assert!(member.starts_with("code 0 answers 1"), "{member}");
    assert_eq!(resolved(&platform, "client", "alias"), address);
    let ports_of = asked(
        &platform,
        "client",
        "_http._tcp.members.default.svc.cluster.local",
        33,
    );
    assert!(ports_of.starts_with("code 0 answers 2"), "{ports_of}");
    let absent = asked(&platform, "client", "no.default.svc.cluster.local", 1);
    assert!(absent.starts_with("code 3 answers 0"), "{absent}");

    // Addresses, node ports, sessions, and refusals.
    let both: BTreeSet<String> = ["a", "b"].map(str::to_owned).into();
    eventually(
        "the Service's address leads to both nodes' pods",
        SOON,
        || (answered(&platform, "client", "web", 30) == both).then_some(()),
    );
    assert_eq!(
        answered(&platform, "a", &address, 30),
        both,
        "also from its own endpoint"
    );
    let node_port = of("web")["ports"][0]["nodePort"].as_u64().unwrap();
    let open = format!("{}:{node_port}", network.nodes[1].address);
    assert_eq!(answered(&platform, "client", &open, 30), both);
    let outside: BTreeSet<String> = (0..30)
        .map(|_| run(Command::new("curl").args(["-sS", "--max-time", "10", &open])).ok())
        .collect();
    assert_eq!(outside, both, "from another machine");
    let stays = answered(&platform, "client", "sticky", 20);
    assert!(stays.len() == 1 && both.is_superset(&stays), "{stays:?}");
    let refused = answered(&platform, "client", "empty", 1);
    assert!(
        refused
            .iter()
            .all(|line| line.contains("Connection refused")),
        "{refused:?}"
    );

    // A restarted agent goes on with the rules, and a pod that goes leaves the Service.
    agents[0].kill();
    assert_eq!(
        answered(&platform, "b", "web.default.svc.cluster.local", 20),
        both
    );
    agents[0].restart();
    eventually("names resolve again", SOON, || {
        (resolved(&platform, "client", "web") == address).then_some(())
    });
    platform
        .kubectl(&["delete", "pod", "b", "--timeout=60s"])
        .ok();
    let one: BTreeSet<String> = ["a"].map(str::to_owned).into();
    eventually("only the other pod answers", SOON, || {
        (answered(&platform, "client", "web", 10) == one).then_some(())
    });

    for name in ["web", "members", "sticky", "empty", "alias"] {
        platform.kubectl(&["delete", "service", name]).ok();
    }
    eventually("the rules of the Services are gone", SOON, || {
        let rules = [0, 1].map(|node| table(&network, node));
        let gone = |rules: &String| {
            !rules.contains("chain service-")
                && !rules.contains("affinity-")
                && !rules.contains("default/")
        };
        rules.iter().all(gone).then_some(())
    });
    let forgotten = asked(&platform, "client", "web.default.svc.cluster.local", 1);
    assert!(forgotten.starts_with("code 3 answers 0"), "{forgotten}");
}
