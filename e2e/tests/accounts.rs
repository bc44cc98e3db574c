//! Unix accounts and host directories that an administrator gives to namespaces: whose files a pod reaches, and whose it
//! does not. The accounts are in a copy of the machine's list that only the agent's mount namespace has.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use e2e::{Platform, eventually, require_root};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const ANN: u32 = 54_321;
const BOB: u32 = 54_322;

/// The agent's words go after it.
const WITH_OWN_ACCOUNTS: &str =
    "mount --bind \"$0/passwd\" /etc/passwd && mount --bind \"$0/group\" /etc/group && exec \"$@\"";

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A home directory that only its owner may enter, with a file that only they may read.
fn home(directory: &Path, name: &str, id: u32) {
    let home = directory.join(name);
    std::fs::create_dir(&home).unwrap();
    write(&home.join("secret"), &format!("of {name}\n"), 0o600);
    for path in [home.join("secret"), home.clone()] {
        chown(path, Some(id), Some(id)).unwrap();
    }
    std::fs::set_permissions(home, PermissionsExt::from_mode(0o700)).unwrap();
}

fn pod(namespace: &str, name: &str, script: &str, mount: Option<(&Path, bool)>) -> String {
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    if let Some((path, read_only)) = mount {
        volumes.push(json!({"name": "sets", "hostPath": {"path": path}}));
        mounts.push(json!({"name": "sets", "mountPath": "/sets", "readOnly": read_only}));
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "restartPolicy": "Never", "volumes": volumes,
            "containers": [{
                "name": "c", "command": ["/bin/sh", "-c", script], "volumeMounts": mounts,
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            }],
        },
    })
    .to_string()
}

/// What a pod prints, once it has ended.
fn printed(platform: &Platform, namespace: &str, name: &str) -> String {
    eventually("the pod ends", SOON, || {
        let text = platform
            .cli(&["-n", namespace, "get", "pod", name, "-o", "json"])
            .out;
        let object: Value = serde_json::from_str(&text).ok()?;
        let phase = object["status"]["phase"].as_str()?;
        ["Succeeded", "Failed"].contains(&phase).then_some(())
    });
    platform.cli(&["-n", namespace, "logs", name]).ok()
}

#[test]
fn a_namespace_has_its_account_and_its_host_directories_and_no_other_has_them() {
    require_root();
    let directory = tempfile::Builder::new().tempdir_in("/srv").unwrap();
    let root = directory.path();
    std::fs::set_permissions(root, PermissionsExt::from_mode(0o755)).unwrap();
    home(root, "ann", ANN);
    home(root, "bob", BOB);
    let sets = root.join("sets");
    std::fs::create_dir(&sets).unwrap();
    write(&sets.join("data"), "a data set\n", 0o644);
    // The pod's account owns the directory, so only the read-only mount refuses a write.
    chown(&sets, Some(ANN), Some(ANN)).unwrap();
    for (file, line) in [
        ("passwd", "NAME:x:ID:ID::HOME:/bin/sh\n"),
        ("group", "NAME:x:ID:\n"),
    ] {
        let mut text = std::fs::read_to_string(format!("/etc/{file}")).unwrap();
        for (name, id) in [("ann", ANN), ("bob", BOB)] {
            let home = root.join(name).display().to_string();
            let line = line.replace("NAME", name).replace("ID", &id.to_string());
            text += &line.replace("HOME", &home);
        }
        write(&root.join(file), &text, 0o644);
    }
    write(
        &root.join("accounts.yaml"),
        "namespaces: {team: ann}\nlabels: {lab: bob}\n",
        0o644,
    );
    let allowed = json!({
        "apiVersion": "muster.io/v1alpha1", "kind": "PodSecurityAllowList",
        "spec": {"hostPaths": [{"path": sets, "readOnly": true, "namespaces": ["team"]}]},
    });
    write(&root.join("allow.yaml"), &allowed.to_string(), 0o644);

    let allow = root.join("allow.yaml").display().to_string();
    let platform = Platform::server(&["--pod-security-allow", &allow]);
    let wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-c"];
    let mut wrapper: Vec<String> = wrapper.map(str::to_owned).into();
    wrapper.extend([WITH_OWN_ACCOUNTS.to_owned(), root.display().to_string()]);
    let accounts = root.join("accounts.yaml").display().to_string();
    let arguments = ["--metrics", "off", "--accounts", &accounts];
    let _agent = platform.agent_by("n1", wrapper, &[], &arguments);
    platform.await_nodes(1);
    for namespace in ["team", "other", "labelled"] {
        platform.kubectl(&["create", "namespace", namespace]).ok();
    }
    let label = "muster.io/unix-account=lab";
    platform
        .kubectl(&["label", "namespace", "labelled", label])
        .ok();

    // The pod is the account, with its home directory; another namespace's pod has an id of its own and cannot enter it.
    let secret = |of: &str| root.join(of).join("secret").display().to_string();
    let script = format!(
        "id -u; id -g; cat ~/secret; echo more > ~/written; cat {} 2>&1; cat /sets/data; echo x 2>&1 > /sets/new; true",
        secret("bob")
    );
    platform.apply(&pod("team", "mine", &script, Some((&sets, true))));
    let text = printed(&platform, "team", "mine");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..3], [&ANN.to_string(), &ANN.to_string(), "of ann"]);
    assert!(lines[3].contains("Permission denied"), "{text}");
    assert_eq!(lines[4], "a data set");
    assert!(text.contains("Read-only file system"), "{text}");
    assert!(!sets.join("new").exists());
    let written = std::fs::metadata(root.join("ann/written")).unwrap();
    assert_eq!((written.uid(), written.gid()), (ANN, ANN));

    platform.apply(&pod("labelled", "theirs", "id -u; cat ~/secret", None));
    let text = printed(&platform, "labelled", "theirs");
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [&BOB.to_string(), "of bob"]
    );

    let script = format!("id -u; cat {} 2>&1; true", secret("ann"));
    platform.apply(&pod("other", "theirs", &script, None));
    let text = printed(&platform, "other", "theirs");
    let id: u32 = text.lines().next().unwrap().parse().unwrap();
    assert!(id != 0 && id != ANN && id != BOB, "{text}");
    assert!(text.contains("Permission denied"), "{text}");

    // The list has the namespace and the mode of a directory; what it does not have is refused with the reason.
    for (namespace, path, read_only, reason) in [
        ("other", sets.as_path(), true, "hostPath volumes"),
        ("team", root, true, "hostPath volumes"),
        ("team", &sets, false, "must be mounted with readOnly=true"),
    ] {
        let file = platform.manifest(
            "refused.yaml",
            &pod(namespace, "refused", "true", Some((path, read_only))),
        );
        let ran = platform.kubectl(&["create", "-f", &file.display().to_string()]);
        assert!(
            ran.err.contains("Forbidden") && ran.err.contains(reason),
            "{namespace} {path:?}: {}",
            ran.err
        );
    }
}
