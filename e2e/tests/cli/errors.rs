//! Errors: each is a sentence with a remedy and has its exit status.

use std::process::Command;

use e2e::{eventually, free_address, muster, run};

use super::{CONFIG, SOON, ends, holds, platform};

const QUOTA: &str =
    "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {configmaps: '1'}}\n";

#[test]
fn up_ends_with_the_name_of_its_agent_when_the_agent_ends() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let mut up = Command::new(muster());
    up.arg("--data").arg(directory.path().join("data"));
    up.args(["up", "--listen", &free_address(), "--metrics", &metrics]);
    let ran = run(&mut up);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    holds(&ran.err, &["component \"agent\" failed"]);
}

#[test]
fn every_error_is_a_sentence_with_what_to_do_and_has_its_exit_status() {
    let mut platform = platform();
    let file = |name: &str, text: &str| platform.manifest(name, text).display().to_string();
    let says = |code: i32, arguments: &[&str], parts: &[&str]| {
        let ran = ends(&platform, code, arguments);
        holds(&ran.err, parts);
        ran
    };

    // Invalid arguments.
    says(2, &["gett"], &["unrecognized subcommand"]);
    says(
        2,
        &["get", "pods", "-o", "xml"],
        &["json, yaml, wide, name"],
    );
    says(
        2,
        &["wait", "x", "--for", "y"],
        &["condition=NAME or delete"],
    );
    says(
        2,
        &["describe", "pods"],
        &["name one pod", "`muster get pods`"],
    );
    says(2, &["delete"], &["say what to delete"]);
    says(
        2,
        &["explain", "node/n"],
        &[
            "it takes: pytorchjob, tfjob, xgboostjob, paddlejob, jaxjob, mpijob, job, vcjob, rayjob, rayservice, trainjob, jobset, leaderworkerset, raycluster, pod",
        ],
    );
    says(
        2,
        &["--kubeconfig", "/nope", "get", "pods"],
        &["/nope", "must name a file"],
    );

    // Options of the other engine are refused, not ignored.
    for option in [
        ["--advertise", "gpu.example"],
        ["--first-password-file", "/nope"],
        ["--node-grace", "60"],
        ["--pod-security-config", "/nope"],
        ["--pod-security-allow", "/nope"],
    ] {
        // The flag was the way to name the engine before it became a subcommand.
        for engine in [&["kubernetes"][..], &["--engine", "kubernetes"]] {
            let all = [&["server"][..], engine, &option].concat();
            says(2, &all, &["unexpected argument", option[0]]);
        }
    }
    let kinds = &["server", "--kinds", "none"];
    says(2, kinds, &["unexpected argument", "--kinds"]);
    says(
        2,
        &["server", "kubernetes", "--engine", "kubernetes"],
        &["unexpected argument", "--engine"],
    );
    says(
        2,
        &["server", "--advertise", "gpu.example", "kubernetes"],
        &["kubernetes", "cannot be used with"],
    );
    says(2, &["agent"], &["required", "--server"]);
    says(2, &["agent", "--gpu-parts"], &["unexpected argument"]);

    // The named object does not exist.
    says(
        3,
        &["get", "gadgets"],
        &["no kind \"gadgets\"", "pytorchjobs"],
    );
    let here = "in namespace \"default\"";
    says(
        3,
        &["get", "pod", "x"],
        &["there is no pod \"x\"", here, "-n NAME"],
    );
    says(3, &["explain", "x"], &["no job, pod or gang \"x\"", here]);
    says(3, &["logs", "x"], &["no connected node keeps a log"]);
    says(3, &["wait", "x"], &["there is no job \"x\""]);
    says(3, &["cancel", "x"], &["`muster get pytorchjobs`"]);
    says(
        3,
        &["-n", "none", "run", "--", "true"],
        &["there is no namespace \"none\""],
    );
    says(
        3,
        &["apply", "-f", "/nope.yaml"],
        &["/nope.yaml cannot be read"],
    );
    let old = file(
        "old.yaml",
        "apiVersion: kubeflow.org/v2\nkind: PyTorchJob\nmetadata: {name: x}\n",
    );
    says(
        3,
        &["apply", "-f", &old],
        &["PyTorchJob is in apiVersion kubeflow.org/v1"],
    );
    // Of several names, the existing objects are printed all the same.
    platform.apply(CONFIG);
    let ran = says(
        3,
        &["get", "cm", "c", "x"],
        &["there is no configmap \"x\""],
    );
    holds(&ran.out, &["c "]);

    // The server refused.
    let cause = "resources.requests[cpu]: Invalid value: \"lots\": ";
    says(
        4,
        &["run", "--cpus", "lots", "--", "true"],
        &["is invalid:\n  spec.", cause],
    );
    let unknown = file("u.yaml", &CONFIG.replace("\ndata:", "\ndta:"));
    says(
        4,
        &["apply", "-f", &unknown],
        &["u.yaml, document 1: ", "\n  unknown field \"dta\""],
    );
    let changed = file("c.yaml", &CONFIG.replace("'1'", "'2'"));
    let mut kubectl = platform.command(
        &e2e::kubectl(),
        &["apply", "--server-side", "--force-conflicts", "-f"],
    );
    run(kubectl.arg(file("k.yaml", &CONFIG.replace("'1'", "'3'")))).ok();
    says(
        4,
        &["apply", "-f", &changed],
        &[".data.a: conflict with \"kubectl\"", "--force-conflicts"],
    );
    ends(
        &platform,
        0,
        &["apply", "-f", &changed, "--force-conflicts"],
    );
    let detached = ["run", "--name", "same", "--detach", "--", "true"];
    ends(&platform, 0, &detached);
    says(4, &detached, &["already exists", "choose another name"]);
    platform.apply(QUOTA);
    let another = file("d.yaml", &CONFIG.replace("name: c,", "name: d,"));
    eventually("the quota holds", SOON, || {
        let ran = platform.cli(&["apply", "-f", &another, "--dry-run"]);
        (ran.code == Some(4)
            && ran
                .err
                .contains("have an administrator raise ResourceQuota q"))
        .then_some(())
    });

    // No server answers.
    let listen = platform.listen.clone();
    says(
        5,
        &["--data", "/nope", "get", "pods"],
        &["/nope/server", "`muster up`"],
    );
    platform.kill();
    let ran = ends(&platform, 5, &["get", "pods"]);
    holds(
        &ran.err,
        &[
            &format!("no answer from https://{listen}"),
            "is the server up?",
        ],
    );
    holds(
        &ends(&platform, 0, &["version"]).out,
        &["server none (no answer from"],
    );
}
