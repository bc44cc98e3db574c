//! Keys and files with the real binary: access to the server's files, and the effects of removing
//! a token, a user or a node.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::{Platform, Reply, eventually, run, send};

const SOON: Duration = Duration::from_secs(60);

/// A directory and everything below it; follows no links.
fn below(path: &Path, found: &mut Vec<PathBuf>) {
    found.push(path.to_path_buf());
    if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        for entry in std::fs::read_dir(path).expect("it is readable").flatten() {
            below(&entry.path(), found);
        }
    }
}

/// The files of the server, and the agent's key files, that users other than the owner can access.
fn open_to_others(platform: &Platform) -> Vec<PathBuf> {
    let mut ours = vec![platform.data.clone()];
    for part in ["server", "store", "decisions", "agent/identity"] {
        below(&platform.data.join(part), &mut ours);
    }
    for part in ["agent", "agent/pods", "agent/logs", "agent/volumes"] {
        ours.push(platform.data.join(part));
    }
    // A file of the store may disappear during the check.
    ours.retain(|path| {
        (path.symlink_metadata()).is_ok_and(|meta| meta.permissions().mode() & 0o077 != 0)
    });
    ours
}

#[test]
fn what_the_platform_keeps_is_its_owners_alone_and_the_password_is_in_its_file_only() {
    let mut platform = Platform::up(&[]);
    assert_eq!(open_to_others(&platform), Vec::<PathBuf>::new());
    let password = platform.password();
    assert!(password.len() >= 20, "it is long");
    assert!(!platform.logged().contains(&password));
    assert!(platform.logged().contains("server/first-password"));
    // The server closes files that an earlier version left open, and logs that.
    platform.stop();
    let open = platform.data.join("store");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    platform.restart();
    assert_eq!(open_to_others(&platform), Vec::<PathBuf>::new());
    assert!(
        platform
            .logged()
            .contains("other users could read the file")
    );
}

#[test]
fn a_join_token_is_listed_used_once_and_revoked() {
    let platform = Platform::server(&[]);
    let cli = |arguments: &[&str]| platform.cli(arguments);
    let unused = cli(&["token", "join", "--node", "n9", "--uses", "2"]).ok();
    let id = unused.split('.').next().expect("an id").trim().to_string();
    let listed = cli(&["token", "list"]).ok();
    let line = listed.lines().find(|line| line.contains(&id));
    assert!(
        line.is_some_and(|line| line.contains("n9, 2 left")),
        "{listed}"
    );
    cli(&["token", "revoke", &id]).ok();
    assert!(!cli(&["token", "list"]).ok().contains(&id));
    assert_eq!(cli(&["token", "revoke", &id]).code, Some(3));
    for bad in [["--uses", "0"], ["--uses", "1001"], ["--minutes", "10081"]] {
        assert_eq!(
            cli(&["token", "join", bad[0], bad[1]]).code,
            Some(2),
            "{bad:?}"
        );
    }
    assert_ne!(
        cli(&["token", "join", "--node", "No such name"]).code,
        Some(0)
    );

    let _agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    let left = cli(&["token", "list"]).ok();
    assert!(!left.contains(" left"), "its token was used up:\n{left}");
}

#[test]
fn a_removed_node_is_refused_with_the_key_that_it_has() {
    let platform = Platform::server(&[]);
    let agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    platform.cli(&["node", "remove", "n1"]).ok();
    assert_eq!(platform.cli(&["node", "remove", "n1"]).code, Some(3));
    let log = || std::fs::read_to_string(agent.data.join("agent.log")).unwrap_or_default();
    eventually("the agent is refused", SOON, || {
        (log().contains("was revoked") && log().contains("used already")).then_some(())
    });
    assert!(platform.get("node", "n1").is_null());
}

#[test]
fn a_token_whose_secret_is_deleted_opens_nothing_any_more() {
    let platform = Platform::server(&[]);
    let file = platform.manifest("robot.kubeconfig", &platform.cli(&["kubeconfig"]).ok());
    let file = file.display().to_string();
    let with_it = || platform.cli(&["--kubeconfig", &file, "get", "nodes"]).code;
    assert_eq!(with_it(), Some(0));
    let tokens = platform.cli(&["token", "list"]).ok();
    let line = tokens.lines().find(|line| line.contains(" kubeconfig "));
    let id = line.and_then(|line| line.split_whitespace().next());
    let secret = format!("token-{}", id.expect("the token is listed"));
    let delete = ["-n", "muster-system", "delete", "secret", secret.as_str()];
    platform.cli(&delete).ok();
    eventually("it is refused", SOON, || {
        (with_it() == Some(4)).then_some(())
    });
}

#[test]
fn a_damaged_user_keeps_neither_the_server_nor_others_out() {
    let mut platform = Platform::server(&[]);
    let damaged = "apiVersion: v1\nkind: Secret\nmetadata: {name: user-bob, namespace: muster-system}\n\
                   type: muster.io/user\nstringData: {record: '{', hash: x}\n";
    platform.apply(damaged);
    platform.stop();
    platform.restart();
    platform.cli(&["get", "nodes"]).ok();
    eventually("it is named in an event", SOON, || {
        let events = platform.cli(&["-n", "muster-system", "get", "events", "-o", "json"]);
        let named = events.out.contains("IdentityDamaged") && events.out.contains("user-bob");
        named.then_some(())
    });
    assert!(
        platform
            .logged()
            .contains("the server cannot read a user or token and ignores it")
    );
}

fn sign_in(platform: &Platform, user: &str, password: &str) -> Reply {
    let form = format!("user={user}&password={password}");
    send(platform, "POST /ui/sign-in", &[], &form)
}

#[test]
fn guessing_makes_its_address_wait_and_the_machines_own_way_in_stays_open() {
    let platform = Platform::server(&[]);
    let right = sign_in(&platform, "admin", &platform.password());
    assert_eq!(right.code, 303, "{}", right.whole);
    // The wait doubles with each failure, so that it is soon longer than an attempt takes.
    let waits = (0..50)
        .map(|_| sign_in(&platform, "admin", "wrong"))
        .find(|answer| answer.code != 401)
        .expect("it has to wait");
    assert_eq!(waits.code, 429, "{}", waits.whole);
    assert!(waits.has("retry-after: "), "{}", waits.whole);
    let long = sign_in(&platform, &"x".repeat(100_000), "wrong");
    assert_eq!(long.code, 401, "{}", long.whole);
    platform.cli(&["get", "nodes"]).ok();
}

#[test]
fn somebody_can_sign_in_while_the_disk_is_full() {
    e2e::require_root();
    let mount = tempfile::tempdir().expect("a directory");
    let path = mount.path().display().to_string();
    let tmpfs = ["-t", "tmpfs", "-o", "size=160m", "tmpfs", &path];
    run(std::process::Command::new("mount").args(tmpfs)).ok();
    let platform = Platform::server_in(mount.path(), &[]);
    let file = platform.manifest(
        "x.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: refused}\n",
    );
    let filler = mount.path().join("filler");
    let of = format!("of={}", filler.display());
    run(std::process::Command::new("dd").args(["if=/dev/zero", &of, "bs=1M"]));
    let refused = platform.kubectl(&["create", "-f", &file.display().to_string()]);
    assert!(refused.err.contains("free"), "{}", refused.err);
    let answer = sign_in(&platform, "admin", &platform.password());
    assert_eq!(answer.code, 303, "{}", answer.whole);
    let session = answer.session().expect("a session");
    let cookie = format!("Cookie: muster_session={session}");
    let me = send(&platform, "GET /api/v1/whoami", &[cookie], "");
    assert!(me.code == 200 && me.has("admin"), "{}", me.whole);
    drop(platform);
    run(std::process::Command::new("umount").arg(mount.path()));
}
