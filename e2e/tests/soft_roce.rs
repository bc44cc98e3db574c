//! The doctor and agents on machines with real RDMA: Debian's kernel with soft-RoCE, in QEMU guests. The values come
//! from the kernel's own files, a link that goes down shows, and perftest's programs measure between two guests.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Cluster, Ran, eventually, muster, part, run};
use serde_json::{Value, json};

/// The beginning of every guest's script.
const BEGIN: &str = "#!/bin/busybox sh
export PATH=/bin:/usr/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /run /tmp
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in /modules/*; do insmod $module; done
ip link set lo up
ulimit -l unlimited
until_node() {
  tries=0
  until muster --data /tmp/d get node $1 -o json 2>&1 | grep -q \"$2\"; do
    tries=$((tries + 1))
    [ $tries -gt 240 ] && { cat /tmp/log; poweroff -f; }
    sleep 0.2
  done
}
";

/// Runs the doctor with the link up, down, and the card gone, and then a server and an agent while the link goes down
/// and up; the outputs are between marks.
const ALONE: &str = "
ip link add d0 type dummy
ip link set d0 up
ip address add 10.0.0.1/24 dev d0
rdma link add rxe0 type rxe netdev d0
doctor() {
  mark=$1; shift
  echo \"BEGIN $mark\"
  muster doctor \"$@\"
  echo \"END $mark $?\"
}
doctor up --save-machine /tmp/well.toml
ip link set d0 down
doctor down --expect /tmp/well.toml
rdma link delete rxe0
doctor gone --expect /tmp/well.toml
ip link set d0 up
ip address add 10.0.0.1/24 dev d0
rdma link add rxe0 type rxe netdev d0
hostname guest
muster up --data /tmp/d --listen 127.0.0.1:8443 >/tmp/log 2>&1 &
seconds() { cut -d' ' -f1 /proc/uptime; }
until_node guest AgentReady
# The agent has seen the link up by now: it looked before it joined.
ip link set d0 down
down=$(seconds)
until_node guest RdmaFails
echo \"BEGIN agent\"
echo \"link down at $down s, told at $(seconds) s\"
muster --data /tmp/d get node guest -o json | grep 'and it was up'
ip link set d0 up
until_node guest RdmaWorks
echo \"works again\"
echo \"END agent 0\"
poweroff -f
";

/// Two nodes on one network with soft-RoCE, the first with the server: the doctor's report on the pair, on a far end
/// without perftest, and while it is refused.
const FIRST: &str = "
hostname first
ip link set eth0 up
ip address add 10.9.0.1/24 dev eth0
rdma link add rxe0 type rxe netdev eth0
muster up --data /tmp/d --listen 10.9.0.1:8443 >/tmp/log 2>&1 &
until_node first AgentReady
mkdir /www
muster --data /tmp/d token join >/www/token
httpd -h /www
until_node second AgentReady
pair() {
  echo \"BEGIN $1\"
  muster --data /tmp/d doctor --pair $2 2>&1
  echo \"END $1 $?\"
}
pair pair second
pair itself first
pair nobody third
wget -q -O - http://10.9.0.2/cgi-bin/remove
pair bare second
poweroff -f
";

const SECOND: &str = "
hostname second
ip link set eth0 up mtu 1400
ip address add 10.9.0.2/24 dev eth0
rdma link add rxe0 type rxe netdev eth0
until wget -q -O /token http://10.9.0.1/token && [ -s /token ]; do sleep 0.5; done
mkdir -p /www/cgi-bin
cat >/www/cgi-bin/remove <<'END'
#!/bin/sh
rm /usr/bin/ib_write_*
printf 'Content-type: text/plain\\r\\n\\r\\nno perftest any more\\n'
END
chmod +x /www/cgi-bin/remove
httpd -h /www
muster agent --data /tmp/d --server https://10.9.0.1:8443 --token $(cat /token) --node-address 10.9.0.2 &
sleep 1000
";

/// A node of a cluster whose API is on the host: an agent without a kubelet, which it does not call without GPUs.
const BESIDE_KUBELET: &str = "
ip link set eth0 up
ip address add 10.9.0.NUMBER/24 dev eth0
rdma link add rxe0 type rxe netdev eth0
ip link set eth1 up
ip address add 10.0.2.15/24 dev eth1
mkdir -p /var/lib/kubelet/device-plugins
muster agent kubernetes --node-name NAME --pair --kubeconfig /kubeconfig --data /tmp/d
poweroff -f
";

/// Installs a program there with its linked libraries.
fn install(program: &Path, root: &Path, name: &str) {
    libraries(program, root);
    let to = root.join("bin").join(name);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    // Without debug information.
    run(Command::new("strip").arg("-o").arg(to).arg(program)).ok();
}

/// Installs the libraries of a program that this machine has; the guest's own libraries exist already.
fn libraries(program: &Path, root: &Path) {
    let own = part("guest/root");
    let places = ["lib", "usr/lib"].map(|lib| own.join(lib).join("x86_64-linux-gnu"));
    let search = places.map(|place| place.display().to_string()).join(":");
    let linked = run(Command::new("ldd")
        .arg(program)
        .env("LD_LIBRARY_PATH", search))
    .out;
    let own = own.display().to_string();
    let paths = linked
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.starts_with(&own));
    for library in paths {
        let to = root.join(&library[1..]);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(library, to).unwrap();
    }
}

/// A guest's files: the muster program and its dependencies.
fn archive(dir: &Path, name: &str, script: &str) -> PathBuf {
    let root = dir.join(format!("root-{name}"));
    let programs = part("guest/root");
    fs::create_dir_all(&root).unwrap();
    run(Command::new("cp")
        .arg("-a")
        .arg(programs.join("."))
        .arg(&root))
    .ok();
    install(&muster(), &root, "muster");
    install(Path::new("/usr/bin/rdma"), &root, "rdma");
    install(Path::new("/bin/busybox"), &root, "busybox");
    libraries(&programs.join("usr/bin/ib_write_bw"), &root);
    fs::create_dir_all(root.join("modules")).unwrap();
    for module in fs::read_dir(part("guest/modules")).unwrap() {
        let module = module.unwrap();
        fs::copy(module.path(), root.join("modules").join(module.file_name())).unwrap();
    }
    fs::write(root.join("init"), format!("{BEGIN}{script}")).unwrap();
    let archive = dir.join(format!("initrd-{name}"));
    let pack = "chmod +x init && find . | busybox cpio -o -H newc >\"$0\"";
    run(Command::new("sh")
        .args(["-c", pack])
        .arg(&archive)
        .current_dir(&root))
    .ok();
    archive
}

/// A guest that prints until it shuts down.
fn guest(archive: &Path, network: &[String]) -> Command {
    let kernel = part("guest/vmlinuz");
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-m", "1536", "-display", "none", "-serial", "stdio"])
        .args(["-monitor", "none", "-no-reboot"])
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(archive)
        .args(network);
    qemu
}

/// A network card whose packets go to the guest of the other name.
fn wire(dir: &Path, own: &str, other: &str, number: u32) -> [String; 4] {
    let at = |name: &str| dir.join(name).display().to_string();
    let ends = format!(
        "local.type=unix,local.path={},remote.type=unix,remote.path={}",
        at(own),
        at(other)
    );
    [
        "-netdev".to_owned(),
        format!("dgram,id=wire,{ends}"),
        "-device".to_owned(),
        format!("e1000,netdev=wire,mac=52:54:00:00:00:{number:02x}"),
    ]
}

/// The doctor's output under a mark.
fn said<'a>(console: &'a str, mark: &str) -> &'a str {
    let begin = console.find(&format!("BEGIN {mark}"));
    let end = console.find(&format!("END {mark} "));
    match (begin, end) {
        (Some(begin), Some(end)) => &console[begin..end],
        _ => panic!("the guest did not get to {mark}:\n{console}"),
    }
}

/// The rows with an answer, as words with one space between.
fn answers(table: &str, answer: &str) -> Vec<String> {
    let rows = table
        .lines()
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row.first() == Some(&answer));
    ours.map(|row| row.join(" ")).collect()
}

/// Asserts that the table has a bandwidth for each direction between the two nodes, and the latency.
#[track_caller]
fn measures(table: &str) {
    let measured = answers(table, "unknown");
    // Two directions with equal values share a row.
    for (way, unit) in [
        ("rxe0/1 from first to second", "Gb/s;"),
        ("rxe0/1 from second to first", "Gb/s;"),
        ("latency rxe0/1", "us"),
    ] {
        let row = measured.iter().find(|row| row.contains(way));
        let row = row.unwrap_or_else(|| panic!("{way}: {table}"));
        let words: Vec<&str> = row.split_whitespace().collect();
        let at = words.iter().position(|word| *word == unit);
        let figure = at.and_then(|at| words[at - 1].parse::<f64>().ok());
        assert!(figure.is_some_and(|figure| figure > 0.0), "{row}");
    }
}

#[test]
fn doctor_and_agent_see_soft_roce_of_a_real_kernel_come_up_go_down_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let archive = archive(dir.path(), "alone", ALONE);
    let network = ["-nic", "none"].map(str::to_owned);
    let console = run(&mut guest(&archive, &network)).ok();
    let up = said(&console, "up");
    println!("{up}");
    assert_eq!(answers(up, "fail"), [""; 0], "{up}");
    let passed = answers(up, "pass");
    for row in [
        "pass port state rxe0/1 ACTIVE, LinkUp",
        "pass link layer rxe0/1 Ethernet",
        "pass GID rxe0/1 index 1: 10.0.0.1, RoCE v2",
        "pass MTU rxe0/1 d0: 1500, which leaves RoCE packets of 1024",
        "pass device files rxe0 its own and rdma_cm are there",
        "pass network namespaces share the cards",
        "pass locked memory unlimited",
        "pass counters rxe0/1 still for 1 s: link_downed",
    ] {
        assert!(passed.iter().any(|it| it == row), "{row}: {up}");
    }
    let down = said(&console, "down");
    assert_eq!(
        answers(down, "fail"),
        ["fail port state rxe0/1 DOWN, Disabled"]
    );
    assert!(
        down.contains("do: its interface is down or has no carrier: ip link set"),
        "{down}"
    );
    let gone = said(&console, "gone");
    let failed = ["fail cards 0 of 1 that are expected: rxe0 missing"];
    assert_eq!(answers(gone, "fail"), failed, "{gone}");
    let agent = said(&console, "agent");
    println!("{agent}");
    let words = "rxe0/1: port state: DOWN, Disabled, and it was up";
    assert!(agent.contains(words), "{agent}");
    assert!(agent.contains("works again"), "{agent}");
}

#[test]
fn the_doctor_compares_two_nodes_and_measures_what_goes_between_them() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, script: &str, other: &str, number: u32| {
        let archive = archive(dir.path(), name, script);
        guest(&archive, &wire(dir.path(), name, other, number))
    };
    let mut second = of("second", SECOND, "first", 2);
    let log = fs::File::create(dir.path().join("second.log")).unwrap();
    let mut second = second.stdin(Stdio::null()).stdout(log).spawn().unwrap();
    let console = run(&mut of("first", FIRST, "second", 1)).out;
    let _ = second.kill();
    let _ = second.wait();
    let its = fs::read_to_string(dir.path().join("second.log")).unwrap();
    let said = |mark: &str| {
        assert!(
            console.contains(&format!("END {mark} ")),
            "{console}\n--- the second's:\n{its}"
        );
        said(&console, mark)
    };

    let pair = said("pair");
    println!("{pair}");
    assert!(pair.contains("first (10.9.0.1): 1 RDMA port(s)"), "{pair}");
    let passed = answers(pair, "pass");
    for row in [
        "pass ports 1 that work uses on both",
        "pass link layer rxe0/1 Ethernet on both",
        "pass GID index rxe0/1 1 on both",
        "pass network rxe0/1 10.9.0.0/24 on both",
    ] {
        assert!(passed.iter().any(|it| it == row), "{row}: {pair}");
    }
    // Its interface has a smaller MTU, on purpose, which fits the same packet size.
    measures(pair);

    let itself = said("itself");
    assert!(
        itself.contains("first is the first node itself"),
        "{itself}"
    );
    let nobody = said("nobody");
    assert!(nobody.contains("\"third\" is not connected"), "{nobody}");
    let bare = said("bare");
    let unknown = answers(bare, "unknown");
    let words = "second has no ib_write_bw in its agent's PATH";
    assert!(unknown.iter().any(|row| row.contains(words)), "{bare}");
    assert!(
        bare.contains("do: install perftest there (apt-get install perftest)"),
        "{bare}"
    );
}

/// Two nodes of a cluster in guests, and one without an agent.
struct Nodes {
    guests: Vec<Child>,
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl Nodes {
    fn start() -> Nodes {
        let cluster = Cluster::start();
        cluster.apply_packaged(&["agent-rbac.yaml"]);
        cluster.apply_chart("agent-rbac.yaml", "agent.pair=true");
        let account = cluster.kubeconfig_of_account("muster-system", "muster-agent");
        let mut config: Value =
            serde_json::from_str(&fs::read_to_string(account).unwrap()).unwrap();
        let reached = &mut config["clusters"][0]["cluster"];
        // The address under which a guest reaches this machine.
        let url = cluster.url().replace("127.0.0.1", "10.0.2.2");
        reached["server"] = json!(url);
        reached["tls-server-name"] = json!("127.0.0.1");
        let mut nodes = Nodes {
            guests: Vec::new(),
            cluster,
            dir: tempfile::tempdir().unwrap(),
        };
        for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
            let number = at + 1;
            nodes.join(name, number);
            if name != "third" {
                let other = ["second", "first"][at];
                nodes.boot(name, other, number, &config);
            }
        }
        nodes
    }

    /// The Node that a kubelet writes.
    fn join(&self, name: &str, number: usize) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        self.cluster.apply(&node.to_string());
        let address = format!("10.9.0.{number}");
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        let patch = ["patch", "node", name, "--subresource=status", "-p"];
        let patch = self
            .cluster
            .kubectl(&[&patch[..], &[&status.to_string()]].concat());
        patch.ok();
    }

    fn boot(&mut self, name: &str, other: &str, number: usize, config: &Value) {
        let script = BESIDE_KUBELET.replace("NAME", name);
        let script = script.replace("NUMBER", &number.to_string());
        let dir = self.dir.path();
        let root = dir.join(format!("root-{name}"));
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("kubeconfig"), config.to_string()).unwrap();
        let archive = archive(dir, name, &script);
        let mut network = wire(dir, name, other, u32::try_from(number).unwrap()).to_vec();
        network
            .extend(["-netdev", "user,id=api", "-device", "e1000,netdev=api"].map(str::to_owned));
        let log = fs::File::create(self.console(name)).unwrap();
        let mut guest = guest(&archive, &network);
        self.guests
            .push(guest.stdin(Stdio::null()).stdout(log).spawn().unwrap());
    }

    fn console(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    fn pair(&self, arguments: &[&str]) -> Ran {
        let mut doctor = Command::new(muster());
        doctor.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        run(doctor.arg("doctor").args(arguments))
    }

    /// The request annotations of a node and its answers.
    fn notes(&self, name: &str) -> Vec<String> {
        let node = self.cluster.get(&["node", name]);
        let all = node["metadata"]["annotations"].as_object().cloned();
        let names = all.unwrap_or_default().into_iter().map(|(name, _)| name);
        names.filter(|name| name.contains("rdma")).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for guest in &mut self.guests {
            let _ = guest.kill();
            let _ = guest.wait();
        }
        if std::thread::panicking() {
            for name in ["first", "second"] {
                let console = fs::read_to_string(self.console(name)).unwrap_or_default();
                eprintln!("--- {name}:\n{console}");
            }
        }
    }
}

#[test]
fn the_doctor_compares_two_nodes_of_a_kubernetes_cluster_and_measures_between_them() {
    let nodes = Nodes::start();
    for name in ["first", "second"] {
        eventually("it takes part", Duration::from_secs(180), || {
            let console = fs::read_to_string(nodes.console(name)).ok()?;
            console
                .contains("takes part in checks of RDMA")
                .then_some(())
        });
    }
    let pair = nodes.pair(&["--node", "first", "--pair", "second"]);
    let table = &pair.out;
    println!("{table}");
    assert!(
        table.contains("first (10.9.0.1): 1 RDMA port(s)"),
        "{pair:?}"
    );
    let passed = answers(table, "pass");
    let row = "pass network rxe0/1 10.9.0.0/24 on both";
    assert!(passed.iter().any(|it| it == row), "{table}");
    measures(table);
    for name in ["first", "second"] {
        assert_eq!(nodes.notes(name), [""; 0], "nobody is asked any more");
    }

    // A missing node, a node without an agent, and a node with another user's pending request.
    let nobody = nodes.pair(&["--node", "first", "--pair", "fourth"]);
    assert_ne!(nobody.code, Some(0));
    assert!(nobody.err.contains("no node \"fourth\""), "{nobody:?}");
    assert_eq!(nodes.notes("first"), [""; 0]);
    let silent = nodes.pair(&["--node", "first", "--pair", "third"]);
    assert!(
        silent.err.contains("\"third\": its agent has not answered"),
        "{silent:?}"
    );
    assert!(
        silent.err.contains("--pair (chart: agent.pair)"),
        "{silent:?}"
    );
    assert_eq!(nodes.notes("third"), [""; 0]);
    let asked = jiff::Timestamp::now().as_second();
    let other = json!({"id": "other", "asked": asked, "ask": "examine"}).to_string();
    let mark = [
        "annotate",
        "node",
        "third",
        &format!("muster.io/rdma-ask={other}"),
    ];
    nodes.cluster.kubectl(&mark).ok();
    let busy = nodes.pair(&["--node", "first", "--pair", "third"]);
    assert!(busy.err.contains("another user has it checked"), "{busy:?}");
    assert_eq!(nodes.notes("third"), ["muster.io/rdma-ask"], "it is theirs");
}
