//! The doctor and an agent on a machine with real RDMA: Debian's kernel with soft-RoCE on a dummy interface, in a
//! QEMU guest. What the kernel's own files say is what is read, and a link that goes down shows.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::{muster, part, run};

/// Runs the doctor with the link up, down, and the card gone, and then a server and an agent while
/// the link goes down and up; what each printed is between marks.
const INIT: &str = "#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /run /tmp
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in /modules/*; do insmod $module; done
ip link set lo up
ip link add d0 type dummy
ip link set d0 up
ip address add 10.0.0.1/24 dev d0
rdma link add rxe0 type rxe netdev d0
ulimit -l unlimited
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
until_node() {
  tries=0
  until muster --data /tmp/d get node guest -o json 2>&1 | grep -q \"$1\"; do
    tries=$((tries + 1))
    [ $tries -gt 120 ] && { cat /tmp/log; poweroff -f; }
    sleep 0.2
  done
}
until_node AgentReady
# The agent has seen the link up by now: it looked before it joined.
ip link set d0 down
down=$(seconds)
until_node RdmaFails
echo \"BEGIN agent\"
echo \"link down at $down s, told at $(seconds) s\"
muster --data /tmp/d get node guest -o json | grep 'and it was up'
ip link set d0 up
until_node RdmaWorks
echo \"works again\"
echo \"END agent 0\"
poweroff -f
";

/// Puts a program there with the libraries that it is linked with.
fn install(program: &Path, root: &Path, name: &str) {
    let linked = run(Command::new("ldd").arg(program)).out;
    let paths = linked
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    for library in paths {
        let to = root.join(&library[1..]);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(library, to).unwrap();
    }
    let to = root.join("bin").join(name);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    // Without what only a debugger reads.
    run(Command::new("strip").arg("-o").arg(to).arg(program)).ok();
}

/// Everything that the guest prints until it is off.
fn boot() -> String {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    install(&muster(), &root, "muster");
    install(Path::new("/usr/bin/rdma"), &root, "rdma");
    install(Path::new("/bin/busybox"), &root, "busybox");
    fs::create_dir_all(root.join("modules")).unwrap();
    for module in fs::read_dir(part("guest/modules")).unwrap() {
        let module = module.unwrap();
        fs::copy(module.path(), root.join("modules").join(module.file_name())).unwrap();
    }
    fs::write(root.join("init"), INIT).unwrap();
    let archive = dir.path().join("initrd");
    let pack = "chmod +x init && find . | busybox cpio -o -H newc >\"$0\"";
    run(Command::new("sh")
        .args(["-c", pack])
        .arg(&archive)
        .current_dir(&root))
    .ok();
    let kernel = part("guest/vmlinuz");
    run(Command::new("qemu-system-x86_64")
        .args(["-m", "1536", "-display", "none", "-serial", "stdio"])
        .args(["-monitor", "none", "-no-reboot"])
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(archive))
    .ok()
}

/// What the doctor printed under a mark.
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

#[test]
fn doctor_and_agent_see_soft_roce_of_a_real_kernel_come_up_go_down_and_go() {
    let console = boot();
    let up = said(&console, "up");
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
