//! NetworkPolicies on two nodes that a bridge connects: pods are cut off and allowed by label, namespace, range, port and
//! direction, through Services too; a pod never starts open; policies outlive a restart of the agent, and what is deleted
//! opens the pods again and leaves nothing on the nodes. Where pods share their node's network, an event says that
//! nothing enforces a policy.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;
use std::time::Duration;

use e2e::{Network, Platform, eventually, run, two_nodes};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
/// The ports of the server's pod.
const PORTS: [u16; 2] = [8080, 8081];
/// The range of Services' addresses; the nodes of tests have addresses in the usual one.
const SERVICES: &str = "10.251.0.0/16";

/// A pod, by its namespace and name, that listens on the two ports and answers with a word.
fn pod(of: (&str, &str), node: &str, labels: Value) -> String {
    let script = "import socket, threading\n\
         def serve(port):\n    \
             s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n    \
             s.bind(('', port)); s.listen(64)\n    \
             while True:\n        \
                 c, _ = s.accept(); c.sendall(b'hello'); c.close()\n\
         threading.Thread(target=serve, args=(8080,)).start()\n\
         serve(8081)\n";
    let (namespace, name) = of;
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "command": ["/usr/bin/python3", "-u", "-c", script],
                "ports": [{"name": "web", "containerPort": 8080}, {"name": "admin", "containerPort": 8081}],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
            }],
        },
    })
    .to_string()
}

fn policy(name: &str, spec: Value) -> String {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "default", "name": name}, "spec": spec,
    })
    .to_string()
}

struct World {
    network: Network,
    platform: Platform,
}

impl World {
    fn k(&self, words: &[&str]) -> String {
        self.platform.kubectl(words).ok()
    }

    fn address(&self, (namespace, name): (&str, &str)) -> String {
        let path = [
            "-n",
            namespace,
            "get",
            "pod",
            name,
            "-o",
            "jsonpath={.status.podIP}",
        ];
        self.k(&path).trim().to_owned()
    }

    /// Which of some addresses and ports a pod reaches.
    fn reached(&self, (namespace, name): (&str, &str), to: &[(&str, u16)]) -> Vec<bool> {
        let script = format!(
            "import socket\n\
             for to in {to:?}:\n    \
                 try:\n        \
                     s = socket.create_connection(to, timeout=3); print(s.recv(9) == b'hello')\n    \
                 except OSError: print(False)\n",
        );
        let words = [
            "-n",
            namespace,
            "exec",
            name,
            "--",
            "/usr/bin/python3",
            "-c",
            &script,
        ];
        let out = self.platform.kubectl(&words).ok();
        out.lines().map(|line| line == "True").collect()
    }

    /// To which of some addresses and ports a pod can connect.
    fn connects(&self, name: &str, to: &[(&str, u16)]) -> Vec<bool> {
        let script = format!(
            "import socket\n\
             for to in {to:?}:\n    \
                 try: socket.create_connection(to, timeout=3); print(True)\n    \
                 except OSError: print(False)\n",
        );
        let out = self.k(&["exec", name, "--", "/usr/bin/python3", "-c", &script]);
        out.lines().map(|line| line == "True").collect()
    }

    /// Waits until exactly these pods reach the server, each on the ports that it is given with.
    fn expect(&self, what: &str, server: &str, expected: &[((&str, &str), [bool; 2])]) {
        let ports = PORTS.map(|port| (server, port));
        eventually(what, SOON, || {
            let right = |(from, wanted): &((&str, &str), [bool; 2])| {
                self.reached(*from, &ports) == wanted.to_vec()
            };
            expected.iter().all(right).then_some(())
        });
    }

    fn rules(&self, node: usize) -> String {
        let name = &self.network.nodes[node].name;
        let words = ["netns", "exec", name, "nft", "list", "tables"];
        run(Command::new("ip").args(words)).ok()
    }
}

const NEAR: (&str, &str) = ("default", "near");
const FAR: (&str, &str) = ("default", "far");
const GUEST: (&str, &str) = ("guests", "guest");
const OPEN: [bool; 2] = [true, true];
const CLOSED: [bool; 2] = [false, false];
const WEB: [bool; 2] = [true, false];

#[test]
fn policies_cut_pods_off_and_allow_them_by_label_namespace_range_port_and_direction() {
    let (network, platform, mut agents) = two_nodes(&["--service-cidr", SERVICES]);
    let world = World { network, platform };
    world.k(&["create", "namespace", "guests"]);
    for (of, node, labels) in [
        (("default", "server"), "node-0", json!({"app": "server"})),
        (NEAR, "node-0", json!({"role": "client"})),
        (FAR, "node-1", json!({"role": "other"})),
        (GUEST, "node-1", json!({"role": "client"})),
    ] {
        world.platform.apply(&pod(of, node, labels));
    }
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"name": "web", "port": 8080}, {"name": "admin", "port": 8081}]},
    });
    world.platform.apply(&service.to_string());
    for name in ["server", "near", "far"] {
        world.platform.until_ready(name);
    }
    world.k(&[
        "-n",
        "guests",
        "wait",
        "--for=condition=Ready",
        "pod/guest",
        "--timeout=90s",
    ]);
    let server = world.address(("default", "server"));
    world.expect(
        "all pods reach the server",
        &server,
        &[(NEAR, OPEN), (FAR, OPEN), (GUEST, OPEN)],
    );

    // Nothing reaches the selected pod but its node, whose agent checks that it is ready.
    let selects = |more: Value| {
        let mut spec = json!({"podSelector": {"matchLabels": {"app": "server"}}});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        spec
    };
    world.platform.apply(&policy("server", selects(json!({}))));
    world.expect(
        "the server is cut off",
        &server,
        &[(NEAR, CLOSED), (FAR, CLOSED), (GUEST, CLOSED)],
    );
    assert_eq!(
        world.reached(("default", "server"), &[(server.as_str(), 8080)]),
        [true]
    );
    let shown = world.k(&["get", "netpol", "server"]);
    assert!(
        shown.contains("POD-SELECTOR") && shown.contains("app=server"),
        "{shown}"
    );
    let described = world.k(&["describe", "networkpolicy", "server"]);
    assert!(
        described.contains("Allowing ingress traffic"),
        "{described}"
    );

    // By label of the namespace's pods, on a named port; by namespace; by address.
    let by_label = json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}], "ports": [{"port": "web"}]}]});
    world.platform.apply(&policy("server", selects(by_label)));
    world.expect(
        "one label is allowed on one port",
        &server,
        &[(NEAR, WEB), (FAR, CLOSED), (GUEST, CLOSED)],
    );
    // The same through the Service, whose address stands for the pod.
    let by_service = world.k(&[
        "get",
        "service",
        "server",
        "-o",
        "jsonpath={.spec.clusterIP}",
    ]);
    world.expect(
        "the Service is judged by its pod",
        &by_service,
        &[(NEAR, WEB), (FAR, CLOSED), (GUEST, CLOSED)],
    );
    world.k(&["label", "pod", "far", "role=client", "--overwrite"]);
    world.expect(
        "a label that changes counts",
        &server,
        &[(NEAR, WEB), (FAR, WEB), (GUEST, CLOSED)],
    );
    let by_namespace = json!({"ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"kind": "guests"}}}]}]});
    world
        .platform
        .apply(&policy("server", selects(by_namespace)));
    world.expect(
        "no namespace has the label",
        &server,
        &[(NEAR, CLOSED), (FAR, CLOSED), (GUEST, CLOSED)],
    );
    world.k(&["label", "namespace", "guests", "kind=guests"]);
    world.expect(
        "a namespace is allowed",
        &server,
        &[(NEAR, CLOSED), (FAR, CLOSED), (GUEST, OPEN)],
    );
    let far = format!("{}/32", world.address(FAR));
    let by_range = json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.250.0.0/16", "except": [far]}}], "ports": [{"port": 8081, "endPort": 8090}]}]});
    world.platform.apply(&policy("server", selects(by_range)));
    let admin = [false, true];
    world.expect(
        "a range without an address is allowed",
        &server,
        &[(NEAR, admin), (FAR, CLOSED), (GUEST, admin)],
    );

    // What a pod sends: names, and one server.
    let egress = json!({
        "podSelector": {"matchLabels": {"role": "client"}}, "policyTypes": ["Egress"],
        "egress": [
            {"to": [{"podSelector": {"matchLabels": {"app": "server"}}}], "ports": [{"port": 8081}]},
            {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}], "ports": [{"protocol": "UDP", "port": 53}]},
        ],
    });
    let host = world.network.host();
    let port = world
        .platform
        .listen
        .rsplit(':')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let others = [(world.address(FAR), 8080), (host, port)];
    let others: Vec<(&str, u16)> = others
        .iter()
        .map(|(to, port)| (to.as_str(), *port))
        .collect();
    assert_eq!(
        world.connects("near", &others),
        [true; 2],
        "another pod, and the API"
    );
    world.platform.apply(&policy("clients", egress));
    world.k(&["delete", "networkpolicy", "server"]);
    world.expect(
        "clients send to one port only",
        "server",
        &[(NEAR, admin), (FAR, admin)],
    );
    world.expect("other pods are open", &server, &[(GUEST, OPEN)]);
    assert_eq!(world.connects("near", &others), [false; 2]);
    world.k(&["delete", "networkpolicy", "clients"]);
    world.expect(
        "without policies all is open",
        &server,
        &[(NEAR, OPEN), (FAR, OPEN), (GUEST, OPEN)],
    );

    never_open(&world, &server);

    // The kernel keeps the rules while the agent is away, and the next agent goes on with them.
    agents[0].kill();
    world.expect(
        "the server stays cut off",
        &server,
        &[(FAR, CLOSED), (GUEST, CLOSED)],
    );
    agents[0].restart();
    eventually("the restarted agent runs commands", SOON, || {
        (world.platform.kubectl(&["exec", "near", "--", "true"]).code == Some(0)).then_some(())
    });
    world.expect(
        "the server stays cut off",
        &server,
        &[(NEAR, CLOSED), (FAR, CLOSED), (GUEST, CLOSED)],
    );
    world.k(&["delete", "networkpolicies", "--all"]);
    world.expect(
        "a policy that is deleted opens its pods",
        &server,
        &[(NEAR, OPEN), (FAR, OPEN), (GUEST, OPEN)],
    );
    eventually("the rules are gone", SOON, || {
        let rules = [0, 1].map(|node| world.rules(node));
        rules
            .iter()
            .all(|rules| !rules.contains("muster_policies"))
            .then_some(())
    });
}

/// Pods that try at once, and again and again, to reach a server that no pod of their namespace may reach.
fn never_open(world: &World, server: &str) {
    world.platform.apply(&policy(
        "none",
        json!({"policyTypes": ["Ingress", "Egress"]}),
    ));
    let script = format!(
        "import socket, sys, time\n\
         end = time.time() + 2\n\
         while time.time() < end:\n    \
             try:\n        \
                 socket.create_connection(('{server}', 8080), timeout=0.2); sys.exit('open')\n    \
             except OSError: time.sleep(0.01)\n"
    );
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "tries"},
        "spec": {"completions": 12, "parallelism": 6, "backoffLimit": 0, "template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "command": ["/usr/bin/python3", "-c", script]}],
        }}},
    });
    world.platform.apply(&job.to_string());
    world.k(&[
        "wait",
        "--for=condition=Complete",
        "job/tries",
        "--timeout=120s",
    ]);
}

#[test]
fn a_policy_that_nothing_enforces_says_so() {
    let platform = Platform::up(&[]);
    let file = platform.manifest("policy.yaml", &policy("all", json!({"podSelector": {}})));
    let file = file.display().to_string();
    let applied = platform.kubectl(&["apply", "-f", &file]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(
        applied.err.contains(
            "Warning: nothing enforces this NetworkPolicy: no node gives pods networks of their own"
        ),
        "{applied:?}"
    );
    let run = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "open"}, "spec": {
        "containers": [{"name": "main", "command": ["/bin/sleep", "60"]}]}});
    platform.apply(&run.to_string());
    eventually("an event names the pod", SOON, || {
        let events = platform.kubectl(&["get", "events"]).ok();
        events
            .contains("nothing enforces it for 1 of the pods that it selects")
            .then_some(())
    });
}
