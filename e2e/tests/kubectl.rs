//! kubectl 1.34, built from its Go module, against the embedded resource API.

use std::process::Stdio;
use std::time::Duration;

use e2e::{Platform, eventually, kubectl, muster, run};

const SOON: Duration = Duration::from_secs(60);

const POD: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: talker
  labels: {app: talk}
spec:
  restartPolicy: Never
  containers:
    - name: c
      command: [/bin/sh, -c, "for i in 1 2 3 4 5; do echo line $i; sleep 0.3; done"]
      env: [{name: A, value: one}]
      resources: {requests: {cpu: 50m, memory: 16Mi}}
"#;

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, labels: {app: x}}\ndata: {a: '1', b: '2'}\n";

const JOB: &str = r#"apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 4, rdzvBackend: c10d}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              command: [sleep, "600"]
              resources: {requests: {cpu: 50m, memory: 16Mi}}
"#;

fn file(platform: &Platform, name: &str, text: &str) -> String {
    platform.manifest(name, text).display().to_string()
}

#[test]
fn objects_are_created_shown_explained_and_described() {
    let platform = Platform::up(&[]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let pod = file(&platform, "pod.yaml", POD);
    assert!(k(&["apply", "-f", &pod]).contains("pod/talker created"));
    assert!(k(&["apply", "-f", &pod]).contains("pod/talker unchanged"));
    k(&[
        "wait",
        "--for=condition=Ready",
        "pod/talker",
        "--timeout=60s",
    ]);
    let log = k(&["logs", "-f", "talker"]);
    assert_eq!(log, "line 1\nline 2\nline 3\nline 4\nline 5\n");
    k(&[
        "wait",
        "--for=jsonpath={.status.phase}=Succeeded",
        "pod/talker",
        "--timeout=60s",
    ]);
    let wide = k(&["get", "pods", "-o", "wide"]);
    let row: Vec<&str> = wide.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["talker", "0/1", "Completed", "0"], "{wide}");
    assert!(
        wide.lines().next().unwrap().contains("NOMINATED NODE"),
        "{wide}"
    );
    let yaml = k(&["get", "pod", "talker", "-o", "yaml"]);
    assert!(
        yaml.contains("phase: Succeeded") && !yaml.contains("managedFields"),
        "{yaml}"
    );
    assert!(k(&["get", "pods", "-l", "app=talk", "-o", "name"]).contains("pod/talker"));
    assert_eq!(
        k(&[
            "get",
            "pods",
            "--field-selector=status.phase=Running",
            "-o",
            "name"
        ]),
        ""
    );

    let described = k(&["describe", "pod", "talker"]);
    let words: Vec<&str> = described.split_whitespace().collect();
    let words = words.join(" ");
    for part in [
        "Name: talker",
        "Exit Code: 0",
        "Reason: Completed",
        "Scheduled",
    ] {
        assert!(words.contains(part), "{part} is missing in\n{described}");
    }
    let node = k(&["get", "nodes", "-o", "name"]);
    assert!(k(&["describe", node.trim()]).contains("Allocated resources:"));

    assert!(k(&["explain", "pod.spec.containers.resources"]).contains("Compute Resources"));
    assert!(k(&["explain", "pytorchjob.spec.elasticPolicy"]).contains("maxReplicas"));
    let kinds = k(&["api-resources"]);
    for kind in [
        "pytorchjobs",
        "podgroups",
        "queues",
        "resourcequotas",
        "leases",
    ] {
        assert!(kinds.contains(kind), "{kind} is missing in\n{kinds}");
    }
    let events = k(&["events", "--for", "pod/talker"]);
    assert!(events.contains("Scheduled"), "{events}");
    assert!(k(&["get", "events"]).contains("Scheduled"));
    assert!(k(&["version"]).contains("Server Version: v1.34"));
    assert!(k(&["get", "--raw", "/readyz"]).contains("ok"));
}

#[test]
fn all_four_kinds_of_patch_and_edit_and_replace_work() {
    let platform = Platform::up(&[]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let config = file(&platform, "c.yaml", CONFIG);
    k(&["create", "-f", &config]);
    let data = || k(&["get", "cm", "c", "-o", "jsonpath={.data}"]);
    k(&[
        "patch",
        "cm",
        "c",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/data/a","value":"9"}]"#,
    ]);
    k(&[
        "patch",
        "cm",
        "c",
        "--type=merge",
        "-p",
        r#"{"data":{"b":null,"c":"3"}}"#,
    ]);
    assert_eq!(data(), r#"{"a":"9","c":"3"}"#);

    let pod = file(
        &platform,
        "pod.yaml",
        &POD.replace("for i in 1 2 3 4 5", "sleep 600; for i in 1"),
    );
    k(&["apply", "-f", &pod]);
    // A strategic patch merges tolerations' and containers' lists by their keys.
    k(&[
        "patch",
        "pod",
        "talker",
        "-p",
        r#"{"metadata":{"labels":{"more":"yes"}},"spec":{"containers":[{"name":"c","image":"changed:1"}]}}"#,
    ]);
    let command = k(&[
        "get",
        "pod",
        "talker",
        "-o",
        "jsonpath={.spec.containers[0].command[0]} {.spec.containers[0].image} {.metadata.labels}",
    ]);
    assert_eq!(command, r#"/bin/sh changed:1 {"app":"talk","more":"yes"}"#);

    let applied = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ssa}\ndata: {a: '1'}\n";
    let one = file(&platform, "one.yaml", applied);
    k(&["apply", "--server-side", "--field-manager=one", "-f", &one]);
    let two = file(&platform, "two.yaml", &applied.replace("'1'", "'2'"));
    let refused = platform.kubectl(&["apply", "--server-side", "--field-manager=two", "-f", &two]);
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.err.contains(r#"conflict with "one": .data.a"#),
        "{}",
        refused.err
    );
    k(&[
        "apply",
        "--server-side",
        "--field-manager=two",
        "--force-conflicts",
        "-f",
        &two,
    ]);
    assert_eq!(k(&["get", "cm", "ssa", "-o", "jsonpath={.data.a}"]), "2");
    let owners = k(&[
        "get",
        "cm",
        "ssa",
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields[*].manager}",
    ]);
    assert!(owners.contains("two"), "{owners}");

    let mut edit = platform.command(&kubectl(), &["edit", "cm", "c"]);
    edit.env("KUBE_EDITOR", "sed -i s/\\\"9\\\"/\\\"10\\\"/");
    assert!(run(&mut edit).ok().contains("configmap/c edited"));
    assert_eq!(data(), r#"{"a":"10","c":"3"}"#);
    k(&["label", "cm", "c", "team=blue"]);
    k(&["annotate", "cm", "c", "note=x"]);
    k(&["replace", "-f", &config]);
    assert_eq!(data(), r#"{"a":"1","b":"2"}"#);
    let diff = platform.kubectl(&[
        "diff",
        "-f",
        &file(&platform, "d.yaml", &CONFIG.replace("'1'", "'7'")),
    ]);
    assert_eq!(diff.code, Some(1), "{diff:?}");
    assert!(diff.out.contains("+  a: \"7\""), "{}", diff.out);
}

#[test]
fn bad_input_gets_the_same_words_as_from_kube_apiserver() {
    let platform = Platform::server(&[]);
    let refused = |name: &str, text: &str| {
        let ran = platform.kubectl(&["apply", "-f", &file(&platform, name, text)]);
        assert_ne!(ran.code, Some(0), "{name} was taken");
        ran.err
    };
    let unknown = refused("u.yaml", &POD.replace("restartPolicy:", "restartPolitics:"));
    assert!(
        unknown.contains(r#"unknown field "spec.restartPolitics""#),
        "{unknown}"
    );
    let name = refused("n.yaml", &POD.replace("name: talker", "name: Talker"));
    assert!(
        name.contains("a lowercase RFC 1123 subdomain must consist of"),
        "{name}"
    );
    let amount = refused("a.yaml", &POD.replace("cpu: 50m", "cpu: 50x"));
    assert!(
        amount.contains("50x") || amount.contains("quantities must match"),
        "{amount}"
    );
    let namespace = platform.kubectl(&["get", "pod", "none", "-n", "nowhere"]);
    // kubectl reads the namespace before it reports a missing object.
    assert!(
        namespace
            .err
            .contains(r#"Error from server (NotFound): namespaces "nowhere" not found"#),
        "{}",
        namespace.err
    );
    let job = refused(
        "j.yaml",
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {template: {spec: {restartPolicy: Always, containers: [{name: c, command: [x]}]}}}\n",
    );
    assert!(job.contains(r#"spec.template.spec.restartPolicy"#), "{job}");
    let ran = platform.kubectl(&[
        "create",
        "-f",
        &file(&platform, "q.yaml", CONFIG),
        "--dry-run=server",
    ]);
    assert!(ran.out.contains("(server dry run)"), "{ran:?}");
    assert!(
        platform.get("configmap", "c").is_null(),
        "a dry run wrote something"
    );
}

#[test]
fn a_training_job_scales_suspends_and_takes_its_dependents_along() {
    let platform = Platform::up(&[]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    k(&["apply", "-f", &file(&platform, "job.yaml", JOB)]);
    let selector = "training.kubeflow.org/job-name=train";
    let running = |count: usize| {
        eventually(&format!("{count} workers run"), SOON, || {
            let out = k(&[
                "get",
                "pods",
                "-l",
                selector,
                "--field-selector=status.phase=Running",
                "-o",
                "name",
            ]);
            (out.lines().count() == count).then_some(())
        });
    };
    running(2);
    k(&["scale", "pytorchjob/train", "--replicas=4"]);
    running(4);
    k(&["scale", "pytorchjob/train", "--replicas=1"]);
    running(1);
    assert!(k(&["get", "pytorchjobs"]).contains("Running"));
    platform.cli(&["suspend", "train"]).ok();
    k(&[
        "wait",
        "--for=condition=Suspended",
        "pytorchjob/train",
        "--timeout=60s",
    ]);
    running(0);
    platform.cli(&["resume", "train"]).ok();
    running(1);
    // In the foreground, the job is there until its pods are gone.
    k(&[
        "delete",
        "pytorchjob",
        "train",
        "--cascade=foreground",
        "--timeout=60s",
    ]);
    assert_eq!(k(&["get", "pods", "-l", selector, "-o", "name"]), "");

    // Orphaned pods stay, and lose their owner.
    k(&["apply", "-f", &file(&platform, "job.yaml", JOB)]);
    running(2);
    k(&["delete", "pytorchjob", "train", "--cascade=orphan"]);
    let owners = || {
        k(&[
            "get",
            "pods",
            "-l",
            selector,
            "-o",
            "jsonpath={.items[*].metadata.ownerReferences}",
        ])
    };
    eventually("the owners were taken off", SOON, || {
        owners().is_empty().then_some(())
    });
    running(2);
    k(&["delete", "pods", "-l", selector, "--grace-period=1"]);
}

#[test]
fn a_watch_shows_changes_and_a_namespace_takes_its_contents_along() {
    let platform = Platform::up(&[]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    k(&["create", "namespace", "team"]);
    let out = platform.data.with_file_name("watch.txt");
    let mut watch = platform.command(&kubectl(), &["get", "cm", "-n", "team", "-w", "-o", "name"]);
    watch
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(Stdio::null());
    let mut watch = watch.spawn().unwrap();
    k(&["create", "cm", "seen", "-n", "team", "--from-literal=a=1"]);
    let read = || std::fs::read_to_string(&out).unwrap();
    eventually("the watch shows it", SOON, || {
        read().contains("configmap/seen").then_some(())
    });
    k(&["delete", "namespace", "team", "--timeout=60s"]);
    let gone = platform.kubectl(&["get", "cm", "seen", "-n", "team"]);
    assert!(gone.err.contains("NotFound"), "{gone:?}");
    let _ = watch.kill();
    let _ = watch.wait();
}

#[test]
fn quotas_and_limits_hold_and_are_shown() {
    let platform = Platform::server(&[]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    k(&[
        "apply",
        "-f",
        &file(
            &platform,
            "q.yaml",
            "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {pods: '1', requests.cpu: '1'}}\n",
        ),
    ]);
    k(&["apply", "-f", &file(&platform, "p.yaml", POD)]);
    let second = platform.kubectl(&[
        "apply",
        "-f",
        &file(&platform, "p2.yaml", &POD.replace("talker", "second")),
    ]);
    assert!(
        second
            .err
            .contains("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"),
        "{}",
        second.err
    );
    let described = k(&["describe", "quota", "q"]);
    assert!(
        described.contains("pods") && described.contains("50m"),
        "{described}"
    );
}

#[test]
fn a_kubeconfig_of_ones_own_signs_in_and_what_is_revoked_is_refused() {
    let platform = Platform::server(&[]);
    let config = run(&mut platform.command(&muster(), &["kubeconfig"])).ok();
    let own = file(&platform, "own.kubeconfig", &config);
    let with = |arguments: &[&str]| {
        let all: Vec<&str> = ["--kubeconfig", &own]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        platform.kubectl(&all)
    };
    assert!(with(&["get", "ns"]).ok().contains("default"));
    assert!(
        with(&["auth", "can-i", "create", "pods"])
            .ok()
            .contains("yes")
    );
    assert!(with(&["auth", "whoami"]).ok().contains("admin"));
    let list = platform.cli(&["token", "list"]).ok();
    let line = list
        .lines()
        .find(|line| line.contains(" kubeconfig"))
        .expect("it is listed");
    platform
        .cli(&["token", "revoke", line.split_whitespace().next().unwrap()])
        .ok();
    let refused = with(&["get", "ns"]);
    assert_ne!(refused.code, Some(0), "a revoked token was taken");
    let mut bare = platform.command(&kubectl(), &["get", "ns", "--token=nonsense"]);
    assert_ne!(run(&mut bare).code, Some(0));
}

#[test]
fn roles_impersonation_and_tokens_of_service_accounts_are_kubectls() {
    let platform = Platform::server(&[]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let refused = |arguments: &[&str]| {
        let ran = platform.kubectl(arguments);
        assert_ne!(ran.code, Some(0), "{arguments:?} was taken: {}", ran.out);
        ran.out + &ran.err
    };
    assert!(k(&["get", "clusterroles"]).contains("muster:member"));
    assert!(k(&["get", "rolebindings", "-o", "wide"]).contains("ClusterRole/muster:member"));

    refused(&["--as=bob", "auth", "can-i", "get", "pods"]);
    k(&[
        "create",
        "role",
        "reader",
        "--verb=get,list",
        "--resource=pods",
    ]);
    k(&[
        "create",
        "rolebinding",
        "bob",
        "--role=reader",
        "--user=bob",
    ]);
    assert!(k(&["--as=bob", "auth", "can-i", "get", "pods"]).contains("yes"));
    assert!(k(&["--as=bob", "auth", "can-i", "--list"]).contains("pods"));
    assert!(k(&["--as=bob", "auth", "whoami"]).contains("bob"));
    assert!(refused(&["--as=bob", "get", "nodes"]).contains("User \"bob\" cannot list"));

    let groups = [
        "--as=ann",
        "--as-group=muster:users",
        "--as-group=muster:member",
    ];
    let member = |arguments: &[&'static str]| [&groups[..], arguments].concat();
    let secrets = member(&["get", "secrets", "-n", "muster-system"]);
    assert!(refused(&secrets).contains("forbidden"));
    assert!(k(&member(&["auth", "can-i", "create", "pods"])).contains("yes"));

    let roles = r#"apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules:
  - {apiGroups: [""], resources: [configmaps], verbs: [get]}
"#;
    let roles = file(&platform, "roles.yaml", roles);
    assert!(k(&["auth", "reconcile", "-f", &roles]).contains("reconciled"));
    assert!(k(&["--as=bob", "auth", "can-i", "get", "configmaps"]).contains("yes"));

    k(&["create", "serviceaccount", "builder"]);
    let token = k(&["create", "token", "builder"]);
    let with_token = format!("--token={}", token.trim());
    let who = k(&[with_token.as_str(), "auth", "whoami"]);
    assert!(
        who.contains("system:serviceaccount:default:builder"),
        "{who}"
    );
    assert!(refused(&[with_token.as_str(), "get", "pods"]).contains("forbidden"));
    k(&["delete", "serviceaccount", "builder"]);
    refused(&[with_token.as_str(), "auth", "whoami"]);
}
