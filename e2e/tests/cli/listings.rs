//! Listings in every output format; access; and the binary's own information.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use e2e::{Platform, eventually, muster, run};

use super::{CONFIG, SOON, ends, holds, platform, row};

#[test]
fn what_there_is_is_listed_in_every_form_watched_and_shown_in_colour_on_terminals_only() {
    let platform = platform();
    let out = |arguments: &[&str]| ends(&platform, 0, arguments).out;
    holds(&platform.apply(CONFIG), &["configmap/c created"]);
    holds(&platform.apply(CONFIG), &["configmap/c unchanged"]);
    platform.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n");
    let second = CONFIG.replace("name: c,", "name: d, namespace: other,");
    platform.apply(&second);

    assert_eq!(
        out(&["get", "cm", "-l", "app=x", "-o", "name"]),
        "configmap/c\n"
    );
    let all = out(&["get", "configmaps", "-A", "-l", "app=x"]);
    assert_eq!(row(&all, "other")[1], "d");
    assert_eq!(row(&all, "default")[1], "c");
    let yaml = out(&["get", "cm/c", "-o", "yaml"]);
    holds(&yaml, &["kind: ConfigMap", "a: '1'"]);
    assert!(!yaml.contains("managedFields"), "{yaml}");
    let json = out(&["get", "cm", "d", "-n", "other", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["data"]["a"], "1");
    holds(
        &out(&["describe", "cm", "c"]),
        &["name: c", "Events: <none>"],
    );

    watched(&platform);

    let node = out(&["get", "nodes", "-o", "name"]);
    let node = node.trim().trim_start_matches("node/");
    let nodes = out(&["nodes"]);
    assert_eq!(
        row(&nodes, node)[1..4],
        ["Ready", "0 of 4", "4x NVIDIA H100 80GB HBM3"]
    );
    holds(
        &out(&["nodes", "-o", "wide"]),
        &["DEVICES FROM", "described"],
    );
    let words: Vec<&str> = "run --detach --gpus 3 --cpus 100m -- sleep 600"
        .split(' ')
        .collect();
    out(&words);
    eventually("the devices are used", SOON, || {
        (row(&out(&["nodes"]), node)[2] == "3 of 4").then_some(())
    });
    let top = out(&["top"]);
    assert_eq!(row(&top, "all")[1..3], ["1 node(s)", "1"]);
    holds(&out(&["top", "-o", "yaml"]), &["nvidia.com/gpu: '3'"]);
    eventually("the queue counts what it runs", SOON, || {
        let queues = out(&["queue"]);
        let row = row(&queues, "default");
        (row[1..5] == ["Open", "1", "100%", "3"] && row[9] == "1").then_some(())
    });
    holds(&out(&["queue", "-o", "wide"]), &["RECLAIMABLE"]);

    // A separate terminal, created by script(1).
    let terminal = |more: &str| {
        let line = format!("{} {more} describe cm c", muster().display());
        let arguments = ["-qec", &line, "/dev/null"];
        let mut command = platform.command("script".as_ref(), &arguments);
        run(command.env("TERM", "xterm").env_remove("NO_COLOR")).out
    };
    assert!(
        terminal("").contains("\u{1b}[1mEvents:"),
        "{}",
        terminal("")
    );
    let mut plain = platform.command(&muster(), &["describe", "cm", "c"]);
    assert!(!run(plain.env("TERM", "xterm")).ok().contains('\u{1b}'));
}

/// A watch prints the current objects, then changes, in aligned columns.
fn watched(platform: &Platform) {
    let mut command = platform.command(&muster(), &["get", "cm", "-l", "app=x", "-w"]);
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || lines.next().and_then(Result::ok).expect("a line");
    holds(&next(), &["NAME", "DATA", "AGE"]);
    assert!(next().starts_with("c "));
    platform.apply(&CONFIG.replace("name: c,", "name: new,"));
    assert!(next().starts_with("new "));
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn access_is_handed_out_and_taken_back_and_the_binary_documents_itself() {
    let platform = platform();
    let out = |arguments: &[&str]| ends(&platform, 0, arguments).out;
    holds(&out(&["version"]), &["muster ", "server v1."]);
    holds(
        &out(&["--help"]),
        &["Exit status:", "  124  ", "explain", "kubeconfig"],
    );
    holds(&out(&["completions", "bash"]), &["_muster"]);
    let pages = platform.data.join("pages");
    out(&["man", &pages.display().to_string()]);
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    holds(&page("muster.1"), &[".SH \"EXIT STATUS\""]);
    holds(&page("muster-run.1"), &[".SH EXAMPLES"]);
    let doctor = platform.cli(&["doctor"]);
    assert!(matches!(doctor.code, Some(0 | 1)), "{doctor:?}");
    holds(&doctor.out, &["GPUs", "isolation", "memory limits"]);

    holds(&out(&["token", "create", "--label", "robot"]), &["muster_"]);
    assert!(out(&["token", "join"]).contains('@'));
    let file = platform.manifest("mine.kubeconfig", &out(&["kubeconfig"]));
    let file = file.display().to_string();
    out(&["--kubeconfig", &file, "get", "nodes"]);
    let tokens = out(&["token", "list"]);
    let of = |label: &str| {
        let line = tokens.lines().find(|line| line.contains(label)).unwrap();
        line.split_whitespace().next().unwrap().to_string()
    };
    of("robot");
    out(&["token", "revoke", &of(" kubeconfig ")]);
    let ran = ends(&platform, 4, &["--kubeconfig", &file, "get", "nodes"]);
    holds(&ran.err, &["revoked", "--kubeconfig"]);
    ends(&platform, 3, &["token", "revoke", "nope"]);
    let backup = platform.data.join("backup").display().to_string();
    holds(&out(&["backup", &backup]), &["backup written to"]);
}
