//! `muster setup` on this machine, against a real server.

use std::path::Path;

use e2e::{Platform, free_address};

use super::{ends, holds};

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn a_node_is_set_up_for_the_server_of_its_token_and_for_no_other() {
    let platform = Platform::server(&[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("50-setup.toml");
    let secrets = directory.path().join("muster-agent");
    std::fs::write(&path, "[server]\nnode-grace = 60 # mine\n").unwrap();
    std::fs::write(&secrets, "# mine\n#MUSTER_JOIN_TOKEN=\nX=1\n").unwrap();
    let both = || (text(&path), text(&secrets));
    let before = both();
    let settings = path.display().to_string();
    let environment = secrets.display().to_string();
    let files = ["--settings", &settings, "--environment-file", &environment];
    let url = format!("https://{}", platform.listen);
    let setup = |token: &str, more: &[&str], code: i32| {
        let all = ["setup", "agent", "--yes", "--server", &url];
        let all = [&all[..], &["--token", token], &files, more].concat();
        ends(&platform, code, &all)
    };

    let token = platform.join_token();
    let (secret, _) = token.split_once('@').unwrap();
    let other = format!("{secret}@sha256:{}", "00".repeat(32));
    let refused = setup(&other, &[], 1);
    holds(&refused.out, &["problem  server", "fingerprint"]);
    holds(&refused.err, &["nothing was written", "--force"]);
    assert_eq!(both(), before);

    // What else this machine lacks is no matter here.
    let all = ["setup", "agent", "--yes", "--dry-run", "--server", &url];
    let shown = platform.cli(&[&all[..], &["--token", &token], &files].concat());
    holds(
        &shown.out,
        &[
            "would write  agent.server = ",
            "would write  MUSTER_JOIN_TOKEN=(hidden)",
        ],
    );
    assert!(!shown.out.contains(secret), "{}", shown.out);
    assert_eq!(both(), before);

    let done = setup(&token, &["--force"], 0);
    holds(
        &done.out,
        &[
            "answers with a certificate of the expected CA",
            "it agrees with the server's",
            "wrote ",
            "ok       configuration          valid: ",
            "systemctl enable --now muster-agent",
        ],
    );
    let after = (
        format!("[server]\nnode-grace = 60 # mine\n\n[agent]\nserver = \"{url}\"\n"),
        format!("# mine\n#MUSTER_JOIN_TOKEN=\nMUSTER_JOIN_TOKEN={token}\nX=1\n"),
    );
    assert_eq!(both(), after);
    let again = setup(&token, &["--force"], 0);
    assert!(!again.out.contains("wrote "), "{}", again.out);
    assert_eq!(both(), after);

    // The agent would not start with this file.
    std::fs::write(&path, "[agent]\nnode-grase = 60\n").unwrap();
    let invalid = setup(&token, &["--force"], 1);
    holds(&invalid.err, &["agent.node-grase = 60: unknown key"]);
}

#[test]
fn a_server_is_set_up_at_a_free_port_and_not_at_a_taken_one() {
    let platform = Platform::server(&[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("50-setup.toml");
    let settings = path.display().to_string();
    let setup = |listen: &str, more: &[&str], code: i32| {
        let all = ["setup", "server", "--yes", "--settings", &settings];
        let all = [&all[..], &["--listen", listen], more].concat();
        ends(&platform, code, &all)
    };
    let taken = setup(&platform.listen, &[], 1);
    holds(&taken.out, &["problem  port", "ss -ltnp"]);
    assert!(!path.exists());
    let free = free_address().replace("127.0.0.1", "0.0.0.0");
    let done = setup(&free, &["--force", "--advertise", "gpu.example"], 0);
    let port = free.rsplit(':').next().unwrap();
    holds(
        &done.out,
        &[
            "systemctl enable --now muster-server",
            &format!("joins one node at https://gpu.example:{port}"),
        ],
    );
    let written = text(&path);
    let lines = format!("[server]\nadvertise = [\"gpu.example\"]\nlisten = \"{free}\"\n");
    assert!(written.ends_with(&lines), "{written}");
    setup(&free, &["--force", "--advertise", "gpu.example"], 0);
    assert_eq!(text(&path), written);
}
