//! Teams by the command line, from an empty server: two teams with queues and quotas, members that see and use only
//! their own team, and a team that is deleted once its work has ended.

use std::time::Duration;

use e2e::{Platform, eventually, repository};

const SOON: Duration = Duration::from_secs(60);

/// A user whose own record grants nothing, and its access token.
fn user(platform: &Platform, name: &str) -> String {
    platform
        .cli(&["user", "create", name, "--no-namespaces"])
        .ok();
    let token = platform.cli(&["token", "create", "--user", name]).ok();
    token.trim().to_owned()
}

/// A kubeconfig for the `muster` command line as a user.
fn kubeconfig(platform: &Platform, name: &str) -> String {
    let text = platform.cli(&["kubeconfig", "--user", name]).ok();
    let file = platform.manifest(&format!("{name}.kubeconfig"), &text);
    file.display().to_string()
}

#[test]
fn members_work_in_their_teams_queue_and_namespace_and_see_no_other_team() {
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let platform = Platform::up(&["--machine", &machine.display().to_string()]);
    let (ann, bob) = (user(&platform, "ann"), user(&platform, "bob"));
    let eve = user(&platform, "eve");
    let created = platform.cli(&[
        "team",
        "create",
        "vision",
        "--weight",
        "2",
        "--limits",
        "nvidia.com/gpu=3",
        "--quota",
        "nvidia.com/gpu=2",
        "--leads",
        "ann",
        "--members",
        "bob",
    ]);
    assert_eq!(
        created.ok(),
        "team vision created: queue vision, 2 member(s), namespace(s) vision\n"
    );
    platform
        .cli(&[
            "team",
            "create",
            "speech",
            "--namespaces",
            "speech-a,speech-b",
            "--members",
            "eve",
        ])
        .ok();
    let listed = platform.cli(&["team", "list"]).ok();
    assert!(
        listed.contains("speech-a,speech-b") && listed.contains("vision"),
        "{listed}"
    );

    // A member's job runs in the team's namespace and, by default, in its queue.
    let as_bob = kubeconfig(&platform, "bob");
    let run = [
        "--kubeconfig",
        &as_bob,
        "-n",
        "vision",
        "run",
        "--name",
        "job",
        "--gpus",
        "1",
        "--cpus",
        "100m",
        "--memory",
        "64Mi",
        "--detach",
        "--",
        "sleep",
        "600",
    ];
    platform.cli(&run).ok();
    eventually("the job runs", SOON, || {
        let pods = platform
            .kubectl_by(&bob, &["-n", "vision", "get", "pods"])
            .out;
        pods.contains("Running").then_some(())
    });
    let queue = [
        "-n",
        "vision",
        "get",
        "podgroups",
        "-o",
        "jsonpath={.items[*].spec.queue}",
    ];
    assert_eq!(platform.kubectl_by(&bob, &queue).ok(), "vision");
    let shown = platform.cli(&["team", "show", "vision"]).ok();
    assert!(
        shown.contains("vision: requests.nvidia.com/gpu 1 of 2"),
        "{shown}"
    );
    assert!(
        shown.contains("ann (lead)") && shown.contains("bob (member)"),
        "{shown}"
    );

    // The quota refuses in words.
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: two, namespace: vision}\nspec:\n  containers:\n  - name: main\n    \
               command: ['true']\n    resources: {limits: {nvidia.com/gpu: 2}}\n";
    let file = platform.manifest("two.yaml", pod).display().to_string();
    let refused = platform.cli(&["--kubeconfig", &as_bob, "apply", "-f", &file]);
    assert!(
        refused.err.contains("ResourceQuota muster-team limits the object's namespace to 2 requests.nvidia.com/gpu, of which 1 are in use"),
        "{}",
        refused.err
    );

    // Another team's member sees and changes nothing of it, and its queue takes no work of theirs.
    for arguments in [
        &["-n", "vision", "get", "pods"][..],
        &["-n", "vision", "get", "pytorchjobs"],
        &["-n", "vision", "get", "secrets"],
        &["-n", "vision", "get", "rolebindings"],
        &["-n", "vision", "delete", "pod", "--all"],
        &[
            "label",
            "namespace",
            "speech-a",
            "muster.io/team=vision",
            "--overwrite",
        ],
        &[
            "patch",
            "queue",
            "vision",
            "--type=merge",
            "-p",
            "{\"spec\":{\"namespaceSelector\":null}}",
        ],
        &[
            "-n",
            "speech-a",
            "create",
            "rolebinding",
            "x",
            "--clusterrole=cluster-admin",
            "--user=eve",
        ],
    ] {
        let refused = platform.kubectl_by(&eve, arguments);
        assert!(
            refused.code != Some(0) && refused.err.contains("orbidden"),
            "{arguments:?}: {refused:?}"
        );
    }
    let as_eve = kubeconfig(&platform, "eve");
    let steal = platform.cli(&[
        "--kubeconfig",
        &as_eve,
        "-n",
        "speech-a",
        "run",
        "--queue",
        "vision",
        "--detach",
        "--",
        "true",
    ]);
    assert!(
        steal.code != Some(0) && steal.err.contains("takes no work from namespace"),
        "{}",
        steal.err
    );
    let own = platform.cli(&[
        "--kubeconfig",
        &as_bob,
        "team",
        "add-member",
        "vision",
        "eve",
    ]);
    assert!(own.code != Some(0), "a member adds no member: {own:?}");
    // A lead raises no quota.
    let raise = [
        "-n",
        "vision",
        "patch",
        "resourcequota",
        "muster-team",
        "--type=merge",
        "-p",
        "{\"spec\":{\"hard\":{\"pods\":\"9\"}}}",
    ];
    assert_ne!(platform.kubectl_by(&ann, &raise).code, Some(0));

    // Membership ends at once.
    platform
        .cli(&["team", "remove-member", "vision", "bob"])
        .ok();
    assert_ne!(
        platform
            .kubectl_by(&bob, &["-n", "vision", "get", "pods"])
            .code,
        Some(0)
    );
    let again = platform.cli(&["team", "remove-member", "vision", "bob"]);
    assert!(again.err.contains("is no member"), "{}", again.err);
    platform
        .cli(&["team", "add-member", "vision", "bob", "--role", "viewer"])
        .ok();
    platform
        .kubectl_by(&bob, &["-n", "vision", "get", "pods"])
        .ok();
    assert_ne!(
        platform
            .kubectl_by(&bob, &["-n", "vision", "delete", "pod", "--all"])
            .code,
        Some(0)
    );

    // Deletion waits for the work.
    let refused = platform.cli(&["team", "delete", "vision"]);
    assert!(
        refused.err.contains("vision/job-master-0") && refused.err.contains("--drain"),
        "{}",
        refused.err
    );
    platform.apply(
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: set, namespace: vision}\nspec:\n  \
         suspend: true\n  replicatedJobs:\n  - {name: w, template: {spec: {template: {spec: {restartPolicy: Never,\n      \
         containers: [{name: c, command: [sleep, '600']}]}}}}}\n",
    );
    let deleted = platform.cli(&["team", "delete", "vision", "--drain"]).ok();
    let left = platform.kubectl(&["-n", "vision", "get", "jobsets", "-o", "name"]);
    assert_eq!(left.ok().trim(), "");
    assert!(deleted.contains("its namespaces stay"), "{deleted}");
    assert_ne!(
        platform
            .kubectl_by(&bob, &["-n", "vision", "get", "pods"])
            .code,
        Some(0)
    );
    assert_ne!(platform.kubectl(&["get", "queue", "vision"]).code, Some(0));
    platform.kubectl(&["get", "namespace", "vision"]).ok();
    assert!(!platform.cli(&["team", "list"]).ok().contains("vision"));
    let taken = platform.cli(&["team", "create", "default"]);
    assert!(taken.err.contains("choose another name"), "{}", taken.err);
}
