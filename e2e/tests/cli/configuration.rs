//! Configuration files of server and agent, and `muster config`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::{Platform, Ran, muster, run};

use super::holds;

/// A directory like /etc/muster.
struct Configuration(tempfile::TempDir);

impl Configuration {
    fn of(files: &[(&str, &str)]) -> Configuration {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let file = directory.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("it is made");
            std::fs::write(&file, text).expect("it is written");
            std::fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
        }
        Configuration(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// A command without Muster's variables of this shell.
fn muster_with(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(muster());
    for name in [
        "MUSTER_LISTEN",
        "MUSTER_LOG",
        "MUSTER_DATA",
        "MUSTER_CONFIG",
    ] {
        command.env_remove(name);
    }
    run(command.args(arguments).envs(variables.iter().copied()))
}

#[track_caller]
fn line<'a>(text: &'a str, key: &str) -> &'a str {
    let found = text.lines().find(|line| line.starts_with(key));
    found.unwrap_or_else(|| panic!("no line {key:?} in\n{text}"))
}

#[test]
fn a_server_takes_its_settings_from_files_and_the_command_line_comes_first() {
    // The address of the file would be refused; the platform gives another one on the command line.
    let files = Configuration::of(&[
        (
            "muster.toml",
            "[global]\nlog-format = \"text\"\n[server]\nlisten = \"192.0.2.1:1\"\n",
        ),
        ("conf.d/10-log.toml", "[global]\nlog-format = \"json\"\n"),
    ]);
    let path = files.path().display().to_string();
    let mut platform = Platform::server(&["--config", &path]);
    platform.cli(&["get", "nodes"]).ok();
    // An idle server logs its stop, and little before it.
    platform.stop();
    let log = platform.logged();
    assert!(log.lines().any(|line| line.starts_with('{')), "{log}");
}

#[test]
fn an_invalid_file_is_refused_with_file_line_key_value_and_form() {
    let files = Configuration::of(&[
        ("muster.toml", "[server]\nlisten = \"everywhere\"\n"),
        ("conf.d/10.toml", "\n[agent]\nnode-grace = 60\n"),
    ]);
    let path = files.path().display().to_string();
    let (first, second) = (files.file("muster.toml"), files.file("conf.d/10.toml"));
    for arguments in [
        &["config", "check", "--file", &path][..],
        &["config", "show", "--file", &path],
        &["server", "--config", &path],
        &["up", "--config", &path],
    ] {
        let ran = muster_with(arguments, &[]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        holds(
            &ran.err,
            &[
                &format!("{}:2: server.listen = \"everywhere\"", first.display()),
                "use listen = \"ADDR\"",
                &format!("{}:3: agent.node-grace = 60", second.display()),
                "it is a key of [server], [up]",
            ],
        );
    }
    let missing = files.file("none.toml").display().to_string();
    let ran = muster_with(&["server", "--config", &missing], &[]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    holds(&ran.err, &[&missing, "cannot be read"]);
    // Client commands read no configuration.
    let ran = muster_with(&["version"], &[("MUSTER_CONFIG", &path)]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn every_setting_is_shown_with_its_origin_and_secrets_are_hidden() {
    let files = Configuration::of(&[(
        "muster.toml",
        "[server]\nlisten = \"127.0.0.1:1\"\nnode-grace = 50\naudit-log-maxsize = 5\n[agent]\ntoken = \"sesame\"\n",
    )]);
    let path = files.path().display().to_string();
    let file = files.file("muster.toml").display().to_string();
    let show = ["config", "show", "server", "--origin", "--file", &path];
    let all = [&show[..], &["--", "--audit-log-maxsize", "7"]].concat();
    let shown = muster_with(&all, &[("MUSTER_LISTEN", "127.0.0.1:2")]).ok();
    for (key, parts) in [
        (
            "listen",
            ["\"127.0.0.1:2\"", "environment variable MUSTER_LISTEN"],
        ),
        ("node-grace", ["= 50 ", &format!("{file}:3")]),
        ("audit-log-maxsize", ["= 7 ", "command line"]),
        ("audit-log-maxbackup", ["= 10 ", "default"]),
    ] {
        holds(line(&shown, key), &parts);
    }
    let ran = muster_with(&["config", "show", "--file", &path], &[]);
    holds(&ran.err, &["warning", "agent.token", "chmod"]);
    let shown = ran.ok();
    holds(
        &shown,
        &[
            "[server]",
            "[agent.kubernetes]",
            "[up]",
            "token = \"(hidden)\"",
        ],
    );
    assert!(!shown.contains("sesame"), "{shown}");
    // What is printed is a valid configuration.
    let again = Configuration::of(&[("muster.toml", &shown)]);
    let again = again.path().join("muster.toml").display().to_string();
    let checked = muster_with(&["config", "check", "--file", &again], &[]).ok();
    holds(&checked, &["valid: "]);
}

#[test]
fn the_example_is_valid() {
    let example = muster_with(&["config", "example"], &[]).ok();
    holds(&example, &["[server.kubernetes]", "#node-grace = 40"]);
    let files = Configuration::of(&[("muster.toml", &example)]);
    let path = files.path().display().to_string();
    let checked = muster_with(&["config", "check", "--file", &path], &[]).ok();
    holds(&checked, &["(0 settings)"]);
}
